"""Write what operators see of the offline job's runs (`refstore/monitoring/figures.py`). What the KV does not take is
lost.

`GcMetrics` is what Prometheus may fetch of a job that runs again and again (`refstore gc run --every`). Counters count
what this process has seen confirmed; gauges say how each repository was left by its last run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from refstore.context import Context
from refstore.core import event_log
from refstore.core.redaction import redact_text
from refstore.errors import InvalidSettings, RefstoreError, RunStopped, RunUnderWay
from refstore.gc_marks import OfflineRun, RunState
from refstore.monitoring import figures, metrics
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


RunOutcome = Literal["done", "failed", "another run"]


class GcMetrics:
    """Served over HTTP until closed. Raises MissingExtra, InvalidSettings (the port is taken)."""

    def __init__(self, host: str, port: int) -> None:
        registry = metrics.new_registry()
        self._runs = metrics.counter(metrics.GC_RUNS, registry)
        self._errors = metrics.counter(metrics.GC_ERRORS, registry)
        self._marked = metrics.counter(metrics.GC_MARKED, registry)
        self._marked_bytes = metrics.counter(metrics.GC_MARKED_BYTES, registry)
        self._deleted = metrics.counter(metrics.GC_DELETED, registry)
        self._deleted_bytes = metrics.counter(metrics.GC_DELETED_BYTES, registry)
        self._failed = metrics.gauge(metrics.GC_FAILED, registry)
        self._drift = metrics.gauge(metrics.GC_DRIFT, registry)
        self._drift_bytes = metrics.gauge(metrics.GC_DRIFT_BYTES, registry)
        self._ended_at = metrics.gauge(metrics.GC_LAST_RUN, registry)
        self._seconds = metrics.gauge(metrics.GC_LAST_RUN_SECONDS, registry)
        self._marks = metrics.gauge(metrics.GC_MARKS, registry)
        self._question = metrics.gauge(metrics.GC_NEEDS_CONFIRMATION, registry)
        self._tagged = metrics.gauge(metrics.GC_TAGGED, registry)
        self._tagged_since = metrics.gauge(metrics.GC_TAGGED_OLDEST, registry)
        self._next = metrics.gauge(metrics.GC_NEXT_RUN, registry)
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise InvalidSettings(
                f"metrics cannot be served at {host}:{port} ({error}); choose another --metrics-port, or "
                "offline.metrics_host"
            ) from error

    @property
    def port(self) -> int:
        return self._server.server_port

    def count_run(self, repository: str, how: RunOutcome) -> None:
        self._runs.labels(repository, how).inc()

    def count_error(self, repository: str, code: str) -> None:
        self._errors.labels(repository, code).inc()

    def count_deleted(self, repository: str, count: ObjectCount, *, by: Literal["refstore", "bucket"]) -> None:
        self._deleted.labels(repository, by).inc(max(0, count.objects))
        self._deleted_bytes.labels(repository, by).inc(max(0, count.bytes))

    def count_marked(self, repository: str, summary: GcSummary) -> None:
        """Count what a run marked."""
        drift = sum(summary.drift.values(), ObjectCount())
        self._marked.labels(repository).inc(summary.marked.objects)
        self._marked_bytes.labels(repository).inc(summary.marked.bytes)
        self._drift.labels(repository).set(drift.objects)
        self._drift_bytes.labels(repository).set(drift.bytes)

    def count_swept(self, repository: str, summaries: Sequence[GcSummary]) -> None:
        """Count what the last sweeps of these marks added to earlier ones, and what is left of them."""
        done = [summary.sweep for summary in summaries if summary.sweep is not None]
        for each in done:
            self.count_deleted(repository, each.new_outcomes.get(DELETED_OUTCOME, ObjectCount()), by="refstore")
            self.count_deleted(repository, each.new_outcomes.get(DELETED_BY_BUCKET_OUTCOME, ObjectCount()), by="bucket")
        self._failed.labels(repository).set(sum(each.failed_objects for each in done))
        self._tagged.labels(repository).set(sum(each.tagged_count.objects for each in done))

    def set_open_marks(self, repository: str, runs: Sequence[OfflineRun], now_ms: int) -> None:
        """Say which marks stand."""
        shown = [run.state_text for run in runs]
        for state in (RunState.MARKED.value, RunState.NEEDS_CONFIRMATION.value, RunState.SWEEPING.value, "tagged"):
            self._marks.labels(repository, state).set(shown.count(state))
        self._question.labels(repository).set(int(RunState.NEEDS_CONFIRMATION.value in shown))
        since = min((run.record.tagged_ms for run in runs if run.is_tagged), default=now_ms)
        self._tagged_since.labels(repository).set(max(0, now_ms - since) / 1000)

    def set_last_run(self, repository: str, now_ms: int, seconds: float) -> None:
        self._ended_at.labels(repository).set(now_ms / 1000)
        self._seconds.labels(repository).set(seconds)

    def set_next_run(self, at_ms: float) -> None:
        self._next.set(at_ms / 1000)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
