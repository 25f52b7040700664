"""Which units of a repository are to be scrubbed now: each once per interval, and all of them when that is requested.

A unit is `scrub/` with a shard of the references, or with one of the other things that are scrubbed. Each has a stamp
in the KV, which says when a reaper scrubbed it last.
"""

from __future__ import annotations

from random import Random
from typing import Final

from refstore.context import Context
from refstore.errors import CorruptRecord
from refstore.kv.base import Key
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.reaper_records import StampRecord

TOKENS: Final = "tokens"
UPLOADS: Final = "uploads"
TEMPORARY: Final = "temporary"
"""What is scrubbed besides the shards of the references."""


class ScrubSchedule:
    def __init__(self, ctx: Context, every_seconds: float, requested_ms: int | None, random: Random) -> None:
        """`requested_ms`: everything that was not scrubbed since then is due, whatever the interval says."""
        self._ctx = ctx
        self._every_ms = int(every_seconds * 1000)
        self._requested_ms = requested_ms
        self._random = random

    def find_due_units(self) -> list[str]:
        """Return the units whose interval is over, in any order. New units are spread over the interval, so that a
        repository is not scrubbed all at once.
        """
        units = [
            f"scrub/{what}" for what in (*(f"{shard:02x}" for shard in range(keys.SHARDS)), TOKENS, UPLOADS, TEMPORARY)
        ]
        now = self._ctx.clock.now_ms()
        stamps = dict(self._ctx.kv.scan(keys.reaper_states(self._ctx.repo), prefix="scrubbed/", limit=len(units) * 2))
        due: list[str] = []
        new: list[tuple[Key, bytes]] = []
        for number, unit in enumerate(units, start=1):
            raw = stamps.get(self._stamp_of(unit).name)
            if raw is None and self._requested_ms is None:
                spread_ms = now - self._every_ms + self._every_ms * number // len(units)
                new.append((self._stamp_of(unit), encode(StampRecord(spread_ms))))
            elif raw is None or not self._is_fresh(raw, now):
                due.append(unit)
        if new:
            self._ctx.kv.set_many(new)
        self._random.shuffle(due)
        return due

    def record_scrubbed(self, unit: str) -> None:
        self._ctx.kv.set(self._stamp_of(unit), encode(StampRecord(self._ctx.clock.now_ms())))

    def _is_fresh(self, raw: bytes, now: int) -> bool:
        try:
            at_ms = decode(raw, StampRecord).at_ms
        except CorruptRecord:
            return False
        return at_ms <= now < at_ms + self._every_ms and (self._requested_ms is None or self._requested_ms < at_ms)

    def _stamp_of(self, unit: str) -> Key:
        return keys.reaper_state(self._ctx.repo, f"scrubbed/{unit.removeprefix('scrub/')}")
