"""One life of an address: its states, what follows on each, and from when its object may be deleted.

    absent --create--> Listed --release--> Emptied --(grace window)---------------------> Deleting --> absent, blob gone
    absent --issue---> Issued --link-----> Listed
                       Issued --(expiry, and as long as two clocks may be apart)--------> Deleting
                       Issued --abort of an upload, or release of a part of it----------> Deleting
    Emptied --restore, or the writer's own retry--> Listed
    Listed | Emptied --forget (committed)--> absent, blob stays

This is the one place where it is decided that an object may be deleted online (`may_delete_at_ms`), and how an address
becomes `Deleting` (`begin_deletion`); nothing leads back from there (rule 8). The functions compute. Who calls them
writes the state that they return, by `set_if` on the state that it gave. The states' records stand in
`refstore/records/`, under the names of the protocol's model.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import msgspec

from refstore.core import ids
from refstore.core.ids import Address, Token
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed, Reference, ReferenceRecord
from refstore.records.staging_records import StoredEntry

NOT_LINKED: Final = "issued and not linked"
"""Why an issued address is deleted whose time is over."""
UPLOAD_EXPIRED: Final = "multipart upload not completed in time"
UPLOAD_ABORTED: Final = "multipart upload aborted"
UPLOAD_CAUSES: Final = frozenset({UPLOAD_EXPIRED, UPLOAD_ABORTED})
"""Why the address of a multipart upload is deleted: whoever does it asks the store what it keeps of the upload."""
PART_RELEASED: Final = "part of a multipart upload that is over"
ENDED_CAUSES: Final = frozenset({*UPLOAD_CAUSES, PART_RELEASED})

Unnamed = Emptied | Issued | Deleting
"""The states in which nothing names the address."""


class DeletionDelays(NamedTuple):
    """How long an object stays that nothing names."""

    grace_seconds: float
    """Since the list of its address became empty: `restore` can take it back until then."""
    clock_skew_seconds: float
    """Since the expiry of its issued address: the clock of who links it may be so far behind."""


class AddOutcome(Enum):
    """The result of adding a reference to a list."""

    LISTED = "listed"
    EMPTY = "empty"
    """The list is empty, so it takes no new copy (rule 5)."""
    NOT_NAMEABLE = "not nameable"
    """The address is `deleting`, or issued and not linked, so it must not be named."""
    NO_RECORD = "no record"
    """There is no key: the address is committed or deleted. Only reading the source again tells (rule 4)."""


def may_delete_at_ms(state: Unnamed, delays: DeletionDelays) -> int:
    """Return the time from which the object may be deleted. Hints are written for this time."""
    if isinstance(state, Emptied):
        return state.since_ms + int(delays.grace_seconds * 1000)
    if isinstance(state, Issued):
        return state.expires_ms + int(delays.clock_skew_seconds * 1000)
    return state.since_ms


def may_delete(state: ReferenceRecord | None, now_ms: int, delays: DeletionDelays) -> bool:
    """Return whether the object may be deleted now. Without a key it is committed, or deleted."""
    return isinstance(state, Unnamed) and may_delete_at_ms(state, delays) <= now_ms


def changed_ms(state: ReferenceRecord) -> int:
    """Return when the address came into the state; for an issued address, when it expired or will expire."""
    if isinstance(state, Listed):
        return state.changed_ms
    return state.expires_ms if isinstance(state, Issued) else state.since_ms


def reference_time_ms(address: Address, reference: Reference) -> int | None:
    """Return when the operation was under way that made the reference; None if its id does not tell. The first
    reference of an address has no id, and is made with the address.
    """
    return ids.id_time_ms(reference.id) if reference.id else ids.address_time_ms(address)


def begin_deletion(state: Emptied | Issued, now_ms: int, delays: DeletionDelays) -> Deleting | None:
    """Return the state in which the object is deleted; None if it may not be deleted yet."""
    if may_delete_at_ms(state, delays) > now_ms:
        return None
    if isinstance(state, Emptied):
        return Deleting(now_ms, state.last_reference, state.cause, state.entry.size_bytes if state.entry else -1)
    return end_issued(state, now_ms, UPLOAD_EXPIRED if state.in_parts else NOT_LINKED)


def end_issued(state: Issued, now_ms: int, cause: str) -> Deleting:
    """Return the state of an issued address that goes, before its time perhaps: whoever it was issued to gave it up."""
    return Deleting(now_ms, Reference(Token(""), state.path), cause, -1)


def fix_parts(state: ReferenceRecord | None, token_id: str, digest: str, now_ms: int) -> Issued | None:
    """Return the state in which these parts, and no others, are joined at the address of an upload (rule 23); None if
    it is over, or others are fixed.
    """
    if not (isinstance(state, Issued) and state.in_parts and state.token_id == token_id and state.expires_ms > now_ms):
        return None
    return msgspec.structs.replace(state, parts_digest=digest) if state.parts_digest in ("", digest) else None


def link(state: ReferenceRecord | None, token_id: str, reference: Reference, now_ms: int) -> Listed | None:
    """Return the state after the issued address is linked with this token, once (rule 10); None if it cannot be."""
    if isinstance(state, Issued) and state.token_id == token_id and state.expires_ms > now_ms:
        return Listed((reference,), now_ms)
    return None


def add_reference(
    state: ReferenceRecord | None, reference: Reference, now_ms: int, *, on_empty: bool
) -> Listed | AddOutcome:
    """Return the state after the reference is added, or why there is nothing to write.

    `on_empty`: an empty list takes it, too: for the writer's own retry and for restore (rule 5).
    """
    match state:
        case None:
            return AddOutcome.NO_RECORD
        case Listed(references) if reference in references:  # a retry, or a reply that was lost
            return AddOutcome.LISTED
        case Listed(references):
            return Listed((*references, reference), now_ms)
        case Emptied():
            return Listed((reference,), now_ms) if on_empty else AddOutcome.EMPTY
        case Issued() | Deleting():
            return AddOutcome.NOT_NAMEABLE


def list_again(state: ReferenceRecord, reference: Reference, now_ms: int) -> Listed:
    """Return the state after a live entry's reference, which the KV lost, is put back, whatever the state is."""
    others = state.references if isinstance(state, Listed) else ()
    return Listed((*others, reference), now_ms)


def after_release(
    left: tuple[Reference, ...], last_reference: Reference, cause: str, entry: StoredEntry | None, now_ms: int
) -> Listed | Emptied:
    """Return the state after references were removed from a list. `left`: the others. `last_reference`, `cause` and
    `entry`: what is recorded if there are none.
    """
    return Listed(left, now_ms) if left else Emptied(now_ms, last_reference, cause, entry)
