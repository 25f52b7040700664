"""Parse and make headers: ranges, conditions, user metadata. Stored user text never becomes a header that ends another
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.utils import formatdate
from typing import Final, NamedTuple

from refstore.core.ids import is_content_type, is_own
from refstore.records.staging_records import StoredEntry
from refstore_http.http_errors import RangeNotSatisfiable

METADATA: Final = "x-lakefs-meta-"
INTERNAL: Final = "x-lakefs-internal-"
INTERNAL_NAME: Final = "::lakefs::"
"""lakeFS's programs begin their own names with this; in a header it becomes `INTERNAL` and the rest. `lakectl local`
stores a file's time there, and takes a file without it for a changed one.
"""
_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_VALUE: Final = re.compile(r"[\x20-\x7e\t]{0,4096}")
DEFAULT_TYPE: Final = "application/octet-stream"


class ByteRange(NamedTuple):
    """The bytes [start, end) of an object."""

    start: int
    end: int


def parse_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """Parse a Range header (RFC 9110, 14) with one range; None: answer the whole object. Raises RangeNotSatisfiable."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or not (match[1] or match[2]):
        return None
    first, last = match[1], match[2]
    if not first:
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        start, end = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
        if last and int(last) < int(first):
            return None
    if start >= size_bytes or start >= end:
        raise RangeNotSatisfiable(f"the object has {size_bytes} bytes; ask for a range within them", size_bytes)
    return ByteRange(start, end)


def etag_of(entry: StoredEntry) -> str:
    """Return the ETag: the MD5, as lakeFS and S3 have it, if the service computed it. Otherwise it is the address,
    which is unique; a checksum from a client may be anything.
    """
    if not entry.md5 and is_own(entry.address):
        return f'"{entry.address}"'  # its form needs no other check
    tag = entry.md5 or entry.checksum
    return f'"{tag}"' if _VALUE.fullmatch(tag) and '"' not in tag else '""'


def matches_etag(condition: str | None, entry: StoredEntry) -> bool:
    """Return whether `If-None-Match` names this version of the object."""
    if not condition:
        return False
    if condition.strip() == "*":
        return True
    own = etag_of(entry).strip('"')
    return bool(own) and any(item.strip().removeprefix("W/").strip('"') == own for item in condition.split(","))


def is_range_allowed(condition: str | None, entry: StoredEntry) -> bool:
    """Return whether `If-Range` allows a range (RFC 9110, 13.1.5). A date is not exact enough, so it gets the whole
    object.
    """
    return condition is None or (condition.strip() == etag_of(entry) and etag_of(entry) != '""')


def content_type_of(entry: StoredEntry) -> str:
    """Return the content type, checked again: a stored one could end a header."""
    return entry.content_type if is_content_type(entry.content_type) else DEFAULT_TYPE


def object_headers(entry: StoredEntry) -> dict[str, str]:
    """Make the headers of every answer with an object's bytes. Metadata that no header can hold is in `statObject`
    only.
    """
    headers = {
        "ETag": etag_of(entry),
        "Last-Modified": formatdate(entry.mtime_ms / 1000, usegmt=True),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Type": content_type_of(entry),
        "X-Content-Type-Options": "nosniff",
        # uploaded content never runs as a page of this origin
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    for name, value in entry.metadata.items():
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            headers[METADATA + name] = value
    return headers


def parse_metadata(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Parse an upload's user metadata. Names are in lower case, because HTTP does not preserve their case."""
    metadata: dict[str, str] = {}
    for name, value in headers:
        if name.startswith(METADATA) and len(name) > len(METADATA):
            metadata[name[len(METADATA) :]] = decode_value(value)
        elif name.startswith(INTERNAL) and len(name) > len(INTERNAL):
            metadata[INTERNAL_NAME + name[len(INTERNAL) :]] = decode_value(value)
    return metadata


def decode_value(value: str) -> str:
    """Decode a header's value, which was read as latin-1: as UTF-8 if it is that, as most clients send it. Python's
    clients send latin-1.
    """
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
