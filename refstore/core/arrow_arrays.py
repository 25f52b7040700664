"""Make Arrow arrays of Python's and NumPy's values, and NumPy's of Arrow's, without importing pandas.

`pyarrow.array`, `pyarrow.scalar`, `Table.from_pylist`, and each compute function that is given a Python value, first
look whether the value is of pandas, and import it for that wherever it is installed: half a second and 40 MB for a
commit of ten files. `to_numpy` does, too. Here arrays are made of buffers, which needs no such look. So this product
calls `make_array`, `make_scalar`, `make_batch` and `to_numpy` in their place (tests/unit/test_imports_at_start.py).
"""

from __future__ import annotations

from array import array as numbers_of
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, cast

from refstore.core.lazy_modules import LazyModule

pa = cast(Any, LazyModule("pyarrow"))
np = cast(Any, LazyModule("numpy"))

_CODES: Final[Mapping[str, str]] = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float": "f",
    "double": "d",
}
"""By Arrow's name of a type, the code of Python's arrays."""
_DTYPES: Final[Mapping[str, str]] = {"float": "float32", "double": "float64"}
"""NumPy's name of a type, where it is another one."""


def make_array(values: Any, type_: Any = None) -> Any:
    """Make an array of a sequence, in which None is null, or of a NumPy array, whose type is taken if none is given.

    Raises TypeError for values of another type, OverflowError for integers beyond the type's, ValueError for text that
    is not Unicode.
    """
    if hasattr(values, "dtype"):
        if values.dtype.kind != "O":
            return _from_numpy(values, type_)
        values = values.tolist()
    nulls = sum(value is None for value in values) if None in values else 0
    validity = _pack_bits([value is not None for value in values]) if nulls else None
    name = str(type_)
    if name in _CODES:
        buffers = [numbers_of(_CODES[name], [0 if value is None else value for value in values] if nulls else values)]
    elif name == "bool":
        buffers = [_pack_bits(values)]
    elif name in ("string", "binary"):
        buffers = _text_buffers([value or b"" for value in values] if nulls else values, is_text=name == "string")
    else:
        raise TypeError(f"no array of type {name} is made here")
    return _make_from_buffers(type_, len(values), [validity, *buffers], nulls)


def make_scalar(value: object, type_: Any) -> Any:
    """Make a scalar, as compute functions take it beside arrays."""
    return make_array([value], type_)[0]


def make_batch(rows: Iterable[Mapping[str, object]], schema: Any) -> Any:
    """Make a record batch of rows that have every column of the schema."""
    listed = list(rows)
    columns = [make_array([row[field.name] for row in listed], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_numpy(values: Any) -> Any:
    """Return an array without nulls as NumPy's: numbers and truth values, or text as objects. It may be read only."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        raise ValueError("an array with nulls has no NumPy array of its type")
    name = str(values.type)
    start, end = values.offset, values.offset + len(values)
    if name in _CODES:
        numbers = np.frombuffer(values.buffers()[1] or b"", _DTYPES.get(name, name))
        return numbers[start:end]
    if name == "bool":
        bits = np.frombuffer(values.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, bitorder="little")[start:end].astype(np.bool_)
    texts = np.empty(len(values), object)
    texts[:] = values.to_pylist()
    return texts


def _from_numpy(values: Any, type_: Any) -> Any:
    if type_ is None:
        type_ = pa.from_numpy_dtype(values.dtype)
    if values.dtype.kind == "b":
        return _make_from_buffers(type_, len(values), [None, np.packbits(values, bitorder="little")], 0)
    same = values.astype(_DTYPES.get(str(type_), str(type_)), casting="safe", order="C", copy=False)
    return _make_from_buffers(type_, len(values), [None, same], 0)


def _text_buffers(values: Sequence[str | bytes], *, is_text: bool) -> list[Any]:
    """Return the buffers of text or bytes: where each value begins, and the values."""
    if is_text and (joined := _join_texts(values)) is not None and joined.isascii():
        return [numbers_of("i", accumulate(map(len, values), initial=0)), joined.encode()]
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return [numbers_of("i", accumulate(map(len, encoded), initial=0)), b"".join(encoded)]


def _join_texts(values: Sequence[str | bytes]) -> str | None:
    try:
        return "".join(cast(Sequence[str], values))
    except TypeError:
        return None


def _pack_bits(values: Iterable[object]) -> bytes:
    """Pack truth values, the first one into the lowest bit."""
    digits = "".join("1" if value else "0" for value in values)
    return int("0" + digits[::-1], 2).to_bytes((len(digits) + 7) // 8, "little")


def _make_from_buffers(type_: Any, length: int, buffers: Sequence[Any], nulls: int) -> Any:
    wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(type_, length, wrapped, nulls)
