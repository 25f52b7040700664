"""Leases: reapers on several machines share the work.

Until it expires, a lease says that a reaper works on a unit (a marker, or a shard of due hints). It only keeps two
reapers from doing the same work twice. Nothing breaks if both hold it, if clocks disagree, or if the holder was stopped
for an hour and continues. So an expired lease is simply taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from refstore.core.clock import Clock
from refstore.core.ids import Ids, RepositoryId
from refstore.core.units import DAY_SECONDS
from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT, KV, Absent, SetIf
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.reaper_records import Lease

AHEAD_SECONDS_MAX: Final = float(DAY_SECONDS)
"""A lease that ends later than this was written by a wrong clock; it counts as expired."""


class Leases:
    """The leases of one reaper on one repository. Not for several threads."""

    def __init__(self, kv: KV, repo: RepositoryId, owner: str, clock: Clock, ids: Ids, *, seconds: float) -> None:
        self._kv = kv
        self._repo = repo
        self._owner = owner
        self._clock = clock
        self._ids = ids
        self._ms = int(seconds * 1000)
        self._raw_by_unit: dict[str, bytes] = {}
        self._renew_at_ms = 0

    @property
    def units(self) -> Collection[str]:
        return self._raw_by_unit.keys()

    def acquire(self, units: Sequence[str]) -> list[str]:
        """Take the leases that are free. Return their units, in the order of `units`. Takes two round trips."""
        now = self._clock.now_ms()
        values = self._kv.get_many([keys.lease(self._repo, unit) for unit in units]) if units else []
        free = [(unit, raw) for unit, raw in zip(units, values, strict=True) if self._is_free(raw, now)]
        return self._write(free, now)

    def renew(self) -> None:
        """Renew all leases once half their time is over. Forget those that other reapers took over."""
        now = self._clock.now_ms()
        if self._raw_by_unit and not self._renew_at_ms - self._ms <= now < self._renew_at_ms:
            raw_by_unit, self._raw_by_unit = self._raw_by_unit, {}
            self._write(list(raw_by_unit.items()), now)

    def release(self, units: Iterable[str] | None = None) -> None:
        """Release the leases of `units`, or all, so that other reapers need not wait."""
        own = [unit for unit in list(self._raw_by_unit if units is None else units) if unit in self._raw_by_unit]
        if own:
            self._kv.set_if_many(
                [SetIf(keys.lease(self._repo, unit), self._raw_by_unit.pop(unit), ABSENT) for unit in own]
            )

    def _write(self, units: Sequence[tuple[str, bytes | Absent]], now: int) -> list[str]:
        if not units:
            return []
        raw = encode(Lease(self._owner, now + self._ms, self._ids.new_id(now)))
        won = self._kv.set_if_many([SetIf(keys.lease(self._repo, unit), old, raw) for unit, old in units])
        won_units = [unit for (unit, _), ok in zip(units, won, strict=True) if ok]
        if not self._raw_by_unit:
            self._renew_at_ms = now + self._ms // 2
        self._raw_by_unit |= dict.fromkeys(won_units, raw)
        return won_units

    def _is_free(self, raw: bytes | Absent, now: int) -> bool:
        if raw is ABSENT:
            return True
        try:
            lease = decode(raw, Lease)
        except CorruptRecord:
            return True  # it could only keep work from being done
        return not now < lease.expires_ms <= now + AHEAD_SECONDS_MAX * 1000
