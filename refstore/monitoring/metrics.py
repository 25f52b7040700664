"""Declare every metric that refstore's processes serve for Prometheus: name, kind, unit, help, and labels.

A metric is declared here only. Its name, unit and help are what `docs/operating.md`, the alerts and the dashboard of
`deploy/` use; a test compares them. Names follow Prometheus's rules: a unit at the end, `_total` after a counter's
(which the client library adds).

Labels are bounded: see `LABELS`. A repository's series end when it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from refstore.errors import MissingExtra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

MetricUnit = Literal[
    "", "seconds", "bytes", "objects", "entries", "references", "addresses", "tokens", "marks", "requests"
]

LABELS: Final[Mapping[str, str]] = {
    "repository": "one for each repository of the lake",
    "method": "one of the methods of HTTP, or `other`",
    "route": "the template of a route; all unknown paths are `(none)`",
    "status": "the statuses that the service answers",
}
"""Every label, and what bounds its values."""


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: MetricUnit
    """'': a plain number, such as 0 or 1."""
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series_name(self) -> str:
        """The name of its series: a counter's ends with `_total`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_REPOSITORY: Final = ("repository",)

# ---- the service

API_REQUESTS: Final = Metric(
    "refstore_api_requests", "counter", "requests", "Requests that were answered.", ("method", "route", "status")
)
API_SECONDS: Final = Metric(
    "refstore_api_seconds",
    "histogram",
    "seconds",
    "Time from a request to the end of its answer.",
    ("route",),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
)
KV_PROBE_SECONDS: Final = Metric(
    "refstore_kv_probe_seconds", "gauge", "seconds", "How long the KV took to answer a read, made for this scrape."
)
SETTLEMENT_WAIT_SECONDS: Final = Metric(
    "refstore_settlement_wait_seconds",
    "gauge",
    "seconds",
    "How long nothing will be deleted still, because other servers of the KV answer than before; 0: deletion goes on.",
)
REPOSITORY_LIVE_ENTRIES: Final = Metric(
    "refstore_repository_live_entries", "gauge", "entries", "What the default branch's head names.", _REPOSITORY
)
REPOSITORY_LIVE_BYTES: Final = Metric("refstore_repository_live_bytes", "gauge", "bytes", "Its bytes.", _REPOSITORY)
REPOSITORY_STAGED_ENTRIES: Final = Metric(
    "refstore_repository_staged_entries", "gauge", "entries", "What is staged, on all branches.", _REPOSITORY
)
REPOSITORY_STAGED_BYTES: Final = Metric("refstore_repository_staged_bytes", "gauge", "bytes", "Its bytes.", _REPOSITORY)
REPOSITORY_IN_GRACE_OBJECTS: Final = Metric(
    "refstore_repository_in_grace_objects", "gauge", "objects", "What can be restored from the trash.", _REPOSITORY
)
REPOSITORY_IN_GRACE_BYTES: Final = Metric(
    "refstore_repository_in_grace_bytes", "gauge", "bytes", "Its bytes.", _REPOSITORY
)
REPOSITORY_DUE_OBJECTS: Final = Metric(
    "refstore_repository_due_objects", "gauge", "objects", "What the reaper deletes next.", _REPOSITORY
)
REPOSITORY_DUE_BYTES: Final = Metric("refstore_repository_due_bytes", "gauge", "bytes", "Its bytes.", _REPOSITORY)
REPOSITORY_MARKED_OBJECTS: Final = Metric(
    "refstore_repository_marked_objects", "gauge", "objects", "What the marks hold that are not swept yet.", _REPOSITORY
)
REPOSITORY_ORPHAN_OBJECTS: Final = Metric(
    "refstore_repository_orphan_objects",
    "gauge",
    "objects",
    "What the last run found that the online path had missed.",
    _REPOSITORY,
)
REPOSITORY_REFUSED_OBJECTS: Final = Metric(
    "refstore_repository_refused_objects",
    "gauge",
    "objects",
    "What the store did not delete, in the last pass of a reaper and in the last sweep.",
    _REPOSITORY,
)
REPOSITORY_DELETION_STOPPED: Final = Metric(
    "refstore_repository_deletion_stopped", "gauge", "", "1: the breaker stopped hard deletion.", _REPOSITORY
)
REPOSITORY_KV_WENT_BACK: Final = Metric(
    "refstore_repository_kv_went_back", "gauge", "", "1: it is stopped because the KV lost writes.", _REPOSITORY
)
REPOSITORY_HAS_RULES: Final = Metric(
    "refstore_repository_has_rules", "gauge", "", "1: the repository has retention rules.", _REPOSITORY
)
REPOSITORY_QUESTIONS: Final = Metric(
    "refstore_repository_waiting_marks", "gauge", "marks", "Marks that wait for `refstore gc confirm`.", _REPOSITORY
)
REPOSITORY_LAST_RUN: Final = Metric(
    "refstore_repository_last_run_timestamp_seconds",
    "gauge",
    "seconds",
    "When the offline job last succeeded, since 1970; the time of the repository's creation if it never did.",
    _REPOSITORY,
)
REPOSITORY_MEASURED: Final = Metric(
    "refstore_repository_measured_timestamp_seconds",
    "gauge",
    "seconds",
    "When a reaper last measured these figures, since 1970.",
    _REPOSITORY,
)

# ---- the reaper

REAPER_DELETED: Final = Metric(
    "refstore_reaper_deleted_objects", "counter", "objects", "What the store confirmed as deleted.", _REPOSITORY
)
REAPER_DELETED_BYTES: Final = Metric(
    "refstore_reaper_deleted_bytes", "counter", "bytes", "Its bytes, as far as sizes were known.", _REPOSITORY
)
REAPER_MISSING: Final = Metric(
    "refstore_reaper_missing_objects", "counter", "addresses", "Addresses that had no object any more.", _REPOSITORY
)
REAPER_FAILED: Final = Metric(
    "refstore_reaper_failed_objects",
    "counter",
    "objects",
    "What the store did not delete; it is tried again.",
    _REPOSITORY,
)
REAPER_RELEASED: Final = Metric(
    "refstore_reaper_released_references", "counter", "references", "References taken off their lists.", _REPOSITORY
)
REAPER_EXPIRED_ISSUED: Final = Metric(
    "refstore_reaper_expired_issued_addresses",
    "counter",
    "addresses",
    "Issued addresses that were not linked in time.",
    _REPOSITORY,
)
REAPER_SCRUBBED: Final = Metric(
    "refstore_reaper_scrubbed_references",
    "counter",
    "references",
    "References of crashed operations that were dropped.",
    _REPOSITORY,
)
REAPER_TOKENS: Final = Metric(
    "refstore_reaper_processed_tokens", "counter", "tokens", "Staging tokens processed to their end.", _REPOSITORY
)
REAPER_ERRORS: Final = Metric(
    "refstore_reaper_errors", "counter", "", "Units of work that were stopped by an error.", _REPOSITORY
)
REAPER_DUE: Final = Metric(
    "refstore_reaper_due_objects", "gauge", "addresses", "Addresses that are due for deletion.", _REPOSITORY
)
REAPER_OLDEST_DUE: Final = Metric(
    "refstore_reaper_oldest_due_seconds", "gauge", "seconds", "How long the oldest of them has been due.", _REPOSITORY
)
REAPER_WAITING_TOKENS: Final = Metric(
    "refstore_reaper_waiting_tokens", "gauge", "tokens", "Tokens whose references are to be released.", _REPOSITORY
)
REAPER_BREAKER: Final = Metric(
    "refstore_reaper_breaker_tripped", "gauge", "", "1: hard deletion is stopped.", _REPOSITORY
)
REAPER_SETTLEMENT_WAIT: Final = Metric(
    "refstore_reaper_settlement_wait_seconds",
    "gauge",
    "seconds",
    "How long this reaper will delete nothing still, as other servers of the KV answer; 0: deletion goes on.",
)
REAPER_BEAT: Final = Metric(
    "refstore_reaper_beat_timestamp_seconds", "gauge", "seconds", "The time of the reaper's last heartbeat, since 1970."
)

METRICS: Final[Sequence[Metric]] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All of them, in the order above."""


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """Make a counter in a registry. This and the next two raise MissingExtra."""
    _check_extra()
    from prometheus_client import Counter

    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    _check_extra()
    from prometheus_client import Gauge

    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    _check_extra()
    from prometheus_client import Histogram

    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)


def new_registry() -> CollectorRegistry:
    """Return an empty registry. Raises MissingExtra."""
    _check_extra()
    from prometheus_client import CollectorRegistry

    return CollectorRegistry()


def _check_extra() -> None:
    if find_spec("prometheus_client") is None:
        raise MissingExtra("metrics", "serving metrics")
