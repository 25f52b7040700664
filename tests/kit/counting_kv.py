"""A KV in memory that counts its round trips."""

from __future__ import annotations

from collections.abc import Sequence

from refstore.kv.base import SCAN_LIMIT, Op, Result
from refstore.kv.memory import MemoryKV


class CountingKV(MemoryKV):
    calls = 0
    """Batches of operations."""
    scans = 0

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.calls += 1
        return super().execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        self.scans += 1
        return super().scan(partition, prefix=prefix, after=after, limit=limit)
