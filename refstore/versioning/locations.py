"""Where the content of objects lies after a purge (rule 22): the only room where `<repo>/locations` changes.

    absent --intend--> current, intent --publish--> new current, the old one among the backups
                                       --withdraw-> as before
    backups --restore--> current; what it replaces becomes a backup (trash)
    backups, old intents --retire--> going --(deleted)--> forget_deleted
    any --begin_deletion--> gone, with every address in `going` --(deleted)--> end_deletion --> absent

The key is an object's *identity*: the physical address that commits, references, marks and pins name. It never changes.
Without a record the content lies at the identity. Each change is a `set_if` from the whole record that was read, so
whoever publishes, restores, retires or deletes learns that another was faster. Each function takes many objects, in a
few round trips; no identity may be given twice in one call.

Only a run's own process calls `intend` and `publish`; its tasks never see the KV.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore.core import ids
from refstore.core.clock import Clock
from refstore.core.ids import Address, RepositoryId
from refstore.errors import Contention, CorruptRecord, Gone, InvalidName, NotFound
from refstore.kv.base import ABSENT, KV, Absent, SetIf
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.location_records import Backup, Content, Intent, Location, LocationsFlag

ATTEMPTS: Final = 16
"""How often a lost `set_if` race is run again. Each loss means that somebody else made progress."""


class LocatedIdentity(NamedTuple):
    """An identity with its record, as it was read or written."""

    identity: Address
    location: Location


class RewriteIntent(NamedTuple):
    """An object that a run is about to rewrite."""

    identity: Address
    original: Content
    """Its content as it was uploaded, for the first record."""
    address: Address
    """A new address of this attempt alone."""


class WrittenContent(NamedTuple):
    """A content that was written, and the record that it was written for."""

    intent_record: LocatedIdentity
    content: Content


class Locations:
    def __init__(self, kv: KV, repo: RepositoryId, clock: Clock) -> None:
        self._kv = kv
        self._repo = repo
        self._clock = clock

    # ---- the flag

    def are_announced(self) -> bool:
        """Return whether content may lie elsewhere than its identity says. It never becomes false.

        Who deletes an identity asks behind the deletion of the identity's own object.
        """
        return self._kv.get(keys.locations_flag(self._repo)) is not ABSENT

    def announce(self) -> None:
        """Set the flag, before the first record is written."""
        if not self.are_announced():
            self._kv.set_if(keys.locations_flag(self._repo), ABSENT, encode(LocationsFlag()))

    # ---- reading

    def get_many(self, identities: Sequence[Address]) -> list[Location | None]:
        """Return the records; None: the content lies at the identity. One round trip."""
        return [decode_optional(value, Location) for value in self._read_values(identities)]

    def scan(self, page: int = 1000) -> Iterator[LocatedIdentity]:
        """Yield every record. Raises CorruptRecord."""
        return map(LocatedIdentity._make, self._scan(page))

    def scan_changing(self) -> Iterator[LocatedIdentity]:
        """Yield the records that have a backup, an intent or something to delete; most have none. Raises
        CorruptRecord.
        """
        for each in self.scan():
            if not each.location.is_at_rest:
                yield each

    def scan_addresses(self, page: int = 1000) -> Iterator[tuple[Address, Sequence[Address]]]:
        """Yield each identity with every address that its record names. Raises CorruptRecord."""
        return ((identity, location.addresses()) for identity, location in self._scan(page))

    def _scan(self, page: int) -> Iterator[tuple[Address, Location]]:
        for shard in range(keys.SHARDS):
            for name, value in self._kv.scan_all(keys.locations(self._repo, shard), page=page):
                yield _parse_identity(name), decode(value, Location)

    # ---- a run

    def intend(self, items: Sequence[RewriteIntent], run: str) -> list[LocatedIdentity | None]:
        """Write the intent of an attempt at each object, before its content is read and before anything is written.

        None: the identity is being deleted, or others kept changing it. The intent of an earlier attempt goes with what
        is deleted next.
        """
        now = self._clock.now_ms()
        done: dict[int, LocatedIdentity] = {}
        waiting = list(range(len(items)))
        for _ in range(ATTEMPTS):
            if not waiting:
                break
            values = self._read_values([items[index].identity for index in waiting])
            planned: list[tuple[int, Absent | bytes, Location]] = []
            for index, value in zip(waiting, values, strict=True):
                item = items[index]
                before = decode_optional(value, Location) or Location(item.original)
                if before.current is not None:
                    abandoned = (before.intent.address,) if before.intent else ()
                    location = _with_fields(
                        before,
                        intent=Intent(item.address, run, now),
                        pending_deletions=(*before.pending_deletions, *abandoned),
                        unpublished_attempts=(*before.unpublished_attempts, *abandoned),
                    )
                    planned.append((index, value, location))
            written = self._set_if([(items[index].identity, value, after) for index, value, after in planned])
            done.update(
                {
                    index: LocatedIdentity(items[index].identity, after)
                    for (index, _, after), ok in zip(planned, written, strict=True)
                    if ok
                }
            )
            waiting = [index for index, _, _ in planned if index not in done]
        return [done.get(index) for index in range(len(items))]

    def publish(self, items: Sequence[WrittenContent], run: str) -> list[LocatedIdentity | None]:
        """Make what was written the content; what it replaces becomes a backup. None: the record changed since its
        intent, so that the content may be of something else by now; the caller deletes what it wrote, if
        `unpublished` says so.
        """
        now = self._clock.now_ms()
        after = [
            LocatedIdentity(
                item.intent_record.identity, _publish_content(item.intent_record.location, item.content, run, now)
            )
            for item in items
        ]
        written = self._set_if(
            [
                (item.intent_record.identity, encode(item.intent_record.location), each.location)
                for item, each in zip(items, after, strict=True)
            ]
        )
        return [each if ok else None for each, ok in zip(after, written, strict=True)]

    def find_unpublished(self, items: Sequence[tuple[Address, Address]]) -> list[Address]:
        """Return the addresses, of (identity, address that an attempt wrote), that are no content and no backup. The
        attempt that wrote one deletes it: it was not published, or has been replaced and retired since.
        """
        records = self.get_many([identity for identity, _ in items])
        return [
            address
            for (_, address), record in zip(items, records, strict=True)
            if record is None or address not in {each.address for each in record.contents()}
        ]

    def withdraw(self, items: Sequence[LocatedIdentity]) -> None:
        """Take intents back that came to nothing, and of which nothing was written. What others changed meanwhile stays
        as it is.
        """
        self._set_if(
            [
                (each.identity, encode(each.location), _drop_if_at_rest(_with_fields(each.location, intent=None)))
                for each in items
            ]
        )

    # ---- restore

    def restore(self, identity: Address, address: Address, run: str) -> LocatedIdentity:
        """Make the backup at `address` the content again ('': the erased one). What it replaces becomes trash.

        Raises NotFound (there is no such backup), Gone (the identity is being deleted), Contention.
        """
        for _ in range(ATTEMPTS):
            (value,) = self._read_values([identity])
            before = decode_optional(value, Location)
            if before is not None and before.current is None:
                raise Gone(f"{identity} is being deleted, because nothing names it any more")
            backups = before.backups if before is not None else ()
            chosen = next((each for each in reversed(backups) if each.content.address == address), None)
            if before is None or before.current is None or chosen is None:
                raise NotFound(
                    f"{identity} has no backup at {address!r}; what was not purged, or is past its days, has none"
                )
            trash = Backup(before.current, self._clock.now_ms(), run, is_trash=True)
            after = _with_fields(
                before,
                current=chosen.content,
                replacement_count=before.replacement_count + 1,
                backups=(*(each for each in before.backups if each is not chosen), trash),
            )
            if self._kv.set_if(keys.location(self._repo, identity), value, encode(after)):
                return LocatedIdentity(identity, after)
        raise Contention(f"others kept changing where the content of {identity} lies; make the same call again")

    # ---- the end of backups

    def retire(
        self, items: Sequence[tuple[LocatedIdentity, Sequence[Address]]], *, intents_before_ms: int
    ) -> list[LocatedIdentity]:
        """Move backups at these addresses, and intents that are older, to what goes next, from where nothing restores
        them. Return the records that have changed or have something to delete; what others changed meanwhile is left
        out.

        The records must be older than the longest operation, so that no reader is on its way to what they name.
        """
        planned: list[tuple[LocatedIdentity, Location]] = []
        for each, ending in items:
            before, going = each.location, list(each.location.pending_deletions)
            kept = tuple(backup for backup in before.backups if backup.content.address not in ending)
            going += [address for address in ending if address and address not in going]  # what was erased has none
            intent, unpublished = before.intent, before.unpublished_attempts
            if intent is not None and intent.since_ms < intents_before_ms:
                going.append(intent.address)
                unpublished = (*unpublished, intent.address)
                intent = None
            if before.current is not None and (going or len(kept) < len(before.backups)):
                after = _with_fields(
                    before,
                    intent=intent,
                    backups=kept,
                    pending_deletions=tuple(going),
                    unpublished_attempts=unpublished,
                )
                planned.append((each, after))
        written = self._set_if([(each.identity, encode(each.location), after) for each, after in planned])
        return [LocatedIdentity(each.identity, after) for (each, after), ok in zip(planned, written, strict=True) if ok]

    def forget_deleted(self, items: Sequence[tuple[LocatedIdentity, Sequence[Address]]]) -> None:
        """Take addresses off whose objects are deleted. A record that says nothing any more goes."""
        self._set_if(
            [
                (
                    each.identity,
                    encode(each.location),
                    _drop_if_at_rest(
                        _with_fields(
                            each.location,
                            pending_deletions=tuple(
                                address for address in each.location.pending_deletions if address not in deleted
                            ),
                            unpublished_attempts=tuple(
                                address for address in each.location.unpublished_attempts if address not in deleted
                            ),
                        )
                    ),
                )
                for each, deleted in items
            ]
        )

    # ---- after a loss

    def restore_records(self, items: Sequence[tuple[Address, Location]], *, dry_run: bool = False) -> list[str]:
        """Write records again that the KV has lost, and whose contents are there; return what became of each, or would.

        A record of an earlier number is replaced, and what it alone names goes.
        """
        outcomes = ["left: others kept changing it"] * len(items)
        waiting = list(range(len(items)))
        for _ in range(ATTEMPTS):
            planned: list[tuple[int, Absent | bytes, Location]] = []
            for index, value in zip(waiting, self._read_values([items[index][0] for index in waiting]), strict=True):
                stored, lost = decode_optional(value, Location), items[index][1]
                if stored is not None and stored.current is None:
                    outcomes[index] = "left: its identity is being deleted"
                elif stored is not None and stored.replacement_count >= lost.replacement_count:
                    outcomes[index] = "left: another run has published since; run the earlier purge again"
                else:
                    named = stored.addresses() if stored is not None else ()
                    going = (
                        *lost.pending_deletions,
                        *(address for address in named if address not in lost.addresses()),
                    )
                    planned.append((index, value, _with_fields(lost, pending_deletions=going)))
            writes = [(items[index][0], value, after) for index, value, after in planned]
            written = [True] * len(writes) if dry_run else self._set_if(writes)
            waiting = [index for (index, _, _), ok in zip(planned, written, strict=True) if not ok]
            for (index, _, _), ok in zip(planned, written, strict=True):
                if ok:
                    outcomes[index] = "put back"
            if not waiting:
                break
        return outcomes

    # ---- whoever deletes an identity

    def begin_deletion(self, identities: Sequence[Address]) -> list[LocatedIdentity]:
        """Make the records of identities `gone`, so that nothing is published to them, and return those that have one:
        all addresses in `going` are deleted with the identity. Raises Contention.
        """
        gone: list[LocatedIdentity] = []
        waiting: list[Address] = list(identities)
        for _ in range(ATTEMPTS):
            planned: list[tuple[Address, bytes, Location]] = []
            for identity, value in zip(waiting, self._read_values(waiting), strict=True):
                record = decode_optional(value, Location)
                if record is None or isinstance(value, Absent):
                    continue
                if record.current is None:
                    gone.append(LocatedIdentity(identity, record))
                else:
                    planned.append(
                        (
                            identity,
                            value,
                            Location(None, record.replacement_count, pending_deletions=record.addresses()),
                        )
                    )
            written = self._set_if(planned)
            waiting = []
            for (identity, _, after), ok in zip(planned, written, strict=True):
                if ok:
                    gone.append(LocatedIdentity(identity, after))
                else:
                    waiting.append(identity)
            if not waiting:
                return gone
        raise Contention("others kept changing where content lies; the same call may be made again")

    def end_deletion(self, items: Sequence[LocatedIdentity]) -> None:
        """Remove the records of identities whose objects are all deleted."""
        self._set_if([(each.identity, encode(each.location), None) for each in items])

    # ---- the KV

    def _read_values(self, identities: Sequence[Address]) -> list[bytes | Absent]:
        return self._kv.get_many([keys.location(self._repo, identity) for identity in identities])

    def _set_if(self, items: Sequence[tuple[Address, bytes | Absent, Location | None]]) -> list[bool]:
        return self._kv.set_if_many(
            [
                SetIf(keys.location(self._repo, identity), before, ABSENT if after is None else encode(after))
                for identity, before, after in items
            ]
        )


def _with_fields(location: Location, **fields: object) -> Location:
    return msgspec.structs.replace(location, **fields)


def _publish_content(intended: Location, content: Content, run: str, now_ms: int) -> Location:
    if intended.current is None:
        raise ValueError("nothing is published to an identity that is being deleted")
    backups = (*intended.backups, Backup(intended.current, now_ms, run))
    return Location(
        content,
        intended.replacement_count + 1,
        backups=backups,
        pending_deletions=intended.pending_deletions,
        unpublished_attempts=intended.unpublished_attempts,
    )


def _drop_if_at_rest(location: Location) -> Location | None:
    """Return the record, or None if it says nothing: no run has replaced the content, and nothing is left to do."""
    return (
        None
        if not (location.replacement_count or location.intent or location.pending_deletions or location.current is None)
        else location
    )


def _parse_identity(name: str) -> Address:
    try:
        return ids.own_address(name)
    except InvalidName as error:
        raise CorruptRecord(
            f"{name[:120]!r} is the key of a location and no address; nothing will be deleted"
        ) from error
