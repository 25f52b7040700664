"""Make a KV from the object store alone: repositories, commits, branches, tags, and where the contents of purged
objects lie (rules 21 and 22).

Names of repositories are written last, and then the lake's id, so that nobody finds one that is not complete. What was
staged is lost, and everything else that the manifest does not have; `NOT_REBUILT` says what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from refstore import lake_identity
from refstore.context import Context
from refstore.core import keys
from refstore.core.records import RepositoryRecord, decode, encode
from refstore.errors import Conflict, NotFound
from refstore.losses.known import is_gone, removals
from refstore.losses.lake_parts import LakeParts, NoWatcher, Watcher, fence_of, unique
from refstore.losses.putting_back import NOT_ITS_OWN, PutBack, Repair, claim, own_context, write_name
from refstore.losses.verifying import MissingTree, missing_trees
from refstore.namespaces import as_folder
from refstore.versioning.manifest import RepositoryCreated

NOT_REBUILT: Final = (
    "staged changes of every branch, deleted objects in their grace window, and addresses that were issued",
    "access keys: make new ones with `refstore keys create`",
    "retention rules, pins and legal holds: set them before the offline job runs again",
    "marks and runs of the offline job: expired commits count as active again; swept ones name objects that are gone",
    "metadata of repositories that was changed since they were made",
    "the purge document: onboard it again",
    "imports under way, the agreed durations, and the key that signs issued addresses, if none is configured",
    "the heads of the audit log: `refstore audit verify` calls the older entries forged",
)


@dataclass(slots=True)
class Rebuilt:
    """What was made, or would be."""

    repositories: int = 0
    deleted_repositories: int = 0
    """Deleted repositories whose data is still there; the offline job clears them."""
    commits: int = 0
    branches: int = 0
    tags: int = 0
    left: list[PutBack] = field(default_factory=list[PutBack])
    """What could not be made, and why."""
    trees: list[MissingTree] = field(default_factory=list[MissingTree])
    """Commits whose metaranges are not in the store; they were made all the same."""


def check_empty(lake: LakeParts) -> None:
    """Raise Conflict if the KV has a repository."""
    for partition in (keys.REPOSITORIES, keys.CLOSED_REPOSITORIES, keys.CLEARED_REPOSITORIES):
        names = [name for name, _ in lake.kv.scan(partition, limit=1)]
        if names:
            raise Conflict(
                f"the KV is not empty: it has repository {names[0]!r}. To put back what it lost, run `refstore kv "
                "reconcile`; to make a new KV, name an empty one with --kv"
            )


def rebuild(lake: LakeParts, *, dry_run: bool = False, watcher: Watcher | None = None) -> Rebuilt:
    """Make the KV from the object store, and return what was made. No client may run meanwhile.

    Raises Conflict (the KV has repositories), NotFound (there is no manifest), AuditUnavailable, Corrupt, Unavailable.
    """
    shown = watcher or NoWatcher()
    check_empty(lake)
    entries = unique(lake.manifest.all())
    gone = removals(entries.values())
    created = sorted(
        (entry for entry in entries.values() if isinstance(entry, RepositoryCreated)),
        key=lambda entry: -decode(entry.record, RepositoryRecord).created_ms,
    )
    if not created:
        raise NotFound("the object store has no manifest of repositories; is it the right one? See `refstore config`")
    if dry_run:
        return _rebuild(lake, created, gone, shown, dry_run=True)
    with lake.audit.change("kv.rebuild") as draft:
        made = _rebuild(lake, created, gone, shown, dry_run=False)
        draft.after = {
            "repositories": made.repositories,
            "commits": made.commits,
            "branches": made.branches,
            "tags": made.tags,
        }
    return made


def _rebuild(
    lake: LakeParts,
    created: list[RepositoryCreated],
    gone: set[tuple[type, tuple[str, ...]]],
    shown: Watcher,
    *,
    dry_run: bool,
) -> Rebuilt:
    made = Rebuilt()
    complete: list[RepositoryCreated] = []
    names: set[str] = set()
    for entry in created:
        if is_gone(entry, gone):
            made.deleted_repositories += _keep_deleted(lake, entry, dry_run=dry_run)
            continue
        ctx = own_context(lake, entry)
        if entry.name in names:
            reason = "a newer repository has its name"
        elif ctx is None:
            reason = NOT_ITS_OWN
        else:
            reason = "" if dry_run else claim(lake, entry)
        if reason or ctx is None:
            made.left.append(PutBack(entry.name, "repository", entry.name, f"left: {reason}"))
            continue
        names.add(entry.name)
        shown.describe(f"making {entry.name}")
        _make(ctx, made, shown, dry_run=dry_run)
        complete.append(entry)
    if not dry_run:
        for entry in complete:
            reason = write_name(lake, entry)
            if reason:
                made.left.append(PutBack(entry.name, "repository", entry.name, f"left: {reason}"))
        fence = fence_of(lake, f"rebuild-{lake.ids.unique(lake.clock.now_ms())}")
        fence.replace_lost(lambda: None)  # nothing is staged, so there is nothing to settle
        fence.unblock()
        # last: until then no other process opens the lake
        lake_identity.make_one(lake.kv, lake.own_store, lake.ids.unique(lake.clock.now_ms()))
    made.repositories = len(complete)
    return made


def _make(ctx: Context, made: Rebuilt, shown: Watcher, *, dry_run: bool) -> None:
    own = unique(ctx.manifest.all())
    for item in Repair(ctx, own, shown, dry_run=dry_run, protect=False).run():
        if item.outcome.startswith("left"):
            made.left.append(item)
            continue
        made.commits += item.what == "commit"
        made.branches += item.what == "branch"
        made.tags += item.what == "tag"
    made.trees += missing_trees(ctx, own)


def _keep_deleted(lake: LakeParts, entry: RepositoryCreated, *, dry_run: bool) -> bool:
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
                (keys.namespace(as_folder(record.namespace)), entry.id.encode()),
                (keys.closed_repository(entry.id), encode(closed)),
            ]
        )
    return True
