"""Delete what a purge has written for identities that go (rule 22): contents, backups, and what attempts left.

The identity's own object goes first, with its batch. From then on a run finds nothing to read there. Only then the flag
and the record are read, and the record is made `gone`, so that nothing is published any more. All addresses that it
named are deleted. The record goes before the identity's key; if an object is left, both stay, and the next pass goes
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.ids import Address
from refstore.deletions.journal_format import PendingDelete
from refstore.objects.base import Deletion
from refstore_reaper.blob_deletion import Journal, delete_blobs

CAUSE: Final = "content of a purged object that goes"


class ContentDeletion(NamedTuple):
    confirmed: Deletion
    """Of the identities: one of which an object is left counts as failed."""
    deleted: int
    """How many contents and backups were deleted, besides the identities' own objects."""


def delete_contents(
    ctx: Context, batch: Sequence[PendingDelete], confirmed: Deletion, journal: Journal
) -> ContentDeletion:
    """Delete the contents of those identities of a batch whose own objects are deleted. One round trip to the KV, where
    nothing was ever purged.

    Raises ObjectsUnavailable: then the identities stay `deleting`.
    """
    gone = {*confirmed.deleted, *confirmed.missing}
    items = {item.address: item for item in batch if item.address in gone}
    if not items or not ctx.locations.are_announced():
        return ContentDeletion(confirmed, 0)
    located = ctx.locations.begin_deletion(list(items))
    contents = [
        PendingDelete(address, items[each.identity].token, items[each.identity].path, CAUSE, -1)
        for each in located
        for address in each.location.going
        if address != each.identity
    ]
    deletion = Deletion((), (), ())
    if contents:
        deletion = delete_blobs(ctx.objects, contents, journal)
        journal.record_end(contents, deletion)
    away = {*deletion.deleted, *deletion.missing, *gone}
    left = {each.identity: [address for address in each.location.going if address not in away] for each in located}
    ctx.locations.end_deletion([each for each in located if not left[each.identity]])
    failed = {identity: addresses[0] for identity, addresses in left.items() if addresses}
    return ContentDeletion(_failing(confirmed, failed), len(deletion.deleted))


def _failing(confirmed: Deletion, failed: dict[Address, Address]) -> Deletion:
    if not failed:
        return confirmed
    return Deletion(
        deleted=tuple(key for key in confirmed.deleted if key not in failed),
        missing=tuple(key for key in confirmed.missing if key not in failed),
        failed=(
            *confirmed.failed,
            *((identity, f"its content at {address} is left") for identity, address in failed.items()),
        ),
    )
