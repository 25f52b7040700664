"""Lists of items that share a round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def split_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`; the last list may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
