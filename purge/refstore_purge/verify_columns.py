"""Count the rows of columns of Arrow for `verify`: of ORC, by pyarrow, and of Parquet (`verify_parquet.py`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, BinaryIO

from refstore.purge_document.document import Dataset
from refstore_purge.file_allowance import FileAllowance
from refstore_purge.untyped_pandas import import_extra, orc, pa, pc
from refstore_purge.verify_ids import MetadataEntry, RowSearch, VerifyReadError, make_entries, place_of


def search_orc(source: BinaryIO, search: RowSearch) -> list[MetadataEntry]:
    """Count the rows that have ids, in whole stripes, whatever statistics say of them; return the user metadata. Raises
    VerifyReadError.
    """
    file = orc.ORCFile(source)
    FileAllowance(source).add_rows(file.nrows)
    columns = choose_columns(file.schema.names, search)
    if not search.is_of_id:
        search.choose_type(identifier_type(file.schema, search.dataset))
        schema = import_extra("pyorc", "the format orc").Reader(source).schema
        if re.search(r"\bchar\(", str(schema[search.dataset.identifier.split(".")[0]])):  # Arrow calls it a string
            raise VerifyReadError(f"column {search.dataset.identifier!r} is char, whose values are padded")
    for stripe in range(file.nstripes) if columns else ():
        search_batch(file.read_stripe(stripe, columns=columns), search)
    search.findings.rows += 0 if columns else file.nrows
    pairs = list(file.metadata.items()) if file.metadata is not None else []
    if len({name for name, _ in pairs}) < len(pairs):
        raise VerifyReadError("its user metadata has a name twice")
    return list(make_entries(pairs, "the user metadata's entry {}"))


def choose_columns(names: Sequence[str], search: RowSearch) -> list[str]:
    """Return which outermost columns are to be read. Raises VerifyReadError where one is not there, or there twice."""
    wanted = [*search.dataset.set_null, *([] if search.is_of_id else [search.dataset.identifier])]
    return sorted({names[place_of(names, name.split(".")[0], name)] for name in wanted})


def identifier_type(schema: Any, dataset: Dataset) -> Any:
    """Return the type that the identifier has in a schema. Raises VerifyReadError."""
    name, type_ = dataset.identifier, pa.struct(list(schema))
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
    return type_.field(place_of([field.name for field in type_], step, name))


def _is_list(type_: Any) -> bool:
    types = pa.types
    return types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)


def search_batch(batch: Any, search: RowSearch) -> None:
    """Count the rows of a batch that have ids; where columns are set to null, those of which one is not null yet.
    Raises VerifyReadError.
    """
    dataset = search.dataset
    are_set: Any = None
    for name in dataset.set_null:
        first, *steps = name.split(".")
        values = batch.column(first)
        for step in steps:
            _field_of(values.type, step, name)
            values = pc.struct_field(values, [step])
        are_set = values.is_valid() if are_set is None else pc.or_(are_set, values.is_valid())
    if search.is_of_id:
        search.findings.rows += are_set.true_count
        return
    first, *steps = dataset.identifier.split(".")
    values, rows = _leaves(batch.column(first), None, steps, dataset.map_part)
    if are_set is not None:
        chosen = are_set if rows is None else are_set.take(rows)
        values, rows = values.filter(chosen), None if rows is None else rows.filter(chosen)
    search.add_values(values, rows)


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
