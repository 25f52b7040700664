"""Write what operators see of the offline job's runs (`refstore/monitoring/figures.py`). What the KV does not take is
lost.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from refstore.context import Context
from refstore.core import event_log
from refstore.core.redaction import redact_text
from refstore.errors import RefstoreError, RunStopped, RunUnderWay
from refstore.monitoring import figures
from refstore.records.figure_records import Amount, GcFigures
from refstore_gc.run_summary import DELETED_BY_BUCKET_OUTCOME, DELETED_OUTCOME, GcSummary, ObjectCount, SweepResult

ERROR_CHARACTERS = 300
_log = event_log.get_logger(__name__)


def record_mark(ctx: Context, summary: GcSummary) -> None:
    """Note a mark that was finished, and what the online path had missed."""
    drift = sum(summary.drift.values(), ObjectCount())
    now_ms = ctx.clock.now_ms()

    def change(before: GcFigures) -> GcFigures:
        return msgspec.structs.replace(
            figures.measure_marks(ctx, before),
            marked_ms=now_ms,
            mark_id=summary.mark_id,
            orphans=Amount(drift.objects, drift.bytes),
            orphans_before=before.orphans,
        )

    _change_figures(ctx, change)


def record_sweep(ctx: Context, swept: SweepResult) -> None:
    """Note what a sweep deleted, as the store confirmed it, and what it could not delete."""
    deleted = swept.new_outcomes.get(DELETED_OUTCOME, ObjectCount()) + swept.new_outcomes.get(
        DELETED_BY_BUCKET_OUTCOME, ObjectCount()
    )
    amount = Amount(max(0, deleted.objects), max(0, deleted.bytes))

    def change(before: GcFigures) -> GcFigures:
        days = figures.add_reclaimed(before.reclaimed, amount, swept.at_ms)
        measured = figures.measure_marks(ctx, before)
        return msgspec.structs.replace(measured, reclaimed=days, failed_objects=swept.failed_objects)

    _change_figures(ctx, change)


def record_run(ctx: Context) -> None:
    """Note that a nightly run did everything that it was to do."""
    now_ms = ctx.clock.now_ms()
    _change_figures(ctx, lambda before: msgspec.structs.replace(before, run_ms=now_ms, error="", error_ms=0))


def record_failure(ctx: Context, error: RefstoreError) -> None:
    """Note why a run failed. One that was stopped, or found another run under way, did not fail."""
    if isinstance(error, RunStopped | RunUnderWay):
        return
    now_ms, message = ctx.clock.now_ms(), redact_text(str(error))[:ERROR_CHARACTERS]
    _change_figures(ctx, lambda before: msgspec.structs.replace(before, error=message, error_ms=now_ms))


def _change_figures(ctx: Context, change: Callable[[GcFigures], GcFigures]) -> None:
    try:
        figures.change_gc_figures(ctx.kv, ctx.repo, ctx.ids.new_id(ctx.clock.now_ms()), change)
    except RefstoreError as error:
        _log.warning("figures_not_written", repository=ctx.name, code=error.code, error=str(error))
