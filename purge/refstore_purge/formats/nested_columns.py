"""Find which rows of a column match, however deep the identifier lies in it; and set columns of rows to null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from refstore_purge.formats.base import FormatTask, IdMatcher, find_column_type, kind_of, name_of, schema_column_error
from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import pa, pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


def match_rows(batch: Any, task: FormatTask, ids: IdMatcher) -> NDArray[np.bool_]:
    """Return for each row of a record batch whether it has one of the ids. Of a list any element decides. Where columns
    are to be set to null, rows in which they are null match no more.

    `check_schema` has found the identifier, of the type of the ids.
    """
    if task.matches_every_row:
        return rows_with_values(batch, task.set_null) if task.set_null else np.ones(len(batch), dtype=np.bool_)
    matched = _match_values(batch.column(task.identifier[0]), task.identifier[1:], task, ids)
    if task.set_null:
        matched &= rows_with_values(batch, task.set_null)
    return matched


def rows_with_values(batch: Any, columns: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
    """Return which rows have one of these columns, which `check_set_null` allows, not null yet."""
    found = np.zeros(len(batch), dtype=np.bool_)
    for path in columns:
        values = batch
        for name in path:
            values = batch.column(name) if values is batch else pc.struct_field(values, [name])
        found |= np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    return found


def _match_values(values: Any, path: Sequence[str], task: FormatTask, ids: IdMatcher) -> NDArray[np.bool_]:
    type_ = values.type
    if pa.types.is_struct(type_) and path:
        return _match_values(pc.struct_field(values, [path[0]]), path[1:], task, ids)
    if pa.types.is_map(type_):
        return _match_children(values, values.keys if task.map_part == "key" else values.items, path, task, ids)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _match_children(values, values.values, path, task, ids)
    if pa.types.is_fixed_size_list(type_):
        return _match_values(values.cast(pa.large_list(type_.value_type)), path, task, ids)
    return np.zeros(len(values), dtype=np.bool_) if pa.types.is_null(type_) else ids.matches(values)


def _match_children(
    values: Any, children: Any, path: Sequence[str], task: FormatTask, ids: IdMatcher
) -> NDArray[np.bool_]:
    """Return which lists or maps have a child that matches."""
    offsets = np.asarray(values.offsets.to_numpy(zero_copy_only=False), dtype=np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    matched = _match_values(children.slice(first, end - first), path, task, ids)
    before = np.concatenate(([0], np.cumsum(matched)))
    found = before[offsets[1:] - first] > before[offsets[:-1] - first]
    if values.null_count:  # what lies below null is nothing
        found &= np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    return found


def set_null(batch: Any, columns: Sequence[Sequence[str]], rows: NDArray[np.bool_]) -> Any:
    """Return the batch with these columns, which `check_set_null` allows, null in these rows."""
    mask = pa.array(rows)
    for path in columns:
        index = batch.schema.get_field_index(path[0])
        nulled = _set_null_at(batch.column(index), path, 1, mask)
        batch = batch.set_column(index, batch.schema.field(index), nulled)
    return batch


def check_schema(schema: Any, task: FormatTask, ids: IdMatcher) -> None:
    """Raise PurgeError for columns that the task cannot be done with, also where no row would tell: the file is empty,
    or its statistics rule the ids out.
    """
    check_set_null(schema, task.set_null)
    if task.matches_every_row:
        return
    type_ = find_column_type(schema, task.identifier, task.map_part)
    if type_ is None:
        raise schema_column_error(schema, task.identifier, task.map_part)
    if kind_of(type_) != ids.kind and not pa.types.is_null(type_):
        name = name_of(task.identifier)
        raise PurgeError(f"column {name!r} is {type_}, and the ids are {ids.kind}s; give ids of its type")


def check_set_null(schema: Any, columns: Sequence[Sequence[str]]) -> None:
    """Raise PurgeError for a column that is required, that is not there, or that lies in a list or map."""
    for path in columns:
        type_: Any = pa.struct(list(schema))
        field: Any = None
        for name in path:
            if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
                raise PurgeError(
                    f"there is no column {name_of(path)!r} outside of lists and maps; correct set_null of the data set"
                )
            field = type_.field(name)
            type_ = field.type
        if not field.nullable:
            raise PurgeError(f"column {name_of(path)!r} is required, so it cannot be null; delete the rows instead")


def _set_null_at(values: Any, path: Sequence[str], depth: int, mask: Any) -> Any:
    if depth == len(path) and isinstance(values.type, pa.BaseExtensionType):
        return values.type.wrap_array(_set_null_at(values.storage, path, depth, mask))
    if depth == len(path):
        return _null_rows(values, mask)
    fields = [values.type.field(number) for number in range(values.type.num_fields)]
    # as they are, also where the struct is null: a required field has some value there
    children = [values.field(number) for number in range(len(fields))]
    number = values.type.get_field_index(path[depth])
    children[number] = _set_null_at(children[number], path, depth + 1, mask)
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())


def _null_rows(values: Any, mask: Any) -> Any:
    """Return values that are null in these rows. Of a struct its fields are, too, but those that are required: writers
    skip what stands below null.
    """
    if not pa.types.is_struct(values.type):
        return pc.if_else(mask, pa.scalar(None, type=values.type), values)
    fields = [values.type.field(number) for number in range(values.type.num_fields)]
    children = [
        _null_rows(values.field(number), mask) if field.nullable else values.field(number)
        for number, field in enumerate(fields)
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=pc.or_(values.is_null(), mask))
