"""Tell until when a deleted repository keeps its name, and why.

The reaper frees the name when nothing of the repository is left that it looks after, and no operation on it can still
run (`refstore_reaper.repository_removal`). What is told here is an estimate: nothing is decided by it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.clock import format_utc
from refstore.records import keys
from refstore.records.branch_records import TokenRecord
from refstore.records.encoding import decode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning import due_hints

READ_MAX: Final = 1000
"""Tokens, and due hints of a shard, that are read at most."""


class DeletedNameHold(NamedTuple):
    """From when on a reaper frees a name."""

    until_ms: int
    reason: str
    """Why not before."""


def deleted_name_hold(ctx: Context, record: RepositoryRecord) -> DeletedNameHold:
    """Return when the name of a deleted repository is free. Raises Unavailable, Corrupt."""
    longest_ms = int(ctx.waits.scrub_after_seconds * 1000)
    reasons = [
        *_token_holds(ctx, longest_ms),
        *_object_holds(ctx),
        DeletedNameHold(
            record.closed_ms + longest_ms, "operations that began before its deletion may still be under way"
        ),
    ]
    return max(reasons, key=lambda reason: reason.until_ms)


def describe_hold(ctx: Context, record: RepositoryRecord) -> str:
    """Say that the name is taken, until when, and why."""
    release = deleted_name_hold(ctx, record)
    what = f"repository {ctx.name!r} was deleted at {format_utc(record.closed_ms)}, and its name is taken"
    if release.until_ms <= ctx.clock.now_ms():
        return (
            f"{what} until a reaper has scrubbed what is left of it; run `refstore reaper --once --scrub`, or choose "
            "another name"
        )
    return (
        f"{what} until {format_utc(release.until_ms)}, because {release.reason}; then a reaper frees it at its next "
        "scrub. Wait for that, or choose another name"
    )


def _token_holds(ctx: Context, longest_ms: int) -> list[DeletedNameHold]:
    """A staging area is forgotten when the last operation that may write there has ended."""
    tokens = [decode(value, TokenRecord) for _, value in ctx.kv.scan(keys.tokens(ctx.repo), limit=READ_MAX)]
    if not tokens:
        return []
    unprocessed = sum(not token.processed_ms for token in tokens)
    if unprocessed:  # what is staged there loses its references then, and its grace window begins
        begins_ms = ctx.clock.now_ms()
        at_ms = begins_ms + max(longest_ms, int(ctx.grace_seconds * 1000))
        return [DeletedNameHold(at_ms, f"no reaper has processed its staging areas yet, of which it had {unprocessed}")]
    last_ms = max(token.processed_ms for token in tokens)
    return [DeletedNameHold(last_ms + longest_ms, "operations may still write to its staging areas")]


def _object_holds(ctx: Context) -> list[DeletedNameHold]:
    """An uncommitted object is deleted when its grace window is over."""
    count = last_ms = 0
    for shard in range(keys.SHARDS):
        hints = due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=None, limit=READ_MAX)
        count += sum(len(hint.addresses) for hint in hints)
        last_ms = max([last_ms, *(hint.due_ms for hint in hints)])
    return (
        [DeletedNameHold(last_ms, f"{count:,} uncommitted objects of it can be restored until then")] if count else []
    )
