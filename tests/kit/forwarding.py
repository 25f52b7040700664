"""A KV and a store that pass each call on to another, for tests that let some of them fail, count or wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from refstore.kv.base import KV, SCAN_LIMIT, Op, Result, Server
from refstore.objects.base import Body, DeleteResult, ObjectInfo, ObjectStore, StoredObject

T = TypeVar("T")


class _Forwarding:
    def check(self) -> None:
        """Do what comes before each call. It may raise what the call raises."""

    def call(self, perform: Callable[[], T]) -> T:
        """Make a call of the other one: each goes through here."""
        self.check()
        return perform()


class ForwardingKV(_Forwarding, KV):
    inner: KV

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        return self.call(lambda: self.inner.execute(ops))

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        return self.call(lambda: self.inner.scan(partition, prefix=prefix, after=after, limit=limit))

    def delete_range(self, partition: str, first: str, last: str) -> None:
        self.call(lambda: self.inner.delete_range(partition, first, last))

    def count(self, partition: str, *, limit: int) -> int:
        return self.call(lambda: self.inner.count(partition, limit=limit))

    def servers(self) -> list[Server]:
        return self.call(self.inner.servers)

    def close(self) -> None:
        self.inner.close()


class ForwardingObjects(_Forwarding, ObjectStore):
    """What it does not have goes through what it has: `delete_unchanged` is a `list` and a `delete_many`."""

    inner: ObjectStore

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        return self.call(lambda: self.inner.put(key, body, if_absent=if_absent))

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        return self.call(lambda: self.inner.get(key, start=start, end=end, size_bytes=size_bytes))

    def head(self, key: str) -> ObjectInfo:
        return self.call(lambda: self.inner.head(key))

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self.call(lambda: self.inner.list(prefix, after=after, before=before))

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        return self.call(lambda: self.inner.delete_many(keys))

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def conditional_put(self) -> bool:
        return self.inner.conditional_put

    def close(self) -> None:
        self.inner.close()
