"""What Prometheus may fetch of a job that runs again and again (`refstore gc run --every`). Needs no Spark.

Counters count what this process has seen confirmed; gauges say how each repository was left by its last run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from refstore.errors import InvalidSettings, MissingExtra
from refstore.gc_marks import Run, RunState
from refstore_gc.run_summary import BUCKET, DELETED, Count, Summary

Ended = Literal["done", "failed", "another run"]

_PREFIX: Final = "refstore_gc_"


class GcMetrics:
    """Served over HTTP until closed. Raises MissingExtra, InvalidSettings (the port is taken)."""

    def __init__(self, host: str, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
        except ModuleNotFoundError as error:
            raise MissingExtra("metrics", "serving metrics") from error
        registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, ("repository", *labels), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, ("repository", *labels), registry=registry)

        self._runs = counter(
            "runs", "Runs, by how they ended: done, failed, or left to another run that was on.", "ended"
        )
        self._errors = counter("errors", "What went wrong, by the error's code.", "code")
        self._marked = counter("marked_objects", "Objects that were marked.")
        self._marked_bytes = counter("marked_bytes", "Their bytes.")
        self._deleted = counter(
            "deleted_objects", "Objects that the store confirmed as gone, deleted by refstore or by the bucket.", "by"
        )
        self._deleted_bytes = counter("deleted_bytes", "Their bytes.", "by")
        self._failed = gauge(
            "failed_objects", "Objects that the store did not delete at the last run; the next one tries again."
        )
        self._drift = gauge("drift_objects", "Objects that the last run marked and the online path had missed.")
        self._drift_bytes = gauge("drift_bytes", "Their bytes.")
        self._ended_at = gauge("last_run_timestamp_seconds", "When the last run that was done ended.")
        self._seconds = gauge("last_run_seconds", "How long it took.")
        self._marks = gauge("marks", "Marks that stand, by their state.", "state")
        self._question = gauge("question_waiting", "1: a mark waits for `refstore gc confirm`.")
        self._tagged = gauge("tagged_objects", "Objects that are tagged and that the bucket has yet to delete.")
        self._tagged_since = gauge("tagged_oldest_seconds", "For how long the oldest of them has waited.")
        self._next = Gauge(_PREFIX + "next_pass_timestamp_seconds", "When the next pass begins.", registry=registry)
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

    def ended(self, repository: str, how: Ended) -> None:
        self._runs.labels(repository, how).inc()

    def error(self, repository: str, code: str) -> None:
        self._errors.labels(repository, code).inc()

    def deleted(self, repository: str, count: Count, *, by: Literal["refstore", "bucket"]) -> None:
        self._deleted.labels(repository, by).inc(max(0, count.objects))
        self._deleted_bytes.labels(repository, by).inc(max(0, count.bytes))

    def marked(self, repository: str, summary: Summary) -> None:
        """Count what a run marked."""
        drift = sum(summary.drift.values(), Count())
        self._marked.labels(repository).inc(summary.marked.objects)
        self._marked_bytes.labels(repository).inc(summary.marked.bytes)
        self._drift.labels(repository).set(drift.objects)
        self._drift_bytes.labels(repository).set(drift.bytes)

    def swept(self, repository: str, summaries: Sequence[Summary]) -> None:
        """Count what the last sweeps of these marks added to earlier ones, and what is left of them."""
        done = [summary.swept for summary in summaries if summary.swept is not None]
        for each in done:
            self.deleted(repository, each.newly.get(DELETED, Count()), by="refstore")
            self.deleted(repository, each.newly.get(BUCKET, Count()), by="bucket")
        self._failed.labels(repository).set(sum(each.failed for each in done))
        self._tagged.labels(repository).set(sum(each.tagged.objects for each in done))

    def standing(self, repository: str, runs: Sequence[Run], now_ms: int) -> None:
        """Say which marks stand."""
        shown = [run.shown for run in runs]
        for state in (RunState.MARKED.value, RunState.NEEDS_CONFIRMATION.value, RunState.SWEEPING.value, "tagged"):
            self._marks.labels(repository, state).set(shown.count(state))
        self._question.labels(repository).set(int(RunState.NEEDS_CONFIRMATION.value in shown))
        since = min((run.record.tagged_ms for run in runs if run.is_tagged), default=now_ms)
        self._tagged_since.labels(repository).set(max(0, now_ms - since) / 1000)

    def finished(self, repository: str, now_ms: int, seconds: float) -> None:
        self._ended_at.labels(repository).set(now_ms / 1000)
        self._seconds.labels(repository).set(seconds)

    def next_pass(self, at_ms: float) -> None:
        self._next.set(at_ms / 1000)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
