"""A KV and an object store over plain dicts, whose contents can be taken and given back.

They are how the explorer's worlds are built and how its states are shown to an audit. `memory://` is for everything
else.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

from refstore.core.clock import Clock
from refstore.errors import AlreadyExists, ObjectNotFound
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Absent, Delete, Exchange, Get, Key, Op, Result, Server, Set, SetIf
from refstore.objects.base import (
    Body,
    BodyDigest,
    DeleteResult,
    ObjectInfo,
    ObjectStore,
    StoredObject,
    check_length,
    chunks_of,
)
from tests.kit.calls import positions_of
from tests.kit.steps import SERVERS, body_of, info_of, stored


class DictKV(KV):
    def __init__(self, contents: MutableMapping[Key, bytes]) -> None:
        self.contents = contents

    def servers(self) -> list[Server]:
        """Those of a world whose KV may lose writes; else the default."""
        found = self.scan(SERVERS)
        return [Server(positions_of(shard), identity.decode()) for shard, identity in found] or super().servers()

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        return [self._perform(op) for op in ops]

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        found = sorted((key.name, value) for key, value in self.contents.items() if key.partition == partition)
        return [(name, value) for name, value in found if name.startswith(prefix) and name > after][:limit]

    def _perform(self, op: Op) -> Result:
        old = self.contents.get(op.key, ABSENT)
        match op:
            case Get():
                return old
            case Set(key, value):
                return self._write(key, value)
            case SetIf(key, expected, value):
                if old == expected:
                    self._write(key, value)
                return old == expected
            case Exchange(key, value):
                self._write(key, value)
                return old
            case Delete(key):
                return self._write(key, ABSENT)

    def _write(self, key: Key, value: bytes | Absent) -> None:
        if value is ABSENT:
            self.contents.pop(key, None)
        else:
            self.contents[key] = value


class DictObjects(ObjectStore):
    """Values are as `steps.stored` makes them: the time of writing, then the body."""

    def __init__(self, contents: MutableMapping[str, bytes], clock: Clock) -> None:
        self.contents = contents
        self._clock = clock

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        whole = b"".join(chunks_of(body))
        if if_absent and key in self.contents:
            raise AlreadyExists(f"there is an object at {key!r} already")
        self.contents[key] = stored(whole, self._clock.now_ms())
        tally = BodyDigest(key)
        tally.add(whole)
        return tally.stored_object

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        body = body_of(self._find(key))
        check_length(key, size_bytes, len(body))
        return iter((body[start:end],))

    def head(self, key: str) -> ObjectInfo:
        return info_of(key, self._find(key))

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        found = sorted((key, value) for key, value in self.contents.items() if key.startswith(prefix) and key > after)
        return iter([info_of(key, value) for key, value in found if not before or key < before])

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        gone = [key for key in dict.fromkeys(keys) if self.contents.pop(key, None) is not None]
        return DeleteResult(tuple(gone), tuple(key for key in dict.fromkeys(keys) if key not in gone), ())

    @property
    def url(self) -> str:
        return "memory://simulated"

    def _find(self, key: str) -> bytes:
        found = self.contents.get(key)
        if found is None:
            raise ObjectNotFound(f"there is no object at {key!r}")
        return found
