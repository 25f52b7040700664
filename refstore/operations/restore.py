"""Restore: take back addresses that lost their last reference, until the reaper begins to delete them (rules 5, 8, 17).

Restore writes the entry again that named the address. The grace window keeps that entry; before the reaper has
processed the retired token, the entry still stands under it. An entry that was written since is not replaced, unless
the caller forces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core import ids
from refstore.core.ids import Address, BranchName, Path, Token, address_time_ms, branch_of
from refstore.errors import AlreadyExists, Gone, ObjectNotFound, RefstoreError
from refstore.operations.expire_staged_entries import EXPIRED_CAUSE
from refstore.operations.read import ResolvedEntry, resolve_many
from refstore.operations.reference_lookup import ReferenceLookup, describe_contents, look_up
from refstore.operations.refs import ResolvedRef
from refstore.operations.stage_entries import (
    DELETED_CAUSE,
    Placement,
    TokenMoved,
    check_distinct,
    find_uncommitted,
    place,
)
from refstore.operations.trash import LostName
from refstore.public_types import Entry
from refstore.records.reference_records import Reference
from refstore.records.staging_records import StoredEntry
from refstore.versioning.address_state import AddOutcome
from refstore.versioning.markers import BRANCH_DELETED_CAUSE, RESET_CAUSE

BATCH: Final = 1000
"""How many addresses share their round trips."""

LOSS_CAUSES: Final = (RESET_CAUSE, BRANCH_DELETED_CAUSE, DELETED_CAUSE, EXPIRED_CAUSE)
"""Causes by which a path loses its entry. The others leave older versions, and the remains of uploads that died."""


class RestoreOutcome(Enum):
    """What became of one object that a call was to restore."""

    RESTORED = "restored"
    UNCHANGED = "unchanged"
    """The branch has it at that path already."""
    OLDER = "older"
    """A later version of the path was lost too, or this one was overwritten; only its address restores it."""
    CONFLICT = "conflict"
    """The path has an entry that was written since; it was left."""
    TOO_LATE = "too late"
    """Its grace window is over, or it cannot be restored."""


class RestoreRequest(NamedTuple):
    """One address to restore, at `path` or, if that is None, at its last path."""

    address: str
    path: str | None = None


class RestoreResult(NamedTuple):
    """What happened to one address."""

    address: Address
    path: Path
    """The path that it has, or was to have; '' where none is known. It may have other names on the branch."""
    entry: Entry | None
    """The entry at the path now, if it was restored or is unchanged; else None. In a dry run, the entry to write."""
    outcome: RestoreOutcome
    error: RefstoreError | None = None
    """Why it was not restored."""


class _PlannedRestore(NamedTuple):
    address: Address
    path: Path
    entry: StoredEntry


def restore_many(
    ctx: Context, branch: BranchName, requests: Sequence[RestoreRequest], *, force: bool = False, dry_run: bool = False
) -> list[RestoreResult]:
    """Restore addresses to a branch, and return what happened to each. No two requests may have one path.

    `force`: also replace entries that were written since. `dry_run`: change nothing.

    Raises BranchNotFound, InvalidName, InvalidPath.
    """
    branches = ctx.branches
    addresses = [ids.own_address(item.address) for item in requests]
    paths = [ids.object_path(item.path) if item.path is not None else None for item in requests]
    results: dict[int, RestoreResult] = {}
    plans: dict[int, _PlannedRestore] = {}
    lookups = look_up(ctx, addresses)
    bare = describe_contents(
        ctx, [each for each, lookup in zip(addresses, lookups, strict=True) if not lookup.entries and not lookup.error]
    )

    token = branches.read_open(branch).record.token
    requested_paths = {path for path in paths if path is not None} | {
        name.path for path, lookup in zip(paths, lookups, strict=True) if path is None for name in lookup.names
    }
    current = resolve_many(ctx, ResolvedRef.of_branch(branch), sorted(requested_paths)) if requested_paths else {}
    for index, (address, path, lookup) in enumerate(zip(addresses, paths, lookups, strict=True)):
        # the paths at which the branch may name the address already
        candidates = [path] if path is not None else [name.path for name in lookup.names]
        same = next((name for name in candidates if name in current and current[name].entry.address == address), None)
        if same is not None:
            results[index] = RestoreResult(address, same, Entry(same, current[same].entry), RestoreOutcome.UNCHANGED)
            continue
        error = lookup.error
        if error is None and not lookup.entries and not bare[address]:
            error = ObjectNotFound(f"nothing was written to {address}; its upload died before, or is under way")
        if error is not None:
            results[index] = RestoreResult(address, path or Path(""), None, RestoreOutcome.TOO_LATE, error)
            continue
        name, entry = _choose_path(branch, path, lookup)
        entry = entry or bare[address]
        assert entry is not None  # noqa: S101  # what was never written is done with by then
        each = plans[index] = _PlannedRestore(address, name, entry)
        if not force and name in current and _is_newer(current[name], address):
            error = AlreadyExists(
                f"{name!r} on {branch!r} was written since; give another path, or use force to replace it by {address}"
            )
            results[index] = RestoreResult(address, each.path, None, RestoreOutcome.CONFLICT, error)
            del plans[index]

    check_distinct([item.path for item in plans.values()])
    for index, item in plans.items():
        results[index] = RestoreResult(item.address, item.path, Entry(item.path, item.entry), RestoreOutcome.RESTORED)
    if plans and not dry_run:
        results |= _restore_references(ctx, branch, token, plans)
    return [results[index] for index in range(len(requests))]


def select_latest(lost_names: Iterable[LostName], *, by_path: bool) -> tuple[list[LostName], list[LostName]]:
    """Split what one branch lost into the last lost entry of each path, and the older rest.

    Without `by_path`, entries that were only overwritten belong to the rest.
    """
    newest: dict[Path, LostName] = {}
    older: list[LostName] = []
    for item in lost_names:
        if not by_path and item.cause not in LOSS_CAUSES:
            older.append(item)
            continue
        before = newest.get(item.path)
        if before is None or _loss_order(before) < _loss_order(item):
            newest[item.path], rest = item, before
        else:
            rest = item
        if (
            rest is not None and rest.address != newest[item.path].address
        ):  # an address may be listed twice while the reaper processes its token
            older.append(rest)
    return list(newest.values()), older


def _loss_order(item: LostName) -> tuple[str, int, str]:
    """Return a sort key: the token, because the reaper may come late to it; then the time of the loss."""
    return item.token.rpartition(":")[2], item.since_ms, item.address


def _choose_path(branch: BranchName, path: Path | None, lookup: ReferenceLookup) -> tuple[Path, StoredEntry | None]:
    """Return the path to restore to, and the entry: of a name on this branch first, then of one with an entry."""
    best = max(
        lookup.names, key=lambda name: (branch_of(name.token) == branch, name.path == path, name in lookup.entries)
    )
    return path if path is not None else best.path, lookup.entries.get(best) or next(
        iter(lookup.entries.values()), None
    )


def _is_newer(current: ResolvedEntry, address: Address) -> bool:
    """Return whether the entry at a path was written since: it is staged, or its object is newer than the address."""
    if current.token is not None:
        return True
    current_made_ms = (
        address_time_ms(current.entry.address) if ids.is_own(current.entry.address) else current.entry.mtime_ms
    )
    return current_made_ms is not None and current_made_ms > (address_time_ms(address) or 0)


def _restore_references(
    ctx: Context, branch: BranchName, token: Token, plans: dict[int, _PlannedRestore]
) -> dict[int, RestoreResult]:
    """Restore each address under a reference of its own (rule 1), whether its list is empty or has names (rule 17)."""
    references = ctx.references
    now = ctx.clock.now_ms()
    entries = {
        index: msgspec.structs.replace(item.entry, reference_id=ctx.ids.new_id(now)) for index, item in plans.items()
    }
    new_references = [
        (item.address, Reference(token, item.path, entries[index].reference_id)) for index, item in plans.items()
    ]
    outcomes = dict(zip(plans, references.add(new_references, on_empty=True), strict=True))
    results: dict[int, RestoreResult] = {}
    placements: list[Placement] = []
    for index, item in plans.items():
        if outcomes[index] is AddOutcome.LISTED:
            results[index] = RestoreResult(
                item.address, item.path, Entry(item.path, entries[index]), RestoreOutcome.RESTORED
            )
            placements.append(Placement(item.path, entry=entries[index], is_referenced=True))
        else:
            error = Gone(f"{item.address} left its grace window while it was being restored; nothing was changed")
            results[index] = RestoreResult(item.address, item.path, None, RestoreOutcome.TOO_LATE, error)
    by_path = {item.path: index for index, item in plans.items()}
    try:
        if placements:
            place(ctx, branch, token, placements, on_empty=True, witness=ctx.safety.witness == "always")
    except TokenMoved as moved:
        for path, error in find_uncommitted(ctx, branch, moved).items():
            index = by_path[path]
            results[index] = RestoreResult(plans[index].address, path, None, RestoreOutcome.CONFLICT, error)
    return results
