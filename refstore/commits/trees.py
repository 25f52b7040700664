"""Trees: what commits hold. An immutable map from paths to entries, named by its metarange.

The only door of this package to the product, beside `graph`: reading a tree, writing a new one from an old one and
changes, and comparing trees. Everything read is verified (`ranges`, `metaranges`); damage and absence raise CorruptRange, a store that
does not answer ObjectsUnavailable. '' is the empty tree. Thread-safe, but each iterator belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from refstore import deadline
from refstore.clock import Clock
from refstore.commits import changes, diffing, imported, listings, merging, names, ranges
from refstore.commits.applying import Apply, Written
from refstore.commits.changes import PAGE_ROWS
from refstore.commits.columns import Rows
from refstore.commits.diffing import Change
from refstore.commits.filters import PathFilter
from refstore.commits.imported import Spool
from refstore.commits.merging import Conflict, Strategy, Take
from refstore.commits.metaranges import Metarange, RangeRow
from refstore.commits.ranges import CUT, Cut
from refstore.commits.store import Caches, TreeStore
from refstore.commits.workers import Workers
from refstore.ids import Address, Ids
from refstore.objects.base import ObjectStore
from refstore.records import Entry

THREADS: Final = 8
"""Requests under way at once; for a store across a network, not for the processor."""

SCAN_LIMIT: Final = 1000
"""The default page: what a listing shows at once, out of two or three ranges."""


class Trees:
    def __init__(
        self,
        objects: ObjectStore,
        ids: Ids,
        clock: Clock,
        *,
        cut: Cut = CUT,
        page_rows: int = PAGE_ROWS,
        threads: int = THREADS,
        caches: Caches | None = None,
    ) -> None:
        """`threads` below 2: every request is made by the caller, one after the other. `caches`: shared with others; None: its own."""
        self._store = TreeStore(objects, ids, clock, caches or Caches())
        self._cut = cut
        self._page_rows = page_rows
        self._threads = threads

    # ---- reading

    def get(self, metarange: str, path: str) -> Entry | None:
        return self.get_many(metarange, (path,)).get(path)

    def get_many(self, metarange: str, paths: Iterable[str]) -> dict[str, Entry]:
        """Those of the paths that are there. Each range is read once."""
        tree = self._store.metarange(metarange)
        wanted: dict[int, list[str]] = {}
        for path in sorted(set(paths)):
            at = tree.at_or_behind(path)
            if at < len(tree.rows) and tree.rows[at].first_path <= path:
                wanted.setdefault(at, []).append(path)
        found: dict[str, Entry] = {}
        with Workers(self._threads) as workers:
            for rows, inside in zip(self._rows(workers, [tree.rows[at] for at in wanted]), wanted.values(), strict=True):
                found.update(ranges.lookup(rows, inside))
        return found

    def scan(self, metarange: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT) -> list[tuple[str, Entry]]:
        """A page of what starts with `prefix` and comes strictly after `after`, in order. Fewer than `limit`: the end."""
        deadline.check()  # what is cached asks no store, which would look
        tree = self._store.metarange(metarange)
        at = tree.at_or_behind(max(prefix, after))
        page: list[tuple[str, Entry]] = []
        with Workers(self._threads) as workers:
            while len(page) < limit and (wanted := self._following(tree, at, prefix, 1 if not page else limit - len(page))):
                for rows in self._rows(workers, wanted):
                    part = ranges.part(rows, prefix, after)
                    page.extend(ranges.items_of(part.slice(0, limit - len(page))))
                at += len(wanted)
        return page

    def _following(self, tree: Metarange, at: int, prefix: str, rows: int) -> list[RangeRow]:
        """The ranges from there on that hold so many rows, as far as they may hold the prefix."""
        wanted: list[RangeRow] = []
        while rows > 0 and at < len(tree.rows) and ranges.may_hold(tree.rows[at].first_path, prefix):
            wanted.append(tree.rows[at])
            rows -= tree.rows[at].rows
            at += 1
        return wanted

    def count(self, metarange: str) -> int:
        """Entries; from the metarange alone."""
        return self._store.metarange(metarange).count

    def size_bytes(self, metarange: str) -> int:
        """Of all objects that the entries name; from the metarange alone."""
        return self._store.metarange(metarange).size_bytes

    def stretches(self, metarange: str, *, prefix: str = "", after: str = "") -> list[RangeRow]:
        """The ranges that can hold what starts with `prefix` and comes strictly after `after`, in order; many trees share them."""
        tree = self._store.metarange(metarange)
        rows = tree.rows[tree.at_or_behind(max(prefix, after)) :]
        return list(takewhile(lambda row: ranges.may_hold(row.first_path, prefix), rows))

    def entries_of_range(self, range_id: str, *, prefix: str = "", after: str = "") -> list[tuple[str, Entry]]:
        return ranges.items_of(ranges.part(self._store.range(range_id), prefix, after))

    def same(self, left: str, right: str) -> bool:
        """Whether two trees surely have equal content; False: only a diff can tell."""
        return names.same_content(left, right)

    # ---- writing

    def apply(self, base: str, sorted_changes: Iterable[tuple[str, Entry | None]]) -> Written:
        """A new tree: the base with the changes, which are sorted by path, each path once; None deletes."""
        return self._apply(base, changes.pages_of_entries(sorted_changes, self._page_rows))

    def apply_encoded(self, base: str, sorted_changes: Iterable[tuple[str, bytes]]) -> Written:
        """The same from staging values as they stand in the KV: encoded entries and tombstones."""
        return self._apply(base, changes.pages_of_values(sorted_changes, self._page_rows))

    def _apply(self, base: str, pages: Iterator[changes.Page]) -> Written:
        with Workers(self._threads) as workers:
            return Apply(self._store, self._cut, base, workers).run(pages)

    def replace(self, base: str, spool: Spool, prefixes: Sequence[str]) -> Written:
        """Put what the spool holds, and remove what else there is below the prefixes, none of which lies in another."""
        return self._apply(base, imported.changes_of(spool.merged(), self._paths_below(base, sorted(prefixes))))

    def _paths_below(self, metarange: str, prefixes: Sequence[str]) -> Iterator[list[str]]:
        """In order, range by range."""
        with Workers(self._threads) as workers:
            for prefix in prefixes:
                for rows in self._rows(workers, self.stretches(metarange, prefix=prefix)):
                    if paths := ranges.paths_of(ranges.part(rows, prefix, "")):
                        yield paths

    def count_below(self, metarange: str, prefixes: Sequence[str]) -> int:
        """How many paths there are below the prefixes, none of which lies in another."""
        return sum(len(paths) for paths in self._paths_below(metarange, prefixes))

    def read_added(self, listing: str) -> Iterator[list[Address]]:
        """The own addresses that an apply put (`Written.added`), sorted, in batches."""
        return listings.read(self._store, listing)

    # ---- comparing

    def diff(self, left: str, right: str, *, prefix: str = "", after: str = "", only: PathFilter | None = None) -> Iterator[Change]:
        """What makes `right` of `left`, in path order; with `only`, of these paths. Ranges that both share are not read."""
        return diffing.diff(self._store, self._threads, left, right, prefix=prefix, after=after, only=only)

    def merge(self, base: str, ours: str, theirs: str, strategy: Strategy = Strategy.NONE) -> Iterator[Take | Conflict]:
        """What is to be applied to `ours` to bring in what `theirs` changed since `base`, and what stands against it."""
        return merging.merge(self, base, ours, theirs, strategy)

    def merge_changes(self, base: str, ours: str, theirs: str, strategy: Strategy = Strategy.NONE) -> Iterator[tuple[str, Entry | None]]:
        """The same as changes for `apply`. Raises MergeConflict, before the first of them."""
        return merging.merge_changes(self, base, ours, theirs, strategy)

    # ---- for the audit and the offline job

    def ranges(self, metarange: str) -> list[str]:
        """The ids of a tree's ranges, in path order; many trees share them."""
        return [row.id for row in self._store.metarange(metarange).rows]

    def addresses_of_range(self, range_id: str) -> list[Address]:
        """Every address that the range names, foreign ones included, in path order."""
        return ranges.addresses_of(self._store.range(range_id))

    def addresses(self, metarange: str) -> Iterator[list[Address]]:
        """Every address that a tree names, range by range."""
        with Workers(self._threads) as workers:
            for rows in self._rows(workers, self._store.metarange(metarange).rows):
                yield ranges.addresses_of(rows)

    def _rows(self, workers: Workers, wanted: Iterable[RangeRow]) -> Iterator[Rows]:
        return workers.ahead(lambda row: self._store.range(row.id), wanted, known=lambda row: self._store.kept_range(row.id))
