"""Stream an object's bytes from its store to a client, chunk by chunk, in threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from refstore.context import Context
from refstore.core.ids import is_own
from refstore.errors import Gone, ObjectNotFound
from refstore.objects.base import CHUNK_BYTES
from refstore.operations.read import open_content
from refstore.records.staging_records import StoredEntry
from refstore_http.headers import ByteRange
from refstore_http.memory_budget import held_of
from refstore_http.service import Service

R = TypeVar("R")


def stream_object(
    service: Service,
    reader: ChunkReader,
    fields: dict[str, str],
    part: ByteRange | None,
    size_bytes: int,
) -> Response:
    """Stream the part, or the whole object, as it is read. If reading fails, the connection ends early."""
    status = add_length(fields, part, size_bytes)
    if reader.is_closed:  # most objects are small, and a stream costs as much as their whole read
        return Response(reader.take_first(), status, headers=fields)

    async def send() -> AsyncIterator[bytes]:
        left = int(fields["Content-Length"])
        chunk = reader.take_first()
        try:
            while chunk:
                yield chunk
                left -= len(chunk)
                chunk = await service.run(reader.chunk) if left > 0 else b""
        finally:
            service.run_later(reader.close)

    return StreamingResponse(send(), status, headers=fields)


def add_length(fields: dict[str, str], part: ByteRange | None, size_bytes: int) -> int:
    """Add to an answer's headers how long it is, and where a part lies in the object; return the answer's status."""
    start, end = part or (0, size_bytes)
    fields["Content-Length"] = str(end - start)
    if part is None:
        return 200
    fields["Content-Range"] = f"bytes {start}-{end - 1}/{size_bytes}"
    return 206


async def read_first(request: Request, service: Service, size_bytes: int, read: Callable[[], R]) -> R:
    """Open an object in a thread, and read its first chunk. It is counted before: of many that come together, those are
    refused for which there is no room. Raises SlowDown.
    """
    held_of(request).set(min(size_bytes, CHUNK_BYTES))
    return await service.run(read)


class ChunkReader:
    """Read chunks in threads. When a client disconnects during a read, the file is closed after that read."""

    def __init__(self, chunks: Iterator[bytes], size_bytes: int | None = None) -> None:
        """Read the first chunk: what fails here is answered with an error. `size_bytes`: of all chunks; where the first
        has them all, nothing stays open. Raises CorruptObject, ObjectsUnavailable.
        """
        self._chunks = chunks
        self._lock = threading.Lock()
        self.is_closed = False
        self._first = next(chunks, b"")
        if len(self._first) == size_bytes:
            self.close()

    def take_first(self) -> bytes:
        """Hand on the first chunk, and hold it no longer."""
        first, self._first = self._first, b""
        return first

    def chunk(self) -> bytes:
        with self._lock:
            return next(self._chunks, b"")

    def close(self) -> None:
        self.is_closed = True
        close = getattr(self._chunks, "close", None)
        if close is not None:
            with self._lock:
                close()


def open_chunks(context: Context, entry: StoredEntry, start: int, end: int) -> ChunkReader | None:
    """Open the bytes of this very entry; None: its data is gone. By its path, another object's bytes could come under
    this one's headers.

    Raises CorruptObject; ForeignNotAllowed, Gone for foreign objects.
    """
    check_erased(entry)
    if not is_own(entry.address):
        return ChunkReader(context.foreign.get(entry.address, entry.size_bytes, start, end), end - start)
    with suppress(ObjectNotFound):
        what = f"the object at {entry.address}"
        chunks = open_content(context, entry, start, end, what)
        return ChunkReader(chunks, end - start)
    return None


def check_erased(entry: StoredEntry) -> None:
    """Raise Gone for an object that a purge has erased: its path is shown, and has no content any more."""
    if not entry.address:
        raise Gone("a purge has erased this object; no earlier version of it can be read")
