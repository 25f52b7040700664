"""Restore: take back what lost its last name, as long as the reaper has not begun to delete it (rules 5, 8 and 17).

What is put back is the entry that named the address: the grace window keeps it, and before the reaper has passed it still stands under
the token that was given up. Nothing is put over what was written since, unless that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import AddressNotFound, AlreadyExists, Contention, Gone, ObjectNotFound, RefstoreError
from refstore.flows.expiring import EXPIRED
from refstore.flows.placing import DELETED, Moved, Placement, check_distinct, explain_moved, place
from refstore.flows.reading import Resolved, resolve_many
from refstore.flows.refs import Ref
from refstore.flows.trash import InGrace
from refstore.ids import Address, BranchName, CommitId, Path, Token, branch_of, made_ms
from refstore.markers import BRANCH_DELETED, RESET
from refstore.records import Emptied, Entry, Issued, Listed, Reference, ReferenceRecord, decode_staged
from refstore.references import Hold, References

BATCH: Final = 1000
"""How many addresses share their round trips."""

ATTEMPTS: Final = 16
"""How often a list is read again because it changed while what it names was read. Each time means that somebody made progress."""

LOSSES: Final = (RESET, BRANCH_DELETED, DELETED, EXPIRED)
"""Causes by which a path loses what it was. The others leave older versions, and the rest of uploads that died."""


class Outcome(Enum):
    RESTORED = "restored"
    UNCHANGED = "unchanged"
    """The branch has it at that path already."""
    OLDER = "older"
    """A later version of the path was lost as well, or this one was overwritten: it is taken back by its address, not with others."""
    CONFLICT = "conflict"
    """Something that was written since is at the path; it was left."""
    TOO_LATE = "too late"
    """Its grace window is over, or it is none that can be restored."""


class Wanted(NamedTuple):
    """One address to take back, at a path or, where that is None, at the one that it had."""

    address: str
    path: str | None = None


class Restored(NamedTuple):
    """What became of one address."""

    address: Address
    path: Path
    """Where it is, or was to be put; '' where no path is known. It may have other names on the branch."""
    entry: Entry | None
    """What is at the path now, if it was restored or is unchanged; else None. A dry run tells what it would put there."""
    outcome: Outcome
    error: RefstoreError | None = None
    """Why it was not restored."""


class _Known(NamedTuple):
    """What is still known of an address: its names, in the order they were given, and the entries of those that have one left."""

    names: tuple[Reference, ...]
    entries: dict[Reference, Entry]
    error: RefstoreError | None = None


class _Planned(NamedTuple):
    address: Address
    path: Path
    entry: Entry


def restore_many(
    ctx: Context, branch: BranchName, wanted: Sequence[Wanted], *, force: bool = False, dry_run: bool = False
) -> list[Restored]:
    """Put addresses back on a branch; what became of each. No path may be wanted twice.

    `force`: also over what was written since. `dry_run`: only say what would be done. Raises BranchNotFound, InvalidName, InvalidPath.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    addresses = [ids.own_address(item.address) for item in wanted]
    paths = [ids.object_path(item.path) if item.path is not None else None for item in wanted]
    done: dict[int, Restored] = {}
    planned: dict[int, _Planned] = {}
    known = _look_up(ctx, addresses)
    bare = _described_by_the_store(
        ctx, [each for each, found in zip(addresses, known, strict=True) if not found.entries and not found.error]
    )

    token = branches.open(branch).record.token
    asked = {path for path in paths if path is not None} | {
        name.path for path, found in zip(paths, known, strict=True) if path is None for name in found.names
    }
    there = _on_branch(ctx, branch, sorted(asked))
    for index, (address, path, found) in enumerate(zip(addresses, paths, known, strict=True)):
        same = next((name for name in _paths(path, found) if name in there and there[name].entry.address == address), None)
        if same is not None:
            done[index] = Restored(address, same, there[same].entry, Outcome.UNCHANGED)
            continue
        error = found.error or (None if found.entries or bare[address] else _not_written(address))
        if error is not None:
            done[index] = Restored(address, path or Path(""), None, Outcome.TOO_LATE, error)
            continue
        name, entry = _choose(branch, path, found)
        each = planned[index] = _Planned(address, name, entry or _bare(address, bare))
        if not force and name in there and _is_newer(there[name], address):
            error = AlreadyExists(f"{name!r} on {branch!r} was written since; give another path, or force to put {address} over it")
            done[index] = Restored(address, each.path, None, Outcome.CONFLICT, error)
            del planned[index]

    check_distinct([Placement(item.path, None, referenced=False) for item in planned.values()])
    for index, item in planned.items():
        done[index] = Restored(item.address, item.path, item.entry, Outcome.RESTORED)
    if planned and not dry_run:
        done |= _put_back(ctx, branch, token, planned)
    return [done[index] for index in range(len(wanted))]


def choose(found: Iterable[InGrace], *, by_path: bool) -> tuple[list[InGrace], list[InGrace]]:
    """(of each path what was lost last, the rest), of what one branch lost. Without `by_path`, what was only overwritten is the rest."""
    newest: dict[Path, InGrace] = {}
    older: list[InGrace] = []
    for item in found:
        if not by_path and item.cause not in LOSSES:
            older.append(item)
            continue
        before = newest.get(item.path)
        if before is None or _order(before) < _order(item):
            newest[item.path], rest = item, before
        else:
            rest = item
        if rest is not None and rest.address != newest[item.path].address:  # the same may be listed twice while the reaper passes
            older.append(rest)
    return list(newest.values()), older


def _order(item: InGrace) -> tuple[str, int, str]:
    """Later on a branch: under a later token, whenever the reaper came to it; under one token, lost later."""
    return item.token.rpartition(":")[2], item.since_ms, item.address


def _look_up(ctx: Context, addresses: Sequence[Address]) -> list[_Known]:
    """Read each address's list, then the entries that its names have under their tokens.

    The reaper takes a name off the list, whose record keeps the entry then, before the entry goes from its token. So where no entry is
    found the list is read again: until it tells, or stood still.
    """
    references = References(ctx.kv, ctx.repo, ctx.clock)
    known: dict[int, _Known] = {}
    before: dict[int, ReferenceRecord | None] = {}
    for _ in range(ATTEMPTS):
        waiting = [index for index in range(len(addresses)) if index not in known]
        if not waiting:
            return [known[index] for index in range(len(addresses))]
        names: dict[int, tuple[Reference, ...]] = {}
        records = references.get_many([addresses[index] for index in waiting])
        for index, record in zip(waiting, records, strict=True):
            match record:
                case Emptied(last=last, entry=Entry() as entry):
                    known[index] = _Known((last,), {last: entry})
                case Emptied(last=last):
                    names[index] = (last,)
                case Listed(listed):
                    names[index] = listed
                case _:
                    known[index] = _Known((), {}, _not_in_grace(addresses[index], record))
        entries = _entries(ctx, [(addresses[index], name) for index, listed in names.items() for name in listed])
        for index, record in zip(waiting, records, strict=True):
            if index in names:
                found = {name: entries[addresses[index], name] for name in names[index] if (addresses[index], name) in entries}
                if found or (index in before and before[index] == record):
                    known[index] = _Known(names[index], found)
                before[index] = record
    raise Contention("others kept changing the references of one address; make the same call again")


def _entries(ctx: Context, names: Sequence[tuple[Address, Reference]]) -> dict[tuple[Address, Reference], Entry]:
    """What stands under each name's token at its path, where that still is the address."""
    unique = list(dict.fromkeys((name.token, name.path) for _, name in names))
    values = dict(zip(unique, ctx.kv.get_many([keys.entry(ctx.repo, *each) for each in unique]) if unique else (), strict=True))
    found: dict[tuple[Address, Reference], Entry] = {}
    for address, name in names:
        value = values[name.token, name.path]
        record = decode_staged(value) if isinstance(value, bytes) else None
        if isinstance(record, Entry) and record.address == address:
            found[address, name] = record
    return found


def _described_by_the_store(ctx: Context, addresses: Sequence[Address]) -> dict[Address, Entry | None]:
    """What the store can say of blobs that no entry is known of; None: nothing was written there."""
    infos = ctx.objects.head_many(addresses) if addresses else ()
    return {
        address: Entry(address, info.size_bytes, "", info.mtime_ms) if info is not None else None
        for address, info in zip(addresses, infos, strict=True)
    }


def _bare(address: Address, bare: dict[Address, Entry | None]) -> Entry:
    entry = bare[address]
    assert entry is not None  # noqa: S101  # what was never written is done with by then
    return entry


def _on_branch(ctx: Context, branch: BranchName, paths: Sequence[Path]) -> dict[Path, Resolved]:
    return resolve_many(ctx, Ref(branch, branch, CommitId(""), from_history=False), paths) if paths else {}


def _paths(path: Path | None, found: _Known) -> list[Path]:
    """Where the address may be already."""
    return [path] if path is not None else [name.path for name in found.names]


def _choose(branch: BranchName, path: Path | None, found: _Known) -> tuple[Path, Entry | None]:
    """Where to put it, and which of its entries: a name that it had on this branch rather than another, one with an entry if it can be."""
    best = max(found.names, key=lambda name: (branch_of(name.token) == branch, name.path == path, name in found.entries))
    return path if path is not None else best.path, found.entries.get(best) or next(iter(found.entries.values()), None)


def _is_newer(there: Resolved, address: Address) -> bool:
    """Whether what is at a path was written since: what is staged there, or was committed and made later than the address."""
    if there.token is not None:
        return True
    made = made_ms(there.entry.address) if ids.is_own(there.entry.address) else there.entry.mtime_ms
    return made is not None and made > (made_ms(address) or 0)


def _put_back(ctx: Context, branch: BranchName, token: Token, planned: dict[int, _Planned]) -> dict[int, Restored]:
    """Each under a reference of its own (rule 1): on an empty list, too, and on one that has names left (rule 17)."""
    references = References(ctx.kv, ctx.repo, ctx.clock)
    now = ctx.clock.now_ms()
    entries = {index: msgspec.structs.replace(item.entry, reference_id=ctx.ids.unique(now)) for index, item in planned.items()}
    wanted = [(item.address, Reference(token, item.path, entries[index].reference_id)) for index, item in planned.items()]
    held = dict(zip(planned, references.hold(wanted, on_empty=True), strict=True))
    done: dict[int, Restored] = {}
    placements: list[Placement] = []
    for index, item in planned.items():
        if held[index] is Hold.HELD:
            done[index] = Restored(item.address, item.path, entries[index], Outcome.RESTORED)
            placements.append(Placement(item.path, entries[index], referenced=True))
        else:
            error = Gone(f"{item.address} left its grace window while it was being restored; nothing was changed")
            done[index] = Restored(item.address, item.path, None, Outcome.TOO_LATE, error)
    by_path = {item.path: index for index, item in planned.items()}
    try:
        if placements:
            place(ctx, branch, token, placements, on_empty=True)
    except Moved as moved:
        for placement in moved.placements:
            try:
                explain_moved(ctx, branch, Moved([placement]))
            except Contention as error:
                index = by_path[placement.path]
                done[index] = Restored(planned[index].address, placement.path, None, Outcome.CONFLICT, error)
    return done


def _not_in_grace(address: Address, record: ReferenceRecord | None) -> RefstoreError:
    if isinstance(record, Issued):
        return AddressNotFound(f"{address} was issued and never linked; link it instead")
    return Gone(f"{address} is not in its grace window: it is committed, or deleted, or about to be; ask `refstore why` about it")


def _not_written(address: Address) -> ObjectNotFound:
    return ObjectNotFound(f"nothing was written to {address}; its upload died before, or is under way")
