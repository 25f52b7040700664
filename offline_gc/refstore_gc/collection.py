"""Run the offline job in one repository or in all of a lake: for `refstore_gc.collect` and `refstore gc run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

from refstore.context import Context
from refstore.core.clock import to_datetime
from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.errors import (
    Invalid,
    InvalidSettings,
    KVUnavailable,
    RefstoreError,
    RepositoryNotFound,
    RunStopped,
)
from refstore.gc_marks import OPEN_STATES, Marks, OfflineRun
from refstore.lake import Lake
from refstore.repository import Repository
from refstore.retention.rules import read_rules
from refstore_gc import gc_run
from refstore_gc.collect_report import (
    CollectError,
    CollectReport,
    MarkInfo,
    MarkReport,
    SweepReport,
)
from refstore_gc.deleted_repositories import ClearResult, clear_repository, closed_repositories
from refstore_gc.engines.choice import EngineOptions, Engines
from refstore_gc.mark import simulate_mark
from refstore_gc.run_context import BreakerLimits, GcOptions
from refstore_gc.run_summary import CleanupSummary, GcSummary, SweepMode

Part = Literal["mark", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest:
    """What a caller asks for."""

    options: GcOptions
    only: Part | None = None
    dry_run: bool = False
    mark_id: str | None = None
    """Only its sweep."""
    mode: SweepMode | None = None
    """Of sweeps; None: as each was marked."""
    clean_up: Callable[[Repository], CleanupSummary] | None = None
    report_progress: ReportProgress = ignore_progress

    def __post_init__(self) -> None:
        if self.only not in (None, "mark", "sweep"):
            raise Invalid(f"only is {self.only!r}; use 'mark' or 'sweep', or leave it out for both")
        if self.mark_id is not None and self.only != "sweep":
            raise Invalid("mark_id names what to sweep; give only='sweep', too")
        if self.options.rules is not None and not self.dry_run:
            raise Invalid("other rules than the repository's are for a dry run; give dry_run=True, or set them first")


def make_options(
    grace: timedelta | None,
    min_age: timedelta | None,
    mode: SweepMode | None,
    share_max: float,
    rules: str | None,
    *,
    foreign: bool,
    full: bool,
    take_over: bool,
) -> GcOptions:
    """Return the options of a run from what `collect` is given. Raises InvalidSettings, InvalidRules."""
    if mode not in (None, "delete", "tag"):
        raise InvalidSettings(f"mode is {mode!r}; use 'delete' or 'tag'")
    return GcOptions(
        grace_days=grace / timedelta(days=1) if grace is not None else None,
        min_age_seconds=min_age.total_seconds() if min_age is not None else None,
        mode=mode or "delete",
        limits=BreakerLimits(share_max=share_max),
        includes_foreign=foreign,
        is_full=full,
        take_over=take_over,
        rules=read_rules(rules).rules if rules is not None else None,
    )


@dataclass(slots=True)
class RepositoryRun:
    """What a run has come to in one repository."""

    repository: str
    """The name; of a deleted repository, the name and the id behind a dot."""
    began_ms: int
    repo: Repository | None = None
    """None: it could not be opened, or it was deleted."""
    is_deleted: bool = False
    mark: GcSummary | None = None
    """What was marked; of a dry run, what would be."""
    swept: dict[str, GcSummary] = field(default_factory=dict[str, GcSummary])
    due: Sequence[OfflineRun] = ()
    """What was to be swept, where that was all that was asked for."""
    waiting: Sequence[OfflineRun] = ()
    """The marks that stand at the end."""
    cleanup: CleanupSummary | None = None
    cleared: ClearResult | None = None
    """Of a deleted repository."""
    errors: list[CollectError] = field(default_factory=list[CollectError])

    @property
    def summaries(self) -> list[GcSummary]:
        """Return each sweep, and what was marked last, with its sweep if that was at once."""
        if self.mark is None:
            return list(self.swept.values())
        earlier = (each for each in self.swept.values() if each.mark_id != self.mark.mark_id)
        return [*earlier, self.swept.get(self.mark.mark_id, self.mark)]

    @property
    def failed_objects(self) -> int:
        """Return how many objects the store did not delete."""
        of_sweeps = sum(each.sweep.failed_objects for each in self.swept.values() if each.sweep is not None)
        of_deleted = self.cleared.failed_objects if self.cleared is not None else 0
        return of_sweeps + of_deleted + (self.cleanup.failed_objects if self.cleanup is not None else 0)

    @property
    def has_stopped(self) -> bool:
        """Whether something kept the run from its end."""
        return any(each.step == "run" for each in self.errors)

    def add_sweep(self, summary: GcSummary) -> None:
        self.swept[summary.mark_id] = summary

    def fail_sweep(self, mark_id: str, error: RefstoreError) -> None:
        """`mark_id`: `purge`, where it is the cleaning that failed."""
        is_purge = mark_id == "purge"
        self.errors.append(CollectError("purge" if is_purge else "sweep", "" if is_purge else mark_id, error))


def collect_repository(repo: Repository, engine: EngineOptions, request: CollectRequest) -> CollectReport:
    """Run in one repository. Raises what stopped the run; a sweep or a cleaning that failed stands in the report."""
    run = RepositoryRun(repo.name, repo.context.clock.now_ms(), repo)
    with closing(Engines(engine)) as engines:
        _run(run, repo, engines, request)
    for each in run.errors:
        if each.step == "run":
            raise each.error
    return _make_report(run, repo.context.clock.now_ms(), request)


def collect_lake(lake: Lake, engine: EngineOptions, request: CollectRequest) -> list[CollectReport]:
    """Run in every repository, and delete what deleted ones left. An error in one stands in its report."""
    with closing(Engines(engine)) as engines:
        names = [name for name, _ in lake.repository_records()]
        runs = run_repositories(lake, names, engines, request)
        reports = [_make_report(run, lake.clock.now_ms(), request) for run in runs]
        if request.only is None and not request.dry_run:
            cleared = clear_deleted(lake, engines, request)
            reports += [_make_report(run, lake.clock.now_ms(), request) for run in cleared]
        return reports


def run_repositories(
    lake: Lake, names: Sequence[str], engines: Engines, request: CollectRequest
) -> Iterator[RepositoryRun]:
    """Run in each of these repositories; one that was deleted since it was listed is left out. What stops one stands in
    its errors: the others do not answer for it.
    """
    for name in names:
        run = RepositoryRun(name, lake.clock.now_ms())
        try:
            run.repo = lake.repository(name)
        except RepositoryNotFound:
            continue
        except RefstoreError as error:
            run.errors.append(CollectError("run", "", error))
        else:
            _run(run, run.repo, engines, request)
        yield run


def clear_deleted(lake: Lake, engines: Engines, request: CollectRequest) -> Iterator[RepositoryRun]:
    """Delete what deleted repositories left, where their grace is over."""
    for repo, record in list(closed_repositories(lake)):
        run = RepositoryRun(repo, lake.clock.now_ms(), is_deleted=True)
        try:
            run.cleared = clear_repository(lake, repo, record, engines, request.options, request.report_progress)
        except RefstoreError as error:
            run.errors.append(CollectError("run", "", error))
        yield run


def _run(run: RepositoryRun, repo: Repository, engines: Engines, request: CollectRequest) -> None:
    """Mark and sweep in one repository."""
    ctx = repo.context
    try:
        if request.only == "sweep":
            _sweep(run, ctx, engines, request)
        elif request.dry_run:
            run.mark = simulate_mark(ctx, engines, request.options, request.report_progress)
        elif request.only == "mark":
            run.mark = gc_run.mark(ctx, engines, request.options, request.report_progress)
        else:
            _mark_and_sweep(run, repo, engines, request)
            return
        run.waiting = [each for each in Marks(ctx).runs.scan() if each.state in OPEN_STATES]
    except RefstoreError as error:
        run.errors.append(CollectError("run", "", error))


def _mark_and_sweep(run: RepositoryRun, repo: Repository, engines: Engines, request: CollectRequest) -> None:
    """Do what is done every night: clean up, sweep what is due, mark, and sweep what is due at once."""
    clean_up = request.clean_up
    ran = gc_run.run_nightly(
        repo.context,
        engines,
        request.options,
        request.report_progress,
        on_sweep_error=run.fail_sweep,
        on_swept=run.add_sweep,
        clean_up=(lambda _: clean_up(repo)) if clean_up is not None else None,
    )
    run.mark, run.cleanup, run.waiting = ran.mark_summary, ran.mark_summary.purge_cleanup, ran.waiting_marks
    for each in ran.sweep_summaries:
        run.add_sweep(each)


def _sweep(run: RepositoryRun, ctx: Context, engines: Engines, request: CollectRequest) -> None:
    """Sweep the mark that is asked for, or all that are due. A dry run only looks which these are."""
    runs = Marks(ctx).runs
    if request.mark_id is not None:
        run.due = [runs.get(runs.full_id(request.mark_id))]
    else:
        run.due = [each for each in runs.scan() if each.is_due(ctx.clock.now_ms())]
    for mark_id in [] if request.dry_run else [each.mark_id for each in run.due]:
        try:
            run.add_sweep(gc_run.sweep(ctx, engines, mark_id, request.report_progress, mode=request.mode))
        except RefstoreError as error:  # no sweep rests on another
            if request.mark_id is not None or isinstance(error, KVUnavailable | RunStopped):
                raise
            run.fail_sweep(mark_id, error)


def _make_report(run: RepositoryRun, now_ms: int, request: CollectRequest) -> CollectReport:
    swept = [SweepReport.from_result(name, each.sweep) for name, each in run.swept.items() if each.sweep is not None]
    cleared = run.cleared
    if cleared is not None and cleared.sweep is not None:
        swept = [replace(SweepReport.from_result("", cleared.sweep), failed_objects=cleared.failed_objects)]
    waiting: list[MarkInfo] = []
    if run.repo is not None:
        marks = Marks(run.repo.context)
        try:
            waiting = [MarkInfo.from_run(marks, each) for each in run.waiting]
        except RefstoreError as error:  # what was done is reported all the same
            run.errors.append(CollectError("run", "", error))
    return CollectReport(
        repository=run.repository,
        is_deleted_repository=run.is_deleted,
        is_dry_run=request.dry_run,
        began=to_datetime(run.began_ms),
        duration=timedelta(milliseconds=max(0, now_ms - run.began_ms)),
        mark=MarkReport.from_summary(run.mark) if run.mark is not None else None,
        sweeps=swept,
        waiting=waiting,
        cleanup=run.cleanup,
        errors=run.errors,
    )
