"""Arrays that are made without pandas are those that pyarrow makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core.arrow_arrays import make_array, make_batch, make_scalar, to_numpy

TEXTS = st.one_of(st.text(), st.text(st.characters(max_codepoint=127)))
VALUES = st.one_of(
    st.tuples(st.just(pa.string()), st.lists(st.one_of(st.none(), TEXTS))),
    st.tuples(st.just(pa.binary()), st.lists(st.one_of(st.none(), st.binary()))),
    st.tuples(st.just(pa.int64()), st.lists(st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)))),
    st.tuples(st.just(pa.uint64()), st.lists(st.integers(0, (1 << 64) - 1))),
    st.tuples(st.just(pa.int8()), st.lists(st.one_of(st.none(), st.integers(-128, 127)))),
    st.tuples(st.just(pa.int32()), st.lists(st.integers(-(1 << 31), (1 << 31) - 1))),
    st.tuples(st.just(pa.float64()), st.lists(st.one_of(st.none(), st.floats(allow_nan=False)))),
    st.tuples(st.just(pa.bool_()), st.lists(st.one_of(st.none(), st.booleans()))),
)


@given(VALUES)
def test_an_array_equals_pyarrows(case: tuple[Any, list[Any]]) -> None:
    type_, values = case
    made, expected = make_array(values, type_), pa.array(values, type_)
    made.validate(full=True)
    assert made.equals(expected)
    assert (made.type, made.null_count) == (expected.type, expected.null_count)
    if values:
        assert make_scalar(values[0], type_).equals(pa.scalar(values[0], type_))


@given(VALUES, st.integers(0, 5), st.integers(0, 20))
def test_and_so_does_the_way_to_numpy_of_a_part(case: tuple[Any, list[Any]], start: int, length: int) -> None:
    type_, values = case
    part = pa.array([value for value in values if value is not None], type_).slice(start, length)
    there = to_numpy(part)
    assert there.dtype == part.to_numpy(zero_copy_only=False).dtype
    assert there.tolist() == part.to_pylist()
    assert to_numpy(pa.chunked_array([part, part])).tolist() == 2 * part.to_pylist()
    if type_ != pa.binary():
        back = make_array(there, type_)
        back.validate(full=True)
        assert back.equals(part)


@pytest.mark.parametrize("type_", [np.int8, np.int32, np.int64, np.uint64, np.float64, np.bool_])
def test_the_type_of_a_numpy_array_is_taken(type_: Any) -> None:
    values = np.arange(10).astype(type_)
    for part in (values, values[::2], values[:0]):
        assert make_array(part).equals(pa.array(part))


def test_text_in_a_dictionary_becomes_text() -> None:
    assert to_numpy(pa.array(["a", "b", "a"]).dictionary_encode()).tolist() == ["a", "b", "a"]


def test_rows_become_a_batch() -> None:
    schema = pa.schema([("name", pa.string()), ("size", pa.int64())])
    rows = [{"name": "a", "size": 1}, {"size": 2, "name": None}]
    assert make_batch(iter(rows), schema).equals(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert make_batch([], schema).num_rows == 0


@pytest.mark.parametrize(
    ("values", "type_", "error"),
    [
        (["\ud800"], pa.string(), UnicodeEncodeError),
        ([1 << 63], pa.int64(), OverflowError),
        ([300], pa.int8(), OverflowError),
        (["1"], pa.int64(), TypeError),
        ([1.5], pa.int64(), TypeError),
        ([1], pa.string(), TypeError),
        (np.array([300]), pa.int8(), TypeError),
        ([[1]], pa.list_(pa.int64()), TypeError),
    ],
)
def test_what_is_not_of_the_type_is_refused(values: Any, type_: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make_array(values, type_)


def test_nulls_have_no_numpy_array() -> None:
    with pytest.raises(ValueError, match="nulls"):
        to_numpy(pa.array([1, None]))
