"""Read one object for `verify`, and hand what stands at the identifier to a lookup. It trusts no statistics.

What a run refuses to read, this refuses, too: it says what it could not understand instead of calling an object clean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, BinaryIO, Final

from refstore.purging.document import Dataset
from refstore_purge.untyped_arrow import orc, pa, pc, pq
from refstore_purge.verify_ids import INTEGER, Bounds, Lookup, RowCount, kind_of, normal, whole_numbers
from refstore_purge.verify_text import Fields, NotRead, Number, blocks_of, lines_of, records_of, text_of

BUFFER_BYTES: Final = 1024 * 1024
BATCH_ROWS: Final = 262_144
TEXT_ROWS: Final = 50_000
"""So many rows of text are handed over at a time."""


def count_rows(source: BinaryIO, dataset: Dataset, lookup: Lookup, count: RowCount, *, is_of_id: bool) -> None:
    """Count the rows of an object that have ids, now or when the lookup is finished. `is_of_id`: the object's partition
    is that of an id, so all of its rows are. Rows whose columns of `set_null` are null do not count. Raises NotRead.
    """
    try:
        match dataset.format:
            case "parquet":
                _count_parquet(source, dataset, lookup, count, is_of_id=is_of_id)
            case "orc":
                _count_orc(source, dataset, lookup, count, is_of_id=is_of_id)
            case "json":
                _count_json(source, dataset, lookup, count, is_of_id=is_of_id)
            case _:
                _count_csv(source, dataset, lookup, count, is_of_id=is_of_id)
    except (pa.ArrowException, OSError, EOFError) as error:
        what = "it is encrypted" if "crypt" in str(error).lower() else f"it is damaged, or no {dataset.format}"
        raise NotRead(f"it cannot be read: {what}") from None


# ---- Parquet and ORC


def _count_parquet(source: BinaryIO, dataset: Dataset, lookup: Lookup, count: RowCount, *, is_of_id: bool) -> None:
    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES)
    schema, metadata = file.schema_arrow, file.metadata
    if not metadata.num_columns:
        raise NotRead("it has no columns")
    _check_columns(schema, dataset, lookup, is_of_id=is_of_id)
    if is_of_id and not dataset.set_null:
        count.rows += metadata.num_rows
        return
    leaf = None if is_of_id else _leaf(file, dataset.identifier)
    columns = _columns(schema, dataset, is_of_id=is_of_id)
    for group in range(metadata.num_row_groups):
        bounds = _bounds(metadata.row_group(group).column(leaf)) if leaf is not None else None
        for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=columns):
            _count_batch(batch, dataset, lookup, count, bounds, is_of_id=is_of_id)


def _count_orc(source: BinaryIO, dataset: Dataset, lookup: Lookup, count: RowCount, *, is_of_id: bool) -> None:
    file = orc.ORCFile(source)
    _check_columns(file.schema, dataset, lookup, is_of_id=is_of_id)
    if is_of_id and not dataset.set_null:
        count.rows += file.nrows
        return
    if not is_of_id:
        pyorc = import_module("pyorc")
        types = pyorc.Reader(source).schema
        if re.search(r"\bchar\(", str(types[dataset.identifier.split(".")[0]])):  # arrow says string
            raise NotRead(f"column {dataset.identifier!r} is char, whose values are padded")
    columns = _columns(file.schema, dataset, is_of_id=is_of_id)
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=columns)
        _count_batch(batch, dataset, lookup, count, None, is_of_id=is_of_id)


def _check_columns(schema: Any, dataset: Dataset, lookup: Lookup, *, is_of_id: bool) -> None:
    """Raise NotRead unless the identifier, and what is to be null, are there once and can be understood."""
    for name in dataset.set_null:
        type_: Any = pa.struct(list(schema))
        field: Any = None
        for step in name.split("."):
            field = _field_of(type_, step, name)
            type_ = field.type
        if not field.nullable:
            raise NotRead(f"column {name!r} is required, so no run sets it to null")
    if is_of_id:
        return
    name = dataset.identifier
    type_ = pa.struct(list(schema))
    steps = name.split(".")
    while True:
        if pa.types.is_map(type_):
            type_ = type_.key_type if dataset.map_part == "key" else type_.item_type
        elif _is_list(type_):
            type_ = type_.value_type
        elif steps:
            type_ = _field_of(type_, steps.pop(0), name).type
        else:
            break
    if kind_of(type_) != lookup.ids.kind:
        raise NotRead(f"column {name!r} is {type_}, and the ids are {lookup.ids.kind}s")


def _field_of(type_: Any, step: str, name: str) -> Any:
    if not pa.types.is_struct(type_):
        raise NotRead(f"column {name!r} leads through {type_}, which has no fields")
    names = [field.name for field in type_]
    if names.count(step) != 1:
        raise NotRead(_no_column(names, step, name))
    return type_.field(names.index(step))


def _no_column(names: Sequence[str], step: str, name: str) -> str:
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
        first, *steps = dataset.identifier.split(".")
        type_: Any = schema.field(first).type
        while steps and pa.types.is_struct(type_):
            type_ = type_.field(steps.pop(0)).type
        is_plain = not pa.types.is_nested(type_) and first not in found
        has_dots = any("." in name for name in schema.names)
        found.add(dataset.identifier if is_plain and not has_dots else first)
    return sorted(found)


def _count_batch(
    batch: Any, dataset: Dataset, lookup: Lookup, count: RowCount, bounds: Bounds | None, *, is_of_id: bool
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
    if len(values):
        lookup.add(count, normal(values), rows, bounds)


def _struct_field(batch: Any, steps: Sequence[str]) -> Any:
    values = batch.column(steps[0])
    for step in steps[1:]:
        values = pc.struct_field(values, [step])
    return values


def _leaves(values: Any, rows: Any, steps: Sequence[str], map_part: str) -> tuple[Any, Any]:
    """Return the values at a path through structs, lists and maps, and the row of each; None: each is a row."""
    type_ = values.type
    if pa.types.is_map(type_):  # as a list of pairs, of which no function of Arrow forgets the offsets
        pairs, rows = _flattened(values.cast(pa.list_(pa.struct([type_.key_field, type_.item_field]))), rows)
        return _leaves(pc.struct_field(pairs, [0 if map_part == "key" else 1]), rows, steps, map_part)
    if _is_list(type_):
        if pa.types.is_fixed_size_list(type_):
            values = values.cast(pa.large_list(type_.value_type))
        return _leaves(*_flattened(values, rows), steps, map_part)
    if steps:
        return _leaves(pc.struct_field(values, [steps[0]]), rows, steps[1:], map_part)
    return values, rows


def _flattened(lists: Any, rows: Any) -> tuple[Any, Any]:
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


def _bounds(chunk: Any) -> Bounds | None:
    """Return what a row group's statistics say of a column; None: nothing that could be compared."""
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return None
    if statistics.has_null_count and statistics.null_count == chunk.num_values:
        return Bounds(None, None)
    try:
        if not statistics.has_min_max:
            return None
        low, high = statistics.min, statistics.max
    except UnicodeDecodeError:
        return None
    low, high = (each.encode() if isinstance(each, str) else each for each in (low, high))
    return Bounds(low, high) if isinstance(low, bytes | int) else None


# ---- CSV


def _count_csv(source: BinaryIO, dataset: Dataset, lookup: Lookup, count: RowCount, *, is_of_id: bool) -> None:
    records = records_of(blocks_of(source))
    header = next(records, None)
    if header is None:
        return
    if lookup.ids.kind == "binary":
        raise NotRead("CSV has no binary values, and the ids are binary")
    try:
        names = [text_of(name).decode() for name in header]
    except UnicodeDecodeError:
        raise NotRead("its header is no UTF-8") from None
    at = -1 if is_of_id else _place(names, dataset.identifier)
    nulls = [_place(names, name) for name in dataset.set_null]
    if nulls and len(names) == 1:
        raise NotRead("a null in its only column would be a blank line, so no run sets it")
    texts: list[bytes] = []
    for number, fields in enumerate(records, 1):
        if fields == [b""]:
            continue  # a blank line
        if len(fields) != len(names):
            raise NotRead(f"record {number} has {len(fields)} fields, and the header {len(names)}")
        if nulls and not any(fields[null] for null in nulls):
            continue
        if is_of_id:
            count.rows += 1
        elif fields[at]:
            texts.append(text_of(fields[at]))
            if len(texts) == TEXT_ROWS:
                lookup.add(count, _values_of(texts, dataset, lookup.ids.kind))
                texts = []
    if texts:
        lookup.add(count, _values_of(texts, dataset, lookup.ids.kind))


def _place(names: Sequence[str], name: str) -> int:
    if names.count(name) != 1:
        raise NotRead(_no_column(names, name, name))
    return names.index(name)


def _values_of(texts: list[bytes], dataset: Dataset, kind: str) -> Any:
    """Return the texts of a CSV column as their ids are compared. Raises NotRead."""
    if kind == "integer":
        texts = [text for text in texts if text]
        if not all(re.fullmatch(INTEGER.encode(), text) for text in texts):
            raise NotRead(f"column {dataset.identifier!r} has a value that is no integer, and the ids are integers")
        return whole_numbers([text.decode() for text in texts])
    values = pa.array(texts, pa.large_binary())
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise NotRead(f"column {dataset.identifier!r} is no UTF-8") from None
    return values


# ---- JSON lines


def _count_json(source: BinaryIO, dataset: Dataset, lookup: Lookup, count: RowCount, *, is_of_id: bool) -> None:
    steps = dataset.identifier.split(".")
    nulls = [name.split(".") for name in dataset.set_null]
    wanted: type = Number if lookup.ids.kind == "integer" else str
    texts: list[str] = []
    rows: list[int] = []
    try:
        for number, line in lines_of(blocks_of(source)):
            if lookup.ids.kind == "binary":
                raise NotRead("JSON has no binary values, and the ids are binary")
            if nulls and not any(_is_set(line, null) for null in nulls):
                continue
            if is_of_id:
                count.rows += 1
                continue
            values = list(_values_at(line, steps, dataset.map_part))
            if not values and any(True for _ in _values_at(line, steps, dataset.map_part, any_case=True)):
                raise NotRead(f"line {number} has {dataset.identifier!r} in another case only")
            count.rows_without += not values
            for value in values:
                if type(value) is not wanted or (wanted is Number and not re.fullmatch(r"-*[0-9]+", value)):
                    raise NotRead(
                        f"line {number} has another type at {dataset.identifier!r}, and the ids are {lookup.ids.kind}s"
                    )
                texts.append(value)
                rows.append(number)
            if len(texts) >= TEXT_ROWS:
                _hand_over(texts, rows, lookup, count)
                texts, rows = [], []
    except RecursionError:
        raise NotRead("a line is nested too deep") from None
    if texts:
        _hand_over(texts, rows, lookup, count)


def _hand_over(texts: list[str], rows: list[int], lookup: Lookup, count: RowCount) -> None:
    if lookup.ids.kind == "integer":
        values = whole_numbers(texts)
    else:  # also half of a pair of surrogates
        values = pa.array([text.encode(errors="surrogatepass") for text in texts], pa.large_binary())
    lookup.add(count, values, pa.array(rows, pa.int64()))


def _values_at(value: Any, steps: Sequence[str], map_part: str, *, any_case: bool = False) -> Iterator[Any]:
    """Yield what stands at a path: through objects and arrays. Of an object at the path's end, its keys or values."""
    match value:
        case Fields():
            for name, each in value:
                if steps and (name == steps[0] or (any_case and name.casefold() == steps[0].casefold())):
                    yield from _values_at(each, steps[1:], map_part, any_case=any_case)
                elif not steps and map_part == "key":
                    yield name
                elif not steps:
                    yield from _values_at(each, steps, map_part)
        case list():
            for each in _any(value):
                yield from _values_at(each, steps, map_part, any_case=any_case)
        case None:
            return
        case _ if not steps:
            yield value
        case _:
            return


def _is_set(value: Any, steps: Sequence[str]) -> bool:
    if not steps:
        return value is not None
    if isinstance(value, Fields):
        return any(_is_set(each, steps[1:]) for name, each in value if name == steps[0])
    if isinstance(value, list):
        raise NotRead(f"an array leads to {steps[-1]!r}, so no run sets it to null")
    return False


def _any(value: Any) -> Any:
    """Return what a match has narrowed to a type of unknown items."""
    return value
