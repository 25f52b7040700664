"""What answers look like: the same names for the same things in every command, for people and in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import typer

from refstore.errors import Invalid
from refstore.flows.comparing import Logged
from refstore.ids import CommitId
from refstore.records import Commit, Entry


def when(at_ms: int | None) -> str | None:
    """A time as ISO 8601, in UTC, to the second. What is beyond the calendar's end is told as such."""
    try:
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999" if at_ms is not None and at_ms > 0 else "before the year 1"


def entry_row(path: str, entry: Entry) -> dict[str, object]:
    return {"path": path, "size_bytes": entry.size_bytes, "mtime": when(entry.mtime_ms), "address": entry.address}


def entry_details(path: str, entry: Entry) -> dict[str, object]:
    return {
        **entry_row(path, entry),
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "metadata": entry.metadata,
    }


def commit_row(commit_id: CommitId, commit: Commit) -> dict[str, object]:
    return {
        "commit": commit_id,
        "date": when(commit.created_ms),
        "committer": commit.committer,
        "message": commit.message,
        "parents": list(commit.parents),
        "metadata": commit.metadata,
    }


def logged_row(line: Logged) -> dict[str, object]:
    """A commit as the log shows it: with what becomes of its data."""
    mark = line.mark
    return {
        **commit_row(line.commit, line.record),
        "state": line.lifetime.value,
        "mark": mark.mark_id if mark else None,
        "marked": when(mark.since_ms) if mark else None,
        "deletes_at": when(mark.deletes_at_ms) if mark else None,
        "tagged": when(mark.tagged_ms or None) if mark else None,
        "swept": when(mark.swept_ms or None) if mark else None,
        "prefixes": list(mark.prefixes) if mark else [],
        "complete_since": when(line.complete.since_ms) if line.complete else None,
    }


def lifetime_words(line: Logged) -> str:
    """The same for people, in a few words."""
    mark = line.mark
    if mark is None:
        return line.lifetime.value
    part = "partly " if mark.prefixes else ""
    if mark.tagged_ms and mark.swept_ms:
        return f"{part}swept, deleted by the bucket by {when(mark.swept_ms)}, tagged {when(mark.tagged_ms)} by {mark.mark_id}"
    if mark.tagged_ms:
        return f"{part}tagged since {when(mark.tagged_ms)} for the bucket to delete, by {mark.mark_id}"
    if mark.swept_ms:
        return f"{part}swept {when(mark.swept_ms)} by {mark.mark_id}"
    if mark.sweeping_ms:
        return f"{part}being swept by {mark.mark_id}"
    return f"{part}marked {when(mark.since_ms)}, deletes at {when(mark.deletes_at_ms)}, by {mark.mark_id}"


def pairs(given: Iterable[str] | None) -> dict[str, str]:
    """`key=value` options as a mapping."""
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r} is not key=value")
        found[key] = value
    return found


def milliseconds(date: str | None) -> int | None:
    """An ISO 8601 date or time, UTC where it does not say, as the records keep it. Raises Invalid."""
    if not date:
        return None
    try:
        at = datetime.fromisoformat(date)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Invalid(f"{date!r} is not a date; write it as 2026-11-21 or 2026-11-21T07:00:00Z") from None
