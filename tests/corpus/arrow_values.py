"""A column of each of Arrow's types, with the values at its edges, and the same in lists, structs and maps."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.corpus.case import ROWS, guests, spread

pa_: Any = pa
_DAY_MS: Final = 86_400_000


def _decimals(precision: int, scale: int) -> list[decimal.Decimal]:
    largest = 10**precision - 1
    with decimal.localcontext(prec=80):
        return [decimal.Decimal(number).scaleb(-scale) for number in (0, 1, -1, largest, -largest, largest // 7)]


def _integers(bits: int, *, signed: bool) -> list[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [low, high, 0, 1, high // 3, low // 3]


_FLOATS: Final = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), -2.25]
_STRINGS: Final = ["", "a", "größe", "x" * 40, "日本", 'say "x", y', "\n"]
_BINARY: Final = [b"", b"\x00", b"\xff\xfe", b"x" * 40]
_TIMES: Final = [0, 1, -1, 1_580_702_706_007, -2_208_988_800_001, 4_102_444_800_000]
"""Milliseconds; the last but one is in 1899."""

UNIT: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _timestamps(unit: str) -> list[int]:
    extreme = {"s": 253_402_300_799, "ms": 253_402_300_799_999, "us": -62_135_596_800_000_000, "ns": 2**63 - 1}[unit]
    return [*(value * UNIT[unit] // 1000 for value in _TIMES), extreme]


def types() -> dict[str, tuple[Any, list[Any]]]:
    """Return each plain type by its name, with some values, which `pa.array` takes."""
    found: dict[str, tuple[Any, list[Any]]] = {"bool": (pa.bool_(), [True, False])}
    for bits in (8, 16, 32, 64):
        found[f"int{bits}"] = (getattr(pa, f"int{bits}")(), _integers(bits, signed=True))
        found[f"uint{bits}"] = (getattr(pa, f"uint{bits}")(), _integers(bits, signed=False))
    found["float16"] = (pa.float16(), [np.float16(value) for value in _FLOATS])
    found["float32"] = (pa.float32(), _FLOATS)
    found["float64"] = (pa.float64(), [*_FLOATS, 5e-324, 1e308])
    for precision, scale in ((1, 0), (5, 2), (9, 9), (18, 3), (19, 0), (38, 10)):
        found[f"decimal({precision},{scale})"] = (pa.decimal128(precision, scale), _decimals(precision, scale))
    found["decimal32(7,2)"] = (pa_.decimal32(7, 2), _decimals(7, 2))
    found["decimal64(15,4)"] = (pa_.decimal64(15, 4), _decimals(15, 4))
    found["decimal256(60,5)"] = (pa.decimal256(60, 5), _decimals(60, 5))
    for name in ("string", "large_string", "string_view"):
        found[name] = (getattr(pa, name)(), _STRINGS)
    for name in ("binary", "large_binary", "binary_view"):
        found[name] = (getattr(pa, name)(), _BINARY)
    found["fixed_size_binary"] = (pa.binary(5), [b"\0\0\0\0\0", b"abcde", b"\xff" * 5])
    found["date32"] = (pa.date32(), [0, -1, 18_000, -719_162, 2_932_896, -800_000])
    found["date64"] = (pa.date64(), [day * _DAY_MS for day in (0, -1, 18_000, -719_162, 2_932_896)])
    for unit in ("s", "ms", "us", "ns"):
        wide = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)  # type: ignore[arg-type]  # its stubs want literals
        last = 86_400 * UNIT[unit] - 1
        found[f"time[{unit}]"] = (wide, [0, 1, last, last // 2])
        found[f"timestamp[{unit}]"] = (pa.timestamp(unit), _timestamps(unit))
        found[f"timestamp[{unit}, UTC]"] = (pa.timestamp(unit, "UTC"), _timestamps(unit))
        found[f"duration[{unit}]"] = (pa.duration(unit), [0, 1, -1, 10**12])
    found["timestamp[us, Europe/Berlin]"] = (pa.timestamp("us", "Europe/Berlin"), _timestamps("us"))
    found["null"] = (pa.null(), [None])
    found["dictionary"] = (pa.dictionary(pa.int32(), pa.string()), _STRINGS)
    found["dictionary of integers"] = (pa.dictionary(pa.int8(), pa.int64()), [1, 2, 3])
    found["ordered dictionary"] = (pa.dictionary(pa.int16(), pa.string(), ordered=True), ["low", "high"])
    found["uuid"] = (pa_.uuid(), [bytes(range(16)), b"\xff" * 16])
    found["json"] = (pa_.json_(), ['{"a": 1}', "[]"])
    return found


def column(type_: Any, values: list[Any], rows: int = ROWS) -> Any:
    """Return a column of a type, with nulls."""
    return _array(spread(values, rows), type_)


def _array(values: list[Any], type_: Any) -> Any:
    if isinstance(type_, pa_.BaseExtensionType):
        return type_.wrap_array(_array(values, type_.storage_type))
    if pa.types.is_dictionary(type_):
        plain = pa.array(values, type_.value_type)
        encoded = plain.dictionary_encode()
        indices = encoded.indices.cast(type_.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=type_.ordered)
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_):
        return pa.array(values, pa.int64()).cast(type_)
    if pa.types.is_time32(type_):
        return pa.array(values, pa.int32()).cast(type_)
    if pa.types.is_date32(type_):
        return pa.array(values, pa.int32()).cast(type_)
    if pa.types.is_date64(type_):
        return pa.array(values, pa.int64()).cast(type_)
    return pa.array(values, type_)


def taken(values: Any, rows: Sequence[int]) -> Any:
    """Return these rows of a column; also of views, which Arrow does not take."""
    at = pa.array(rows, pa.int64())
    if pa_.types.is_string_view(values.type) or pa_.types.is_binary_view(values.type):
        return values.cast(pa.large_binary()).take(at).cast(values.type)
    return values.take(at)


def nested(plain: Any) -> dict[str, Any]:
    """Return a column in a list, a struct, a map and a list of structs, each with nulls, of as many rows."""
    rows = len(plain)
    widths = [row % 3 for row in range(rows)]
    offsets = np.concatenate(([0], np.cumsum(widths))).astype(np.int32)
    picked = taken(plain, [row % rows for row in range(int(offsets[-1]))])
    is_null = pa.array([row % 11 == 5 for row in range(rows)])
    ends = pa.array([None if row % 11 == 5 else int(at) for row, at in enumerate(offsets[:-1])] + [int(offsets[-1])])
    ends = ends.cast(pa.int32())
    names = pa.array([f"k{number % 5}" for number in range(len(picked))])
    items = pa.StructArray.from_arrays([picked, names], ["a", "b"])
    return {
        "in_list": pa.ListArray.from_arrays(ends, picked),
        "in_struct": pa.StructArray.from_arrays([plain, pa.array(range(rows))], ["a", "b"], mask=is_null),
        "in_map": pa.MapArray.from_arrays(ends, names, picked),
        "in_structs": pa.ListArray.from_arrays(ends, items),
    }


def table(type_: Any, values: list[Any], rows: int = ROWS, *, with_nested: bool = True) -> Any:
    """Return a table of a string id, a type's column, and the same within others."""
    plain = column(type_, values, rows)
    columns = {"guest": pa.array(guests(rows)), "v": plain, **(nested(plain) if with_nested else {})}
    return pa.table(columns)
