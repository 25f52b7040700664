"""Look up where the rows of a run's ids still are: the places of its report, and when each goes.

A run writes down the contents that have rows of its ids (`remaining_places.RunContent`), once. From them, the object
store and the KV the places are made, at the end of the run and whenever its report is shown: what has gone is listed no
more, and what a restore has brought back is listed where it stands now. Bytes that were copied or joined meanwhile are
followed by the sources that entries name (`ContentDescription.sources`). Dates are those by which the cleaning and the
reaper delete. Nothing is written but the list of contents.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address
from refstore.errors import ObjectNotFound, RefstoreError
from refstore.objects.base import ObjectStore
from refstore.records.location_records import Location
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed, ReferenceRecord
from refstore.records.s3_attributes import ANY_SOURCE, content_of
from refstore.records.staging_records import Entry
from refstore.repository import Repository
from refstore.versioning.address_state import may_delete_at_ms
from refstore_purge.object_holders import HolderKind, scan_lost_names, scan_names
from refstore_purge.purge_cleanup import CleanupSchedule
from refstore_purge.purge_report import PurgeReport
from refstore_purge.remaining_places import (
    ADDRESSES_MAX,
    OPEN_UPLOAD_REASON,
    PARTITION_LEFT_REASON,
    Place,
    PlaceKind,
    RunContent,
    unexamined_place,
)
from refstore_purge.untyped_pandas import pa, pq

CONTENTS: Final = "_refstore/purge/contents/"
REAPER: Final = "refstore reaper"
REASONS_MAX: Final = 50
"""How many places of one kind and data set a report tells apart by their reasons."""
LATER: Final = "a later run wrote it from a content that was live again, and looked for its own ids alone"
COPIED: Final = "its bytes were copied from a place of this run, by a link or by an S3 client"
UNNAMED: Final = (
    "objects that nothing names but commits that were swept, such as remains of uploads that died; the next complete "
    "nightly run deletes them, if they are older than an operation may last"
)
_DETAILS: Final = re.compile(r"(?: \(|[;:\"]| ').*", re.DOTALL)
"""What of a reason is about one object alone."""


def write_contents(store: ObjectStore, run: str, contents: Iterable[RunContent]) -> None:
    """Write down a run's contents. Raises ObjectsUnavailable."""
    body = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([msgspec.to_builtins(each) for each in contents]), body)
    store.put(f"{CONTENTS}{run}.parquet", body.getvalue())


def read_contents(store: ObjectStore, run: str) -> list[RunContent] | None:
    """Return a run's contents; None: it wrote none down. Raises ObjectsUnavailable."""
    try:
        body = store.read(f"{CONTENTS}{run}.parquet")
    except ObjectNotFound:
        return None
    table = pq.ParquetFile(io.BytesIO(body)).read(use_threads=False)
    return [RunContent(**row) for row in table.to_pylist()]


def refresh_places(
    repo: Repository, reports: Sequence[PurgeReport], *, examined: Collection[str] | None = None
) -> None:
    """Set the places of reports to what is left now. `examined`: the contents that the run looked into, of a report
    that is being made. Raises Corrupt, Unavailable.
    """
    ctx = repo.context
    shown = [each for each in reports if each.state != "dry run"]
    written = _read_later_contents(ctx.objects, min((each.run for each in shown), default="~"))
    lookup = _PlaceLookup(ctx, written, shown)
    for report in shown:
        if examined is not None:
            report.examined_copies = sorted({address for _, address in lookup.copies}.intersection(examined))
        of_run = [each for each in report.places if each.is_as_of_run]
        if report.state in ("running", "killed") and not of_run:
            reason = "the run has not ended, and has not looked at everything"
            of_run = [unexamined_place(reason, f"refstore purge run {repo.name}")]
        report.places = [*lookup.find_places(report), *of_run]
        report.places_ms = lookup.now_ms


def _read_later_contents(store: ObjectStore, first: str) -> dict[str, list[RunContent]]:
    """Return the contents of a run and of all later ones, in the order in which they began."""
    runs = sorted(info.key.removeprefix(CONTENTS).removesuffix(".parquet") for info in store.list(CONTENTS))
    read = {run: read_contents(store, run) for run in runs if run >= first}
    return {run: contents for run, contents in read.items() if contents is not None}


class _BytesCopy(NamedTuple):
    """An object that has bytes of others."""

    address: str
    prefix: str
    """Of the data set in which it was found."""
    sources: tuple[str, ...]


class _ContentPlace(NamedTuple):
    """Where one content stands."""

    kind: PlaceKind
    reason: str = ""
    deletes_at_ms: int = 0
    restore_command: str = ""
    ending_command: str = ""


_LIVE: Final[dict[HolderKind, _ContentPlace]] = {
    HolderKind.BRANCH: _ContentPlace(
        "branches", "not purged, restored since, or come meanwhile", ending_command="purge run"
    ),
    HolderKind.TAG: _ContentPlace(
        "tags and pins", "until the tags and pins go, and the commits expire", 0, "revert", "gc run"
    ),
    HolderKind.COMMIT: _ContentPlace("earlier commits", "until the commits expire", 0, "revert", "gc run"),
}
"""Without the name of the repository. The reason of the content comes first."""


class _PlaceLookup:
    """What the store and the KV say of some contents now."""

    def __init__(self, ctx: Context, written: Mapping[str, list[RunContent]], reports: Sequence[PurgeReport]) -> None:
        """`written`: the contents of the reports' runs, and of later ones."""
        self._ctx, self._written = ctx, written
        self.now_ms = ctx.clock.now_ms()
        self.copies: dict[tuple[str, str], _BytesCopy] = {}
        """By prefix of the data set and address."""
        self._sizes: dict[str, int] = {}
        """Of the contents that are there."""
        self._names: dict[str, ReferenceRecord] = {}
        self._holders: dict[str, HolderKind] = {}
        self._records: dict[str, Location] = {}
        # in the order in which objects move: what is taken back or committed meanwhile is found where it stands then
        there = self._look_up([each for report in reports for each in self.follow(report)])
        self._scan_names(reports, there)
        there = self._look_up([each for report in reports for each in self.follow(report)])
        if ctx.locations.are_announced():
            for page in split_batches([Address(each) for each in sorted({each.identity for each in there})]):
                records = ctx.locations.get_many(page)
                self._records |= {each: one for each, one in zip(page, records, strict=True) if one is not None}
        self._dates = CleanupSchedule.read(ctx) if self._records else None

    def follow(self, report: PurgeReport) -> list[RunContent]:
        """Return a run's contents, and what has their bytes or rows since: copies, and what later runs have made of
        those that were live again, or still. Such a run removes the rows of its own ids alone.
        """
        found = {each.address: each for each in self._written.get(report.run, ())}
        if not found:
            return []
        followers: defaultdict[str, list[RunContent]] = defaultdict(list)
        for later, contents in self._written.items():
            for each in contents if later > report.run else ():
                if each.new_address:
                    new = RunContent(each.new_address, each.identity, each.dataset, each.prefix, 0, False, LATER)
                    followers[each.address].append(new)
        datasets, examined = self._datasets_of(report), set(report.examined_copies)
        for address, prefix, sources in self.copies.values():
            if prefix in datasets and address not in examined:
                new = RunContent(address, address, datasets[prefix], prefix, 0, False, COPIED)
                for source in sources:
                    followers[source].append(new)
        pending = [*found, ANY_SOURCE]
        for address in pending:  # the list grows while the loop runs
            for each in followers[address]:
                if each.address not in found:
                    found[each.address] = each
                    pending.append(each.address)
        return list(found.values())

    def _datasets_of(self, report: PurgeReport) -> dict[str, str]:
        """Return the names of a run's data sets, by their prefix; none, if it wrote no contents down."""
        contents = self._written.get(report.run)
        return {each.prefix: each.dataset for each in [*report.datasets, *contents]} if contents else {}

    def _look_up(self, contents: Sequence[RunContent]) -> list[RunContent]:
        """Look up contents in the store, and the references of their objects. Return those that are there."""
        new = [each for each in contents if each.address not in self._sizes]
        uploads = {each.identity for each in new if each.reason == OPEN_UPLOAD_REASON}
        self._read_names(uploads)
        self._sizes |= {each: 0 for each in uploads if isinstance(self._names.get(each), Issued)}
        for page in split_batches(sorted({each.address for each in new})):
            self._sizes |= {each.key: each.size_bytes for each in self._ctx.objects.head_many(page) if each is not None}
        self._read_names({each.identity for each in new if each.address in self._sizes})
        return [each for each in contents if each.address in self._sizes]

    def _read_names(self, identities: Iterable[str]) -> None:
        for page in split_batches([Address(each) for each in sorted(identities)]):
            for each, name in zip(page, self._ctx.references.get_many(page), strict=True):
                self._names.pop(each, None)
                if name is not None:
                    self._names[each] = name

    def _scan_names(self, reports: Sequence[PurgeReport], there: Sequence[RunContent]) -> None:
        """Find how firmly objects stand: below their data sets' prefixes, or elsewhere, if they stand nowhere there.
        And find what was copied from contents, below the prefixes of the runs' data sets.
        """
        contents = [each for of_run in self._written.values() for each in of_run]
        sources = {ANY_SOURCE, *(each.address for each in contents), *(each.new_address for each in contents)}
        prefixes = sorted({prefix for report in reports for prefix in self._datasets_of(report)})
        for _, path, entry, _ in scan_lost_names(self._ctx, prefixes):
            for prefix in prefixes:
                if entry is not None and path.startswith(prefix):
                    self._note_copy(prefix, entry, sources)
        for prefix in prefixes:
            self._scan_prefix(prefix, {each.identity for each in there if each.prefix == prefix}, sources)
        missing = {each.identity for each in there}.difference(self._holders)
        unknown = {each for each in missing if not isinstance(self._names.get(each), Emptied | Deleting | Issued)}
        if unknown:
            self._scan_prefix("", unknown, set())

    def _scan_prefix(self, prefix: str, identities: set[str], sources: set[str]) -> None:
        for name in scan_names(self._ctx, prefix=prefix):
            address = name.entry.address
            if self._note_copy(prefix, name.entry, sources) or address in identities:
                self._holders[address] = min(self._holders.get(address, name.holder), name.holder)

    def _note_copy(self, prefix: str, entry: Entry, sources: set[str]) -> bool:
        """Note an object that has bytes of these sources; return whether it has."""
        content = content_of(entry.s3)
        if content is None or sources.isdisjoint(content.sources):
            return False
        self.copies[prefix, entry.address] = _BytesCopy(entry.address, prefix, content.sources)
        return True

    def find_places(self, report: PurgeReport) -> list[Place]:
        """Return the places of a run's contents that are still there."""
        contents = self.follow(report)
        grouped: defaultdict[tuple[str, bool, _ContentPlace], list[tuple[str, int]]] = defaultdict(list)
        reasons: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for content in contents:
            if content.address in self._sizes:
                spot = self._place_of(content)
                known = reasons[content.dataset, spot.kind]
                if len(known) >= REASONS_MAX and spot.reason not in known:
                    spot = spot._replace(reason="other reasons; see what was not purged")
                known.add(spot.reason)
                key = (content.dataset, not content.has_rows, spot._replace(deletes_at_ms=bool(spot.deletes_at_ms)))
                grouped[key].append((content.address, spot.deletes_at_ms))
        places = [
            Place(
                kind=spot.kind,
                dataset=dataset,
                reason=spot.reason,
                objects=len(found),
                bytes=sum(self._sizes[address] for address, _ in found),
                first_deletes_at_ms=min(date for _, date in found),
                deletes_at_ms=max(date for _, date in found),
                has_rows=not is_unexamined,
                restore_command=spot.restore_command,
                ending_command=spot.ending_command,
                addresses=sorted(address for address, _ in found)[:ADDRESSES_MAX],
            )
            for (dataset, is_unexamined, spot), found in sorted(grouped.items())
        ]
        return [*places, *self._version_places([each for each in contents if each.has_rows])]

    def _version_places(self, contents: Sequence[RunContent]) -> list[Place]:
        """Return the place of what a bucket keeps that was deleted, and will be."""
        if not contents:
            return []
        try:
            reason = self._ctx.objects.versioning_status().warning
        except RefstoreError as error:
            reason = f"whether the bucket keeps versions of what is deleted could not be asked: {error}"
        gone = [each.size_bytes for each in contents if each.address not in self._sizes]
        place = Place(kind="versions of the bucket", reason=reason, objects=len(gone), bytes=sum(gone))
        return [place] if reason else []

    def _place_of(self, content: RunContent) -> _ContentPlace:
        record = self._records.get(content.identity)
        if record is not None and record.current is None:
            reason = "nothing names its object any more"
            return _ContentPlace("being deleted", reason, ending_command=self._command("gc run"))
        if content.address == (
            content.identity if record is None or record.current is None else record.current.address
        ):
            return self._place_of_live(content)
        return self._place_of_replaced(content, record) if record is not None else self._place_of_unnamed()

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
            restore = self._command("purge restore", "--backup ADDRESS")
            return _ContentPlace("trash of restores", hold, goes_ms, restore, clean)
        run = next(one.replaced_by for one in record.backups if one.content.address == address)
        return _ContentPlace("backups", hold, goes_ms, self._command("purge restore", run), clean)

    def _place_of_live(self, content: RunContent) -> _ContentPlace:
        """Say where an object stands whose current content this is."""
        holder, record = self._holders.get(content.identity), self._names.get(content.identity)
        if holder is not None and holder is not HolderKind.SWEEP and content.reason == PARTITION_LEFT_REASON:
            reason = "left by --max-partitions or --after"
            return _ContentPlace("partitions left", reason, ending_command=self._command("purge run"))
        live = _LIVE.get(holder) if holder is not None else None
        if live is not None:
            return live._replace(
                reason=_DETAILS.sub("", content.reason) or live.reason,
                restore_command=self._command(live.restore_command) if live.restore_command else "",
                ending_command=self._command(live.ending_command),
            )
        restore = self._command("restore")
        if isinstance(record, Emptied):
            return _ContentPlace("undo trash", "", self._due_ms(record), restore, REAPER)
        if holder is HolderKind.HIDDEN:
            reason = "the next run or nightly job deletes the branch"
            return _ContentPlace("hidden branches", reason, ending_command=self._command("purge run"))
        if isinstance(record, Listed):
            return _ContentPlace(
                "undo trash", "its grace window begins when the reaper processes it", 0, restore, REAPER
            )
        if isinstance(record, Issued):
            return _ContentPlace("issued", "", self._due_ms(record), "", REAPER)
        if isinstance(record, Deleting):
            return _ContentPlace("being deleted", "the reaper has begun, and goes on", ending_command=REAPER)
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
