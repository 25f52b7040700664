"""Explain a physical address or a path for `refstore why`, from all records of it.

    explain_address    its references now, the commits and branches that name it, its marks, and all its deletions
    explain_path       the entry at a path now, earlier entries, and what happened to each object that was there

It finds every deletion (`deletion_search.py`): by the reaper, by a sweep, or by the clearing of a deleted repository. A
store that does not answer raises. `incomplete` lists what could not be searched. This module only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.clock import to_datetime
from refstore.core.ids import Address, BranchName, Path, Token
from refstore.deletion_history.causes import SWEEP
from refstore.deletion_history.deletion_journal import DeletionRecord
from refstore.deletion_history.deletion_search import DeletionSearch, MarkedFor
from refstore.deletion_history.naming_commits import NamingCommits, Version, naming_commits, versions_of
from refstore.errors import AddressNotFound, Gone, NotFound, ObjectNotFound
from refstore.gc_marks.commit_marks import PAGE
from refstore.kv.base import ABSENT
from refstore.objects.object_keys import key_fault
from refstore.operations import address_info, hidden_commits, read, refs, trash
from refstore.operations.address_info import PURGE_STATES, UNNAMED_STATES, AddressInfo, AddressState, ReferenceState
from refstore.operations.purge_roles import (
    HIDDEN_BRANCHES,
    AddressRole,
    PurgeRole,
    describe_role,
    role_of_content,
    role_of_identity,
)
from refstore.operations.swept_entries import find_sweeping_marks
from refstore.operations.transaction import TRANSACTION_BRANCHES
from refstore.operations.trash import LostName
from refstore.public_types import Entry, public_entry
from refstore.records import keys
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning.commits import object_names

VERSIONS_MAX: Final = 20
"""For how many objects of a path deletions are searched, the newest first."""

SWEPT_FOLDERS: Final = ("data/", object_names.RANGES, object_names.METARANGES, object_names.ADDED_ADDRESSES)
"""The prefixes of the keys that the offline job may delete."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """One deletion of an address, by whatever part of refstore."""

    address: str
    at: datetime
    by: str
    """`reaper`, `sweep` for the offline job, or `cleaning` for that of what purges left behind."""
    run: str
    """The id of the reaper, of the mark, or of the cleaning."""
    outcome: str
    """As `DeletionRecord` has it: deleted, missing, interrupted, failed or tagged."""
    cause: str
    """Why the object was not needed: reset, overwritten, ... expired, orphan blob, ..."""
    rule: str
    """The rule by which it was deleted, as a text."""
    path: str
    """The last path that named it; '' if no record has it."""
    size_bytes: int | None
    """None: unknown."""
    reason: str
    """The store's reason, if it failed."""
    _token: str = field(repr=False)

    @classmethod
    def of_record(cls, record: DeletionRecord) -> Deletion:
        known = record._asdict()
        at, token, size_bytes = to_datetime(known.pop("at_ms")), known.pop("token"), known.pop("size_bytes")
        return cls(**known, at=at, size_bytes=size_bytes if size_bytes >= 0 else None, _token=token)


deletion_token: Final[Callable[[Deletion], str]] = attrgetter("_token")
"""Return the staging token under which the last path was named; '' if no record has it."""


class AddressReport(NamedTuple):
    """What the records say about an address."""

    info: AddressInfo
    """Its references and its state now."""
    deletions: tuple[Deletion, ...]
    """Oldest first. There is more than one if the first was interrupted, or the store refused it."""
    marked: tuple[MarkedFor, ...]
    """The marks that contain it and are not swept yet; not those from which a commit that names it was taken back."""
    naming: NamingCommits | None
    """The commits that name it, or named it; None if they were not searched."""
    incomplete: tuple[str, ...]
    """What could not be searched, as texts."""
    purge_role: PurgeRole | None = None
    """What a purge has to do with it."""

    @property
    def meaning(self) -> str:
        """What keeps the object, or what will happen to it; '' where the state says it."""
        return explain_state(self.info, self.purge_role, is_marked=bool(self.marked))


class PathVersion(NamedTuple):
    """An object that is or was at a path."""

    address: str
    committed: Version | None
    """The commits that have it at the path. None: no searched commit has it there."""
    why: AddressReport | None
    """What happened to it. None: it is a foreign object, which refstore never deletes."""


class PathReport(NamedTuple):
    """What the records say about a path."""

    ref: str
    path: str
    ref_exists: bool
    now: Entry | None
    staged: bool
    """Whether the entry there now is staged."""
    unreadable: str
    """Why the ref's commit, which has an entry there, cannot be read at the path; '' if it can, or has none."""
    is_swept: bool
    """Whether that is because the object was swept; else the rules hide the commit."""
    versions: tuple[PathVersion, ...]
    """Newest first."""
    removed: tuple[Version, ...]
    """The commits that removed the path."""
    incomplete: tuple[str, ...]


_MAY_BE_COMMITTED: Final = frozenset((AddressState.COMMITTED, AddressState.UNKNOWN))


def explain_address(ctx: Context, address: str, *, commits: bool = False) -> AddressReport:
    """Return what the records say about an address, or about the key of another object that a sweep may delete.

    `commits`: also find the commits that named a deleted address, which takes some more requests. Raises InvalidName,
    AddressNotFound (no record has it), Corrupt, Unavailable.
    """
    key = Address(address) if ids.is_own(Address(address)) else _other_key(address)
    (found,) = _explain(ctx, DeletionSearch(ctx), [key])
    if found.purge_role is None and found.info.state in (*UNNAMED_STATES, AddressState.GONE):
        found = _as_content(ctx, found)
    if not _is_known(found):
        raise AddressNotFound(
            f"{address} is not in {ctx.name!r}: nothing names it, there is no blob, and neither the journal nor a "
            f"sweep has deleted it; check that the repository is the right one{_also(found.incomplete)}"
        )
    if found.purge_role is not None and found.purge_role.role is not AddressRole.IDENTITY:
        return found  # commits name the identity
    swept = any(deletion.by == SWEEP for deletion in found.deletions)
    if ids.is_own(key) and (found.info.state in _MAY_BE_COMMITTED or (commits and swept)):
        found = found._replace(naming=naming_commits(ctx, key))
    return found


def explain_path(ctx: Context, ref: str, path: str) -> PathReport:
    """Return what the records say about a path. `ref`: any ref, or a deleted branch. Raises InvalidPath, ObjectNotFound
    (no record has it), Corrupt, Unavailable.
    """
    name = ids.object_path(path)
    incomplete: dict[str, None] = {}
    present = _now(ctx, ref, name)
    now, exists = present.entry, present.ref_exists
    committed, all_commits = versions_of(ctx, ref if exists else None, name)
    if not all_commits:
        incomplete["only the newest commits were searched for the path; ask about an address for older ones"] = None
    by_address: dict[Address, Version] = {}
    for version in committed:
        if version.address is not None:
            by_address.setdefault(version.address, version)
    order: dict[str, None] = {now.address: None} if now is not None else {}
    branch = BranchName(ref)
    order |= dict.fromkeys(_staged_before(ctx, branch, name))
    for item in _in_grace(ctx, branch, name):
        order[item.address] = None
    order |= dict.fromkeys(by_address)
    search = DeletionSearch(ctx)
    order |= {record.address: None for record in search.of_path(branch, name, incomplete)}
    if len(order) > VERSIONS_MAX:
        incomplete[f"{len(order) - VERSIONS_MAX} more objects were at this path; ask about the address of one"] = None
    shown = [Address(address) for address in order][:VERSIONS_MAX]
    own = [address for address in shown if ids.is_own(address)]
    whys = dict(zip(own, _explain(ctx, search, own), strict=True))
    incomplete |= dict.fromkeys(text for why in whys.values() for text in why.incomplete)
    versions = [PathVersion(address, by_address.get(address), whys.get(address)) for address in shown]
    if not versions:
        raise ObjectNotFound(
            f"nothing is known of {path!r} on {ref!r} in {ctx.name!r}: it does not exist, no commit names it, and no "
            "object in its grace window or in the journal had it; check the ref and the path (an address is "
            f"data/<hour>/<id>){_also(tuple(incomplete))}"
        )
    removed = tuple(version for version in committed[:-1] if version.address is None)
    return PathReport(
        ref,
        name,
        exists,
        public_entry(name, now),
        present.staged,
        present.unreadable,
        present.is_swept,
        tuple(versions),
        removed,
        tuple(incomplete),
    )


# ---- an address


def _other_key(key: str) -> Address:
    """Return the key of another object that a sweep may delete: an object of a commit, or a foreign one below `data/`.
    Raises InvalidName.
    """
    if not key.startswith(SWEPT_FOLDERS) or key_fault(key):
        return ids.own_address(key)  # its error message describes a valid address
    return Address(key)


def _explain(ctx: Context, search: DeletionSearch, addresses: Sequence[Address]) -> list[AddressReport]:
    """Explain each address, without the commits that name it."""
    views = [_view(ctx, address) for address in addresses]
    return [
        AddressReport(
            view,
            tuple(map(Deletion.of_record, found.deletions)),
            found.marked,
            None,
            found.incomplete,
            role_of_identity(ctx, view.address),
        )
        for view, found in zip(views, search.of_addresses(views), strict=True)
    ]


def _view(ctx: Context, key: Address) -> AddressInfo:
    if ids.is_own(key):
        return address_info.address_names(ctx, key)
    there = ctx.objects.head_many([key])[0] is not None
    return AddressInfo(key, AddressState.COMMITTED if there else AddressState.GONE, (), None, "", None)


def _as_content(ctx: Context, why: AddressReport) -> AddressReport:
    """Return which object has its content, a backup or the like at the address. Reads all records of locations."""
    role = role_of_content(ctx, why.info.address).purge_role
    if role is None:
        return why
    state = why.info.state if why.info.state is AddressState.GONE else PURGE_STATES[role.role]
    return why._replace(info=why.info._replace(state=state), purge_role=role)


def _is_known(why: AddressReport) -> bool:
    return why.info.state is not AddressState.GONE or bool(why.deletions or why.marked or why.purge_role)


def _also(incomplete: Iterable[str]) -> str:
    listed = "; ".join(incomplete)
    return f". Not looked at: {listed}" if listed else ""


# ---- a path


class _Present(NamedTuple):
    """What a reader of a path on a ref gets."""

    ref_exists: bool
    entry: StoredEntry | None = None
    staged: bool = False
    unreadable: str = ""
    is_swept: bool = False


def _now(ctx: Context, ref: str, path: Path) -> _Present:
    try:
        resolved = refs.resolve(ctx, ref)
    except NotFound:
        return _Present(ref_exists=False)
    try:
        found = read.resolve(ctx, resolved, path)
    except ObjectNotFound:
        return _Present(ref_exists=True)
    except Gone as error:
        entry = ctx.trees.get(refs.get_commit(ctx, resolved.commit).metarange, path)
        marks = hidden_commits.read_marks(ctx, resolved)
        is_swept = entry is not None and find_sweeping_marks(ctx, marks, [(path, entry)])[0] is not None
        return _Present(ref_exists=True, unreadable=str(error) if entry is not None else "", is_swept=is_swept)
    return _Present(ref_exists=True, entry=found.entry, staged=found.token is not None)


def _staged_before(ctx: Context, branch: BranchName, path: Path) -> Iterator[Address]:
    """Yield the addresses that were staged at the path under tokens that the reaper has not processed yet. Right after
    a reset no other record has them.
    """
    tokens = [Token(name) for name, _ in ctx.kv.scan_all(keys.tokens(ctx.repo), prefix=f"{branch}:")]
    for page in split_batches(reversed(tokens), PAGE):
        for value in ctx.kv.get_many([keys.entry(ctx.repo, token, path) for token in page]):
            record = decode_staged(value) if value is not ABSENT else None
            if isinstance(record, StoredEntry):
                yield record.address


def _in_grace(ctx: Context, branch: BranchName, path: Path) -> Iterator[LostName]:
    return (item for item in trash.list_trash(ctx, branch=branch, prefix=path) if item.path == path)


def explain_state(view: AddressInfo, purged: PurgeRole | None, *, is_marked: bool = False) -> str:
    """Return a sentence without its end; '' where the state says it all. `is_marked`: a mark that is not swept yet
    takes it.
    """
    is_there = view.state is not AddressState.GONE
    if purged is not None and purged.role is not AddressRole.IDENTITY:
        return describe_role(purged, is_there=is_there)
    names = _names(view, is_purged=purged is not None, is_marked=is_marked)
    return "; ".join(filter(None, (names, describe_role(purged) if purged is not None else "")))


def _names(view: AddressInfo, *, is_purged: bool, is_marked: bool) -> str:
    """Say what names it."""
    match view.state, view.reference_state:
        case AddressState.REFERENCED, ReferenceState.STAGED if _is_only_on(view, TRANSACTION_BRANCHES):
            return "a transaction has staged it, and merges it, or it goes with the hidden branch of that transaction"
        case AddressState.REFERENCED, ReferenceState.STAGED if _is_only_on(view, HIDDEN_BRANCHES):
            return "a run of the purge has staged it on a hidden branch, and commits it, or it goes with that branch"
        case AddressState.REFERENCED, ReferenceState.STAGED:
            return "it is staged, and nothing deletes it"
        case AddressState.REFERENCED, ReferenceState.UNNAMED:
            return (
                "no entry names it: its write is under way, or died; in the latter case its grace window begins when "
                "the reaper has scrubbed, or has processed the token"
            )
        case AddressState.REFERENCED, ReferenceState.COMMITTED:
            return "a commit keeps it; the reaper has not processed that commit yet"
        case AddressState.REFERENCED, ReferenceState.DELETED | ReferenceState.ORPHANED:
            return "nothing names it any more; its grace window begins when the reaper has run"
        case AddressState.COMMITTED, _ if is_marked:
            return "only commits that have expired and are marked name it; the sweep of the mark deletes it"
        case AddressState.TAGGED, _:
            return "only swept commits name it; it is tagged, and is there until the bucket deletes it"
        case AddressState.COMMITTED, _:
            return "commits keep it; `refstore retention explain REPO COMMIT` says until when, and by which rule"
        case AddressState.SWEPT | AddressState.ORPHAN, _ if is_purged:
            return "nothing names it any more; the next full run of the offline job deletes it, with its contents"
        case _:
            return ""


def _is_only_on(view: AddressInfo, branches: str) -> bool:
    """Return whether only branches name it whose names begin so."""
    return all(reference.branch.startswith(branches) for reference in view.references)
