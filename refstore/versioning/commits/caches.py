"""Bounded, thread-safe caches of immutable values, so that nothing in them is ever stale."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from refstore.versioning.commits.columns import Rows
    from refstore.versioning.commits.metaranges import Metarange

T = TypeVar("T")

RANGES_CACHE_BYTES: Final = 64 << 20
"""About 300,000 decoded entries."""
METARANGES_CACHE_BYTES: Final = 32 << 20
"""About 100,000 range rows: trees of 100 million entries together."""


class Cache(Generic[T]):
    """Keeps the values used last, as long as their weights together stay under `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._values: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._held_bytes = 0

    def get(self, key: str) -> T | None:
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: str, value: T, weight_bytes: int) -> None:
        if weight_bytes > self._bytes_max:
            return  # it would evict everything else, and itself
        with self._lock:
            old = self._values.pop(key, None)
            if old is not None:
                self._held_bytes -= old[1]
            self._values[key] = (value, weight_bytes)
            self._held_bytes += weight_bytes
            while self._held_bytes > self._bytes_max:
                _, (_, freed_bytes) = self._values.popitem(last=False)
                self._held_bytes -= freed_bytes


class Caches:
    """Decoded ranges and metaranges of any number of repositories; their ids are unique across all of them."""

    def __init__(self, ranges_bytes: int = RANGES_CACHE_BYTES, metaranges_bytes: int = METARANGES_CACHE_BYTES) -> None:
        self.ranges: Cache[Rows] = Cache(ranges_bytes)
        self.metaranges: Cache[Metarange] = Cache(metaranges_bytes)
