"""Make a KV from the object store alone: repositories, commits, branches, tags, and where the contents of purged
objects lie (rules 21 and 22).

Names of repositories are written last, and then the lake's id, so that nobody finds one that is not complete. What was
staged is lost, and everything else that neither the manifest nor the audit log has; `NOT_REBUILT` says what.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import msgspec

from refstore import lake_identity
from refstore.core.ids import RepositoryName
from refstore.errors import Conflict, NotFound
from refstore.kv_recovery.kv_verification import KvFinding, find_missing_trees
from refstore.kv_recovery.lake_parts import (
    NO_PROGRESS,
    Entries,
    LakeAccess,
    Progress,
    RestoredRecord,
    fence_of,
    index_entries,
)
from refstore.kv_recovery.manifest_check import is_removed
from refstore.kv_recovery.record_restore import (
    own_context,
    report_repository,
    restore_contents,
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
    complete: dict[RepositoryName, RepositoryCreated] = {}
    for entry in created:
        if is_removed(entry, entries):
            if _write_deleted_repository(lake, entry, dry_run=dry_run):
                made.records.append(RestoredRecord(entry.name, "deleted repository", entry.name, "put back"))
            continue
        progress.describe(f"making {entry.name}")
        is_taken = entry.name in complete
        done, reason = restore_contents(lake, entry, progress, dry_run=dry_run, protect=False, is_name_taken=is_taken)
        made.records.extend(done)
        if reason:
            made.records.append(report_repository(entry, reason))
            continue
        complete[entry.name] = entry
        ctx = lake.context(entry.name, decode(entry.record, RepositoryRecord))
        made.missing_trees.extend(find_missing_trees(ctx, index_entries(ctx.manifest.read_all())))
    for entry in complete.values():
        made.records.append(report_repository(entry, "" if dry_run else write_repository_record(lake, entry)))
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
