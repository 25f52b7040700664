"""Cut a stream of rows into ranges, by the rule in `ranges.py`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from refstore.versioning.commits import columns
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.ranges import PATH, CutRule


class RowRun(Protocol):
    """Rows in order, and the positions of the boundary paths among them."""

    @property
    def rows(self) -> Rows: ...

    def next_boundary(self, at: int) -> int:
        """Return the place of the first boundary path at or after `at`; the number of rows if there is none."""
        ...


class NewRows:
    """New rows, whose paths must all be hashed."""

    def __init__(self, cut: CutRule, rows: Rows, paths: Sequence[str]) -> None:
        self.rows = rows
        self._boundaries = cut.find_boundaries(paths)

    def next_boundary(self, at: int) -> int:
        place = bisect_left(self._boundaries, at)
        return self._boundaries[place] if place < len(self._boundaries) else self.rows.num_rows


class ExistingRows:
    """The rows [start, end) of a range that was cut by the same rule.

    A boundary path after its first `rows_min` rows would have ended it, so only the rows before and the last row need
    to be hashed, and mostly not even these.
    """

    def __init__(self, cut: CutRule, whole: Rows, start: int, end: int, *, is_cut_so: bool) -> None:
        self.rows = whole.slice(start, end - start)
        self._cut = cut
        self._clear_start = max(0, cut.rows_min - 1 - start)
        self._clear_end = (
            max(self._clear_start, min(whole.num_rows - 1, end) - start) if is_cut_so else self._clear_start
        )

    def next_boundary(self, at: int) -> int:
        count = self.rows.num_rows
        for place in chain(range(at, min(self._clear_start, count)), range(max(at, self._clear_end), count)):
            if self._cut.is_boundary(columns.text_at(self.rows, PATH, place)):
                return place
        return count


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

    def feed(self, row_run: RowRun) -> Iterator[RangeRows]:
        """Add rows, and yield the ranges that they complete. Consume it before the next call."""
        start, count = 0, row_run.rows.num_rows
        while start < count:
            # the range ends after the first boundary path that makes it long enough, or where it would get too long
            enough = start + max(0, self._cut.rows_min - self._rows - 1)
            most = start + self._cut.rows_max - self._rows
            boundary = row_run.next_boundary(enough) if enough < min(count, most) else count
            end = min(boundary + 1, most)
            closes = end <= count
            end = min(end, count)
            self._parts.append(row_run.rows.slice(start, end - start))
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
