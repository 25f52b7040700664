"""Run the offline job for an application, in one repository or in all of a lake: `refstore_gc.collect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.errors import Invalid, InvalidSettings, RefstoreError, RepositoryNotFound
from refstore.gc_marks import OPEN_STATES, Marks
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
    as_datetime,
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
class _Outcome:
    """What a run has come to so far."""

    mark: GcSummary | None = None
    swept: dict[str, GcSummary] = field(default_factory=dict[str, GcSummary])
    cleanup: CleanupSummary | None = None
    errors: list[CollectError] = field(default_factory=list[CollectError])

    def add_sweep(self, summary: GcSummary) -> None:
        self.swept[summary.mark_id] = summary

    def fail_sweep(self, mark_id: str, error: RefstoreError) -> None:
        """`mark_id`: `purge`, where it is the cleaning that failed."""
        is_purge = mark_id == "purge"
        self.errors.append(CollectError("purge" if is_purge else "sweep", "" if is_purge else mark_id, error))


def collect_repository(repo: Repository, engine: EngineOptions, request: CollectRequest) -> CollectReport:
    """Run in one repository. Raises what stopped the run; a sweep or a cleaning that failed stands in the report."""
    with closing(Engines(engine)) as engines:
        report = _collect(repo, engines, request)
    for each in report.errors:
        if each.step == "run":
            raise each.error
    return report


def collect_lake(lake: Lake, engine: EngineOptions, request: CollectRequest) -> list[CollectReport]:
    """Run in every repository, and delete what deleted ones left. An error in one stands in its report."""
    with closing(Engines(engine)) as engines:
        reports = [_collect(repo, engines, request) for repo in _repositories(lake)]
        if request.only is None and not request.dry_run:
            reports += _clear_deleted(lake, engines, request)
        return reports


def _repositories(lake: Lake) -> Iterator[Repository]:
    for name in [name for name, _ in lake.repository_records()]:
        try:
            yield lake.repository(name)
        except RepositoryNotFound:  # it was deleted since it was listed
            continue


def _collect(repo: Repository, engines: Engines, request: CollectRequest) -> CollectReport:
    """Mark and sweep in one repository. Errors of the repository stand in the report."""
    ctx, outcome = repo.context, _Outcome()
    began_ms = ctx.clock.now_ms()
    waiting: list[MarkInfo] = []
    try:
        if request.only == "sweep":
            _sweep(repo, engines, request, outcome)
        elif request.dry_run:
            outcome.mark = simulate_mark(ctx, engines, request.options, request.report_progress)
        elif request.only == "mark":
            outcome.mark = gc_run.mark(ctx, engines, request.options, request.report_progress)
        else:
            _mark_and_sweep(repo, engines, request, outcome)
    except RefstoreError as error:  # the other repositories do not answer for it
        outcome.errors.append(CollectError("run", "", error))
    else:
        marks = Marks(ctx)
        waiting = [MarkInfo.from_run(marks, each) for each in marks.runs.scan() if each.state in OPEN_STATES]
    return CollectReport(
        repository=repo.name,
        is_dry_run=request.dry_run,
        began=as_datetime(began_ms),
        duration=timedelta(milliseconds=max(0, ctx.clock.now_ms() - began_ms)),
        mark=MarkReport.from_summary(outcome.mark) if outcome.mark is not None else None,
        sweeps=[
            SweepReport.from_result(mark_id, summary.sweep)
            for mark_id, summary in outcome.swept.items()
            if summary.sweep is not None
        ],
        waiting=waiting,
        cleanup=outcome.cleanup,
        errors=outcome.errors,
    )


def _mark_and_sweep(repo: Repository, engines: Engines, request: CollectRequest, outcome: _Outcome) -> None:
    """Do what is done every night: clean up, sweep what is due, mark, and sweep what is due at once."""
    clean_up = request.clean_up
    ran = gc_run.run_nightly(
        repo.context,
        engines,
        request.options,
        request.report_progress,
        on_sweep_error=outcome.fail_sweep,
        on_swept=outcome.add_sweep,
        clean_up=(lambda _: clean_up(repo)) if clean_up is not None else None,
    )
    outcome.mark, outcome.cleanup = ran.mark_summary, ran.mark_summary.purge_cleanup
    for each in ran.sweep_summaries:
        outcome.add_sweep(each)


def _sweep(repo: Repository, engines: Engines, request: CollectRequest, outcome: _Outcome) -> None:
    """Sweep the mark that is asked for, or all that are due. A dry run only looks whether there is such a mark."""
    runs, now_ms = Marks(repo.context).runs, repo.context.clock.now_ms()
    if request.mark_id is not None:
        chosen = [runs.get(runs.full_id(request.mark_id)).mark_id]
    else:
        chosen = [each.mark_id for each in runs.scan() if each.is_due(now_ms)]
    for mark_id in chosen if not request.dry_run else ():
        try:
            outcome.add_sweep(gc_run.sweep(repo.context, engines, mark_id, request.report_progress, mode=request.mode))
        except RefstoreError as error:  # no sweep rests on another
            if request.mark_id is not None:
                raise
            outcome.fail_sweep(mark_id, error)


def _clear_deleted(lake: Lake, engines: Engines, request: CollectRequest) -> Iterator[CollectReport]:
    """Delete what deleted repositories left, where their grace is over."""
    for repo, record in list(closed_repositories(lake)):
        began_ms = lake.clock.now_ms()
        cleared: ClearResult | None = None
        errors: list[CollectError] = []
        try:
            cleared = clear_repository(lake, repo, record, engines, request.options, request.report_progress)
        except RefstoreError as error:
            errors.append(CollectError("run", "", error))
        sweeps: list[SweepReport] = []
        if cleared is not None and cleared.sweep is not None:
            swept = SweepReport.from_result("", cleared.sweep)
            sweeps.append(replace(swept, failed_objects=cleared.failed_objects))
        yield CollectReport(
            repository=repo,
            is_deleted_repository=True,
            is_dry_run=False,
            began=as_datetime(began_ms),
            duration=timedelta(milliseconds=max(0, lake.clock.now_ms() - began_ms)),
            sweeps=sweeps,
            errors=errors,
        )
