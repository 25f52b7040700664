"""Who names a physical address, and in which state: the per-reference states of the seed's proposal 3, as a view.

Nothing stores these states. They follow from the reference list and from what became of each reference's token.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import ObjectNotFound
from refstore.ids import Address, BranchName, Path, Token, branch_of
from refstore.kv.base import ABSENT
from refstore.markers import Markers
from refstore.records import Branch, BranchRecord, Deleting, Emptied, Issued, Listed
from refstore.references import References


class ReferenceState(Enum):
    STAGED = "staged"
    COMMITTED = "committed"
    """A commit took the token; the reaper has not processed it yet."""
    DELETED = "deleted"
    """The token was reset or its branch deleted; the reaper has not processed it yet."""
    ORPHANED = "orphaned"
    """Left over from a crash; the scrubber takes it."""


class AddressState(Enum):
    REFERENCED = "referenced"
    ISSUED = "issued"
    IN_GRACE = "in grace"
    DELETING = "deleting"
    COMMITTED = "committed"
    """No reference, and the blob is there: a commit names it, or it was never refstore's to track."""
    GONE = "gone"


class NamedBy(NamedTuple):
    branch: BranchName
    path: Path
    token: Token
    state: ReferenceState


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


def view(ctx: Context, address: str) -> AddressView:
    """Raises InvalidName. An address that was never given out reads as gone."""
    own = ids.own_address(address)
    match References(ctx.kv, ctx.repo, ctx.clock).get_many((own,))[0]:
        case Listed(references, changed_ms):
            named = tuple(NamedBy(branch_of(ref.token), ref.path, ref.token, _state(ctx, ref.token)) for ref in references)
            return AddressView(own, AddressState.REFERENCED, named, changed_ms, "", None)
        case Emptied(since_ms, last, cause, _):
            named = (NamedBy(branch_of(last.token), last.path, last.token, ReferenceState.DELETED),)
            return AddressView(own, AddressState.IN_GRACE, named, since_ms, cause, None)
        case Issued(_, expires_ms, _, _):
            return AddressView(own, AddressState.ISSUED, (), None, "", expires_ms)
        case Deleting(since_ms, _, cause, _):
            return AddressView(own, AddressState.DELETING, (), since_ms, cause, None)
        case None:
            try:
                ctx.objects.head(own)
            except ObjectNotFound:
                return AddressView(own, AddressState.GONE, (), None, "", None)
            return AddressView(own, AddressState.COMMITTED, (), None, "", None)


def _state(ctx: Context, token: Token) -> ReferenceState:
    """What became of a token: the branch first, then the markers, as rule 9 reads them."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    record: BranchRecord | None = branches.decode(branches.raw(branch_of(token)))
    if isinstance(record, Branch) and token in record.live:
        return ReferenceState.STAGED
    if record is not None:
        for retired in record.retired:
            if retired.token == token:
                return ReferenceState.COMMITTED if len(retired.fate) == 64 else ReferenceState.DELETED
    if any(token in marker.tokens for _, marker in Markers(ctx.kv, ctx.repo, ctx.clock).committed()):
        return ReferenceState.COMMITTED
    if ctx.kv.get(keys.deleted_token(ctx.repo, token)) is not ABSENT:
        return ReferenceState.DELETED
    return ReferenceState.ORPHANED
