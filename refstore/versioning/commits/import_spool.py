"""The objects that an import listed, on their way into a tree: spooled rows, and the changes made of them.

Nothing is written to the namespace while a listing goes on, however long that takes: a range that nobody names yet is
an orphan to the offline job once it is older than the longest operation. So the whole listing is spooled first, and
its ranges are written, and committed, in one operation
(`docs/decisions/0122-an-import-lists-first-and-writes-afterwards.md`).

Memory: one batch of each run. The system's temporary directory takes some 150 bytes for each object beyond the first 16
MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from refstore.objects.base import ObjectPage
from refstore.objects.foreign_objects import TO_QUOTE, quote_path
from refstore.records import keys
from refstore.versioning.commits import columns, ranges
from refstore.versioning.commits.added_addresses import temporary_space
from refstore.versioning.commits.columns import ColumnSpill, Rows
from refstore.versioning.commits.tree_changes import NOTHING, ChangePage


def rows_of(page: ObjectPage, *, cut: int, destination: str, root: str) -> Rows:
    """Make entries of foreign objects: the path is `destination` and the key without its first `cut` characters.

    The address is `root` and the whole key. The checksum is the store's ETag. Where there is none it is time and size,
    which tell one version of a file from another without reading it.
    """
    object_keys = columns.text_column(page.keys)
    sizes, mtimes = columns.integer_column(page.sizes_bytes), columns.integer_column(page.mtimes_ms)
    names = columns.text_column([key[cut:] for key in page.keys]) if cut else object_keys
    checksums = columns.text_column(page.etags) if any(page.etags) else columns.join_columns((mtimes, sizes), "-")
    nothing = columns.text_column([""] * len(page.keys))
    values = {
        "path": columns.join_columns((destination, names)) if destination else names,
        "address": columns.join_columns((root, columns.map_matches(object_keys, TO_QUOTE, quote_path))),
        "size_bytes": sizes,
        "checksum": checksums,
        "mtime_ms": mtimes,
    }
    return columns.rows_of_columns(ranges.LAYOUT, [values.get(name, nothing) for name, _ in ranges.LAYOUT.fields])


class ImportSpool:
    """Runs of rows in a temporary file, each sorted by path, each path once; a later run's row wins.

    It is a context manager.
    """

    def __init__(self, on_read: Callable[[], None] = lambda: None) -> None:
        """`on_read` is called from time to time while the runs are read again; if it raises, the reading ends."""
        self._on_read = on_read
        with temporary_space():
            self._spill = ColumnSpill(ranges.LAYOUT)
        self._runs: list[range] = []
        self.objects = 0

    def start_run(self) -> None:
        self._runs.append(range(self._spill.written, self._spill.written))

    def add(self, rows: Rows) -> None:
        """Add rows to the run that was started last."""
        with temporary_space():
            self._spill.add_rows(rows)
        self._runs[-1] = range(self._runs[-1].start, self._spill.written)
        self.objects += rows.num_rows

    def merge_runs(self) -> Iterator[Rows]:
        """Yield all rows, sorted by path, each path once; it may be called several times."""
        waiting = [iter(run) for run in self._runs if run]
        heads = [self._read_rows(next(run)) for run in waiting]
        while len(heads) > 1:
            # up to the smallest end of the heads every row is at hand: all following rows are above it
            limit = min(_last_path(head) for head in heads)
            window: list[Rows] = []
            for at, head in enumerate(heads):
                end = columns.find_position(head, limit, behind=True)
                window.append(head.slice(0, end))
                heads[at] = head.slice(end)
            yield columns.merge_sorted([part for part in window if part.num_rows])
            for at in reversed(range(len(heads))):
                if not heads[at].num_rows:
                    following = next(waiting[at], None)
                    if following is None:
                        del heads[at], waiting[at]
                    else:
                        heads[at] = self._read_rows(following)
        if heads:
            yield heads[0]
            yield from (self._read_rows(number) for number in waiting[0])

    def _read_rows(self, number: int) -> Rows:
        self._on_read()
        with temporary_space():
            return self._spill.read_rows(number)

    def close(self) -> None:
        self._spill.close()

    def __enter__(self) -> ImportSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def replacement_changes(new_pages: Iterator[Rows], existing: Iterator[list[str]]) -> Iterator[ChangePage]:
    """Yield changes that put the rows, and delete existing paths that are not put; both come in path order."""
    rows, old_paths = next(new_pages, None), next(existing, None)
    while rows is not None or old_paths is not None:
        # up to the smaller end both are complete
        limit = min(
            _last_path(rows) if rows is not None else keys.LAST_CODE_POINT,
            old_paths[-1] if old_paths is not None else keys.LAST_CODE_POINT,
        )
        new_rows: Rows | None = None
        if rows is not None:
            end = columns.find_position(rows, limit, behind=True)
            new_rows, rows = rows.slice(0, end), rows.slice(end)
            if not rows.num_rows:
                rows = next(new_pages, None)
        old: list[str] = []
        if old_paths is not None:
            old = [path for path in old_paths if path <= limit]
            old_paths = old_paths[len(old) :] or next(existing, None)
        page = _page(new_rows, old)
        if page.paths:
            yield page


def _page(new_rows: Rows | None, old: Sequence[str]) -> ChangePage:
    paths = ranges.paths_of(new_rows) if new_rows is not None else []
    new_paths = set(paths)
    removed_paths = [path for path in old if path not in new_paths]
    if new_rows is not None and not removed_paths:
        return ChangePage(paths, new_rows, [False] * len(paths))
    deletions = ranges.rows_of(removed_paths, [NOTHING] * len(removed_paths))
    if new_rows is None or not paths:
        return ChangePage(removed_paths, deletions, [True] * len(removed_paths))
    every = [*paths, *removed_paths]
    order = sorted(range(len(every)), key=every.__getitem__)
    rows = columns.take_rows(columns.concatenate([new_rows, deletions]), order)
    return ChangePage([every[at] for at in order], rows, [at >= len(paths) for at in order])


def _last_path(rows: Rows) -> str:
    return columns.text_at(rows, ranges.PATH, rows.num_rows - 1)
