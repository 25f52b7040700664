"""Metrics for Prometheus: the summaries' counts per repository, the backlog, the breaker, and the last heartbeat."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from refstore.errors import InvalidSettings, MissingExtra
from refstore_reaper.backlog import Backlog
from refstore_reaper.cycle_summary import Summary

COUNTED: Final = {
    "deleted": ("refstore_reaper_deleted_objects", "Objects that the store confirmed as deleted."),
    "bytes": ("refstore_reaper_deleted_bytes", "Bytes of the deleted objects, as far as their sizes were known."),
    "missing": ("refstore_reaper_missing_objects", "Addresses that had no object any more."),
    "failed": ("refstore_reaper_failed_objects", "Objects that the store did not delete; they are tried again."),
    "released": ("refstore_reaper_released_references", "References taken off their lists."),
    "expired": ("refstore_reaper_expired_addresses", "Issued addresses that were not linked in time."),
    "scrubbed": ("refstore_reaper_scrubbed_references", "References of crashed operations that were dropped."),
    "tokens": ("refstore_reaper_processed_tokens", "Staging tokens processed to their end."),
    "error_count": ("refstore_reaper_errors", "Units of work that were stopped by an error."),
}
"""Field of the summary -> the counter's name and help."""


FETCHED_SECONDS: Final = 600
"""For how long after a fetch `FileMetrics` measures the backlog."""
_METRICS_NAME: Final = "reaper.prom"
_FETCHED_NAME: Final = "fetched"


class Metrics(Protocol):
    def record_pass(self, repository: str, summary: Summary) -> None: ...

    def record_backlog(self, repository: str, backlog: Backlog, now_ms: int) -> None: ...

    def record_breaker(self, repository: str, tripped: bool) -> None: ...

    def record_beat(self, now_ms: int) -> None: ...

    @property
    def is_read(self) -> bool:
        """Return whether the metrics are read, so that measuring the backlog, which costs requests to the KV, is
        worthwhile.
        """
        ...

    def close(self) -> None: ...


class NoMetrics:
    is_read = False

    def record_pass(self, repository: str, summary: Summary) -> None: ...

    def record_backlog(self, repository: str, backlog: Backlog, now_ms: int) -> None: ...

    def record_breaker(self, repository: str, tripped: bool) -> None: ...

    def record_beat(self, now_ms: int) -> None: ...

    def close(self) -> None: ...


class _RegistryMetrics:
    """Keeps the metrics in a registry. Raises MissingExtra."""

    is_read = True

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge
        except ModuleNotFoundError as error:
            raise MissingExtra("metrics", "serving metrics") from error
        registry = self._registry = CollectorRegistry()
        label = ("repository",)
        self._counters = {name: Counter(*of, labelnames=label, registry=registry) for name, of in COUNTED.items()}
        self._due = Gauge(
            "refstore_reaper_due_objects", "Addresses that are due for deletion.", label, registry=registry
        )
        self._oldest = Gauge(
            "refstore_reaper_oldest_due_seconds", "How long the oldest of them has been due.", label, registry=registry
        )
        self._tokens = Gauge(
            "refstore_reaper_waiting_tokens", "Tokens whose references are to be released.", label, registry=registry
        )
        self._breaker = Gauge(
            "refstore_reaper_breaker_tripped", "1: hard deletion is stopped.", label, registry=registry
        )
        self._beat = Gauge(
            "refstore_reaper_beat_timestamp_seconds", "The time of the reaper's last heartbeat.", registry=registry
        )

    def record_pass(self, repository: str, summary: Summary) -> None:
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

    def record_beat(self, now_ms: int) -> None:
        self._beat.set(now_ms / 1000)

    def close(self) -> None: ...


class PrometheusMetrics(_RegistryMetrics):
    """Served over HTTP until closed. Raises MissingExtra, InvalidSettings (the port is taken)."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise InvalidSettings(
                f"metrics cannot be served at {host}:{port} ({error}); choose another reaper.metrics_port"
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
