"""Tables for people: rows are printed while they are read, as an answer may be larger than memory, or take long.

The first page says how wide the columns are. What is wider comes later and pushes what is right of it, in its own line only; nothing is
broken or cut, so that lines are for grep, and a terminal wraps what is too long for it.
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
"""After which rows are shown that have come, although there may be wider ones."""
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
    widths = [max(_width(text) for text in column) for column in zip(*([titles] if header else []), *cells, strict=True)]
    right = [all(_is_number(row.get(name)) for row in first) for name in columns]
    if header:
        sys.stdout.write(_bold(_line(titles, widths, right)))
    for line in cells:
        sys.stdout.write(_line(line, widths, right))
    sys.stdout.flush()
    for row in source:
        sys.stdout.write(_line(_cells(row, columns, known), widths, right))


def _page(source: Iterator[Row]) -> Iterator[Row]:
    """As many as are waited for before anything is shown: the first one, and what comes soon after it."""
    for row in source:
        yield row
        break
    until = monotonic() + _PAGE_SECONDS
    for number, row in enumerate(source, 2):
        yield row
        if number == _PAGE_ROWS or monotonic() > until:
            return


def _cells(row: Row, columns: list[str], known: set[str]) -> list[str]:
    """A row's columns; what it has beside those of the first page comes last."""
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
    """On a terminal, where some characters take two places."""
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
    """`value` as text that cannot act on a terminal: paths and messages may hold control characters."""
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
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
