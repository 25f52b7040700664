"""Tell what purges have to do with an address (rule 22): is it an identity, or what lies there, and what becomes of it.

A location record is found by its identity. Which record names another address only a scan of all of them tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids
from refstore.core.clock import to_optional_datetime
from refstore.core.ids import Address
from refstore.records.location_records import Location
from refstore.versioning.locations import LocatedIdentity

HIDDEN_BRANCHES: Final = "refstore-purge-"
"""What the names of a run's hidden branches begin with."""


class AddressRole(StrEnum):
    """What an address is to a purge."""

    IDENTITY = "identity"
    """Commits and references name it."""
    CONTENT = "content"
    """The object's content lies there."""
    BACKUP = "backup"
    """A run has replaced it."""
    TRASH = "trash"
    """A restore has replaced it."""
    ATTEMPT = "attempt"
    """A run writes there, or was about to."""
    LEFTOVER = "leftover"
    """The next cleaning deletes it, or whoever deletes the identity."""


@dataclass(frozen=True, slots=True)
class PurgeRole:
    """What an address is to a purged object."""

    identity: Address
    """The address that commits name."""
    role: AddressRole
    content: Address
    """Where the identity's content lies now; '': it was erased, or is being deleted."""
    run: str
    """The run that wrote the content, replaced the backup, or makes the attempt; '' if it is as it was uploaded."""
    since: datetime | None
    """When the content was published, the backup replaced, or the attempt begun; None: unknown."""
    _location: Location = field(repr=False)
    is_overdue: bool = False
    """Whether an attempt is older than any operation: its run was killed, or gave up."""


_location_of: Final[Callable[[PurgeRole], Location]] = attrgetter("_location")


class PurgeRoleSearch(NamedTuple):
    purge_role: PurgeRole | None
    is_complete: bool
    """Whether all records were read."""


def role_of_identity(ctx: Context, address: Address) -> PurgeRole | None:
    """Return where the content of an address lies, if a purge has to do with the object of that identity."""
    if not ids.is_own(address) or not ctx.locations.are_announced():
        return None
    (own,) = ctx.locations.get_many([address])
    if own is None:
        return None
    current = own.current
    if current is None:
        return PurgeRole(address, AddressRole.IDENTITY, Address(""), "", None, own)
    written = to_optional_datetime(current.written_ms)
    return PurgeRole(address, AddressRole.IDENTITY, current.address, current.run, written, own, _is_overdue(ctx, own))


def role_of_content(ctx: Context, address: Address, *, records_max: int | None = None) -> PurgeRoleSearch:
    """Search the location records for one that names an address which is no identity. `records_max`: read only so many.

    Raises CorruptRecord.
    """
    if not ids.is_own(address) or not ctx.locations.are_announced():
        return PurgeRoleSearch(None, is_complete=True)
    records = ctx.locations.scan_addresses()
    for identity, addresses in islice(records, records_max):
        if address in addresses and address != identity:
            (location,) = ctx.locations.get_many([identity])
            if location is not None and address in location.addresses():
                return PurgeRoleSearch(_role_in(ctx, LocatedIdentity(identity, location), address), is_complete=True)
    return PurgeRoleSearch(None, is_complete=records_max is None or next(records, None) is None)


def _role_in(ctx: Context, each: LocatedIdentity, address: Address) -> PurgeRole:
    location, current, intent = each.location, each.location.current, each.location.intent
    content = current.address if current is not None else Address("")
    if current is not None and address == content:
        written = to_optional_datetime(current.written_ms)
        return PurgeRole(each.identity, AddressRole.CONTENT, content, current.run, written, location)
    for backup in location.backups:
        if backup.content.address == address:
            role = AddressRole.TRASH if backup.is_trash else AddressRole.BACKUP
            replaced = to_optional_datetime(backup.replaced_ms)
            return PurgeRole(each.identity, role, content, backup.replaced_by, replaced, location)
    if intent is not None and intent.address == address:
        since, is_overdue = to_optional_datetime(intent.since_ms), _is_overdue(ctx, location)
        return PurgeRole(each.identity, AddressRole.ATTEMPT, content, intent.run, since, location, is_overdue)
    return PurgeRole(each.identity, AddressRole.LEFTOVER, content, "", None, location)


def _is_overdue(ctx: Context, location: Location) -> bool:
    return location.intent is not None and ctx.waits.operations_end_ms(location.intent.since_ms) < ctx.clock.now_ms()


def describe_role(role: PurgeRole, *, is_there: bool = True) -> str:
    """Say what purges have done, or are going to do, as a sentence without its end. `is_there`: whether an object lies
    at the address.
    """
    identity = role.identity
    match role.role:
        case AddressRole.IDENTITY:
            return _describe_identity(role)
        case AddressRole.CONTENT:
            missing = "" if is_there else "; it is missing"
            return f"it is the content of the object {identity}, and stays as long as that is named{missing}"
        case AddressRole.BACKUP:
            until = "`refstore purge backups` says until when"
            return f"it is a backup of the object {identity}, whose content the run {role.run} replaced; {until}"
        case AddressRole.TRASH:
            until = "`refstore purge backups` says until when"
            return f"it is trash: the restore {role.run} replaced it as the content of the object {identity}; {until}"
        case AddressRole.ATTEMPT if role.is_overdue:
            left = "the next cleaning deletes it" if is_there else "nothing was written"
            return f"the run {role.run} was killed, or gave up, before it published this for {identity}; {left}"
        case AddressRole.ATTEMPT:
            doing = "has written this, or is writing it," if is_there else "is about to write this"
            return f"the run {role.run} {doing} for the object {identity}, and has not published it"
        case AddressRole.LEFTOVER if _location_of(role).current is None:
            return f"the object {identity} is being deleted, and this with it"
        case AddressRole.LEFTOVER:
            return f"it was written for the object {identity} and is not needed any more; the next cleaning deletes it"


def _describe_identity(role: PurgeRole) -> str:
    location = _location_of(role)
    current, intent = location.current, location.intent
    if current is None:
        return "it is being deleted, with all contents that purges have written for it"
    parts: list[str] = []
    if current.is_erased:
        parts.append(f"the run {current.run} has erased its content")
    elif current.address != role.identity:
        parts.append(f"the run {current.run} has put its content at {current.address}")
    elif location.replacement_count:
        parts.append("a restore has put back what was uploaded")
    if current.address != role.identity and any(each.content.address == role.identity for each in location.backups):
        parts.append("what was uploaded still lies here, as a backup")
    if intent is not None:
        state = "was killed, or gave up, before it replaced" if role.is_overdue else "is about to replace"
        parts.append(f"the run {intent.run} {state} the content")
    return "; ".join(parts)
