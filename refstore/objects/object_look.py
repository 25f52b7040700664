"""Look at objects once more, just before they are deleted: which of them are still as they were listed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from refstore.objects.base import DeleteResult, ObjectPage

SPARSE_KEYS: Final = 20
"""A page of a listing that shows fewer of the objects takes longer than asking for each."""


class ObjectLook(NamedTuple):
    """What became of objects since they were listed."""

    unchanged: ObjectPage
    changed_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]

    def merge(self, deletion: DeleteResult) -> DeleteResult:
        """Return what a deletion of the unchanged ones confirmed, with what this look found of the others."""
        return deletion._replace(
            missing_keys=(*self.missing_keys, *deletion.missing_keys),
            changed_keys=(*self.changed_keys, *deletion.changed_keys),
        )


def look_at(
    objects: ObjectPage,
    list_after: Callable[[str], Iterator[ObjectPage]],
    head_page: Callable[[Sequence[str]], ObjectPage],
) -> ObjectLook:
    """Find the objects by a listing from the first to the last of them; one by one where that shows few. Raises what
    these calls raise: what nobody looked at is not among the results.

    `list_after` yields the pages of a listing strictly after a key; `head_page` returns what there is of some keys.
    """
    keys, found = sorted(objects.keys), _StoredRows()
    found.add(head_page(keys[:1]))
    at = 1
    if len(keys) > SPARSE_KEYS:
        for page in list_after(keys[0]):
            found.add(page)
            began, at = at, bisect_right(keys, page.keys[-1], at)
            if at == len(keys) or at - began < SPARSE_KEYS:
                break
        else:
            at = len(keys)  # the listing ended: what would come behind is not there
    if at < len(keys):
        found.add(head_page(keys[at:]))
    states = [found.compare(*row) for row in zip(*objects, strict=True)]
    return ObjectLook(
        objects.select([state is True for state in states]),
        tuple(key for key, state in zip(objects.keys, states, strict=True) if state is False),
        tuple(key for key, state in zip(objects.keys, states, strict=True) if state is None),
    )


class _StoredRows:
    """What the store has."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int, str]] = {}

    def add(self, page: ObjectPage) -> None:
        keys, *columns = page
        self._rows.update(zip(keys, zip(*columns, strict=True), strict=True))

    def compare(self, key: str, size_bytes: int, mtime_ms: int, etag: str) -> bool | None:
        """Return whether the object is as it was. None: it is not there."""
        row = self._rows.get(key)
        if row is None:
            return None
        if etag and etag == row[2]:
            return size_bytes == row[0] and is_same_time(mtime_ms, row[1], seconds=1)
        return size_bytes == row[0] and is_same_time(mtime_ms, row[1]) and not (etag and row[2])


def is_same_time(given_ms: int, found_ms: int, *, seconds: int = 0) -> bool:
    """Return whether two answers of a store name one time. Some answers have whole seconds only; `seconds`: by how many
    these may differ. With the same ETag it is one: of a writing that takes a moment `rclone serve s3` lists the end,
    and tells the beginning to who asks for the object.
    """
    return given_ms == found_ms or (
        abs(given_ms // 1000 - found_ms // 1000) <= seconds and (given_ms % 1000 == 0 or found_ms % 1000 == 0)
    )
