"""The reaper's protocol steps, one after the other, on one repository, without leases or a daemon."""

from __future__ import annotations

from collections.abc import Sequence

from refstore.configuration.settings import ReaperSettings
from refstore.context import Context
from refstore.errors import CorruptRecord
from refstore.kv_recovery.fence import DeletionFence, DryRunFence
from refstore.objects.base import DeleteResult
from refstore.operations.commit_references import process_committed
from refstore.records import keys
from refstore.records.pending_deletes import PendingDelete
from refstore.repository import Repository
from refstore.versioning import due_hints
from refstore_reaper.breaker import Breaker, Permit
from refstore_reaper.deletion import BatchDeleter, DueAddress, Pipeline, due_addresses
from refstore_reaper.pass_summary import Tally
from refstore_reaper.reference_release import end_transactions, find_left_branches, process_deleted, publish_markers
from refstore_reaper.scrub import release_unnamed, scrub_references, scrub_tokens


class NoJournal:
    """A journal's objects are written once under new names: they touch nothing of the protocol."""

    def record_start(self, batch: Sequence[PendingDelete]) -> None: ...

    def record_end(self, batch: Sequence[PendingDelete], confirmed: DeleteResult) -> None: ...


class CountingBreaker(Breaker):
    """Counts alone: the breaker's records are no part of the protocol."""

    deleted = 0

    def report_deleted(self, permit: Permit, count: int) -> None:
        self.deleted += count


def release_all(repo: Repository) -> None:
    """Do everything up to the grace window."""
    ctx = repo.context
    markers = ctx.markers
    left = find_left_branches(ctx)
    publish_markers(ctx, left.retired)
    end_transactions(ctx, left.run_out)
    for commit_id, marker in list(markers.scan_committed()):
        process_committed(ctx, commit_id, marker)
    for token, marker in list(markers.scan_deleted()):
        list(process_deleted(ctx, token, marker))


def delete_due(repo: Repository) -> int:
    """Delete what is due now. Return how many blobs were deleted."""
    ctx = repo.context
    hints = (
        due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=ctx.clock.now_ms(), limit=1000)
        for shard in range(keys.SHARDS)
    )
    return sum(delete_batch(ctx, due_addresses(each)) for each in hints)


def delete_batch(ctx: Context, due: Sequence[DueAddress], fence: DeletionFence | None = None) -> int:
    """Delete a batch as a pass does, in this thread. Return how many blobs were deleted."""

    def on_corrupt(_name: str, error: CorruptRecord) -> None:
        raise error

    breaker = CountingBreaker(ctx, ReaperSettings(), "reaper")
    deleter = BatchDeleter(
        ctx,
        breaker,
        Tally(),
        NoJournal(),
        delays=ctx.deletion_delays,
        async_deleter=None,
        fence=fence or DryRunFence(),
        on_corrupt=on_corrupt,
    )
    if due:
        with Pipeline() as pipeline:
            pipeline.start(deleter.delete_batch(Permit(len(due)), due))
        deleter.shorten_hints()
    return breaker.deleted


def reap_all(repo: Repository) -> int:
    release_all(repo)
    return delete_due(repo)


def scrub_all(repo: Repository) -> None:
    ctx = repo.context
    for shard in range(keys.SHARDS):
        scrub_references(ctx, shard)
        release_unnamed(ctx, shard, check_servers=lambda: None)
    scrub_tokens(ctx)
