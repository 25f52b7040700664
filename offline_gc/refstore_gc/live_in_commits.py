"""The addresses that commits name. Tasks of the engine read each distinct range once, and only what was added of a
commit whose parent is live.

A commit's tree is its first parent's tree with changes. Where the parent is live, the commit's other addresses stand in
its listing of added addresses, and the ids of its other ranges, too. So only that is read. A tree is read whole only
where the parent is not live. So the cost follows what is distinct, not commits times objects or ranges.

The result is batches: keys of the addresses, and keys of the ranges, which the store lists, too. Everything that is
read is verified (`refstore/versioning/commits/`). What is missing or damaged raises CorruptRange, and the run marks
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.core.batches import split_batches
from refstore.core.clock import SystemClock
from refstore.core.ids import Address, CommitId, RandomIds, address_time_ms, is_own
from refstore.records.commit_records import StoredCommit
from refstore.retention.path_rules import KeepLevel
from refstore.versioning.commits import columns, object_names, ranges
from refstore.versioning.commits.added_addresses import open_added_addresses
from refstore.versioning.commits.caches import Caches
from refstore.versioning.commits.metaranges import RangeRow
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.workers import Workers
from refstore_gc.address_batches import Batch, BatchBuilder, BatchKind, drop_unchanged
from refstore_gc.address_codec import BucketBounds
from refstore_gc.engines.base import READ_BUCKETS, BatchStream
from refstore_gc.run_layout import RunLayout, open_store, request_threads
from refstore_gc.untyped_arrow import pa, pc

BATCH: Final = 32
"""How many trees, and how many listings, one batch holds."""
SHARE: Final = 128
"""How many ranges a task reads at least: some 10 ms of work."""
IDS_MAX: Final = 1 << 17
"""How many ids of ranges a task gathers before it looks for new ones: 12 MB."""


class FilterPart(msgspec.Struct, frozen=True):
    """What is kept of the paths that start with a prefix, and with no longer prefix of the same filter."""

    prefix: str
    keep_level: KeepLevel
    made_from_ms: int = 0
    """Where only young objects are kept: those that were made from then on."""


class TreeFilter(msgspec.Struct, frozen=True):
    """What is kept of a tree of which only a part is kept."""

    parts: tuple[FilterPart, ...]
    """The shortest prefix first, which is ''."""

    def may_keep(self, first_path: str, last_path: str) -> bool:
        """Return whether a range can hold something that is kept."""
        return any(
            last_path >= part.prefix and ranges.may_contain(first_path, part.prefix)
            for part in self.parts
            if part.keep_level != KeepLevel.NOTHING
        )


class TreeSource(msgspec.Struct, frozen=True):
    metarange: str
    uses: tuple[tuple[int, int], ...] = ()
    """(kind, number of a filter or -1), one for each use of its addresses. Empty: only its ranges are kept."""


class AddedAddressesSource(msgspec.Struct, frozen=True):
    """The listing of a commit."""

    added_addresses_id: str
    kind: int
    metarange: str = ""
    """The commit's, where its new ranges are wanted, too: it tells them if the listing does not."""


class RangeSources(NamedTuple):
    """What tells the ranges of all commits."""

    metaranges: list[str]
    """Of commits whose ranges are all read."""
    metarange_of: dict[str, str]
    """The metarange of the commit, for each listing that tells its new ranges. The others are its parent's."""


class CommitSources(NamedTuple):
    """What there is to read of commits."""

    trees: list[TreeSource]
    added_addresses: list[AddedAddressesSource]
    filters: list[TreeFilter]
    ranges: Sequence[tuple[str, int, int]] = ()
    """(id, kind, -1), beyond those of the trees."""


class _CommitSummary(NamedTuple):
    parent: CommitId | None
    metarange: str
    added_addresses_id: str


class CommitReads(msgspec.Struct, frozen=True):
    """The names of what is read of live commits. These objects never change, so two runs differ only by the
    names that one of them has. The field names stand in files.
    """

    roots: set[str]
    """Metaranges of trees that are read whole, each of their ranges once."""
    added_addresses: set[str]
    """Listings of added addresses."""
    metaranges: set[str]
    """The metaranges of all scanned commits: their ranges are kept."""
    past_commits: set[CommitId]
    """Commits of which only the ranges are kept."""


class LiveCommits:
    """Gathers commits in the run's own process, some hundred bytes for each, and says what to read of them."""

    def __init__(self) -> None:
        self._full: dict[CommitId, _CommitSummary] = {}
        self._part: dict[CommitId, tuple[_CommitSummary, TreeFilter]] = {}
        self._past: dict[CommitId, _CommitSummary] = {}

    def add(self, commit_id: CommitId, commit: StoredCommit, tree_filter: TreeFilter | None) -> None:
        """Add a commit. `tree_filter`: what it keeps of its tree; None: everything. A second call can only add."""
        brief = _CommitSummary(
            commit.parents[0] if commit.parents else None, commit.metarange, commit.added_addresses_id
        )
        if tree_filter is None:
            self._full[commit_id] = brief
            self._part.pop(commit_id, None)
            self._past.pop(commit_id, None)
        elif commit_id not in self._full:
            if any(part.keep_level != KeepLevel.NOTHING for part in tree_filter.parts):
                self._part[commit_id] = (brief, tree_filter)
            else:
                self._past[commit_id] = brief

    def commits(self) -> Iterator[CommitId]:
        yield from (*self._full, *self._part, *self._past)

    def metaranges(self) -> Iterator[str]:
        """Yield the metaranges of the commits of which anything is kept."""
        for brief in (*self._full.values(), *(brief for brief, _ in self._part.values())):
            if brief.metarange:
                yield brief.metarange

    def tree_object_keys(self) -> Iterator[str]:
        """Yield the keys of the commits' metaranges and listings. Their ranges' keys come from reading them."""
        for brief in (*self._full.values(), *(brief for brief, _ in self._part.values()), *self._past.values()):
            if brief.metarange:
                yield object_names.key(object_names.METARANGES, brief.metarange)
            if brief.added_addresses_id:
                yield object_names.key(object_names.ADDED_ADDRESSES, brief.added_addresses_id)

    def sources(self, expired: Iterable[CommitId] = (), marked_again: Iterable[CommitId] = ()) -> CommitSources:
        """Return what to read. `expired`: commits whose addresses tell why something is garbage. `marked_again`:
        commits of which an earlier mark leaves what it holds.
        """
        # what is read of those that are kept is what `read_names` says, each once: the next run reckons with it
        trees: dict[str, dict[tuple[int, int], None]] = {}
        added: dict[str, BatchKind] = {}
        filters: dict[TreeFilter, int] = {}

        def read(commits: Mapping[CommitId, _CommitSummary], kind: BatchKind) -> None:
            for brief in commits.values():
                if brief.parent not in commits:
                    trees.setdefault(brief.metarange, {})[kind, -1] = None
                elif brief.added_addresses_id:
                    added.setdefault(brief.added_addresses_id, kind)

        read(self._full, BatchKind.LIVE_IN_COMMITS)
        for brief, tree_filter in self._part.values():
            trees.setdefault(brief.metarange, {})[
                BatchKind.LIVE_IN_COMMITS, filters.setdefault(tree_filter, len(filters))
            ] = None
        expired_briefs = {commit: brief for commit in expired if (brief := self._summary_of(commit)) is not None}
        read(expired_briefs, BatchKind.EXPIRED)
        metaranges, metarange_of = self.range_sources()
        for commit in marked_again:
            if (brief := self._summary_of(commit)) is not None:
                trees.setdefault(brief.metarange, {})[BatchKind.MARKED_AGAIN, -1] = None
        for metarange in metaranges:
            trees.setdefault(metarange, {})
        trees.pop("", None)
        return CommitSources(
            [TreeSource(metarange, tuple(uses)) for metarange, uses in trees.items()],
            [AddedAddressesSource(each, kind, metarange_of.get(each, "")) for each, kind in added.items()],
            list(filters),
        )

    def range_sources(self) -> RangeSources:
        metaranges: dict[str, None] = {}
        metarange_of: dict[str, str] = {}
        for brief in self._full.values():
            if brief.added_addresses_id and brief.parent in self._full:
                metarange_of[brief.added_addresses_id] = brief.metarange
            else:
                metaranges[brief.metarange] = None
        # a listing that is not read anyway can be larger than the metarange
        for brief in (*(brief for brief, _ in self._part.values()), *self._past.values()):
            metaranges[brief.metarange] = None
        metaranges.pop("", None)
        return RangeSources(list(metaranges), metarange_of)

    def read_names(self) -> CommitReads | None:
        """Return what `sources` reads of live commits. None where some keep a part only: that can change by the
        hour.
        """
        if self._part:
            return None
        added = {brief.added_addresses_id for brief in self._full.values() if brief.parent in self._full}
        metaranges = {brief.metarange for brief in (*self._full.values(), *self._past.values())}
        return CommitReads(self.whole_trees(), added - {""}, metaranges - {""}, set(self._past))

    def whole_trees(self) -> set[str]:
        """Return metaranges of live commits whose parents are not live: what is read of those that are kept as a
        whole.
        """
        return {brief.metarange for brief in self._full.values() if brief.parent not in self._full} - {""}

    def metarange(self, commit: CommitId) -> str | None:
        """Return the metarange of a commit that the live scan met. None: the commit never landed."""
        found = self._full.get(commit) or self._summary_of(commit)
        return found.metarange if found else None

    def keeps_everything_of(self, commit: CommitId) -> bool:
        """Return whether all that the commit names is kept."""
        return commit in self._full

    def _summary_of(self, commit: CommitId) -> _CommitSummary | None:
        return self._past.get(commit) or (self._part[commit][0] if commit in self._part else None)


def commit_flows(layout: RunLayout, cuts: BucketBounds, sources: CommitSources) -> list[BatchStream]:
    """Return the flows of the addresses and ranges that commits name."""
    read = partial(read_ranges, layout, cuts, sources.filters)
    each = max(SHARE, -(-len(sources.ranges) // READ_BUCKETS))  # neighbours stay together
    lone = [Batch.from_value(0, BatchKind.TO_READ, some) for some in split_batches(sources.ranges, each)]
    return [
        BatchStream(lone, read),
        BatchStream(_open_batches(sources), partial(open_trees, layout, cuts, sources.filters), read),
    ]


def _open_batches(sources: CommitSources) -> list[Batch]:
    # both kinds in each batch: a task gets neighbours, and a tree takes longer than a listing
    return [
        Batch.from_value(
            0, BatchKind.TO_READ, (sources.trees[at : at + BATCH], sources.added_addresses[at : at + BATCH])
        )
        for at in range(0, max(len(sources.trees), len(sources.added_addresses)), BATCH)
    ]


def open_trees(
    layout: RunLayout, cuts: BucketBounds, filters: Sequence[TreeFilter], batches: Iterable[Batch]
) -> Iterator[Batch]:
    """Open trees and read listings of added addresses. Also yield which ranges to read, dealt into `READ_BUCKETS`, for
    `read_ranges`.
    """
    store = open_tree_store(layout)
    builder = BatchBuilder(cuts, layout.seed)
    new_ranges = NewRangeFinder()
    to_read: dict[tuple[str, int, int], None] = {}
    with Workers(request_threads(layout)) as workers:
        for batch in batches:
            trees, listings_ = msgspec.msgpack.decode(
                batch.body, type=tuple[list[TreeSource], list[AddedAddressesSource]]
            )
            found = workers.map_ahead(partial(_read_added_addresses, store), listings_)
            for listing, (column, ids) in zip(listings_, found, strict=True):
                for range_keys in new_ranges.add(ids):
                    yield from builder.add(BatchKind.RANGES, range_keys)
                yield from builder.add(BatchKind(listing.kind), column)
            for tree, rows, ids in workers.map_ahead(partial(_open_tree, store), trees):
                for range_keys in new_ranges.add(ids):
                    yield from builder.add(BatchKind.RANGES, range_keys)
                for kind, number in tree.uses:
                    tree_filter = filters[number] if number >= 0 else None
                    to_read.update(
                        ((row.id, kind, number), None)
                        for row in rows
                        if tree_filter is None or tree_filter.may_keep(row.first_path, row.last_path)
                    )
    yield from builder.add(BatchKind.RANGES, new_ranges.keys())
    yield from builder.flush()
    dealt: dict[int, list[tuple[str, int, int]]] = {}
    for each in to_read:
        dealt.setdefault(int(each[0][:8], 16) % READ_BUCKETS, []).append(each)
    for bucket, some in dealt.items():
        yield Batch.from_value(bucket, BatchKind.TO_READ, some)


class NewRangeFinder:
    """Finds the ranges that no tree before had; most trees share most of their ranges with others."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._last: Any = None
        self._gathered: list[Any] = []
        self._rows = 0

    def add(self, ids: Any) -> Iterator[Any]:
        """Yield the keys of new ranges, once many ids were gathered. `ids`: of one tree, as an Arrow array."""
        before, self._last = self._last, ids
        if before is not None and len(before) == len(ids):  # mostly of the parent: comparing is cheaper than hashing
            ids = ids.filter(pc.not_equal(ids, before))
        self._gathered.append(ids)
        self._rows += len(ids)
        if self._rows >= IDS_MAX:
            yield self.keys()

    def keys(self) -> Any:
        """Return the keys of the new ranges since the last call, as an Arrow array."""
        distinct: list[str] = pc.unique(pa.chunked_array(self._gathered, pa.string())).to_pylist()
        new = [each for each in distinct if each not in self._known]
        self._known.update(new)
        self._gathered, self._rows = [], 0
        return _range_keys(make_array(new, pa.string()))


def _range_keys(ids: Any) -> Any:
    """Return the key of each range, as `object_names.key` does. Raises CorruptRange for an invalid id."""
    invalid = ids.filter(pc.invert(pc.match_substring_regex(ids, rf"\A(?:{object_names.ID})\z")))
    if len(invalid):
        object_names.key(object_names.RANGES, invalid[0].as_py())
    text = partial(make_scalar, type_=pa.string())
    return pc.binary_join_element_wise(text(object_names.RANGES), ids, text(object_names.EXTENSION), text(""))


def read_ranges(
    layout: RunLayout, cuts: BucketBounds, filters: Sequence[TreeFilter], batches: Iterable[Batch]
) -> Iterator[Batch]:
    """Yield the addresses of ranges, each range read once."""
    uses_of: dict[str, set[tuple[int, int]]] = {}
    for batch in batches:
        for range_id, kind, number in msgspec.msgpack.decode(batch.body, type=list[tuple[str, int, int]]):
            uses_of.setdefault(range_id, set()).add((kind, number))
    store = open_tree_store(layout)
    builder = BatchBuilder(cuts, layout.seed, own=frozenset(BatchKind))

    def open_range(range_id: str) -> tuple[Any, Any]:
        """Return the addresses, and the rows where only a part of them is kept."""
        if all(number < 0 for _, number in uses_of[range_id]):
            return store.range_addresses(range_id), None
        rows = store.range(range_id)
        return rows.column(ranges.ADDRESS), rows

    def addresses_by_use(workers: Workers) -> Iterator[tuple[BatchKind, Any]]:
        for uses, (addresses_, rows) in zip(
            uses_of.values(), workers.map_ahead(open_range, list(uses_of)), strict=True
        ):
            whole = {BatchKind(kind) for kind, number in uses if number < 0}
            for kind in whole & {BatchKind.LIVE_IN_COMMITS} or whole:  # what is live is not expired, too
                yield kind, addresses_
            if BatchKind.LIVE_IN_COMMITS not in whole:
                for _, number in uses:
                    if number >= 0:
                        yield BatchKind.LIVE_IN_COMMITS, _filtered_addresses(rows, filters[number])

    with Workers(request_threads(layout)) as workers:
        for kind, addresses_ in drop_unchanged(addresses_by_use(workers)):
            yield from builder.add(kind, addresses_)
    yield from builder.flush()


def _filtered_addresses(rows: Any, tree_filter: TreeFilter) -> Any:
    """Return the addresses that a filter keeps of a range. A longer prefix overrides a shorter one."""
    keeps = np.zeros(rows.num_rows, np.int8)
    made_from = np.zeros(rows.num_rows, np.int64)
    for part in tree_filter.parts:
        start = columns.find_position(rows, part.prefix)
        end = columns.find_first_without_prefix(rows, part.prefix, start) if part.prefix else rows.num_rows
        keeps[start:end], made_from[start:end] = part.keep_level, part.made_from_ms
    addresses: list[Address] = rows.column(ranges.ADDRESS).to_pylist()
    chosen = [
        address
        for address, how, since_ms in zip(addresses, keeps.tolist(), made_from.tolist(), strict=True)
        if how == KeepLevel.ALL
        or (how == KeepLevel.YOUNG and ((made_ms := _made_ms(address)) is None or made_ms >= since_ms))
    ]
    return make_array(chosen, pa.string())


def _made_ms(address: Address) -> int | None:
    return address_time_ms(address) if is_own(address) else None


def _open_tree(store: TreeStore, tree: TreeSource) -> tuple[TreeSource, Sequence[RangeRow], Any]:
    """Open a tree; return its ranges and their ids in an Arrow array, or only the ids if nothing else of it is read."""
    if not tree.uses:
        return tree, (), store.range_ids(tree.metarange)
    rows = store.metarange(tree.metarange).rows
    return tree, rows, make_array([row.id for row in rows], pa.string())


def _read_added_addresses(store: TreeStore, source: AddedAddressesSource) -> tuple[Any, Any]:
    """Return the addresses of a listing, and the ids of the commit's new ranges, in Arrow arrays."""
    with open_added_addresses(store, source.added_addresses_id) as listing:
        parts, new_ranges = list(listing.addresses), listing.new_ranges
    addresses = pa.concat_arrays(parts) if parts else make_array([], pa.string())
    if source.metarange and new_ranges is None:
        return addresses, store.range_ids(source.metarange)
    return addresses, make_array(new_ranges or () if source.metarange else (), pa.string())


def open_tree_store(layout: RunLayout) -> TreeStore:
    """Return the trees of the namespace, without a cache."""
    return TreeStore(open_store(layout.url, layout), RandomIds(), SystemClock(), Caches(0, 0))
