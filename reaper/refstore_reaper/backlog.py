"""Measure the work that waits, for the breaker and for operators. Every count is bounded."""

from __future__ import annotations

from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import event_log
from refstore.core.ids import BranchName, CommitId
from refstore.errors import CommitNotFound, Corrupt, CorruptRecord
from refstore.kv.base import ABSENT
from refstore.operations import refs
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, decode_branch
from refstore.versioning import due_hints

HEADS_MAX: Final = 100
"""Branches whose committed objects are counted: reading a head costs a request to the object store."""

_log = event_log.get_logger(__name__)


class Backlog(NamedTuple):
    due: int
    """Due addresses, counted up to the limit."""
    oldest_due_ms: int | None
    """The due time of the oldest address; None if none is due."""
    later: int
    """Hints that are not due yet, counted up to the limit."""
    tokens: int
    """Tokens with a decided fate whose references are not released yet, counted up to the limit."""


def measure(ctx: Context, *, limit: int) -> Backlog:
    now = ctx.clock.now_ms()
    first = [
        name for shard in range(keys.SHARDS) for name, _ in ctx.kv.scan(keys.due_hint_shard(ctx.repo, shard), limit=1)
    ]
    oldest = min((int(name.partition("/")[0]) for name in first if name.partition("/")[0].isdigit()), default=None)
    tokens = ctx.kv.count(keys.deleted_tokens(ctx.repo), limit=limit) + ctx.kv.count(
        keys.committed_tokens(ctx.repo), limit=limit
    )
    due = count_due(ctx, now, limit)
    return Backlog(
        due,
        oldest if oldest is not None and oldest <= now else None,
        max(0, count_due(ctx, None, due + limit) - due),  # hints may go between the two counts
        min(tokens, limit),
    )


def count_due(ctx: Context, now_ms: int | None, limit: int) -> int:
    """Count the addresses that have hints due by `now_ms`, or any (None), up to `limit`."""
    count = 0
    for shard in range(keys.SHARDS):
        if count >= limit:
            break
        count += due_hints.count(ctx.kv, ctx.repo, shard, now_ms=now_ms, limit=limit - count)
    return count


def count_objects(ctx: Context, default_branch: BranchName, limit: int) -> int:
    """Count the repository's objects up to `limit`: the referenced ones, and those of the largest head.

    Heads share most of their objects, so they are not added up. A head that cannot be read counts as empty; the breaker
    then trips sooner.
    """
    count = 0
    for shard in range(keys.SHARDS):
        count += ctx.kv.count(keys.references(ctx.repo, shard), limit=limit - count)
        if count >= limit:
            return limit
    largest = 0
    for commit in _heads(ctx, default_branch):
        try:
            largest = max(largest, ctx.trees.count(refs.get_commit(ctx, commit).metarange))
        except (Corrupt, CommitNotFound) as error:
            _log.error("head_not_counted", repository=ctx.name, commit=commit, error=str(error))
        if count + largest >= limit:
            return limit
    return count + largest


def _heads(ctx: Context, default_branch: BranchName) -> list[CommitId]:
    """Return different heads, the default branch's first, at most HEADS_MAX."""
    heads: dict[CommitId, None] = {}
    default = ctx.kv.get(keys.branch(ctx.repo, default_branch))
    first = [] if default is ABSENT else [default]
    for raw in [*first, *(raw for _, raw in ctx.kv.scan(keys.branches(ctx.repo), limit=HEADS_MAX * 10))]:
        try:
            record = decode_branch(raw)
        except CorruptRecord:
            continue
        if isinstance(record, StoredBranch) and len(heads) < HEADS_MAX:
            heads[record.head] = None
    return list(heads)
