"""Find the references of a physical address and their states (lakeFS's design 004, proposal 3).

No record stores these states. They follow from the reference list and from the fate of each reference's token. For an
address without references they follow from the commits that name it. With several references the state of the address
follows the "Key Update Order of Precedence" there: committed wins over staged, staged over deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids
from refstore.core.clock import to_datetime
from refstore.core.ids import Address, BranchName, CommitId, Path, Token, branch_of
from refstore.kv.base import ABSENT
from refstore.operations.committed_names import CommittedName, committed_name
from refstore.operations.purge_roles import AddressRole, role_of_content
from refstore.operations.reference_lookup import have_content
from refstore.operations.refs import get_commit
from refstore.records import keys
from refstore.records.branch_records import DeletedToken, StoredBranch
from refstore.records.encoding import decode_optional
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed, Reference
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning.address_state import reference_time_ms
from refstore.versioning.markers import commit_of


class ReferenceState(Enum):
    """What a reference to an address stands for."""

    STAGED = "staged"
    UNNAMED = "not named"
    """Its token is live, and the entry at its path does not name the address: the write is under way, or it died. The
    scrubber takes it when it is old (rule 9); under a sealed token it goes with the token.
    """
    COMMITTED = "committed"
    """A commit took the entry; the reaper has not processed it yet."""
    DELETED = "deleted"
    """The token was reset or its branch deleted, or a commit took the token and not this entry, which was overwritten
    or deleted; the reaper has not processed it yet.
    """
    ORPHANED = "orphaned"
    """Left over from a crash; the scrubber takes it."""


class AddressState(Enum):
    """What keeps an address, or what becomes of it."""

    REFERENCED = "referenced"
    ISSUED = "issued"
    IN_GRACE = "in grace"
    DELETING = "deleting"
    COMMITTED = "committed"
    """It has no reference, and a commit that is not swept names it."""
    SWEPT = "swept"
    """It has no reference, and only swept commits name it; the blob is still there."""
    TAGGED = "tagged"
    """The same, and its sweep has tagged what it takes; the bucket has yet to delete it (`--mode tag`)."""
    ORPHAN = "orphan"
    """The blob is there, and nothing names it; the offline job deletes it."""
    UNKNOWN = "unknown"
    """It has no reference, and the blob is there. There is too much history, or there are too many purged objects, to
    look here for what names it (`refstore why` does).
    """
    CONTENT = "content of a purged object"
    BACKUP = "backup of a purged object"
    TRASH = "trash of a purge's restore"
    ATTEMPT = "attempt of a purge"
    """Its run is under way, or was killed."""
    PURGE_LEFTOVER = "left by a purge"
    """The next cleaning deletes it."""
    GONE = "gone"


PURGE_STATES: Final = {
    AddressRole.CONTENT: AddressState.CONTENT,
    AddressRole.BACKUP: AddressState.BACKUP,
    AddressRole.TRASH: AddressState.TRASH,
    AddressRole.ATTEMPT: AddressState.ATTEMPT,
    AddressRole.LEFTOVER: AddressState.PURGE_LEFTOVER,
}
"""The state of a blob that a purge's record of another address names (rule 22)."""
UNREFERENCED_STATES: Final = frozenset(
    (
        AddressState.COMMITTED,
        AddressState.SWEPT,
        AddressState.TAGGED,
        AddressState.ORPHAN,
        AddressState.UNKNOWN,
        *PURGE_STATES.values(),
    )
)
"""The blob is there, and no reference names it."""
UNNAMED_STATES: Final = frozenset((AddressState.ORPHAN, AddressState.UNKNOWN))
"""The blob is there, and neither a reference nor a commit is known to name it."""
LOCATIONS_MAX: Final = 100_000
"""How many records of purged objects are searched."""


@dataclass(frozen=True, slots=True)
class AddressReference:
    """A path of a branch that names an address, or did."""

    branch: BranchName
    path: Path
    state: ReferenceState
    last_modified: datetime | None
    """When the reference was made, or its token's fate was decided; None where its id does not say."""
    _token: Token = field(repr=False)


token_of: Final[Callable[[AddressReference], Token]] = attrgetter("_token")
"""Return the staging token of a reference."""


class AddressInfo(NamedTuple):
    """The state of an address, and what names it."""

    address: Address
    state: AddressState
    references: tuple[AddressReference, ...]
    since: datetime | None
    """When the list last changed, became empty, or deletion began; None where nothing is recorded."""
    cause: str
    """What emptied the list; '' where it is not empty."""
    expires: datetime | None
    """For an issued address: when it can no longer be linked."""
    reference_state: ReferenceState | None = None
    """The state over all references, by precedence. None: no reference and no commit names the address."""
    committed_name: CommittedName | None = None
    """What committed history says of an address that has no reference."""


_PRECEDENCE: Final = (
    ReferenceState.COMMITTED,
    ReferenceState.STAGED,
    ReferenceState.UNNAMED,
    ReferenceState.DELETED,
    ReferenceState.ORPHANED,
)


def address_info(ctx: Context, address: str) -> AddressInfo:
    """Return an address's state and its references. Raises InvalidName.

    An address that was never given out reads as gone.
    """
    info = address_names(ctx, address)
    if info.state not in UNNAMED_STATES:
        return info
    role, complete = role_of_content(ctx, info.address, records_max=LOCATIONS_MAX)
    if role is not None:
        return info._replace(state=PURGE_STATES[role.role])
    return info if complete else info._replace(state=AddressState.UNKNOWN)


def address_names(ctx: Context, address: str) -> AddressInfo:
    """Return the same by references and commits alone. What a purge has written reads as an orphan. Raises
    InvalidName.
    """
    own = ids.own_address(address)
    match ctx.references.get_many((own,))[0]:
        case Listed(references, changed_ms):
            names = tuple(_describe_reference(ctx, own, ref) for ref in references)
            overall = min((name.state for name in names), key=_PRECEDENCE.index)
            return AddressInfo(own, AddressState.REFERENCED, names, to_datetime(changed_ms), "", None, overall)
        case Emptied(since_ms, last, cause, _):
            since, state = to_datetime(since_ms), ReferenceState.DELETED
            names = (AddressReference(branch_of(last.token), last.path, state, since, last.token),)
            return AddressInfo(own, AddressState.IN_GRACE, names, since, cause, None, state)
        case Issued(_, expires_ms, _, _):
            return AddressInfo(own, AddressState.ISSUED, (), None, "", to_datetime(expires_ms))
        case Deleting(since_ms, _, cause, _):
            return AddressInfo(
                own, AddressState.DELETING, (), to_datetime(since_ms), cause, None, ReferenceState.DELETED
            )
        case None:
            return _describe_unreferenced(ctx, own)


def _describe_unreferenced(ctx: Context, address: Address) -> AddressInfo:
    """Describe an address without a key: it may be committed, an orphan, or nothing at all (rule 4)."""
    if not have_content(ctx, (address,))[0]:
        return AddressInfo(address, AddressState.GONE, (), None, "", None)
    history = committed_name(ctx, address)
    if history.commit is not None:
        return AddressInfo(address, AddressState.COMMITTED, (), None, "", None, ReferenceState.COMMITTED, history)
    if ctx.references.get_many((address,))[0] is not None:
        return address_names(ctx, address)  # it was restored meanwhile
    state = (
        AddressState.UNKNOWN
        if not history.is_complete
        else AddressState.ORPHAN
        if history.swept_commit is None
        else AddressState.TAGGED
        if history.is_tagged
        else AddressState.SWEPT
    )
    return AddressInfo(address, state, (), None, "", None, None, history)


def _describe_reference(ctx: Context, address: Address, reference: Reference) -> AddressReference:
    state, decided_ms = _reference_state(ctx, address, reference)
    made_ms = reference_time_ms(address, reference)
    last_modified = max((to_datetime(at) for at in (made_ms, decided_ms) if at is not None), default=None)
    return AddressReference(branch_of(reference.token), reference.path, state, last_modified, reference.token)


def _reference_state(ctx: Context, address: Address, reference: Reference) -> tuple[ReferenceState, int | None]:
    """Return a reference's state, and when its token's fate was decided (None where no record says).

    The entry is read first: its token may move on, and then the entry goes. Then the branch is read, and then the
    markers, in the order of rule 9.
    """
    token = reference.token
    value = ctx.kv.get(keys.entry(ctx.repo, token, reference.path))
    record = ctx.branches.read(branch_of(token))
    if isinstance(record, StoredBranch) and token in record.live_tokens:
        entry = None if value is ABSENT else decode_staged(value)
        is_named = isinstance(entry, StoredEntry) and entry.address == address
        return (ReferenceState.STAGED if is_named else ReferenceState.UNNAMED), None
    for retired in record.retired_tokens if record is not None else ():
        if retired.token == token:
            taken_by = commit_of(retired.fate)
            return (
                ReferenceState.DELETED if taken_by is None else _state_after_commit(ctx, taken_by, address, reference)
            ), None
    for commit, marker in ctx.markers.scan_committed():
        if token in marker.tokens:
            return _state_after_commit(ctx, commit, address, reference), marker.at_ms
    deleted = decode_optional(ctx.kv.get(keys.deleted_token(ctx.repo, token)), DeletedToken)
    return (ReferenceState.ORPHANED, None) if deleted is None else (ReferenceState.DELETED, deleted.at_ms)


def _state_after_commit(ctx: Context, commit: CommitId, address: Address, reference: Reference) -> ReferenceState:
    """Return whether the commit that took the token has this entry.

    A commit takes only the entries that its tokens show, not those that were overwritten or deleted since, under this
    token or a later one.
    """
    entry = ctx.trees.get(get_commit(ctx, commit).metarange, reference.path)
    return ReferenceState.COMMITTED if entry is not None and entry.address == address else ReferenceState.DELETED
