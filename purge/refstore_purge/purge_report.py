"""What a run did: one JSON document for each run, in the repository's namespace. It names paths, and never an id.

Before a run publishes, it writes to its report what, with what that counts. Whoever reads the report of a run that was
killed, or failed while it published, looks up what came of it: the records of locations name the run, and so do the
commits that landed on branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from refstore.core.batches import split_batches
from refstore.core.clock import format_utc
from refstore.core.ids import Address, own_address
from refstore.errors import Corrupt, NotFound, ObjectNotFound, RefstoreError
from refstore.monitoring.run_control import active_runs
from refstore.objects.base import ObjectStore
from refstore.public_types import stored_commit
from refstore.repository import Repository
from refstore_purge.outcomes import SUMMARY, ObjectOutcome
from refstore_purge.purge_plan import SkippedObject

RUNS: Final = "_refstore/purge/runs/"
PURGE_NOTE: Final = "purge"
"""The note of a commit that names the run."""
LISTED_MAX: Final = 10_000
"""How many objects that were not purged a report names; it counts all."""

ADDRESSES_MAX: Final = 1000
"""How many addresses a place lists; it counts all."""

REWRITTEN_OFTEN_BYTES: Final = 4 * 1024 * 1024
"""A report that is larger is written at most once a minute while its run lasts."""
REWRITTEN_SELDOM_SECONDS: Final = 60.0

ReportState = Literal["running", "done", "failed", "dry run", "killed"]
"""`killed` is what a reader makes of `running`, once no process is at work on the run any more."""


PlaceKind = Literal[
    "branches",
    "tags and pins",
    "earlier commits",
    "hidden branches",
    "undo trash",
    "being deleted",
    "issued",
    "condemned by a sweep",
    "backups",
    "trash of restores",
    "attempts",
    "retired",
    "unnamed",
    "partitions left",
    "outside",
    "versions of the bucket",
    "run",
]
"""What a place is: in which part of the repository the objects stand.

    branches                at a branch's head, or staged there
    tags and pins           in the tree of a tag or a commit that the rules keep, and at no head
    earlier commits         in the tree of another commit
    hidden branches         of a transaction, of a run that was killed, or made with `--hidden`
    undo trash              `refstore restore` brings them back
    being deleted           the reaper, or a sweep, has begun to delete them
    issued                  uploaded to an issued address, and not linked; or an upload in parts that is open
    condemned by a sweep    named by commits alone whose sweep began
    backups                 what a run replaced
    trash of restores       what a restore replaced
    attempts                what a run wrote that was killed
    retired                 taken off their records, and not deleted by the store yet
    unnamed                 nothing names them any more
    partitions left         by `--max-partitions` or `--after`
    outside                 outside the repository
    versions of the bucket  which keeps what is deleted
    run                     the run has not ended, so nobody has looked
"""


class PartitionRow(msgspec.Struct, kw_only=True):
    """A partition of a data set. Distinct contents are counted, each once, however many names it has and however often
    it was tried. Only `read_bytes` and `index_bytes` have what all attempts read and wrote.
    """

    dataset: str
    partition: str
    objects: int = 0
    by_partition: int = 0
    """Objects whose partition told whether all of their rows are of the ids, or none."""
    by_index: int = 0
    """Objects whose index told that no id is in them."""
    by_statistics: int = 0
    """Objects whose statistics told that no id is in them."""
    by_column: int = 0
    """Objects whose column was read."""
    matched_objects: int = 0
    """Objects with rows of the ids, or with an id in their key-value metadata."""
    matched_rows: int = 0
    """Rows of the ids in them."""
    matched_entries: int = 0
    """Entries with an id in the key-value metadata of Parquet, ORC and Avro."""
    rewritten_objects: int = 0
    erased_objects: int = 0
    """Objects that cannot be rewritten, of which the content goes."""
    rewritten_summaries: int = 0
    """Summary files of Parquet (`_metadata`) that were written again; in a dry run those that would be."""
    failed_objects: int = 0
    rows_before: int = 0
    """Of the rewritten objects."""
    rows_changed: int = 0
    """Removed, or with columns set to null."""
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    read_bytes: int = 0
    index_bytes: int = 0
    """Of the indexes that were written."""
    attempts: int = 0

    def add(self, outcome: ObjectOutcome) -> None:
        """Count an outcome."""
        result = outcome.result
        if outcome.kind == "replaced":
            self._add_replaced(outcome)
            return
        self.read_bytes += result.read_bytes
        if outcome.kind != "searched":
            return
        self.objects += 1
        if result.failure:
            return
        self.by_partition += result.decided_by == "partition"
        self.by_index += result.decided_by == "index"
        self.index_bytes += result.index_bytes
        self.by_statistics += result.decided_by == "statistics"
        self.by_column += result.decided_by == "column"
        self.matched_objects += result.has_ids
        self.matched_entries += result.matched_entries
        if result.decided_by != "name":
            self.matched_rows += result.matched_rows

    def _add_replaced(self, outcome: ObjectOutcome) -> None:
        result = outcome.result
        if result.decided_by == SUMMARY:  # its rows and bytes are not counted
            self.rewritten_summaries += 1
            return
        self.bytes_before += outcome.size_bytes
        if not result.target_address:
            self.erased_objects += 1
            return
        self.rewritten_objects += 1
        self.rows_before += result.rows
        self.rows_changed += result.matched_rows
        self.rows_after += result.rows - (0 if outcome.keeps_rows else result.matched_rows)
        self.bytes_after += result.size_bytes


class PublishedCommit(msgspec.Struct, frozen=True):
    """The commit that brought a run's rewritten objects to a branch."""

    branch: str
    commit: str
    paths: int


class DatasetResult(msgspec.Struct, kw_only=True):
    """Whether a run could look at a data set at all."""

    dataset: str
    prefix: str
    mode: str
    objects: int = 0
    """Distinct contents that were looked at."""
    untouched_reason: str = ""
    """Why no row of it was looked at; a mistyped prefix or identifier is the usual cause. '': some were."""


class RemainingPlace(msgspec.Struct, kw_only=True):
    """Objects that still have rows of the ids."""

    kind: PlaceKind
    dataset: str = ""
    """'': of several, or of none."""
    reason: str = ""
    """Why they are there, and what ends it where there is no date."""
    objects: int = 0
    bytes: int = 0
    first_deletes_at_ms: int = 0
    """The date of the object that goes first."""
    deletes_at_ms: int = 0
    """The date of the last one: the first cleaning at it or after deletes it, and none before. 0: there is no date."""
    has_rows: bool = True
    """False: nobody has looked into these objects."""
    restore_command: str = ""
    """The command that brings them back; '': they are live, or nothing does."""
    ending_command: str = ""
    """The command that ends it; '': there is none."""
    is_as_of_run: bool = False
    """Whether it is shown as the run saw it."""
    addresses: list[str] = []
    """The first `ADDRESSES_MAX`, in order."""

    def add(self, address: str, size_bytes: int, deletes_at_ms: int) -> None:
        """Count an object. `deletes_at_ms`: 0 of all objects of a place without a date."""
        self.first_deletes_at_ms = min(self.first_deletes_at_ms, deletes_at_ms) if self.objects else deletes_at_ms
        self.deletes_at_ms = max(self.deletes_at_ms, deletes_at_ms)
        self.objects += 1
        self.bytes += size_bytes
        if len(self.addresses) < ADDRESSES_MAX:
            self.addresses.append(address)

    @property
    def explanation(self) -> str:
        """Say why the objects are there, and whether anybody looked into them."""
        return self.reason if self.has_rows else "; ".join(filter(None, ["not looked into", self.reason]))


def unexamined_place(reason: str, ending_command: str = "", dataset: str = "") -> RemainingPlace:
    """Return a place at which the run did not look, as the run saw it."""
    return RemainingPlace(
        kind="run", dataset=dataset, reason=reason, has_rows=False, ending_command=ending_command, is_as_of_run=True
    )


class PurgeReport(msgspec.Struct, kw_only=True):
    """What a run did, what it left, and where rows of its ids still are. Times are milliseconds since the epoch."""

    run: str
    state: ReportState
    engine: str = ""
    """What found and rewrote: `local` or `spark`."""
    began_ms: int
    ended_ms: int = 0
    ids: int = 0
    """How many there are."""
    is_from_ledger: bool = False
    """Whether they are those of the ledger."""
    datasets: list[DatasetResult] = []
    rows: list[PartitionRow] = []
    pending_replacements: list[ObjectOutcome] = []
    """What is being published while this is written, and does not count yet. If the run ends then, `complete_report`
    finds out what came of it.
    """
    heads: dict[str, str] = {}
    """The head of each branch that is being published to, as the run looked at it: its commit lies upon that."""
    published_commits: list[PublishedCommit] = []
    skipped_objects: list[SkippedObject] = []
    skipped_count: int = 0
    watermark: str = ""
    """The partition up to which everything was done, as `prefix` and `partition` in one; '': everything."""
    partitions_left: int = 0
    """How many were left out: those behind the watermark, and those up to that of `--after`."""
    seconds: dict[str, float] = {}
    """How long each step took."""
    failure: str = ""
    places: list[RemainingPlace] = []
    """Where rows of the ids still are; none is left: the erasure is final."""
    places_ms: int = 0
    """When that was looked up."""
    examined_copies: list[str] = []
    """What has bytes of places, and was looked into by the run: it is no place itself, unless it is listed."""
    unexamined: list[str] = []
    """What no run looks at, and what becomes of it."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left that a later run could purge."""
        return self.state in ("done", "dry run") and not (
            self.failure or self.watermark or self.skipped_count or any(row.failed_objects for row in self.rows)
        )

    @property
    def is_done(self) -> bool:
        """Whether it is whole, and every data set had rows to look at: then the exit code is 0."""
        return self.is_whole and not any(each.untouched_reason for each in self.datasets)

    @property
    def is_final(self) -> bool:
        """Whether no row of the ids is left anywhere that the run knows of."""
        return self.state == "done" and not self.places

    @property
    def ending_text(self) -> str:
        """Say whether the erasure is final, and if not, when it will be. A dry run says nothing."""
        if self.state == "dry run":
            return ""
        if self.is_final:
            return "final: no place that was looked at has rows of the ids any more"
        dates = [place.deletes_at_ms for place in self.places]
        if not dates:
            return "not final: the run has not ended"
        having = sum(place.has_rows for place in self.places)
        left = {0: "", 1: "one place still has rows of the ids"}.get(
            having, f"{having:,} places still have rows of the ids"
        )
        unexamined = {0: "", 1: "one place was not looked into"}.get(
            len(dates) - having, f"{len(dates) - having:,} places were not looked into"
        )
        count, undated = " and ".join(filter(None, (left, unexamined))), dates.count(0)
        if undated:
            return f"not final: {count}, {undated:,} of them without a date"
        return f"not final: {count}; the last of them goes with the first cleaning after {format_utc(max(dates))}"


def write_report(store: ObjectStore, report: PurgeReport) -> int:
    """Write the report; the latest one of a run counts. Return its size. Raises ObjectsUnavailable."""
    body = msgspec.json.format(msgspec.json.encode(report), indent=1)
    store.put(f"{RUNS}{report.run}.json", body)
    return len(body)


def read_report(repo: Repository, run: str = "") -> PurgeReport:
    """Return the report of a run; '': of the latest. Raises NotFound, Corrupt."""
    runs = [info.key for info in repo.context.objects.list(RUNS)]
    key = f"{RUNS}{run}.json" if run else max(runs, default="")
    if key not in runs:
        raise NotFound(
            f"repository {repo.name!r} has no run {run!r} of the purge; `refstore purge status {repo.name}` lists them"
            if run
            else f"no purge was run in repository {repo.name!r}; run: refstore purge run {repo.name} --ids FILE"
        )
    return _read_by_key(repo, key)


def scan_reports(repo: Repository) -> Iterator[PurgeReport]:
    """Yield the reports of all runs, the newest first. Raises Corrupt."""
    for key in sorted((info.key for info in repo.context.objects.list(RUNS)), reverse=True):
        yield _read_by_key(repo, key)


def _read_by_key(repo: Repository, key: str) -> PurgeReport:
    """Return a report. One that says `running` is read again behind the look at the runs under way: the run may have
    ended in between.
    """
    report = _decode(repo, key)
    if report.state == "running" and not _is_alive(repo, report.run):
        report = _decode(repo, key)
        if report.state == "running":
            report.state = "killed"
            complete_report(repo, report)
    return report


def complete_report(repo: Repository, report: PurgeReport) -> None:
    """Bring a run's report to what it had published. What cannot be looked up counts as not published."""
    with suppress(RefstoreError):
        landed = _find_landed_commits(repo, report)
        branches = {each.branch for each in landed}
        of_versions = [each for each in report.pending_replacements if not each.branches]
        replaced = _find_in_locations(repo, report.run, of_versions)
        replaced += [each for each in report.pending_replacements if not branches.isdisjoint(each.branches)]
        rows = {(row.dataset, row.partition): row for row in report.rows}
        for each in replaced:
            new = PartitionRow(dataset=each.dataset, partition=each.partition)
            rows.setdefault((each.dataset, each.partition), new).add(each)
        report.rows = list(rows.values())
        report.published_commits += landed
    report.pending_replacements, report.heads = [], {}


def _find_landed_commits(repo: Repository, report: PurgeReport) -> list[PublishedCommit]:
    """Return the commits of the run that its report does not have yet.

    A branch is followed to the head that the run had looked at. Dates do not tell how far: who commits upon the run's
    commit may give a date.
    """
    known = {each.commit for each in report.published_commits}
    found: list[PublishedCommit] = []
    for branch, head in sorted(report.heads.items()):
        with suppress(RefstoreError):  # the branch is gone
            for commit in repo.log(branch, first_parent=True):
                if commit.id == head:
                    break
                if stored_commit(commit).notes.get(PURGE_NOTE) == report.run and commit.id not in known:
                    paths = sum(1 for _ in repo.diff(commit.parents[0], to=commit.id))
                    found.append(PublishedCommit(branch, commit.id, paths))
    return found


def _find_in_locations(repo: Repository, run: str, items: Sequence[ObjectOutcome]) -> list[ObjectOutcome]:
    """Return what the records of locations have as a content, or as a backup, of the run."""
    found: list[ObjectOutcome] = []
    for page in split_batches(items):
        records = repo.context.locations.get_many([own_address(each.identity) for each in page])
        for each, record in zip(page, records, strict=True):
            if record is not None and any(
                one.run == run and one.address == Address(each.result.target_address) for one in record.contents()
            ):
                found.append(each)
    return found


def _is_alive(repo: Repository, run: str) -> bool:
    return any(each.run_id == run and each.is_alive for each in active_runs(repo.context))


def _decode(repo: Repository, key: str) -> PurgeReport:
    try:
        return msgspec.json.decode(repo.context.objects.read(key), type=PurgeReport)
    except ObjectNotFound:
        raise NotFound(f"the report {key} has just been removed") from None
    except msgspec.DecodeError as error:
        raise Corrupt(f"the report {key} cannot be read ({error}); remove it, or restore it from a backup") from error
