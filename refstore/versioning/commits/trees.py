"""Trees: the contents of commits. A tree is an immutable map from paths to entries, named by its metarange.

Other packages use this one only through `Trees` and `graph`: to read a tree, to write a new one from an old one and
changes, and to compare trees. Everything read is verified (`ranges`, `metaranges`). A damaged or missing object raises
CorruptRange, a store that does not answer ObjectsUnavailable. '' is the empty tree. Thread-safe, but each iterator
belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from refstore.core import deadline
from refstore.core.clock import Clock
from refstore.core.ids import Address, Ids
from refstore.core.lazy_modules import LazyModule
from refstore.objects.base import ObjectStore
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import ranges, tree_changes
from refstore.versioning.commits.caches import Caches
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.metaranges import Metarange, RangeRow
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.ranges import CUT_RULE, CutRule
from refstore.versioning.commits.tree_changes import PAGE_ROWS
from refstore.versioning.commits.tree_diff import EntryChange
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.workers import Workers

if TYPE_CHECKING:
    from refstore.versioning.commits import added_addresses, import_spool, tree_diff, tree_rewrite
    from refstore.versioning.commits.sorted_runs import SortedRuns
    from refstore.versioning.commits.tree_diff import EntryChange
    from refstore.versioning.commits.tree_rewrite import WrittenTree
else:
    tree_rewrite = LazyModule("refstore.versioning.commits.tree_rewrite")
    tree_diff = LazyModule("refstore.versioning.commits.tree_diff")
    import_spool = LazyModule("refstore.versioning.commits.import_spool")
    added_addresses = LazyModule("refstore.versioning.commits.added_addresses")

THREADS: Final = 8
"""How many requests are under way at once, for a store across a network."""

SCAN_LIMIT: Final = 1000
"""The default page of a listing, from two or three ranges."""


class Trees:
    def __init__(
        self,
        objects: ObjectStore,
        ids: Ids,
        clock: Clock,
        *,
        cut: CutRule = CUT_RULE,
        page_rows: int = PAGE_ROWS,
        threads: int = THREADS,
        caches: Caches | None = None,
    ) -> None:
        """`threads` below 2: the caller makes every request, one after the other. `caches`: None for own ones."""
        self._store = TreeStore(objects, ids, clock, caches or Caches())
        self._cut = cut
        self._page_rows = page_rows
        self._threads = threads

    # ---- reading

    def get(self, metarange: str, path: str) -> StoredEntry | None:
        return self.get_many(metarange, (path,)).get(path)

    def get_many(self, metarange: str, paths: Iterable[str]) -> dict[str, StoredEntry]:
        """Return the entries of those paths that exist. Each range is read once."""
        tree = self._store.metarange(metarange)
        paths_by_range: dict[int, list[str]] = {}
        for path in sorted(set(paths)):
            at = tree.find_range(path)
            if at < len(tree.rows) and tree.rows[at].first_path <= path:
                paths_by_range.setdefault(at, []).append(path)
        entries: dict[str, StoredEntry] = {}
        with Workers(self._threads) as workers:
            for rows, inside in zip(
                self._rows(workers, [tree.rows[at] for at in paths_by_range]), paths_by_range.values(), strict=True
            ):
                entries.update(ranges.find_entries(rows, inside))
        return entries

    def scan(
        self, metarange: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, StoredEntry]]:
        """Return a page of the entries with `prefix`, strictly after `after`; fewer than `limit` at the end."""
        deadline.check()  # cached ranges make no request, and only requests check the deadline
        tree = self._store.metarange(metarange)
        at = tree.find_range(max(prefix, after))
        page: list[tuple[str, StoredEntry]] = []
        with Workers(self._threads) as workers:
            while len(page) < limit and (
                range_rows := self._next_ranges(tree, at, prefix, 1 if not page else limit - len(page))
            ):
                for rows in self._rows(workers, range_rows):
                    part = ranges.rows_with_prefix(rows, prefix, after)
                    page.extend(ranges.items_of(part.slice(0, limit - len(page))))
                at += len(range_rows)
        return page

    def _next_ranges(self, tree: Metarange, at: int, prefix: str, rows: int) -> list[RangeRow]:
        """Return the ranges from `at` on that have so many rows, while they may have the prefix."""
        range_rows: list[RangeRow] = []
        while rows > 0 and at < len(tree.rows) and ranges.may_contain(tree.rows[at].first_path, prefix):
            range_rows.append(tree.rows[at])
            rows -= tree.rows[at].rows
            at += 1
        return range_rows

    def count(self, metarange: str) -> int:
        """Return how many entries the tree has, from the metarange alone."""
        return self._store.metarange(metarange).count

    def size_bytes(self, metarange: str) -> int:
        """Return the bytes of all objects that the tree names, from the metarange alone."""
        return self._store.metarange(metarange).size_bytes

    def overlapping_ranges(self, metarange: str, *, prefix: str = "", after: str = "") -> list[RangeRow]:
        """Return the ranges that can have entries with `prefix` after `after`, in order; many trees share ranges."""
        tree = self._store.metarange(metarange)
        rows = tree.rows[tree.find_range(max(prefix, after)) :]
        return list(takewhile(lambda row: ranges.may_contain(row.first_path, prefix), rows))

    def entries_of_range(self, range_id: str, *, prefix: str = "", after: str = "") -> list[tuple[str, StoredEntry]]:
        return ranges.items_of(ranges.rows_with_prefix(self._store.range(range_id), prefix, after))

    # ---- writing

    def apply(self, base: str, sorted_changes: Iterable[tuple[str, StoredEntry | None]]) -> WrittenTree:
        """Write a new tree: the base with the changes, sorted by path, each path once; None deletes."""
        return self._apply(base, tree_changes.page_entries(sorted_changes, self._page_rows))

    def apply_encoded(self, base: str, sorted_changes: Iterable[tuple[str, bytes]]) -> WrittenTree:
        """Write a new tree from the base and staging values of the KV: encoded entries and tombstones."""
        return self._apply(base, tree_changes.page_values(sorted_changes, self._page_rows))

    def _apply(self, base: str, pages: Iterator[tree_changes.ChangePage]) -> WrittenTree:
        with Workers(self._threads) as workers:
            return tree_rewrite.TreeRewrite(self._store, self._cut, base, workers).run(pages)

    def replace_prefixes(self, base: str, spool: SortedRuns, prefixes: Sequence[str]) -> WrittenTree:
        """Put the spooled entries, and remove all others below the prefixes, none of which lies in another."""
        return self._apply(
            base, import_spool.replacement_changes(spool.merge_runs(), self._paths_below(base, sorted(prefixes)))
        )

    def _paths_below(self, metarange: str, prefixes: Sequence[str]) -> Iterator[list[str]]:
        """Yield the paths below the prefixes in order, range by range."""
        with Workers(self._threads) as workers:
            for prefix in prefixes:
                for rows in self._rows(workers, self.overlapping_ranges(metarange, prefix=prefix)):
                    if paths := ranges.paths_of(ranges.rows_with_prefix(rows, prefix, "")):
                        yield paths

    def count_below(self, metarange: str, prefixes: Sequence[str]) -> int:
        """Count the paths below the prefixes, none of which lies in another."""
        return sum(len(paths) for paths in self._paths_below(metarange, prefixes))

    def read_added_addresses(self, listing: str) -> Iterator[list[Address]]:
        """Yield the own addresses that an apply put (`WrittenTree.added_addresses_id`), sorted, in batches."""
        return added_addresses.read(self._store, listing)

    # ---- comparing

    def diff(
        self, left: str, right: str, *, prefix: str = "", after: str = "", only: PathFilter | None = None
    ) -> Iterator[EntryChange]:
        """Yield the changes from `left` to `right` (of paths in `only`), in path order. Shared ranges are not read."""
        return tree_diff.diff(self._store, self._threads, left, right, prefix=prefix, after=after, only=only)

    # ---- for the audit and the offline job

    def ranges(self, metarange: str) -> list[str]:
        """Return the ids of a tree's ranges, in path order; many trees share ranges."""
        return [row.id for row in self._store.metarange(metarange).rows]

    def addresses_of_range(self, range_id: str) -> list[Address]:
        """Return every address that the range names, foreign ones included, in path order."""
        return ranges.addresses_of(self._store.range(range_id))

    def addresses(self, metarange: str) -> Iterator[list[Address]]:
        """Yield every address that a tree names, range by range."""
        with Workers(self._threads) as workers:
            for rows in self._rows(workers, self._store.metarange(metarange).rows):
                yield ranges.addresses_of(rows)

    def _rows(self, workers: Workers, range_rows: Iterable[RangeRow]) -> Iterator[Rows]:
        return workers.map_ahead(
            lambda row: self._store.range(row.id), range_rows, known=lambda row: self._store.cached_range(row.id)
        )
