"""`memory://name`: the KV in a dict, for tests and for trying things out. The data ends with the process.

Thread-safe. Each name is one store within the process, however often it is opened. Without a name, each opening gives a
new store.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Final

from sortedcontainers import SortedDict

from refstore.core.clock import Clock
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Delete, Exchange, Get, Op, Result, SetIf

_stores_by_name: Final[dict[str, MemoryKV]] = {}
"""The stores of this process, by name."""


def open_memory(url: str, _clock: Clock) -> MemoryKV:
    name = url.partition(":")[2].removeprefix("//")
    return _stores_by_name.setdefault(name, MemoryKV()) if name else MemoryKV()


class MemoryKV(KV):
    def __init__(self) -> None:
        self._values: SortedDict[tuple[str, str], bytes] = SortedDict()
        """By partition and name."""
        self._lock = RLock()

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        with self._lock:
            return [self._perform(op) for op in ops]

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        with self._lock:
            page: list[tuple[str, bytes]] = []
            low = max(prefix, after)
            for place in self._values.irange(minimum=(partition, low), inclusive=(low != after, True)):
                if place[0] != partition or not place[1].startswith(prefix) or len(page) == limit:
                    break
                page.append((place[1], self._values[place]))
            return page

    def partitions(self) -> list[str]:
        with self._lock:
            return list(dict.fromkeys(partition for partition, _ in self._values))

    def _perform(self, op: Op) -> Result:
        place = (op.key.partition, op.key.name)
        old = self._values.get(place, ABSENT)
        if isinstance(op, SetIf) and old != op.expected:
            return False
        if not isinstance(op, Get):
            value = ABSENT if isinstance(op, Delete) else op.value
            if value is not ABSENT:
                self._values[place] = value
            elif old is not ABSENT:
                del self._values[place]
        return True if isinstance(op, SetIf) else old if isinstance(op, Get | Exchange) else None
