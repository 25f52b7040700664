"""Measure the service for Prometheus: its requests, its KV, and the figures of each repository."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from prometheus_client import generate_latest

from refstore.core.clock import to_ms
from refstore.errors import KVUnavailable, RefstoreError
from refstore.lake import Lake
from refstore.monitoring import figures, metrics
from refstore.monitoring.figures import Figures
from refstore.monitoring.metrics import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class RequestMetrics:
    """Count the requests of one process; each worker has its own counts."""

    def __init__(self) -> None:
        self._registry = metrics.new_registry()
        self._requests = metrics.counter(metrics.API_REQUESTS, self._registry)
        self._seconds = metrics.histogram(metrics.API_SECONDS, self._registry)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)


def render_lake_metrics(lake: Lake) -> bytes:
    """Return the figures of all repositories, as reapers and runs wrote them, and how fast the KV answered.

    They are read for each scrape, in a handful of calls, so a repository that is gone is not there any more.
    """
    registry = metrics.new_registry()
    probe = metrics.gauge(metrics.KV_PROBE_SECONDS, registry)
    began = time.perf_counter()
    try:
        repositories = list(lake.repository_records())
        known = figures.read_all_figures(lake.kv, [record.id for _, record in repositories])
        probe.set(time.perf_counter() - began)
    except KVUnavailable:
        probe.set(float("inf"))  # the other metrics are of use all the same
        return generate_latest(registry)
    with suppress(RefstoreError):  # what a probe of the stores says is told elsewhere
        wait = lake.settlement_wait()
        left_ms = max(1, to_ms(wait.until) - lake.clock.now_ms()) if wait is not None else 0
        metrics.gauge(metrics.SETTLEMENT_WAIT_SECONDS, registry).set(left_ms / 1000)
    none = Figures()
    gauges = {metric: metrics.gauge(metric, registry) for metric in _measured_values(none) | _known_values(none, 0)}
    for name, record in repositories:
        own = known[record.id]
        measured = _measured_values(own) if own.reaper.measured_ms else {}
        for metric, value in (measured | _known_values(own, record.created_ms)).items():
            gauges[metric].labels(name).set(value)
    return generate_latest(registry)


def _measured_values(known: Figures) -> dict[Metric, float]:
    """Return what has no value before a reaper has measured the repository."""
    reaper = known.reaper
    return {
        metrics.REPOSITORY_LIVE_ENTRIES: reaper.live.objects,
        metrics.REPOSITORY_LIVE_BYTES: reaper.live.bytes,
        metrics.REPOSITORY_STAGED_ENTRIES: reaper.staged.objects,
        metrics.REPOSITORY_STAGED_BYTES: reaper.staged.bytes,
        metrics.REPOSITORY_IN_GRACE_OBJECTS: reaper.in_grace.objects,
        metrics.REPOSITORY_IN_GRACE_BYTES: reaper.in_grace.bytes,
        metrics.REPOSITORY_DUE_OBJECTS: reaper.due.objects,
        metrics.REPOSITORY_DUE_BYTES: reaper.due.bytes,
    }


def _known_values(known: Figures, created_ms: int) -> dict[Metric, float]:
    reaper, gc, has_rules = known
    return {
        metrics.REPOSITORY_MARKED_OBJECTS: gc.marked.objects,
        metrics.REPOSITORY_ORPHAN_OBJECTS: gc.orphans.objects,
        metrics.REPOSITORY_REFUSED_OBJECTS: reaper.refused_objects + gc.failed_objects,
        metrics.REPOSITORY_DELETION_STOPPED: bool(reaper.stop_reason),
        metrics.REPOSITORY_KV_WENT_BACK: reaper.kv_went_back,
        metrics.REPOSITORY_HAS_RULES: has_rules,
        metrics.REPOSITORY_QUESTIONS: gc.questions,
        metrics.REPOSITORY_LAST_RUN: max(gc.run_ms, gc.marked_ms, created_ms) / 1000,
        metrics.REPOSITORY_MEASURED: reaper.measured_ms / 1000,
    }
