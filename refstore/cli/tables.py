"""Print tables for people, row by row, because an answer may be larger than memory, or take long.

The first page sets the widths of the columns. A wider value later shifts the rest of its own line only. No value is
broken or cut, so lines suit grep, and a terminal wraps long ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from time import monotonic
from typing import Final, cast

Row = dict[str, object]

_PAGE_ROWS: Final = 1000
_PAGE_SECONDS: Final = 0.1
"""How long to wait for more rows before the first page is printed, even if wider rows may come."""
_GAP: Final = "  "


def print_rows(rows: Iterable[Row], *, header: bool = True) -> None:
    source = iter(rows)
    first = list(_page(source))
    if not first:
        return
    columns = list(dict.fromkeys(name for row in first for name in row))
    titles = [name.replace("_", " ") for name in columns]
    known = set(columns)
    cells = [_cells(row, columns, known) for row in first]
    widths = [
        max(_width(text) for text in column) for column in zip(*([titles] if header else []), *cells, strict=True)
    ]
    right = [all(_is_number(row.get(name)) for row in first) for name in columns]
    if header:
        sys.stdout.write(_bold(_line(titles, widths, right)))
    for line in cells:
        sys.stdout.write(_line(line, widths, right))
    sys.stdout.flush()
    for row in source:
        sys.stdout.write(_line(_cells(row, columns, known), widths, right))


def _page(source: Iterator[Row]) -> Iterator[Row]:
    """Yield the first page: the first row, and what comes soon after it."""
    for row in source:
        yield row
        break
    until = monotonic() + _PAGE_SECONDS
    for number, row in enumerate(source, 2):
        yield row
        if number == _PAGE_ROWS or monotonic() > until:
            return


def _cells(row: Row, columns: list[str], known: set[str]) -> list[str]:
    """Return a row's cells; fields that the first page did not have come last."""
    if row.keys() <= known:
        return [shown(row.get(name)) for name in columns]
    return [shown(row.get(name)) for name in chain(columns, (name for name in row if name not in known))]


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = [
        " " * (width - _width(text)) + text if to_the_right else text + " " * (width - _width(text))
        for text, width, to_the_right in zip(cells, widths, right, strict=False)
    ]
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
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return line if plain else f"\x1b[1m{line[:-1]}\x1b[0m\n"


def shown(value: object) -> str:
    """Return the value as text that cannot control a terminal, because paths and messages may hold control
    characters.
    """
    match value:
        case None:
            text = ""
        case str():
            text = value
        case bool():
            text = "yes" if value else "no"
        case dict():
            text = ", ".join(f"{key}={shown(inner)}" for key, inner in cast(dict[str, object], value).items())
        case list() | tuple():
            text = ", ".join(shown(inner) for inner in cast(list[object], value))
        case _:
            text = str(value)
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )
