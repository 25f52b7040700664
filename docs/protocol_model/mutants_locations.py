"""Rule 22, one part dropped at a time."""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from .losses import Purging, PurgingWithLosses
from .store import DELETED, EMPTY, Branch, Closed, Entry, Location, Steps, listed


class LooksAtNames(Purging):
    """A run does not look at the trash."""

    looks_at = ("staged", "committed")


class LooksAtCommitsFirst(Purging):
    """A run looks at commits before references: what is committed in between has no reference any more."""

    looks_at = ("committed", "references", "staged")


class LooksAtTrash(Purging):
    """A run looks at staging areas, then at the trash as its listing shows it: in the order in which a fate travels. A
    restore travels back.
    """

    looks_at: tuple[str, ...] = ("staged", "trash", "committed")

    def look_at_trash(self) -> Steps:
        retired = [key[1] for key in (yield ("scan", ("md",)))]
        for key in (yield ("scan", ("b",))):
            record = yield ("get", key)
            if isinstance(record, Branch | Closed):
                retired += [token for token, fate in record.retired if fate == DELETED]
        identities: set[str] = set()
        for token in retired:
            for name in (yield ("scan", ("e", token))):
                entry = yield ("get", name)
                if isinstance(entry, Entry) and listed((yield ("get", ("r", entry.address)))):
                    identities.add(entry.address)
        for key in (yield ("scan", ("d",))):
            if (yield ("get", ("r", key[1]))) == EMPTY:
                identities.add(key[1])
        return identities


class LooksAtTrashFirst(LooksAtTrash):
    """A run looks at the trash, then at staging areas: what is deleted in between is in neither."""

    looks_at = ("trash", "staged", "committed")


class LooksTwice(LooksAtTrash):
    """A run looks at staging areas again behind the trash: what is restored and deleted again is in none of them. No
    number of looks is enough.
    """

    looks_at = ("staged", "trash", "staged", "committed")


class AnnouncesNothing(Purging):
    """A run writes records and sets no flag."""

    def announce(self) -> Steps:
        return
        yield


class WritesBeforeItsIntent(Purging):
    """The new object is written before any record names it."""

    def intend(self, key: tuple[str, str], before: Location | None, intended: Location) -> Steps:
        yield ("put", intended.intent)
        return (yield from super().intend(key, before, intended))


class PublishesBlindly(Purging):
    """A run publishes whatever the record says by then."""

    def publish(self, identity: str, intended: Location, published: Location) -> Steps:
        yield ("set", ("loc", identity), published)
        return True


class SharesAttempts(Purging):
    """Attempts at one object write to one address."""

    def fresh(self) -> str:
        return "one"


class ReadsLocationsFirst(Purging):
    """The offline look reads the locations before it lists."""

    def look_around(self, run: str, disregards: tuple[str, ...], expired: tuple[str, ...]) -> Steps:
        self.early = yield ("scan", ("loc",))
        return (yield from super().look_around(run, disregards, expired))

    def located(self) -> Steps:
        return self.early
        yield


class ReadsNoLocations(Purging):
    """The offline look knows of identities only."""

    def located(self) -> Steps:
        return ()
        yield


class ListsAddresses(Purging):
    """What may go is listed by address: what was unmarked since keeps its identity only."""

    def of_nobody(self, listing: tuple[str, ...], keep: set[str]) -> Steps:
        named = set(keep)
        for key in (yield from self.located()):
            record = yield ("get", key)
            if record is not None and key[1] in keep:
                named |= {record.current, record.intent, *record.backups, *record.left}
        return tuple(address for address in listing if address not in named)


class DeletesTheIdentityOnly(Purging):
    """Whoever deletes an identity does not look where its content lies."""

    deletes_locations = False


class ReadsTheFlagFirst(Purging):
    """Whoever deletes an identity reads the flag before the deletion: a run begins with it in between."""

    def remove_blob(self, identity: str) -> Steps:
        on = yield ("get", ("on",))
        yield ("rm", identity)
        if on:
            yield from self.remove_located(identity)


class LooksForLocationsFirst(Purging):
    """Whoever deletes an identity reads its record before the deletion only."""

    def remove_blob(self, identity: str) -> Steps:
        if (yield ("get", ("loc", identity))) is None:
            yield ("rm", identity)
        else:
            yield from super().remove_blob(identity)


class EndsBackupsUnmarked(Purging):
    """A backup is deleted while it can still be restored."""

    marks_backups = False


class EndsBackupsAtOnce(Purging):
    """Not a loss: nobody waits for readers, and they read the record again."""

    waits_for_readers = False


class EndsBackupsUnderReaders(EndsBackupsAtOnce):
    """Nobody waits for readers, and they read the record once."""

    reads_again = False


class TakesLostLocationsForDeleted(PurgingWithLosses):
    """Not a loss: a location that the KV does not know counts as deleted with its identity, though its objects are
    there. The original is there, too, until a position stands for the location; but its rows come back untold.
    """

    def locations_known(self) -> Steps:
        return True
        yield


class ComparesNumbersAlone(PurgingWithLosses):
    """Not a loss: another content under a number that was lost counts as the same; the older run's rows come back."""

    def knows(self, record: Location | None, told: Location) -> bool:
        return record is not None and record.n >= told.n


class NoLocationsInTheManifest(PurgingWithLosses):
    """Where content lies stands in the KV alone."""

    def record_location(self, identity: str, published: Location) -> Steps:
        return
        yield
