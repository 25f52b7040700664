"""One file of the corpus: who writes it, how, and which of its rows are to go."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from refstore_purge.formats.base import IdKind

ROWS: Final = 120
GROUP_ROWS: Final = 40
"""So that there are three row groups, of which the second has no row that goes."""
GONE: Final = (23, 37, 38, 84)
"""Rows that go, where the identifier is `guest`."""

_CATEGORIES: Final = re.compile("^(ordered )?dictionary( of integers)?$|identifier dictionary|ategor|Enum|ENUM|Int128")


@dataclass(frozen=True)
class Case:
    """A file, and a purge of it."""

    writer: str
    format: str
    what: str
    """What it tries, in one or two words: a type or an option."""
    write: Callable[[Path], None]
    """Writes it: the same bytes' meaning each time."""
    keys: Sequence[Any]
    """Of each row the value at the identifier, or all of them as a list."""
    wanted: tuple[Any, ...]
    """The ids whose rows go."""
    kind: IdKind = "string"
    identifier: str = "guest"
    map_part: str = "value"
    set_null: tuple[str, ...] = ()
    """Columns that a second purge of the file sets to null."""
    null_already: frozenset[int] = frozenset()
    """Rows whose columns of `set_null` are null to begin with."""
    is_compared: bool = True
    """Whether what readers read of a purged file can be compared."""
    is_text_id: bool = True
    """Whether the bytes of an id would be seen if they stood in the file."""

    @property
    def name(self) -> str:
        return f"{self.writer} {self.format}: {self.what}"

    @property
    def has_spare_values(self) -> bool:
        """Whether dictionaries of its row groups have values that none of their rows has: all of a category's. For what
        Arrow knows, those of Polars' Int128 do, too.
        """
        return _CATEGORIES.search(self.what) is not None

    @cached_property
    def gone(self) -> frozenset[int]:
        """The rows that go: found out here without the code that is tested."""
        wanted = frozenset(self.wanted)
        return frozenset(
            row
            for row, key in enumerate(self.keys)
            if (not wanted.isdisjoint(key) if isinstance(key, list) else key in wanted)
        )


def guest(row: int) -> str:
    """Return the id of a row, as it stands in no other row and nowhere else in a file."""
    return f"guest-{row:05}-{row * 7919 % 9973:04}"


def guests(rows: int = ROWS) -> list[str]:
    return [guest(row) for row in range(rows)]


WANTED: Final = tuple(guest(row) for row in GONE)


def spread(values: Sequence[Any], rows: int = ROWS) -> list[Any]:
    """Return as many values as there are rows: these again and again, with nulls among them."""
    return [None if row % 7 == 3 else values[row % len(values)] for row in range(rows)]


SPREAD_NULLS: Final = frozenset(row for row in GONE if row % 7 == 3)
"""Rows that go of which `spread` makes a null."""


def case_of_guests(
    writer: str, format_: str, write: Callable[..., None], what: str, make: Callable[[], Any], *,
    set_null: tuple[str, ...] = (), rows: int = ROWS, null_already: frozenset[int] = frozenset(), **options: Any,
) -> Case:  # fmt: skip
    """Return the case of a table whose identifier is `guest`; `write` takes the table's maker, a path and options."""
    return Case(
        writer, format_, what, partial(write, make, **options), guests(rows), WANTED, set_null=set_null,
        null_already=null_already,
    )  # fmt: skip
