"""Batches, and named tuples that are made by the column."""

from __future__ import annotations

import pytest

from refstore.core.batches import batched, tuples_of
from refstore.kv.base import ABSENT, Key, SetIf, set_ifs

KEYS = [Key("p", name) for name in "abc"]


def test_batches_have_all_items_in_order() -> None:
    assert list(batched(range(5), 2)) == [[0, 1], [2, 3], [4]]


def test_tuples_by_the_column_are_those_made_one_by_one() -> None:
    made = tuples_of(Key, ["p"] * 3, "abc")
    assert made == KEYS
    assert [type(each) for each in made] == [Key] * 3
    assert set_ifs(KEYS, [ABSENT] * 3, [b"1", b"2", b"3"]) == [
        SetIf(key, ABSENT, value) for key, value in zip(KEYS, (b"1", b"2", b"3"), strict=True)
    ]


def test_a_column_that_is_too_short_is_an_error() -> None:
    """Otherwise objects at the end of a batch would be left out, and nobody would know."""
    with pytest.raises(ValueError, match="argument"):
        tuples_of(Key, ["p", "p"], "abc")
    with pytest.raises(ValueError, match="argument"):
        set_ifs(KEYS, [ABSENT], [b"1", b"2", b"3"])
