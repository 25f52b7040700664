"""What an import lists, on its way into a tree: rows that are put aside in a temporary file, and the changes that come of them.

Nothing is written to the namespace while a listing goes on, however long that takes: a range that nobody names yet is an orphan to the
offline job once it is older than the longest operation. So the whole listing is put aside first, and its ranges are written, and
committed, in one operation (`docs/decisions/0122-an-import-lists-first-and-writes-then.md`).

Memory: one batch of each run. The system's temporary directory takes some 150 bytes for each object beyond the first 16 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from refstore.commits import columns, ranges
from refstore.commits.changes import NOTHING, Page
from refstore.commits.columns import Rows, Spill
from refstore.commits.listings import temporary_space
from refstore.objects.base import ListedPage
from refstore.objects.foreign import TO_QUOTE, quoted

_BEHIND: Final = "\U0010ffff"
"""Sorts behind every path."""


def rows_of(page: ListedPage, *, cut: int, destination: str, root: str) -> Rows:
    """The entries of foreign objects: the path is `destination` and the key without its first `cut` characters, the address `root` and
    the whole key.

    The checksum is the store's ETag, or, where there is none, what tells one version of a file from another without reading it: its time
    and size.
    """
    keys = columns.texts(page.keys)
    sizes, mtimes = columns.integers(page.sizes_bytes), columns.integers(page.mtimes_ms)
    names = columns.texts([key[cut:] for key in page.keys]) if cut else keys
    checksums = columns.texts(page.etags) if any(page.etags) else columns.joined((mtimes, sizes), "-")
    nothing = columns.texts([""] * len(page.keys))
    told = {
        "path": columns.joined((destination, names)) if destination else names,
        "address": columns.joined((root, columns.mapped(keys, TO_QUOTE, quoted))),
        "size_bytes": sizes,
        "checksum": checksums,
        "mtime_ms": mtimes,
    }
    return columns.rows_from(ranges.LAYOUT, [told.get(name, nothing) for name, _ in ranges.LAYOUT.fields])


class Spool:
    """Runs of rows, each sorted by path, each path once; where two runs have a path, the later run's row counts. A context manager."""

    def __init__(self, on_read: Callable[[], None] = lambda: None) -> None:
        """`on_read` is called from time to time while the runs are read again; what it raises ends that."""
        self._on_read = on_read
        with temporary_space():
            self._spill = Spill(ranges.LAYOUT)
        self._runs: list[range] = []
        self.objects = 0

    def start_run(self) -> None:
        self._runs.append(range(self._spill.written, self._spill.written))

    def add(self, rows: Rows) -> None:
        """To the run that was started last."""
        with temporary_space():
            self._spill.add_rows(rows)
        self._runs[-1] = range(self._runs[-1].start, self._spill.written)
        self.objects += rows.num_rows

    def merged(self) -> Iterator[Rows]:
        """All of them, sorted by path, each path once. May be read several times."""
        waiting = [iter(run) for run in self._runs if run]
        heads = [self._rows(next(run)) for run in waiting]
        while len(heads) > 1:
            # up to the smallest of the heads' ends everything is at hand: whatever follows is above it
            limit = min(_last_path(head) for head in heads)
            window: list[Rows] = []
            for at, head in enumerate(heads):
                end = columns.position(head, limit, behind=True)
                window.append(head.slice(0, end))
                heads[at] = head.slice(end)
            yield columns.sorted_last_wins([part for part in window if part.num_rows])
            for at in reversed(range(len(heads))):
                if not heads[at].num_rows:
                    following = next(waiting[at], None)
                    if following is None:
                        del heads[at], waiting[at]
                    else:
                        heads[at] = self._rows(following)
        if heads:
            yield heads[0]
            yield from (self._rows(number) for number in waiting[0])

    def _rows(self, number: int) -> Rows:
        self._on_read()
        with temporary_space():
            return self._spill.rows(number)

    def close(self) -> None:
        self._spill.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def changes_of(put: Iterator[Rows], existing: Iterator[list[str]]) -> Iterator[Page]:
    """Put the rows, and delete what exists and is not put; both come in path order."""
    rows, there = next(put, None), next(existing, None)
    while rows is not None or there is not None:
        # up to the smaller end both are known
        limit = min(_last_path(rows) if rows is not None else _BEHIND, there[-1] if there is not None else _BEHIND)
        taken: Rows | None = None
        if rows is not None:
            end = columns.position(rows, limit, behind=True)
            taken, rows = rows.slice(0, end), rows.slice(end)
            if not rows.num_rows:
                rows = next(put, None)
        old: list[str] = []
        if there is not None:
            old = [path for path in there if path <= limit]
            there = there[len(old) :] or next(existing, None)
        page = _page(taken, old)
        if page.paths:
            yield page


def _page(put: Rows | None, old: Sequence[str]) -> Page:
    paths = ranges.paths_of(put) if put is not None else []
    there = set(paths)
    gone = [path for path in old if path not in there]
    if put is not None and not gone:
        return Page(paths, put, [False] * len(paths))
    deletions = ranges.rows_of(gone, [NOTHING] * len(gone))
    if put is None or not paths:
        return Page(gone, deletions, [True] * len(gone))
    every = [*paths, *gone]
    order = sorted(range(len(every)), key=every.__getitem__)
    rows = columns.pick(columns.combined([put, deletions]), order)
    return Page([every[at] for at in order], rows, [at >= len(paths) for at in order])


def _last_path(rows: Rows) -> str:
    return columns.text(rows, ranges.PATH, rows.num_rows - 1)
