"""Compare how two Avro files begin, and where nothing matched, all of them."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator

import fastavro


def kept(old_body: bytes, new_body: bytes, changed: Collection[int]) -> Iterator[str]:
    """Yield what a rewritten file has not kept: schema, codec, metadata and sync marker stand in the header."""
    old = io.BytesIO(old_body)
    fastavro.reader(old)  # reads the header
    header = old_body[: old.tell()]
    if not new_body.startswith(header):
        yield "another header"
    if not changed and old_body != new_body:
        yield "not the same bytes, though nothing matched"
