"""Leases: how reapers on several machines share the work.

A lease says that somebody is at a unit of work (a marker, a shard of due hints), until it expires. It only keeps two reapers
from doing the same thing twice: nothing breaks if both hold it, if clocks disagree, or if the holder was stopped for an hour and
goes on. So an expired lease is simply taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from refstore import keys
from refstore.clock import Clock
from refstore.errors import CorruptRecord
from refstore.ids import Ids, RepositoryId
from refstore.kv.base import ABSENT, KV, Absent, SetIf
from refstore.records import Lease, decode, encode

AHEAD_SECONDS_MAX: Final = 86_400.0
"""A lease that reaches further than the longest allowed one was written by a clock that was wrong; it counts as expired."""


class Leases:
    """The leases of one reaper on one repository. Not for several threads."""

    def __init__(self, kv: KV, repo: RepositoryId, owner: str, clock: Clock, ids: Ids, *, seconds: float) -> None:
        self._kv = kv
        self._repo = repo
        self._owner = owner
        self._clock = clock
        self._ids = ids
        self._ms = int(seconds * 1000)
        self._held: dict[str, bytes] = {}
        self._renew_at_ms = 0

    @property
    def held(self) -> Collection[str]:
        return self._held.keys()

    def acquire(self, units: Sequence[str]) -> list[str]:
        """Those of `units` that are ours from now on, in the order given. Two round trips, however many there are."""
        now = self._clock.now_ms()
        found = self._kv.get_many([keys.lease(self._repo, unit) for unit in units]) if units else []
        free = [(unit, raw) for unit, raw in zip(units, found, strict=True) if self._is_free(raw, now)]
        return self._write(free, now)

    def keep(self) -> None:
        """Renew all that are held, once half their time is over. What was lost to others is not held any more."""
        now = self._clock.now_ms()
        if self._held and not self._renew_at_ms - self._ms <= now < self._renew_at_ms:
            held, self._held = self._held, {}
            self._write(list(held.items()), now)

    def release(self, units: Iterable[str] | None = None) -> None:
        """Let go of `units`, or of all, so that others need not wait."""
        gone = [unit for unit in list(self._held if units is None else units) if unit in self._held]
        if gone:
            self._kv.set_if_many([SetIf(keys.lease(self._repo, unit), self._held.pop(unit), ABSENT) for unit in gone])

    def _write(self, units: Sequence[tuple[str, bytes | Absent]], now: int) -> list[str]:
        if not units:
            return []
        raw = encode(Lease(self._owner, now + self._ms, self._ids.unique(now)))
        won = self._kv.set_if_many([SetIf(keys.lease(self._repo, unit), old, raw) for unit, old in units])
        ours = [unit for (unit, _), ok in zip(units, won, strict=True) if ok]
        if not self._held:
            self._renew_at_ms = now + self._ms // 2
        self._held |= dict.fromkeys(ours, raw)
        return ours

    def _is_free(self, raw: bytes | Absent, now: int) -> bool:
        if raw is ABSENT:
            return True
        try:
            lease = decode(raw, Lease)
        except CorruptRecord:
            return True  # it could only keep work from being done
        return not now < lease.expires_ms <= now + AHEAD_SECONDS_MAX * 1000
