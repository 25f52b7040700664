"""The offline job of a night: sweep what is due, mark, and sweep what is due at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from refstore.context import Context
from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.errors import KVUnavailable, RefstoreError, RunStopped
from refstore.gc_marks import OPEN_STATES, Marks, OfflineRun, RunState
from refstore_gc import deletion_index_writer, gc_figures
from refstore_gc.engines.choice import Engines
from refstore_gc.mark import mark
from refstore_gc.run_context import GcOptions
from refstore_gc.run_layout import remove_run_files
from refstore_gc.run_summary import CleanupSummary, GcSummary, write_summary
from refstore_gc.sweep import sweep


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """What a nightly run did in one repository."""

    mark_summary: GcSummary
    sweep_summaries: Sequence[GcSummary]
    """The marks that were due, this run's own among them if there is no grace; each as its last sweep left it.
    """
    waiting_marks: Sequence[OfflineRun]
    """Marks that stand and are not due, or need an operator."""

    @property
    def latest_summary(self) -> GcSummary:
        """Return what was marked, with its sweep if that was at once."""
        return next(
            (each for each in self.sweep_summaries if each.mark_id == self.mark_summary.mark_id), self.mark_summary
        )

    @property
    def failed_objects(self) -> int:
        """Return how many objects the store did not delete: of the sweeps, and of what purges left behind."""
        cleaned = self.mark_summary.purge_cleanup
        of_sweeps = sum(summary.sweep.failed_objects for summary in self.sweep_summaries if summary.sweep is not None)
        return of_sweeps + (cleaned.failed_objects if cleaned is not None else 0)


def run_nightly(
    ctx: Context,
    engines: Engines,
    options: GcOptions,
    report_progress: ReportProgress = ignore_progress,
    *,
    on_sweep_error: Callable[[str, RefstoreError], None] | None = None,
    on_swept: Callable[[GcSummary], None] | None = None,
    clean_up: Callable[[Context], CleanupSummary] | None = None,
) -> NightlyResult:
    """Sweep what is due, then mark, then sweep what is due at once. What was swept is not listed again. `clean_up`:
    deletes what else is due, before all that.

    A sweep that fails is reported to `on_sweep_error` and stops nothing else; without `on_sweep_error` it raises.
    `on_swept` gets each sweep before the marking, which may raise.
    """
    ctx.audit.write_waiting()
    unswept: set[str] = set()
    """The marks whose sweeps failed, and `purge` if the cleaning of purges did."""
    cleaned: CleanupSummary | None = None
    try:
        cleaned = clean_up(ctx) if clean_up is not None else None
    except RefstoreError as error:
        if on_sweep_error is None or isinstance(error, KVUnavailable):
            raise
        gc_figures.record_failure(ctx, error)
        on_sweep_error("purge", error)
        unswept.add("purge")
    swept: dict[str, GcSummary] = {}
    for each in _sweep_due(ctx, engines, report_progress, on_sweep_error, unswept):
        swept[each.mark_id] = each
        if on_swept is not None:
            on_swept(each)
    marked = mark(ctx, engines, options, report_progress)
    if cleaned not in (None, CleanupSummary()):
        marked = msgspec.structs.replace(marked, purge_cleanup=cleaned)
        write_summary(ctx.objects, marked)
    swept |= {each.mark_id: each for each in _sweep_due(ctx, engines, report_progress, on_sweep_error, unswept)}
    remove_old_runs(ctx)
    deletion_index_writer.index_missing_or_log(ctx)
    if not unswept:
        gc_figures.record_run(ctx)
    waiting = [each for each in Marks(ctx).runs.scan() if each.state in OPEN_STATES]
    return NightlyResult(marked, list(swept.values()), waiting)


def _sweep_due(
    ctx: Context,
    engines: Engines,
    report_progress: ReportProgress,
    on_sweep_error: Callable[[str, RefstoreError], None] | None,
    unswept: set[str],
) -> Iterator[GcSummary]:
    """Sweep the marks that are due. `unswept`: those whose sweep failed, which are not tried again; it grows.

    No sweep needs that of an earlier mark: what commits name that stand under one that is not swept yet is excluded
    (rule 14).
    """
    marks = Marks(ctx)
    for mark_id in [each.mark_id for each in marks.runs.scan()]:
        # its state now: the earlier sweeps took their time
        if mark_id in unswept or not marks.runs.get(mark_id).is_due(ctx.clock.now_ms()):
            continue
        try:
            done = sweep(ctx, engines, mark_id, report_progress)
        except RefstoreError as error:
            if on_sweep_error is None or isinstance(error, KVUnavailable | RunStopped):
                raise
            gc_figures.record_failure(ctx, error)
            unswept.add(mark_id)
            on_sweep_error(mark_id, error)
        else:
            yield done


def remove_old_runs(ctx: Context) -> None:
    """Remove the files of runs that came to nothing. Those of marks that stand or were swept stay."""
    for each in Marks(ctx).runs.scan():
        if each.state is RunState.ABANDONED:
            remove_run_files(ctx.objects, each.mark_id)


__all__ = ["GcOptions", "NightlyResult", "mark", "remove_old_runs", "run_nightly", "sweep"]
