"""Trees against plain dicts: whatever is applied, in whatever portions, the tree is what a dict would be.

Ranges are cut very small here, so that a few dozen entries make a tree of many ranges and every edit moves some cut.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.core.ids import Address, is_own
from refstore.errors import MergeConflict
from refstore.objects.memory import MemoryObjects
from refstore.records.encoding import encode
from refstore.records.staging_records import StoredEntry, Tombstone
from refstore.versioning.commits import object_names, ranges
from refstore.versioning.commits.equality import are_equal
from refstore.versioning.commits.object_names import hash_of
from refstore.versioning.commits.ranges import CutRule
from refstore.versioning.commits.tree_diff import EntryChange, PathChangeKind
from refstore.versioning.commits.tree_merge import CONFLICTS_MAX, MergeStrategy, merge_changes
from refstore.versioning.commits.tree_rewrite import WrittenTree
from refstore.versioning.commits.trees import Trees
from tests.kit.clock import FakeClock
from tests.kit.equality import equal_as_uploaded
from tests.kit.ids import CountingIds

Tree = dict[str, StoredEntry]
Changes = dict[str, StoredEntry | None]

SMALL = CutRule(rows_min=2, rows_more=3, rows_max=7)


class ReadCounting(MemoryObjects):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def get(self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None):
        self.reads.append(key)
        return super().get(key, start=start, end=end, size_bytes=size_bytes)


class World:
    """A store, and trees that forget what they read between two operations."""

    def __init__(self, page_rows: int = 5, threads: int = 0) -> None:
        self.objects = ReadCounting()
        self.ids = CountingIds("t")
        self._page_rows, self._threads = page_rows, threads

    @property
    def trees(self) -> Trees:
        return Trees(self.objects, self.ids, FakeClock(), cut=SMALL, page_rows=self._page_rows, threads=self._threads)

    def build(self, tree: Mapping[str, StoredEntry]) -> str:
        return self.trees.apply("", sorted(tree.items())).metarange

    def dump(self, metarange: str) -> Tree:
        found: Tree = {}
        after = ""
        while page := self.trees.scan(metarange, after=after, limit=4):
            assert not found or page[0][0] > max(found)
            found.update(page)
            after = page[-1][0]
        return found

    def hashes(self, metarange: str) -> list[str]:
        return [hash_of(each) for each in self.trees.ranges(metarange)]


def range_paths(objects: MemoryObjects, range_id: str) -> list[str]:
    body = objects.read(object_names.key(object_names.RANGES, range_id))
    return ranges.paths_of(ranges.decode(range_id, body))


PATHS = st.one_of(
    st.integers(0, 60).map(lambda n: f"a/{n:02d}"),
    st.integers(0, 20).map(lambda n: f"b/ж{n}/x"),
    st.text(st.sampled_from("ab/é\U0001f600\uffff~ "), min_size=1, max_size=4),
)
ADDRESSES = st.one_of(
    st.integers(0, 30).map(lambda n: f"data/2026112107/{n:026d}"),
    st.integers(0, 5).map(lambda n: f"s3://elsewhere/{n}"),
)
ENTRIES = st.builds(
    StoredEntry,
    address=ADDRESSES.map(Address),
    size_bytes=st.integers(0, 1000),
    checksum=st.sampled_from(["", "c1", "c2"]),
    mtime_ms=st.integers(0, 2),
    metadata=st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    content_type=st.sampled_from(["", "text/plain"]),
)
TREES = st.dictionaries(PATHS, ENTRIES, max_size=60)
CHANGES = st.dictionaries(PATHS, st.one_of(st.none(), ENTRIES), max_size=40)


def applied(tree: Tree, changes: Changes) -> Tree:
    after: Changes = {**tree, **changes}
    return {path: entry for path, entry in after.items() if entry is not None}


def assert_counts(written: WrittenTree, before: Tree, changes: Changes) -> None:
    puts = {path: entry for path, entry in changes.items() if entry is not None}
    assert written.inserted_entries == len(puts.keys() - before.keys())
    assert written.replaced_entries == sum(path in before and before[path] != entry for path, entry in puts.items())
    assert written.removed_entries == sum(path in before for path, entry in changes.items() if entry is None)
    changed = written.inserted_entries + written.replaced_entries + written.removed_entries
    assert written.unchanged_entries == len(changes) - changed


@settings(deadline=None)
@given(TREES, st.lists(CHANGES, max_size=4), st.integers(1, 12))
def test_applying_changes_is_what_a_dict_does(tree: Tree, portions: list[Changes], page_rows: int) -> None:
    world = World(page_rows=page_rows)
    metarange = world.build(tree)
    for changes in portions:
        base, before = metarange, tree
        written = world.trees.apply(base, sorted(changes.items()))
        metarange, tree = written.metarange, applied(before, changes)

        assert world.dump(metarange) == tree
        assert world.trees.count(metarange) == len(tree)
        assert world.trees.size_bytes(metarange) == sum(entry.size_bytes for entry in tree.values())
        assert_counts(written, before, changes)
        assert (metarange == base) is (tree == before)
        own = {entry.address for entry in changes.values() if entry is not None and is_own(entry.address)}
        assert [
            each for batch in world.trees.read_added_addresses(written.added_addresses_id) for each in batch
        ] == sorted(own)
        assert bool(written.added_addresses_id) is bool(own)


@settings(deadline=None)
@given(TREES, CHANGES)
def test_encoded_changes_are_the_same_changes(tree: Tree, changes: Changes) -> None:
    world = World()
    base = world.build(tree)
    encoded = [(path, encode(Tombstone() if entry is None else entry)) for path, entry in sorted(changes.items())]
    plain = world.trees.apply(base, sorted(changes.items()))
    assert world.dump(world.trees.apply_encoded(base, encoded).metarange) == world.dump(plain.metarange)


@settings(deadline=None)
@given(TREES, st.lists(CHANGES, max_size=4), st.integers(1, 12))
def test_how_a_tree_is_cut_depends_on_its_rows_alone(tree: Tree, portions: list[Changes], page_rows: int) -> None:
    """So the metaranges of equal trees have equal hashes, whatever edits led to them."""
    world = World(page_rows=page_rows)
    metarange = world.build(tree)
    for changes in portions:
        metarange = world.trees.apply(metarange, sorted(changes.items())).metarange
        tree = applied(tree, changes)
    fresh = world.build(tree)
    assert world.hashes(metarange) == world.hashes(fresh)
    assert hash_of(metarange) == hash_of(fresh)
    assert object_names.have_same_content(metarange, fresh)


@settings(deadline=None)
@given(TREES, CHANGES, st.integers(0, 1))
def test_what_did_not_change_is_inherited_and_not_read(tree: Tree, changes: Changes, threads: int) -> None:
    """With one thread ranges are read ahead, and still each once."""
    world = World(threads=threads)
    base = world.build(tree)
    old = world.trees.ranges(base)
    trees = world.trees
    trees.count(base)  # the metarange is read by now
    world.objects.reads.clear()
    new = trees.ranges(trees.apply(base, sorted(changes.items())).metarange)

    inherited = set(old) & set(new)
    assert {hash_of(each) for each in inherited} == {hash_of(each) for each in old} & {hash_of(each) for each in new}
    # every range that was read held a path that changes, or stood where a change might have belonged, or was cut anew
    read = {key.rpartition("/")[2].removesuffix(".parquet") for key in world.objects.reads if "/ranges/" in key}
    assert len(world.objects.reads) == len(read)
    assert len(read) <= len(changes) + len(set(old) - set(new))


@settings(deadline=None)
@given(TREES, CHANGES)
def test_every_range_but_the_last_is_as_long_as_it_must_be(tree: Tree, changes: Changes) -> None:
    world = World()
    metarange = world.trees.apply(world.build(tree), sorted(changes.items())).metarange
    sizes = [len(world.trees.addresses_of_range(each)) for each in world.trees.ranges(metarange)]
    assert all(SMALL.rows_min <= size <= SMALL.rows_max for size in sizes[:-1])
    assert all(1 <= size <= SMALL.rows_max for size in sizes[-1:])


@settings(deadline=None)
@given(TREES, st.text("ab/é0", max_size=4), st.one_of(st.just(""), PATHS), st.integers(1, 80))
def test_scan(tree: Tree, prefix: str, after: str, limit: int) -> None:
    world = World()
    expected = [(path, entry) for path, entry in sorted(tree.items()) if path.startswith(prefix) and path > after]
    assert world.trees.scan(world.build(tree), prefix=prefix, after=after, limit=limit) == expected[:limit]


@settings(deadline=None)
@given(TREES, st.lists(PATHS, max_size=30))
def test_get(tree: Tree, paths: list[str]) -> None:
    world = World()
    metarange = world.build(tree)
    assert world.trees.get_many(metarange, paths) == {path: tree[path] for path in paths if path in tree}
    for path in paths[:3]:
        assert world.trees.get(metarange, path) == tree.get(path)


@settings(deadline=None)
@given(TREES)
def test_addresses(tree: Tree) -> None:
    world = World()
    batches = list(world.trees.addresses(world.build(tree)))
    assert [each for batch in batches for each in batch] == [entry.address for _, entry in sorted(tree.items())]


def expected_diff(left: Tree, right: Tree) -> list[EntryChange]:
    changes: list[EntryChange] = []
    for path in sorted(left.keys() | right.keys()):
        old, new = left.get(path), right.get(path)
        if old != new:
            kind = (
                PathChangeKind.ADDED
                if old is None
                else PathChangeKind.REMOVED
                if new is None
                else PathChangeKind.CHANGED
            )
            changes.append(EntryChange(path, kind, old, new))
    return changes


@settings(deadline=None)
@given(TREES, CHANGES, st.text("ab/é0", max_size=3), st.one_of(st.just(""), PATHS), st.booleans())
def test_diff(tree: Tree, changes: Changes, prefix: str, after: str, related: bool) -> None:
    """`related`: whether the trees share ranges, or were built apart and cut by different rules."""
    world = World()
    left, other = world.build(tree), applied(tree, changes)
    if related:
        right = world.trees.apply(left, sorted(changes.items())).metarange
    else:
        cut = CutRule(rows_min=1, rows_more=5, rows_max=20)
        right = (
            Trees(world.objects, world.ids, FakeClock(), cut=cut, threads=0).apply("", sorted(other.items())).metarange
        )
    expected = [each for each in expected_diff(tree, other) if each.path.startswith(prefix) and each.path > after]
    assert list(world.trees.diff(left, right, prefix=prefix, after=after)) == expected
    assert list(world.trees.diff(left, right)) == expected_diff(tree, other)


@settings(deadline=None)
@given(TREES, CHANGES)
def test_shared_ranges_are_not_read_by_a_diff(tree: Tree, changes: Changes) -> None:
    world = World()
    left = world.build(tree)
    right = world.trees.apply(left, sorted(changes.items())).metarange
    shared = set(world.trees.ranges(left)) & set(world.trees.ranges(right))
    world.objects.reads.clear()
    list(world.trees.diff(left, right))
    assert not {key for key in world.objects.reads if any(each in key for each in shared)}


@settings(deadline=None)
@given(TREES, CHANGES, CHANGES, st.sampled_from(MergeStrategy))
def test_merge(base: Tree, ours_changes: Changes, theirs_changes: Changes, strategy: MergeStrategy) -> None:
    world = World()
    ours, theirs = applied(base, ours_changes), applied(base, theirs_changes)
    ids = world.build(base), world.build(ours), world.build(theirs)

    merged, conflicts = dict(ours), list[str]()
    for path in sorted(base.keys() | theirs.keys()):
        old, mine, new = base.get(path), ours.get(path), theirs.get(path)
        if old == new or are_equal(mine, new, {}):
            continue
        if not are_equal(mine, old, {}) and strategy is MergeStrategy.NONE:
            conflicts.append(path)
        elif are_equal(mine, old, {}) or strategy is MergeStrategy.THEIRS:
            merged = applied(merged, {path: new})

    changes = merge_changes(world.trees, *ids, strategy, equal_as_uploaded)
    if conflicts:
        with pytest.raises(MergeConflict) as refused:
            next(changes)
        assert refused.value.paths == tuple(conflicts[:CONFLICTS_MAX])
    else:
        assert world.dump(world.trees.apply(ids[1], changes).metarange) == merged


@settings(deadline=None)
@given(TREES, CHANGES, CHANGES)
def test_a_tree_that_was_cut_by_another_rule_is_read_and_edited_all_the_same(
    tree: Tree, first: Changes, second: Changes
) -> None:
    world = World()
    other = Trees(world.objects, world.ids, FakeClock(), cut=CutRule(rows_min=1, rows_more=4, rows_max=12), threads=0)
    base = other.apply("", sorted(tree.items())).metarange
    mixed = world.trees.apply(base, sorted(first.items())).metarange
    after = world.trees.apply(mixed, sorted(second.items())).metarange
    assert world.dump(mixed) == applied(tree, first)
    assert world.dump(after) == applied(applied(tree, first), second)
    for new in set(world.trees.ranges(after)) - set(world.trees.ranges(base)):
        paths = range_paths(world.objects, new)
        assert len(paths) <= SMALL.rows_max
        assert not any(SMALL.is_boundary(path) for path in paths[SMALL.rows_min - 1 : -1]), "cut where this rule says"
