"""Who names a physical address, and in which state: the per-reference states of the seed's proposal 3, as a view.

Nothing stores these states. They follow from the reference list and from what became of each reference's token; where an address has no
reference any more, from the commits that name it. Of several references the state of the address is that of the seed's "Key Update Order
of Precedence": committed wins over staged, staged over deleted.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import ObjectNotFound
from refstore.flows.committed_names import CommittedName, committed_name
from refstore.flows.refs import get_commit
from refstore.ids import Address, BranchName, CommitId, Path, Token, branch_of
from refstore.markers import Markers
from refstore.records import Branch, BranchRecord, DeletedToken, Deleting, Emptied, Issued, Listed, Reference, maybe
from refstore.references import References


class ReferenceState(Enum):
    STAGED = "staged"
    COMMITTED = "committed"
    """A commit took the entry; the reaper has not processed it yet."""
    DELETED = "deleted"
    """The token was reset or its branch deleted, or a commit took the token and not this entry, which was overwritten or deleted; the
    reaper has not processed it yet."""
    ORPHANED = "orphaned"
    """Left over from a crash; the scrubber takes it."""


class AddressState(Enum):
    REFERENCED = "referenced"
    ISSUED = "issued"
    IN_GRACE = "in grace"
    DELETING = "deleting"
    COMMITTED = "committed"
    """No reference: a commit names it, and is not swept."""
    SWEPT = "swept"
    """No reference, and of all commits only swept ones name it; the blob is there still."""
    ORPHAN = "orphan"
    """The blob is there, and nothing names it: the offline job's to delete."""
    UNKNOWN = "unknown"
    """No reference, and the blob is there; history is too long to find out here which commit names it, if any (`refstore why`)."""
    GONE = "gone"


UNREFERENCED: Final = frozenset((AddressState.COMMITTED, AddressState.SWEPT, AddressState.ORPHAN, AddressState.UNKNOWN))
"""The blob is there, and no reference names it."""


class NamedBy(NamedTuple):
    branch: BranchName
    path: Path
    token: Token
    state: ReferenceState
    last_modified_ms: int | None = None
    """When the reference was made, or its token's fate was told; None where its id does not say."""


class AddressView(NamedTuple):
    address: Address
    state: AddressState
    references: tuple[NamedBy, ...]
    since_ms: int | None
    """When the list last changed, became empty, or deletion began; None where nothing is recorded."""
    cause: str
    """What emptied the list; '' where it is not empty."""
    expires_ms: int | None
    """For an issued address: when it can no longer be linked."""
    reference_state: ReferenceState | None = None
    """Over all references, by precedence; None: there is none, and no commit names it."""
    committed: CommittedName | None = None
    """Where there is no reference: what committed history says."""


_PRECEDENCE: Final = (ReferenceState.COMMITTED, ReferenceState.STAGED, ReferenceState.DELETED, ReferenceState.ORPHANED)


def view(ctx: Context, address: str) -> AddressView:
    """Raises InvalidName. An address that was never given out reads as gone."""
    own = ids.own_address(address)
    match References(ctx.kv, ctx.repo, ctx.clock).get_many((own,))[0]:
        case Listed(references, changed_ms):
            named = tuple(_named_by(ctx, own, ref) for ref in references)
            overall = min((each.state for each in named), key=_PRECEDENCE.index)
            return AddressView(own, AddressState.REFERENCED, named, changed_ms, "", None, overall)
        case Emptied(since_ms, last, cause, _):
            named = (NamedBy(branch_of(last.token), last.path, last.token, ReferenceState.DELETED, since_ms),)
            return AddressView(own, AddressState.IN_GRACE, named, since_ms, cause, None, ReferenceState.DELETED)
        case Issued(_, expires_ms, _, _):
            return AddressView(own, AddressState.ISSUED, (), None, "", expires_ms)
        case Deleting(since_ms, _, cause, _):
            return AddressView(own, AddressState.DELETING, (), since_ms, cause, None, ReferenceState.DELETED)
        case None:
            return _without_references(ctx, own)


def _without_references(ctx: Context, address: Address) -> AddressView:
    """A missing key may be that of a committed address, of an orphan, or of nothing at all (rule 4)."""
    try:
        ctx.objects.head(address)
    except ObjectNotFound:
        return AddressView(address, AddressState.GONE, (), None, "", None)
    found = committed_name(ctx, address)
    if found.commit is not None:
        return AddressView(address, AddressState.COMMITTED, (), None, "", None, ReferenceState.COMMITTED, found)
    if References(ctx.kv, ctx.repo, ctx.clock).get_many((address,))[0] is not None:
        return view(ctx, address)  # it was restored meanwhile
    state = AddressState.UNKNOWN if not found.complete else AddressState.ORPHAN if found.swept is None else AddressState.SWEPT
    return AddressView(address, state, (), None, "", None, None, found)


def _named_by(ctx: Context, address: Address, reference: Reference) -> NamedBy:
    state, told_ms = _state(ctx, address, reference)
    made_ms = ids.id_time_ms(reference.id) if reference.id else ids.made_ms(address)
    last_modified_ms = max((at for at in (made_ms, told_ms) if at is not None), default=None)
    return NamedBy(branch_of(reference.token), reference.path, reference.token, state, last_modified_ms)


def _state(ctx: Context, address: Address, reference: Reference) -> tuple[ReferenceState, int | None]:
    """What became of a reference, and when that was told, where it is recorded.

    The branch is read first, then the markers, as rule 9 reads them.
    """
    token = reference.token
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    record: BranchRecord | None = branches.decode(branches.raw(branch_of(token)))
    if isinstance(record, Branch) and token in record.live:
        return ReferenceState.STAGED, None
    for retired in record.retired if record is not None else ():
        if retired.token == token:
            taken_by = CommitId(retired.fate) if len(retired.fate) == 64 else None
            return (ReferenceState.DELETED if taken_by is None else _taken(ctx, taken_by, address, reference)), None
    for commit, marker in Markers(ctx.kv, ctx.repo, ctx.clock).committed():
        if token in marker.tokens:
            return _taken(ctx, commit, address, reference), marker.at_ms
    deleted = maybe(ctx.kv.get(keys.deleted_token(ctx.repo, token)), DeletedToken)
    return (ReferenceState.ORPHANED, None) if deleted is None else (ReferenceState.DELETED, deleted.at_ms)


def _taken(ctx: Context, commit: CommitId, address: Address, reference: Reference) -> ReferenceState:
    """A commit takes of its tokens what they show: not what was overwritten or deleted since, under this token or a later one."""
    entry = ctx.trees.get(get_commit(ctx, commit).metarange, reference.path)
    return ReferenceState.COMMITTED if entry is not None and entry.address == address else ReferenceState.DELETED
