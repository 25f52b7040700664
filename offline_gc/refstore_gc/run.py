"""The nightly job: delete what purges left behind, sweep what is due, mark, and sweep what is due at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from refstore.context import Context
from refstore.errors import KVUnavailable, RefstoreError, RunStopped
from refstore.gc_marks import Marks, Run, RunState
from refstore_gc import deletion_index_writer, gc_figures, purge_cleaning
from refstore_gc.engines.choice import Engines
from refstore_gc.mark import mark
from refstore_gc.run_context import Options
from refstore_gc.run_layout import remove
from refstore_gc.run_progress import Tell, silent
from refstore_gc.run_summary import CleaningSummary, Summary, write_summary
from refstore_gc.sweep import sweep


@dataclass(frozen=True, slots=True)
class Ran:
    """What a nightly run did in one repository."""

    marked: Summary
    swept: Sequence[Summary]
    """The marks that were due, this run's own among them if there is no grace; each as its last sweep left it.
    """
    waiting: Sequence[Run]
    """Marks that stand and are not due, or need an operator."""

    @property
    def latest(self) -> Summary:
        """Return what was marked, with its sweep if that was at once."""
        return next((each for each in self.swept if each.mark_id == self.marked.mark_id), self.marked)

    @property
    def failed(self) -> int:
        """Return how many objects the store did not delete: of the sweeps, and of what purges left behind."""
        cleaned = self.marked.cleaned
        of_sweeps = sum(summary.swept.failed for summary in self.swept if summary.swept is not None)
        return of_sweeps + (cleaned.failed if cleaned is not None else 0)


def run(
    ctx: Context,
    engines: Engines,
    options: Options,
    tell: Tell = silent,
    *,
    on_unswept: Callable[[str, RefstoreError], None] | None = None,
    on_swept: Callable[[Summary], None] | None = None,
) -> Ran:
    """Do the nightly job: delete what purges left behind, sweep what is due, then mark, then sweep what is due at once.
    What was swept is not listed again.

    A sweep that fails is reported to `on_unswept` and stops nothing else; without `on_unswept` it raises. `on_swept`
    gets each sweep before the marking, which may raise.
    """
    ctx.audit.write_waiting()
    unswept: set[str] = set()
    """The marks whose sweeps failed, and `purge` if the cleaning of purges did."""
    cleaned: CleaningSummary | None = None
    try:
        cleaned = purge_cleaning.clean(ctx)
    except RefstoreError as error:
        if on_unswept is None or isinstance(error, KVUnavailable):
            raise
        gc_figures.note_failure(ctx, error)
        on_unswept("purge", error)
        unswept.add("purge")
    swept: dict[str, Summary] = {}
    for each in _sweep_due(ctx, engines, tell, on_unswept, unswept):
        swept[each.mark_id] = each
        if on_swept is not None:
            on_swept(each)
    marked = mark(ctx, engines, options, tell)
    if cleaned not in (None, CleaningSummary()):
        marked = msgspec.structs.replace(marked, cleaned=cleaned)
        write_summary(ctx.objects, marked)
    swept |= {each.mark_id: each for each in _sweep_due(ctx, engines, tell, on_unswept, unswept)}
    forget_old(ctx)
    deletion_index_writer.catch_up_or_log(ctx)
    if not unswept:
        gc_figures.note_run(ctx)
    waiting = [
        each
        for each in Marks(ctx).runs.all()
        if each.state in (RunState.MARKED, RunState.NEEDS_CONFIRMATION, RunState.SWEEPING)
    ]
    return Ran(marked, list(swept.values()), waiting)


def _sweep_due(
    ctx: Context,
    engines: Engines,
    tell: Tell,
    on_unswept: Callable[[str, RefstoreError], None] | None,
    unswept: set[str],
) -> Iterator[Summary]:
    """Sweep the marks that are due. `unswept`: those whose sweep failed, which are not tried again; it grows.

    No sweep needs that of an earlier mark: what commits name that stand under one that is not swept yet is excluded
    (rule 14).
    """
    marks = Marks(ctx)
    for mark_id in [each.mark_id for each in marks.runs.all()]:
        if mark_id in unswept or not marks.runs.get(mark_id).is_due(
            ctx.clock.now_ms()
        ):  # its state now: the earlier sweeps took their time
            continue
        try:
            done = sweep(ctx, engines, mark_id, tell)
        except RefstoreError as error:
            if on_unswept is None or isinstance(error, KVUnavailable | RunStopped):
                raise
            gc_figures.note_failure(ctx, error)
            unswept.add(mark_id)
            on_unswept(mark_id, error)
        else:
            yield done


def forget_old(ctx: Context) -> None:
    """Remove the files of runs that came to nothing. Those of marks that stand or were swept stay."""
    for each in Marks(ctx).runs.all():
        if each.state is RunState.ABANDONED:
            remove(ctx.objects, each.mark_id)


__all__ = ["Options", "Ran", "forget_old", "mark", "run", "sweep"]
