"""Find what the KV has and the manifest lacks, or calls deleted; and write it.

The manifest lacks what was made while the object store did not answer, or what the object store has lost. A branch or a
tag that the manifest calls deleted came back with an older KV: from now on it counts as a new one.

What is confirmed here nobody compares with the KV again, so a later position must stand for it (rule 21): the KV is
read, the fence passed, and then the entries are confirmed. It may be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, CommitId, RepositoryName
from refstore.errors import BranchNotFound
from refstore.kv.base import ABSENT
from refstore.kv_recovery.fence import PositionFence, refuse_to_settle
from refstore.kv_recovery.lake_parts import NO_PROGRESS, Entries, LakeAccess, Progress, fence_of, index_entries
from refstore.kv_recovery.manifest_check import read_in_batches
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, StoredTag
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, encode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.branches import ATTEMPTS
from refstore.versioning.manifest import (
    AnyEntry,
    BranchCreated,
    BranchDeleted,
    CommitLanded,
    Manifest,
    RecordCreated,
    RecordRemoved,
    RepositoryCreated,
)

PAGE: Final = 5000
"""How many entries one object of the manifest gets."""


class ManifestGap(NamedTuple):
    """What the manifest of a repository lacks of what the KV has."""

    repository: RepositoryName
    commits: list[CommitId]
    branches: list[tuple[BranchName, StoredBranch]]
    tags: list[RecordCreated]
    reappeared_branches: list[BranchName]
    """Those that the manifest calls deleted."""
    reappeared_tags: list[RecordCreated]
    has_repository_entry: bool

    def __str__(self) -> str:
        parts = [f"{len(self.commits)} commits, {len(self.branches)} branches, {len(self.tags)} tags"]
        parts += [] if self.has_repository_entry else ["the repository itself"]
        parts += [f"deleted branch {name!r}, which is there" for name in self.reappeared_branches]
        return ", ".join(parts + [f"deleted tag {tag.name!r}, which is there" for tag in self.reappeared_tags])

    @property
    def is_empty(self) -> bool:
        return self.has_repository_entry and not any(self[1:-1])


def find_gap(ctx: Context, lake_entries: Entries) -> tuple[ManifestGap, Entries]:
    """Return what the manifest of a repository lacks, and the entries that it has. `lake_entries`: the lake's."""
    # what is there is read before the manifest: by then each new commit has an entry, which its deleter confirms
    landed = [CommitId(name) for name, _ in ctx.kv.scan_all(keys.landed_commits(ctx.repo))]
    tags = [RecordCreated(keys.tags(ctx.repo), name, value) for name, value in ctx.kv.scan_all(keys.tags(ctx.repo))]
    branches = list(ctx.branches.scan_open())
    known = index_entries(ctx.manifest.read_all())
    deleted = [(name, branch.id) for name, branch in branches if (BranchDeleted, (name, branch.id)) in known]
    removed = [tag for tag in tags if (RecordRemoved, tag.identity) in known]
    gap = ManifestGap(
        ctx.name,
        [commit for commit in landed if (CommitLanded, (commit,)) not in known],
        [
            (name, branch)
            for name, branch in branches
            if known.keys().isdisjoint([(BranchCreated, (name, branch.id)), (BranchDeleted, (name, branch.id))])
        ],
        [
            tag
            for tag in tags
            if known.keys().isdisjoint([(RecordCreated, tag.identity), (RecordRemoved, tag.identity)])
        ],
        # read again: what was deleted meanwhile is not there any more
        [name for name, id_ in deleted if isinstance(now := ctx.branches.read(name), StoredBranch) and now.id == id_],
        [tag for tag in removed if ctx.kv.get(tag.key) == tag.value],
        (RepositoryCreated, (ctx.repo,)) in lake_entries,
    )
    return gap, known


def fill_gaps(lake: LakeAccess, *, progress: Progress = NO_PROGRESS) -> list[ManifestGap]:
    """Write what the manifest lacks, and return it, of repositories that lacked anything. Raises CorruptObject,
    CorruptRecord, KVSettling, KVUnavailable, KVWentBack, ObjectsUnavailable.
    """
    fence = fence_of(lake, f"record-{lake.ids.new_id(lake.clock.now_ms())}")
    fence.begin(refuse_to_settle)
    filled: list[ManifestGap] = []
    lake_entries = index_entries(lake.manifest.read_all())
    for name, record in list(lake.all_repositories()):
        if record.closed_ms:
            continue
        progress.describe(f"recording {name}")
        ctx = lake.context(name, record)
        gap, _ = find_gap(ctx, lake_entries)
        if gap.is_empty:
            continue
        _fill_gap(ctx, record, gap, fence, progress)
        if not gap.has_repository_entry:  # last, as a repository is made
            _add_confirmed(lake.manifest, ctx, [RepositoryCreated(name, record.id, encode(record))])
        filled.append(gap)
    return filled


def _fill_gap(
    ctx: Context, record: RepositoryRecord, gap: ManifestGap, fence: PositionFence, progress: Progress
) -> None:
    commits = _describe_commits(ctx, record, set(gap.commits)) if gap.commits else []
    branches = [_describe_branch(name, each) for name, each in gap.branches]
    markers = read_in_batches(ctx.kv, [keys.committed_marker(ctx.repo, entry.commit) for entry in commits])
    processed: list[AnyEntry] = []
    for entry, marker in zip(commits, markers, strict=True):
        if marker is ABSENT:
            processed.append(entry)
        else:  # the reaper has yet to put what it added beyond itself
            ctx.manifest.add(entry)
    fence.pass_through()
    for page in split_batches([*processed, *branches, *gap.tags], PAGE):
        _add_confirmed(ctx.manifest, ctx, page)
        progress.advance(len(page))
    for name in gap.reappeared_branches:
        with suppress(BranchNotFound):
            _renew_branch(ctx, name)
    for tag in gap.reappeared_tags:
        now = ctx.clock.now_ms()
        renewed = encode(StoredTag(decode(tag.value, StoredTag).commit, now, ctx.ids.new_id(now)))
        if ctx.kv.set_if(tag.key, tag.value, renewed):
            ctx.manifest.add_record(tag.key, renewed, f"tag {tag.name!r} counts as a new one")


def _renew_branch(ctx: Context, name: BranchName) -> None:
    """Give a branch another id, so that it counts as a new one. Raises BranchNotFound, Contention."""
    for _ in range(ATTEMPTS):
        opened = ctx.branches.read_open(name)
        if renewed := ctx.branches.change(name, opened, id=ctx.ids.new_id(ctx.clock.now_ms())):
            ctx.manifest.add(_describe_branch(name, renewed))
            return
    raise ctx.branches.contention(name)


def _describe_branch(name: BranchName, record: StoredBranch) -> BranchCreated:
    return BranchCreated(
        name, record.id, record.head, record.created_ms, record.is_hidden, lease_until_ms=record.lease_until_ms
    )


def _describe_commits(ctx: Context, record: RepositoryRecord, unrecorded: set[CommitId]) -> list[CommitLanded]:
    """Return the entries of commits, each with the branch whose line it is in, the default one first."""
    landed = [CommitId(name) for name, _ in ctx.kv.scan_all(keys.landed_commits(ctx.repo))]
    records = dict(
        zip(landed, read_in_batches(ctx.kv, [keys.commit(ctx.repo, commit) for commit in landed]), strict=True)
    )
    owners: dict[CommitId, tuple[BranchName, str]] = {}
    branches = sorted(ctx.branches.scan_open(), key=lambda each: (each[0] != record.default_branch, each[1].created_ms))
    for name, branch in branches:
        commit = branch.head
        while commit not in owners and isinstance(raw := records.get(commit), bytes):
            owners[commit] = (name, branch.id)
            parents = decode(raw, StoredCommit).parents
            if not parents:
                break
            commit = parents[0]
    return [
        CommitLanded(commit, raw, *owners.get(commit, (BranchName(""), "")))
        for commit, raw in records.items()
        if commit in unrecorded and isinstance(raw, bytes)
    ]


def _add_confirmed(manifest: Manifest, ctx: Context, entries: Iterable[AnyEntry]) -> None:
    manifest.confirm(list(entries), ctx.ids.new_id(ctx.clock.now_ms()))
