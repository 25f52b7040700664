"""Metrics for Prometheus: the summaries' counts per repository, the backlog, the breaker, and the last heartbeat."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from refstore.errors import InvalidSettings
from refstore.monitoring import metrics
from refstore_reaper.backlog import Backlog
from refstore_reaper.pass_summary import PassSummary

COUNTED: Final = {
    "deleted": metrics.REAPER_DELETED,
    "bytes": metrics.REAPER_DELETED_BYTES,
    "missing": metrics.REAPER_MISSING,
    "failed": metrics.REAPER_FAILED,
    "released": metrics.REAPER_RELEASED,
    "expired": metrics.REAPER_EXPIRED_ISSUED,
    "scrubbed": metrics.REAPER_SCRUBBED,
    "tokens": metrics.REAPER_TOKENS,
    "error_count": metrics.REAPER_ERRORS,
}
"""Field of the summary -> its counter."""


FETCHED_SECONDS: Final = 600
"""For how long after a fetch `FileMetrics` measures the backlog."""
_METRICS_NAME: Final = "reaper.prom"
_FETCHED_NAME: Final = "fetched"


class ReaperMetrics:
    """Keeps no metrics."""

    is_read: bool = False
    """Whether the metrics are read, so that measuring the backlog, which costs requests to the KV, is worthwhile."""

    def record_pass(self, repository: str, summary: PassSummary) -> None: ...

    def record_backlog(self, repository: str, backlog: Backlog, now_ms: int) -> None: ...

    def record_breaker(self, repository: str, tripped: bool) -> None: ...

    def record_settling(self, seconds: float) -> None:
        """Record for how long nothing is deleted after other servers of the KV answer; 0: deletion goes on."""

    def forget_others(self, repositories: Collection[str]) -> None:
        """End the series of repositories that are not among these."""

    def record_beat(self, now_ms: int) -> None: ...

    def close(self) -> None: ...


class _RegistryMetrics(ReaperMetrics):
    """Keeps the metrics in a registry. Raises MissingExtra."""

    is_read = True

    def __init__(self) -> None:
        registry = self._registry = metrics.new_registry()
        self._counters = {name: metrics.counter(metric, registry) for name, metric in COUNTED.items()}
        self._due = metrics.gauge(metrics.REAPER_DUE, registry)
        self._oldest = metrics.gauge(metrics.REAPER_OLDEST_DUE, registry)
        self._tokens = metrics.gauge(metrics.REAPER_WAITING_TOKENS, registry)
        self._breaker = metrics.gauge(metrics.REAPER_BREAKER, registry)
        self._settling = metrics.gauge(metrics.REAPER_SETTLEMENT_WAIT, registry)
        self._beat = metrics.gauge(metrics.REAPER_BEAT, registry)
        self._repositories: set[str] = set()

    def record_pass(self, repository: str, summary: PassSummary) -> None:
        self._repositories.add(repository)
        for name, counter in self._counters.items():
            counter.labels(repository).inc(getattr(summary, name))

    def record_backlog(self, repository: str, backlog: Backlog, now_ms: int) -> None:
        self._due.labels(repository).set(backlog.due)
        self._oldest.labels(repository).set(
            0 if backlog.oldest_due_ms is None else max(0, now_ms - backlog.oldest_due_ms) / 1000
        )
        self._tokens.labels(repository).set(backlog.tokens)

    def record_breaker(self, repository: str, tripped: bool) -> None:
        self._breaker.labels(repository).set(int(tripped))

    def record_settling(self, seconds: float) -> None:
        self._settling.set(seconds)

    def forget_others(self, repositories: Collection[str]) -> None:
        for name in self._repositories - set(repositories):
            for metric in (*self._counters.values(), self._due, self._oldest, self._tokens, self._breaker):
                with suppress(KeyError):  # it was never measured
                    metric.remove(name)
        self._repositories &= set(repositories)

    def record_beat(self, now_ms: int) -> None:
        self._beat.set(now_ms / 1000)


class PrometheusMetrics(_RegistryMetrics):
    """Served over HTTP until closed. Raises MissingExtra, InvalidSettings (the port is taken)."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise InvalidSettings(
                f"metrics cannot be served at {host}:{port} ({error}); choose another --metrics-port"
            ) from error

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class FileMetrics(_RegistryMetrics):
    """Writes the metrics into a folder with each heartbeat. The processes of a service read them there
    (`read_metrics_file`) and answer for the reaper. Raises MissingExtra.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @property
    def is_read(self) -> bool:
        """Whether somebody fetched the metrics lately."""
        try:
            return time.time() - (self._folder / _FETCHED_NAME).stat().st_mtime < FETCHED_SECONDS
        except OSError:
            return False

    def record_beat(self, now_ms: int) -> None:
        from prometheus_client import write_to_textfile

        super().record_beat(now_ms)
        # a full disk must not stop the reaper; the time of the beat says how old the metrics are
        with suppress(OSError):
            write_to_textfile(str(self._folder / _METRICS_NAME), self._registry)


def read_metrics_file(folder: Path) -> bytes:
    """Return what the reaper wrote last, as Prometheus reads it; nothing where it has not written yet.

    This touches a file that tells the reaper of the fetch.
    """
    with suppress(OSError):
        (folder / _FETCHED_NAME).touch()
    try:
        return (folder / _METRICS_NAME).read_bytes()
    except OSError:
        return b""
