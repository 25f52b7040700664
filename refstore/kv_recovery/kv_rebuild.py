"""Make a KV from the object store alone: repositories, commits, branches, tags, and where the contents of purged
objects lie (rules 21 and 22).

Names of repositories are written last, and then the lake's id, so that nobody finds one that is not complete. What was
staged is lost, and everything else that neither the manifest nor the audit log has; `NOT_REBUILT` says what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from refstore import lake_identity
from refstore.context import Context
from refstore.errors import Conflict, NotFound
from refstore.kv_recovery.kv_verification import MissingTree, find_missing_trees
from refstore.kv_recovery.lake_parts import (
    SILENT,
    Entries,
    LakeAccess,
    RestoredRecord,
    Watcher,
    fence_of,
    index_entries,
)
from refstore.kv_recovery.manifest_check import is_removed
from refstore.kv_recovery.record_restore import (
    NAMESPACE_NOT_OWNED,
    RecordRestore,
    claim_namespace,
    own_context,
    write_repository_record,
)
from refstore.kv_recovery.superseded_records import settle_superseded_records
from refstore.namespaces import folder_url
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.manifest import RepositoryCreated

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


@dataclass(slots=True)
class RebuildResult:
    """What was made, or would be."""

    repositories: int = 0
    deleted_repositories: int = 0
    """Deleted repositories whose data is still there; the offline job clears them."""
    commits: int = 0
    branches: int = 0
    tags: int = 0
    not_restored: list[RestoredRecord] = field(default_factory=list[RestoredRecord])
    """What could not be made, and why."""
    settled_records: list[RestoredRecord] = field(default_factory=list[RestoredRecord])
    """What the audit log knows: legal holds and pins were put back, and access keys are lost."""
    missing_trees: list[MissingTree] = field(default_factory=list[MissingTree])
    """Commits whose metaranges are not in the store; they were made all the same."""


def check_empty(lake: LakeAccess) -> None:
    """Raise Conflict if the KV has a repository."""
    for partition in (keys.REPOSITORIES, keys.CLOSED_REPOSITORIES, keys.CLEARED_REPOSITORIES):
        names = [name for name, _ in lake.kv.scan(partition, limit=1)]
        if names:
            raise Conflict(
                f"the KV is not empty: it has repository {names[0]!r}. To put back what it lost, run `refstore kv "
                "reconcile`; to make a new KV, name an empty one with --kv"
            )


def rebuild_kv(lake: LakeAccess, *, dry_run: bool = False, watcher: Watcher = SILENT) -> RebuildResult:
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
        return _rebuild_repositories(lake, created, entries, watcher, dry_run=True)
    with lake.audit.change("kv.rebuild") as draft:
        made = _rebuild_repositories(lake, created, entries, watcher, dry_run=False)
        draft.after = {
            "repositories": made.repositories,
            "commits": made.commits,
            "branches": made.branches,
            "tags": made.tags,
        }
    return made


def _rebuild_repositories(
    lake: LakeAccess,
    created: list[RepositoryCreated],
    entries: Entries,
    watcher: Watcher,
    *,
    dry_run: bool,
) -> RebuildResult:
    made = RebuildResult()
    complete: list[RepositoryCreated] = []
    names: set[str] = set()
    for entry in created:
        if is_removed(entry, entries):
            made.deleted_repositories += _write_deleted_repository(lake, entry, dry_run=dry_run)
            continue
        ctx = own_context(lake, entry)
        if entry.name in names:
            reason = "a newer repository has its name"
        elif ctx is None:
            reason = NAMESPACE_NOT_OWNED
        else:
            reason = "" if dry_run else claim_namespace(lake, entry)
        if reason or ctx is None:
            made.not_restored.append(RestoredRecord(entry.name, "repository", entry.name, f"left: {reason}"))
            continue
        names.add(entry.name)
        watcher.describe(f"making {entry.name}")
        _rebuild_repository(ctx, made, watcher, dry_run=dry_run)
        complete.append(entry)
    if not dry_run:
        for entry in complete:
            reason = write_repository_record(lake, entry)
            if reason:
                made.not_restored.append(RestoredRecord(entry.name, "repository", entry.name, f"left: {reason}"))
        fence = fence_of(lake, f"rebuild-{lake.ids.new_id(lake.clock.now_ms())}")
        fence.replace_lost(lambda: None)  # nothing is staged, so there is nothing to settle
        fence.unblock()
        made.settled_records = settle_superseded_records(lake)
        # last: until then no other process opens the lake
        lake_identity.unify_ids(lake.kv, lake.own_store, lake.ids.new_id(lake.clock.now_ms()))
    made.repositories = len(complete)
    return made


def _rebuild_repository(ctx: Context, made: RebuildResult, watcher: Watcher, *, dry_run: bool) -> None:
    own = index_entries(ctx.manifest.read_all())
    for item in RecordRestore(ctx, own, watcher, dry_run=dry_run, protect=False).run():
        if item.outcome.startswith("left"):
            made.not_restored.append(item)
            continue
        made.commits += item.kind == "commit"
        made.branches += item.kind == "branch"
        made.tags += item.kind == "tag"
    made.missing_trees += find_missing_trees(ctx, own)


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
