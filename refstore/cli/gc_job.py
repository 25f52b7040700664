"""Run the offline job over repositories, for `refstore gc`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from refstore.cli.common import progress
from refstore.cli.rows import format_when
from refstore.core import python_gc
from refstore.core.units import DAY_MS, format_countdown, format_duration
from refstore.errors import InvalidSettings, RefstoreError
from refstore.gc_marks import RunState, barrier_seconds
from refstore.lake import Lake
from refstore.repository import Repository

if TYPE_CHECKING:
    from refstore.core.step_progress import ReportProgress, StepProgress
    from refstore_gc.collection import CollectRequest
    from refstore_gc.deleted_repositories import ClearResult
    from refstore_gc.engines.choice import EngineOptions, Engines
    from refstore_gc.gc_run import GcOptions
    from refstore_gc.run_summary import CleanupSummary, GcSummary, SweepMode
    from refstore_purge.purge_report import PurgeReport


@dataclass(frozen=True, slots=True)
class Job:
    what: str
    """`mark`, `run` or `simulate`."""
    options: GcOptions
    purge_key: bytes | None = field(default=None, repr=False)
    """With it, each run looks for the ids of the purge's ledger in what came since."""

    def request(
        self,
        report_progress: ReportProgress,
        clean_up: Callable[[Repository], CleanupSummary] | None = None,
    ) -> CollectRequest:
        """Return the same for the library. `clean_up`: what the whole job does first."""
        from refstore_gc.collection import CollectRequest

        return CollectRequest(
            options=self.options,
            only="mark" if self.what == "mark" else None,
            dry_run=self.what == "simulate",
            clean_up=clean_up,
            report_progress=report_progress,
        )


def sweep_mode(text: str) -> SweepMode:
    """Check a mode of sweeping. Raises InvalidSettings."""
    if text not in ("delete", "tag"):
        raise InvalidSettings(f"{text!r} is not a mode of sweeping; use delete or tag")
    return "delete" if text == "delete" else "tag"


class AllRan(NamedTuple):
    done: list[GcSummary]
    """The summaries of the marks that were swept or made."""
    asking: int
    """Marks that wait for an operator."""
    failed: int
    """Keys that the store did not delete."""
    troubles: list[tuple[str, RefstoreError]]
    """The errors, by repository."""
    purges: Sequence[tuple[str, PurgeReport]] = ()
    """By repository: what came of the look for the ledger's ids."""

    @property
    def has_purge_leftovers(self) -> bool:
        """Whether a purge left something, so that the exit code is that of `refstore purge run`."""
        return any(not report.is_done for _, report in self.purges)


def run_all(lake: Lake, names: Sequence[str], job: Job, engines: Engines, report_progress: ReportProgress) -> AllRan:
    """Run the job in each of these repositories. An error in one does not stop the others."""
    import refstore_purge
    from refstore_gc.bucket_lifecycle import find_overdue
    from refstore_gc.collection import run_repositories
    from refstore_purge import nightly_job

    done: list[GcSummary] = []
    troubles: list[tuple[str, RefstoreError]] = []
    purges: list[tuple[str, PurgeReport]] = []
    asking = failed = 0
    for run in run_repositories(lake, names, engines, job.request(report_progress, refstore_purge.clean_up)):
        done += run.summaries
        failed += run.failed_objects
        troubles += [(run.repository, each.error) for each in run.errors]
        if job.what == "mark":
            asking += bool(run.mark is not None and run.mark.question)
        if job.what != "run" or run.repo is None or run.has_stopped:
            continue
        asking += sum(each.state is RunState.NEEDS_CONFIRMATION for each in run.waiting)
        for line in find_overdue(run.waiting, lake.clock.now_ms()):
            typer.echo(f"refstore: warning: {run.repository}: {line}", err=True)
        if job.purge_key is not None:
            try:
                report = nightly_job.purge_again(run.repo, engines, job.purge_key, report_progress)
            except RefstoreError as error:  # the others do not answer for it
                troubles.append((run.repository, error))
            else:
                purges += [] if report is None else [(run.repository, report)]
    return AllRan(done, asking, failed, troubles, purges)


def clear_all_deleted(
    lake: Lake, job: Job, engines: Engines, report_progress: ReportProgress, troubles: list[tuple[str, RefstoreError]]
) -> list[dict[str, Any]]:
    """Delete what deleted repositories left, and return a row for each."""
    from refstore_gc import bucket_lifecycle
    from refstore_gc.collection import clear_deleted

    rows: list[dict[str, Any]] = []
    for run in clear_deleted(lake, engines, job.request(report_progress)):
        troubles += [(run.repository, each.error) for each in run.errors]
        found = run.cleared
        if found is None:
            continue
        if (
            found.waiting_objects.objects
            and lake.clock.now_ms() - found.tagged_ms > bucket_lifecycle.TAG_WAIT_DAYS * DAY_MS
        ):
            typer.echo(
                f"refstore: warning: {run.repository} (deleted): {bucket_lifecycle.describe_overdue(found.tagged_ms)}",
                err=True,
            )
        rows.append(_cleared_row(found))
    return rows


def _cleared_row(found: ClearResult) -> dict[str, Any]:
    from refstore_gc.run_summary import DELETED_OUTCOME, KEPT_AS_VERSION_OUTCOME, ObjectCount

    outcomes = found.sweep.outcomes if found.sweep else {}
    deleted, kept = (outcomes.get(each, ObjectCount()) for each in (DELETED_OUTCOME, KEPT_AS_VERSION_OUTCOME))
    return {
        "repository": f"{found.repository} (deleted)",
        "due": format_when(found.due_ms),
        "deleted": deleted.objects,
        "bytes": deleted.bytes,
        "kept_as_versions": kept.objects,
        "failed": found.failed_objects,
        "tagged": found.waiting_objects.objects,
        "tagged_since": format_when(found.tagged_ms or None),
        "foreign": found.foreign_objects.objects,
        "forgotten": found.is_forgotten,
    }


def tell_of_the_wait(lake: Lake) -> None:
    """Say how long a marking waits, why, and until when: at once, on standard error, also off a terminal."""
    waits = lake.durations.waits
    seconds = barrier_seconds(waits)
    until = format_when(lake.clock.now_ms() + int(seconds * 1000))
    operation, request = format_duration(waits.operation_deadline_seconds), format_duration(waits.io_timeout_seconds)
    typer.echo(
        f"refstore: in each repository the marking waits {format_duration(seconds)} (now: until {until}), so that "
        f"every operation that began before it has ended: {operation} for an operation, 2 x {request} for a request, "
        f"{format_duration(waits.clock_skew_seconds)} for the clocks' difference; `refstore config --agreed` shows "
        "these, and how they are changed",
        err=True,
    )


class EngineRequest(NamedTuple):
    """The options of a command that choose an engine."""

    choice: str | None
    """None: auto."""
    master: str | None
    conf: Sequence[str] | None

    def options(self) -> EngineOptions:
        """Raises InvalidSettings."""
        from refstore_gc.engines.choice import EngineOptions

        choice = self.choice or "auto"
        if choice != "auto" and choice != "local" and choice != "spark":  # noqa: PLR1714  # the type checker follows it
            raise InvalidSettings(f"{choice!r} is not an engine; use auto, local or spark")
        if self.choice == "local" and (self.master is not None or self.conf):
            raise InvalidSettings("--master and --conf are for Spark; leave them out, or give --engine spark")
        conf: dict[str, str] = {}
        for each in self.conf or ():
            name, equals, value = each.partition("=")
            if not equals or not name:
                raise InvalidSettings(f"--conf {each!r} is not KEY=VALUE; write it as spark.executor.memory=4g")
            conf[name] = value
        return EngineOptions(
            choice="spark" if self.master is not None else choice,
            master=self.master,
            conf=conf,
        )

    @contextmanager
    def open(self) -> Generator[Engines, None, None]:
        """Yield the engines, for a block. Raises InvalidSettings."""
        with python_gc.collect_seldom():  # before the imports, which make many objects
            from refstore_gc.engines.choice import open_engines

            with open_engines(self.options()) as engines:
                yield engines


@contextmanager
def show_progress() -> Generator[Callable[[StepProgress], None], None, None]:
    """Yield what shows the steps of runs."""
    with progress("starting") as bar:

        def report_progress(now: StepProgress) -> None:
            if now.wait is not None:
                left_ms = now.wait // timedelta(milliseconds=1)
                ends = format_when(time.time_ns() // 1_000_000 + left_ms)
                bar.describe(f"{now.step}: {format_countdown(left_ms)} left, until {ends}")
                if not left_ms:
                    typer.echo("refstore: the wait is over; the listing begins", err=True)
                return
            left = f", about {now.remaining.total_seconds():,.0f} s left" if now.remaining is not None else ""
            of = (
                f"{now.done_items:,} of {now.total_items:,}"
                if now.total_items
                else f"{now.done_items:,}"
                if now.done_items
                else ""
            )
            bar.describe(f"{now.step}: {of}{left}" if of else now.step)

        yield report_progress
