"""What `refstore_gc.collect` and `refstore_gc.status` tell their callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from refstore.core.clock import to_datetime
from refstore.core.units import format_bytes
from refstore.errors import RefstoreError
from refstore.gc_marks import Marks, OfflineRun, RunState
from refstore_gc.run_summary import (
    EXCLUDED_OUTCOME,
    KEPT_AS_VERSION_OUTCOME,
    CleanupSummary,
    GcSummary,
    ObjectCount,
    SweepResult,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReport:
    """What a run marked; of a dry run, what it would mark."""

    mark_id: str
    due: datetime
    """When its sweep may begin, in UTC."""
    listed: ObjectCount
    """What was compared with what is named."""
    too_young: ObjectCount
    """What was not, because it is younger than the minimum age."""
    marked: ObjectCount
    by_reason: Mapping[str, ObjectCount]
    """`marked`, by why it is garbage."""
    commits_waiting: int
    """Commits that have expired, and are not marked before a reaper has processed them."""
    question: str
    """What somebody has to confirm before the sweep (`refstore_gc.confirm`); '': nothing."""
    warnings: tuple[str, ...]

    @classmethod
    def from_summary(cls, summary: GcSummary) -> MarkReport:
        return cls(
            mark_id=summary.mark_id,
            due=to_datetime(summary.deletes_at_ms),
            listed=summary.listed,
            too_young=summary.young,
            marked=summary.marked,
            by_reason=summary.by_reason,
            commits_waiting=summary.commits.get("commits_waiting", 0),
            question=summary.question,
            warnings=(
                *((summary.versions_warning,) if summary.versions_warning else ()),
                *summary.branch_rules.incomplete_branches,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What became of a mark, as the store confirmed it: by this call, and by earlier ones that stopped."""

    mark_id: str
    """'': everything that a deleted repository left."""
    deleted: ObjectCount
    kept_as_versions: ObjectCount
    """Of `deleted`: those whose bytes the bucket keeps."""
    tagged: ObjectCount
    """What waits for the bucket to delete it."""
    excluded: ObjectCount
    """What was named again, or is kept by the rules of today."""
    failed_objects: int
    """What the store did not delete; the next sweep tries it again."""
    failures: tuple[str, ...]
    """Examples of these, with the store's reasons."""

    @classmethod
    def from_result(cls, mark_id: str, swept: SweepResult) -> SweepReport:
        return cls(
            mark_id=mark_id,
            deleted=swept.deleted_count,
            kept_as_versions=swept.outcomes.get(KEPT_AS_VERSION_OUTCOME, ObjectCount()),
            tagged=swept.tagged_count,
            excluded=swept.outcomes.get(EXCLUDED_OUTCOME, ObjectCount()),
            failed_objects=swept.failed_objects,
            failures=tuple(swept.failures),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkInfo:
    """How far a mark is."""

    mark_id: str
    state: str
    """marking, marked, needs confirmation, sweeping, tagged, swept, or abandoned."""
    began: datetime
    due: datetime | None
    """When its sweep may begin. None: it has not finished marking, or was abandoned."""
    tagged: datetime | None
    swept: datetime | None
    commits: int
    """Those that it still has; of a swept one, those that were swept."""
    marked: ObjectCount
    """At most so much is deleted: what unmarked commits name stays."""
    deleted_objects: int
    question: str
    """What somebody has to confirm before the sweep; '': nothing."""
    confirmed_by: str
    end_reason: str
    """Why it was abandoned; '': it was not."""

    @classmethod
    def from_run(cls, marks: Marks, run: OfflineRun) -> MarkInfo:
        record, counts = run.record, marks.statuses.read_counts(run)
        return cls(
            mark_id=run.mark_id,
            state=run.state_text,
            began=to_datetime(record.began_ms),
            due=to_datetime(record.deletes_at_ms) if run.has_finished_marking else None,
            tagged=to_datetime(record.tagged_ms) if record.tagged_ms else None,
            swept=to_datetime(record.swept_ms) if record.swept_ms else None,
            commits=counts.get("commits_marked", 0),
            marked=ObjectCount(counts.get("objects", 0), counts.get("bytes", 0)),
            deleted_objects=record.sweep_counts.get("deleted_objects", 0),
            question=record.question,
            confirmed_by=record.confirmed_by,
            end_reason=record.end_reason,
        )


@dataclass(frozen=True, slots=True)
class CollectError:
    """What failed; nothing that depended on it was deleted."""

    step: Literal["run", "sweep", "purge"]
    """`run`: all that came after it; `purge`: deleting what purges left behind."""
    mark_id: str
    """The mark whose sweep failed; '': it was no sweep."""
    error: RefstoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """What a run did in one repository, as the stores confirmed it; of a dry run, what it would do."""

    repository: str
    """The name; of a repository that was deleted, the name and the id behind a dot."""
    is_deleted_repository: bool = False
    is_dry_run: bool
    began: datetime
    """In UTC."""
    duration: timedelta
    mark: MarkReport | None = None
    """None: nothing was to be marked, or the marking failed."""
    sweeps: Sequence[SweepReport] = ()
    waiting: Sequence[MarkInfo] = ()
    """The marks that stand: they are due later, need confirmation, or their sweep has not ended."""
    cleanup: CleanupSummary | None = None
    """What was deleted of what purges left behind, if that was asked for."""
    errors: Sequence[CollectError] = ()

    @property
    def deleted_count(self) -> ObjectCount:
        """What the store confirmed as deleted in all of `sweeps`, also to earlier calls that stopped."""
        return sum((each.deleted for each in self.sweeps), ObjectCount())

    @property
    def reclaimable(self) -> ObjectCount:
        """What the marks that stand hold, and what a dry run would mark: the most that sweeps will delete."""
        would_be_marked = self.mark.marked if self.is_dry_run and self.mark is not None else ObjectCount()
        return sum((each.marked for each in self.waiting), would_be_marked)

    @property
    def needs_confirmation(self) -> bool:
        """Whether a mark waits for `refstore_gc.confirm`."""
        return any(each.state == RunState.NEEDS_CONFIRMATION for each in self.waiting)

    @property
    def failed_objects(self) -> int:
        """What the store did not delete; the next run tries it again."""
        return sum(each.failed_objects for each in self.sweeps) + (self.cleanup.failed_objects if self.cleanup else 0)

    def __str__(self) -> str:
        parts = [] if self.is_dry_run else [f"deleted {_describe(self.deleted_count)}"]
        if self.mark is not None:
            parts.append(f"{'would mark' if self.is_dry_run else 'marked'} {_describe(self.mark.marked)}")
        if self.waiting:
            waiting = sum((each.marked for each in self.waiting), ObjectCount())
            parts.append(f"{_describe(waiting)} wait for their sweep")
        parts += ["a mark needs confirmation"] if self.needs_confirmation else []
        parts += [f"{self.failed_objects:,} were not deleted by the store"] if self.failed_objects else []
        parts += [f"{each.step} failed: {each.error}" for each in self.errors]
        return f"{self.repository}: {'; '.join(parts) or 'nothing is due'}"


def _describe(count: ObjectCount) -> str:
    return f"{count.objects:,} objects, {format_bytes(count.bytes)}"
