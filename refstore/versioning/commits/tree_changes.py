"""Changes to apply to a tree: sorted pages of puts and deletions, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from refstore.errors import Invalid
from refstore.records.staging_records import StoredEntry, Tombstone, decode_staged
from refstore.versioning.commits import columns, ranges
from refstore.versioning.commits.columns import Rows

PAGE_ROWS: Final = 2048
"""Enough to make the cost of an Arrow call small against the rows it does; a few hundred KiB at once."""

# stands in the columns of a deletion and is never written
NOTHING: Final = StoredEntry("", 0, "", 0)  # type: ignore[arg-type]


class ChangePage(NamedTuple):
    """Consecutive changes, strictly increasing by path."""

    paths: list[str]
    rows: Rows
    """The entries that are put; the row of a deletion has only a path."""
    deletion_flags: list[bool]

    def slice(self, start: int, end: int) -> ChangePage:
        if start == 0 and end == len(self.paths):
            return self
        return ChangePage(self.paths[start:end], self.rows.slice(start, end - start), self.deletion_flags[start:end])


def page_entries(changes: Iterable[tuple[str, StoredEntry | None]], page_rows: int = PAGE_ROWS) -> Iterator[ChangePage]:
    """Page changes; None deletes. Raises Invalid if the changes are not sorted."""
    rest, last = iter(changes), ""
    while chunk := list(islice(rest, page_rows)):
        page = _page([path for path, _ in chunk], [entry for _, entry in chunk], last)
        yield page
        last = page.paths[-1]


def page_values(changes: Iterable[tuple[str, bytes]], page_rows: int = PAGE_ROWS) -> Iterator[ChangePage]:
    """Page encoded staging entries of a KV scan; a tombstone deletes. Raises Invalid, CorruptRecord."""
    rest, last = iter(changes), ""
    while chunk := list(islice(rest, page_rows)):
        records = [decode_staged(value) for _, value in chunk]
        entries = [None if type(record) is Tombstone else record for record in records]
        page = _page([path for path, _ in chunk], entries, last)  # type: ignore[arg-type]  # tombstones are out
        yield page
        last = page.paths[-1]


def _page(paths: list[str], entries: Sequence[StoredEntry | None], last: str) -> ChangePage:
    if None in entries:
        deleted = [entry is None for entry in entries]
        entries = [entry or NOTHING for entry in entries]
    else:
        deleted = [False] * len(paths)
    rows = ranges.rows_of(paths, entries)  # type: ignore[arg-type]  # None is out
    if not last < paths[0] or not columns.is_strictly_increasing(rows.column(ranges.PATH)):
        raise Invalid(
            f"the changes between {paths[0]!r} and {paths[-1]!r} are not sorted by path, each path once; sort them"
        )
    return ChangePage(paths, rows, deleted)
