"""Apply changes to a tree: rewrite only the ranges that change, and those up to where the old cuts are met again.

The old ranges are walked in order beside the changes. A range that no change falls into is inherited, if the rows
before it ended in a cut. Otherwise its rows go to the cutter, the changes among them, in whole chunks; once the
cutter ends a range where an old one ended, inheritance goes on. As the cuts are a function of the rows, the result is
cut as if it had been written from nothing.

Memory, whatever the size of the tree or of the changes: two pages of changes, and per thread two ranges being read and
two being written; besides, some 300 bytes per range of the old and the new tree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import columns, object_names, ranges
from refstore.versioning.commits.added_addresses import AddedAddressCollector
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.metaranges import Metarange, RangeRow
from refstore.versioning.commits.range_cutter import ExistingRows, NewRows, RangeCutter, RangeRows
from refstore.versioning.commits.ranges import CutRule
from refstore.versioning.commits.tree_changes import ChangePage
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.workers import PendingResult, Workers

RUNS_MAX: Final = 64
"""Up to so many alternations of old and new rows the cutter gets slices of both; beyond, one copy is cheaper."""
SAMPLES_MAX: Final = 100
"""How many replaced entries a written tree shows."""


class WrittenTree(NamedTuple):
    """The tree that an apply wrote, and its counts."""

    metarange: str
    """The new tree; the base itself, by its own id, if nothing changed."""
    added_addresses_id: str
    """The listing of all own addresses that were put, also of unchanged entries; '': none."""
    inserted_entries: int
    replaced_entries: int
    removed_entries: int
    unchanged_entries: int
    """Puts of what was there already, and deletions of what was not."""
    samples: tuple[tuple[StoredEntry, StoredEntry], ...] = ()
    """The first replaced entries, old and new. Mostly they tell that readers will notice the tree, or there are no more
    of them; else `ContentComparison.changes_nothing` needs a diff.
    """


class MergeSegment(NamedTuple):
    """Neighbouring rows of one origin: the old range, or the page of changes."""

    is_new: bool
    start: int
    end: int


class OpenRange:
    """An old range that changes fall into."""

    def __init__(self, index: int, rows: Rows) -> None:
        self.index = index
        self.rows = rows
        self.merged = 0
        """How many rows were compared with the changes."""
        self.fed = 0
        """How many rows went to the cutter. Rows wait until a change really changes something: perhaps none does."""
        self._paths: list[str] = []

    def paths(self) -> list[str]:
        if not self._paths:
            self._paths = ranges.paths_of(self.rows)
        return self._paths


class TreeRewrite:
    """One apply, for one thread."""

    def __init__(self, store: TreeStore, cut: CutRule, base_id: str, workers: Workers) -> None:
        self._store = store
        self._cut = cut
        self._base_id = base_id
        self._base = store.metarange(base_id)
        self._is_cut_so = self._base.cut_rule_label == cut.label
        self._workers = workers
        self._cutter = RangeCutter(cut)
        self._collector = AddedAddressCollector(workers)
        self._open: OpenRange | None = None
        self._passed = 0
        """How many old ranges were inherited or fed."""
        self._result: list[RangeRow | None] = []
        """The new tree's ranges; None: still being written."""
        self._writing: deque[tuple[int, PendingResult[RangeRow]]] = deque()
        """The ranges being written, with their place in the result."""
        self._touched: deque[int] = deque()
        """Old ranges that the rest of the page changes, and that are not being read yet."""
        self._reading: dict[int, PendingResult[Rows]] = {}
        self._old_by_hash: dict[str, RangeRow] = {}
        """The old ranges that were opened: a new range with the same content becomes the old one."""
        self._inserted = self._replaced = self._removed = self._unchanged = 0
        self._samples: list[tuple[StoredEntry, StoredEntry]] = []

    def run(self, pages: Iterable[ChangePage]) -> WrittenTree:
        try:
            for page in pages:
                self._apply_page(page)
            self._inherit_until(len(self._base.rows))
            self._write(self._cutter.finish())
            self._await_writes(0)
            rows = [row for row in self._result if row is not None]
            old = {row.id for row in self._base.rows}
            new = [row.id for row in rows if row.id not in old]
            listing = self._collector.finish(self._store, new)
            metarange = self._base_id
            if self._inserted + self._replaced + self._removed:
                cut = self._cut.label if self._is_cut_so or len(new) == len(rows) else ""
                tree = Metarange.from_rows(rows, cut)
                # in a worker, because the listing's job waits until a second one comes (`Workers`)
                metarange = self._workers.submit(self._store.put_metarange, tree, self._store.new_suffix()).result()
            added = "" if listing is None else listing.result()
        finally:
            self._collector.close()
        counts = self._inserted, self._replaced, self._removed, self._unchanged
        return WrittenTree(metarange, added, *counts, tuple(self._samples))

    # ---- the old ranges beside the changes

    def _apply_page(self, page: ChangePage) -> None:
        self._collector.add(page)
        parts = list(self._split_by_range(page))
        if len(parts) > 1:  # let requests overlap; a single range is read when it is needed
            self._touched.extend(owner for owner, _, _ in parts if owner < len(self._base.rows))
        for owner, start, end in parts:
            self._inherit_until(owner)
            self._merge_page(self._open_range(owner), page.slice(start, end))

    def _split_by_range(self, page: ChangePage) -> Iterator[tuple[int, int, int]]:
        """Split the page by the old ranges that it changes: (range, start, end)."""
        start, last = 0, len(self._base.rows) - 1
        while start < len(page.paths):
            owner = self._range_of(page.paths[start])
            end = bisect_right(page.paths, self._base.last_paths[owner], lo=start) if owner < last else len(page.paths)
            yield owner, start, end
            start = end

    def _range_of(self, path: str) -> int:
        """Return the old range that a change of this path belongs to; the number of ranges if it is after them all."""
        rows = self._base.rows
        at = self._base.find_range(path)
        if at == len(rows) and rows and not self._cut.is_full_at(rows[-1].last_path, rows[-1].rows):
            return at - 1
        return at

    def _read_range(self, index: int) -> Rows:
        job = self._reading.pop(index, None)
        while self._touched and len(self._reading) < 2 * self._workers.threads:
            ahead = self._touched.popleft()
            if ahead > index and ahead not in self._reading:
                self._reading[ahead] = self._workers.submit(self._store.range, self._base.rows[ahead].id)
        row = self._base.rows[index]
        self._old_by_hash[object_names.hash_of(row.id)] = row
        return self._store.range(row.id) if job is None else job.result()

    def _inherit_until(self, index: int) -> None:
        """Inherit or feed every old range before that one."""
        if self._open is not None and self._open.index < index:
            self._close_range(self._open)
        while self._passed < index:
            if self._cutter.is_between_ranges:
                self._result.extend(self._base.rows[self._passed : index])
                self._passed = index
            else:
                self._feed_old(self._read_range(self._passed), 0, self._base.rows[self._passed].rows)
                self._passed += 1

    def _open_range(self, index: int) -> OpenRange:
        if self._open is None:
            is_there = index < len(self._base.rows)
            self._open = OpenRange(index, self._read_range(index) if is_there else columns.empty_rows(ranges.LAYOUT))
        return self._open

    def _close_range(self, old: OpenRange) -> None:
        self._open = None
        if old.fed == 0 and self._cutter.is_between_ranges:
            return  # nothing changed in it, so `_inherit_until` inherits it
        self._feed_old(old.rows, old.fed, old.rows.num_rows)
        self._passed = old.index + 1

    # ---- rows

    def _merge_page(self, old: OpenRange, page: ChangePage) -> None:
        """Merge the changes with the rows of the old range up to the last change."""
        start = old.merged
        end, runs, changed = self._merge_segments(old, page)
        old.merged = end
        if not changed:
            return
        self._feed_old(old.rows, old.fed, start)
        old.fed = end
        if len(runs) <= RUNS_MAX:
            for run in runs:
                if run.is_new:
                    new = page.slice(run.start, run.end)
                    self._write(self._cutter.feed(NewRows(self._cut, new.rows, new.paths)))
                else:
                    self._feed_old(old.rows, run.start, run.end)
            return
        shift = old.rows.num_rows
        order: list[int] = []
        for run in runs:
            order.extend(range(run.start + shift * run.is_new, run.end + shift * run.is_new))
        rows = columns.take_rows(columns.concatenate([old.rows, page.rows]), order)
        self._write(self._cutter.feed(NewRows(self._cut, rows, ranges.paths_of(rows))))

    def _merge_segments(self, old: OpenRange, page: ChangePage) -> tuple[int, list[MergeSegment], int]:
        """Return (the old row that the changes reach, the merged rows, how many changes really change something)."""
        if old.merged == old.rows.num_rows and True not in page.deletion_flags:
            self._inserted += len(page.paths)
            return old.merged, [MergeSegment(True, 0, len(page.paths))], len(page.paths)
        places, matched = _find_places(old, page)
        identical = self._count_identical(old, page, places, matched)
        runs: list[MergeSegment] = []
        next_old = old.merged
        for change, (place, is_there) in enumerate(zip(places, matched, strict=True)):
            _add_segment(runs, False, next_old, place)
            next_old = place + is_there
            if not page.deletion_flags[change]:
                _add_segment(runs, True, change, change + 1)
        removals = sum(
            is_there and is_deletion for is_there, is_deletion in zip(matched, page.deletion_flags, strict=True)
        )
        replaced = sum(matched) - removals - identical
        inserted = len(places) - sum(matched) - sum(page.deletion_flags) + removals
        self._inserted += inserted
        self._replaced += replaced
        self._removed += removals
        self._unchanged += len(places) - inserted - replaced - removals
        return next_old, runs, inserted + replaced + removals

    def _count_identical(self, old: OpenRange, page: ChangePage, places: list[int], matched: list[bool]) -> int:
        """Count the changes that put the same entry again; of the others that replace one, keep samples."""
        both = [change for change, is_there in enumerate(matched) if is_there and not page.deletion_flags[change]]
        if not both:
            return 0
        new, old_rows = (
            columns.take_rows(page.rows, both),
            columns.take_rows(old.rows, [places[change] for change in both]),
        )
        equal = columns.compare_values(new, old_rows, ranges.COMPARED)
        if others := [at for at, same in enumerate(equal) if not same][: SAMPLES_MAX - len(self._samples)]:
            replaced, replacing = (ranges.entries_of(columns.take_rows(rows, others)) for rows in (old_rows, new))
            self._samples += zip(replaced, replacing, strict=True)
        return sum(equal)

    def _feed_old(self, rows: Rows, start: int, end: int) -> None:
        if start < end:
            self._write(self._cutter.feed(ExistingRows(self._cut, rows, start, end, is_cut_so=self._is_cut_so)))

    # ---- writing

    def _write(self, pieces: Iterable[RangeRows]) -> None:
        for piece in pieces:
            self._await_writes(2 * self._workers.threads)
            job = self._workers.submit(self._write_range, piece, self._store.new_suffix())
            self._writing.append((len(self._result), job))
            self._result.append(None)

    def _await_writes(self, pending: int) -> None:
        """Wait until only `pending` ranges are being written."""
        while len(self._writing) > pending:
            place, job = self._writing.popleft()
            self._result[place] = job.result()

    def _write_range(self, piece: RangeRows, suffix: str) -> RangeRow:
        """Write a range; runs in a worker."""
        rows = columns.concatenate(piece.parts)
        body = ranges.encode(rows)
        content_hash = ranges.hash_hex(body)
        if (old := self._old_by_hash.get(content_hash)) is not None:
            return old
        first, last = columns.text_at(rows, ranges.PATH, 0), columns.text_at(rows, ranges.PATH, piece.rows - 1)
        row = RangeRow(
            first,
            last,
            object_names.new_id(content_hash, suffix),
            piece.rows,
            columns.sum_column(rows, ranges.SIZE_BYTES),
        )
        self._store.put_range(row, body)
        return row


def _find_places(old: OpenRange, page: ChangePage) -> tuple[list[int], list[bool]]:
    """Return for each change the position of its path among the old rows, and whether it is there."""
    if len(page.paths) <= ranges.BISECTED_PATHS_MAX:
        places = [columns.find_position(old.rows, path) for path in page.paths]
        count = old.rows.num_rows
        return places, [
            at < count and columns.text_at(old.rows, ranges.PATH, at) == path
            for at, path in zip(places, page.paths, strict=True)
        ]
    paths = old.paths()
    places: list[int] = []
    at = old.merged
    for path in page.paths:
        at = bisect_left(paths, path, lo=at)
        places.append(at)
    return places, [at < len(paths) and paths[at] == path for at, path in zip(places, page.paths, strict=True)]


def _add_segment(runs: list[MergeSegment], is_new: bool, start: int, end: int) -> None:
    if start == end:
        return
    if runs and runs[-1].is_new is is_new and runs[-1].end == start:
        runs[-1] = MergeSegment(is_new, runs[-1].start, end)
    else:
        runs.append(MergeSegment(is_new, start, end))
