"""Check a whole object while it is read: what arrives must be the bytes that were uploaded."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator

from refstore.errors import CorruptObject


def verify_body(chunks: Iterator[bytes], size_bytes: int, sha256: str, what: str) -> Generator[bytes]:
    """Yield the chunks, the last one only when all of them are what was uploaded, so that nobody takes other bytes for
    the whole object. Raises CorruptObject. `what`: the object, as an error names it.
    """
    digest = hashlib.sha256()
    size = 0
    last = b""
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > size_bytes:
                break
            if size == size_bytes:
                last = last or chunk
            elif chunk:  # at once: to look ahead would hold two chunks of every reader
                yield chunk
        if (size, digest.hexdigest()) != (size_bytes, sha256):
            raise CorruptObject(
                f"{what} did not arrive as it was uploaded: its size or checksum differs; read it again, and if it "
                "differs each time, do not trust this copy, and report it"
            )
        if last:
            yield last
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
