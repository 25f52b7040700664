"""Look up where the rows of a run's ids still are: the places of its report, and when each goes.

A run writes down the contents that have rows of its ids, or that nobody could look into (`outcomes.RunContent`), once.
From them, the object store and the KV the places are made, at the end of the run and whenever its report is shown: what
has gone is listed no more, and what a restore has brought back is listed where it stands now. Bytes that were copied or
joined meanwhile are followed by the sources that entries name (`ContentDescription.sources`). Dates are those by which
the cleaning and the reaper delete. What is no object of its own, or cannot be looked up later, is shown as the run saw
it. Nothing is written but the list of contents.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.clock import format_utc
from refstore.core.ids import Address, BranchName
from refstore.errors import BranchNotFound, RefstoreError
from refstore.objects.base import ObjectStore
from refstore.operations.purge_roles import HIDDEN_BRANCHES
from refstore.records.location_records import Location
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed, ReferenceRecord
from refstore.records.s3_attributes import ANY_SOURCE, content_of
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore.versioning.address_state import may_delete_at_ms
from refstore_purge.object_holders import HolderKind, scan_lost_names, scan_names
from refstore_purge.outcomes import OPEN_UPLOAD_REASON, PARTITION_LEFT_REASON, RunContent
from refstore_purge.purge_cleanup import CleanupSchedule
from refstore_purge.purge_report import PlaceKind, PurgeReport, RemainingPlace, unexamined_place
from refstore_purge.untyped_pandas import pa, pq

CONTENTS: Final = "_refstore/purge/contents/"
REASONS_MAX: Final = 50
"""How many places of one kind and data set a report tells apart by their reasons."""
REAPER: Final = "refstore reaper"
LATER: Final = "a later run wrote it from a content that was live again, and looked for its own ids alone"
COPIED: Final = "its bytes were copied from a place of this run, by a link or by an S3 client"
UNNAMED: Final = (
    "objects that nothing names but commits that were swept, such as remains of uploads that died; the next full "
    "nightly run deletes them, if they are older than an operation may last"
)
_DETAILS: Final = re.compile(r"(?: \(|[;:\"]| ').*", re.DOTALL)
"""What of a reason is about one object alone."""


def write_contents(store: ObjectStore, run: str, contents: Iterable[RunContent]) -> None:
    """Write down a run's contents. Raises ObjectsUnavailable."""
    body = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([msgspec.to_builtins(each) for each in contents]), body)
    store.put(f"{CONTENTS}{run}.parquet", body.getvalue())


def refresh_places(
    repo: Repository, reports: Sequence[PurgeReport], *, examined: Collection[str] | None = None
) -> None:
    """Set the places of reports to what is left now. `examined`: the contents that the run looked into, of a report
    that is being made. Raises Corrupt, Unavailable.
    """
    shown = [each for each in reports if each.state != "dry run"]
    lookup = _PlaceLookup(repo.context, shown)
    for report in shown:
        if examined is not None:
            report.examined_copies = sorted({address for _, address in lookup.copies}.intersection(examined))
        of_run = [each for each in report.places if each.is_as_of_run]
        if report.state in ("running", "killed") and not of_run:
            reason = "the run has not ended, and has not looked at everything"
            of_run = [unexamined_place(reason, f"refstore purge run {repo.name}")]
        report.places = [*lookup.find_places(report), *of_run]
        report.places_ms = lookup.now_ms


class _Spot(NamedTuple):
    """Where one content stands."""

    kind: PlaceKind
    reason: str = ""
    deletes_at_ms: int = 0
    restore_command: str = ""
    ending_command: str = ""


class _PlaceLookup:
    """What the store and the KV say of the contents of some runs now."""

    def __init__(self, ctx: Context, reports: Sequence[PurgeReport]) -> None:
        self._ctx = ctx
        self.now_ms = ctx.clock.now_ms()
        first = min((each.run for each in reports), default="~")
        self._written = {
            run: _read_contents(ctx.objects, key)
            for key in sorted(info.key for info in ctx.objects.list(CONTENTS))
            if (run := key.removeprefix(CONTENTS).removesuffix(".parquet")) >= first
        }
        """The contents of the reports' runs, and of later ones, in the order in which they began."""
        self.copies: dict[tuple[str, str], tuple[str, ...]] = {}
        """By prefix of the data set in which it was found, and address: whose bytes an object has."""
        self._sizes: dict[str, int] = {}
        """Of the contents that are there."""
        self._names: dict[str, ReferenceRecord] = {}
        self._holders: dict[str, tuple[HolderKind, str]] = {}
        """How firmly an object stands, and the branch or the commit."""
        # in the order in which objects move: what is taken back or committed meanwhile is found where it stands then
        self._scan_names(reports, self._look_up(reports))
        there = sorted({Address(each.identity) for each in self._look_up(reports)})
        self._records: dict[str, Location] = {}
        for page in split_batches(there if ctx.locations.are_announced() else []):
            records = ctx.locations.get_many(page)
            self._records |= {each: one for each, one in zip(page, records, strict=True) if one is not None}
        self._dates = CleanupSchedule.read(ctx) if self._records else None

    def _follow(self, report: PurgeReport) -> list[RunContent]:
        """Return a run's contents, and what has their bytes or rows since: copies, and what later runs have made of
        those that were live again, or still. Such a run removes the rows of its own ids alone.
        """
        found = {each.address: each for each in self._written.get(report.run, ())}
        if not found:
            return []
        followers: defaultdict[str, list[RunContent]] = defaultdict(list)
        for run, contents in self._written.items():
            for each in contents if run > report.run else ():
                new = RunContent(each.new_address, each.identity, each.dataset, each.prefix, 0, False, LATER)
                followers[each.address] += [new] if each.new_address else []
        datasets, examined = self._datasets_of(report), set(report.examined_copies)
        for (prefix, address), sources in self.copies.items():
            if prefix in datasets and address not in examined:
                new = RunContent(address, address, datasets[prefix], prefix, 0, False, COPIED)
                for source in sources:
                    followers[source].append(new)
        pending = [*found, ANY_SOURCE]
        for address in pending:  # the list grows while the loop runs
            new = {each.address: each for each in followers[address] if each.address not in found}
            found |= new
            pending += new
        return list(found.values())

    def _datasets_of(self, report: PurgeReport) -> dict[str, str]:
        """Return the names of a run's data sets, by their prefix; none, if it wrote no contents down."""
        contents = self._written.get(report.run)
        return {each.prefix: each.dataset for each in [*report.datasets, *contents]} if contents else {}

    def _look_up(self, reports: Sequence[PurgeReport]) -> list[RunContent]:
        """Look up contents in the store, and the references of their objects. Return those that are there."""
        contents = [each for report in reports for each in self._follow(report)]
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
        for name in scan_lost_names(self._ctx, prefixes):
            for prefix in prefixes:
                if name.path.startswith(prefix):
                    self._note_copy(prefix, name.entry, sources)
        for prefix in prefixes:
            self._scan_prefix(prefix, {each.identity for each in there if each.prefix == prefix}, sources)
        missing = {each.identity for each in there}.difference(self._holders)
        unknown = {each for each in missing if not isinstance(self._names.get(each), Emptied | Deleting | Issued)}
        if unknown:
            self._scan_prefix("", unknown, set())

    def _scan_prefix(self, prefix: str, identities: set[str], sources: set[str]) -> None:
        for name in scan_names(self._ctx, prefix=prefix):
            if self._note_copy(prefix, name.entry, sources) or name.address in identities:
                assert name.holder is not None  # noqa: S101  # a version has it
                found = (name.holder, name.ref)
                self._holders[name.address] = min(found, self._holders.get(name.address, found))  # of another prefix

    def _note_copy(self, prefix: str, entry: StoredEntry | None, sources: set[str]) -> bool:
        """Note an object that has bytes of these sources; return whether it has."""
        content = content_of(entry.s3) if entry is not None else None
        if entry is None or content is None or sources.isdisjoint(content.sources):
            return False
        self.copies[prefix, entry.address] = content.sources
        return True

    def find_places(self, report: PurgeReport) -> list[RemainingPlace]:
        """Return the places of a run's contents that are still there."""
        contents = self._follow(report)
        places: dict[tuple[object, ...], RemainingPlace] = {}
        reasons: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for content in sorted(contents, key=lambda each: each.address):
            if content.address not in self._sizes:
                continue
            spot, dataset = self._spot_of(content), content.dataset
            known, goes_ms = reasons[dataset, spot.kind], spot.deletes_at_ms
            if len(known) >= REASONS_MAX and spot.reason not in known:
                spot = spot._replace(reason="other reasons; see what was not purged")
            known.add(spot.reason)
            spot = spot._replace(deletes_at_ms=bool(goes_ms))
            place = places.setdefault(
                (dataset, not content.has_rows, spot),
                RemainingPlace(
                    kind=spot.kind,
                    dataset=dataset,
                    reason=spot.reason,
                    first_deletes_at_ms=goes_ms,
                    has_rows=content.has_rows,
                    restore_command=spot.restore_command,
                    ending_command=spot.ending_command,
                    addresses=[],
                ),
            )
            place.add(content.address, self._sizes[content.address], goes_ms)
        return [*(places[key] for key in sorted(places)), *self._version_places(contents)]

    def _version_places(self, contents: Sequence[RunContent]) -> list[RemainingPlace]:
        """Return the place of what a bucket keeps that was deleted, and will be."""
        having = [each for each in contents if each.has_rows]
        if not having:
            return []
        try:
            reason = self._ctx.objects.versioning_status().warning
        except RefstoreError as error:
            reason = f"whether the bucket keeps versions of what is deleted could not be asked: {error}"
        gone = [each.size_bytes for each in having if each.address not in self._sizes]
        place = RemainingPlace(kind="versions of the bucket", reason=reason, objects=len(gone), bytes=sum(gone))
        return [place] if reason else []

    def _spot_of(self, content: RunContent) -> _Spot:
        """Say where a content stands: live, or as a content that the record of its object names."""
        record, address = self._records.get(content.identity), Address(content.address)
        if record is not None and record.current is None:
            return _Spot("being deleted", "nothing names its object any more", ending_command=self._command("gc run"))
        if address == (content.identity if record is None or record.current is None else record.current.address):
            return self._live_spot_of(content)
        if record is None or self._dates is None:
            return self._unnamed_spot()
        is_held = content.identity in self._dates.held_addresses
        hold, clean = "until the legal hold that covers it ends" if is_held else "", self._command("purge clean")
        if address in record.pending_deletions:
            return _Spot("retired", hold, 0 if is_held else self.now_ms, ending_command=clean)
        ending = self._dates.expiries_of(record).get(address)
        if ending is None:
            return self._unnamed_spot()
        goes_ms, lost = 0 if is_held else ending.deletes_at_ms, self._names.get(content.identity)
        if isinstance(lost, Emptied) and content.identity not in self._holders:
            due_ms = may_delete_at_ms(lost, self._ctx.deletion_delays)
            if not goes_ms or due_ms < goes_ms:  # the reaper takes it with its object
                goes_ms, hold, clean = due_ms, "", REAPER
        if ending.kind == "attempts":
            return _Spot("attempts", hold, goes_ms, ending_command=clean)
        if ending.kind == "trash":
            restore = self._command("purge restore", "--backup ADDRESS")
            return _Spot("trash of restores", hold, goes_ms, restore, clean)
        run = next(one.replaced_by for one in record.backups if one.content.address == address)
        return _Spot("backups", hold, goes_ms, self._command("purge restore", run), clean)

    def _live_spot_of(self, content: RunContent) -> _Spot:
        """Say where an object stands whose current content this is."""
        holder, ref = self._holders.get(content.identity, (None, ""))
        name = self._names.get(content.identity)
        purge, night, restore = self._command("purge run"), self._command("gc run"), self._command("restore")
        if holder not in (None, HolderKind.SWEEP) and content.reason == PARTITION_LEFT_REASON:
            return _Spot("partitions left", "left by --max-partitions or --after", ending_command=purge)
        reason = _DETAILS.sub("", content.reason)
        if holder is HolderKind.BRANCH:
            reason = reason or "not purged, restored since, or come meanwhile"
            return _Spot("branches", reason, ending_command=purge)
        if holder is HolderKind.TAG:
            reason = reason or "until the tags and pins go, and the commits expire"
            return _Spot("tags and pins", reason, 0, self._command("revert"), night)
        if holder is HolderKind.COMMIT:
            return _Spot("earlier commits", reason or "until the commits expire", 0, self._command("revert"), night)
        if isinstance(name, Emptied):
            return _Spot("undo trash", "", may_delete_at_ms(name, self._ctx.deletion_delays), restore, REAPER)
        if holder is HolderKind.HIDDEN:
            return self._hidden_spot_of(BranchName(ref))
        if isinstance(name, Listed):
            return _Spot("undo trash", "its grace window begins when the reaper processes it", 0, restore, REAPER)
        if isinstance(name, Issued):
            return _Spot("issued", "", may_delete_at_ms(name, self._ctx.deletion_delays), "", REAPER)
        if isinstance(name, Deleting):
            return _Spot("being deleted", "the reaper has begun, and goes on", ending_command=REAPER)
        if holder is HolderKind.SWEEP:
            return _Spot("condemned by a sweep", "the sweep goes on", ending_command=night)
        return self._unnamed_spot()

    def _hidden_spot_of(self, branch: BranchName) -> _Spot:
        """Say who has an object on a hidden branch, and what to do."""
        try:
            lease_ms = self._ctx.branches.read_open(branch).record.lease_until_ms
        except BranchNotFound:  # it has ended since it was read
            lease_ms = self.now_ms
        if not lease_ms:
            reason = f"no run looks at {branch!r}: merge it and purge again, or delete it"
            return _Spot("hidden branches", reason, ending_command=self._command("branch delete", branch))
        over = f"when its lease has run out (now {format_utc(lease_ms)}), the reaper deletes the branch"
        if branch.startswith(HIDDEN_BRANCHES):
            return _Spot("hidden branches", f"{branch!r} is of a run; {over}", ending_command=REAPER)
        reason = f"{branch!r} is of a transaction: wait for its end, and purge again; or, {over}"
        return _Spot("hidden branches", reason, ending_command=self._command("purge run"))

    def _unnamed_spot(self) -> _Spot:
        reason = "nothing names it but commits that were swept; a full nightly run deletes it"
        return _Spot("unnamed", reason, ending_command=self._command("gc run", "--full"))

    def _command(self, command: str, *words: str) -> str:
        return " ".join(["refstore", command, self._ctx.name, *words])


def _read_contents(store: ObjectStore, key: str) -> list[RunContent]:
    """Return the contents that a run wrote down. Raises ObjectsUnavailable."""
    table = pq.ParquetFile(io.BytesIO(store.read(key))).read(use_threads=False)
    return [RunContent(**row) for row in table.to_pylist()]
