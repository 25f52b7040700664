"""Read records, and leave out those that cannot be read: each stops only what depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from refstore.errors import CorruptRecord, RefstoreError

T = TypeVar("T")
OnCorrupt = Callable[[str, CorruptRecord], None]
"""Gets the name and the error of each record that cannot be read."""


def raise_error(name: str, error: RefstoreError) -> None:
    """Raise the error; then nothing is changed that was read with this record."""
    del name
    raise error


def readable(
    pairs: Iterable[tuple[str, bytes]], decode: Callable[[bytes], T], on_corrupt: OnCorrupt
) -> Iterator[tuple[str, bytes, T]]:
    """Yield the name, value and record of each pair that can be read."""
    for name, value in pairs:
        try:
            record = decode(value)
        except CorruptRecord as error:
            on_corrupt(name, error)
        else:
            yield name, value, record
