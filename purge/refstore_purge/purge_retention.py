"""When what purges left behind goes (rule 22): the dates by which the cleaning deletes, and which the reports show.

A backup goes with the earlier of its days and versions, the trash of a restore after the days of trash, and what an
attempt wrote and did not publish when nobody can publish it any more. None of it goes before every reader, every URL
that was signed and every operation that may need it has ended. That wait is never shortened.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from refstore.core.ids import Address
from refstore.core.units import DAY_MS
from refstore.purge_document.document import PurgeDocument
from refstore.records.location_records import Backup, Location

LeftoverKind = Literal["backups", "trash", "attempts", "pending_deletions"]


class LeftoverExpiry(NamedTuple):
    kind: LeftoverKind
    size_bytes: int | None
    """None: only the store knows, and also whether it is there at all."""
    deletes_at_ms: int
    """The first cleaning at this time or after it deletes it, and none before."""


def find_expiries(location: Location, document: PurgeDocument, wait_ms: int) -> dict[Address, LeftoverExpiry]:
    """Return when each content of a record goes that is not the object's own, by address ('': what was erased).

    `wait_ms`: how long readers, signed URLs, issued addresses and operations may need a content.
    """
    backups = [backup for backup in location.backups if not backup.is_trash]
    newest = backups[len(backups) - document.backup.versions :] if document.backup.versions else []
    found: dict[Address, LeftoverExpiry] = {}
    for backup in location.backups:
        address = backup.content.address
        goes_ms = backup.replaced_ms + max(wait_ms, _kept_days(backup, document, is_newest=backup in newest) * DAY_MS)
        if address in found:  # what was erased has no address, and goes from its record as one
            goes_ms = max(goes_ms, found[address].deletes_at_ms)
        found[address] = LeftoverExpiry("trash" if backup.is_trash else "backups", backup.content.size_bytes, goes_ms)
    intent = location.intent
    if intent is not None:  # an attempt may end in the last ms of the wait
        found[intent.address] = LeftoverExpiry("attempts", None, intent.since_ms + wait_ms + 1)
    return found


def _kept_days(backup: Backup, document: PurgeDocument, *, is_newest: bool) -> int:
    if backup.is_trash:
        return document.trash.days
    return document.backup.days if is_newest else 0
