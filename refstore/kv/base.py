"""The key-value interface: everything the protocol asks of a store, and nothing more.

Keys live in *partitions*. A partition is a name; its keys are ordered by their UTF-8 bytes. Each operation is atomic on
a single key, and nothing needs two keys to change together. So the interface fits SQLite, one Redis, Redis Cluster (a
partition is one slot), and any store with a conditional put.

Every driver guarantees this (`refstore.conformance.KVSuite` tests it; docs/drivers.md shows how to write a driver):

- `execute(ops)` performs operations and returns their results in the order of `ops`. Each operation is atomic by
  itself; the batch is not. A run of neighbouring operations of one kind (all `SetIf`, say) may be performed in any
  order. Where the kind changes there is a barrier: every operation before it has taken effect before any operation
  after it starts. Two operations of one run never name the same key.
- `scan` returns a page of a partition in key order. Each returned pair was there at some moment during the call. A key
  that existed during the whole call is in the page if it falls in the page's bounds. Fewer than `limit` pairs mean that
  the partition ends there.
- A driver that does not know whether a write landed raises `KVUnavailable`; it never guesses. Where it is certain that
  no write landed, it says so (`nothing_done`). `RetryingKV` (`refstore/kv/retries.py`) repeats the call safely: it
  recognises its own landed write.
- Partitions and keys are non-empty `str` without NUL and encodable as UTF-8; values are `bytes`, possibly empty.
- All methods may be called from several threads at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import chain, islice, starmap, takewhile
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from refstore.core.batches import split_batches
from refstore.errors import StoreMisconfigured


class Absent(Enum):
    """The type of `ABSENT`: the key has no value. `None` never stands for it, so no write is unconditional by
    accident.
    """

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

SCAN_LIMIT: Final = 1000
"""The default page size: large enough to amortise a round trip, small enough to decode in a millisecond or two."""


POSITIONS: Final = "positions"
"""The partition that the default of `KV.servers` names. Names of other drivers begin with it."""


class Key(msgspec.Struct, frozen=True, gc=False, order=True):
    """A key. Keys and operations form no cycles, so the garbage collector does not track them (docs/decisions/0138)."""

    partition: str
    name: str


class Server(NamedTuple):
    """One server, or one file, whose writes are kept or lost together."""

    partition: str
    """A partition that this server stores. A deleter keeps its position there."""
    identity: str
    """Another one whenever another process, server or file answers; '' where that cannot happen."""


class Get(msgspec.Struct, frozen=True, gc=False):
    """Reads the value. Result: the value, or ABSENT."""

    key: Key


class Set(msgspec.Struct, frozen=True, gc=False):
    """Writes `value` unconditionally. Result: None."""

    key: Key
    value: bytes


class SetIf(msgspec.Struct, frozen=True, gc=False):
    """Writes `value` if the key holds `expected`. Result: whether it did.

    An ABSENT `expected` means that the key is not there; an ABSENT `value` removes the key.
    """

    key: Key
    expected: bytes | Absent
    value: bytes | Absent
    once: bool = False
    """Whether `RetryingKV` must not repeat it after a lost reply, because `expected` may come back. A result of False
    is then certain.
    """


def set_ifs(keys: Sequence[Key], expected: Sequence[bytes | Absent], values: Sequence[bytes | Absent]) -> list[SetIf]:
    """Return a SetIf for each key. Raises ValueError if there are more or fewer values than keys."""
    return list(starmap(SetIf, zip(keys, expected, values, strict=True)))


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """Writes `value` unconditionally. Result: the value that it replaced, or ABSENT."""

    key: Key
    value: bytes


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Removes the key if it is there. Result: None."""

    key: Key


Op = Get | Set | SetIf | Exchange | Delete
Result = bytes | Absent | bool | None


class KV(ABC):
    """The interface. Drivers implement the two abstract methods. The others are written in terms of them, but for
    `servers`, whose default fits a store that never loses an acknowledged write, and `partitions`, which only a copy of
    the whole KV needs.
    """

    @abstractmethod
    def execute(self, ops: Sequence[Op]) -> list[Result]:
        """Perform `ops`; see the module docstring for order and atomicity. Raises KVUnavailable."""

    @abstractmethod
    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        """Return one page of (key, value) in key order: keys that start with `prefix` and come strictly after `after`,
        which need not exist.
        """

    def delete_range(self, partition: str, first: str, last: str) -> None:
        """Remove every key from `first` to `last`, both included. Idempotent, and not atomic as a whole."""
        following = (name for name, _ in self.scan_all(partition, after=first))  # `after` leaves `first` itself out
        names = takewhile(lambda name: name <= last, chain([first] if first else [], following))
        for page in split_batches(names):
            self.delete_many([Key(partition, name) for name in page])

    def count(self, partition: str, *, limit: int) -> int:
        """Return how many keys the partition holds, or `limit` if it holds more."""
        return sum(1 for _ in islice(self.scan_all(partition), limit))

    def partitions(self) -> list[str]:
        """Return the partitions that hold a key, in order, while nobody writes. Raises KVUnavailable,
        StoreMisconfigured: the driver cannot tell, so a lake cannot be copied from or to this KV.
        """
        raise StoreMisconfigured(
            f"the driver {type(self).__name__} does not list its partitions, so no lake can be copied from or to its "
            "KV; let it implement `partitions`"
        )

    def servers(self) -> list[Server]:
        """Return the servers that store the partitions, each once, in order of partition; asks them now (no cache).
        Raises KVUnavailable.
        """
        return [Server(POSITIONS, "")]

    @property
    def local_files(self) -> Sequence[Path]:
        """The files on a disk of this machine that hold the KV, in one folder, whether they are there now or not."""
        return ()

    def risks(self) -> Sequence[str]:
        """Return what may lose records, each with what to do; asks now. Raises KVUnavailable, StoreMisconfigured."""
        return ()

    def close(self) -> None:
        """Release connections. May be called twice; a closed KV opens again when it is used."""
        return

    def get(self, key: Key) -> bytes | Absent:
        return self.get_many((key,))[0]

    def set(self, key: Key, value: bytes) -> None:
        self.execute((Set(key, value),))

    def set_if(self, key: Key, expected: bytes | Absent, value: bytes | Absent, *, once: bool = False) -> bool:
        return self.set_if_many((SetIf(key, expected, value, once),))[0]

    def exchange(self, key: Key, value: bytes) -> bytes | Absent:
        return self.execute((Exchange(key, value),))[0]  # type: ignore[return-value]  # Exchange yields just these

    def delete(self, key: Key) -> None:
        self.execute((Delete(key),))

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Absent]:
        return self.execute(list(map(Get, keys)))  # type: ignore[return-value]  # Get yields just these

    def set_many(self, pairs: Sequence[tuple[Key, bytes]]) -> None:
        self.execute([Set(key, value) for key, value in pairs])

    def set_if_many(self, ops: Sequence[SetIf]) -> list[bool]:
        return self.execute(ops)  # type: ignore[return-value]  # SetIf yields bool

    def delete_many(self, keys: Sequence[Key]) -> None:
        self.execute(list(map(Delete, keys)))

    def scan_all(
        self, partition: str, *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT
    ) -> Iterator[tuple[str, bytes]]:
        """Yield every pair after `after`, page by page. It misses a pair that is written before the cursor
        meanwhile.

        `page`: how many pairs are read first. Who needs more of them, because others follow that do not count, gets
        them by SCAN_LIMIT at least.
        """
        while True:
            pairs = self.scan(partition, prefix=prefix, after=after, limit=page)
            yield from pairs
            if len(pairs) < page:
                return
            after = pairs[-1][0]
            page = max(page, SCAN_LIMIT)
