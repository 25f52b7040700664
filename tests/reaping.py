"""The reaper's protocol steps, one after the other, on one repository, without leases or a daemon."""

from __future__ import annotations

from collections.abc import Sequence

from refstore.objects.base import DeleteResult
from refstore.operations.commit_references import process_committed
from refstore.operations.delete_contents import delete_contents
from refstore.records import keys
from refstore.records.pending_deletes import PendingDelete
from refstore.repository import Repository
from refstore.versioning import due_hints
from refstore_reaper.blob_deletion import delete_blobs
from refstore_reaper.deletion import due_addresses, mark_deleting, remove_keys, settle
from refstore_reaper.reference_release import process_deleted, publish_markers
from refstore_reaper.scrub import scrub_references, scrub_tokens
from refstore_reaper.unnamed_references import release_unnamed


class NoJournal:
    """A journal's objects are written once under new names: they touch nothing of the protocol."""

    def record_start(self, batch: Sequence[PendingDelete]) -> None: ...

    def record_end(self, batch: Sequence[PendingDelete], confirmed: DeleteResult) -> None: ...


def release_all(repo: Repository) -> None:
    """Do everything up to the grace window."""
    ctx = repo.context
    markers = ctx.markers
    publish_markers(ctx)
    for commit_id, marker in list(markers.scan_committed()):
        process_committed(ctx, commit_id, marker)
    for token, marker in list(markers.scan_deleted()):
        list(process_deleted(ctx, token, marker))


def delete_due(repo: Repository) -> int:
    """Delete what is due now. Return how many blobs were deleted."""
    ctx = repo.context
    deleted = 0
    for shard in range(keys.SHARDS):
        due = due_addresses(due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=ctx.clock.now_ms(), limit=1000))
        batch, stale = mark_deleting(ctx, due, delays=ctx.deletion_delays)
        ctx.kv.delete_many(settle(stale))
        if batch:
            addresses = [item.address for item in batch]
            confirmed = delete_blobs(ctx.objects, batch, NoJournal())
            confirmed, _, _ = delete_contents(ctx, batch, confirmed, NoJournal())
            gone = set(addresses).difference(remove_keys(ctx, addresses, confirmed))
            ctx.kv.delete_many(settle([each for each in due if each.address in gone]))
            deleted += len(confirmed.deleted_keys)
    return deleted


def reap_all(repo: Repository) -> int:
    release_all(repo)
    return delete_due(repo)


def scrub_all(repo: Repository) -> None:
    ctx = repo.context
    for shard in range(keys.SHARDS):
        scrub_references(ctx, shard)
        release_unnamed(ctx, shard, check_servers=lambda: None)
    scrub_tokens(ctx)
