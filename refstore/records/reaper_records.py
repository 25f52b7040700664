"""Records of reapers: hints of what is due, leases, heartbeats and counters."""

from __future__ import annotations

from refstore.core.ids import Address
from refstore.records.encoding import Record


class DueHintRecord(Record, frozen=True, tag=50):
    """`<repo>/due/<shard>/<time>/<address>`: a hint to check an address at that time. The reference key decides."""


class SharedDueHintRecord(Record, frozen=True, tag=91):
    """`<repo>/due/<shard>/<time>/many/<digest>`: the same for several addresses of a shard."""

    addresses: list[Address]


class Lease(Record, frozen=True, tag=51):
    owner: str
    expires_ms: int
    write_id: str


class Heartbeat(Record, frozen=True, tag=52):
    """`reapers/<reaper id>`: a running reaper, and what its last pass over all repositories did."""

    host: str
    pid: int
    started_ms: int
    beat_ms: int
    every_seconds: float
    """The interval of its heartbeats; it counts as dead some time after a missing one."""
    passes: int = 0
    released_references: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    errors: int = 0
    """All counts are since it started."""


class BreakerState(Record, frozen=True, tag=53):
    """`<repo>/reaper/breaker`: why hard deletion is stopped, or how much an operator lets it delete."""

    write_id: str
    tripped_ms: int = 0
    """0: it is not tripped."""
    reason: str = ""
    due_objects: int = 0
    """What was due for deletion, or was deleted within the hour."""
    live_objects: int = 0
    """What `due` was compared with: the repository's objects, or the hourly limit."""
    allowed_until_ms: int = 0
    """Until then the breaker does not check, because an operator decided so."""
    allowed_objects: int = 0
    """How many objects may be deleted before the breaker checks again."""


class DeletionCount(Record, frozen=True, tag=54):
    """`<repo>/reaper/deleted/<time>/<reaper id>`: how many objects one reaper deleted from that time on."""

    count: int


class StampRecord(Record, frozen=True, tag=55):
    """`<repo>/reaper/scrubbed/<unit>`: when the unit was last scrubbed."""

    at_ms: int
