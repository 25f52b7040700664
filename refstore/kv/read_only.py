"""A KV that only reads, for lakes that were opened so: any other operation raises before the store hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from refstore.errors import LakeReadOnly
from refstore.kv.base import KV, SCAN_LIMIT, Get, Op, Result, Server


class ReadOnlyKV(KV):
    def __init__(self, kv: KV) -> None:
        self._kv = kv

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if any(type(op) is not Get for op in ops):
            raise LakeReadOnly
        return self._kv.execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        return self._kv.scan(partition, prefix=prefix, after=after, limit=limit)

    def delete_range(self, partition: str, first: str, last: str) -> NoReturn:
        del partition, first, last
        raise LakeReadOnly

    def count(self, partition: str, *, limit: int) -> int:
        return self._kv.count(partition, limit=limit)

    def partitions(self) -> list[str]:
        return self._kv.partitions()

    def servers(self) -> list[Server]:
        return self._kv.servers()

    @property
    def local_files(self) -> Sequence[Path]:
        return self._kv.local_files

    def risks(self) -> Sequence[str]:
        return self._kv.risks()

    def close(self) -> None:
        self._kv.close()
