"""Find out from where to where the KV went back, and what may be lost. It changes nothing.

The whole manifest is compared with the KV, the entries that deleters have witnessed included. What the KV names is
looked for in the object store: staged objects, and the metaranges of commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids, keys
from refstore.core.batches import batched
from refstore.core.ids import BranchName, CommitId, Path, RepositoryName, Token, is_own
from refstore.core.records import (
    Branch,
    BreakerState,
    Commit,
    Entry,
    RepositoryRecord,
    decode,
    decode_branch,
    decode_staged_many,
    maybe,
)
from refstore.errors import WrongStore
from refstore.kv.base import ABSENT
from refstore.losses.fence import BREAKER_REASON, RECONCILING, read_witnesses
from refstore.losses.known import Lost, describe, get_batched, lost_of_lake, lost_of_repository, removals
from refstore.losses.lake_parts import Entries, LakeParts, NoWatcher, Watcher, fence_of, open_repositories, unique
from refstore.operations.reading import have_content
from refstore.versioning.commits import names
from refstore.versioning.manifest import (
    BranchCreated,
    BranchDeleted,
    CommitLanded,
    RecordKept,
    RecordRemoved,
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
    witnessed: int
    witnessed_ms: int
    held: int | None
    """None: the KV holds no position of this deleter."""
    held_ms: int | None


class LostItem(NamedTuple):
    """What the manifest has, and the KV does not know."""

    repository: RepositoryName | str
    what: str
    reason: str


class Revived(NamedTuple):
    """What was deleted, and is there again."""

    repository: RepositoryName
    what: str
    name: str


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


class Unrecorded(NamedTuple):
    """How much the manifest lacks, because it was made before there was one."""

    repository: RepositoryName
    commits: int
    branches: int
    tags: int
    itself: bool


@dataclass(slots=True)
class Verification:
    """What a look at the whole lake found."""

    witnesses: list[LostWitness] = field(default_factory=list[LostWitness])
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    """Witnesses that cannot be read, and why."""
    lost: list[LostItem] = field(default_factory=list[LostItem])
    revived: list[Revived] = field(default_factory=list[Revived])
    objects: list[MissingObject] = field(default_factory=list[MissingObject])
    trees: list[MissingTree] = field(default_factory=list[MissingTree])
    unrecorded: list[Unrecorded] = field(default_factory=list[Unrecorded])
    stopped: list[RepositoryName] = field(default_factory=list[RepositoryName])
    """Repositories whose hard deletion stands still because the KV went back."""
    interrupted_ms: int = 0
    """When a `reconcile` began that has not ended. 0: none has."""
    settled: bool = True
    """Whether a deleter has settled under the servers that answer now, or none ever deleted anything."""

    @property
    def others_answer(self) -> bool:
        """Whether other servers answer than anybody has settled under, or the KV lost a position."""
        return bool(self.witnesses) or not self.settled

    @property
    def missing(self) -> bool:
        """Whether something is missing, so that deletion stands still, or something cannot be read."""
        return bool(self.witnesses or self.unreadable or self.lost or self.objects or self.trees)

    @property
    def left(self) -> bool:
        """Whether something is missing that `reconcile` cannot put back."""
        return bool(self.unreadable or self.lost or self.objects or self.trees)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be reconciled."""
        return not (
            self.witnesses
            or self.unreadable
            or self.lost
            or any(item.what != "repository" for item in self.revived)
            or self.stopped
            or self.interrupted_ms
            or not self.settled
        )


def verify(lake: LakeParts, *, watcher: Watcher | None = None) -> Verification:
    """Look at the whole lake. Raises CorruptObject, CorruptRecord, KVUnavailable, ObjectsUnavailable."""
    shown = watcher or NoWatcher()
    found = Verification()
    _look_at_witnesses(lake, found)
    entries = unique(lake.manifest.all())
    missing = lost_of_lake(lake.kv, lake.manifest, entries.values())
    for item in missing:
        found.lost.append(LostItem("", describe(item.entry), item.reason))
        assert isinstance(item.entry, RepositoryCreated)  # noqa: S101  # lost_of_lake returns no others
        try:
            ctx = lake.context(item.entry.name, decode(item.entry.record, RepositoryRecord))
        except WrongStore as error:
            found.lost.append(LostItem(item.entry.name, "namespace", str(error)))
        else:
            _look_at_manifest(ctx, unique(ctx.manifest.all()), found)
    for ctx in open_repositories(lake):
        shown.describe(f"comparing {ctx.name} with its manifest")
        landed = [name for name, _ in ctx.kv.scan_all(keys.landed_commits(ctx.repo))]
        own = unique(ctx.manifest.all())
        _look_at_manifest(ctx, own, found)
        found.revived += [Revived(ctx.name, what, name) for what, name in revived(ctx, own)]
        if (RepositoryDeleted.kind, (ctx.repo,)) in entries:
            found.revived.append(Revived(ctx.name, "repository", ctx.name))
        unrecorded = _unrecorded(ctx, own, landed, (RepositoryCreated.kind, (ctx.repo,)) in entries)
        if unrecorded is not None:
            found.unrecorded.append(unrecorded)
        shown.describe(f"looking for the staged objects of {ctx.name}")
        found.objects += missing_objects(ctx, shown)
        state = maybe(ctx.kv.get(keys.reaper_state(ctx.repo, "breaker")), BreakerState)
        if state is not None and state.tripped_ms and state.reason == BREAKER_REASON:
            found.stopped.append(ctx.name)
    return found


def missing_objects(ctx: Context, watcher: Watcher) -> Iterator[MissingObject]:
    """Yield the entries of live tokens that name objects which are not in the store."""
    for name, record in list(ctx.branches.scan_open()):
        for token in record.live:
            for page in batched(ctx.staging.scan(token), STAGED_BATCH):
                yield from _missing_of(ctx, name, token, page)
                watcher.advance(len(page))


def revived(ctx: Context, entries: Entries) -> list[tuple[str, str]]:
    """Return the branches and tags that were deleted, and that the KV has again, as ('branch' or 'tag', name)."""
    found: list[tuple[str, str]] = []
    branches = [entry for entry in entries.values() if isinstance(entry, BranchDeleted)]
    values = get_batched(ctx.kv, [keys.branch(ctx.repo, entry.branch) for entry in branches])
    for entry, value in zip(branches, values, strict=True):
        record = None if value is ABSENT else decode_branch(value)
        if isinstance(record, Branch) and record.id == entry.branch_id:
            found.append(("branch", entry.branch))
    tags = [entry for entry in entries.values() if is_tag(ctx, entry) and isinstance(entry, RecordRemoved)]
    values = get_batched(ctx.kv, [keys.tag(ctx.repo, ids.tag_name(entry.name)) for entry in tags])
    return found + [("tag", entry.name) for entry, value in zip(tags, values, strict=True) if value == entry.value]


def is_tag(ctx: Context, entry: object) -> bool:
    """Return whether an entry is about a tag."""
    return isinstance(entry, RecordKept | RecordRemoved) and entry.partition == keys.tags(ctx.repo)


def lost_in(ctx: Context, entries: Entries, *, others_answer: bool) -> list[Lost]:
    """Return what a repository's KV does not know of its whole manifest. `others_answer`: as in `lost_of_repository`;
    an operation under way may then be taken for a loss.
    """
    every = list(entries.values())
    return lost_of_repository(ctx, every, gone=removals(every), others_answer=others_answer)


def others_answer(lake: LakeParts) -> bool:
    """Return whether other servers answer than anybody has settled under, or the KV lost a position."""
    found = Verification()
    _look_at_witnesses(lake, found)
    return found.others_answer


def _look_at_witnesses(lake: LakeParts, found: Verification) -> None:
    witnesses, found.unreadable = read_witnesses(lake.own_store)
    blocking = witnesses.pop(RECONCILING, None)
    found.interrupted_ms = blocking.at_ms if blocking is not None else 0
    servers = {server.partition: server.identity for server in lake.kv.servers()}
    found.settled = not witnesses or any(witness.servers == servers for witness in witnesses.values())
    for witness, partition, position in fence_of(lake, "").lost(witnesses):
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


def _look_at_manifest(ctx: Context, entries: Entries, found: Verification) -> None:
    for item in lost_in(ctx, entries, others_answer=found.others_answer):
        found.lost.append(LostItem(ctx.name, describe(item.entry), item.reason))
    found.trees += missing_trees(ctx, entries)


def missing_trees(ctx: Context, entries: Entries) -> list[MissingTree]:
    """Return the commits of the manifest whose metaranges are not in the store."""
    commits = [entry for entry in entries.values() if isinstance(entry, CommitLanded)]
    there = {names.id_of_key(info.key) for info in ctx.objects.list(names.METARANGES)}
    trees = ((entry.commit, decode(entry.record, Commit).metarange) for entry in commits)
    return [MissingTree(ctx.name, commit, tree) for commit, tree in trees if tree and tree not in there]


def _missing_of(
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


def _unrecorded(ctx: Context, entries: Entries, landed: list[str], is_recorded: bool) -> Unrecorded | None:
    commits = sum((CommitLanded.kind, (name,)) not in entries for name in landed)
    branches = sum(
        (BranchCreated.kind, (name, record.id)) not in entries or not record.id
        for name, record in ctx.branches.scan_open()
    )
    tags = sum(
        (RecordKept.kind, (keys.tags(ctx.repo), name, value.hex())) not in entries
        for name, value in ctx.kv.scan_all(keys.tags(ctx.repo))
    )
    if not (commits or branches or tags) and is_recorded:
        return None
    return Unrecorded(ctx.name, commits, branches, tags, not is_recorded)
