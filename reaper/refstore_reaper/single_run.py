"""Run the reaper once, for an application: `refstore_reaper.reap`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import UTC, datetime, timedelta

from refstore.configuration.settings import ReaperSettings
from refstore.core.argument_types import check_collection
from refstore.core.step_progress import ReportProgress, StepProgress
from refstore.errors import Invalid
from refstore.lake import Lake
from refstore_reaper.daemon import Reaper
from refstore_reaper.dry_run import PlannedDelete
from refstore_reaper.dry_run import dry_run as run_dry
from refstore_reaper.pass_summary import PassSummary
from refstore_reaper.reap_report import DueObject, ReapReport
from refstore_reaper.reaper_metrics import ReaperMetrics


def reap_once(
    lake: Lake,
    settings: ReaperSettings,
    *,
    repositories: Collection[str],
    grace: timedelta | None,
    scrub: bool,
    dry_run: bool,
    report_progress: ReportProgress,
) -> ReapReport:
    """Delete until nothing is due, or say what would be deleted. Raises as `reap` does."""
    check_collection(repositories, "repositories")
    if grace is not None and grace < timedelta(0):
        raise Invalid(f"grace is {grace}, and cannot be negative; give timedelta(0) to delete at once")
    names = list(repositories)
    for name in names:
        lake.undrained_context(name)
    progress = _ReapCounter(lake, report_progress)
    grace_seconds = None if grace is None else grace.total_seconds()
    began_ms = lake.clock.now_ms()
    if dry_run:
        done = run_dry(
            lake,
            settings,
            repositories=names,
            scrub_now=scrub,
            grace_seconds=grace_seconds,
            report=progress.record_planned,
            should_stop=lambda: False,
        )
    else:
        with Reaper(
            lake, settings, repositories=names, scrub_now=scrub, grace_seconds=grace_seconds, metrics=progress
        ) as reaper:
            done = reaper.run_once(lambda: False)
    return ReapReport(
        **{field.name: getattr(done, field.name) for field in fields(done)},
        is_dry_run=dry_run,
        began=datetime.fromtimestamp(began_ms / 1000, UTC),
        duration=timedelta(milliseconds=max(0, lake.clock.now_ms() - began_ms)),
        would_delete=tuple(progress.planned),
    )


class _ReapCounter(ReaperMetrics):
    """Reports each pass to an application, and keeps no metrics."""

    def __init__(self, lake: Lake, report_progress: ReportProgress) -> None:
        self.planned: list[DueObject] = []
        self._report_progress = report_progress
        self._deleted = self._bytes = 0
        self._clock, self._began_ms = lake.clock, lake.clock.now_ms()

    def record_pass(self, repository: str, summary: PassSummary) -> None:
        self._add(repository, summary.deleted, summary.bytes)

    def record_planned(self, planned: PlannedDelete) -> None:
        item = planned.item
        size_bytes = None if item.size_bytes < 0 else item.size_bytes
        self.planned.append(DueObject(planned.repository, item.address, item.path, item.cause, size_bytes))
        self._add(planned.repository, 1, size_bytes or 0)

    def _add(self, repository: str, deleted: int, size_bytes: int) -> None:
        self._deleted += deleted
        self._bytes += size_bytes
        elapsed = timedelta(milliseconds=max(0, self._clock.now_ms() - self._began_ms))
        self._report_progress(
            StepProgress(repository, "deleting", self._deleted, done_bytes=self._bytes, elapsed=elapsed)
        )
