"""Look whether the KV still knows what the manifest says (rule 21).

A commit is known if its record and its landed mark are there, and its branch's head is the commit or follows it. What
is not there may have been deleted since: then the manifest says that, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, CommitId, branch_of
from refstore.errors import CorruptRecord, KVWentBack
from refstore.kv.base import ABSENT, KV, Absent, Key
from refstore.operations.reference_lookup import have_content
from refstore.records import keys
from refstore.records.branch_records import ClosedBranch, decode_branch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, decode_optional
from refstore.records.location_records import Location
from refstore.records.reference_records import Deleting, Emptied, Issued, Reference, ReferenceRecord
from refstore.records.repository_records import RepositoryRecord
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning.manifest import (
    AnyEntry,
    BranchCreated,
    BranchDeleted,
    CommitLanded,
    EntriesPlaced,
    EntryKey,
    LocationsPublished,
    LossAccepted,
    Manifest,
    PlacedEntry,
    RecordCreated,
    RecordRemoved,
    RepositoryCreated,
    RepositoryDeleted,
    accept_loss,
)

NAMED_MAX = 10
"""How many lost entries an error names."""

OTHER_CONTENT = "another run has published under its number since; run the earlier purge again"
"""What was purged by the earlier run alone may be back."""

HEADS_MAX = 250
"""Of how many locations the objects are asked for at once."""

BATCH = 1000
"""How many keys are read in one round trip."""


class LostEntry(NamedTuple):
    """An entry of the manifest that the KV does not know."""

    entry: AnyEntry
    reason: str
    may_be_deleted: bool = True
    """Whether a deletion explains it, if the manifest has one."""


def check_repository(ctx: Context, *, servers_changed: bool = False) -> list[AnyEntry]:
    """Return the entries that wait, all of which the KV knows. `servers_changed`: as in `find_lost_entries`. Raises
    KVWentBack, CorruptObject.
    """
    waiting = ctx.manifest.read_waiting()
    _raise_if_lost(find_lost_entries(ctx, waiting, servers_changed=servers_changed), f"repository {ctx.name!r}")
    return waiting


def check_lake(kv: KV, manifest: Manifest) -> list[AnyEntry]:
    """Return the entries of the lake that wait, all of which the KV knows. Raises KVWentBack, CorruptObject."""
    waiting = manifest.read_waiting()
    _raise_if_lost(find_lost_repositories(kv, manifest, waiting), "the lake")
    return waiting


def find_lost_repositories(kv: KV, manifest: Manifest, entries: Iterable[AnyEntry]) -> list[LostEntry]:
    """Return which repositories the KV has forgotten."""
    created = [entry for entry in entries if isinstance(entry, RepositoryCreated)]
    records = read_in_batches(kv, [keys.repository(entry.name) for entry in created])
    missing: list[RepositoryCreated] = []
    for entry, record in zip(created, records, strict=True):
        places = (keys.closed_repository(entry.id), keys.cleared_repository(entry.id))
        if not _is_repository(record, entry.id) and all(kv.get(key) is ABSENT for key in places):
            missing.append(entry)
    if not missing:
        return []
    gone = {entry.identity for entry in manifest.read_all() if isinstance(entry, RepositoryDeleted | LossAccepted)}
    return [
        LostEntry(entry, "the repository is not there")
        for entry in missing
        if entry.identity not in gone and accept_loss(entry).identity not in gone
    ]


def find_lost_entries(
    ctx: Context,
    entries: Sequence[AnyEntry],
    *,
    explained_by: Container[EntryKey] | None = None,
    servers_changed: bool = False,
) -> list[LostEntry]:
    """Return which entries of a repository the KV does not know.

    `explained_by`: the whole manifest, where the caller has it. `servers_changed`: other servers answer than before,
    and no operation that began before is under way, so whatever is staged no more must have a reason.
    """
    lost = [
        *_find_lost_commits(ctx, entries),
        *_find_lost_branches(ctx, entries),
        *_find_lost_records(ctx, entries),
        *_find_lost_placed(ctx, entries, servers_changed=servers_changed),
        *_find_lost_locations(ctx, entries),
    ]
    if explained_by is not None:
        return _drop_explained(lost, explained_by)
    # in this order: entries move this way, most are explained by what is at hand, and the confirmed ones are many
    for read in (lambda: entries, ctx.manifest.read_unwritten, ctx.manifest.read_waiting, ctx.manifest.read_confirmed):
        if any(item.may_be_deleted for item in lost):
            lost = _drop_explained(lost, _removal_keys(read()))
    return lost


def _drop_explained(lost: Iterable[LostEntry], known: Container[EntryKey]) -> list[LostEntry]:
    return [item for item in lost if not (item.may_be_deleted and is_removed(item.entry, known))]


def _removal_keys(entries: Iterable[AnyEntry]) -> set[EntryKey]:
    """Return those entries that explain why something is missing."""
    return {
        (type(entry), entry.identity)
        for entry in entries
        if isinstance(entry, BranchDeleted | RecordRemoved | RepositoryDeleted | LossAccepted)
    }


def is_removed(entry: AnyEntry, known: Container[EntryKey]) -> bool:
    """Return whether one of the known entries explains why the KV does not know this one."""
    if (LossAccepted, accept_loss(entry).identity) in known:
        return True
    match entry:
        case CommitLanded() if entry.branch_id:
            return (BranchDeleted, (entry.branch, entry.branch_id)) in known
        case BranchCreated():
            return (BranchDeleted, entry.identity) in known
        case RecordCreated():
            return (RecordRemoved, entry.identity) in known
        case RepositoryCreated():
            return (RepositoryDeleted, entry.identity) in known
        case _:
            return False


def _find_lost_commits(ctx: Context, entries: Sequence[AnyEntry]) -> list[LostEntry]:
    commits = [entry for entry in entries if isinstance(entry, CommitLanded)]
    records = read_in_batches(ctx.kv, [keys.commit(ctx.repo, entry.commit) for entry in commits])
    marks = read_in_batches(ctx.kv, [keys.landed_mark(ctx.repo, entry.commit) for entry in commits])
    lost: list[LostEntry] = []
    known: dict[CommitId, StoredCommit] = {}
    by_branch: dict[tuple[BranchName, str], list[CommitLanded]] = {}
    for entry, record, mark in zip(commits, records, marks, strict=True):
        if record is ABSENT:
            lost.append(LostEntry(entry, "the commit is not there", may_be_deleted=False))
        elif mark is ABSENT and not ctx.markers.has_landed(entry.commit):
            lost.append(LostEntry(entry, "the commit is not known to have landed", may_be_deleted=False))
        elif entry.branch_id:
            known[entry.commit] = decode(record, StoredCommit)
            by_branch.setdefault((entry.branch, entry.branch_id), []).append(entry)
    for (name, branch_id), group in by_branch.items():
        raw = ctx.kv.get(keys.branch(ctx.repo, name))
        branch = None if raw is ABSENT else decode_branch(raw)
        if branch is None or branch.id != branch_id:  # a closed record of another branch explains nothing
            lost += [LostEntry(entry, f"branch {name!r} is not there") for entry in group]
            continue
        if isinstance(branch, ClosedBranch):
            continue
        wanted = [entry.commit for entry in group]
        passed = _find_ancestors(ctx, branch.head, wanted, known)
        lost += [LostEntry(entry, f"branch {name!r} is behind it") for entry in group if entry.commit not in passed]
    return lost


def _find_ancestors(
    ctx: Context, head: CommitId, wanted: Sequence[CommitId], known: Mapping[CommitId, StoredCommit]
) -> set[CommitId]:
    """Return which of the wanted commits the head is or follows, by first parents. `known`: records that the KV has,
    the wanted ones among them.
    """
    left = set(wanted)
    generation = min(known[commit].generation for commit in wanted)
    commit = head
    while left:
        left.discard(commit)
        record = known.get(commit) or decode_optional(ctx.kv.get(keys.commit(ctx.repo, commit)), StoredCommit)
        if record is None or not record.parents or 0 < record.generation < generation:
            break
        commit = record.parents[0]
    return set(wanted) - left


def _find_lost_branches(ctx: Context, entries: Sequence[AnyEntry]) -> list[LostEntry]:
    created = [entry for entry in entries if isinstance(entry, BranchCreated)]
    lost: list[LostEntry] = []
    for entry, raw in zip(
        created, read_in_batches(ctx.kv, [keys.branch(ctx.repo, each.branch) for each in created]), strict=True
    ):
        branch = None if raw is ABSENT else decode_branch(raw)
        if branch is None or branch.id != entry.branch_id:
            lost.append(LostEntry(entry, f"branch {entry.branch!r} is not there"))
    return lost


def _find_lost_records(ctx: Context, entries: Sequence[AnyEntry]) -> list[LostEntry]:
    kept = [entry for entry in entries if isinstance(entry, RecordCreated)]
    values = read_in_batches(ctx.kv, [entry.key for entry in kept])
    return [
        LostEntry(entry, "it is not there") for entry, value in zip(kept, values, strict=True) if value != entry.value
    ]


def _find_lost_placed(ctx: Context, entries: Sequence[AnyEntry], *, servers_changed: bool) -> list[LostEntry]:
    """Return the linked and restored entries that are lost; of each call only those.

    While the same servers answer, only a state that cannot come back tells of a loss: an address that waits to be
    linked, as itself or as a copy.
    """
    lost: list[LostEntry] = []
    reason = "it is neither staged nor known to have been replaced, deleted or committed"
    for entry in entries:
        if isinstance(entry, EntriesPlaced):
            missing = [item for page in split_batches(entry.entries, BATCH) for item in _find_unstaged(ctx, page)]
            records = ctx.references.get_many([item.entry.address for item in missing])
            linked = ctx.references.get_many(
                [item.placed_entry.issued_address or item.entry.address for item in missing]
            )
            gone = [
                item.placed_entry
                for item, record, at_issued in zip(missing, records, linked, strict=True)
                if isinstance(at_issued, Issued) or (servers_changed and not _was_released(item, record))
            ]
            if servers_changed:
                gone = _find_uncommitted(ctx, gone)
            if gone:
                lost.append(LostEntry(msgspec.structs.replace(entry, entries=tuple(gone)), reason))
    return lost


class _MissingEntry(NamedTuple):
    placed_entry: PlacedEntry
    entry: StoredEntry


def _find_unstaged(ctx: Context, placed: Sequence[PlacedEntry]) -> list[_MissingEntry]:
    values = ctx.kv.get_many([keys.entry(ctx.repo, item.token, item.path) for item in placed])
    missing: list[_MissingEntry] = []
    for item, value in zip(placed, values, strict=True):
        entry = decode(item.record, StoredEntry)
        staged = None if value is ABSENT else decode_staged(value)
        if not isinstance(staged, StoredEntry) or staged.address != entry.address:
            missing.append(_MissingEntry(item, entry))
    return missing


def _was_released(item: _MissingEntry, record: ReferenceRecord | None) -> bool:
    """Return whether the address says that its last reference was this entry's. Nobody else makes its id."""
    released = Reference(item.placed_entry.token, item.placed_entry.path, item.entry.reference_id)
    return isinstance(record, Emptied | Deleting) and record.last_reference == released


def _find_uncommitted(ctx: Context, placed: Sequence[PlacedEntry]) -> list[PlacedEntry]:
    """Return those whose object is still there, and whose token no commit of the manifest took."""
    if not placed:
        return []
    told = have_content(ctx, [decode(item.record, StoredEntry).address for item in placed])
    there = [item for item, is_there in zip(placed, told, strict=True) if is_there]
    if not there:
        return []
    taken = {
        token
        for entry in ctx.manifest.read_all()
        if isinstance(entry, CommitLanded)
        for token in decode(entry.record, StoredCommit).tokens
    }
    return [item for item in there if item.token not in taken]


def _find_lost_locations(ctx: Context, entries: Sequence[AnyEntry]) -> list[LostEntry]:
    """Return the locations that the KV does not know, though their objects are there: whoever deletes an identity takes
    its record off last.
    """
    items = [item for entry in entries if isinstance(entry, LocationsPublished) for item in entry.split()]
    values = read_in_batches(ctx.kv, [keys.location(ctx.repo, item.items[0].identity) for item in items])
    unknown: list[tuple[LocationsPublished, Location | None, Location]] = []
    for item, value in zip(items, values, strict=True):
        told, record = decode(item.items[0].record, Location), decode_optional(value, Location)
        if not is_same_or_later(record, told):
            unknown.append((item, record, told))
    lost: list[LostEntry] = []
    for page in split_batches(unknown, HEADS_MAX):
        named = {address for item, _, told in page for address in (item.items[0].identity, *told.addresses())}
        infos = ctx.objects.head_many(sorted(named))
        there = {address for address, info in zip(sorted(named), infos, strict=True) if info is not None}
        for item, record, told in page:
            if there.intersection((item.items[0].identity, *told.addresses())):
                reason = (
                    "it is not there"
                    if record is None or record.replacement_count < told.replacement_count
                    else OTHER_CONTENT
                )
                lost.append(LostEntry(item, reason))
    return lost


def is_same_or_later(record: Location | None, recorded: Location) -> bool:
    """Return whether a location is what was told, or came after it. Behind a loss another run may publish under the
    number that was lost.
    """
    if record is None:
        return (
            not recorded.replacement_count
        )  # an object that was never replaced has no record, once its attempts are cleared
    if record.replacement_count < recorded.replacement_count:
        return False
    if record.replacement_count > recorded.replacement_count or record.current is None or recorded.current is None:
        return True
    return recorded.current.address in (record.current.address, *record.addresses())


def _is_repository(value: object, repo: str) -> bool:
    try:
        return isinstance(value, bytes) and decode(value, RepositoryRecord).id == repo
    except CorruptRecord:
        return True  # it is there: who works on the repository says that its record is damaged


def _raise_if_lost(lost: Sequence[LostEntry], whose: str) -> None:
    if lost:
        named = "; ".join(f"{describe_entry(item.entry)}: {item.reason}" for item in lost[:NAMED_MAX])
        more = f"; and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
        raise KVWentBack(
            f"the KV went back in time: it does not know what {whose} acknowledged ({named}{more}); nothing is "
            "deleted. See `refstore kv verify`"
        )


def read_in_batches(kv: KV, wanted: Sequence[Key]) -> list[bytes | Absent]:
    """Read any number of keys, in batches."""
    return [value for batch in split_batches(wanted, BATCH) for value in kv.get_many(batch)]


def describe_entry(entry: AnyEntry) -> str:
    """Name what an entry is about, for people."""
    match entry:
        case CommitLanded():
            return f"commit {entry.commit[:12]}" + (f" on branch {entry.branch!r}" if entry.branch else "")
        case BranchCreated() | BranchDeleted():
            return f"branch {entry.branch!r}"
        case RecordCreated() | RecordRemoved():
            return f"{entry.partition.rpartition('/')[2].removesuffix('s')} {entry.name!r}"
        case RepositoryCreated() | RepositoryDeleted():
            return f"repository {entry.name!r}"
        case EntriesPlaced():
            first, more = entry.entries[0], len(entry.entries) - 1
            others = f" and {more} more of the same call" if more else ""
            return f"{first.path!r} on branch {branch_of(first.token)!r}, linked or restored{others}"
        case LocationsPublished():
            first, *others = entry.items
            return f"the content of {first.identity}" + (f" and {len(others)} more of the same run" if others else "")
        case LossAccepted():
            return f"a lost {entry.accepted_kind}, which was given up"
