"""The reaper's protocol steps, one after the other, on one repository: for tests that are not about leases and daemons."""

from __future__ import annotations

from collections.abc import Sequence

from reaper.deletion import Hint, condemn, destroy, drop_hints, due_hints
from reaper.processing import Doomed, process_committed, process_deleted, publish
from reaper.scrub import scrub_references, scrub_tokens
from refstore import keys
from refstore.markers import Markers
from refstore.objects.base import Deletion
from refstore.repository import Repository


class NoJournal:
    def began(self, doomed: Sequence[Doomed]) -> None: ...

    def ended(self, doomed: Sequence[Doomed], confirmed: Deletion) -> None: ...


def release_all(repo: Repository, grace_seconds: float | None = None) -> None:
    """Everything up to the grace window; the repository's own, or another."""
    ctx = repo.context
    grace = ctx.grace_seconds if grace_seconds is None else grace_seconds
    markers = Markers(ctx.kv, ctx.repo, ctx.clock)
    publish(ctx)
    for commit_id, marker in list(markers.committed()):
        process_committed(ctx, commit_id, marker)
    for token, marker in list(markers.deleted()):
        process_deleted(ctx, token, marker, grace_seconds=grace)


def delete_due(repo: Repository) -> int:
    """Hard deletion of what is due now; how many blobs went."""
    ctx = repo.context
    gone = 0
    for shard in range(keys.SHARDS):
        hints: list[Hint] = due_hints(ctx, shard, now_ms=ctx.clock.now_ms(), limit=1000)
        doomed, stale = condemn(ctx, hints, grace_seconds=ctx.grace_seconds)
        done = destroy(ctx, doomed, NoJournal())
        gone += done.objects
        addresses = {item.address for item in doomed} - set(done.failed)
        drop_hints(ctx, [*stale, *(hint for hint in hints if hint.address in addresses)])
    return gone


def reap_all(repo: Repository) -> int:
    release_all(repo)
    return delete_due(repo)


def scrub_all(repo: Repository) -> None:
    ctx = repo.context
    for shard in range(keys.SHARDS):
        scrub_references(ctx, shard, grace_seconds=ctx.grace_seconds)
    scrub_tokens(ctx)
