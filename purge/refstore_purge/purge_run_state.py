"""What a run of the purge is given, and what it knows so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from refstore.core.batches import split_sized
from refstore.errors import ObjectsUnavailable
from refstore.purge_document.document import KEEP_HISTORY
from refstore.repository import Repository
from refstore_gc.engines.base import Engine
from refstore_gc.run_progress import RunSteps
from refstore_purge import id_index
from refstore_purge.dataset_ids import DatasetIds
from refstore_purge.formats.base import FormatTask
from refstore_purge.purge_plan import BranchPath, Partition, PurgeObject, PurgePlan, SkippedObject, describe_names
from refstore_purge.purge_report import (
    LISTED_MAX,
    REWRITTEN_OFTEN_BYTES,
    REWRITTEN_SELDOM_SECONDS,
    PartitionRow,
    PurgeReport,
    Replacement,
    write_report,
)
from refstore_purge.purge_tasks import ObjectResult, ObjectTask
from refstore_purge.remaining_places import Place, RunContent

ATTEMPTS: Final = 3
SUMMARY: Final = "summary"
"""What the result of writing a summary file of Parquet again says it was told by."""
SHARE: Final = 0.5
FLOOR_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions:
    ids: Path | None
    """Their file (`ids_file.IdsFile`). None: look for the ids of the ledger, which needs a key."""
    id_column: str = ""
    dataset_column: str = ""
    delimiter: str = ","
    has_no_header: bool = False
    takes_empty_id: bool = False
    id_type: str = ""
    """'': as the file has them."""
    datasets: tuple[str, ...] = ()
    """Purge only these. None given: all that are onboarded and have ids."""
    dry_run: bool = False
    """Find, and write nothing but the report."""
    max_partitions: int | None = None
    """How many partitions this run does at most."""
    after: str = ""
    """The watermark of an earlier run: partitions up to it are left out."""
    includes_copies: bool = False
    """Whether names outside the data sets are given the rewritten object, too."""
    ignores_statistics: bool = False
    """Whether columns are read also where the files' statistics say that none of the ids is in them."""
    share: float = SHARE
    """Stop if more than this share of the rows that were looked at would go."""
    floor_rows: int = FLOOR_ROWS
    """Fewer rows never stop a run."""
    purge_key: bytes | None = field(default=None, repr=False)
    """The key of the index (`refstore.purge_document.purge_key`). None: no index is read or written."""


@dataclass(slots=True)
class PurgeRunState:
    """What a run knows so far."""

    report: PurgeReport
    saved_at_seconds: float = 0.0
    """When the report was written last."""
    saved_bytes: int = 0
    results: dict[str, ObjectResult] = field(default_factory=dict[str, ObjectResult])
    """By address of the content, which never changes; so it is looked at once."""
    rows: dict[str, PartitionRow] = field(default_factory=dict[str, PartitionRow])
    """By the watermark of each partition."""
    counted_contents: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """(data set, address) of each content that was replaced and is counted."""
    datasets_without_identifier: set[str] = field(default_factory=set[str])
    """The data sets of which an object has rows, and no identifier in any of them."""
    present_datasets: set[str] = field(default_factory=set[str])
    """The data sets below whose prefix anything lies."""
    identified_datasets: set[str] = field(default_factory=set[str])
    """The data sets of which any object has the identifier: as a column, in a name, or in its metadata."""
    unusable_datasets: list[SkippedObject] = field(default_factory=list[SkippedObject])
    """The data sets for which the ids cannot be used."""
    skipped_by_branch: dict[str, list[SkippedObject]] = field(default_factory=dict[str, list[SkippedObject]])
    """What the latest plan of each branch leaves alone (mode `keep-history`)."""
    skipped_in_versions: list[SkippedObject] = field(default_factory=list[SkippedObject])
    """What the latest plan of every version leaves alone (modes `rewrite` and `erase`)."""
    failures: dict[str, SkippedObject] = field(default_factory=dict[str, SkippedObject])
    by_partition: dict[str, bool] = field(default_factory=dict[str, bool])
    """By watermark, if its partition has the identifier's value: whether that is one of the ids."""
    indexes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The sizes of indexes, by their folder and the content's address."""
    examined_contents: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By data set, the contents that were looked into, or written."""
    contents: list[RunContent] = field(default_factory=list[RunContent])
    """What has rows of the ids, or could not be looked into. Where that stands is looked up for the report."""
    unpublished_objects: set[str] = field(default_factory=set[str])
    """Objects at heads whose branches did not take the run's commit."""
    places: list[Place] = field(default_factory=list[Place])
    """Places that cannot be looked up later, as the run saw them."""
    watermark: str | None = None
    """The watermark that `max_partitions` sets, if it leaves partitions to a later run."""
    partitions_left: int = 0
    """How many this run leaves out, also by the watermark of an earlier one."""

    def note_plan(self, plan: PurgePlan, branches: Collection[str] = ()) -> None:
        """Keep what a plan saw and leaves alone, which takes the place of what an earlier one said of the same.
        `branches`: those that were to be looked at, and may be gone.
        """
        self.present_datasets |= plan.present_datasets
        self.identified_datasets |= plan.identified_datasets
        if plan.is_of_versions:
            self.skipped_in_versions = plan.skipped_objects
        for branch in {*plan.heads, *branches}:
            self.skipped_by_branch[branch] = [each for each in plan.skipped_objects if each.branch == branch]

    def update_report(self) -> None:
        """Bring the report to what is known by now."""
        made = self.report
        made.rows = [self.rows[key] for key in sorted(self.rows)]
        every = [
            *self.unusable_datasets,
            *(each for branch in self.skipped_by_branch.values() for each in branch),
            *self.skipped_in_versions,
            *self.failures.values(),
        ]
        made.skipped_objects, made.skipped_count = every[:LISTED_MAX], len(every)


@dataclass(frozen=True, slots=True)
class PurgeRun:
    repo: Repository
    engine: Engine
    options: PurgeOptions
    steps: RunSteps
    state: PurgeRunState
    ids: DatasetIds
    key: id_index.IndexKey | None

    def move_to(self, engine: Engine) -> PurgeRun:
        """Return the run on another engine, between two steps."""
        self.steps.use_engine(engine)
        self.state.report.engine = engine.name
        return replace(self, engine=engine)

    def report_row(self, unit: Partition) -> PartitionRow:
        """Return the row of the report for a partition."""
        return self.state.rows.setdefault(
            unit.watermark, PartitionRow(dataset=unit.dataset.name, partition=unit.partition)
        )

    def report_failure(self, unit: Partition, piece: PurgeObject, reason: str) -> None:
        """Report an object as not purged; the first reason counts."""
        if piece.address not in self.state.failures:
            self.report_row(unit).failed_objects += 1
            self.state.failures[piece.address] = SkippedObject(*piece.names[0], reason)

    def report_copy(self, unit: Partition, piece: PurgeObject, names: Sequence[BranchPath]) -> None:
        """Report an object as not purged, because it has names outside the data sets."""
        where = describe_names(names)
        reason = f"it is also named outside the data sets of this run ({where}); run again with --including-copies"
        self.report_failure(unit, piece, reason)

    def announce_replacements(self, items: Sequence[tuple[Partition, PurgeObject, ObjectResult]]) -> None:
        """Write to the report what is published next. `items`: with the contents that are replaced."""
        counted = self.state.counted_contents
        self.state.report.pending_replacements = [
            _make_replacement(unit, piece, done, is_counted=(unit.dataset.name, piece.content_address) in counted)
            for unit, piece, done in items
        ]
        self.save()

    def count_replaced(self, unit: Partition, piece: PurgeObject, done: ObjectResult) -> None:
        """Count an object whose new content was published, once; a reason why an earlier attempt failed is void."""
        row, state = self.report_row(unit), self.state
        if state.failures.pop(piece.address, None) is not None:
            row.failed_objects -= 1
        if (unit.dataset.name, piece.content_address) not in state.counted_contents:
            state.counted_contents.add((unit.dataset.name, piece.content_address))
            row.add(_make_replacement(unit, piece, done))

    def end_publishing(self) -> None:
        """Note that what was announced has been published and counted, or came to nothing."""
        self.state.report.pending_replacements = []
        self.save()

    def save(self) -> None:
        """Write what the run has done so far, for the case that it is killed. A store that refuses it stops nothing."""
        state, seconds = self.state, time.monotonic()
        if state.saved_bytes > REWRITTEN_OFTEN_BYTES and seconds - state.saved_at_seconds < REWRITTEN_SELDOM_SECONDS:
            return
        state.update_report()
        state.report.seconds = self.steps.seconds
        with suppress(ObjectsUnavailable):
            state.saved_bytes = write_report(self.repo.context.objects, state.report)
        state.saved_at_seconds = seconds

    def note_examined(self, unit: Partition, address: str) -> None:
        """Note that a content was looked into, or written."""
        self.state.examined_contents.setdefault(unit.dataset.name, set()).add(address)

    def note_remaining(self, unit: Partition, piece: PurgeObject, *, reason: str = "", to: str = "") -> None:
        """Note a content that has rows of the ids. `reason`: why nobody could look into it. `to`: where it was written
        again.
        """
        dataset, content = unit.dataset, piece.content_address
        if to:
            self.note_examined(unit, to)
        self.state.contents.append(
            RunContent(content, piece.address, dataset.name, dataset.prefix, piece.size_bytes, not reason, reason, to)
        )

    def select_partitions(self, units: Sequence[Partition]) -> list[Partition]:
        """Return the units after the watermark of an earlier run, up to that of this one."""
        until = self.state.watermark
        return [
            unit for unit in units if unit.watermark > self.options.after and (until is None or unit.watermark <= until)
        ]

    def batch_objects(
        self, todo: Sequence[tuple[Partition, PurgeObject]], per_part: int, part_bytes: int = sys.maxsize
    ) -> Iterator[Sequence[tuple[Partition, PurgeObject]]]:
        """Yield what each call of the engine does: for each core at most so many objects, of about so many bytes."""
        parts = self.engine.parallelism
        jobs = list(
            split_sized(todo, lambda item: item[1].size_bytes, size_max=parts * part_bytes, items_max=parts * per_part)
        )
        for number, job in enumerate(jobs):
            self.steps.set_call(number, len(jobs))
            yield job

    def make_task(self, unit: Partition, piece: PurgeObject, *, to: str = "") -> ObjectTask:
        """Return an object's work for a task. `to`: where to write it again; '': only look for the ids."""
        dataset = unit.dataset
        assert dataset.format is not None  # noqa: S101  # the document's check says so for what tasks work on
        return ObjectTask(
            address=piece.content_address,
            size_bytes=piece.size_bytes,
            format=dataset.format,
            ids=self.ids.set_name_of(dataset),
            format_task=FormatTask(
                tuple(dataset.identifier.split(".")),
                dataset.map_part,
                tuple(tuple(name.split(".")) for name in dataset.set_null),
                matches_every_row=self.state.by_partition.get(unit.watermark, False),
                ignores_statistics=self.options.ignores_statistics,
            ),
            target_address=to,
            may_be_gone=dataset.mode != KEEP_HISTORY,
        )

    def with_index(self, work: ObjectTask, unit: Partition) -> ObjectTask:
        """Return the work with the place of its object's index."""
        if self.key is None or work.format_task.matches_every_row:
            return work
        folder = id_index.index_folder(self.key, unit.dataset, self.ids.ids_of(unit.dataset).kind)
        sizes = self.state.indexes.get(folder, {})
        return msgspec.structs.replace(
            work, index_key=f"{folder}{work.address}", index_bytes=sizes.get(work.address, 0)
        )

    def delete_indexes(self, pieces: Sequence[tuple[Partition, PurgeObject]]) -> None:
        """Delete the indexes of what was replaced. Raises ObjectsUnavailable."""
        works = [self.with_index(self.make_task(unit, piece), unit) for unit, piece in pieces]
        self.repo.context.objects.delete_many([work.index_key for work in works if work.index_key])


def _make_replacement(
    unit: Partition, piece: PurgeObject, done: ObjectResult, *, is_counted: bool = False
) -> Replacement:
    branches = [name.branch for name in piece.names] if unit.dataset.mode == KEEP_HISTORY else []
    return Replacement(
        dataset=unit.dataset.name,
        partition=unit.partition,
        identity=piece.address,
        new_address=done.target_address,
        branches=branches,
        is_counted=is_counted,
        is_summary=done.decided_by == SUMMARY,
        rows_before=done.rows,
        rows_changed=done.matched_rows,
        rows_after=done.rows - (0 if unit.dataset.set_null else done.matched_rows),
        bytes_before=piece.size_bytes,
        bytes_after=done.size_bytes,
    )
