"""What commits name, read by the executors: each distinct range once, and of a commit whose parent is kept only what it added.

A commit's tree is its first parent's with changes; so where the parent's tree is kept, what the commit names beyond it is among the
addresses that it added, and that listing is all there is to read. Only a commit whose parent is not kept has its whole tree read.
The cost follows what is distinct: not commits times objects.

Two things come of it, as packets: keys of the addresses, and keys of the ranges, which stand for themselves in the listing. Everything
that is read is verified (`refstore/commits/`); what is missing or damaged raises CorruptRange, and the run marks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from offline_gc.addresses import Cuts
from offline_gc.arrow import pa
from offline_gc.kept import packets_of
from offline_gc.packets import SCHEMA, Gathering, Packet, Side, Step, in_spark
from offline_gc.places import Work, store_at, threads_at
from refstore.clock import SystemClock
from refstore.commits import columns, listings, names, ranges
from refstore.commits.metaranges import RangeRow
from refstore.commits.store import Caches, TreeStore
from refstore.commits.workers import Workers
from refstore.ids import Address, CommitId, RandomIds, is_own, made_ms
from refstore.records import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

BATCH: Final = 32
"""Trees, or listings, in one packet."""


ALL: Final = 2
YOUNG: Final = 1
NOTHING: Final = 0
"""`Keeps` of `refstore/retention/paths.py`."""


class Part(msgspec.Struct, frozen=True):
    """What is kept of the paths that start with a prefix, and with no longer one of the same filter."""

    prefix: str
    keeps: int
    made_from_ms: int = 0
    """Where only what is young is kept: what was made from then on."""


class Filter(msgspec.Struct, frozen=True):
    """What is kept of a tree that does not keep everything."""

    parts: tuple[Part, ...]
    """The shortest prefix first, which is ''."""

    def may_keep(self, first_path: str, last_path: str) -> bool:
        """Whether a range can hold something that is kept."""
        return any(part.keeps != NOTHING and last_path >= part.prefix and ranges.may_hold(first_path, part.prefix) for part in self.parts)


class Tree(msgspec.Struct, frozen=True):
    metarange: str
    uses: tuple[tuple[int, int], ...] = ()
    """(side, number of a filter or -1), for whom its addresses are to be read; none: only its ranges are kept."""


class Listing(msgspec.Struct, frozen=True):
    added: str
    side: int


class Sources(NamedTuple):
    """What is to be read of commits."""

    trees: list[Tree]
    added: list[Listing]
    filters: list[Filter]
    ranges: Sequence[tuple[str, int, int]] = ()
    """(id, side, -1), beyond those of the trees."""
    rows: int = 0
    """What stands in these."""


class _Brief(NamedTuple):
    parent: CommitId | None
    metarange: str
    added: str


class Units(msgspec.Struct, frozen=True):
    """What is read of the commits that are kept, by name: a set of what never changes, so two runs differ by what is in one only."""

    roots: set[str]
    """Metaranges of trees that are read whole, each of their ranges once."""
    added: set[str]
    """Listings of added addresses."""
    metaranges: set[str]
    """Of all commits that are looked at: their ranges are kept."""
    past: set[CommitId]
    """Commits of which nothing else is kept."""

    def since(self, before: Units, work: Work) -> Sources:
        """What came to be read since, and what is not read any more. Only trees that one of the two has are opened, and of these
        two kinds only the ranges that they do not share are read. Raises CorruptRange."""
        store = trees_of(work)
        then, now = _ranges_of(store, before.roots), _ranges_of(store, self.roots)
        # in the order of their paths: what a range has in common with the one that it replaced is seen by one task (`packets.py`)
        changed = [(now[each], int(Side.COMMITTED)) for each in now.keys() - then.keys()]
        changed += [(then[each], int(Side.LOST)) for each in then.keys() - now.keys()]
        changed.sort(key=lambda each: (each[0].first_path, each[0].id))
        added = [Listing(each, Side.COMMITTED) for each in sorted(self.added - before.added)]
        added += [Listing(each, Side.LOST) for each in sorted(before.added - self.added)]
        trees = [Tree(each) for each in sorted(self.metaranges - before.metaranges)]
        return Sources(trees, added, [], [(row.id, side, -1) for row, side in changed], sum(row.rows for row, _ in changed))


def _ranges_of(store: TreeStore, metaranges: Iterable[str]) -> dict[str, RangeRow]:
    return {row.id: row for metarange in metaranges for row in store.metarange(metarange).rows}


class Wanted:
    """Gathers commits in the driver, and says what is to be read of them: some hundred bytes for each."""

    def __init__(self) -> None:
        self._full: dict[CommitId, _Brief] = {}
        self._part: dict[CommitId, tuple[_Brief, Filter]] = {}
        self._past: dict[CommitId, _Brief] = {}

    def add(self, commit_id: CommitId, commit: Commit, kept: Filter | None) -> None:
        """`kept`: what it keeps of its tree; None: all of it. The most that was said of a commit counts."""
        brief = _Brief(commit.parents[0] if commit.parents else None, commit.metarange, commit.added)
        if kept is None:
            self._full[commit_id] = brief
            self._part.pop(commit_id, None)
            self._past.pop(commit_id, None)
        elif commit_id not in self._full:
            if any(part.keeps != NOTHING for part in kept.parts):
                self._part[commit_id] = (brief, kept)
            else:
                self._past[commit_id] = brief

    def commits(self) -> Iterator[CommitId]:
        yield from (*self._full, *self._part, *self._past)

    def objects(self) -> Iterator[str]:
        """The keys of the commits' own objects; their ranges' come of reading them."""
        for brief in (*self._full.values(), *(brief for brief, _ in self._part.values()), *self._past.values()):
            if brief.metarange:
                yield names.key(names.METARANGES, brief.metarange)
            if brief.added:
                yield names.key(names.ADDED, brief.added)

    def sources(self, expired: Iterable[CommitId] = ()) -> Sources:
        """What there is to read. `expired`: commits whose addresses tell why something goes."""
        # what is read of those that are kept is what `units` says, each once: the next run reckons with it
        trees: dict[str, dict[tuple[int, int], None]] = {}
        added: dict[str, Listing] = {}
        filters: dict[Filter, int] = {}

        def read(commits: Mapping[CommitId, _Brief], side: Side) -> None:
            for brief in commits.values():
                uses = trees.setdefault(brief.metarange, {})
                if brief.parent is not None and brief.parent in commits:
                    if brief.added:
                        added.setdefault(brief.added, Listing(brief.added, side))
                else:
                    uses[side, -1] = None

        read(self._full, Side.COMMITTED)
        for brief, kept in self._part.values():
            trees.setdefault(brief.metarange, {})[Side.COMMITTED, filters.setdefault(kept, len(filters))] = None
        for brief in self._past.values():
            trees.setdefault(brief.metarange, {})
        gone = {commit: brief for commit in expired if (brief := self._brief(commit)) is not None}
        read(gone, Side.EXPIRED)
        trees.pop("", None)
        return Sources([Tree(metarange, tuple(uses)) for metarange, uses in trees.items()], list(added.values()), list(filters))

    def units(self) -> Units | None:
        """What `sources` reads of the commits that are kept. None where some keep a part only: that can change by the hour."""
        if self._part:
            return None
        roots: set[str] = set()
        added: set[str] = set()
        for brief in self._full.values():
            if brief.parent is not None and brief.parent in self._full:
                added.add(brief.added)
            else:
                roots.add(brief.metarange)
        metaranges = {brief.metarange for brief in (*self._full.values(), *self._past.values())}
        return Units(roots - {""}, added - {""}, metaranges - {""}, set(self._past))

    def whole_trees(self) -> set[str]:
        """Metaranges of kept commits whose parents are not kept, too: what is read of those that are kept as a whole."""
        roots = {brief.metarange for brief in self._full.values() if brief.parent is None or brief.parent not in self._full}
        return roots - {""}

    def metarange(self, commit: CommitId) -> str | None:
        """Of a commit that the look met; None: it did not, as the commit never landed."""
        found = self._full.get(commit) or self._brief(commit)
        return found.metarange if found else None

    def keeps(self, commit: CommitId) -> bool:
        """Whether all that it names is kept."""
        return commit in self._full

    def _brief(self, commit: CommitId) -> _Brief | None:
        return self._past.get(commit) or (self._part[commit][0] if commit in self._part else None)


def addresses(spark: SparkSession, work: Work, cuts: Cuts, sources: Sources, parts: int) -> tuple[list[DataFrame], Callable[[], object]]:
    """(packets of keys, what to call when they were used)."""
    trees, filters, lone = sources.trees, sources.filters, sources.ranges
    told = _to_open(sources)
    found: list[DataFrame] = []
    if lone:
        some = [Packet.telling(number, Side.READ, each, len(each)) for number, each in enumerate(_dealt(lone, parts * 2))]
        found.append(packets_of(spark, some, parts * 2).mapInArrow(in_spark(reading(work, cuts, filters)), SCHEMA))
    if not told:
        return found, lambda: None
    opened = packets_of(spark, told, parts * 2).mapInArrow(in_spark(opening(work, cuts, filters, parts * 2)), SCHEMA)
    if not any(tree.uses for tree in trees):
        return [*found, opened], lambda: None
    opened.persist()
    of_ranges = opened.where(f"side = {int(Side.READ)}")
    read = of_ranges.repartitionById(parts * 2, "bucket").mapInArrow(in_spark(reading(work, cuts, filters)), SCHEMA)
    return [*found, opened.where(f"side != {int(Side.READ)}"), read], opened.unpersist


def addresses_here(work: Work, cuts: Cuts, sources: Sources) -> Iterator[Packet]:
    """The same, read in this process."""
    to_read = [Packet.telling(0, Side.READ, sources.ranges, len(sources.ranges))] if sources.ranges else []
    for packet in opening(work, cuts, sources.filters, 1)(_to_open(sources)):
        if packet.side is Side.READ:
            to_read.append(packet)
        else:
            yield packet
    yield from reading(work, cuts, sources.filters)(to_read)


def _to_open(sources: Sources) -> list[Packet]:
    trees, added = sources.trees, sources.added
    told = [Packet.telling(0, Side.READ, ("trees", trees[at : at + BATCH])) for at in range(0, len(trees), BATCH)]
    return told + [Packet.telling(0, Side.READ, ("added", added[at : at + BATCH])) for at in range(0, len(added), BATCH)]


def _dealt(ranges_: Sequence[T], tasks: int) -> list[Sequence[T]]:
    """Neighbours together."""
    each = -(-len(ranges_) // tasks)
    return [ranges_[at : at + each] for at in range(0, len(ranges_), each)] if each else []


def opening(work: Work, cuts: Cuts, filters: Sequence[Filter], tasks: int) -> Step:
    """Opens trees, and reads listings of added addresses. What is to be read of ranges comes of it as packets for so many tasks."""

    def open_(told: Iterable[Packet]) -> Iterator[Packet]:
        store = trees_of(work)
        gathering = Gathering(cuts, work.seed)
        known: set[str] = set()
        to_read: dict[tuple[str, int, int], None] = {}
        with Workers(threads_at(work)) as workers:
            for packet in told:
                what, items = msgspec.msgpack.decode(packet.body, type=tuple[str, list[Any]])
                if what == "added":
                    wanted = msgspec.convert(items, list[Listing])
                    for listing, found in zip(wanted, workers.ahead(lambda each: _added(store, each.added), wanted), strict=True):
                        yield from gathering.add(Side(listing.side), found)
                    continue
                for tree, rows, range_ids in workers.ahead(lambda each: _opened(store, each), msgspec.convert(items, list[Tree])):
                    new = [each for each in range_ids if each not in known]
                    known.update(new)
                    yield from gathering.add(Side.RANGES, pa.array([names.key(names.RANGES, each) for each in new], pa.string()))
                    for side, number in tree.uses:
                        kept = filters[number] if number >= 0 else None
                        to_read.update(
                            ((row.id, side, number), None) for row in rows if kept is None or kept.may_keep(row.first_path, row.last_path)
                        )
        yield from gathering.flush()
        dealt: dict[int, list[tuple[str, int, int]]] = {}
        for each in to_read:
            dealt.setdefault(int(each[0][:8], 16) % tasks, []).append(each)
        for bucket, some in dealt.items():
            yield Packet.telling(bucket, Side.READ, some, len(some))

    return open_


def reading(work: Work, cuts: Cuts, filters: Sequence[Filter]) -> Step:
    """Reads ranges, each once."""

    def read(told: Iterable[Packet]) -> Iterator[Packet]:
        wanted: dict[str, set[tuple[int, int]]] = {}
        for packet in told:
            for range_id, side, number in msgspec.msgpack.decode(packet.body, type=list[tuple[str, int, int]]):
                wanted.setdefault(range_id, set()).add((side, number))
        store = trees_of(work)
        gathering = Gathering(cuts, work.seed, own=frozenset(Side))

        def opened(range_id: str) -> tuple[Any, Any]:
            """(addresses, the rows where only a part of them is kept)."""
            if all(number < 0 for _, number in wanted[range_id]):
                return store.range_addresses(range_id), None
            rows = store.range(range_id)
            return rows.column(ranges.ADDRESS), rows

        with Workers(threads_at(work)) as workers:
            for uses, (addresses_, rows) in zip(wanted.values(), workers.ahead(opened, list(wanted)), strict=True):
                whole = {Side(side) for side, number in uses if number < 0}
                for side in whole & {Side.COMMITTED} or whole:  # what is kept does not also go
                    yield from gathering.add(side, addresses_)
                if Side.COMMITTED not in whole:
                    for _, number in uses:
                        if number >= 0:
                            yield from gathering.add(Side.COMMITTED, _kept_of(rows, filters[number]))
        yield from gathering.flush()

    return read


def _kept_of(rows: Any, kept: Filter) -> Any:
    """The addresses that a filter keeps of a range: stretch by stretch of its paths, a longer prefix over a shorter one."""
    keeps = np.zeros(rows.num_rows, np.int8)
    made_from = np.zeros(rows.num_rows, np.int64)
    for part in kept.parts:
        start = columns.position(rows, part.prefix)
        end = columns.first_without(rows, part.prefix, start) if part.prefix else rows.num_rows
        keeps[start:end], made_from[start:end] = part.keeps, part.made_from_ms
    addresses: list[Address] = rows.column(ranges.ADDRESS).to_pylist()
    chosen = [
        address
        for address, how, since_ms in zip(addresses, keeps.tolist(), made_from.tolist(), strict=True)
        if how == ALL or (how == YOUNG and ((made_ms := made_of(address)) is None or made_ms >= since_ms))
    ]
    return pa.array(chosen, pa.string())


def made_of(address: Address) -> int | None:
    return made_ms(address) if is_own(address) else None


def _opened(store: TreeStore, tree: Tree) -> tuple[Tree, Sequence[RangeRow], Sequence[str]]:
    """A tree's ranges; of one that is not to be read any further only their ids."""
    if not tree.uses:
        return tree, (), store.range_ids(tree.metarange)
    rows = store.metarange(tree.metarange).rows
    return tree, rows, [row.id for row in rows]


def _added(store: TreeStore, listing: str) -> Any:
    found = [pa.array(batch, pa.string()) for batch in listings.read(store, listing)]
    return pa.concat_arrays(found) if found else pa.array([], pa.string())


def trees_of(work: Work) -> TreeStore:
    """The trees of the namespace, read without a cache."""
    return TreeStore(store_at(work.url, work), RandomIds(), SystemClock(), Caches(0, 0))
