"""Sort more rows than memory holds: runs of sorted rows in a temporary file, merged while they are read again.

Memory: one batch of each run. The system's temporary directory takes what is beyond the first 16 MiB.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from refstore.errors import Unavailable
from refstore.versioning.commits import columns
from refstore.versioning.commits.columns import Layout, Rows, RowSpill


class SortedRuns:
    """Runs of rows, each sorted by key, each key once. It is a context manager."""

    def __init__(
        self, layout: Layout, merge: Callable[[Sequence[Rows]], Rows], on_read: Callable[[], None] = lambda: None
    ) -> None:
        """`merge` merges rows of several runs, in the order of the runs. `on_read` is called before a batch is read
        again; if it raises, the reading ends.
        """
        self._merge = merge
        self._on_read = on_read
        with temporary_space():
            self._spill = RowSpill(layout)
        self._runs: list[range] = []
        self.rows = 0

    def start_run(self) -> None:
        self._runs.append(range(self._spill.written, self._spill.written))

    def add(self, rows: Rows) -> None:
        """Add a batch to the run that was started last."""
        with temporary_space():
            self._spill.add(rows)
        self._runs[-1] = range(self._runs[-1].start, self._spill.written)
        self.rows += rows.num_rows

    def merge_runs(self) -> Iterator[Rows]:
        """Yield all rows, sorted by key, each key once; it may be called several times."""
        waiting = [iter(run) for run in self._runs if run]
        heads = [self._read(next(run)) for run in waiting]
        while len(heads) > 1:
            # up to the smallest end of the heads every row is at hand: all following rows are above it
            limit = min(columns.last_key(head) for head in heads)
            window: list[Rows] = []
            for at, head in enumerate(heads):
                end = columns.find_position(head, limit, behind=True)
                window.append(head.slice(0, end))
                heads[at] = head.slice(end)
            yield self._merge([part for part in window if part.num_rows])
            for at in reversed(range(len(heads))):
                if not heads[at].num_rows:
                    following = next(waiting[at], None)
                    if following is None:
                        del heads[at], waiting[at]
                    else:
                        heads[at] = self._read(following)
        if heads:
            yield heads[0]
            yield from map(self._read, waiting[0])

    def _read(self, number: int) -> Rows:
        self._on_read()
        with temporary_space():
            return self._spill.read(number)

    def close(self) -> None:
        self._spill.close()

    def __enter__(self) -> SortedRuns:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def temporary_space() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the temporary directory {tempfile.gettempdir()} cannot be used ({error}); free space in it or set "
            "TMPDIR, then make the same call again"
        ) from error
