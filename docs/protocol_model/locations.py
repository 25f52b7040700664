"""The purge of rows from every version (rule 22).

In this model an address says what its content went through: `P0-a'1-b'2` is P0 without the rows of runs a and b; what
follows an apostrophe is the attempt that wrote it.
"""

# ruff: noqa: ARG002  # hooks for runs in a KV that loses writes take arguments that are not used here

from __future__ import annotations

from .offline import Offline
from .staging import ATTEMPTS
from .store import GONE, Entry, Location, Steps, listed

TRIES = 2
"""Of a run on one object; then the unit of work is tried again, later."""


def home(identity: str) -> Location:
    """Where content lies of which no record says anything."""
    return Location(identity, None, (), (), 0)


def addresses(record: Location) -> tuple[str, ...]:
    """Every address that a record names."""
    named = (record.current, record.intent, *record.backups, *record.left)
    return tuple(sorted({address for address in named if address not in (None, GONE)}))


def purged_by(address: str, run: str) -> bool:
    return any(part.partition("'")[0] == run for part in address.split("-")[1:])


class Locations(Offline):
    # ---- a run

    """Rows that leave every version.

    Rule 22: An object's identity stays; a record says where its content lies.

    The address that commits, references, marks and pins name is the **identity**, and never changes.
    `<repo>/locations/<identity>` holds the current address, the intent of an attempt, the backups, what is deleted
    next, and a number that rises with each replacement. Without a record, the content lies where the identity says.
    [0133](decisions/0133-identity-and-location.md) has the reasons.
    """

    def announce(self) -> Steps:
        """Set the flag that content may lie elsewhere.

        Rule 22, Announce first: A flag of the repository is set before the first record is written. A reader that read
        the flag before that shows content as it was before the run began, and the run's backup waits for it. Whoever
        deletes reads the flag *behind* the deletion. *Shown by* `AnnouncesNothing`.
        """
        while (yield ("get", ("on",))) is None:
            yield ("cas", ("on",), None, True)

    def purge(self, run: str, *identities: str) -> Steps:
        yield from self.announce()
        told = []
        for identity in identities:
            told.append((yield from self.rewrite(run, identity)))  # noqa: PERF401  # a comprehension cannot yield
        return "ok" if all(verdict == "ok" for verdict in told) else "not all"

    looks_at = ("references", "staged", "committed")
    """Where a run looks, one after the other. References stay under their address's key while an object goes from
    staging areas to the trash and back, and until a commit names it: so whatever could be read or restored before the
    look began is met there or, behind that, in a commit.
    """

    def purge_all(self, run: str) -> Steps:
        """Find the objects of a run, and give each another content.

        Rule 22, References first: A run purges what can be read or restored: what is staged or in the trash, and what
        commits name. It reads all references, then staging areas (for entries without a reference), then commits.
        References stay under their address's key while an object goes from staging areas to the trash and back, and
        until a commit names it. So this one look finds whatever was there when it began. Staging areas and the trash
        alone do not, however often they are read: a restore travels back, and between its reference and its entry it
        shows the object in neither. *Shown by* `LooksAtNames`, `LooksAtCommitsFirst`, `LooksAtTrash`,
        `LooksAtTrashFirst`, `LooksTwice`.
        """
        identities: set[str] = set()
        for place in self.looks_at:
            identities |= yield from getattr(self, f"look_at_{place}")()
        yield from self.announce()
        told = []
        for identity in sorted(identities):
            told.append((yield from self.rewrite(run, identity)))  # noqa: PERF401  # a comprehension cannot yield
        return "ok" if all(verdict in ("ok", "gone") for verdict in told) else "not all"

    def look_at_references(self) -> Steps:
        """Of what is staged, and of the trash: an object whose list is empty, or all of whose names are retired."""
        identities: set[str] = set()
        for key in (yield ("scan", ("r",))):
            if listed((yield ("get", key))):
                identities.add(key[1])
        return identities

    def look_at_staged(self) -> Steps:
        """Of what a commit named before, and has no reference."""
        identities: set[str] = set()
        for key in (yield ("scan", ("b",))):
            record = yield ("open", key)
            for token in (record.token, *record.sealed) if record is not None else ():
                for name in (yield ("scan", ("e", token))):
                    entry = yield ("get", name)
                    if isinstance(entry, Entry):
                        identities.add(entry.address)
        return identities

    def look_at_committed(self) -> Steps:
        identities: set[str] = set()
        for key in (yield ("scan", ("c",))):
            commit = yield ("get", key)
            identities |= {address for _, address in commit.tree}
        return identities

    def rewrite(self, run: str, identity: str) -> Steps:
        """Give an object another content.

        Rule 22, Intent, read, write, publish: The intent (a new address) is in the record before a task writes there,
        so that the offline look keeps what is written. It is there before the content is read, so that two runs do not
        take back each other's work. Publishing is one `set_if` from the record with this intent to one with the new
        address, by the driver alone. It fails if anything changed since. Then the driver deletes what it wrote, unless
        the record says that it had been published. Every attempt has an address of its own. *Shown by*
        `WritesBeforeItsIntent`, `PublishesBlindly`, `SharesAttempts`.

        An attempt is an operation, and ends within the longest one. So an intent that is older belongs to nobody, even
        if a KV that lost writes shows it again.
        """
        key = ("loc", identity)
        for _ in range(TRIES):
            before = yield ("get", key)
            record = before or home(identity)
            if record.current == GONE:
                return "gone"
            if purged_by(record.current, run):
                return "ok"
            new = f"{record.current}-{run}'{self.fresh()}"
            intended = record._replace(intent=new, left=(*record.left, *((record.intent,) if record.intent else ())))
            if not (yield from self.intend(key, before, intended)):
                continue
            if not (yield ("head", record.current)):
                yield ("cas", key, intended, before)
                return "gone"
            yield ("put", new)
            published = Location(new, None, (*record.backups, record.current), intended.left, record.n + 1)
            if (yield from self.publish(identity, intended, published)):
                return "ok"
            now = yield ("get", key)  # as it was published and replaced since, if the reply was lost
            if now is None or new not in (now.current, *now.backups):
                yield ("rm", new)
        return "busy"

    def intend(self, key: tuple[str, str], before: Location | None, intended: Location) -> Steps:
        return (yield ("cas", key, before, intended))

    def publish(self, identity: str, intended: Location, published: Location) -> Steps:
        return (yield ("cas", ("loc", identity), intended, published))

    def restore_content(self, identity: str) -> Steps:
        """The last known good content; what it replaces is a backup then."""
        record = yield ("get", ("loc", identity))
        if record is None or not record.backups or record.current == GONE:
            return "409"
        *older, last = record.backups
        restored = record._replace(current=last, backups=(*older, record.current), n=record.n + 1)
        return "ok" if (yield from self.publish(identity, record, restored)) else "409"

    def is_written(self, address: str) -> Steps:
        if (yield ("head", address)):
            return True
        record = yield ("get", ("loc", address))
        return record is not None and record.current != GONE

    # ---- readers

    reads_again = True

    def read(self, branch: str, path: str) -> Steps:
        return (yield from self.reading(branch, path, None))

    def read_purged(self, branch: str, path: str, run: str) -> Steps:
        """Read behind a run that was acknowledged: it must show."""
        return (yield from self.reading(branch, path, run))

    def reading(self, branch: str, path: str, run: str | None) -> Steps:
        """Rule 22, A reader that finds no content reads flag and record again: While backups wait for readers, the
        model shows no need for this, and while readers read again it shows no need for the wait (`EndsBackupsAtOnce`
        holds). Without both, readers fail. *Shown by* `EndsBackupsUnderReaders`.

        """
        for _ in range(ATTEMPTS if self.reads_again else 1):
            on = yield ("get", ("on",))
            source = yield from self.resolve(branch, path)
            if source is None:
                return "404"
            record = (yield ("get", ("loc", source.address))) if on else None
            current = (record or home(source.address)).current
            if current != GONE and (yield ("head", current)):
                return "stale" if run is not None and not purged_by(current, run) else "read"
        return "lost"

    # ---- the end of backups

    waits_for_readers = True
    marks_backups = True

    def end_backups(self, *identities: int) -> Steps:
        """Delete what replaced content, what failed runs left behind, and the intents of runs that are over.

        Rule 22, Backups end in two steps: `set_if` moves them to what is deleted next, from where nothing is restored.
        Then they are deleted, and leave the record. The record as read is older than the longest operation by then, so
        no reader is on its way to them. *Shown by* `EndsBackupsUnmarked`.
        """
        for key in (yield ("scan", ("loc",))):
            record = yield ("get", key)
            if record is None or record.current == GONE or not (record.backups or record.left or record.intent):
                continue
            if self.waits_for_readers:
                yield ("barrier",)
            intent = (record.intent,) if record.intent else ()
            ending = record._replace(intent=None, backups=(), left=(*record.left, *record.backups, *intent))
            if self.marks_backups and not (yield ("cas", key, record, ending)):
                continue
            if not (yield from self.may_end(key[1], ending, identities)):
                continue
            for address in sorted({*ending.left}):
                yield ("rm", address)
            ended = ending._replace(left=())
            yield ("cas", key, ending if self.marks_backups else record, ended if ended.n else None)

    def may_end(self, identity: str, ending: Location, identities: tuple[int, ...]) -> Steps:
        """Always; a KV that loses writes is asked first."""
        return True
        yield

    # ---- whoever deletes an identity

    deletes_locations = True

    def remove_blob(self, identity: str) -> Steps:
        """Delete an identity with all that its record names.

        Rule 22, Whoever deletes an identity: It deletes the identity's own object first, and then reads the flag and
        the record: an intent that comes later finds nothing to read. It turns the record into `gone` with all its
        addresses by `set_if`, deletes those, then the record, then the identity's keys. Publishing over `gone` fails.
        *Shown by* `DeletesTheIdentityOnly`, `ReadsTheFlagFirst`, `LooksForLocationsFirst`.
        """
        yield ("rm", identity)
        if self.deletes_locations and (yield ("get", ("on",))):
            yield from self.remove_located(identity)

    def remove_located(self, identity: str) -> Steps:
        key = ("loc", identity)
        while True:
            record = yield ("get", key)
            if record is None:
                return
            if record.current != GONE:
                gone = Location(GONE, None, (), addresses(record), record.n)
                if not (yield ("cas", key, record, gone)):
                    continue
                record = gone
            for address in record.left:
                yield ("rm", address)
            yield ("cas", key, record, None)
            return

    # ---- the offline look

    def of_nobody(self, listing: tuple[str, ...], keep: set[str]) -> Steps:
        """Find the identities and addresses that nothing names.

        Rule 22, The offline look reads locations last: What a record names is kept or deleted with its identity. What
        may be deleted is listed by identity: a commit that is unmarked later keeps its identities, and with them
        whatever their records name by then. *Shown by* `ReadsLocationsFirst`, `ReadsNoLocations`, `ListsAddresses`.
        """
        owned: set[str] = set()
        identities = []
        for key in (yield from self.located()):
            record = yield ("get", key)
            if record is not None:
                owned.update(addresses(record))
                identities.append(key[1])
        found = {address for address in listing if address not in keep and address not in owned}
        return tuple(sorted(found | {identity for identity in identities if identity not in keep}))

    def located(self) -> Steps:
        return (yield ("scan", ("loc",)))
