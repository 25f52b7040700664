"""Count the rows of Parquet and ORC for `verify`, by plain readers of the columns that matter.

Whole row groups and stripes are read, whatever their statistics say. Those of Parquet are looked at afterwards, where
rows were found: if they exclude them, a run that believed them did not see them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from refstore.purge_document.document import Dataset
from refstore_purge.file_allowance import FileAllowance
from refstore_purge.formats.base import FormatTask, PurgeError
from refstore_purge.formats.parquet_file import ParquetFile
from refstore_purge.untyped_pandas import import_extra, orc, pa, pc, pq
from refstore_purge.verify_footer import ROW_GROUPS, ROWS, read_footer
from refstore_purge.verify_ids import BatchedLookup, RowCount, StatisticsBounds, kind_of, normalize
from refstore_purge.verify_text import VerifyReadError

BUFFER_BYTES: Final = 1024 * 1024
BATCH_ROWS: Final = 262_144
DAMAGED: Final = "it cannot be read: it is damaged, or no {}"


def schema_of_orc(source: BinaryIO) -> Any:
    return orc.ORCFile(source).schema


def count_parquet(
    source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount, *, is_of_id: bool
) -> BatchedLookup:
    """Count the rows, and return the lookup for the identifier's type."""
    footer = read_footer(source)  # refuses what pyarrow aborts at
    FileAllowance(source).add_rows(sum(group.get(ROWS, 0) for group in footer[ROW_GROUPS]))
    file = _open_file(source, dataset)
    schema, metadata = file.schema_arrow, file.metadata
    if not metadata.num_columns:
        raise VerifyReadError("it has no columns")
    lookup = find_lookup(schema, dataset, lookup, is_of_id=is_of_id)
    if is_of_id and not dataset.set_null:
        count.rows += metadata.num_rows
        return lookup
    leaf = None if is_of_id else _leaf(file, dataset.identifier)
    columns = _columns(schema, dataset, is_of_id=is_of_id)
    for group in range(metadata.num_row_groups):
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
            # not before something could be read: a damaged footer may end the process
            bounds = _bounds(metadata.row_group(group).column(leaf)) if leaf is not None else None
            _count_batch(batch, dataset, lookup, count, bounds, is_of_id=is_of_id)
    return lookup


def _open_file(source: BinaryIO, dataset: Dataset) -> Any:
    """Return the file, opened as a run opens it where pyarrow does not know a type. Raises VerifyReadError."""
    try:
        return pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES)
    except (pa.ArrowException, OSError) as error:
        paths = [tuple(name.split(".")) for name in (dataset.identifier, *dataset.set_null)]
        try:
            file = ParquetFile(source, FormatTask(paths[0], set_null=tuple(paths[1:]))).typed
        except PurgeError:
            file = None
        if file is None:
            raise error from None
        return file


def count_orc(
    source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount, *, is_of_id: bool
) -> BatchedLookup:
    """Count the rows, and return the lookup for the identifier's type."""
    file = orc.ORCFile(source)
    FileAllowance(source).add_rows(file.nrows)
    lookup = find_lookup(file.schema, dataset, lookup, is_of_id=is_of_id)
    if is_of_id and not dataset.set_null:
        count.rows += file.nrows
        return lookup
    if not is_of_id:
        _refuse_char(source, dataset)
    columns = _columns(file.schema, dataset, is_of_id=is_of_id)
    for stripe in range(file.nstripes):
        # pyarrow shows no statistics of stripes, and pyorc may end the process where a stripe is damaged
        batch = file.read_stripe(stripe, columns=columns)
        _count_batch(batch, dataset, lookup, count, None, is_of_id=is_of_id)
    return lookup


def _refuse_char(source: BinaryIO, dataset: Dataset) -> None:
    """Raise VerifyReadError where the identifier is char, which Arrow calls a string; MissingExtra."""
    pyorc = import_extra("pyorc", "the format orc")
    try:
        schema = pyorc.Reader(source).schema
    except pyorc.errors.ORCError:
        raise VerifyReadError(DAMAGED.format("orc")) from None
    if re.search(r"\bchar\(", str(schema[dataset.identifier.split(".")[0]])):
        raise VerifyReadError(f"column {dataset.identifier!r} is char, whose values are padded")


def find_lookup(schema: Any, dataset: Dataset, lookup: BatchedLookup, *, is_of_id: bool) -> BatchedLookup:
    """Return the lookup for the identifier's column. Raise VerifyReadError unless the identifier, and what is to be
    null, are there once and can be understood.
    """
    for name in dataset.set_null:
        type_: Any = pa.struct(list(schema))
        field: Any = None
        for step in name.split("."):
            field = _field_of(type_, step, name)
            type_ = field.type
        if not field.nullable:
            raise VerifyReadError(f"column {name!r} is required, so no run sets it to null")
    if is_of_id:
        return lookup
    type_ = identifier_type(schema, dataset)
    if pa.types.is_null(type_):
        return lookup
    found = lookup.for_type(type_)
    if found is None and kind_of(type_) == lookup.ids.kind:
        raise VerifyReadError(f"column {dataset.identifier!r} is {type_}, and no id has so many bytes")
    if found is None:
        raise VerifyReadError(f"column {dataset.identifier!r} is {type_}, and the ids are {lookup.ids.kind}s")
    return found


def find_type_lookup(schema: Any, dataset: Dataset, lookup: BatchedLookup) -> BatchedLookup:
    """Return the lookup for the type that a schema says of the identifier; if it has none, that of all ids."""
    try:
        return lookup.for_type(identifier_type(schema, dataset)) or lookup
    except VerifyReadError:
        return lookup


def identifier_type(schema: Any, dataset: Dataset) -> Any:
    """Return the type of the identifier's column. Raises VerifyReadError."""
    name = dataset.identifier
    type_: Any = pa.struct(list(schema))
    steps = name.split(".")
    while True:
        if pa.types.is_map(type_):
            type_ = type_.key_type if dataset.map_part == "key" else type_.item_type
        elif _is_list(type_):
            type_ = type_.value_type
        elif steps:
            type_ = _field_of(type_, steps.pop(0), name).type
        else:
            return type_


def _field_of(type_: Any, step: str, name: str) -> Any:
    if not pa.types.is_struct(type_):
        raise VerifyReadError(f"column {name!r} leads through {type_}, which has no fields")
    names = [field.name for field in type_]
    if names.count(step) != 1:
        raise VerifyReadError(describe_missing_column(names, step, name))
    return type_.field(names.index(step))


def describe_missing_column(names: Sequence[str], step: str, name: str) -> str:
    if step in names:
        return f"there is more than one column {name!r}"
    other = next((each for each in names if each.casefold() == step.casefold()), None)
    return f"there is no column {name!r}" + (f"; there is {other!r}, in another case" if other is not None else "")


def _is_list(type_: Any) -> bool:
    types = pa.types
    return types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)


def _columns(schema: Any, dataset: Dataset, *, is_of_id: bool) -> list[str]:
    """Return which columns to read: the whole outermost ones, but of an identifier in structs only itself."""
    found = {name.split(".")[0] for name in dataset.set_null}
    if not is_of_id:
        first = dataset.identifier.split(".")[0]
        is_alone = _is_plain(schema, dataset.identifier) and first not in found
        has_dots = any("." in name for name in schema.names)
        found.add(dataset.identifier if is_alone and not has_dots else first)
    return sorted(found)


def _is_plain(schema: Any, name: str) -> bool:
    """Return whether a column lies in structs only, and is nested no further."""
    first, *steps = name.split(".")
    type_: Any = schema.field(first).type
    while steps and pa.types.is_struct(type_):
        type_ = type_.field(steps.pop(0)).type
    return not pa.types.is_nested(type_)


def _count_batch(
    batch: Any,
    dataset: Dataset,
    lookup: BatchedLookup,
    count: RowCount,
    bounds: StatisticsBounds | None,
    *,
    is_of_id: bool,
) -> None:
    are_set = None
    for name in dataset.set_null:
        values = _struct_field(batch, name.split("."))
        are_set = values.is_valid() if are_set is None else pc.or_(are_set, values.is_valid())
    if is_of_id:
        count.rows += are_set.true_count if are_set is not None else len(batch)
        return
    first, *steps = dataset.identifier.split(".")
    values, rows = _leaves(batch.column(first), None, steps, dataset.map_part)
    if are_set is not None:
        chosen = are_set if rows is None else are_set.take(rows)
        values, rows = values.filter(chosen), None if rows is None else rows.filter(chosen)
    if len(values) and not pa.types.is_null(values.type):
        lookup.add(count, normalize(values), rows, bounds)


def _struct_field(batch: Any, steps: Sequence[str]) -> Any:
    values = batch.column(steps[0])
    for step in steps[1:]:
        values = pc.struct_field(values, [step])
    return values


def _leaves(values: Any, rows: Any, steps: Sequence[str], map_part: str) -> tuple[Any, Any]:
    """Return the values at a path through structs, lists and maps, and the row of each; None: each is a row."""
    type_ = values.type
    if pa.types.is_map(type_):  # as a list of pairs, of which no function of Arrow forgets the offsets
        pairs, rows = _flatten(values.cast(pa.list_(pa.struct([type_.key_field, type_.item_field]))), rows)
        return _leaves(pc.struct_field(pairs, [0 if map_part == "key" else 1]), rows, steps, map_part)
    if _is_list(type_):
        if pa.types.is_fixed_size_list(type_):
            values = values.cast(pa.large_list(type_.value_type))
        return _leaves(*_flatten(values, rows), steps, map_part)
    if steps:
        return _leaves(pc.struct_field(values, [steps[0]]), rows, steps[1:], map_part)
    return values, rows


def _flatten(lists: Any, rows: Any) -> tuple[Any, Any]:
    """Return the items of lists, and the row of each."""
    if lists.null_count:  # what lies below null is nothing
        there = pc.indices_nonzero(lists.is_valid())
        lists, rows = lists.take(there), there if rows is None else rows.take(there)
    parents = pc.list_parent_indices(lists)
    return pc.list_flatten(lists), parents if rows is None else rows.take(parents)


def _leaf(file: Any, name: str) -> int | None:
    """Return which column of Parquet's schema is the identifier, if each row has one value there."""
    found = [number for number in range(len(file.schema)) if file.schema.column(number).path == name]
    is_one = len(found) == 1 and not file.schema.column(found[0]).max_repetition_level
    return found[0] if is_one and not any("." in each for each in file.schema_arrow.names) else None


def _bounds(chunk: Any) -> StatisticsBounds | None:
    """Return what a row group's statistics say of a column; None: nothing that could be compared."""
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return None
    if statistics.has_null_count and statistics.null_count == chunk.num_values and not statistics.has_min_max:
        return StatisticsBounds(None, None)
    try:
        if not statistics.has_min_max:
            return None
        low, high = statistics.min, statistics.max
    except UnicodeDecodeError:
        return None
    low, high = (each.encode() if isinstance(each, str) else each for each in (low, high))
    return StatisticsBounds(low, high) if isinstance(low, bytes | int) and isinstance(high, bytes | int) else None
