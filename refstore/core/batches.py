"""Batches of items that share a round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
Tuple = TypeVar("Tuple", bound=tuple[object, ...])

_new: Final = cast(
    "Callable[[type[Any], Iterable[object]], Any]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]  # of a tuple of anything
)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`; the last list may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def tuples_of(kind: type[Tuple], *columns: Iterable[object]) -> list[Tuple]:
    """Make a named tuple of each row of `columns`, which has a column for each field, without exception.

    In half the time that calling `kind` for each row takes, for bulk operations.
    """
    return list(map(_new, repeat(kind), zip(*columns, strict=True)))
