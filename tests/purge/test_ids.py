"""The set of ids against one of Python's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore_purge import id_index, purge_ids
from refstore_purge.purge_ids import IdSet
from tests.purge.looking import id_set

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SIGNED = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)


def matches(ids: IdSet, values: Any) -> list[bool]:
    return ids.matches(values).tolist()


class TestAgainstASetOfPython:
    @settings(max_examples=50, deadline=None)
    @given(ids=st.lists(TEXTS, max_size=20), others=st.lists(st.none() | TEXTS, max_size=20), cut=st.integers(0, 5))
    def test_strings(self, ids: list[str], others: list[str | None], cut: int) -> None:
        made = id_set(*ids, None)
        values = [*others, *ids]
        expected = [value in set(ids) for value in values]
        assert made.count == len(set(ids))
        for type_ in (pa.string(), pa.large_string()):
            assert matches(made, pa.array(values, type_)) == expected
            assert matches(made, pa.array(values, type_).slice(cut)) == expected[cut:]
        assert matches(made, pa.array(values, pa.string()).dictionary_encode()) == expected

    @settings(max_examples=50, deadline=None)
    @given(ids=st.lists(SIGNED, max_size=20), others=st.lists(st.none() | SIGNED, max_size=20))
    def test_integers(self, ids: list[int], others: list[int | None]) -> None:
        made = id_set(*ids, kind="integer")
        values = [*others, *ids]
        assert matches(made, pa.array(values, pa.int64())) == [value in set(ids) for value in values]
        small = [value for value in values if value is not None and 0 <= value < 128]
        for type_ in (pa.int8(), pa.uint8(), pa.uint64()):
            assert matches(made, pa.array(small, type_)) == [value in set(ids) for value in small]

    @settings(max_examples=50, deadline=None)
    @given(ids=st.lists(TEXTS, max_size=30), low=TEXTS, high=TEXTS)
    def test_a_range_without_an_id_is_known_and_one_with_an_id_is_never_left_out(
        self, ids: list[str], low: str, high: str
    ) -> None:
        low, high = sorted((low, high), key=str.encode)
        inside = any(low.encode() <= each.encode() <= high.encode() for each in ids)
        assert id_set(*ids).may_match(low, high) == inside


def test_long_values_that_begin_alike_are_told_apart() -> None:
    made = id_set("x" * 5000 + "a")
    assert matches(made, pa.array(["x" * 5000 + "a", "x" * 5000 + "b", "x" * 5000])) == [True, False, False]


def test_values_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_ids, "hash_values", lambda values, *_: np.full(len(values), 1 << 60, np.uint64))
    made = id_set("a", "b", "c")
    assert matches(made, pa.array(["c", "x", "a", None])) == [True, False, True, False]


def test_the_hashes_of_the_index_depend_on_the_key_alone() -> None:
    values = id_set("a", "b", "größe").values
    one, other = id_index.IndexKey.derive(b"one" * 20), id_index.IndexKey.derive(b"other" * 20)
    hashes = id_index.hash_distinct(values, "string", one.hash_key)
    assert (hashes == id_index.hash_distinct(id_set("b", "größe", "a").values, "string", one.hash_key)).all()
    assert not set(hashes) & set(id_index.hash_distinct(values, "string", other.hash_key))
    assert (hashes < 2**id_index.BITS).all()
    assert one.name != other.name
