"""Settle a lake whose KV went back in time, so that deletion goes on.

    1. block      stop hard deletion in every repository, and let no deleter begin a pass
    2. put back   what the manifest has (`record_restore.py`); settle what is older than the audit log says
                  (`superseded_records.py`), and end all sessions
    3. give up    what cannot be put back, if an operator accepts that
    4. wait       until the operations that began before have ended, as they may rest on what was lost
    5. settle     every repository, and put beyond the reaper what commits added; witness what the KV holds now, and
                  remove the witnesses that it does not hold
    6. unblock, then let hard deletion go on in every repository

After a crash anywhere the block is still there, or a breaker is still tripped, and the same is done again.
"""

from __future__ import annotations

from typing import Final

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.kv.base import ABSENT
from refstore.kv_recovery.fence import PositionFence
from refstore.kv_recovery.kv_verification import have_servers_changed
from refstore.kv_recovery.lake_parts import (
    NO_PROGRESS,
    LakeAccess,
    Progress,
    RestoredRecord,
    fence_of,
    index_entries,
    open_repositories,
)
from refstore.kv_recovery.manifest_check import find_lost_entries, find_lost_repositories, read_in_batches
from refstore.kv_recovery.record_restore import (
    PAGE,
    RecordRestore,
    protect_commits,
    report_repository,
    restore_contents,
    write_repository_record,
)
from refstore.kv_recovery.settlement import settle_repository
from refstore.kv_recovery.superseded_records import end_sessions, settle_superseded_records
from refstore.operations.breaker_states import BreakerStates
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.manifest import CommitLanded, Manifest, RepositoryCreated, accept_loss

WAIT_SECONDS: Final = 5.0
NAMED_MAX: Final = 100
"""How many of the things that were put back the audit log names."""


def restore_lost_records(
    lake: LakeAccess, *, dry_run: bool = False, progress: Progress = NO_PROGRESS
) -> list[RestoredRecord]:
    """Put back what the manifest has and the KV does not know, and return what became of it; block all deletion first.
    Raises AuditUnavailable, Corrupt, Unavailable.
    """
    if dry_run:
        return _restore_all(lake, progress, dry_run=True)
    with lake.audit.change("kv.reconcile") as draft:
        for ctx in open_repositories(lake):
            BreakerStates(ctx).stop()
        _new_fence(lake).block()
        done = _restore_all(lake, progress, dry_run=False)
        draft.after = {
            "restored_records": len(done),
            "named": [f"{item.repository}: {item.kind} {item.name}: {item.outcome}" for item in done[:NAMED_MAX]],
        }
    return done


def settle_lake(
    lake: LakeAccess, *, accept: bool, clients_stopped: bool = False, progress: Progress = NO_PROGRESS
) -> dict[str, int]:
    """Settle every repository, and let deletion go on. Return what was done.

    `accept`: give up what cannot be put back; the caller has made sure that otherwise nothing is missing.
    `clients_stopped`: no operation that began before the KV went back is under way, so do not wait for any. Raises
    AuditUnavailable, Corrupt, Unavailable.
    """
    fence = _new_fence(lake)
    while not clients_stopped:
        began_ms = fence.block()
        _wait_for_operations(lake, began_ms, progress)
        if fence.block() == began_ms:
            break  # else other servers answer by now
    fence.block()
    done: dict[str, int] = {}
    with lake.audit.change("kv.settle", after={"accepted": accept}) as draft:
        done["given_up"] = _accept_losses(lake) if accept else 0

        def settle_all() -> None:
            settled = 0
            for name, record in lake.all_repositories():
                progress.describe(f"settling {name}")
                ctx = lake.context(name, record)
                settle_repository(ctx)
                _protect_commits(ctx, progress)
                settled += 1
            done["settled"] = settled

        done["witnesses_removed"] = fence.replace_lost(settle_all)
        fence.unblock()
        done["resumed"] = sum(BreakerStates(lake.context(*each)).end_stop() for each in lake.all_repositories())
        draft.after = {"accepted": accept, **done}
    return done


def _protect_commits(ctx: Context, progress: Progress) -> None:
    """Put what every commit added beyond the reaper again. A server may have lost that it was, after the commit was
    processed and its entry confirmed.
    """
    progress.describe(f"protecting the commits of {ctx.name}")
    entries = index_entries(ctx.manifest.read_all()).values()
    commits = [entry.commit for entry in entries if isinstance(entry, CommitLanded)]
    for page in split_batches(commits, PAGE):
        values = read_in_batches(ctx.kv, [keys.commit(ctx.repo, commit) for commit in page])
        protect_commits(ctx, [commit for commit, value in zip(page, values, strict=True) if value is not ABSENT])
        progress.advance(len(page))


def _restore_all(lake: LakeAccess, progress: Progress, *, dry_run: bool) -> list[RestoredRecord]:
    done = _restore_repositories(lake, progress, dry_run=dry_run)
    done += settle_superseded_records(lake, dry_run=dry_run)  # behind them: commits that were pinned are there again
    return done + end_sessions(lake, dry_run=dry_run)


def _restore_repositories(lake: LakeAccess, progress: Progress, *, dry_run: bool) -> list[RestoredRecord]:
    done: list[RestoredRecord] = []
    others = have_servers_changed(lake)
    for item in find_lost_repositories(lake.kv, lake.manifest, index_entries(lake.manifest.read_all()).values()):
        assert isinstance(item.entry, RepositoryCreated)  # noqa: S101  # find_lost_repositories returns no others
        done += _restore_repository(lake, item.entry, progress, dry_run=dry_run)
    for name, record in list(lake.all_repositories()):
        progress.describe(f"putting back what {name} lost")
        ctx = lake.context(name, record)
        repair = RecordRestore(ctx, index_entries(ctx.manifest.read_all()), progress, dry_run=dry_run, protect=True)
        done += repair.run(commits_only=bool(record.closed_ms), servers_changed=others)
    return done


def _restore_repository(
    lake: LakeAccess, entry: RepositoryCreated, progress: Progress, *, dry_run: bool
) -> list[RestoredRecord]:
    """Put back a lost repository; its name comes last."""
    is_name_taken = lake.kv.get(keys.repository(entry.name)) is not ABSENT
    done, reason = restore_contents(lake, entry, progress, dry_run=dry_run, protect=True, is_name_taken=is_name_taken)
    if not reason and not dry_run:
        BreakerStates(lake.context(entry.name, decode(entry.record, RepositoryRecord))).stop()
        reason = write_repository_record(lake, entry)
    return [*done, report_repository(entry, reason)]


def _accept_losses(lake: LakeAccess) -> int:
    """Write that what is still lost was given up, and confirm commits that cannot be read. Return how many there
    were.
    """
    given = 0
    for item in find_lost_repositories(lake.kv, lake.manifest, index_entries(lake.manifest.read_all()).values()):
        lake.manifest.add(accept_loss(item.entry))
        given += 1
    others = have_servers_changed(lake)
    for ctx in open_repositories(lake):
        own = index_entries(ctx.manifest.read_all())
        for item in find_lost_entries(ctx, [*own.values()], explained_by=own, servers_changed=others):
            ctx.manifest.add(accept_loss(item.entry))
            given += 1
        given += _confirm_unreadable(ctx, ctx.manifest)
    return given


def _confirm_unreadable(ctx: Context, manifest: Manifest) -> int:
    """Confirm waiting commits whose additions cannot be read: no pass could ever put them beyond the reaper."""
    commits = {entry.commit: entry for entry in manifest.read_waiting() if isinstance(entry, CommitLanded)}
    unreadable = [commits[commit] for commit in protect_commits(ctx, commits)]
    manifest.confirm(unreadable, ctx.ids.new_id(ctx.clock.now_ms()))
    return len(unreadable)


def _wait_for_operations(lake: LakeAccess, began_ms: int, progress: Progress) -> None:
    lake.durations.refresh()
    ends_ms = lake.durations.waits.operations_end_ms(began_ms)
    while (left := (ends_ms - lake.clock.now_ms()) / 1000) > 0:
        progress.describe(f"waiting {left:.0f} s for operations that began before")
        lake.clock.sleep(min(left, WAIT_SECONDS))


def _new_fence(lake: LakeAccess) -> PositionFence:
    return fence_of(lake, f"reconcile-{lake.ids.new_id(lake.clock.now_ms())}")
