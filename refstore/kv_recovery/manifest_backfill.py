"""Write what the KV has and the manifest lacks. It may be repeated at any time.

What it confirms nobody compares with the KV again, so a later position must stand for it (rule 21): it reads the KV,
passes the fence, and confirms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, CommitId
from refstore.kv.base import ABSENT
from refstore.kv_recovery.fence import Fence, refuse_to_settle
from refstore.kv_recovery.kv_verification import ManifestGap
from refstore.kv_recovery.lake_parts import SILENT, Entries, LakeAccess, Watcher, fence_of, index_entries
from refstore.kv_recovery.manifest_check import read_in_batches
from refstore.records import keys
from refstore.records.branch_records import Branch
from refstore.records.commit_records import Commit
from refstore.records.encoding import decode, encode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.manifest import (
    AnyEntry,
    BranchCreated,
    CommitLanded,
    Manifest,
    RecordCreated,
    RepositoryCreated,
)

PAGE: Final = 5000
"""How many entries one object of the manifest gets."""


def backfill_manifest(lake: LakeAccess, *, watcher: Watcher = SILENT) -> list[ManifestGap]:
    """Write what the KV has and the manifest lacks; return how much that was, of repositories that lacked anything.
    Raises CorruptObject, CorruptRecord, KVSettling, KVUnavailable, KVWentBack, ObjectsUnavailable.
    """
    fence = fence_of(lake, f"record-{lake.ids.new_id(lake.clock.now_ms())}")
    fence.begin(refuse_to_settle)
    done: list[ManifestGap] = []
    known = index_entries(lake.manifest.read_all())
    for name, record in list(lake.all_repositories()):
        if record.closed_ms:
            continue
        watcher.describe(f"recording {name}")
        counts = _backfill_repository(lake.context(name, record), record, fence, watcher)
        itself = (RepositoryCreated, (record.id,)) not in known
        if itself:  # last, as a repository is made
            _add_confirmed(
                lake.manifest, lake.context(name, record), [RepositoryCreated(name, record.id, encode(record))]
            )
        if itself or any(counts):
            done.append(ManifestGap(name, *counts, repository_entry=itself))
    return done


def _backfill_repository(
    ctx: Context, record: RepositoryRecord, fence: Fence, watcher: Watcher
) -> tuple[int, int, int]:
    # What landed is read before the manifest: by then each new commit has an entry, which its deleter confirms.
    landed = [CommitId(name) for name, _ in ctx.kv.scan_all(keys.landed_commits(ctx.repo))]
    tags = list(ctx.kv.scan_all(keys.tags(ctx.repo)))
    branches = list(ctx.branches.scan_open())
    known = index_entries(ctx.manifest.read_all())
    commits = _find_missing_commits(ctx, record, landed, branches, known)
    made: list[AnyEntry] = [
        BranchCreated(name, branch.id, branch.head, branch.created_ms, branch.is_hidden)
        for name, branch in branches
        if (BranchCreated, (name, branch.id)) not in known
    ]
    kept: list[AnyEntry] = [
        entry
        for name, value in tags
        if (RecordCreated, (entry := RecordCreated(keys.tags(ctx.repo), name, value)).identity) not in known
    ]
    markers = read_in_batches(ctx.kv, [keys.committed_marker(ctx.repo, entry.commit) for entry in commits])
    waiting = [entry for entry, marker in zip(commits, markers, strict=True) if marker is not ABSENT]
    processed = [entry for entry, marker in zip(commits, markers, strict=True) if marker is ABSENT]
    for entry in waiting:  # the reaper has yet to put what they added beyond itself
        ctx.manifest.add(entry)
    fence.pass_through()
    for page in split_batches([*processed, *made, *kept], PAGE):
        _add_confirmed(ctx.manifest, ctx, page)
        watcher.advance(len(page))
    return len(commits), len(made), len(kept)


def _find_missing_commits(
    ctx: Context,
    record: RepositoryRecord,
    landed: list[CommitId],
    branches: list[tuple[BranchName, Branch]],
    known: Entries,
) -> list[CommitLanded]:
    """Return the entries of commits that have none, each with the branch whose line it is in, the default one first."""
    records = dict(
        zip(landed, read_in_batches(ctx.kv, [keys.commit(ctx.repo, commit) for commit in landed]), strict=True)
    )
    owners: dict[CommitId, tuple[BranchName, str]] = {}
    for name, branch in sorted(branches, key=lambda each: (each[0] != record.default_branch, each[1].created_ms)):
        commit = branch.head
        while commit not in owners and isinstance(raw := records.get(commit), bytes):
            owners[commit] = (name, branch.id)
            parents = decode(raw, Commit).parents
            if not parents:
                break
            commit = parents[0]
    return [
        CommitLanded(commit, raw, *owners.get(commit, (BranchName(""), "")))
        for commit, raw in records.items()
        if isinstance(raw, bytes) and (CommitLanded, (commit,)) not in known
    ]


def _add_confirmed(manifest: Manifest, ctx: Context, entries: Iterable[AnyEntry]) -> None:
    manifest.confirm(list(entries), ctx.ids.new_id(ctx.clock.now_ms()))
