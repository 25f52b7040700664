"""An object as a file: what a format reads of it is requested, and nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Final

from refstore.objects.base import ObjectStore

AHEAD_BYTES: Final = 1024 * 1024
"""How much more than a small read asks for is requested with it: the next one is often its neighbour."""


class StoredFile(io.RawIOBase):
    """Reads one object, and keeps what it requested last. Counts what it requested."""

    def __init__(
        self,
        read_range: Callable[[int, int], Iterator[bytes]],
        size_bytes: int,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        is_remote: bool = True,
    ) -> None:
        """`read_range` returns the bytes from one place up to another one."""
        super().__init__()
        self._read_range = read_range
        self._size = size_bytes
        self._ahead = ahead_bytes
        self._at = 0
        self._held = b""
        self._held_from = 0
        self.requested_bytes = 0
        self.is_remote = is_remote

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
            self._held = b"".join(self._read_range(self._at, until))
            self._held_from = self._at
            self.requested_bytes += len(self._held)
        data = self._held[self._at - self._held_from : end - self._held_from]
        self._at += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # any buffer
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_object(store: ObjectStore, key: str, size_bytes: int, *, ahead_bytes: int = AHEAD_BYTES) -> StoredFile:
    """Return the object as a file. Nothing is requested yet. Reads raise CorruptObject where it has another size."""

    def read_range(start: int, end: int) -> Iterator[bytes]:
        return store.get(key, start=start, end=end, size_bytes=size_bytes)

    return StoredFile(read_range, size_bytes, ahead_bytes=ahead_bytes, is_remote=store.is_remote)
