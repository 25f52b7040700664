"""The offline job: it deletes what only expired commits name, and what the online path never knew of (rules 13 and 14
of `docs/protocol.md`).

`collect` runs it from an application, `status` lists the marks, and `confirm` allows the sweep of a large one;
`Repository.unmark` makes commits active again.

    collection.py             run in one repository or all of them, for `collect` and `refstore gc run`
    collect_report.py         what these functions report
    mark.py                   mark what nobody needs: rule 13 in one function; and simulate it
    sweep.py                  delete, or tag, what a mark holds, by the rules of today: rule 14
    gc_run.py                 the nightly job: all of these
    run_context.py            what the functions of one run share, and its options
    mark_plan.py              what the rules come to, also on branches; clocks and ages
    engines/                  what it runs on: this machine, or Spark
    list_objects.py           list the store
    live_in_commits.py        what commits name, each distinct range read once
    anti_join.py              what the KV names; compare what is listed with what is named
    bucket_join.py            the same in one bucket, as a task of the engine
    garbage.py                decide what is garbage, and write it to the mark
    nothing_to_delete.py      expired commits that lose nothing
    incremental/              what makes a run go on from the one before
    sweep_tasks.py            delete or tag, unit by unit
    purged_objects.py         delete the contents of purged objects that nothing names
    deleted_repositories.py   what deleted repositories left
    address_codec.py, address_batches.py, run_layout.py    how addresses travel, and where files lie
    summary_totals.py, run_summary.py, run_progress.py, gc_figures.py    what a run reports
    deletion_index_writer.py, bucket_lifecycle.py, private_folder.py

`pyspark` is imported by its engine only. The online path's own deletions do not need this job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, TypedDict, Unpack, overload

if TYPE_CHECKING:
    from refstore import Lake, Repository
    from refstore.core.step_progress import ReportProgress
    from refstore_gc.collect_report import (
        CollectError,
        CollectReport,
        MarkInfo,
        MarkReport,
        SweepReport,
    )
    from refstore_gc.engines.choice import Choice, EngineOptions
    from refstore_gc.run_summary import CleanupSummary, ObjectCount

__all__ = [
    "CleanupSummary",
    "CollectError",
    "CollectReport",
    "EngineOptions",
    "MarkInfo",
    "MarkReport",
    "ObjectCount",
    "SweepReport",
    "collect",
    "confirm",
    "status",
]

_MODULES: Final = {
    "CleanupSummary": "run_summary",
    "EngineOptions": "engines.choice",
    "ObjectCount": "run_summary",
}
"""Where the classes are that are no reports."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'collect_report')}"), name)


class CollectOptions(TypedDict, total=False):
    """The options of `collect`, as type checkers see them."""

    only: Literal["mark", "sweep"] | None
    dry_run: bool
    mark_id: str | None
    rules: str | None
    grace: timedelta | None
    min_age: timedelta | None
    mode: Literal["delete", "tag"] | None
    share_max: float
    foreign: bool
    full: bool
    take_over: bool
    engine: Choice | EngineOptions
    clean_up: Callable[[Repository], CleanupSummary] | None
    report_progress: ReportProgress | None


@overload
def collect(target: Repository, **options: Unpack[CollectOptions]) -> CollectReport: ...
@overload
def collect(target: Lake, **options: Unpack[CollectOptions]) -> list[CollectReport]: ...
def collect(
    target: Lake | Repository,
    *,
    only: Literal["mark", "sweep"] | None = None,
    dry_run: bool = False,
    mark_id: str | None = None,
    rules: str | None = None,
    grace: timedelta | None = None,
    min_age: timedelta | None = None,
    mode: Literal["delete", "tag"] | None = None,
    share_max: float = 0.5,
    foreign: bool = False,
    full: bool = False,
    take_over: bool = False,
    engine: Choice | EngineOptions = "auto",
    clean_up: Callable[[Repository], CleanupSummary] | None = None,
    report_progress: ReportProgress | None = None,
) -> CollectReport | list[CollectReport]:
    """Delete what only expired commits name, and what nothing ever named, as `refstore gc run` does: sweep the marks
    that are due, mark what is garbage, and sweep that when its grace period is over.

    Of a repository it returns a report; of a lake one for each repository, and for each deleted one that left
    something. The marking first waits until every operation that began before it has ended, an hour by default.

    `only`: mark and delete nothing, or sweep what is due; with `mark_id` that mark. `dry_run`: change nothing, wait for
    nobody, and say what would be marked, with `rules` by this document instead of the repository's. `grace`: between
    mark and sweep, instead of the rules' own. `min_age`: younger objects stay; a day by default, and never less than
    the longest operation. `mode`: `tag` lets the bucket's lifecycle rule delete; earlier marks keep theirs, except with
    `only='sweep'`. `share_max`: a mark of more than this share of the objects, 10,000 at least, waits for `confirm`.
    `foreign`: also objects that refstore never wrote. `full`: list everything, also what the last run listed.
    `take_over`: from a run that died a moment ago. `engine`: `local` is this machine, `spark` is Spark, of which
    `EngineOptions` can say more, and `auto` decides by the number of objects. `clean_up`: what is done first, such as
    `refstore_purge.clean_up` in a lake with purges. `report_progress` gets a `refstore.StepProgress` at each step and
    while it runs, also from another thread.

    A sweep that failed stands in the report's `errors`. What else stops a repository is raised, and of a lake stands in
    `errors`, while the other repositories go on: RunUnderWay, NotFound (no such mark), Conflict, Gone (the mark of
    `mark_id` is not due, or unmarked), StoreMisconfigured (clocks), Corrupt, KVWentBack, KVSettling, RunStopped,
    Unavailable. Raises Invalid, InvalidRules, InvalidSettings, MissingExtra (Spark) in any case.
    """
    from refstore.core.step_progress import ignore_progress
    from refstore.repository import Repository
    from refstore_gc.collection import CollectRequest, collect_lake, collect_repository, make_options
    from refstore_gc.engines.choice import EngineOptions

    options = make_options(grace, min_age, mode, share_max, rules, foreign=foreign, full=full, take_over=take_over)
    request = CollectRequest(
        options=options,
        only=only,
        dry_run=dry_run,
        mark_id=mark_id,
        mode=mode,
        clean_up=clean_up,
        report_progress=report_progress or ignore_progress,
    )
    if isinstance(target, Repository):
        return collect_repository(target, EngineOptions.make(engine), request)
    return collect_lake(target, EngineOptions.make(engine), request)


def status(repository: Repository) -> Iterator[MarkInfo]:
    """List the marks in order of time: waiting, due and swept ones, with what each holds. Raises KVUnavailable."""
    from refstore.gc_marks import Marks
    from refstore_gc.collect_report import MarkInfo

    marks = Marks(repository.context)
    return (MarkInfo.from_run(marks, each) for each in marks.runs.scan())


def confirm(repository: Repository, mark_id: str, *, by: str = "") -> MarkInfo:
    """Allow the sweep of a mark that is larger than its `share_max`, on behalf of `by`. Raises NotFound, Conflict (the
    mark asks nothing).
    """
    from refstore.gc_marks import Marks
    from refstore.monitoring import figures
    from refstore_gc.collect_report import MarkInfo

    marks = Marks(repository.context)
    confirmed = marks.decisions.confirm(marks.runs.full_id(mark_id), by)
    figures.write_marks(repository.context)
    return MarkInfo.from_run(marks, confirmed)
