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

If nothing is left of the KV, `rebuild_kv` makes one from the object store alone: repositories, commits, branches, tags,
and where the contents of purged objects lie (rule 22). Names of repositories are written last, and then the lake's id.
What was staged is lost, and everything else that neither the manifest nor the audit log has; `NOT_REBUILT` says what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from refstore import lake_identity
from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import RepositoryName
from refstore.errors import Conflict, NotFound
from refstore.kv.base import ABSENT
from refstore.kv_recovery.fence import PositionFence
from refstore.kv_recovery.kv_verification import KvFinding, find_missing_trees, have_servers_changed
from refstore.kv_recovery.lake_parts import (
    NO_PROGRESS,
    Entries,
    LakeAccess,
    Progress,
    RestoredRecord,
    fence_of,
    index_entries,
    open_repositories,
)
from refstore.kv_recovery.manifest_check import find_lost_entries, find_lost_repositories, is_removed, read_in_batches
from refstore.kv_recovery.record_restore import (
    PAGE,
    RecordRestore,
    own_context,
    protect_commits,
    report_repository,
    restore_contents,
    write_repository_record,
)
from refstore.kv_recovery.settlement import settle_repository
from refstore.kv_recovery.superseded_records import end_sessions, settle_superseded_records
from refstore.namespaces import folder_url
from refstore.operations.breaker_states import BreakerStates
from refstore.records import keys
from refstore.records.encoding import decode, encode
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
    others = have_servers_changed(lake)
    lost = find_lost_repositories(lake.kv, lake.manifest, index_entries(lake.manifest.read_all()).values())
    created = [item.entry for item in lost if isinstance(item.entry, RepositoryCreated)]
    done, _ = _restore_lost(lake, created, progress, dry_run=dry_run, protect=True)
    for name, record in list(lake.all_repositories()):
        progress.describe(f"putting back what {name} lost")
        ctx = lake.context(name, record)
        repair = RecordRestore(ctx, index_entries(ctx.manifest.read_all()), progress, dry_run=dry_run, protect=True)
        done += repair.run(commits_only=bool(record.closed_ms), servers_changed=others)
    return done


def _restore_lost(
    lake: LakeAccess, created: Sequence[RepositoryCreated], progress: Progress, *, dry_run: bool, protect: bool
) -> tuple[list[RestoredRecord], list[RepositoryCreated]]:
    """Put back lost repositories. Their names come last, so that nobody finds one that is not complete. Return what was
    done, and which are complete. `protect`: as of `RecordRestore`.
    """
    done: list[RestoredRecord] = []
    complete: dict[RepositoryName, RepositoryCreated] = {}
    for entry in created:
        progress.describe(f"putting back {entry.name}")
        is_taken = entry.name in complete or lake.kv.get(keys.repository(entry.name)) is not ABSENT
        contents, reason = restore_contents(
            lake, entry, progress, dry_run=dry_run, protect=protect, is_name_taken=is_taken
        )
        done += contents
        if reason:
            done.append(report_repository(entry, reason))
        else:
            complete[entry.name] = entry
    for entry in complete.values():
        if protect and not dry_run:
            BreakerStates(lake.context(entry.name, decode(entry.record, RepositoryRecord))).stop()
        done.append(report_repository(entry, "" if dry_run else write_repository_record(lake, entry)))
    return done, list(complete.values())


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


NOT_REBUILT: Final = (
    "staged changes of every branch, deleted objects in their grace window, and addresses that were issued",
    "access keys: make new ones with `refstore keys create`",
    "retention rules but for the pins and legal holds of the newest ones: set them again; until then nothing expires",
    "marks and runs of the offline job: expired commits count as active again; swept ones name objects that are gone",
    "metadata of repositories that was changed since they were made",
    "the purge document: onboard it again",
    "imports under way, and the key that signs issued addresses, if none is configured",
    "the heads of the audit log: accept the older entries with `refstore audit accept`",
)


_COUNTED_KINDS: Final = {
    "repository": "repositories",
    "deleted repository": "deleted_repositories",
    "commit": "commits",
    "branch": "branches",
    "tag": "tags",
}


class RebuildResult(NamedTuple):
    """What was made, or would be."""

    records: list[RestoredRecord]
    """Also what could not be made. A `deleted repository` is one whose data is still there; the offline job clears it.
    """
    missing_trees: list[KvFinding]
    """Commits whose metaranges are not in the store; they were made all the same."""
    settled_records: list[RestoredRecord]
    """What the audit log knows: legal holds and pins were put back, and access keys are lost."""

    @property
    def not_restored(self) -> list[RestoredRecord]:
        return [item for item in self.records if item.outcome.startswith("left")]

    def count_kinds(self) -> dict[str, int]:
        """Return how many records of each kind were made."""
        kinds = Counter(item.kind for item in self.records)
        kinds.subtract(item.kind for item in self.not_restored)
        return {plural: kinds[kind] for kind, plural in _COUNTED_KINDS.items()}


def check_empty(lake: LakeAccess) -> None:
    """Raise Conflict if the KV has a repository."""
    for partition in (keys.REPOSITORIES, keys.CLOSED_REPOSITORIES, keys.CLEARED_REPOSITORIES):
        names = [name for name, _ in lake.kv.scan(partition, limit=1)]
        if names:
            raise Conflict(
                f"the KV is not empty: it has repository {names[0]!r}. To put back what it lost, run `refstore kv "
                "reconcile`; to make a new KV, name an empty one with --kv"
            )


def rebuild_kv(lake: LakeAccess, *, dry_run: bool = False, progress: Progress = NO_PROGRESS) -> RebuildResult:
    """Make the KV from the object store, and return what was made. No client may run meanwhile.

    Raises Conflict (the KV has repositories), NotFound (there is no manifest), AuditUnavailable, Corrupt, Unavailable.
    """
    check_empty(lake)
    entries = index_entries(lake.manifest.read_all())
    created = sorted(
        (entry for entry in entries.values() if isinstance(entry, RepositoryCreated)),
        key=lambda entry: -decode(entry.record, RepositoryRecord).created_ms,
    )
    if not created:
        raise NotFound("the object store has no manifest of repositories; is it the right one? See `refstore config`")
    if dry_run:
        return _rebuild_repositories(lake, created, entries, progress, dry_run=True)
    with lake.audit.change("kv.rebuild") as draft:
        made = _rebuild_repositories(lake, created, entries, progress, dry_run=False)
        draft.after = {**made.count_kinds()}
    return made


def _rebuild_repositories(
    lake: LakeAccess, created: list[RepositoryCreated], entries: Entries, progress: Progress, *, dry_run: bool
) -> RebuildResult:
    made = RebuildResult([], [], [])
    for entry in created:
        if is_removed(entry, entries) and _write_deleted_repository(lake, entry, dry_run=dry_run):
            made.records.append(RestoredRecord(entry.name, "deleted repository", entry.name, "put back"))
    there = [entry for entry in created if not is_removed(entry, entries)]
    done, complete = _restore_lost(lake, there, progress, dry_run=dry_run, protect=False)
    made.records.extend(done)
    for entry in complete:
        ctx = lake.context(entry.name, decode(entry.record, RepositoryRecord))
        made.missing_trees.extend(find_missing_trees(ctx, index_entries(ctx.manifest.read_all())))
    if not dry_run:
        fence = fence_of(lake, f"rebuild-{lake.ids.new_id(lake.clock.now_ms())}")
        fence.replace_lost(lambda: None)  # nothing is staged, so there is nothing to settle
        fence.unblock()
        made.settled_records.extend(settle_superseded_records(lake))
        # last: until then no other process opens the lake
        lake_identity.unify_ids(lake.kv, lake.own_store, lake.ids.new_id(lake.clock.now_ms()))
    return made


def _write_deleted_repository(lake: LakeAccess, entry: RepositoryCreated, *, dry_run: bool) -> bool:
    """Write the record of a deleted repository whose data is still there, so that the offline job clears it. Return
    whether there is one.
    """
    if own_context(lake, entry) is None:
        return False
    if not dry_run:
        record = decode(entry.record, RepositoryRecord)
        closed = msgspec.structs.replace(record, closed_ms=max(1, lake.clock.now_ms()))
        lake.kv.set_many(
            [
                (keys.namespace(folder_url(record.namespace)), entry.id.encode()),
                (keys.closed_repository(entry.id), encode(closed)),
            ]
        )
    return True
