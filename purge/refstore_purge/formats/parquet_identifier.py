"""Which columns of a Parquet file have the identifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refstore_purge.formats.base import FormatTask, name_of
from refstore_purge.formats.parquet_schema import REPEATED, SchemaNode
from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import pa


def find_plain_leaf(root: SchemaNode, task: FormatTask) -> SchemaNode | None:
    """Return the column of an identifier that lies in no list or map, so that its statistics are those of rows."""
    leaves = () if task.matches_every_row else root.leaves()
    found = [leaf for leaf in leaves if leaf.path == task.identifier and REPEATED not in leaf.levels]
    return found[0] if len(found) == 1 else None


def leaves_of(file: Any, task: FormatTask) -> Sequence[str]:
    """Return the columns to read: the identifier's leaf, under the names that lists and maps have in the file, and what
    is set to null.
    """
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    if _has_dots(file):
        return paths
    mine = [path for path in paths if path.split(".")[0] == task.identifier[0]]
    chosen = [path for path in mine if is_subsequence(task.identifier, path.split("."))] or mine
    if not task.matches_every_row and _has_map(file.schema_arrow.field(task.identifier[0]).type):
        chosen = mine  # without its keys a map would be read as a list
    return [*chosen, *(path for path in paths for null in task.set_null if path.split(".")[: len(null)] == list(null))]


def _has_dots(file: Any) -> bool:
    """Return whether a name has a dot, so that a path does not say which column it means."""

    def has(fields: Any) -> bool:
        return any("." in field.name or has(_fields_of(field.type)) for field in fields)

    return has(file.schema_arrow)


def _fields_of(type_: Any) -> list[Any]:
    return [type_.field(number) for number in range(type_.num_fields)]


def check_fixed_lists(schema: Any, task: FormatTask) -> None:
    """Raise PurgeError for a struct to be set to null that has a required list of a fixed size: pyarrow would not read
    the file any more.
    """
    for path in task.set_null:
        type_ = pa.struct(list(schema))
        for name in path:
            type_ = type_.field(name).type
        if _has_required_list(type_):
            raise PurgeError(
                f"column {name_of(path)!r} has a required list of a fixed size, which pyarrow cannot read where "
                f"{name_of(path)!r} is null; set what is in it to null, or delete the rows instead"
            )


def _has_required_list(type_: Any) -> bool:
    """Return whether a struct has one, or a required struct in it."""
    if not pa.types.is_struct(type_):
        return False
    return any(
        (pa.types.is_fixed_size_list(field.type) and not field.nullable) or _has_required_list(field.type)
        for field in type_
    )


def _has_map(type_: Any) -> bool:
    return pa.types.is_map(type_) or any(_has_map(field.type) for field in _fields_of(type_))


def is_subsequence(wanted: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path goes through the wanted names, in their order."""
    rest = iter(path)
    return all(step in rest for step in wanted)
