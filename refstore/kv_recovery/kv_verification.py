"""Find out from where to where the KV went back, and what may be lost. It changes nothing.

The whole manifest is compared with the KV, the entries that deleters have witnessed included, and so is the audit log.
What the KV names is looked for in the object store: staged objects, and the metaranges of commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, CommitId, Path, RepositoryName, Token, is_own
from refstore.errors import WrongStore
from refstore.kv_recovery.fence import RECONCILE_WITNESS, read_witnesses
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
from refstore.kv_recovery.manifest_backfill import ManifestGap, find_gap
from refstore.kv_recovery.manifest_check import (
    describe_entry,
    find_lost_entries,
    find_lost_repositories,
)
from refstore.kv_recovery.superseded_records import settle_superseded_records
from refstore.operations.breaker_states import KV_WENT_BACK_REASON, BreakerStates
from refstore.operations.read import have_content
from refstore.records import keys
from refstore.records.commit_records import Commit
from refstore.records.encoding import decode
from refstore.records.repository_records import RepositoryRecord
from refstore.records.staging_records import Entry, decode_staged_many
from refstore.versioning.commits import object_names
from refstore.versioning.manifest import (
    CommitLanded,
    RepositoryCreated,
    RepositoryDeleted,
)

STAGED_BATCH: Final = 1000
"""How many staged entries are looked for at a time."""


class LostWitness(NamedTuple):
    """A position that a deleter had witnessed, and that the KV does not hold."""

    deleter: str
    partition: str
    server: str
    """The identity of the server that answers for the partition now."""
    witnessed_position: int
    witnessed_ms: int
    kv_position: int | None
    """None: the KV holds no position of this deleter."""
    kv_position_ms: int | None


class LostItem(NamedTuple):
    """What the manifest has, and the KV does not know."""

    repository: RepositoryName | str
    description: str
    reason: str


class MissingObject(NamedTuple):
    """A staged entry whose object is not in the store."""

    repository: RepositoryName
    branch: BranchName
    path: str
    address: str


class MissingTree(NamedTuple):
    """A commit whose metarange is not in the store."""

    repository: RepositoryName
    commit: CommitId
    metarange: str


@dataclass(slots=True)
class KvVerification:
    """What a look at the whole lake found."""

    witnesses: list[LostWitness] = field(default_factory=list[LostWitness])
    unreadable_witnesses: dict[str, str] = field(default_factory=dict[str, str])
    """Witnesses that cannot be read, and why."""
    lost_items: list[LostItem] = field(default_factory=list[LostItem])
    reappeared_repositories: list[RepositoryName] = field(default_factory=list[RepositoryName])
    """Deleted repositories that are there again. They stay until somebody deletes them."""
    missing_objects: list[MissingObject] = field(default_factory=list[MissingObject])
    missing_trees: list[MissingTree] = field(default_factory=list[MissingTree])
    superseded_records: list[RestoredRecord] = field(default_factory=list[RestoredRecord])
    """What the audit log says that is newer than the KV, and what `reconcile` would do."""
    manifest_gaps: list[ManifestGap] = field(default_factory=list[ManifestGap])
    stopped_repositories: list[RepositoryName] = field(default_factory=list[RepositoryName])
    """Repositories whose hard deletion is stopped because the KV went back."""
    reconcile_began_ms: int = 0
    """When a `reconcile` began that has not ended. 0: none has."""
    has_settled_servers: bool = True
    """Whether a deleter has settled under the servers that answer now, or none ever deleted anything."""

    @property
    def servers_changed(self) -> bool:
        """Whether other servers answer than anybody has settled under, or the KV lost a position."""
        return bool(self.witnesses) or not self.has_settled_servers

    @property
    def has_losses(self) -> bool:
        """Whether something is missing, so that deletion is stopped, or something cannot be read."""
        return bool(
            self.witnesses
            or self.unreadable_witnesses
            or self.lost_items
            or self.missing_objects
            or self.missing_trees
            or self.superseded_records
        )

    @property
    def has_unrestorable_losses(self) -> bool:
        """Whether something is missing that `reconcile` cannot put back."""
        return bool(self.unreadable_witnesses or self.lost_items or self.missing_objects or self.missing_trees)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is lost. The manifest may still lack something."""
        return not (
            self.witnesses
            or self.unreadable_witnesses
            or self.lost_items
            or self.superseded_records
            or self.stopped_repositories
            or self.reconcile_began_ms
            or not self.has_settled_servers
        )


def verify_kv(lake: LakeAccess, *, progress: Progress = NO_PROGRESS) -> KvVerification:
    """Look at the whole lake. Raises CorruptObject, CorruptRecord, KVUnavailable, ObjectsUnavailable."""
    found = KvVerification()
    _verify_witnesses(lake, found)
    progress.describe("comparing the KV with the audit log")
    found.superseded_records = settle_superseded_records(lake, dry_run=True)
    entries = index_entries(lake.manifest.read_all())
    missing = find_lost_repositories(lake.kv, lake.manifest, entries.values())
    for item in missing:
        found.lost_items.append(LostItem("", describe_entry(item.entry), item.reason))
        assert isinstance(item.entry, RepositoryCreated)  # noqa: S101  # find_lost_repositories returns no others
        try:
            ctx = lake.context(item.entry.name, decode(item.entry.record, RepositoryRecord))
        except WrongStore as error:
            found.lost_items.append(LostItem(item.entry.name, "namespace", str(error)))
        else:
            _verify_manifest(ctx, index_entries(ctx.manifest.read_all()), found)
    for ctx in open_repositories(lake):
        progress.describe(f"comparing {ctx.name} with its manifest")
        gap, own = find_gap(ctx, entries)
        _verify_manifest(ctx, own, found)
        if (RepositoryDeleted, (ctx.repo,)) in entries:
            found.reappeared_repositories.append(ctx.name)
        if not gap.is_empty:
            found.manifest_gaps.append(gap)
        progress.describe(f"looking for the staged objects of {ctx.name}")
        found.missing_objects += find_missing_objects(ctx, progress)
        _, state = BreakerStates(ctx).read()
        if state.tripped_ms and state.reason == KV_WENT_BACK_REASON:
            found.stopped_repositories.append(ctx.name)
    return found


def verify_lake(lake: LakeAccess) -> KvVerification:
    """Look at the witnesses, and at which repositories are lost, alone. Raises Corrupt, Unavailable."""
    found = KvVerification()
    _verify_witnesses(lake, found)
    entries = lake.manifest.read_all() if found.witnesses else lake.manifest.read_waiting()
    for item in find_lost_repositories(lake.kv, lake.manifest, index_entries(entries).values()):
        found.lost_items.append(LostItem("", describe_entry(item.entry), item.reason))
    return found


def find_known_losses(ctx: Context, seen: KvVerification) -> list[LostItem]:
    """Return what the KV is known to have lost of a repository, without looking for staged objects: what waits in the
    manifest, and all of that if positions were lost. `seen`: as `verify_lake` returns it. Raises Corrupt, Unavailable.
    """
    entries = index_entries(ctx.manifest.read_all() if seen.witnesses else ctx.manifest.read_waiting())
    lost = find_lost_entries(ctx, [*entries.values()], explained_by=entries if seen.witnesses else None)
    return [LostItem(ctx.name, describe_entry(item.entry), item.reason) for item in lost]


def find_missing_objects(ctx: Context, progress: Progress) -> Iterator[MissingObject]:
    """Yield the entries of live tokens that name objects which are not in the store."""
    for name, record in list(ctx.branches.scan_open()):
        for token in record.live_tokens:
            for page in split_batches(ctx.staging.scan(token), STAGED_BATCH):
                yield from _missing_in_page(ctx, name, token, page)
                progress.advance(len(page))


def have_servers_changed(lake: LakeAccess) -> bool:
    """Return whether other servers answer than anybody has settled under, or the KV lost a position."""
    found = KvVerification()
    _verify_witnesses(lake, found)
    return found.servers_changed


def _verify_witnesses(lake: LakeAccess, found: KvVerification) -> None:
    witnesses, found.unreadable_witnesses = read_witnesses(lake.own_store)
    blocking = witnesses.pop(RECONCILE_WITNESS, None)
    found.reconcile_began_ms = blocking.at_ms if blocking is not None else 0
    servers = {server.partition: server.identity for server in lake.kv.servers()}
    found.has_settled_servers = not witnesses or any(witness.servers == servers for witness in witnesses.values())
    for witness, partition, position in fence_of(lake, "").find_lost(witnesses):
        held = (position.number, position.at_ms) if position is not None else (None, None)
        found.witnesses.append(
            LostWitness(
                witness.deleter,
                partition,
                servers.get(partition, "none"),
                witness.positions[partition],
                witness.at_ms,
                *held,
            )
        )


def _verify_manifest(ctx: Context, entries: Entries, found: KvVerification) -> None:
    lost = find_lost_entries(ctx, [*entries.values()], explained_by=entries, servers_changed=found.servers_changed)
    for item in lost:
        found.lost_items.append(LostItem(ctx.name, describe_entry(item.entry), item.reason))
    found.missing_trees += find_missing_trees(ctx, entries)


def find_missing_trees(ctx: Context, entries: Entries) -> list[MissingTree]:
    """Return the commits of the manifest whose metaranges are not in the store."""
    commits = [entry for entry in entries.values() if isinstance(entry, CommitLanded)]
    there = {object_names.id_of_key(info.key) for info in ctx.objects.list(object_names.METARANGES)}
    trees = ((entry.commit, decode(entry.record, Commit).metarange) for entry in commits)
    return [MissingTree(ctx.name, commit, tree) for commit, tree in trees if tree and tree not in there]


def _missing_in_page(
    ctx: Context, branch: BranchName, token: Token, page: list[tuple[str, bytes]]
) -> Iterator[MissingObject]:
    records = decode_staged_many([value for _, value in page])
    own = [
        (path, value, record)
        for (path, value), record in zip(page, records, strict=True)
        if isinstance(record, Entry) and is_own(record.address)
    ]
    told = have_content(ctx, [record.address for _, _, record in own])
    for (path, value, record), is_there in zip(own, told, strict=True):
        # it may have been deleted since it was read
        if not is_there and ctx.kv.get(keys.entry(ctx.repo, token, Path(path))) == value:
            yield MissingObject(ctx.name, branch, path, record.address)
