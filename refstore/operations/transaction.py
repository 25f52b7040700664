"""Transactions: a hidden branch for the work of one writer, with a lease in its record (rule 24).

    begin    make the branch at the target's head; its record says until when its writer is taken to be there
    renew    move that time on, by `set_if`: a writer does so between its calls, and whoever merges does so first
    finish   renew, commit, merge, delete the branch, as one operation
    end      close a branch whose lease ran out longer ago than the longest operation takes; the reaper does

A lease is renewed by the calls of its writer, and by no thread: a writer that is paused, or computes for longer than
its lease, is told so by its next call. The hidden branches of a purge have such leases, too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline
from refstore.core.clock import format_utc
from refstore.core.ids import BranchName, CommitId
from refstore.core.units import DAY_MS
from refstore.errors import (
    BranchNotFound,
    Contention,
    DirtyBranch,
    ManifestBehind,
    NothingToCommit,
    RefstoreError,
    TransactionEnded,
)
from refstore.operations import branch, multipart
from refstore.operations import commit as commit_operation
from refstore.operations.commit import CommitOptions
from refstore.public_types import Commit
from refstore.records.branch_records import StoredBranch
from refstore.versioning.branches import ATTEMPTS, OpenBranch
from refstore.versioning.markers import BRANCH_DELETED_CAUSE

TRANSACTION_BRANCHES: Final = "refstore-transaction-"
"""What the names of the branches of transactions begin with."""

LEASE_MS: Final = DAY_MS
"""How long a lease holds by default: longer than a writer computes between two of its calls."""

WAITS_SECONDS: Final = (0.5, 1, 2, 4, 8)
"""How long to wait between tries while the target of a merge has staged changes, or others keep moving it."""


class BegunTransaction(NamedTuple):
    """The branch of a transaction that has begun."""

    branch: BranchName
    target: BranchName
    base: CommitId
    """The head of the target that the branch was made at."""
    lease_ms: int
    """How long each renewal holds."""
    lease_until_ms: int


def begin(ctx: Context, target: BranchName, lease_ms: int) -> BegunTransaction:
    """Make the branch of a transaction. Raises BranchNotFound, RepositoryNotFound."""
    base = ctx.branches.read_open(target).record.head
    now = ctx.clock.now_ms()
    name = BranchName(f"{TRANSACTION_BRANCHES}{ctx.ids.new_id(now)}")
    branch.create_branch(ctx, name, base, hidden=True, lease_until_ms=now + lease_ms)
    return BegunTransaction(name, target, base, lease_ms, now + lease_ms)


def renew(ctx: Context, name: BranchName, lease_ms: int) -> int:
    """Renew the lease of a branch, and return until when it holds. Raises TransactionEnded: it ran out, or the branch
    is gone.
    """
    for _ in range(ATTEMPTS):
        try:
            opened = ctx.branches.read_open(name)
        except BranchNotFound:
            raise _ended_error(name, "its branch was deleted") from None
        now, until_ms = ctx.clock.now_ms(), opened.record.lease_until_ms
        if until_ms <= now:
            raise _ended_error(name, f"its lease ran out at {format_utc(until_ms)}")
        if ctx.branches.change(name, opened, lease_until_ms=now + lease_ms):
            return now + lease_ms
    raise ctx.branches.contention(name)


def hold(ctx: Context, name: BranchName, until_ms: int, lease_ms: int) -> int:
    """Renew a lease that holds until `until_ms`, if half of it is over, and return until when it holds now. Raises
    TransactionEnded.
    """
    if (until_ms - ctx.clock.now_ms()) * 2 >= lease_ms:
        return until_ms
    with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
        return renew(ctx, name, lease_ms)


def finish(ctx: Context, begun: BegunTransaction, options: CommitOptions) -> CommitId | None:
    """Commit what the transaction has, merge it into the target as one commit, and delete its branch. Return the
    target's new commit; None if there was nothing to change.

    The lease is renewed first, and outlives this operation: so nobody ends what is merged (rule 24). After an error the
    branch stays until its lease runs out, and the error says so, or says that the merge was made. Raises
    TransactionEnded, MergeConflict, DirtyBranch, BranchNotFound (the target is gone), ManifestBehind, Contention.
    """
    with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
        try:
            begun = begun._replace(lease_until_ms=renew(ctx, begun.branch, begun.lease_ms))
            landed = _commit_and_merge(ctx, begun, options)
        except (TransactionEnded, ManifestBehind):  # it was ended, or it was merged
            abandon(ctx, begun)
            raise
        except RefstoreError as error:
            error.args = (f"{error}; {_describe_unmerged(begun, error)}", *error.args[1:])
            raise
        abandon(ctx, begun)
        return landed


def _commit_and_merge(ctx: Context, begun: BegunTransaction, options: CommitOptions) -> CommitId | None:
    with suppress(NothingToCommit, ManifestBehind):  # the reaper writes it to the manifest
        commit_operation.commit(ctx, begun.branch, options)
    own = ctx.branches.read_open(begun.branch).record.head
    if own == begun.base:
        return None
    with suppress(NothingToCommit):  # the target has the same by now
        return merge_when_clean(ctx, own, begun.target, options).id
    return None


def merge_when_clean(ctx: Context, commit: CommitId, target: BranchName, options: CommitOptions) -> Commit:
    """Merge a commit into a branch as one commit; while that has staged changes, or others keep moving it, wait for
    them, but not for long.

    Raises MergeConflict, DirtyBranch, NothingToCommit, Gone, BranchNotFound, Contention.
    """

    def merge() -> Commit:
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            return commit_operation.merge(ctx, target, commit, options, squash=True)

    for seconds in WAITS_SECONDS:
        with suppress(DirtyBranch, Contention):
            return merge()
        ctx.clock.sleep(seconds)
    return merge()


def abandon(ctx: Context, begun: BegunTransaction) -> None:
    """Delete the branch of a transaction. If that fails, the reaper ends it when its lease has run out."""
    with (
        suppress(RefstoreError),
        deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds),
    ):
        branch.delete_branch(ctx, begun.branch, default=BranchName(""))


def has_run_out(ctx: Context, record: StoredBranch) -> bool:
    """Return whether a branch has a lease that ran out, and no operation that renewed it can be under way."""
    until_ms = record.lease_until_ms
    return bool(until_ms) and ctx.waits.operations_end_ms(until_ms) < ctx.clock.now_ms()


def end(ctx: Context, name: BranchName, opened: OpenBranch) -> bool:
    """Close a branch whose lease ran out, as a deletion does, and return whether it was: one that was changed since it
    was read stays.
    """
    before = {"commit": opened.record.head, "created_ms": opened.record.created_ms}
    with ctx.audit.act("branch.delete", repository=ctx.name, target=name, before=before) as draft:
        draft.happened = draft.landed = ctx.branches.close(name, opened, BRANCH_DELETED_CAUSE)
    if draft.happened:
        ctx.markers.publish(ctx.branches, name)
        multipart.abort_all(ctx, name)
    return draft.happened


def _ended_error(name: BranchName, why: str) -> TransactionEnded:
    return TransactionEnded(
        f"the transaction of branch {name!r} has ended, and is not merged: {why}; begin another one, or take back what "
        f"it staged from the trash of {name!r} while the grace window lasts"
    )


def _describe_unmerged(begun: BegunTransaction, error: RefstoreError) -> str:
    """Say where the data is after an error, and for how long."""
    is_merged = "the log says whether the transaction is" if error.may_have_landed else "the transaction is not"
    return (
        f"{is_merged} in {begun.target!r}, and nothing of it is lost: it stays on the hidden branch {begun.branch!r} "
        f"until {format_utc(begun.lease_until_ms)}; before then commit what is staged there, if anything is, and merge "
        "that branch, or create another one at its head"
    )
