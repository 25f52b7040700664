"""Delete what purges left behind, past its days (rule 22): with the nightly job, or `refstore purge clean`.

    backups     originals that are older than the document's days, or not among the newest versions
    trash       what a restore replaced, past the days of trash
    attempts    what runs wrote and did not publish
    going       what an earlier cleaning had begun to delete
    (the store tells the sizes of the last two, which no record has)

Nothing goes before every reader, every URL that was signed and every operation that may need it has ended, nor what a
legal hold covers. What ends is taken off its record, the record is written to the manifest, the fence is passed, and
then the objects are deleted. So nothing restores what goes, and a KV that loses this is told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Final, Literal, NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, Path, Token
from refstore.core.safety import SIGNED_SECONDS
from refstore.core.step_progress import ReportProgress, StepProgress, ignore_progress
from refstore.core.units import DAY_MS
from refstore.deletion_history import causes
from refstore.deletion_history.deletion_journal import JournalWriter
from refstore.errors import NotFound
from refstore.operations import onboard
from refstore.operations.delete_contents import delete_recorded
from refstore.operations.referenced_entries import referenced_entries
from refstore.operations.rules_in_force import rules_in_force
from refstore.operations.version_entries import scan_versions
from refstore.purge_document.document import PurgeDocument
from refstore.records.encoding import encode
from refstore.records.location_records import Backup, Location
from refstore.records.pending_deletes import PendingDelete
from refstore.versioning.locations import LocatedIdentity
from refstore.versioning.manifest import LocationsPublished, ManifestLocation
from refstore_gc import kv_guard
from refstore_gc.run_summary import FAILURES_SHOWN, CleanupSummary, ObjectCount

PAGE: Final = 1000
LeftoverKind = Literal["backups", "trash", "attempts", "pending_deletions"]
_CAUSES: Final[dict[LeftoverKind, str]] = {
    "backups": causes.BACKUP,
    "trash": causes.TRASH,
    "attempts": causes.ATTEMPT,
    "pending_deletions": causes.LEFT_CONTENT,
}


class LeftoverExpiry(NamedTuple):
    kind: LeftoverKind
    size_bytes: int | None
    """None: only the store knows, and also whether it is there at all."""
    deletes_at_ms: int
    """The first cleaning at this time or after it deletes it, and none before."""


def find_expiries(location: Location, document: PurgeDocument, wait_ms: int) -> dict[Address, LeftoverExpiry]:
    """Return when each content of a record goes that is not the object's own, by address ('': what was erased).

    A backup goes with the earlier of its days and versions, the trash of a restore after the days of trash, and what
    an attempt wrote and did not publish when nobody can publish it any more (rule 22). None of it goes before every
    reader, every URL that was signed and every operation that may need it has ended: that wait is never shortened.

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


@dataclass(slots=True)
class _CleanupCounts:
    counts: dict[str, ObjectCount] = field(default_factory=dict[str, ObjectCount])
    held_contents: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list[str])

    def add(self, what: str, objects: int, size_bytes: int) -> None:
        self.counts[what] = self.counts.get(what, ObjectCount()) + ObjectCount(objects, size_bytes)

    def to_summary(self) -> CleanupSummary:
        return CleanupSummary(
            held_contents=self.held_contents,
            failed_objects=self.failed,
            failures=self.failures,
            **self.counts,
        )


def clean_up(
    ctx: Context, *, dry_run: bool = False, report_progress: ReportProgress = ignore_progress
) -> CleanupSummary:
    """Delete what is past its days, and what no signed URL reads any more.

    Raises KVWentBack, KVSettling, Corrupt, Unavailable; then nothing more is deleted.
    """
    if dry_run:
        return _clean_up(ctx, report_progress, dry_run=True)
    if not ctx.locations.are_announced():
        return CleanupSummary()  # and no entry of the audit log is begun
    with ctx.audit.act("purge.clean", repository=ctx.name) as draft:
        done = _clean_up(ctx, report_progress, dry_run=False)
        gone = sum(each.objects for each in (done.backups, done.trash, done.attempts, done.pending_deletions))
        draft.happened = bool(gone or done.failed_objects)
        draft.after = {
            "backups": done.backups.objects,
            "trash": done.trash.objects,
            "attempts": done.attempts.objects,
            "begun_before": done.pending_deletions.objects,
            "failed": done.failed_objects,
        }
    return done


def _clean_up(ctx: Context, report_progress: ReportProgress, *, dry_run: bool) -> CleanupSummary:
    done = _CleanupCounts()
    if not ctx.locations.are_announced():
        return done.to_summary()
    ends = CleanupSchedule.read(ctx)
    fence = None if dry_run else kv_guard.begin_guarded_pass(ctx, "purge")
    name = f"purge-{ctx.ids.new_id(ctx.clock.now_ms())}"
    journal = JournalWriter(ctx.objects, name, ctx.clock, count())
    now, began = ctx.clock.now_ms(), time.monotonic()
    for number, page in enumerate(split_batches(ctx.locations.scan_changing(), PAGE)):
        elapsed = timedelta(seconds=time.monotonic() - began)
        report_progress(StepProgress(ctx.name, "cleaning up", number * PAGE, elapsed=elapsed))
        found: list[tuple[LocatedIdentity, dict[Address, LeftoverExpiry]]] = []
        for each in page:
            if each.location.current is None:
                continue  # whoever deletes the identity goes on with it
            if each.identity in ends.held_addresses:
                done.held_contents += bool(each.location.backups)
                done.add("waiting_contents", *_sum_sizes(each.location.backups))
                continue
            dates = ends.expiries_of(each.location)
            ending = {address: one for address, one in dates.items() if one.deletes_at_ms <= now}
            done.add(
                "waiting_contents",
                *_sum_sizes([one for one in each.location.backups if one.content.address not in ending]),
            )
            if ending or each.location.pending_deletions:
                found.append((each, ending))
        if not found:
            continue
        if fence is None:
            endings = [ending | _find_pending(each) for each, ending in found]
            sizes = _read_sizes(ctx, endings)
            for ending in endings:
                _add_counts(done, ending, sizes, [*ending])
            continue
        retired = ctx.locations.retire(
            [(each, _backups_to_retire(each, ending)) for each, ending in found], intents_before_ms=now - ends.wait_ms
        )
        if retired:
            kept = tuple(ManifestLocation(each.identity, encode(each.location)) for each in retired)
            ctx.manifest.add(LocationsPublished(ctx.ids.new_id(ctx.clock.now_ms()), kept))
            fence.pass_through()
            _delete(ctx, journal, retired, {each.identity: ending for each, ending in found}, done)
    return done.to_summary()


class KeptBackup(NamedTuple):
    """A content that a purge or a restore has replaced, and that can be restored."""

    identity: Address
    address: Address
    """'': it was erased."""
    size_bytes: int
    replaced_ms: int
    run: str
    is_trash: bool
    deletes_at_ms: int
    """The first cleaning at this time or after it deletes it, and none before."""
    is_on_hold: bool
    """Whether a legal hold keeps it longer."""
    is_due: bool
    """Whether the next cleaning deletes it."""


def scan_backups(ctx: Context) -> Iterator[KeptBackup]:
    """Yield all backups and trash. Raises Corrupt, Unavailable."""
    if not ctx.locations.are_announced():
        return
    now, ends = ctx.clock.now_ms(), CleanupSchedule.read(ctx)
    for each in ctx.locations.scan_changing():
        dates, is_held = ends.expiries_of(each.location), each.identity in ends.held_addresses
        for one in each.location.backups:
            goes_ms = dates[one.content.address].deletes_at_ms
            yield KeptBackup(
                each.identity,
                one.content.address,
                one.content.size_bytes,
                one.replaced_ms,
                one.replaced_by,
                one.is_trash,
                goes_ms,
                is_held,
                goes_ms <= now and not is_held,
            )


class CleanupSchedule(NamedTuple):
    """What decides when the cleaning deletes what."""

    document: PurgeDocument
    wait_ms: int
    held_addresses: set[str]
    """Objects that a legal hold covers: nothing of theirs goes."""

    @staticmethod
    def read(ctx: Context) -> CleanupSchedule:
        """Read it as it is now. Raises Corrupt, Unavailable."""
        document, held = read_document(ctx), find_held_addresses(ctx)
        # the waits last: that took its time, and the durations may have grown meanwhile
        return CleanupSchedule(document, int(compute_wait_seconds(ctx) * 1000), held)

    def expiries_of(self, location: Location) -> dict[Address, LeftoverExpiry]:
        return find_expiries(location, self.document, self.wait_ms)


def read_document(ctx: Context) -> PurgeDocument:
    """Read the purge document; an empty one if there is none."""
    try:
        return onboard.get_document(ctx).document
    except NotFound:
        return PurgeDocument()


def find_held_addresses(ctx: Context) -> set[str]:
    """Return the addresses that a legal hold covers under any name, in any version and in the trash."""
    prefixes = [hold.prefix for hold in rules_in_force(ctx).legal_holds]
    held: set[str] = {each.entry.address for each in referenced_entries(ctx, prefixes)}  # first, as entries move
    return held.union(each.entry.address for each in scan_versions(ctx, prefixes=prefixes))


def compute_wait_seconds(ctx: Context) -> float:
    """Return how long somebody may still read or link what was replaced."""
    ctx.durations.refresh()
    waits = ctx.waits
    longest = waits.operation_deadline_seconds + waits.io_timeout_seconds
    return max(longest, waits.issue_seconds, SIGNED_SECONDS) + 2 * waits.clock_skew_seconds


def _find_pending(each: LocatedIdentity) -> dict[Address, LeftoverExpiry]:
    """Return what nothing restores any more, by address: what an earlier cleaning did not come to the end with, and
    what attempts left whose intent a later one has replaced.
    """
    unpublished = each.location.unpublished_attempts
    return {
        address: LeftoverExpiry("attempts" if address in unpublished else "pending_deletions", None, 0)
        for address in each.location.pending_deletions
    }


def _read_sizes(ctx: Context, endings: Iterable[dict[Address, LeftoverExpiry]]) -> dict[Address, int]:
    """Return the sizes; ask the store for those that no record has. What is not there has none."""
    told = {address: one.size_bytes for ending in endings for address, one in ending.items()}
    asked = [address for address, size_bytes in told.items() if size_bytes is None]
    infos = ctx.objects.head_many(asked)
    told |= {address: info and info.size_bytes for address, info in zip(asked, infos, strict=True)}
    return {address: size_bytes for address, size_bytes in told.items() if size_bytes is not None}


def _backups_to_retire(each: LocatedIdentity, ending: dict[Address, LeftoverExpiry]) -> list[Address]:
    return [backup.content.address for backup in each.location.backups if backup.content.address in ending]


def _delete(
    ctx: Context,
    journal: JournalWriter,
    retired: Sequence[LocatedIdentity],
    ended: dict[Address, dict[Address, LeftoverExpiry]],
    done: _CleanupCounts,
) -> None:
    """Delete what is going, then take it off the records."""
    endings = {each.identity: _find_pending(each) | ended[each.identity] for each in retired}
    sizes = _read_sizes(ctx, endings.values())
    batch = [
        PendingDelete(
            address,
            Token(""),
            Path(""),
            causes.cause_of_cleaning(_CAUSES[endings[each.identity][address].kind], each.identity),
            sizes.get(address, -1),
        )
        for each in retired
        for address in each.location.pending_deletions
    ]
    deletion = delete_recorded(ctx.objects, batch, journal)
    kept = {address for address, _ in deletion.kept_keys}
    deleted, away = {*deletion.deleted_keys} - kept, {*deletion.deleted_keys, *deletion.missing_keys}
    done.failed += len(deletion.failed_keys)
    done.failures += [
        f"{address}: {why}" for address, why in deletion.failed_keys[: FAILURES_SHOWN - len(done.failures)]
    ]
    for each in retired:
        _add_counts(
            done, endings[each.identity], sizes, [one for one in each.location.pending_deletions if one in deleted]
        )
        kept_sizes = [sizes.get(one, 0) for one in each.location.pending_deletions if one in kept]
        done.add("kept_contents", len(kept_sizes), sum(kept_sizes))
    ctx.locations.forget_deleted(
        [(each, [address for address in each.location.pending_deletions if address in away]) for each in retired]
    )


def _add_counts(
    done: _CleanupCounts, ending: dict[Address, LeftoverExpiry], sizes: dict[Address, int], gone: Sequence[Address]
) -> None:
    for address in filter(None, dict.fromkeys(gone)):  # what was erased has none
        if address in sizes:  # S3 calls deleted what was not there
            done.add(ending[address].kind, 1, sizes[address])


def _sum_sizes(backups: Sequence[Backup]) -> tuple[int, int]:
    return len(backups), sum(backup.content.size_bytes for backup in backups)
