"""What marking leaves out early: rows that a replaced range keeps, and ranges that the tree before had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from refstore.versioning.commits import object_names
from refstore_gc.address_batches import BatchKind, drop_unchanged
from refstore_gc.live_in_commits import NewRangeFinder
from refstore_gc.untyped_arrow import pa

ADDRESSES = st.lists(st.sampled_from("abcd"), max_size=4)
KINDS = st.sampled_from([BatchKind.LIVE_IN_COMMITS, BatchKind.NO_LONGER_READ, BatchKind.EXPIRED])
RANGES = st.lists(st.tuples(KINDS, ADDRESSES), max_size=8)

OLD, NEW = BatchKind.NO_LONGER_READ, BatchKind.LIVE_IN_COMMITS


def balance(ranges: Sequence[tuple[BatchKind, list[str]]]) -> Counter[tuple[str, str]]:
    """How much oftener each address is live than taken off; and how often it stands in ranges of other kinds."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, addresses in ranges:
        for address in addresses:
            sign = -1 if kind is OLD else 1
            found["other" if kind is BatchKind.EXPIRED else "commits", address] += sign
    return Counter({name: count for name, count in found.items() if count})


def left_of(ranges: Sequence[tuple[BatchKind, list[str]]]) -> list[tuple[BatchKind, list[str]]]:
    as_arrays = ((kind, pa.array(addresses, pa.string())) for kind, addresses in ranges)
    return [(kind, addresses.to_pylist()) for kind, addresses in drop_unchanged(as_arrays)]


@given(RANGES)
@example([(OLD, ["a", "a", "b"]), (NEW, ["a", "c", "b"]), (NEW, ["a", "a", "b"])])
@example([(OLD, ["a"]), (OLD, ["a"]), (NEW, ["a"])])
def test_each_address_is_taken_off_as_often_as_before(ranges: list[tuple[BatchKind, list[str]]]) -> None:
    assert balance(left_of(ranges)) == balance(ranges)


def test_of_a_range_and_the_one_it_replaced_only_the_changed_rows_are_left() -> None:
    assert left_of([(OLD, ["a", "b", "c"]), (NEW, ["a", "x", "c"])]) == [(OLD, ["b"]), (NEW, ["x"])]


@given(st.lists(ADDRESSES, max_size=6))
@example([["a", "b"], ["a", "c"], ["a", "b"]])
def test_each_range_of_the_trees_is_named_once(trees: list[list[str]]) -> None:
    ids = {letter: f"{letter * 64}.{'0' * 26}" for letter in "abcd"}
    new_ranges = NewRangeFinder()
    found = [keys for tree in trees for keys in new_ranges.add(pa.array([ids[each] for each in tree], pa.string()))]
    keys = [key for some in [*found, new_ranges.keys()] for key in some.to_pylist()]
    assert sorted(keys) == sorted({object_names.key(object_names.RANGES, ids[each]) for tree in trees for each in tree})
