"""Look whether the KV still knows what the manifest says (rule 21).

A commit is known if its record and its landed mark are there, and its branch's head is the commit or follows it. What
is not there may have been deleted since: then the manifest says that, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from refstore.context import Context
from refstore.core import keys
from refstore.core.batches import batched
from refstore.core.ids import BranchName, CommitId, branch_of
from refstore.core.records import (
    ClosedBranch,
    Commit,
    Deleting,
    Emptied,
    Entry,
    Issued,
    Location,
    Reference,
    ReferenceRecord,
    RepositoryRecord,
    decode,
    decode_branch,
    decode_staged,
    maybe,
)
from refstore.errors import CorruptRecord, KVWentBack
from refstore.kv.base import ABSENT, KV, Absent, Key
from refstore.operations.reading import have_content
from refstore.versioning.manifest import (
    AnyEntry,
    BranchCreated,
    BranchDeleted,
    CommitLanded,
    EntriesPlaced,
    LocationsKept,
    LossAccepted,
    Manifest,
    PlacedEntry,
    RecordKept,
    RecordRemoved,
    RepositoryCreated,
    RepositoryDeleted,
    given_up,
)

NAMED_MAX = 10
"""How many lost entries an error names."""

OTHER_CONTENT = "another run has published under its number since; run the earlier purge again"
"""What was purged by the earlier run alone may be back."""

HEADS = 250
"""Of how many locations the objects are asked for at once."""

BATCH = 1000
"""How many keys are read in one round trip."""


class Lost(NamedTuple):
    """An entry of the manifest that the KV does not know."""

    entry: AnyEntry
    reason: str
    may_be_deleted: bool = True
    """Whether a deletion explains it, if the manifest has one."""


def check_repository(ctx: Context, *, others_answer: bool = False) -> list[AnyEntry]:
    """Return the entries that wait, all of which the KV knows. `others_answer`: as in `lost_of_repository`. Raises
    KVWentBack, CorruptObject.
    """
    waiting = ctx.manifest.waiting()
    _raise_for(lost_of_repository(ctx, waiting, others_answer=others_answer), f"repository {ctx.name!r}")
    return waiting


def check_lake(kv: KV, manifest: Manifest) -> list[AnyEntry]:
    """Return the entries of the lake that wait, all of which the KV knows. Raises KVWentBack, CorruptObject."""
    waiting = manifest.waiting()
    _raise_for(lost_of_lake(kv, manifest, waiting), "the lake")
    return waiting


def lost_of_lake(kv: KV, manifest: Manifest, entries: Iterable[AnyEntry]) -> list[Lost]:
    """Return which repositories the KV has forgotten."""
    created = [entry for entry in entries if isinstance(entry, RepositoryCreated)]
    records = get_batched(kv, [keys.repository(entry.name) for entry in created])
    missing: list[RepositoryCreated] = []
    for entry, record in zip(created, records, strict=True):
        places = (keys.closed_repository(entry.id), keys.cleared_repository(entry.id))
        if not _is_repository(record, entry.id) and all(kv.get(key) is ABSENT for key in places):
            missing.append(entry)
    if not missing:
        return []
    gone = {entry.identity for entry in manifest.all() if isinstance(entry, RepositoryDeleted | LossAccepted)}
    return [
        Lost(entry, "the repository is not there")
        for entry in missing
        if entry.identity not in gone and given_up(entry).identity not in gone
    ]


def lost_of_repository(
    ctx: Context,
    entries: Sequence[AnyEntry],
    *,
    gone: set[tuple[type, tuple[str, ...]]] | None = None,
    others_answer: bool = False,
) -> list[Lost]:
    """Return which entries of a repository the KV does not know.

    `gone`: the `removals`, where the caller has them. `others_answer`: other servers answer than before, and no
    operation that began before is under way, so whatever is staged no more must have a reason.
    """
    lost = [
        *_lost_commits(ctx, entries),
        *_lost_branches(ctx, entries),
        *_lost_records(ctx, entries),
        *_lost_placed(ctx, entries, others_answer=others_answer),
        *_lost_locations(ctx, entries),
    ]
    if gone is not None:
        return _unexplained(lost, gone)
    # in this order: entries move this way, most are explained by what is at hand, and the confirmed ones are many
    for read in (lambda: entries, ctx.manifest.unwritten, ctx.manifest.waiting, ctx.manifest.confirmed):
        if any(item.may_be_deleted for item in lost):
            lost = _unexplained(lost, removals(read()))
    return lost


def _unexplained(lost: Iterable[Lost], gone: set[tuple[type, tuple[str, ...]]]) -> list[Lost]:
    return [item for item in lost if not (item.may_be_deleted and is_gone(item.entry, gone))]


def removals(entries: Iterable[AnyEntry]) -> set[tuple[type, tuple[str, ...]]]:
    """Return those entries that explain why something is missing."""
    return {
        (type(entry), entry.identity)
        for entry in entries
        if isinstance(entry, BranchDeleted | RecordRemoved | RepositoryDeleted | LossAccepted)
    }


def is_gone(entry: AnyEntry, gone: set[tuple[type, tuple[str, ...]]]) -> bool:
    """Return whether one of the `removals` explains why the KV does not know the entry."""
    if (LossAccepted, given_up(entry).identity) in gone:
        return True
    match entry:
        case CommitLanded() if entry.branch_id:
            return (BranchDeleted, (entry.branch, entry.branch_id)) in gone
        case BranchCreated():
            return (BranchDeleted, entry.identity) in gone
        case RecordKept():
            return (RecordRemoved, entry.identity) in gone
        case RepositoryCreated():
            return (RepositoryDeleted, entry.identity) in gone
        case _:
            return False


def _lost_commits(ctx: Context, entries: Sequence[AnyEntry]) -> list[Lost]:
    commits = [entry for entry in entries if isinstance(entry, CommitLanded)]
    records = get_batched(ctx.kv, [keys.commit(ctx.repo, entry.commit) for entry in commits])
    marks = get_batched(ctx.kv, [keys.landed(ctx.repo, entry.commit) for entry in commits])
    lost: list[Lost] = []
    known: dict[CommitId, Commit] = {}
    by_branch: dict[tuple[BranchName, str], list[CommitLanded]] = {}
    for entry, record, mark in zip(commits, records, marks, strict=True):
        if record is ABSENT:
            lost.append(Lost(entry, "the commit is not there", may_be_deleted=False))
        elif mark is ABSENT and not ctx.markers.landed(entry.commit):
            lost.append(Lost(entry, "the commit is not known to have landed", may_be_deleted=False))
        elif entry.branch_id:
            known[entry.commit] = decode(record, Commit)
            by_branch.setdefault((entry.branch, entry.branch_id), []).append(entry)
    for (name, branch_id), group in by_branch.items():
        raw = ctx.kv.get(keys.branch(ctx.repo, name))
        branch = None if raw is ABSENT else decode_branch(raw)
        if branch is None or branch.id != branch_id:  # a closed record of another branch explains nothing
            lost += [Lost(entry, f"branch {name!r} is not there") for entry in group]
            continue
        if isinstance(branch, ClosedBranch):
            continue
        wanted = [entry.commit for entry in group]
        passed = _behind(ctx, branch.head, wanted, known)
        lost += [Lost(entry, f"branch {name!r} is behind it") for entry in group if entry.commit not in passed]
    return lost


def _behind(
    ctx: Context, head: CommitId, wanted: Sequence[CommitId], known: Mapping[CommitId, Commit]
) -> set[CommitId]:
    """Return which of the wanted commits the head is or follows, by first parents. `known`: records that the KV has,
    the wanted ones among them.
    """
    left = set(wanted)
    generation = min(known[commit].generation for commit in wanted)
    commit = head
    while left:
        left.discard(commit)
        record = known.get(commit) or maybe(ctx.kv.get(keys.commit(ctx.repo, commit)), Commit)
        if record is None or not record.parents or 0 < record.generation < generation:
            break
        commit = record.parents[0]
    return set(wanted) - left


def _lost_branches(ctx: Context, entries: Sequence[AnyEntry]) -> list[Lost]:
    created = [entry for entry in entries if isinstance(entry, BranchCreated)]
    lost: list[Lost] = []
    for entry, raw in zip(
        created, get_batched(ctx.kv, [keys.branch(ctx.repo, each.branch) for each in created]), strict=True
    ):
        branch = None if raw is ABSENT else decode_branch(raw)
        if branch is None or branch.id != entry.branch_id:
            lost.append(Lost(entry, f"branch {entry.branch!r} is not there"))
    return lost


def _lost_records(ctx: Context, entries: Sequence[AnyEntry]) -> list[Lost]:
    kept = [entry for entry in entries if isinstance(entry, RecordKept)]
    values = get_batched(ctx.kv, [entry.key for entry in kept])
    return [Lost(entry, "it is not there") for entry, value in zip(kept, values, strict=True) if value != entry.value]


def _lost_placed(ctx: Context, entries: Sequence[AnyEntry], *, others_answer: bool) -> list[Lost]:
    """Return the linked and restored entries that are lost; of each call only those.

    While the same servers answer, only a state that cannot come back tells of a loss: an address that waits to be
    linked, as itself or as a copy.
    """
    lost: list[Lost] = []
    reason = "it is neither staged nor known to have been replaced, deleted or committed"
    for entry in entries:
        if isinstance(entry, EntriesPlaced):
            missing = [item for page in batched(entry.entries, BATCH) for item in _not_staged(ctx, page)]
            records = ctx.references.get_many([item.entry.address for item in missing])
            linked = ctx.references.get_many([item.placed.issued or item.entry.address for item in missing])
            gone = [
                item.placed
                for item, record, at_issued in zip(missing, records, linked, strict=True)
                if isinstance(at_issued, Issued) or (others_answer and not _was_released(item, record))
            ]
            if others_answer:
                gone = _not_taken(ctx, gone)
            if gone:
                lost.append(Lost(msgspec.structs.replace(entry, entries=tuple(gone)), reason))
    return lost


class _Missing(NamedTuple):
    placed: PlacedEntry
    entry: Entry


def _not_staged(ctx: Context, placed: Sequence[PlacedEntry]) -> list[_Missing]:
    values = ctx.kv.get_many([keys.entry(ctx.repo, item.token, item.path) for item in placed])
    missing: list[_Missing] = []
    for item, value in zip(placed, values, strict=True):
        entry = decode(item.record, Entry)
        staged = None if value is ABSENT else decode_staged(value)
        if not isinstance(staged, Entry) or staged.address != entry.address:
            missing.append(_Missing(item, entry))
    return missing


def _was_released(item: _Missing, record: ReferenceRecord | None) -> bool:
    """Return whether the address says that its last reference was this entry's. Nobody else makes its id."""
    released = Reference(item.placed.token, item.placed.path, item.entry.reference_id)
    return isinstance(record, Emptied | Deleting) and record.last == released


def _not_taken(ctx: Context, placed: Sequence[PlacedEntry]) -> list[PlacedEntry]:
    """Return those whose object is still there, and whose token no commit of the manifest took."""
    if not placed:
        return []
    told = have_content(ctx, [decode(item.record, Entry).address for item in placed])
    there = [item for item, is_there in zip(placed, told, strict=True) if is_there]
    if not there:
        return []
    taken = {
        token
        for entry in ctx.manifest.all()
        if isinstance(entry, CommitLanded)
        for token in decode(entry.record, Commit).tokens
    }
    return [item for item in there if item.token not in taken]


def _lost_locations(ctx: Context, entries: Sequence[AnyEntry]) -> list[Lost]:
    """Return the locations that the KV does not know, though their objects are there: whoever deletes an identity takes
    its record off last.
    """
    items = [item for entry in entries if isinstance(entry, LocationsKept) for item in entry.each()]
    values = get_batched(ctx.kv, [keys.location(ctx.repo, item.items[0].identity) for item in items])
    unknown: list[tuple[LocationsKept, Location | None, Location]] = []
    for item, value in zip(items, values, strict=True):
        told, record = decode(item.items[0].record, Location), maybe(value, Location)
        if not follows(record, told):
            unknown.append((item, record, told))
    lost: list[Lost] = []
    for page in batched(unknown, HEADS):
        named = {address for item, _, told in page for address in (item.items[0].identity, *told.addresses())}
        infos = ctx.objects.head_many(sorted(named))
        there = {address for address, info in zip(sorted(named), infos, strict=True) if info is not None}
        for item, record, told in page:
            if there.intersection((item.items[0].identity, *told.addresses())):
                reason = "it is not there" if record is None or record.replaced < told.replaced else OTHER_CONTENT
                lost.append(Lost(item, reason))
    return lost


def follows(record: Location | None, told: Location) -> bool:
    """Return whether a location is what was told, or came after it. Behind a loss another run may publish under the
    number that was lost.
    """
    if record is None:
        return not told.replaced  # an object that was never replaced has no record, once its attempts are cleared
    if record.replaced < told.replaced:
        return False
    if record.replaced > told.replaced or record.current is None or told.current is None:
        return True
    return told.current.address in (record.current.address, *record.addresses())


def _is_repository(value: object, repo: str) -> bool:
    try:
        return isinstance(value, bytes) and decode(value, RepositoryRecord).id == repo
    except CorruptRecord:
        return True  # it is there: who works on the repository says that its record is damaged


def _raise_for(lost: Sequence[Lost], whose: str) -> None:
    if lost:
        named = "; ".join(f"{describe(item.entry)}: {item.reason}" for item in lost[:NAMED_MAX])
        more = f"; and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
        raise KVWentBack(
            f"the KV went back in time: it does not know what {whose} acknowledged ({named}{more}); nothing is "
            "deleted. See `refstore kv verify`"
        )


def get_batched(kv: KV, wanted: Sequence[Key]) -> list[bytes | Absent]:
    """Read any number of keys, in batches."""
    return [value for batch in batched(wanted, BATCH) for value in kv.get_many(batch)]


def describe(entry: AnyEntry) -> str:
    """Name what an entry is about, for people."""
    match entry:
        case CommitLanded():
            return f"commit {entry.commit[:12]}" + (f" on branch {entry.branch!r}" if entry.branch else "")
        case BranchCreated() | BranchDeleted():
            return f"branch {entry.branch!r}"
        case RecordKept() | RecordRemoved():
            return f"{entry.partition.rpartition('/')[2].removesuffix('s')} {entry.name!r}"
        case RepositoryCreated() | RepositoryDeleted():
            return f"repository {entry.name!r}"
        case EntriesPlaced():
            first, more = entry.entries[0], len(entry.entries) - 1
            others = f" and {more} more of the same call" if more else ""
            return f"{first.path!r} on branch {branch_of(first.token)!r}, linked or restored{others}"
        case LocationsKept():
            first, *others = entry.items
            return f"the content of {first.identity}" + (f" and {len(others)} more of the same run" if others else "")
        case LossAccepted():
            return f"a lost {entry.lost_kind}, which was given up"
