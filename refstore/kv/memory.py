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
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Absent, Delete, Exchange, Get, Key, Op, Result, Set, SetIf

_stores_by_name: Final[dict[str, MemoryKV]] = {}
"""The stores of this process, by name."""


def open_memory(url: str, _clock: Clock) -> MemoryKV:
    name = url.partition(":")[2].removeprefix("//")
    return _stores_by_name.setdefault(name, MemoryKV()) if name else MemoryKV()


class MemoryKV(KV):
    def __init__(self) -> None:
        self._partitions: dict[str, SortedDict[str, bytes]] = {}
        self._lock = RLock()

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        with self._lock:
            return [self._perform(op) for op in ops]

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        with self._lock:
            table = self._partitions.get(partition)
            if table is None:
                return []
            page: list[tuple[str, bytes]] = []
            low = max(prefix, after)
            for name in table.irange(minimum=low or None, inclusive=(low != after, True)):
                if not name.startswith(prefix) or len(page) == limit:
                    break
                page.append((name, table[name]))
            return page

    def partitions(self) -> list[str]:
        """Return the partitions that hold a record, which no other KV can tell."""
        with self._lock:
            return list(self._partitions)

    def _perform(self, op: Op) -> Result:
        match op:
            case Get(key):
                return self._read(key)
            case Set(key, value):
                return self._write(key, value)
            case SetIf(key, expected, value):
                if self._read(key) != expected:
                    return False
                self._write(key, value)
                return True
            case Exchange(key, value):
                old = self._read(key)
                self._write(key, value)
                return old
            case Delete(key):
                return self._write(key, ABSENT)

    def _read(self, key: Key) -> bytes | Absent:
        table = self._partitions.get(key.partition)
        return ABSENT if table is None else table.get(key.name, ABSENT)

    def _write(self, key: Key, value: bytes | Absent) -> None:
        if value is not ABSENT:
            self._partitions.setdefault(key.partition, SortedDict())[key.name] = value
        elif (table := self._partitions.get(key.partition)) is not None:
            table.pop(key.name, None)
            if not table:
                del self._partitions[key.partition]
