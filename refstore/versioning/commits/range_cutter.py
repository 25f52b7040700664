"""Cut a stream of rows into ranges, by the rule in `ranges.py`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.ranges import CutRule


class RangeRows(NamedTuple):
    """The rows of one range to write."""

    parts: list[Rows]
    rows: int


class RangeCutter:
    """Takes rows in path order and returns whole ranges; it holds less than one range."""

    def __init__(self, cut: CutRule) -> None:
        self._cut = cut
        self._parts: list[Rows] = []
        self._rows = 0

    @property
    def is_between_ranges(self) -> bool:
        """Whether an old range that starts here would be cut here again, so that it can be inherited."""
        return self._rows == 0

    def feed(self, rows: Rows, paths: Sequence[str]) -> Iterator[RangeRows]:
        """Add rows, and yield the ranges that they complete. `paths`: theirs. Consume it before the next call."""
        boundaries = self._cut.find_boundaries(paths)
        start, count = 0, rows.num_rows
        while start < count:
            # the range ends after the first boundary path that makes it long enough, or where it would get too long
            enough = start + max(0, self._cut.rows_min - self._rows - 1)
            most = start + self._cut.rows_max - self._rows
            place = bisect_left(boundaries, enough)
            boundary = boundaries[place] if place < len(boundaries) else count
            end = min(boundary + 1, most)
            closes = end <= count
            end = min(end, count)
            self._parts.append(rows.slice(start, end - start))
            self._rows += end - start
            if closes:
                yield self._take_range()
            start = end

    def finish(self) -> Iterator[RangeRows]:
        """Yield the remaining rows as the last range."""
        if self._rows:
            yield self._take_range()

    def _take_range(self) -> RangeRows:
        piece = RangeRows(self._parts, self._rows)
        self._parts, self._rows = [], 0
        return piece
