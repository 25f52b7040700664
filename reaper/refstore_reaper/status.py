"""The answer of `refstore reaper status`: the reapers, the backlog, and the repositories whose hard deletion is
stopped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import structs

from refstore.core.ids import RepositoryName
from refstore.core.redaction import redact_text
from refstore.errors import CorruptRecord, KVUnavailable, RefstoreError
from refstore.lake import Lake
from refstore.operations import deleted_names
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.reaper_records import Heartbeat
from refstore.records.repository_records import RepositoryRecord
from refstore_reaper import backlog, breaker

LATE_BEATS: Final = 6
"""A reaper that missed so many heartbeats counts as dead. A long batch may cost one or two."""
SKEW_SECONDS_MAX: Final = 10.0
"""How much of the clocks' difference that is allowed counts here. Nothing rests on it but what people see."""
COUNT_MAX: Final = 100_000


class ReaperStatus(NamedTuple):
    reaper: str
    is_alive: bool
    host: str
    pid: int
    started_ms: int
    beat_ms: int
    passes: int
    released_references: int
    deleted_objects: int
    deleted_bytes: int
    errors: int


class RepositoryStatus(NamedTuple):
    repository: str
    due: int
    """Addresses that could be deleted now; COUNT_MAX: at least so many."""
    oldest_due_ms: int | None
    in_grace: int
    """Addresses that are not due yet; COUNT_MAX: at least so many."""
    tokens: int
    """Tokens whose references are to be released."""
    stopped: str
    """Why hard deletion is stopped; '' if it is not."""
    stopped_since_ms: int | None
    allowed_until_ms: int | None
    allowed_objects: int | None
    closed_ms: int | None
    """When the repository was deleted, if it was."""
    error: str = ""
    """The error that keeps its status from being read."""
    name_hold: str = ""
    """Until when, and why, a deleted repository keeps its name; '' if it was not deleted."""


class Status(NamedTuple):
    reapers: tuple[ReaperStatus, ...]
    repositories: tuple[RepositoryStatus, ...]
    settling: str = ""
    """Until when nothing is deleted in the lake, and why: other servers of the KV answer. '': it does not wait."""
    settlement_error: str = ""
    """Why that is not known; '' if it is."""


def read_status(lake: Lake, *, repository: str | None = None) -> Status:
    return Status(tuple(_reapers(lake)), tuple(_repositories(lake, repository)), *_settling(lake))


def _settling(lake: Lake) -> tuple[str, str]:
    """Return what deletion waits for, and why that is not known. Raises KVUnavailable."""
    try:
        wait = lake.settlement_wait()
    except RefstoreError as error:
        if isinstance(error, KVUnavailable):
            raise
        return "", redact_text(str(error))
    return (wait.describe(lake.clock.now_ms()) if wait is not None else ""), ""


def _reapers(lake: Lake) -> list[ReaperStatus]:
    now = lake.clock.now_ms()
    reapers: list[ReaperStatus] = []
    for name, raw in lake.kv.scan_all(keys.REAPERS):
        try:
            beat = decode(raw, Heartbeat)
        except CorruptRecord:
            continue  # the next heartbeat writes it anew
        skew_seconds = min(lake.durations.waits.clock_skew_seconds, SKEW_SECONDS_MAX)
        alive = now - beat.beat_ms <= (LATE_BEATS * beat.every_seconds + skew_seconds) * 1000
        counts = {field: value for field, value in structs.asdict(beat).items() if field != "every_seconds"}
        reapers.append(ReaperStatus(name, alive, **counts))
    return reapers


def _repositories(lake: Lake, only: str | None) -> list[RepositoryStatus]:
    statuses: list[RepositoryStatus] = []
    for name, raw in lake.kv.scan_all(keys.REPOSITORIES):
        if only is not None and name != only:
            continue
        try:
            statuses.append(_repository(lake, RepositoryName(name), decode(raw, RepositoryRecord)))
        except RefstoreError as error:
            statuses.append(RepositoryStatus(name, 0, None, 0, 0, "", None, None, None, None, str(error)))
    return statuses


def _repository(lake: Lake, name: RepositoryName, record: RepositoryRecord) -> RepositoryStatus:
    ctx = lake.context(name, record)
    waiting = backlog.measure(ctx, limit=COUNT_MAX)
    state = breaker.read_state(ctx.kv, ctx.repo)
    return RepositoryStatus(
        name,
        waiting.due,
        waiting.oldest_due_ms,
        waiting.later,
        waiting.tokens,
        breaker.explain(state),
        (state.tripped_ms or None) if state else None,
        state.allowed_until_ms if state and state.allowed_until_ms > ctx.clock.now_ms() else None,
        (state.allowed_objects or None) if state else None,
        record.closed_ms or None,
        name_hold=deleted_names.describe_hold(ctx, record) if record.closed_ms else "",
    )
