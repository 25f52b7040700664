"""An object of a store as a file: what a format reads of it is requested, and nothing else."""

from __future__ import annotations

import io
from typing import Final

from refstore.objects.base import ObjectStore

AHEAD_BYTES: Final = 1024 * 1024
"""How much more than a small read asks for is requested with it: the next one is often its neighbour."""
BUFFER_BYTES: Final = 1024 * 1024
"""How much a format reads of a column at once: memory that is used again costs less than fresh memory."""
REMOTE_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""The same of a store over a network, where a request costs as much as reading megabytes."""


class StoreFile(io.RawIOBase):
    """Reads one object. Counts what it requested."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int, *, ahead_bytes: int = AHEAD_BYTES) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = size_bytes
        self._ahead = ahead_bytes
        self._at = 0
        self._held = b""
        self._held_from = 0
        self.requested_bytes = 0

    @property
    def buffer_bytes(self) -> int:
        return BUFFER_BYTES if self._store.url.startswith(("file:", "memory:")) else REMOTE_BUFFER_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readall(self) -> bytes:
        return self.read(self._size - self._at)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return as many bytes as are asked for, up to the object's end."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        held_end = self._held_from + len(self._held)
        if not self._held_from <= self._at <= end <= held_end:
            until = min(self._size, max(end, self._at + self._ahead))
            self._held = b"".join(self._store.get(self._key, start=self._at, end=until))
            self._held_from = self._at
            self.requested_bytes += len(self._held)
        data = self._held[self._at - self._held_from : end - self._held_from]
        self._at += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # any buffer
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def buffer_bytes_of(source: object) -> int:
    """Return how much of a column is read at once from an object, or from any other file."""
    return source.buffer_bytes if isinstance(source, StoreFile) else BUFFER_BYTES
