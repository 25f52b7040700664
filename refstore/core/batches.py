"""Batches of items that share a round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

BATCH_SIZE: Final = 1000
"""Keys enough that a round trip does not count, and few enough that a batch takes milliseconds."""


def split_batches(items: Iterable[T], size: int = BATCH_SIZE) -> Iterator[list[T]]:
    """Yield the items in lists of `size`; the last list may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def split_sized(items: Iterable[T], size_of: Callable[[T], int], *, size_max: int, items_max: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `items_max` items, and of at most this size if they are more than one."""
    batch: list[T] = []
    size = 0
    for item in items:
        size += size_of(item)
        if batch and (size > size_max or len(batch) >= items_max):
            yield batch
            batch, size = [], size_of(item)
        batch.append(item)
    if batch:
        yield batch
