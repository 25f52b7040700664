"""Read many small objects at the same time, because each is a request to the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from refstore.core.batches import split_batches
from refstore.errors import ObjectNotFound
from refstore.objects.base import ObjectStore

READERS: Final = 16

SEQUENTIAL_READS_MAX: Final = 4
"""So many objects are read one after another: threads would take longer."""


def read_many(store: ObjectStore, keys: Sequence[str], *, end: int | None = None) -> Iterator[tuple[str, bytes | None]]:
    """Yield each key with its object's bytes (up to `end`), in order; None: it is not there. At most `READERS` objects
    are held in memory. Raises ObjectsUnavailable.
    """

    def read(key: str) -> bytes | None:
        try:
            return b"".join(store.get(key, end=end))
        except ObjectNotFound:
            return None

    if len(keys) <= SEQUENTIAL_READS_MAX:
        yield from ((key, read(key)) for key in keys)
        return
    with ThreadPoolExecutor(min(READERS, len(keys)), thread_name_prefix="refstore-read-many") as readers:
        for some in split_batches(keys, READERS):
            yield from zip(some, readers.map(read, some), strict=True)
