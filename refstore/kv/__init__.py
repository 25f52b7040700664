"""The key-value store: one interface (`base`), and a driver for each URL scheme, imported when its URL is first opened.

    sqlite:///absolute/path.db         sqlite:relative/path.db      one file, any number of processes on one machine
    redis://user:password@host:6379/0  rediss://…                   one Redis or Valkey; rediss is TLS
    redis+sentinel://user:password@sentinel1:26379,sentinel2:26379/master-name/0                 rediss+sentinel://…
    redis+cluster://user:password@node1:7000,node2:7000                                          rediss+cluster://…
    postgresql://user:password@host:5432/database                   PostgreSQL 14 or later
    memory://name                                                   this process only; memory: is a new one each time

Other packages bring drivers for other schemes by entry points of the group `refstore.kv` (docs/drivers.md).

`open_kv` wraps every driver in `RetryingKV`. After `KVUnavailable` it repeats a write, or recognises that it landed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from refstore.core.clock import Clock, SystemClock
from refstore.core.driver_entry_points import KV_DRIVERS, BuiltInDriver, find_opener
from refstore.core.redaction import redact_url
from refstore.errors import InvalidSettings
from refstore.kv.base import KV
from refstore.kv.read_only import ReadOnlyKV
from refstore.kv.retries import ATTEMPTS, RetryingKV

_REDIS: Final = BuiltInDriver("refstore.kv.redis:open_redis", "redis")
_BUILT_IN: Final = {
    "memory": BuiltInDriver("refstore.kv.memory:open_memory"),
    "sqlite": BuiltInDriver("refstore.kv.sqlite:open_sqlite"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "postgresql": BuiltInDriver("refstore.kv.postgres:open_postgres", "postgres"),
}


def open_kv(
    url: str,
    *,
    clock: Clock | None = None,
    check: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
    read_only: bool = False,
) -> KV:
    """Open the KV at `url`, and retry what is safe to retry. Raises InvalidSettings, MissingExtra.

    `check` is called before each attempt; the SDK passes one that raises DeadlineExceeded.
    `read_only`: whatever writes raises LakeReadOnly.
    """
    clock = clock or SystemClock()
    scheme, refusal = url.partition(":")[0].lower(), f"{redact_url(url)[:200]!r} is not the URL of a KV"
    kv: object = find_opener(KV_DRIVERS, scheme, _BUILT_IN, refusal)(url, clock)
    if not isinstance(kv, KV):
        raise InvalidSettings(
            f"the driver for {redact_url(url)[:200]!r} opened a {type(kv).__name__}; it must return a subclass of "
            "refstore.kv.base.KV"
        )
    return RetryingKV(ReadOnlyKV(kv) if read_only else kv, attempts=attempts, clock=clock, check=check)
