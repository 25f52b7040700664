"""Applying changes to a tree: only the ranges that change, and what the cuts need to meet the old ones again, are rewritten.

The old ranges are walked in order beside the changes. A range that no change falls into is inherited, if the rows
before it ended in a cut. Otherwise its rows go to the cutter, the changes among them, in whole stretches; once the cutter ends a
range where an old one ended, inheritance goes on. As the cuts are a function of the rows, the result is cut as if it had been
written from nothing.

Memory, whatever the size of the tree or of the changes: two pages of changes, and per thread two ranges being read and two
being written; besides, some 300 bytes per range of the old and the new tree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from refstore.commits import columns, names, ranges
from refstore.commits.changes import Page
from refstore.commits.columns import Rows
from refstore.commits.cutting import Cutter, Fresh, Old, Piece
from refstore.commits.listings import Collector
from refstore.commits.metaranges import Metarange, RangeRow
from refstore.commits.ranges import Cut
from refstore.commits.store import TreeStore
from refstore.commits.workers import Job, Workers

RUNS_MAX: Final = 64
"""Up to so many alternations of old and new rows the cutter gets slices of both; beyond, one copy is cheaper."""


class Written(NamedTuple):
    """What an apply came to."""

    metarange: str
    """The new tree; the base itself, by its own id, if nothing changed."""
    added: str
    """The listing of the own addresses among all that was put, what was there already included; '': none."""
    inserted: int
    replaced: int
    removed: int
    unchanged: int
    """Puts of what was there already, and deletions of what was not."""
    ranges_written: int
    ranges_inherited: int
    alike: int = 0
    """So many of those replaced were uploads of what was there (`ranges.alike`): the tree has the new address."""

    @property
    def changed(self) -> int:
        """0: whoever reads the new tree finds what is in the base."""
        return self.inserted + self.replaced - self.alike + self.removed


class Run(NamedTuple):
    """Neighbouring rows of one origin: the old range, or the page of changes."""

    is_new: bool
    start: int
    end: int


class Open:
    """An old range that changes fall into."""

    def __init__(self, index: int, rows: Rows) -> None:
        self.index = index
        self.rows = rows
        self.merged = 0
        """So many rows have been compared with the changes."""
        self.fed = 0
        """So many have gone to the cutter. Rows are held back until something really changes: perhaps nothing does."""
        self._paths: list[str] = []

    def paths(self) -> list[str]:
        if not self._paths:
            self._paths = ranges.paths_of(self.rows)
        return self._paths


class Apply:
    """One run. Not for use by several threads."""

    def __init__(self, store: TreeStore, cut: Cut, base_id: str, workers: Workers) -> None:
        self._store = store
        self._cut = cut
        self._base_id = base_id
        self._base = store.metarange(base_id)
        self._is_cut_so = self._base.cut == cut.label
        self._workers = workers
        self._cutter = Cutter(cut)
        self._collector = Collector(workers)
        self._open: Open | None = None
        self._passed = 0
        """So many of the old ranges are inherited or fed."""
        self._result: list[RangeRow | None] = []
        """The new tree's ranges; None: still being written."""
        self._writing: deque[tuple[int, Job[RangeRow]]] = deque()
        """These, with their place in the result."""
        self._touched: deque[int] = deque()
        """Old ranges that the rest of the page falls into and that are not being read yet."""
        self._reading: dict[int, Job[Rows]] = {}
        self._old_by_hash: dict[str, RangeRow] = {}
        """The old ranges that were opened: one that comes out as it was is inherited after all."""
        self._inserted = self._replaced = self._removed = self._unchanged = self._alike = 0

    def run(self, pages: Iterable[Page]) -> Written:
        try:
            for page in pages:
                self._apply(page)
            self._pass(len(self._base.rows))
            self._write(self._cutter.finish())
            listing = self._collector.finish(self._store)
            self._await_writes(0)
            added = "" if listing is None else listing.result()
        finally:
            self._collector.close()
        rows = [row for row in self._result if row is not None]
        old = {row.id for row in self._base.rows}
        inherited = sum(row.id in old for row in rows)
        metarange = self._base_id
        if self._inserted + self._replaced + self._removed:
            cut = self._cut.label if self._is_cut_so or not inherited else ""
            metarange = self._store.put_metarange(Metarange.of(rows, cut))
        counts = self._inserted, self._replaced, self._removed, self._unchanged
        return Written(metarange, added, *counts, len(rows) - inherited, inherited, self._alike)

    # ---- the old ranges beside the changes

    def _apply(self, page: Page) -> None:
        self._collector.add(page)
        parts = list(self._parts(page))
        if len(parts) > 1:  # let requests overlap; a single range is read when it is needed
            self._touched.extend(owner for owner, _, _ in parts if owner < len(self._base.rows))
        for owner, start, end in parts:
            self._pass(owner)
            self._merge(self._opened(owner), page.part(start, end))

    def _parts(self, page: Page) -> Iterator[tuple[int, int, int]]:
        """The page by the old ranges that it falls into: (range, start, end)."""
        start, last = 0, len(self._base.rows) - 1
        while start < len(page.paths):
            owner = self._owner(page.paths[start])
            end = bisect_right(page.paths, self._base.last_paths[owner], lo=start) if owner < last else len(page.paths)
            yield owner, start, end
            start = end

    def _owner(self, path: str) -> int:
        """The old range that a change of this path falls into; the number of ranges: none, it comes behind them all."""
        rows = self._base.rows
        at = self._base.at_or_behind(path)
        if at == len(rows) and rows and not self._cut.closes(rows[-1].last_path, rows[-1].rows):
            return at - 1
        return at

    def _read(self, index: int) -> Rows:
        job = self._reading.pop(index, None)
        while self._touched and len(self._reading) < 2 * self._workers.threads:
            ahead = self._touched.popleft()
            if ahead > index and ahead not in self._reading:
                self._reading[ahead] = self._workers.submit(self._store.range, self._base.rows[ahead].id)
        row = self._base.rows[index]
        self._old_by_hash[names.hash_of(row.id)] = row
        return self._store.range(row.id) if job is None else job.result()

    def _pass(self, index: int) -> None:
        """Be done with every old range before that one."""
        if self._open is not None and self._open.index < index:
            self._close(self._open)
        while self._passed < index:
            if self._cutter.is_between_ranges:
                self._result.extend(self._base.rows[self._passed : index])
                self._passed = index
            else:
                self._feed_old(self._read(self._passed), 0, self._base.rows[self._passed].rows)
                self._passed += 1

    def _opened(self, index: int) -> Open:
        if self._open is None:
            is_there = index < len(self._base.rows)
            self._open = Open(index, self._read(index) if is_there else columns.empty(ranges.LAYOUT))
        return self._open

    def _close(self, old: Open) -> None:
        self._open = None
        if old.fed == 0 and self._cutter.is_between_ranges:
            return  # nothing changed in it: `_pass` inherits it
        self._feed_old(old.rows, old.fed, old.rows.num_rows)
        self._passed = old.index + 1

    # ---- rows

    def _merge(self, old: Open, page: Page) -> None:
        """Merge the changes with the rows of the old range up to the last change."""
        start = old.merged
        end, runs, changed = self._runs(old, page)
        old.merged = end
        if not changed:
            return
        self._feed_old(old.rows, old.fed, start)
        old.fed = end
        if len(runs) <= RUNS_MAX:
            for run in runs:
                if run.is_new:
                    new = page.part(run.start, run.end)
                    self._write(self._cutter.feed(Fresh(self._cut, new.rows, new.paths)))
                else:
                    self._feed_old(old.rows, run.start, run.end)
            return
        shift = old.rows.num_rows
        order: list[int] = []
        for run in runs:
            order.extend(range(run.start + shift * run.is_new, run.end + shift * run.is_new))
        rows = columns.pick(columns.combined([old.rows, page.rows]), order)
        self._write(self._cutter.feed(Fresh(self._cut, rows, ranges.paths_of(rows))))

    def _runs(self, old: Open, page: Page) -> tuple[int, list[Run], int]:
        """(up to which old row the changes reach, the rows that come of it, how many changes really change something)."""
        if old.merged == old.rows.num_rows and True not in page.deleted:
            self._inserted += len(page.paths)
            return old.merged, [Run(True, 0, len(page.paths))], len(page.paths)
        places, matched = _places(old, page)
        identical, alike = _count_identical(old, page, places, matched)
        self._alike += alike
        runs: list[Run] = []
        kept = old.merged
        for change, (place, is_there) in enumerate(zip(places, matched, strict=True)):
            _extend(runs, False, kept, place)
            kept = place + is_there
            if not page.deleted[change]:
                _extend(runs, True, change, change + 1)
        removed = sum(is_there and gone for is_there, gone in zip(matched, page.deleted, strict=True))
        replaced = sum(matched) - removed - identical
        inserted = len(places) - sum(matched) - sum(page.deleted) + removed
        self._inserted += inserted
        self._replaced += replaced
        self._removed += removed
        self._unchanged += len(places) - inserted - replaced - removed
        return kept, runs, inserted + replaced + removed

    def _feed_old(self, rows: Rows, start: int, end: int) -> None:
        if start < end:
            self._write(self._cutter.feed(Old(self._cut, rows, start, end, is_cut_so=self._is_cut_so)))

    # ---- writing

    def _write(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._await_writes(2 * self._workers.threads)
            job = self._workers.submit(self._write_range, piece, self._store.suffix())
            self._writing.append((len(self._result), job))
            self._result.append(None)

    def _await_writes(self, pending: int) -> None:
        """Until so many are left."""
        while len(self._writing) > pending:
            place, job = self._writing.popleft()
            self._result[place] = job.result()

    def _write_range(self, piece: Piece, suffix: str) -> RangeRow:
        """In a worker."""
        rows = columns.combined(piece.parts)
        body = ranges.encode(rows)
        content_hash = ranges.hash_hex(body)
        if (old := self._old_by_hash.get(content_hash)) is not None:
            return old
        first, last = columns.text(rows, ranges.PATH, 0), columns.text(rows, ranges.PATH, piece.rows - 1)
        row = RangeRow(first, last, names.new_id(content_hash, suffix), piece.rows, columns.total(rows, ranges.SIZE_BYTES))
        self._store.put_range(row, body)
        return row


def _places(old: Open, page: Page) -> tuple[list[int], list[bool]]:
    """Per change, where among the old rows its path is or would be, and whether it is there."""
    if len(page.paths) <= ranges.FEW:
        places = [columns.position(old.rows, path) for path in page.paths]
        count = old.rows.num_rows
        return places, [at < count and columns.text(old.rows, ranges.PATH, at) == path for at, path in zip(places, page.paths, strict=True)]
    paths = old.paths()
    places: list[int] = []
    at = old.merged
    for path in page.paths:
        at = bisect_left(paths, path, lo=at)
        places.append(at)
    return places, [at < len(paths) and paths[at] == path for at, path in zip(places, page.paths, strict=True)]


def _count_identical(old: Open, page: Page, places: list[int], matched: list[bool]) -> tuple[int, int]:
    """How many changes put what is there already, and how many more an upload of the same content."""
    both = [change for change, is_there in enumerate(matched) if is_there and not page.deleted[change]]
    if not both:
        return 0, 0
    new, there = columns.pick(page.rows, both), columns.pick(old.rows, [places[change] for change in both])
    equal = columns.equal_values(new, there, ranges.COMPARED)
    others = [at for at, same in enumerate(equal) if not same]
    return sum(equal), ranges.count_alike(columns.pick(new, others), columns.pick(there, others)) if others else 0


def _extend(runs: list[Run], is_new: bool, start: int, end: int) -> None:
    if start == end:
        return
    if runs and runs[-1].is_new is is_new and runs[-1].end == start:
        runs[-1] = Run(is_new, runs[-1].start, end)
    else:
        runs.append(Run(is_new, start, end))
