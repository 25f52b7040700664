"""Read what S3 keeps of an object, and show it: metadata (`x-amz-meta-NAME` is NAME), headers, tags, checksums, and the
ETag of multipart.

All but the metadata stands in the entry's field `s3`. What describes the content is not there any more where a purge
replaced the content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from refstore.core.user_metadata import OBJECT_METADATA_BYTES_MAX, check_object_metadata, metadata_bytes
from refstore.records.s3_attributes import S3Attributes, attributes_bytes, content_of
from refstore.records.staging_records import StoredEntry
from refstore_http import headers as api_headers
from refstore_s3.checksums import HEADER_PREFIX
from refstore_s3.s3_errors import S3Error

META: Final = "x-amz-meta-"
KEPT_HEADERS: Final = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
DEFAULT_TYPE: Final = "binary/octet-stream"
TAGS_MAX: Final = 10
TAG_KEY_MAX: Final = 128
TAG_VALUE_MAX: Final = 256
CHECKSUMS_BYTES: Final = 256
"""Room for the checksums, which are known when the body was read."""
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_VALUE: Final = re.compile(r"[\x20-\x7e\t\x80-\U0010ffff]{0,4096}")
_BREAKS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


class GivenAttributes(NamedTuple):
    """What a request gives to an object."""

    metadata: dict[str, str]
    headers: dict[str, str]
    tags: dict[str, str]

    @classmethod
    def of_entry(cls, entry: StoredEntry) -> GivenAttributes:
        given = entry.s3 or S3Attributes()
        return cls(entry.metadata, given.headers, given.tags)

    @property
    def s3(self) -> S3Attributes | None:
        return S3Attributes(None, self.headers, self.tags) if self.headers or self.tags else None

    def check_size(self) -> None:
        """Raise S3Error where they are more than an entry holds beside the checksums."""
        size_bytes = metadata_bytes(self.metadata) + attributes_bytes(self.s3)
        if size_bytes > OBJECT_METADATA_BYTES_MAX - CHECKSUMS_BYTES:
            raise S3Error(
                "MetadataTooLarge",
                f"the metadata and tags have {size_bytes} bytes, and may have "
                f"{OBJECT_METADATA_BYTES_MAX - CHECKSUMS_BYTES}; keep large things in an object",
            )


def read_attributes(headers: Mapping[str, str]) -> GivenAttributes:
    """Read the attributes that a request gives a new object. Raises S3Error; Invalid for a name of ours."""
    given = GivenAttributes({}, {}, parse_tags(headers.get("x-amz-tagging", "")))
    for name, value in headers.items():
        if name.startswith(META) and len(name) > len(META):
            given.metadata[name[len(META) :]] = api_headers.decode_value(value)
        elif name in KEPT_HEADERS:
            kept = _without_chunking(value) if name == "content-encoding" else value
            if kept:
                given.headers[name] = api_headers.decode_value(kept)
    given.check_size()
    check_object_metadata(given.metadata)
    return given


def etag_of(entry: StoredEntry) -> str:
    """Return the ETag, with its quotes."""
    content = content_of(entry.s3)
    return f'"{content.etag}"' if content is not None and content.etag else api_headers.etag_of(entry)


def content_type_of(entry: StoredEntry) -> str:
    return api_headers.content_type_of(entry) if entry.content_type else DEFAULT_TYPE


def checksum_headers(entry: StoredEntry) -> dict[str, str]:
    """Return the headers of the checksums that are known."""
    content = content_of(entry.s3)
    if content is None or not content.checksum:
        return {}
    kind = "COMPOSITE" if content.is_composite else "FULL_OBJECT"
    return {HEADER_PREFIX + content.algorithm: content.checksum, HEADER_PREFIX + "type": kind}


def has_checksum(entry: StoredEntry, algorithm: str) -> bool:
    return HEADER_PREFIX + algorithm in checksum_headers(entry)


def checksum_content(entry: StoredEntry) -> list[tuple[str, str]]:
    """Return the elements of the checksums that are known."""
    return [
        ("ChecksumType" if name == f"{HEADER_PREFIX}type" else f"Checksum{name[len(HEADER_PREFIX) :].upper()}", text)
        for name, text in checksum_headers(entry).items()
    ]


def object_headers(entry: StoredEntry) -> dict[str, str]:
    """Return the headers of every answer with an object's bytes, or about them."""
    headers = {
        "ETag": etag_of(entry),
        "Last-Modified": format_http_date(entry.mtime_ms),
        "Accept-Ranges": "bytes",
        "Content-Type": content_type_of(entry),
    }
    given = GivenAttributes.of_entry(entry)
    for name, value in given.headers.items():
        if _is_sendable(value):
            headers[name.title()] = _encode(value)
    for name, value in given.metadata.items():
        if _NAME.fullmatch(name) and _is_sendable(value):
            headers[META + name] = _encode(value)
    if given.tags:
        headers["x-amz-tagging-count"] = str(len(given.tags))
    return headers


def format_http_date(at_ms: int) -> str:
    return _format_http_date(at_ms // 1000)


@lru_cache(maxsize=4096)
def _format_http_date(at_seconds: int) -> str:
    return formatdate(at_seconds, usegmt=True)


def parse_tags(text: str) -> dict[str, str]:
    """Parse tags as a header has them (`a=1&b=2`). Raises S3Error."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=TAGS_MAX + 1, errors="strict")
    except ValueError:
        raise S3Error("InvalidArgument", f"the tags cannot be read; send at most {TAGS_MAX}, as a=1&b=2") from None
    return check_tags(pairs)


def check_tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Check tags by S3's bounds. Raises S3Error."""
    tags = dict(pairs)
    if len(pairs) > TAGS_MAX:
        raise S3Error("InvalidTag", f"an object has at most {TAGS_MAX} tags; send fewer")
    if len(tags) != len(pairs):
        raise S3Error("InvalidTag", "a tag's key stands there twice; send each key once")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_MAX or len(value) > TAG_VALUE_MAX:
            raise S3Error(
                "InvalidTag",
                f"the key of a tag has 1 to {TAG_KEY_MAX} characters, and its value at most {TAG_VALUE_MAX}",
            )
    return tags


def _without_chunking(encoding: str) -> str:
    """Return a Content-Encoding without `aws-chunked`, which is of the request only."""
    kept = [each.strip() for each in encoding.split(",")]
    return ", ".join(each for each in kept if each and each.lower() != "aws-chunked")


def _is_sendable(value: str) -> bool:
    """Return whether a header can hold the value: stored text never becomes a header that ends another one."""
    return _VALUE.fullmatch(value) is not None and not _BREAKS.search(value)


def _encode(value: str) -> str:
    """Return the value so that it is sent in UTF-8: headers are written as latin-1."""
    return value if value.isascii() else value.encode(errors="replace").decode("latin-1")
