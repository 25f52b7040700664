"""Shape the answers: every command uses the same names for the same things, for people and in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from refstore.core.clock import format_utc, to_ms
from refstore.core.durations import parse_duration
from refstore.core.ids import is_own
from refstore.core.units import DAY_SECONDS
from refstore.errors import Invalid
from refstore.objects.foreign_objects import unreadable_reason
from refstore.public_types import stored_commit, stored_entry

if TYPE_CHECKING:
    from refstore.core.ids import BranchName
    from refstore.operations.log_and_diff import LogEntry
    from refstore.public_types import Commit, Entry, PathChange
    from refstore.records.branch_records import StoredBranch
    from refstore.repository import Repository
    from refstore.versioning.commits.tree_diff import EntryChange


LONGEST_SECONDS: Final = 3660 * DAY_SECONDS
"""The longest duration that an option takes."""


def format_when(at: datetime | int | None) -> str | None:
    """Format a time as ISO 8601, in UTC, to the second; a record's that is beyond the calendar becomes words."""
    at_ms = to_ms(at) if isinstance(at, datetime) else at
    try:
        return None if at_ms is None else format_utc(at_ms)
    except (ValueError, OverflowError, OSError):
        return "after the year 9999" if at_ms is not None and at_ms > 0 else "before the year 1"


def entry_row(entry: Entry) -> dict[str, object]:
    """Return an object as a listing shows it. `unreadable` says why a foreign object cannot be read by its address; an
    object that can be read has no such field.
    """
    row: dict[str, object] = {
        "path": entry.path,
        "size_bytes": entry.size_bytes,
        "mtime": format_when(stored_entry(entry).mtime_ms),
        "address": entry.address,
    }
    why = unreadable_reason(entry.address) if entry.address and not is_own(entry.address) else ""
    return {**row, "unreadable": why} if why else row


def entry_details(entry: Entry) -> dict[str, object]:
    return {
        **entry_row(entry),
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "metadata": entry.metadata,
    }


def commit_row(commit: Commit) -> dict[str, object]:
    return {
        "commit": commit.id,
        "date": format_when(stored_commit(commit).created_ms),
        "committer": commit.committer,
        "message": commit.message,
        "parents": list(commit.parents),
        "metadata": commit.metadata,
        "notes": stored_commit(commit).notes,
    }


def logged_row(line: LogEntry) -> dict[str, object]:
    """Return a commit as the log shows it, with the state of its data."""
    mark = line.mark
    return {
        **commit_row(line.commit),
        "state": line.lifetime.value,
        "mark": mark.id if mark else None,
        "marked": format_when(mark.since) if mark else None,
        "deletes_at": format_when(mark.deletes_at) if mark else None,
        "tagged": format_when(mark.tagged) if mark else None,
        "swept": format_when(mark.swept) if mark else None,
        "prefixes": list(mark.prefixes) if mark else [],
        "examining_run": line.examining_run or None,
        "nothing_to_delete_since": format_when(line.nothing_to_delete_since),
    }


def lifetime_words(line: LogEntry) -> str:
    """Describe the commit's state for people: its name, then when, and by which mark."""
    mark, state = line.mark, line.lifetime.value
    if mark is None:
        return f"{state} by {line.examining_run}" if line.examining_run else state
    if mark.tagged and mark.swept:
        bucket = f"deleted by the bucket by {format_when(mark.swept)}"
        return f"{state}, {bucket}, tagged {format_when(mark.tagged)} by {mark.id}"
    if mark.tagged:
        return f"{state} since {format_when(mark.tagged)} for the bucket to delete, by {mark.id}"
    if mark.swept:
        return f"{state} {format_when(mark.swept)} by {mark.id}"
    if mark.sweeping_since:
        return f"{state} since {format_when(mark.sweeping_since)} by {mark.id}"
    return f"{state} {format_when(mark.since)}, deletes at {format_when(mark.deletes_at)}, by {mark.id}"


def change_row(change: EntryChange | PathChange) -> dict[str, object]:
    entry = change.right or change.left
    return {"change": change.kind.value, "path": change.path, "size_bytes": entry.size_bytes if entry else None}


def branch_row(repo: Repository, name: BranchName, record: StoredBranch) -> dict[str, object]:
    staging = repo.context.staging
    staged = not all(staging.is_empty(token) for token in record.live_tokens)
    return {"branch": name, "commit": record.head, "uncommitted": staged, "created": format_when(record.created_ms)}


def pairs(options: Iterable[str] | None) -> dict[str, str]:
    """Parse `key=value` options into a mapping."""
    mapping: dict[str, str] = {}
    for text in options or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r} is not key=value")
        mapping[key] = value
    return mapping


def parse_date(date: str | None) -> datetime | None:
    """Parse an ISO 8601 date or time, UTC by default. Raises Invalid."""
    if not date:
        return None
    try:
        at = datetime.fromisoformat(date)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid(f"{date!r} is not a date; write it as 2026-11-21 or 2026-11-21T07:00:00Z") from None


def seconds_of(option: str, text: str | None, *, least: float = 0, most: float = LONGEST_SECONDS) -> float | None:
    """Return the seconds of an option's duration; None if it was not given. Raises InvalidSettings."""
    return None if text is None else parse_duration(option, text, least=least, most=most)
