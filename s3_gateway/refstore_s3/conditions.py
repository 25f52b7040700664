"""Evaluate the conditions of a request (RFC 9110, 13.2.2): of a read against the object's ETag and when it was written,
of a write against what is at its key, so that it lands only if that is still there then.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from refstore.core.ids import Address
from refstore.errors import AlreadyExists, Contention, Invalid, InvalidName, NotFound, PathChanged
from refstore.operations import refs
from refstore.public_types import Entry, stored_entry
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore_http.http_errors import PreconditionFailed
from refstore_s3.object_attributes import etag_of, format_http_date
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target

COPY_SOURCE: Final = "x-amz-copy-source-"
"""What the conditions on the source of a copy begin with."""


def check_conditions(headers: Mapping[str, str], entry: StoredEntry, *, prefix: str = "") -> None:
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


def matches_etag(condition: str, entry: StoredEntry) -> bool:
    """Return whether a condition names the object's ETag, or any (`*`)."""
    own = etag_of(entry).strip('"')
    items = [item.strip() for item in condition.split(",")]
    return "*" in items or any(item.removeprefix("W/").strip('"') == own for item in items)


def allows_range(headers: Mapping[str, str], entry: StoredEntry) -> bool:
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


def _make_not_modified(entry: StoredEntry) -> S3Error:
    headers = {"ETag": etag_of(entry), "Last-Modified": format_http_date(entry.mtime_ms)}
    return S3Error("NotModified", "the object has not changed", headers=headers)


NEVER_THERE: Final = StoredEntry(Address(""), -1, "", 0)
"""An entry that no path has."""


class WriteCondition(NamedTuple):
    """What must be at the key when the write lands."""

    if_absent: bool = False
    if_entry: StoredEntry | None = None
    refusal: S3Error | None = None
    """The error of a write that what is there now refuses; then `if_entry` is there at no time."""


async def read_write_condition(request: S3Request, target: Target) -> WriteCondition:
    """Evaluate `If-Match` and `If-None-Match` of a write. Raises S3Error."""
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_match is not None and if_none_match is not None:
        raise S3Error("NotImplemented", "If-Match and If-None-Match of one write are not supported; send one of them")
    if if_match is None and if_none_match is None:
        return WriteCondition()
    if if_none_match is not None and if_none_match.strip() == "*":
        return WriteCondition(if_absent=True)
    entry = await request.service.repository(target.repository, lambda repo: find_entry(repo, target))
    if if_match is not None:
        if entry is None:
            refusal = S3Error("NoSuchKey", f"nothing is at {target.key[:80]!r}, so no ETag matches")
            return WriteCondition(if_entry=NEVER_THERE, refusal=refusal)
        if not matches_etag(if_match, entry):
            return WriteCondition(if_entry=NEVER_THERE, refusal=make_refusal("If-Match"))
    elif if_none_match is not None and entry is not None and matches_etag(if_none_match, entry):
        return WriteCondition(if_entry=NEVER_THERE, refusal=make_refusal("If-None-Match"))
    return WriteCondition(if_absent=entry is None, if_entry=entry)


def find_entry(repo: Repository, target: Target) -> StoredEntry | None:
    """Return what is at a key that can be written. Raises S3Error."""
    check_writable(repo, target)
    entry = repo.stat_many(target.ref, [target.path]).get(target.path)
    return None if entry is None else stored_entry(entry)


def delete_if_match(repo: Repository, target: Target, condition: str) -> None:
    """Delete an object if its ETag is as the condition says; nothing to delete is no error. Raises S3Error."""
    entry = find_entry(repo, target)
    if entry is None:
        return
    if not matches_etag(condition, entry):
        raise make_refusal("If-Match")
    with explain_refusals(is_conditional=True):
        repo.delete_if_entry(target.ref, target.path, Entry(target.path, entry))


@contextmanager
def explain_refusals(*, is_conditional: bool) -> Generator[None, None, None]:
    """Turn what refuses a conditional write into what S3 answers."""
    try:
        yield
    except (AlreadyExists, PathChanged) as error:
        raise PreconditionFailed(str(error)) from error
    except Contention as error:
        if not is_conditional:
            raise
        raise S3Error("ConditionalRequestConflict", str(error)) from error


def check_writable(repo: Repository, target: Target, *, if_absent: bool = False) -> None:
    """Check that a key can be written: that its ref is a branch. Raises S3Error."""
    try:
        repo.get_branch(target.ref)
    except (NotFound, InvalidName) as error:
        try:
            refs.resolve(repo.context, target.ref)
        except (NotFound, Invalid):
            raise S3Error("NoSuchKey", str(error), fields={"Key": target.key}) from None
        raise S3Error(
            "AccessDenied",
            f"{target.ref[:80]!r} is a tag or a commit, which never changes; write to a branch",
            fields={"Key": target.key},
        ) from None
    if if_absent and repo.stat_many(target.ref, [target.path]):
        raise PreconditionFailed(f"{target.path!r} is on {target.ref!r} already; it was not changed")
