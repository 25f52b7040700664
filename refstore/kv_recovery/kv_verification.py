"""Find out from where to where the KV went back, and what may be lost. It changes nothing.

The whole manifest is compared with the KV, the entries that deleters have witnessed included, and so is the audit log.
What the KV names is looked for in the object store: staged objects, and the metaranges of commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.clock import format_utc
from refstore.core.ids import BranchName, Path, RepositoryName, Token, is_own
from refstore.errors import WrongStore
from refstore.kv_recovery.fence import RECONCILE_WITNESS, read_witnesses
from refstore.kv_recovery.lake_parts import (
    NO_PROGRESS,
    Entries,
    LakeAccess,
    Progress,
    fence_of,
    index_entries,
    open_repositories,
)
from refstore.kv_recovery.manifest_backfill import find_gap
from refstore.kv_recovery.manifest_check import (
    LostEntry,
    describe_entry,
    find_lost_entries,
    find_lost_repositories,
)
from refstore.kv_recovery.superseded_records import settle_superseded_records
from refstore.operations.breaker_states import KV_WENT_BACK_REASON, BreakerStates
from refstore.operations.reference_lookup import have_content
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode
from refstore.records.repository_records import RepositoryRecord
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.versioning.commits import object_names
from refstore.versioning.manifest import (
    CommitLanded,
    RepositoryCreated,
    RepositoryDeleted,
)

STAGED_BATCH: Final = 1000
"""How many staged entries are looked for at a time."""


class KvFindingKind(Enum):
    """What a finding is of."""

    POSITION = "lost position"
    """A deleter had witnessed it, and the KV does not hold it."""
    WITNESS = "unreadable witness"
    LOST = "lost"
    """The manifest has it, and the KV does not know it."""
    OBJECT = "missing object"
    """A staged entry names it."""
    METARANGE = "missing metarange"
    SUPERSEDED = "older than the audit log"
    STOPPED = "stopped, because the KV went back"
    GAP = "not in the manifest"
    REAPPEARED = "deleted, and there again"
    """A repository, which stays until somebody deletes it."""


UNRESTORABLE: Final = (KvFindingKind.WITNESS, KvFindingKind.LOST, KvFindingKind.OBJECT, KvFindingKind.METARANGE)
"""What `reconcile` leaves; of what is lost it has put back what can be."""
LOSSES: Final = (*UNRESTORABLE, KvFindingKind.POSITION, KvFindingKind.SUPERSEDED)
UNSETTLED: Final = (
    KvFindingKind.POSITION,
    KvFindingKind.WITNESS,
    KvFindingKind.LOST,
    KvFindingKind.SUPERSEDED,
    KvFindingKind.STOPPED,
)


class KvFinding(NamedTuple):
    """One thing that `verify` names."""

    kind: KvFindingKind
    repository: RepositoryName | str
    """'': the whole lake."""
    name: str
    reason: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.repository, self.name, self.reason) if part)


@dataclass(slots=True)
class KvVerification:
    """What a look at the whole lake found."""

    findings: list[KvFinding] = field(default_factory=list[KvFinding])
    reconcile_began_ms: int = 0
    """When a `reconcile` began that has not ended. 0: none has."""
    has_settled_servers: bool = True
    """Whether a deleter has settled under the servers that answer now, or none ever deleted anything."""

    def of_kind(self, *kinds: KvFindingKind) -> list[KvFinding]:
        return [item for item in self.findings if item.kind in kinds]

    @property
    def servers_changed(self) -> bool:
        """Whether other servers answer than anybody has settled under, or the KV lost a position."""
        return bool(self.of_kind(KvFindingKind.POSITION)) or not self.has_settled_servers

    @property
    def has_losses(self) -> bool:
        """Whether something is missing, so that deletion is stopped, or something cannot be read."""
        return bool(self.of_kind(*LOSSES))

    @property
    def has_unrestorable_losses(self) -> bool:
        """Whether something is missing that `reconcile` cannot put back."""
        return bool(self.of_kind(*UNRESTORABLE))

    @property
    def is_settled(self) -> bool:
        """Whether nothing is lost. The manifest may still lack something."""
        return self.has_settled_servers and not (self.reconcile_began_ms or self.of_kind(*UNSETTLED))


def verify_kv(lake: LakeAccess, *, progress: Progress = NO_PROGRESS) -> KvVerification:
    """Look at the whole lake. Raises CorruptObject, CorruptRecord, KVUnavailable, ObjectsUnavailable."""
    found = KvVerification()
    _verify_witnesses(lake, found)
    progress.describe("comparing the KV with the audit log")
    for each in settle_superseded_records(lake, dry_run=True):
        found.findings.append(
            KvFinding(KvFindingKind.SUPERSEDED, each.repository, f"{each.kind} {each.name}", each.outcome)
        )
    entries = index_entries(lake.manifest.read_all())
    for item in find_lost_repositories(lake.kv, lake.manifest, entries.values()):
        found.findings.append(_describe_lost("", item))
        assert isinstance(item.entry, RepositoryCreated)  # noqa: S101  # find_lost_repositories returns no others
        try:
            ctx = lake.context(item.entry.name, decode(item.entry.record, RepositoryRecord))
        except WrongStore as error:
            found.findings.append(KvFinding(KvFindingKind.LOST, item.entry.name, "namespace", str(error)))
        else:
            _verify_manifest(ctx, index_entries(ctx.manifest.read_all()), found)
    for ctx in open_repositories(lake):
        progress.describe(f"comparing {ctx.name} with its manifest")
        gap, own = find_gap(ctx, entries)
        _verify_manifest(ctx, own, found)
        if (RepositoryDeleted, (ctx.repo,)) in entries:
            found.findings.append(KvFinding(KvFindingKind.REAPPEARED, ctx.name, "the repository"))
        if not gap.is_empty:
            found.findings.append(KvFinding(KvFindingKind.GAP, ctx.name, str(gap)))
        progress.describe(f"looking for the staged objects of {ctx.name}")
        found.findings += find_missing_objects(ctx, progress)
        _, state = BreakerStates(ctx).read()
        if state.tripped_ms and state.reason == KV_WENT_BACK_REASON:
            found.findings.append(KvFinding(KvFindingKind.STOPPED, ctx.name, "hard deletion"))
    return found


def verify_lake(lake: LakeAccess) -> KvVerification:
    """Look at the witnesses, and at which repositories are lost, alone. Raises Corrupt, Unavailable."""
    found = KvVerification()
    _verify_witnesses(lake, found)
    entries = lake.manifest.read_all() if found.of_kind(KvFindingKind.POSITION) else lake.manifest.read_waiting()
    lost = find_lost_repositories(lake.kv, lake.manifest, index_entries(entries).values())
    found.findings += [_describe_lost("", item) for item in lost]
    return found


def find_known_losses(ctx: Context, seen: KvVerification) -> list[KvFinding]:
    """Return what the KV is known to have lost of a repository, without looking for staged objects: what waits in the
    manifest, and all of that if positions were lost. `seen`: as `verify_lake` returns it. Raises Corrupt, Unavailable.
    """
    is_back = bool(seen.of_kind(KvFindingKind.POSITION))
    entries = index_entries(ctx.manifest.read_all() if is_back else ctx.manifest.read_waiting())
    lost = find_lost_entries(ctx, [*entries.values()], explained_by=entries if is_back else None)
    return [_describe_lost(ctx.name, item) for item in lost]


def _describe_lost(repository: str, item: LostEntry) -> KvFinding:
    return KvFinding(KvFindingKind.LOST, repository, describe_entry(item.entry), item.reason)


def find_missing_objects(ctx: Context, progress: Progress) -> Iterator[KvFinding]:
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
    witnesses, unreadable = read_witnesses(lake.own_store)
    blocking = witnesses.pop(RECONCILE_WITNESS, None)
    found.reconcile_began_ms = blocking.at_ms if blocking is not None else 0
    servers = {server.partition: server.identity for server in lake.kv.servers()}
    found.has_settled_servers = not witnesses or any(witness.servers == servers for witness in witnesses.values())
    for witness, partition, position in fence_of(lake, "").find_lost(witnesses):
        held = f"position {position.number} of {format_utc(position.at_ms)}" if position else "none of its positions"
        named = f"what {witness.deleter} had written until {format_utc(witness.at_ms)}"
        server = servers.get(partition, "none")
        reason = f"position {witness.positions[partition]}; the KV ({partition}, server {server}) holds {held}"
        found.findings.append(KvFinding(KvFindingKind.POSITION, "", named, reason))
    found.findings += [KvFinding(KvFindingKind.WITNESS, "", key, reason) for key, reason in unreadable.items()]


def _verify_manifest(ctx: Context, entries: Entries, found: KvVerification) -> None:
    lost = find_lost_entries(ctx, [*entries.values()], explained_by=entries, servers_changed=found.servers_changed)
    found.findings += [_describe_lost(ctx.name, item) for item in lost]
    found.findings += find_missing_trees(ctx, entries)


def find_missing_trees(ctx: Context, entries: Entries) -> list[KvFinding]:
    """Return the commits of the manifest whose metaranges are not in the store."""
    commits = [entry for entry in entries.values() if isinstance(entry, CommitLanded)]
    there = {object_names.id_of_key(info.key) for info in ctx.objects.list(object_names.METARANGES)}
    trees = ((entry.commit, decode(entry.record, StoredCommit).metarange) for entry in commits)
    return [
        KvFinding(KvFindingKind.METARANGE, ctx.name, f"commit {commit}", tree)
        for commit, tree in trees
        if tree and tree not in there
    ]


def _missing_in_page(
    ctx: Context, branch: BranchName, token: Token, page: list[tuple[str, bytes]]
) -> Iterator[KvFinding]:
    records = decode_staged_many([value for _, value in page])
    own = [
        (path, value, record)
        for (path, value), record in zip(page, records, strict=True)
        if isinstance(record, StoredEntry) and is_own(record.address)
    ]
    told = have_content(ctx, [record.address for _, _, record in own])
    for (path, value, record), is_there in zip(own, told, strict=True):
        # it may have been deleted since it was read
        if not is_there and ctx.kv.get(keys.entry(ctx.repo, token, Path(path))) == value:
            yield KvFinding(KvFindingKind.OBJECT, ctx.name, f"branch {branch}, {path!r}", record.address)
