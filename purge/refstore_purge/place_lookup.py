"""Look up where the rows of a run's ids still are: the places of its report, and when each goes.

A run writes down the contents that have rows of its ids (`remaining_places.RunContent`), once. From them, the object
store and the KV the places are made, at the end of the run and whenever its report is shown: what has gone is listed no
more, and what a restore has brought back is listed where it stands now. Dates are those by which the cleaning and the
reaper delete. Nothing is written but the list of contents.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address
from refstore.errors import ObjectNotFound, RefstoreError
from refstore.objects.base import ObjectStore
from refstore.records.location_records import Location
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed, ReferenceRecord
from refstore.repository import Repository
from refstore.versioning.address_state import may_delete_at_ms
from refstore_gc.purge_cleanup import CleanupSchedule
from refstore_purge.object_holders import HolderKind, scan_names
from refstore_purge.purge_report import PurgeReport
from refstore_purge.remaining_places import ADDRESSES_MAX, Place, PlaceKind, RunContent
from refstore_purge.unplanned_contents import PARTITION_LEFT_REASON
from refstore_purge.untyped_pandas import pa, pq

CONTENTS: Final = "_refstore/purge/contents/"
REAPER: Final = "refstore reaper"
REASONS_MAX: Final = 50
"""How many places of one kind and data set a report tells apart by their reasons."""
LATER: Final = "a later run wrote it from a content that was live again, and looked for its own ids alone"
UNNAMED: Final = (
    "objects that nothing names but commits that were swept, such as remains of uploads that died; the next complete "
    "nightly run deletes them, if they are older than an operation may last"
)
_DETAILS: Final = re.compile(r"(?: \(|[;:\"]| ').*", re.DOTALL)
"""What of a reason is about one object alone."""


def write_contents(store: ObjectStore, run: str, contents: Iterable[RunContent]) -> None:
    """Write down a run's contents, each once. Raises ObjectsUnavailable."""
    unique: dict[str, RunContent] = {}
    for each in contents:
        before = unique.get(each.address)
        if before is None or each.has_rows or not before.has_rows:
            unique[each.address] = each
    rows = [msgspec.to_builtins(each) for _, each in sorted(unique.items())]
    body = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), body)
    store.put(f"{CONTENTS}{run}.parquet", body.getvalue())


def read_contents(store: ObjectStore, run: str) -> list[RunContent] | None:
    """Return a run's contents; None: it wrote none down. Raises ObjectsUnavailable."""
    try:
        body = store.read(f"{CONTENTS}{run}.parquet")
    except ObjectNotFound:
        return None
    table = pq.ParquetFile(io.BytesIO(body)).read(use_threads=False)
    return [RunContent(**row) for row in table.to_pylist()]


def refresh_places(repo: Repository, reports: Sequence[PurgeReport]) -> None:
    """Set the places of reports to what is left now. Raises Corrupt, Unavailable."""
    ctx = repo.context
    shown = [each for each in reports if each.state != "dry run"]
    written = _read_later_contents(ctx.objects, min((each.run for each in shown), default="~"))
    read = {each.run: _apply_later_runs(each.run, written) for each in shown}
    lookup = _PlaceLookup(ctx, [content for contents in read.values() for content in contents])
    for report in reports:
        if report.run in read:
            of_run = [each for each in report.places if each.is_as_of_run]
            if report.state in ("running", "killed") and not of_run:
                reason = "the run has not ended, and has not looked at everything"
                purge = f"refstore purge run {repo.name}"
                of_run = [Place(kind="run", reason=reason, has_rows=False, ending_command=purge, is_as_of_run=True)]
            report.places = [*lookup.find_places(read[report.run]), *of_run]
            report.places_ms = lookup.now_ms


def _read_later_contents(store: ObjectStore, first: str) -> dict[str, list[RunContent]]:
    """Return the contents of a run and of all later ones, in the order in which they began."""
    runs = sorted(info.key.removeprefix(CONTENTS).removesuffix(".parquet") for info in store.list(CONTENTS))
    read = {run: read_contents(store, run) for run in runs if run >= first}
    return {run: contents for run, contents in read.items() if contents is not None}


def _apply_later_runs(run: str, written: Mapping[str, list[RunContent]]) -> list[RunContent]:
    """Return a run's contents, and what later runs have made of those that were live again, or still: such a run
    removes the rows of its own ids alone.
    """
    found = {each.address: each for each in written.get(run, ())}
    for later, contents in written.items():
        for each in contents if later > run else ():
            source = found.get(each.address)
            if source is not None and each.new_address and each.new_address not in found:
                found[each.new_address] = msgspec.structs.replace(
                    source, address=each.new_address, size_bytes=0, has_rows=False, reason=LATER
                )
    return list(found.values())


class _ContentPlace(NamedTuple):
    """Where one content stands."""

    kind: PlaceKind
    reason: str = ""
    deletes_at_ms: int = 0
    restore_command: str = ""
    ending_command: str = ""


class _PlaceLookup:
    """What the store and the KV say of some contents now."""

    def __init__(self, ctx: Context, contents: Sequence[RunContent]) -> None:
        self._ctx = ctx
        self.now_ms = ctx.clock.now_ms()
        self._records: dict[str, Location] = {}
        self._names: dict[str, ReferenceRecord] = {}
        # in the order in which objects move: what is taken back or committed meanwhile is found where it stands then
        there = self._find_stored(contents)
        identities = sorted({each.identity for each in there})
        announced = ctx.locations.are_announced()
        for page in split_batches([Address(each) for each in identities]):
            names = ctx.references.get_many(page)
            self._names |= {each: name for each, name in zip(page, names, strict=True) if name is not None}
        self._holders = _find_holders(ctx, there, self._names)
        for page in split_batches([Address(each) for each in identities if announced]):
            records = ctx.locations.get_many(page)
            self._records |= {each: one for each, one in zip(page, records, strict=True) if one is not None}
        self._dates = CleanupSchedule.read(ctx) if self._records else None

    def _find_stored(self, contents: Sequence[RunContent]) -> list[RunContent]:
        """Return the contents that the store has."""
        self._there: dict[str, int] = {}
        """The sizes of those that are there."""
        for page in split_batches(sorted({each.address for each in contents})):
            infos = self._ctx.objects.head_many(page)
            self._there |= {info.key: info.size_bytes for info in infos if info is not None}
        return [each for each in contents if each.address in self._there]

    def find_places(self, contents: Sequence[RunContent]) -> list[Place]:
        """Return the places of a run's contents that are still there."""
        grouped: defaultdict[tuple[str, bool, _ContentPlace], list[tuple[RunContent, _ContentPlace]]] = defaultdict(
            list
        )
        reasons: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for content in contents:
            if content.address in self._there:
                spot = self._place_of(content)
                known = reasons[content.dataset, spot.kind]
                if len(known) < REASONS_MAX or spot.reason in known:
                    known.add(spot.reason)
                else:
                    spot = spot._replace(reason="other reasons; see what was not purged")
                key = (content.dataset, not content.has_rows, spot._replace(deletes_at_ms=bool(spot.deletes_at_ms)))
                sized = msgspec.structs.replace(content, size_bytes=self._there[content.address])
                grouped[key].append((sized, spot))
        places = [_merge_places(grouped[key]) for key in sorted(grouped)]
        return [*places, *self._version_places(contents)]

    def _version_places(self, contents: Sequence[RunContent]) -> list[Place]:
        """Return the place of what a bucket keeps that was deleted, and will be."""
        if not any(each.has_rows for each in contents):
            return []
        try:
            reason = self._ctx.objects.versioning_status().warning
        except RefstoreError as error:
            reason = f"whether the bucket keeps versions of what is deleted could not be asked: {error}"
        gone = [each for each in contents if each.has_rows and each.address not in self._there]
        size = sum(each.size_bytes for each in gone)
        place = Place(kind="versions of the bucket", reason=reason, objects=len(gone), bytes=size)
        return [place] if reason else []

    def _place_of(self, content: RunContent) -> _ContentPlace:
        record = self._records.get(content.identity)
        if record is None:
            return self._place_of_live(content) if content.address == content.identity else self._place_of_unnamed()
        if record.current is None:
            return _ContentPlace(
                "being deleted", "nothing names its object any more", ending_command=self._command("gc run")
            )
        if content.address == record.current.address:
            return self._place_of_live(content)
        return self._place_of_replaced(content, record)

    def _place_of_replaced(self, content: RunContent, record: Location) -> _ContentPlace:
        """Say where a content stands that its record names, and that is not the object's current one."""
        assert self._dates is not None  # noqa: S101  # there is a content
        address = Address(content.address)
        is_held = content.identity in self._dates.held_addresses
        hold = "until the legal hold that covers it ends" if is_held else ""
        clean = self._command("purge clean")
        if address in record.pending_deletions:
            return _ContentPlace("retired", hold, 0 if is_held else self.now_ms, ending_command=clean)
        ending = self._dates.expiries_of(record).get(address)
        if ending is None:
            return self._place_of_unnamed()
        goes_ms = 0 if is_held else ending.deletes_at_ms
        lost = self._names.get(content.identity)
        if isinstance(lost, Emptied) and content.identity not in self._holders:
            due_ms = self._due_ms(lost)
            if not goes_ms or due_ms < goes_ms:  # the reaper takes it with its object
                goes_ms, hold, clean = due_ms, "", REAPER
        if ending.kind == "attempts":
            return _ContentPlace("attempts", hold, goes_ms, ending_command=clean)
        if ending.kind == "trash":
            return _ContentPlace(
                "trash of restores", hold, goes_ms, self._command("purge restore", "--backup ADDRESS"), clean
            )
        run = next(one.replaced_by for one in record.backups if one.content.address == address)
        return _ContentPlace("backups", hold, goes_ms, self._command("purge restore", run), clean)

    def _place_of_live(self, content: RunContent) -> _ContentPlace:
        """Say where an object stands whose current content this is."""
        holder = self._holders.get(content.identity)
        if holder is not None and holder is not HolderKind.SWEEP and content.reason == PARTITION_LEFT_REASON:
            return _ContentPlace(
                "partitions left", "left by --max-units or --after", ending_command=self._command("purge run")
            )
        purge, sweep = self._command("purge run"), self._command("gc run")
        if holder is HolderKind.BRANCH:
            reason = _DETAILS.sub("", content.reason) or "not purged, restored since, or come meanwhile"
            return _ContentPlace("branches", reason, ending_command=purge)
        if holder is HolderKind.TAG:
            reason = _DETAILS.sub("", content.reason) or "until the tags and pins go, and the commits expire"
            return _ContentPlace("tags and pins", reason, 0, self._command("revert"), sweep)
        if holder is HolderKind.COMMIT:
            reason = _DETAILS.sub("", content.reason) or "until the commits expire"
            return _ContentPlace("earlier commits", reason, 0, self._command("revert"), sweep)
        if holder is HolderKind.HIDDEN and not isinstance(self._names.get(content.identity), Emptied):
            return _ContentPlace(
                "hidden branches", "the next run or nightly job deletes the branch", ending_command=purge
            )
        return self._place_of_lost(content, holder)

    def _place_of_lost(self, content: RunContent, holder: HolderKind | None) -> _ContentPlace:
        """Say where an object stands that no branch and no commit names that can be read."""
        record = self._names.get(content.identity)
        restore, reaper = self._command("restore"), REAPER
        if isinstance(record, Emptied):
            return _ContentPlace("undo trash", "", self._due_ms(record), restore, reaper)
        if isinstance(record, Listed):
            return _ContentPlace(
                "undo trash", "its grace window begins when the reaper processes it", 0, restore, reaper
            )
        if isinstance(record, Issued):
            return _ContentPlace("issued", "", self._due_ms(record), "", reaper)
        if isinstance(record, Deleting):
            return _ContentPlace("being deleted", "the reaper has begun, and goes on", ending_command=reaper)
        if holder is HolderKind.SWEEP:
            return _ContentPlace("condemned by a sweep", "the sweep goes on", ending_command=self._command("gc run"))
        return self._place_of_unnamed()

    def _place_of_unnamed(self) -> _ContentPlace:
        reason = "nothing names it but commits that were swept; a complete nightly run deletes it"
        return _ContentPlace("unnamed", reason, ending_command=self._command("gc run", "--full"))

    def _due_ms(self, record: Emptied | Issued) -> int:
        return may_delete_at_ms(record, self._ctx.deletion_delays)

    def _command(self, command: str, *words: str) -> str:
        return " ".join(["refstore", command, self._ctx.name, *words])


def _merge_places(found: Sequence[tuple[RunContent, _ContentPlace]]) -> Place:
    content, spot = found[0]
    dates = [each.deletes_at_ms for _, each in found]
    return Place(
        kind=spot.kind,
        dataset=content.dataset,
        reason=spot.reason,
        objects=len(found),
        bytes=sum(each.size_bytes for each, _ in found),
        first_deletes_at_ms=min(dates),
        deletes_at_ms=max(dates),
        has_rows=content.has_rows,
        restore_command=spot.restore_command,
        ending_command=spot.ending_command,
        addresses=sorted(each.address for each, _ in found)[:ADDRESSES_MAX],
    )


def _find_holders(
    ctx: Context, contents: Iterable[RunContent], names: Mapping[str, ReferenceRecord]
) -> dict[str, HolderKind]:
    """Return how firmly objects stand: below their data sets' prefixes, or elsewhere, if they stand nowhere there."""
    by_prefix: defaultdict[str, set[str]] = defaultdict(set)
    for each in contents:
        by_prefix[each.prefix].add(each.identity)
    found: dict[str, HolderKind] = {}
    for prefix, identities in sorted(by_prefix.items()):
        _add_holders(ctx, prefix, identities, found)
    missing = {identity for identities in by_prefix.values() for identity in identities}.difference(found)
    unknown = {identity for identity in missing if not isinstance(names.get(identity), Emptied | Deleting | Issued)}
    if unknown:
        _add_holders(ctx, "", unknown, found)
    return found


def _add_holders(ctx: Context, prefix: str, identities: set[str], found: dict[str, HolderKind]) -> None:
    for name in scan_names(ctx, prefix=prefix):
        if name.entry.address in identities:
            before = found.get(name.entry.address, name.holder)
            found[name.entry.address] = min(before, name.holder)
