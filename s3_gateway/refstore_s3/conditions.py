"""Evaluate the conditions of a request against an object: its ETag, and when it was written (RFC 9110, 13.2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from refstore.records.staging_records import Entry
from refstore_s3.object_attributes import etag_of, format_http_date
from refstore_s3.s3_errors import S3Error

COPY_SOURCE: Final = "x-amz-copy-source-"
"""What the conditions on the source of a copy begin with."""


def check_conditions(headers: Mapping[str, str], entry: Entry, *, prefix: str = "") -> None:
    """Check the four conditions. Raises S3Error: `PreconditionFailed`, or `NotModified` (with no `prefix`)."""
    if_match = headers.get(f"{prefix}if-match")
    if_none_match = headers.get(f"{prefix}if-none-match")
    written_s = entry.mtime_ms // 1000
    if if_match is not None:
        if not matches_etag(if_match, entry):
            raise make_refusal(f"{prefix}if-match")
    elif (unmodified := _read_date(headers, f"{prefix}if-unmodified-since")) is not None and written_s > unmodified:
        raise make_refusal(f"{prefix}if-unmodified-since")
    if if_none_match is not None:
        if matches_etag(if_none_match, entry):
            raise _make_not_modified(entry) if not prefix else make_refusal(f"{prefix}if-none-match")
    elif (modified := _read_date(headers, f"{prefix}if-modified-since")) is not None and written_s <= modified:
        raise _make_not_modified(entry) if not prefix else make_refusal(f"{prefix}if-modified-since")


def matches_etag(condition: str, entry: Entry) -> bool:
    """Return whether a condition names the object's ETag, or any (`*`)."""
    own = etag_of(entry).strip('"')
    items = [item.strip() for item in condition.split(",")]
    return "*" in items or any(item.removeprefix("W/").strip('"') == own for item in items)


def allows_range(headers: Mapping[str, str], entry: Entry) -> bool:
    """Return whether `If-Range` allows a range."""
    condition = headers.get("if-range")
    return condition is None or condition.strip() in (etag_of(entry), format_http_date(entry.mtime_ms))


def _read_date(headers: Mapping[str, str], name: str) -> float | None:
    """Return a date in seconds since the epoch; None where there is none that can be read: it is ignored then."""
    text = headers.get(name)
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def make_refusal(condition: str) -> S3Error:
    """Make the error of a condition that does not hold."""
    return S3Error(
        "PreconditionFailed",
        "the object is not as the request expects it; look at it, then decide",
        fields={"Condition": condition},
    )


def _make_not_modified(entry: Entry) -> S3Error:
    headers = {"ETag": etag_of(entry), "Last-Modified": format_http_date(entry.mtime_ms)}
    return S3Error("NotModified", "the object has not changed", headers=headers)
