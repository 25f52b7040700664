"""The objects that an import listed, on their way into a tree: rows, and the changes made of them.

Nothing is written to the namespace while a listing goes on, however long that takes: a range that nobody names yet is
an orphan to the offline job once it is older than the longest operation. So the whole listing is spooled first, and
its ranges are written, and committed, in one operation
(`docs/decisions/0122-an-import-lists-first-and-writes-afterwards.md`). An object takes some 150 bytes of the spool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from refstore.objects.base import ObjectPage
from refstore.objects.foreign_objects import TO_QUOTE, quote_path
from refstore.records import keys
from refstore.versioning.commits import columns, ranges
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.sorted_runs import SortedRuns
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


def new_spool(on_read: Callable[[], None]) -> SortedRuns:
    """Return a spool for such rows, sorted by path; of rows with one path that of the later run counts. `on_read`: see
    `SortedRuns`.
    """
    return SortedRuns(ranges.LAYOUT, columns.merge_sorted, on_read)


def replacement_changes(new_pages: Iterator[Rows], existing: Iterator[list[str]]) -> Iterator[ChangePage]:
    """Yield changes that put the rows, and delete existing paths that are not put; both come in path order."""
    rows, old_paths = next(new_pages, None), next(existing, None)
    while rows is not None or old_paths is not None:
        # up to the smaller end both are complete
        limit = min(
            columns.last_key(rows) if rows is not None else keys.LAST_CODE_POINT,
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
