"""Headers in and out: ranges, conditions, user metadata. What a user stored never becomes a header that could end another one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.utils import formatdate
from typing import Final, NamedTuple

from api.errors import OutOfRange
from refstore.ids import is_content_type, is_own
from refstore.records import Entry

METADATA: Final = "x-lakefs-meta-"
INTERNAL: Final = "x-lakefs-internal-"
INTERNAL_NAME: Final = "::lakefs::"
"""How a name begins that lakeFS's own programs keep for themselves; it goes in as `INTERNAL` and what follows. `lakectl local` keeps the
time of a file there, and would take a file without it for one that was changed."""
_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_VALUE: Final = re.compile(r"[\x20-\x7e\t]{0,4096}")
DEFAULT_TYPE: Final = "application/octet-stream"


class Part(NamedTuple):
    """The bytes [start, end) of an object."""

    start: int
    end: int


def range_of(header: str | None, size_bytes: int) -> Part | None:
    """RFC 9110, 14: one range of bytes; None for the whole, also where the header says something else. Raises OutOfRange."""
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
        raise OutOfRange(f"the object has {size_bytes} bytes; ask for a range within them", size_bytes)
    return Part(start, end)


def etag_of(entry: Entry) -> str:
    """The MD5, as lakeFS and S3 have it, where the service made it itself. Else the address, which is never given out twice, so that it
    tells one object from another; a checksum is whatever its linker said."""
    told = entry.md5 or (entry.address if is_own(entry.address) else entry.checksum)
    return f'"{told}"' if _VALUE.fullmatch(told) and '"' not in told else '""'


def matches(condition: str | None, entry: Entry) -> bool:
    """Whether `If-None-Match` names what the object is."""
    if not condition:
        return False
    if condition.strip() == "*":
        return True
    own = etag_of(entry).strip('"')
    return bool(own) and any(item.strip().removeprefix("W/").strip('"') == own for item in condition.split(","))


def is_this(condition: str | None, entry: Entry) -> bool:
    """Whether a range may be answered, as far as `If-Range` says (RFC 9110, 13.1.5): a date does not tell for sure, so the whole is."""
    return condition is None or (condition.strip() == etag_of(entry) and etag_of(entry) != '""')


def type_of(entry: Entry) -> str:
    """What the entry says that it is, looked at again: an older version took what would end a header."""
    return entry.content_type if is_content_type(entry.content_type) else DEFAULT_TYPE


def object_headers(entry: Entry) -> dict[str, str]:
    """What every answer with an object's bytes carries. Metadata that no header can hold is left to `statObject`."""
    headers = {
        "ETag": etag_of(entry),
        "Last-Modified": formatdate(entry.mtime_ms / 1000, usegmt=True),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Type": type_of(entry),
        "X-Content-Type-Options": "nosniff",
        # what somebody uploaded is never run as a page of this origin
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    for name, value in entry.metadata.items():
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            headers[METADATA + name] = value
    return headers


def metadata_of(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """User metadata of an upload. HTTP does not keep the case of names, so they are in lower case, nor say how a value is encoded."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name.startswith(METADATA) and len(name) > len(METADATA):
            found[name[len(METADATA) :]] = _decoded(value)
        elif name.startswith(INTERNAL) and len(name) > len(INTERNAL):
            found[INTERNAL_NAME + name[len(INTERNAL) :]] = _decoded(value)
    return found


def _decoded(value: str) -> str:
    """A header's value, which was read as latin-1: in UTF-8 where it is that, as most clients send it; Python's send latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
