"""Look up the names that addresses have by their references, the entries that are left of these names, and contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.ids import Address
from refstore.errors import AddressNotFound, Contention, Gone, RefstoreError
from refstore.records import keys
from refstore.records.reference_records import Emptied, Issued, Listed, Reference, ReferenceRecord
from refstore.records.staging_records import StoredEntry, decode_staged

ATTEMPTS: Final = 16
"""How often a list is read again because it changed while its entries were read; each time somebody made progress."""


class ReferenceLookup(NamedTuple):
    """The names that an address still has, in the order they were added, and the entries that are left of them."""

    names: tuple[Reference, ...]
    entries: dict[Reference, StoredEntry]
    error: RefstoreError | None = None


def look_up(ctx: Context, addresses: Sequence[Address]) -> list[ReferenceLookup]:
    """Read each address's list, then the entries that its names have under their tokens.

    The reaper first takes a name off the list, whose record keeps the entry then, and only then removes the entry from
    its token. So if no entry is found the list is read again, until it has the entry or did not change.
    """
    references = ctx.references
    lookups: dict[int, ReferenceLookup] = {}
    before: dict[int, ReferenceRecord | None] = {}
    for _ in range(ATTEMPTS):
        waiting = [index for index in range(len(addresses)) if index not in lookups]
        if not waiting:
            return [lookups[index] for index in range(len(addresses))]
        names: dict[int, tuple[Reference, ...]] = {}
        records = references.get_many([addresses[index] for index in waiting])
        for index, record in zip(waiting, records, strict=True):
            match record:
                case Emptied(last_reference=last, entry=StoredEntry() as entry):
                    lookups[index] = ReferenceLookup((last,), {last: entry})
                case Emptied(last_reference=last):
                    names[index] = (last,)
                case Listed(listed):
                    names[index] = listed
                case _:
                    lookups[index] = ReferenceLookup((), {}, _not_restorable(addresses[index], record))
        entries = _read_entries(ctx, [(addresses[index], name) for index, listed in names.items() for name in listed])
        for index, record in zip(waiting, records, strict=True):
            if index in names:
                own_entries = {
                    name: entries[addresses[index], name]
                    for name in names[index]
                    if (addresses[index], name) in entries
                }
                if own_entries or (index in before and before[index] == record):
                    lookups[index] = ReferenceLookup(names[index], own_entries)
                before[index] = record
    raise Contention("others kept changing the references of one address; make the same call again")


def _read_entries(
    ctx: Context, names: Sequence[tuple[Address, Reference]]
) -> dict[tuple[Address, Reference], StoredEntry]:
    """Return the entries under each name's token at its path, where they still name the address."""
    unique = list(dict.fromkeys((name.token, name.path) for _, name in names))
    values = dict(zip(unique, ctx.kv.get_many([keys.entry(ctx.repo, *each) for each in unique]), strict=True))
    entries: dict[tuple[Address, Reference], StoredEntry] = {}
    for address, name in names:
        value = values[name.token, name.path]
        record = decode_staged(value) if isinstance(value, bytes) else None
        if isinstance(record, StoredEntry) and record.address == address:
            entries[address, name] = record
    return entries


def describe_contents(ctx: Context, addresses: Sequence[Address]) -> dict[Address, StoredEntry | None]:
    """Make entries from what the store knows of blobs without an entry; None: nothing was written there."""
    if not addresses:
        return {}
    infos = ctx.objects.head_many(addresses)
    entries = {
        address: StoredEntry(address, info.size_bytes, "", info.mtime_ms) if info is not None else None
        for address, info in zip(addresses, infos, strict=True)
    }
    if ctx.locations.are_announced():
        for address, record in zip(addresses, ctx.locations.get_many(addresses), strict=True):
            if record is not None and (content := record.current) is not None:
                entries[address] = StoredEntry(address, content.size_bytes, content.checksum, content.written_ms)
    return entries


def have_content(ctx: Context, addresses: Sequence[Address]) -> list[bool]:
    """Return of each address whether its content is in the store, wherever it lies (rule 22). Erased ones count as
    there.
    """
    records = (
        ctx.locations.get_many(addresses) if addresses and ctx.locations.are_announced() else [None] * len(addresses)
    )
    places = [
        record.current.address if record is not None and record.current is not None else address
        for address, record in zip(addresses, records, strict=True)
    ]
    stored_addresses = {
        info.key for info in ctx.objects.head_many([place for place in places if place]) if info is not None
    }
    return [not place or place in stored_addresses for place in places]


def _not_restorable(address: Address, record: ReferenceRecord | None) -> RefstoreError:
    if isinstance(record, Issued):
        return AddressNotFound(f"{address} was issued and never linked; link it instead")
    return Gone(
        f"{address} is not in its grace window: it is committed, or deleted, or about to be; ask repo.why(address), or "
        "`refstore why`"
    )
