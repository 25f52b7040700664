"""An object as a file: what a format reads of it is requested, and nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Final

from refstore.objects.base import ObjectStore

AHEAD_BYTES: Final = 1024 * 1024
"""How much more than a small read asks for is requested with it: the next one is often its neighbour."""
AHEAD_BYTES_MAX: Final = 8 * AHEAD_BYTES
"""How much more at most is requested of a file that is read in order."""
REQUEST_BYTES_MAX: Final = 32 * AHEAD_BYTES
"""How much of a large read is requested at a time, as memory holds it twice."""


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
        self.read_range = read_range
        """Requests bytes, and keeps nothing of them."""
        self._size = size_bytes
        self._ahead = ahead_bytes
        self._at: int = 0
        self._held = b""
        self._held_from: int = 0
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
            self._request(self._at, max(end, self._at + self._ahead))
        data = self._held[self._at - self._held_from : end - self._held_from]
        self._at += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # any buffer
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _request(self, start: int, end: int) -> None:
        """Hold the bytes from one place up to another one, or to the object's end."""
        self._held = b""  # not both at once
        self._held = b"".join(self.read_range(start, min(self._size, end))) if start < self._size else b""
        self._held_from = start
        self.requested_bytes += len(self._held)


class ReadAheadFile(StoredFile):
    """What an `io.BufferedReader` reads an object through: the longer it reads on in order, the more is requested.

    Of what is requested and then not read there is `ahead_bytes` at each place, or an eighth of what was read in order.
    """

    _in_order_bytes = 0

    def readall(self) -> bytes:
        data = super().readall()
        self._held, self._held_from = b"", self._at  # whoever has the rest of an object does not read it again
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        held_end = self._held_from + len(self._held)
        if not self._held_from <= self._at < held_end:
            self._in_order_bytes = self._in_order_bytes + len(self._held) if self._at == held_end else 0
            ahead = max(self._ahead, min(self._in_order_bytes // 8, AHEAD_BYTES_MAX))
            self._request(self._at, self._at + min(len(buffer), REQUEST_BYTES_MAX) + ahead)
        first = self._at - self._held_from
        data = memoryview(self._held)[first : first + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_object(store: ObjectStore, key: str, size_bytes: int, *, ahead_bytes: int = AHEAD_BYTES) -> StoredFile:
    """Return the object as a file. Nothing is requested yet. Reads raise CorruptObject where it has another size."""

    def read_range(start: int, end: int) -> Iterator[bytes]:
        return store.get(key, start=start, end=end, size_bytes=size_bytes)

    return StoredFile(read_range, size_bytes, ahead_bytes=ahead_bytes, is_remote=store.is_remote)
