"""Arrays of every layout that Arrow has, looked up in the set of ids and compared with a set of Python's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore_purge import purge_ids as written
from refstore_purge.purge_ids import IdSet
from refstore_purge.untyped_pandas import pa
from tests.purge.looking import id_set

UNSIGNED = st.integers(0, 2**64 - 1)
BYTES = st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"\0" * 8, b"a" * 8, b"a" * 16, b"a" * 17])
QUICK = settings(max_examples=20, deadline=None)


pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@pytest.fixture(autouse=True, params=["few", "hashes"])
def lookup(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Look ids up in both ways, whichever their number would choose."""
    if request.param == "hashes":
        monkeypatch.setattr(written, "SMALL_SET_MAX", 0)
    return request.param


class TestAgainstASetOfPython:
    @QUICK
    @given(ids=st.lists(UNSIGNED, max_size=9), others=st.lists(st.none() | UNSIGNED, max_size=9), cut=st.integers(0, 5))
    def test_integers_without_sign(self, ids: list[int], others: list[int | None], cut: int) -> None:
        made = id_set(*ids, kind="integer", type_=pa.uint64())
        values = [*others, *ids]
        found = made.matches(pa.array(values, pa.uint64()).slice(cut)).tolist()
        assert found == [value in set(ids) for value in values][cut:]

    @QUICK
    @given(ids=st.lists(BYTES, max_size=9), others=st.lists(st.none() | BYTES, max_size=9), cut=st.integers(0, 5))
    def test_binary_of_every_layout(self, ids: list[bytes], others: list[bytes | None], cut: int) -> None:
        made = id_set(*ids, kind="binary")
        values = [*others, *ids]
        expected = [value in set(ids) for value in values]
        for type_ in (pa.binary(), pa.large_binary()):
            assert made.matches(pa.array(values, type_).slice(cut)).tolist() == expected[cut:]
            assert made.matches(pa.array(values, type_).slice(0, cut)).tolist() == expected[:cut]

    @QUICK
    @given(
        ids=st.lists(st.sampled_from("abcdefgh"), max_size=5),
        indices=st.lists(st.none() | st.integers(0, 4), max_size=12),
        cut=st.integers(0, 5),
    )
    def test_dictionaries_that_have_null_or_a_value_twice(
        self, ids: list[str], indices: list[int | None], cut: int
    ) -> None:
        words = ["a", None, "b", "a", "z"]
        values = [None if index is None else words[index] for index in indices]
        for type_ in (pa.int8(), pa.uint8(), pa.int64()):
            array = pa.DictionaryArray.from_arrays(pa.array(indices, type_), pa.array(words, pa.string()))
            found = id_set(*ids).matches(array.slice(cut)).tolist()
            assert found == [value in set(ids) for value in values][cut:]

    @QUICK
    @given(
        ids=st.lists(st.integers(-(2**63), 2**64 - 1), max_size=9),
        low=st.integers(-(2**63), 2**64 - 1),
        high=st.integers(-(2**63), 2**64 - 1),
    )
    def test_ranges_of_integers(self, ids: list[int], low: int, high: int) -> None:
        low, high = sorted((low, high))
        made = _mixed(ids)
        assert made.may_match(low, high) == any(low <= each <= high for each in ids)

    @QUICK
    @given(ids=st.lists(BYTES, max_size=9), low=BYTES, high=BYTES)
    def test_ranges_of_binary(self, ids: list[bytes], low: bytes, high: bytes) -> None:
        low, high = sorted((low, high))
        assert id_set(*ids, kind="binary").may_match(low, high) == any(low <= each <= high for each in ids)

    @QUICK
    @given(ids=st.sets(st.integers(0, 200), max_size=60), low=st.integers(-9, 209), width=st.integers(0, 30))
    def test_ranges_are_never_ruled_out_wrongly_if_there_are_more_ids_than_fences(
        self, ids: set[int], low: int, width: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(written, "FENCES_MAX", 7)
            made = id_set(*ids, kind="integer")
        if any(low <= each <= low + width for each in ids):
            assert made.may_match(low, low + width)
        if not ids or low > max(ids) or low + width < min(ids):
            assert not made.may_match(low, low + width)


def _mixed(ids: list[int]) -> IdSet:
    """Make a set of ids below zero and above 2^63, which no one type of Arrow's integers has."""
    folder = Path(tempfile.mkdtemp())
    signed = pa.array([each for each in ids if each < 2**63], pa.int64())
    written.write_ids(folder, "integer", [signed, pa.array([each for each in ids if each >= 2**63], pa.uint64())])
    return IdSet(folder)


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 2**64 - 1])
def test_integers_whose_bits_are_alike_are_told_apart(number: int) -> None:
    made = _mixed([number])
    signed, unsigned = pa.array([-1, -(2**63)], pa.int64()), pa.array([2**64 - 1, 2**63], pa.uint64())
    assert made.matches(signed).tolist() == [number == -1, number == -(2**63)]
    assert made.matches(unsigned).tolist() == [number == 2**64 - 1, number == 2**63]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_no_values_or_nulls_alone_match_nothing(type_: Any) -> None:
    made = id_set("", "a", None)
    assert made.count == 2
    assert made.matches(pa.array([], type_)).tolist() == []
    assert made.matches(pa.array([None, None], type_)).tolist() == [False, False]
    assert id_set().matches(pa.array(["a", "", None], type_)).tolist() == [False] * 3


def test_no_ids_rule_every_range_out() -> None:
    assert not id_set().may_match("", "\U0010ffff")
    assert not id_set(kind="integer").may_match(-(2**63), 2**64)


VIEWS: list[Any] = [(pa.string_view(), "b" * 30), (pa.binary_view(), b"b" * 30)]


@pytest.mark.parametrize(("type_", "value"), VIEWS)
def test_views(type_: Any, value: str | bytes) -> None:
    made = id_set(value, kind="string" if isinstance(value, str) else "binary")
    assert made.matches(pa.array([value, None, value[:-1]], type_).slice(0, 3)).tolist() == [True, False, False]


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
def test_ids_that_a_type_cannot_have_match_nothing_in_it(type_: Any) -> None:
    ids = [300, -1, -200, 2**31, 2**32 + 7, 2**63, 2**64 - 1]
    lows = [0, 7, 44, 56, 100, 127]  # what is left of them in eight bits, among others
    assert not _mixed(ids).matches(pa.array(lows, type_)).any()
    assert _mixed([*ids, 44]).matches(pa.array(lows, type_)).tolist() == [low == 44 for low in lows]


def test_ids_of_another_length_match_nothing_in_binary_of_a_fixed_size() -> None:
    made = id_set(b"ab", b"abc", b"", kind="binary")
    assert made.matches(pa.array([b"ab", b"cd", None], pa.binary(2)).slice(0, 3)).tolist() == [True, False, False]
    assert made.matches(pa.array([b"abcd"], pa.binary(4))).tolist() == [False]


@pytest.mark.parametrize("length", [8 * written.WORDS_MAX + extra for extra in (-9, -8, -1, 0, 1, 8, 9)])
def test_values_about_as_long_as_the_hash_knows_are_told_apart(length: int) -> None:
    made = id_set("x" * length, "x" * length + "y")
    values = ["x" * length, "x" * length + "y", "x" * length + "z", "x" * (length - 1), "x" * (length + 1)]
    assert made.matches(pa.array(values)).tolist() == [True, True, False, False, False]


def test_ids_of_several_batches_and_widths_are_each_there_once(tmp_path: Path) -> None:
    batches = [pa.array([1, None, 2], pa.int8()), pa.array([2, 3], pa.uint64()), pa.array([], pa.int32())]
    assert written.write_ids(tmp_path / "ids", "integer", batches) == 3
    made = IdSet(tmp_path / "ids")
    assert sorted(map(int, made.values.to_pylist())) == [1, 2, 3]
    assert (made.kind, made.count, made.index_hashes) == ("integer", 3, None)


def test_the_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    written.write_ids(tmp_path / "ids", "string", [pa.array(["a"])])
    assert (tmp_path / "ids").stat().st_mode & 0o777 == 0o700
