"""Print tables for people, row by row, because an answer may be larger than memory, or take long.

The first page sets the widths of the columns. A wider value later shifts the rest of its own line only. On a terminal
tables fit its width as far as they can; their first and last columns are never cut. `--json` and `--output csv` are for
programs: they have every value in full.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Final, cast

from refstore.core.units import format_age, format_size
from refstore.core.visible_text import make_visible_line, own_stream

Row = dict[str, object]
Format = Callable[[object], str]

ID_CHARACTERS: Final = 12
"""Ids are shown by their beginnings, which commands take for the ids."""
CUT_WIDTH_MIN: Final = 12
_IDS: Final = frozenset({"commit", "head", "mark", "run", "baseline_mark"})
_ID: Final = re.compile(r"[0-9a-f]{64}|[0-9a-hjkmnp-tv-z]{26}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_GREEN: Final = ("ok", "active", "swept", "done", "goes on", "kept")
_YELLOW: Final = ("warning", "marked", "sweeping", "tagged", "begun", "dry run")
_RED: Final = ("error", "failed", "abandoned", "needs confirmation", "stopped", "dead", "damaged")
_COLOURS: Final[dict[str, int]] = {
    word: colour for colour, words in ((32, _GREEN), (33, _YELLOW), (31, _RED)) for word in words
}
"""The colours of states on a terminal: green, yellow, red."""
_TIMES: Final = frozenset({"mtime", "date", "created", "expires", "last_used"})

_PAGE_ROWS: Final = 1000
PAGE_SECONDS: Final = 0.1
"""How long to wait for more rows before the first page is printed, even if wider rows may come."""
_GAP: Final = "  "


def print_rows(
    rows: Iterable[Row], *, header: bool = True, now_ms: int | None = None, empty: str = "There is nothing to list."
) -> None:
    """Print rows as a table. `header`: False for the fields of one object, which are printed as they are. `now_ms`: the
    time that ages are counted from; None: now. `empty`: what to say, to standard error, where there is no row; '':
    nothing, for checks, whose answer that would be.
    """
    source = iter(rows)
    first = list(_page(source))
    if not first:
        sys.stdout.flush()
        if empty:
            print(empty, file=sys.stderr)
        return
    columns = list(dict.fromkeys(name for row in first for name in row))
    if not header:
        _print_page(first, columns, [_plain] * len(columns), titles=None)
        return
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    formats = [_format_of(name, [row.get(name) for row in first], now) for name in columns]
    columns, formats = _fitting(first, columns, formats)
    widths, right = _print_page(first, columns, formats, titles=[_title(name) for name in columns])
    known = set(columns)
    for row in source:
        own_stream(sys.stdout).write(_line(_cells(row, columns, known, formats), widths, right))


def _print_page(
    rows: list[Row], columns: list[str], formats: list[Format], *, titles: list[str] | None
) -> tuple[list[int], list[bool]]:
    """Print the first page; return the widths of its columns, and which of them stand to the right."""
    known = {name for row in rows for name in row}
    cells = [_cells(row, columns, known, formats) for row in rows]
    widths = [max(map(_width, column)) for column in zip(*([titles] if titles else []), *cells, strict=True)]
    right = [all(_is_number(row.get(name)) for row in rows) for name in columns]
    out = own_stream(sys.stdout)
    if titles:
        out.write(_bold(_line(titles, widths, right)))
    for line in cells:
        out.write(_line(line, widths, right))
    out.flush()
    return widths, right


def _fitting(rows: list[Row], columns: list[str], formats: list[Format]) -> tuple[list[str], list[Format]]:
    """Return the columns and formats with which the table fits the terminal, as far as it can.

    Columns that are empty go first; then texts between the first and the last column are cut. The first and the last
    column are never cut.
    """
    if not sys.stdout.isatty():
        return columns, formats  # what reads a pipe has room, and searches
    room = shutil.get_terminal_size((80, 24)).columns

    def widths() -> list[int]:
        return [
            max(_width(_title(name)), *(_width(of(row.get(name))) for row in rows))
            for name, of in zip(columns, formats, strict=True)
        ]

    def too_wide() -> int:
        return sum(widths()) + len(_GAP) * (len(columns) - 1) - room

    if too_wide() > 0:
        kept = [index for index, name in enumerate(columns) if any(visible_text(row.get(name)) for row in rows)]
        columns, formats = [columns[index] for index in kept], [formats[index] for index in kept]
    for index in sorted(range(1, len(columns) - 1), key=lambda index: -widths()[index]):
        over, width = too_wide(), widths()[index]
        if over > 0 and width > CUT_WIDTH_MIN and not all(_is_number(row.get(columns[index])) for row in rows):
            formats[index] = partial(_cut, formats[index], max(CUT_WIDTH_MIN, width - over))
    return columns, formats


def _cut(inner: Format, width: int, value: object) -> str:
    text = inner(value)
    return text if _width(text) <= width else f"{text[: width - 1]}…"


def _title(name: str) -> str:
    return {"size_bytes": "size"}.get(name, name.replace("_", " "))


def _format_of(name: str, values: list[object], now_ms: int) -> Format:
    """Return how a column's values are shown to people: sizes with units, times as ages, ids short."""
    known = [value for value in values if value is not None]
    if not known:
        return partial(_age, now_ms) if name in _TIMES else _plain
    if (name == "bytes" or name.endswith("_bytes")) and all(isinstance(value, int) for value in known):
        return _size
    if all(isinstance(value, str) and _TIME.fullmatch(value) for value in known):
        return partial(_age, now_ms)
    if name in _IDS and all(isinstance(value, str) and _ID.fullmatch(value) for value in known):
        return _short_id
    return _plain


def _plain(value: object) -> str:
    return visible_text(value)


def _size(value: object) -> str:
    return format_size(value) if isinstance(value, int) else visible_text(value)


def _short_id(value: object) -> str:
    return value[:ID_CHARACTERS] if isinstance(value, str) and _ID.fullmatch(value) else visible_text(value)


def _age(now_ms: int, value: object) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return visible_text(value)
    at_ms = int(datetime.fromisoformat(value).timestamp() * 1000)
    return f"{format_age(now_ms - at_ms)} ago" if at_ms <= now_ms else f"in {format_age(at_ms - now_ms)}"


def _page(source: Iterator[Row]) -> Iterator[Row]:
    """Yield the first page: the first row, and what comes soon after it."""
    for row in source:
        yield row
        break
    until = monotonic() + PAGE_SECONDS
    for number, row in enumerate(source, 2):
        yield row
        if number == _PAGE_ROWS or monotonic() > until:
            return


def _cells(row: Row, columns: list[str], known: set[str], formats: list[Format]) -> list[str]:
    """Return a row's cells; fields that the first page did not have come last."""
    cells = [of(row.get(name)) for name, of in zip(columns, formats, strict=True)]
    return cells if row.keys() <= known else cells + [visible_text(row[name]) for name in row if name not in known]


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = [
        " " * (width - _width(text)) + text if to_the_right else text + " " * (width - _width(text))
        for text, width, to_the_right in zip(cells, widths, right, strict=False)
    ]
    if _has_colours():
        padded = [_paint(text) for text in padded]
    return _GAP.join([*padded, *cells[len(padded) :]]).rstrip() + "\n"


def _width(text: str) -> int:
    """Return the width on a terminal, where some characters take two columns."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _bold(line: str) -> str:
    return f"\x1b[1m{line[:-1]}\x1b[0m\n" if _has_colours() else line


def _paint(cell: str) -> str:
    """Return a cell whose whole text is a state in that state's colour."""
    word = cell.strip()
    colour = _COLOURS.get(word)
    return cell.replace(word, f"\x1b[{colour}m{word}\x1b[0m") if colour else cell


def _has_colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def visible_text(value: object) -> str:
    """Return the value as text of one line that cannot control a terminal."""
    match value:
        case None:
            text = ""
        case str():
            text = value
        case bool():
            text = "yes" if value else "no"
        case dict():
            text = ", ".join(f"{key}={visible_text(inner)}" for key, inner in cast(dict[str, object], value).items())
        case list() | tuple():
            text = ", ".join(visible_text(inner) for inner in cast(list[object], value))
        case _:
            text = str(value)
    return make_visible_line(text)
