"""Delete what a purge has written for identities that go (rule 22): contents, backups, and what attempts left.

The identity's own object goes first, with its batch. From then on a run finds nothing to read there. Only then the flag
and the record are read, and the record is made `gone`, so that nothing is published any more. All addresses that it
named are deleted. The record goes before the identity's key; if an object is left, both stay, and the next pass goes
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from refstore.context import Context
from refstore.core.ids import Address
from refstore.errors import ObjectsRefused
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.records.pending_deletes import PendingDelete

CONTENT_OF_DELETED: Final = "content of the deleted object"
"""The cause of a content, a backup or an attempt that goes with its identity, whose address follows."""


class Journal(Protocol):
    """Records each batch of deletions: before its blobs are deleted, and again with the store's confirmation."""

    def record_start(self, batch: Sequence[PendingDelete]) -> None:
        """Record the batch before its deletion. Raises the errors of the journal's store; then no blob of the batch may
        be deleted.
        """
        ...

    def record_end(self, batch: Sequence[PendingDelete], confirmed: DeleteResult) -> None: ...


def delete_recorded(objects: ObjectStore, batch: Sequence[PendingDelete], journal: Journal) -> DeleteResult:
    """Delete a batch between its two entries in the journal. Raises ObjectsUnavailable: the store did not answer.

    A store that refuses the whole batch, for lack of a right perhaps, has failed for each of its objects.
    """
    if not batch:
        return DeleteResult((), (), ())
    journal.record_start(batch)
    addresses = [item.address for item in batch]
    try:
        confirmed = objects.delete_many(addresses)
    except ObjectsRefused as error:
        confirmed = DeleteResult((), (), tuple((address, str(error)) for address in addresses))
    journal.record_end(batch, confirmed)
    return confirmed


class ContentDeletion(NamedTuple):
    confirmed: DeleteResult
    """Of the identities: one of which an object is left counts as failed."""
    deleted: int
    """How many contents and backups were deleted, besides the identities' own objects."""
    ended: int
    """How many identities had a record, which has gone as the last of all."""


def delete_contents(
    ctx: Context, batch: Sequence[PendingDelete], confirmed: DeleteResult, journal: Journal
) -> ContentDeletion:
    """Delete the contents of those identities of a batch whose own objects are deleted. One round trip to the KV, where
    nothing was ever purged.

    Raises ObjectsUnavailable: then the identities stay `deleting`.
    """
    gone = {*confirmed.deleted_keys, *confirmed.missing_keys}
    if gone.isdisjoint(item.address for item in batch) or not ctx.locations.are_announced():
        return ContentDeletion(confirmed, 0, 0)
    items = {item.address: item for item in batch if item.address in gone}
    located = ctx.locations.begin_deletion(list(items))
    contents = [
        PendingDelete(
            address,
            items[each.identity].token,
            items[each.identity].path,
            f"{CONTENT_OF_DELETED} {each.identity}",
            -1,
        )
        for each in located
        for address in each.location.pending_deletions
        if address != each.identity
    ]
    deletion = delete_recorded(ctx.objects, contents, journal)
    away = {*deletion.deleted_keys, *deletion.missing_keys, *gone}
    left = {
        each.identity: [address for address in each.location.pending_deletions if address not in away]
        for each in located
    }
    whole = [each for each in located if not left[each.identity]]
    ctx.locations.end_deletion(whole)
    reasons = dict(deletion.failed_keys)
    failed = {
        identity: f"its content at {addresses[0]} is left: {reasons.get(addresses[0], 'no reason was given')}"
        for identity, addresses in left.items()
        if addresses
    }
    return ContentDeletion(_add_failures(confirmed, failed), len(deletion.deleted_keys), len(whole))


def _add_failures(confirmed: DeleteResult, failed: dict[Address, str]) -> DeleteResult:
    """Return the result with the identities in `failed` as failed, too, each with its reason."""
    if not failed:
        return confirmed
    return DeleteResult(
        deleted_keys=tuple(key for key in confirmed.deleted_keys if key not in failed),
        missing_keys=tuple(key for key in confirmed.missing_keys if key not in failed),
        failed_keys=(*confirmed.failed_keys, *failed.items()),
        kept_keys=tuple((key, why) for key, why in confirmed.kept_keys if key not in failed),
    )
