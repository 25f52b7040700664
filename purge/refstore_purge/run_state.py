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

from refstore.errors import ObjectsUnavailable
from refstore.purging.document import KEEP_HISTORY
from refstore.repository import Repository
from refstore_gc.engines.base import Engine
from refstore_gc.run_progress import Steps
from refstore_purge import index
from refstore_purge.dataset_ids import DatasetIds
from refstore_purge.place import Place, RunContent
from refstore_purge.plan import NotPurged, Piece, Plan, Unit
from refstore_purge.report import (
    LISTED_MAX,
    REWRITTEN_OFTEN_BYTES,
    REWRITTEN_SELDOM_SECONDS,
    Replacement,
    Report,
    Row,
    write,
)
from refstore_purge.tasks import Done, Work

ATTEMPTS: Final = 3
SUMMARY: Final = "summary"
"""What the result of writing a summary file of Parquet again says it was told by."""
SHARE: Final = 0.5
FLOOR_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    ids: Path | None
    """Their table: Parquet, CSV or JSON lines. None: look for the ids of the ledger, which needs a key."""
    id_column: str = ""
    """'': the only one. Of CSV without a header: its number, from 1."""
    dataset_column: str = ""
    """Which column names the data set of each id; '': none, the ids are for all. Likewise a number."""
    no_header: bool = False
    """Whether the first line of a CSV file is an id."""
    empty_id: bool = False
    """Whether a value that is empty, and not null, is an id, too."""
    id_type: str = ""
    """'': as the table has them."""
    datasets: tuple[str, ...] = ()
    """Purge only these. None given: all that are onboarded and have ids."""
    dry_run: bool = False
    """Find, and write nothing but the report."""
    max_units: int | None = None
    """How many partitions this run does at most."""
    after: str = ""
    """The watermark of an earlier run: partitions up to it are left out."""
    including_copies: bool = False
    """Whether names outside the data sets are given the rewritten object, too."""
    ignore_statistics: bool = False
    """Whether columns are read also where the files' statistics say that none of the ids is in them."""
    share: float = SHARE
    """Stop if more than this share of the rows that were looked at would go."""
    floor_rows: int = FLOOR_ROWS
    """Fewer rows never stop a run."""
    purge_key: bytes | None = field(default=None, repr=False)
    """The key of the index (`refstore.purging.key`). None: no index is read or written."""


@dataclass(slots=True)
class State:
    """What a run knows so far."""

    report: Report
    saved: float = 0.0
    """When the report was written last."""
    saved_bytes: int = 0
    found: dict[str, Done] = field(default_factory=dict[str, Done])
    """By address of the content, which never changes; so it is looked at once."""
    rows: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row])
    counted: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """(data set, address) of each content that was replaced and is counted."""
    lacking: set[str] = field(default_factory=set[str])
    """The data sets of which an object has rows, and no identifier in any of them."""
    seen: set[str] = field(default_factory=set[str])
    """The data sets below whose prefix anything lies."""
    identified: set[str] = field(default_factory=set[str])
    """The data sets of which any object has the identifier: as a column, in a name, or in its metadata."""
    unclear: list[NotPurged] = field(default_factory=list[NotPurged])
    """The data sets for which the ids cannot be used."""
    left_by_branch: dict[str, list[NotPurged]] = field(default_factory=dict[str, list[NotPurged]])
    """What the latest plan of each branch leaves alone (mode `keep-history`)."""
    left_in_versions: list[NotPurged] = field(default_factory=list[NotPurged])
    """What the latest plan of every version leaves alone (modes `rewrite` and `erase`)."""
    failures: dict[str, NotPurged] = field(default_factory=dict[str, NotPurged])
    by_partition: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    """By unit, if its partition has the identifier's value: whether that is one of the ids."""
    indexes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The sizes of indexes, by their folder and the content's address."""
    looked_at: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By data set, the contents that were looked into, or written."""
    contents: list[RunContent] = field(default_factory=list[RunContent])
    """What has rows of the ids, or could not be looked into. Where that stands is looked up for the report."""
    unpublished: set[str] = field(default_factory=set[str])
    """Objects at heads whose branches did not take the run's commit."""
    places: list[Place] = field(default_factory=list[Place])
    """Places that cannot be looked up later, as the run saw them."""
    until: str | None = None
    """The watermark that `max_units` sets, if it leaves partitions to a later run."""
    units_left: int = 0
    """How many it leaves."""

    def note_plan(self, plan: Plan, branches: Collection[str] = ()) -> None:
        """Keep what a plan saw and leaves alone, which takes the place of what an earlier one said of the same.
        `branches`: those that were to be looked at, and may be gone.
        """
        self.seen |= plan.seen
        self.identified |= plan.identified
        if plan.is_of_versions:
            self.left_in_versions = plan.not_purged
        for branch in {*plan.heads, *branches}:
            self.left_by_branch[branch] = [each for each in plan.not_purged if each.branch == branch]

    def put_together(self) -> None:
        """Bring the report to what is known by now."""
        made = self.report
        made.rows = [self.rows[key] for key in sorted(self.rows)]
        every = [
            *self.unclear,
            *(each for branch in self.left_by_branch.values() for each in branch),
            *self.left_in_versions,
            *self.failures.values(),
        ]
        made.not_purged, made.not_purged_count = every[:LISTED_MAX], len(every)


@dataclass(frozen=True, slots=True)
class PurgeRun:
    repo: Repository
    engine: Engine
    options: Options
    steps: Steps
    state: State
    ids: DatasetIds
    key: index.Key | None

    def move_to(self, engine: Engine) -> PurgeRun:
        """Return the run on another engine, between two steps."""
        self.steps.use(engine)
        self.state.report.engine = engine.name
        return replace(self, engine=engine)

    def row(self, unit: Unit) -> Row:
        """Return the row of the report for a partition."""
        return self.state.rows.setdefault(unit.order, Row(dataset=unit.dataset.name, partition=unit.partition))

    def fail(self, unit: Unit, piece: Piece, reason: str) -> None:
        """Report an object as not purged; the first reason counts."""
        if piece.address not in self.state.failures:
            self.row(unit).failed += 1
            self.state.failures[piece.address] = NotPurged(*piece.names[0], reason)

    def announce(self, items: Sequence[tuple[Unit, Piece, Done]]) -> None:
        """Write to the report what is published next. `items`: with the contents that are replaced."""
        counted = self.state.counted
        self.state.report.publishing = [
            _replacement(unit, piece, done, is_counted=(unit.dataset.name, piece.content) in counted)
            for unit, piece, done in items
        ]
        self.save()

    def count(self, unit: Unit, piece: Piece, done: Done) -> None:
        """Count an object whose new content was published, once; a reason why an earlier attempt failed is void."""
        row, state = self.row(unit), self.state
        if state.failures.pop(piece.address, None) is not None:
            row.failed -= 1
        if (unit.dataset.name, piece.content) not in state.counted:
            state.counted.add((unit.dataset.name, piece.content))
            row.add(_replacement(unit, piece, done))

    def end_publishing(self) -> None:
        """Note that what was announced has been published and counted, or came to nothing."""
        self.state.report.publishing = []
        self.save()

    def save(self) -> None:
        """Write what the run has done so far, for the case that it is killed. A store that refuses it stops nothing."""
        state, seconds = self.state, time.monotonic()
        if state.saved_bytes > REWRITTEN_OFTEN_BYTES and seconds - state.saved < REWRITTEN_SELDOM_SECONDS:
            return
        state.put_together()
        state.report.seconds = self.steps.seconds
        with suppress(ObjectsUnavailable):
            state.saved_bytes = write(self.repo.context.objects, state.report)
        state.saved = seconds

    def see(self, unit: Unit, address: str) -> None:
        """Note that a content was looked into, or written."""
        self.state.looked_at.setdefault(unit.dataset.name, set()).add(address)

    def note(self, unit: Unit, piece: Piece, *, reason: str = "", to: str = "") -> None:
        """Note a content that has rows of the ids. `reason`: why nobody could look into it. `to`: where it was written
        again.
        """
        dataset, content = unit.dataset, piece.content
        if to:
            self.see(unit, to)
        self.state.contents.append(
            RunContent(content, piece.address, dataset.name, dataset.prefix, piece.size_bytes, not reason, reason, to)
        )

    def chosen(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the units after the watermark of an earlier run, up to that of this one."""
        until = self.state.until
        return [
            unit for unit in units if unit.watermark > self.options.after and (until is None or unit.watermark <= until)
        ]

    def jobs(
        self, todo: Sequence[tuple[Unit, Piece]], per_part: int, part_bytes: int = sys.maxsize
    ) -> Iterator[Sequence[tuple[Unit, Piece]]]:
        """Yield what each call of the engine does: for each core at most so many objects, of about so many bytes."""
        parts = self.engine.parts
        jobs: list[list[tuple[Unit, Piece]]] = []
        size = 0
        for unit, piece in todo:
            if not jobs or len(jobs[-1]) >= parts * per_part or size + piece.size_bytes > parts * part_bytes:
                jobs.append([])
                size = 0
            jobs[-1].append((unit, piece))
            size += piece.size_bytes
        for number, job in enumerate(jobs):
            self.steps.of_jobs(number, len(jobs))
            yield job

    def work(self, unit: Unit, piece: Piece, *, to: str = "") -> Work:
        """Return an object's work for a task. `to`: where to write it again; '': only look for the ids."""
        dataset = unit.dataset
        assert dataset.format is not None  # noqa: S101  # the document's check says so for what tasks work on
        return Work(
            address=piece.content,
            size_bytes=piece.size_bytes,
            format=dataset.format,
            ids=self.ids.set_of(dataset),
            identifier=tuple(dataset.identifier.split(".")),
            map_part=dataset.map_part,
            set_null=tuple(tuple(name.split(".")) for name in dataset.set_null),
            every_row=self.state.by_partition.get(unit.order, False),
            ignore_statistics=self.options.ignore_statistics,
            to=to,
            may_be_gone=dataset.mode != KEEP_HISTORY,
        )

    def indexed(self, work: Work, unit: Unit) -> Work:
        """Return the work with the place of its object's index."""
        if self.key is None or work.every_row:
            return work
        folder = index.folder_of(self.key, unit.dataset, self.ids.of(unit.dataset).kind)
        sizes = self.state.indexes.get(folder, {})
        return msgspec.structs.replace(work, index=f"{folder}{work.address}", index_bytes=sizes.get(work.address, 0))

    def delete_indexes(self, pieces: Sequence[tuple[Unit, Piece]]) -> None:
        """Delete the indexes of what was replaced. Raises ObjectsUnavailable."""
        works = [self.indexed(self.work(unit, piece), unit) for unit, piece in pieces]
        index.delete(self.repo.context.objects, [work.index for work in works if work.index])


def _replacement(unit: Unit, piece: Piece, done: Done, *, is_counted: bool = False) -> Replacement:
    branches = [name.branch for name in piece.names] if unit.dataset.mode == KEEP_HISTORY else []
    return Replacement(
        dataset=unit.dataset.name,
        partition=unit.partition,
        identity=piece.address,
        content=piece.content,
        to=done.to,
        branches=branches,
        is_counted=is_counted,
        is_summary=done.by == SUMMARY,
        rows_before=done.rows,
        rows_changed=done.matched,
        rows_after=done.rows - (0 if unit.dataset.set_null else done.matched),
        bytes_before=piece.size_bytes,
        bytes_after=done.size_bytes,
    )
