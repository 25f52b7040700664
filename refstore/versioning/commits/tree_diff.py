"""Compare two trees.

Ranges with equal hashes are left out on both sides: they hold the same rows, and no path is in two ranges of one tree.
A few of the other ranges of each side are in memory at a time. Equal rows are removed column by column, and only
different rows become Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from refstore.core import deadline
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import columns, object_names, ranges
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.metaranges import RangeRow
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.workers import Workers


class PathChangeKind(Enum):
    """How a path differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class EntryChange(NamedTuple):
    """One path that differs, as records have it; None where it is not there."""

    path: str
    kind: PathChangeKind
    left: StoredEntry | None
    right: StoredEntry | None


def diff(
    store: TreeStore,
    threads: int,
    left_id: str,
    right_id: str,
    *,
    prefix: str = "",
    after: str = "",
    only: PathFilter | None = None,
) -> Iterator[EntryChange]:
    """Yield the changes from left to right, in path order. With `only`, ranges without these paths are not read."""
    if object_names.have_same_content(left_id, right_id):
        return
    left_rows, right_rows = store.metarange(left_id).rows, store.metarange(right_id).rows
    shared = {object_names.hash_of(row.id) for row in left_rows} & {object_names.hash_of(row.id) for row in right_rows}
    low = max(prefix, after)

    def read(row: RangeRow) -> Rows:
        return ranges.rows_with_prefix(store.range(row.id), prefix, after)

    def is_wanted(row: RangeRow) -> bool:
        return (
            object_names.hash_of(row.id) not in shared
            and row.last_path >= low
            and ranges.may_contain(row.first_path, prefix)
            and may_match(row)
        )

    def may_match(row: RangeRow) -> bool:
        return only is None or only.may_match_between(row.first_path, row.last_path)

    with Workers(threads) as workers:
        left = _TreeCursor(workers.map_ahead(read, filter(is_wanted, left_rows)))
        right = _TreeCursor(workers.map_ahead(read, filter(is_wanted, right_rows)))
        while ends := [side.last_path for side in (left, right) if side.fill()]:
            deadline.check()  # cached ranges make no request, and only requests check the deadline
            limit = min(ends)  # up to here both sides are complete
            for change in _compare_batches(left.take(limit), right.take(limit)):
                if only is None or only.matches(change.path):
                    yield change


class _TreeCursor:
    """One tree's rows from left to right."""

    def __init__(self, waiting: Iterator[Rows]) -> None:
        self._waiting = waiting
        self._rows = columns.empty_rows(ranges.LAYOUT)

    def fill(self) -> bool:
        """Load rows if there are none; return False at the end."""
        while not self._rows.num_rows:
            following = next(self._waiting, None)
            if following is None:
                return False
            self._rows = following
        return True

    @property
    def last_path(self) -> str:
        return columns.text_at(self._rows, ranges.PATH, self._rows.num_rows - 1)

    def take(self, limit: str) -> Rows:
        """Remove and return the rows up to `limit`."""
        end = columns.find_position(self._rows, limit, behind=True)
        taken, self._rows = self._rows.slice(0, end), self._rows.slice(end)
        return taken


def _compare_batches(left: Rows, right: Rows) -> Iterator[EntryChange]:
    """Compare two batches that cover the same interval of paths."""
    left, right = columns.drop_equal(left, right, ranges.COMPARED)
    olds, news = ranges.items_of(left), ranges.items_of(right)
    at_old = at_new = 0
    while at_old < len(olds) or at_new < len(news):
        if at_new == len(news) or (at_old < len(olds) and olds[at_old][0] < news[at_new][0]):
            path, old = olds[at_old]
            at_old += 1
            yield EntryChange(path, PathChangeKind.REMOVED, old, None)
        elif at_old == len(olds) or news[at_new][0] < olds[at_old][0]:
            path, new = news[at_new]
            at_new += 1
            yield EntryChange(path, PathChangeKind.ADDED, None, new)
        else:
            path, old = olds[at_old]
            new = news[at_new][1]
            at_old += 1
            at_new += 1
            yield EntryChange(path, PathChangeKind.CHANGED, old, new)
