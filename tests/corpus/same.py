"""Tell whether two tables of Arrow have the same values, to the bit: NaN is NaN, -0.0 is not 0.0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

pa_: Any = pa


def difference(old: Any, new: Any) -> str:
    """Return in which column, and in what, two tables differ; empty: in nothing."""
    if len(old) != len(new):
        return f"{len(new)} rows instead of {len(old)}"
    for number, name in enumerate(old.schema.names):
        told = _difference(_whole(old.column(number)), _whole(new.column(number)))
        if told:
            return f"column {name!r}: {told}"
    return ""


def _whole(column: Any) -> Any:
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(combined, pa.ChunkedArray):  # without any chunk
        return pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.array([], combined.type)
    return combined


def _difference(old: Any, new: Any) -> str:
    type_ = old.type
    if type_ != new.type:
        return f"{new.type} instead of {type_}"
    if isinstance(type_, pa_.BaseExtensionType):
        return _difference(old.storage, new.storage)
    if pa.types.is_dictionary(type_):
        return _difference(old.dictionary_decode(), new.dictionary_decode())
    if len(old) != len(new):
        return f"{len(new)} values instead of {len(old)}"
    if _has_union(type_):  # from which Arrow takes no part
        return "" if str(old.to_pylist()) == str(new.to_pylist()) else "other values"
    if not old.is_valid().equals(new.is_valid()):
        return "other nulls"
    if pa.types.is_struct(type_):
        for field, mine, other in zip(type_, old.flatten(), new.flatten(), strict=True):
            if told := _difference(mine, other):
                return f"{field.name}: {told}"
        return ""
    if pa.types.is_map(type_):
        as_list = pa.list_(pa.struct([pa.field("key", type_.key_type, False), pa.field("value", type_.item_type)]))
        return _difference(_list_of(old, as_list), _list_of(new, as_list))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        if not pc.list_value_length(old).equals(pc.list_value_length(new)):
            return "other lengths of lists"
        return _difference(old.flatten(), new.flatten())
    if pa_.types.is_list_view(type_) or pa_.types.is_large_list_view(type_):
        plain = pa.large_list(type_.value_type)
        return _difference(old.cast(plain), new.cast(plain))
    if pa.types.is_floating(type_):
        bits = f"int{type_.bit_width}"
        mine, other = (_normal(each.drop_null()).view(bits) for each in (old, new))
        return "" if np.array_equal(mine, other) else "other numbers"
    return "" if old.equals(new) else "other values"


def _has_union(type_: Any) -> bool:
    return pa.types.is_union(type_) or any(_has_union(type_.field(at).type) for at in range(type_.num_fields))


def _list_of(map_: Any, as_list: Any) -> Any:
    entries = pa.StructArray.from_arrays([map_.keys, map_.items], fields=list(as_list.value_type))
    offsets = map_.offsets
    if map_.null_count:
        ends = pa.array([*map_.is_valid().to_pylist(), True])
        offsets = pc.if_else(ends, offsets, pa.scalar(None, pa.int32()))
    return pa.ListArray.from_arrays(offsets, entries, type=as_list)


def _normal(values: Any) -> Any:
    """Return numbers of which each NaN is the same one."""
    plain = values.to_numpy(zero_copy_only=False).copy()
    plain[np.isnan(plain)] = np.nan
    return plain
