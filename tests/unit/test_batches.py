"""Batches, and the operations of one."""

from __future__ import annotations

import gc

import pytest

from refstore.core.batches import split_batches, split_sized
from refstore.kv.base import ABSENT, Delete, Exchange, Get, Key, Set, SetIf, set_ifs
from refstore.records.reference_records import Reference

KEYS = [Key("p", name) for name in "abc"]
OPS = [Get(KEYS[0]), Set(KEYS[0], b"1"), SetIf(KEYS[0], ABSENT, b"1"), Exchange(KEYS[0], b"1"), Delete(KEYS[0])]


def test_batches_have_all_items_in_order() -> None:
    assert list(split_batches(range(5), 2)) == [[0, 1], [2, 3], [4]]


def test_batches_by_size_are_bounded_and_an_item_may_be_larger() -> None:
    batches = list(split_sized([1, 2, 3, 9, 0, 0, 0, 4], int, size_max=5, items_max=3))
    assert batches == [[1, 2], [3], [9], [0, 0, 0], [4]]
    assert list(split_sized([], int, size_max=5, items_max=3)) == []


def test_set_ifs_makes_one_for_each_key() -> None:
    assert set_ifs(KEYS, [ABSENT] * 3, [b"1", b"2", b"3"]) == [
        SetIf(key, ABSENT, value) for key, value in zip(KEYS, (b"1", b"2", b"3"), strict=True)
    ]


def test_a_column_that_is_too_short_is_an_error() -> None:
    """Otherwise objects at the end of a batch would be left out, and nobody would know."""
    with pytest.raises(ValueError, match="argument"):
        set_ifs(KEYS, [ABSENT], [b"1", b"2", b"3"])


@pytest.mark.parametrize("item", [*KEYS, *OPS, Reference("t", "p")])
def test_the_garbage_collector_does_not_track_what_a_batch_is_made_of(item: object) -> None:
    """Otherwise a batch of 1,000 makes it look through everything that the process holds, again and again."""
    assert not gc.is_tracked(item)
