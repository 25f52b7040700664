"""The key-value interface: everything the protocol asks of a store, and nothing more.

Keys live in *partitions*. A partition is a name; within it keys are ordered by their UTF-8 bytes. Each
operation is atomic on a single key; nothing here, and nothing built on it, needs two keys to change together.
So it runs on SQLite, on one Redis, on Redis Cluster (a partition is one slot), and on anything with a
conditional put.

Semantics every driver holds (`tests/conformance/kv_suite.py` is their executable form):

- `execute(ops)` performs operations and returns their results in the order given. Each op is atomic by itself;
  the batch is not. A run of neighbouring ops of one kind (all `SetIf`, say) may be performed in any order;
  where the kind changes there is a barrier: every op before it has taken effect before any op after it starts.
  Two ops of one run never name the same key.
- `scan` returns a page of a partition in key order. Each pair it returns was there at some moment during the
  call; a key that existed during the whole call is in the page if it falls in its bounds. A page is never cut
  short silently: fewer than `limit` pairs means that the end was reached.
- A driver that cannot tell whether a write landed raises `KVUnavailable`; it never guesses. Where it is certain that none did
  it says so (`nothing_done`). `Retrying` (`refstore/kv/retrying.py`) makes that safe: it recognises its own landed write.
- Partitions and keys are non-empty `str` without NUL and encodable as UTF-8; values are `bytes`, possibly empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple


class Absent(Enum):
    """The type of `ABSENT`: no value at that key. `None` never stands for it, so nothing is unconditional by accident."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

SCAN_LIMIT: Final = 1000
"""The default page: large enough to amortise a round trip, small enough to decode in a millisecond or two."""


class Key(NamedTuple):
    partition: str
    name: str


class Get(NamedTuple):
    """Result: the value, or ABSENT."""

    key: Key


class Set(NamedTuple):
    """Unconditional. Result: None."""

    key: Key
    value: bytes


class SetIf(NamedTuple):
    """Writes `value` (ABSENT: removes the key) if the key now holds `expected` (ABSENT: is not there). Result: bool."""

    key: Key
    expected: bytes | Absent
    value: bytes | Absent
    once: bool = False
    """Whether it is never made again where its reply was lost: for an `expected` that may come back. False is then certain."""


class Exchange(NamedTuple):
    """Writes `value` and learns what it replaced. Result: the old value, or ABSENT."""

    key: Key
    value: bytes


class Delete(NamedTuple):
    """Removes the key if it is there. Result: None."""

    key: Key


Op = Get | Set | SetIf | Exchange | Delete
Result = bytes | Absent | bool | None


class KV(ABC):
    """The interface. Drivers implement the four abstract methods; the rest is written in terms of them."""

    @abstractmethod
    def execute(self, ops: Sequence[Op]) -> list[Result]:
        """Perform `ops`; see the module docstring for order and atomicity. Raises KVUnavailable."""

    @abstractmethod
    def scan(self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT) -> list[tuple[str, bytes]]:
        """One page of (key, value) with `prefix`, strictly after the key `after` (which need not exist), in key order."""

    @abstractmethod
    def delete_range(self, partition: str, first: str, last: str) -> None:
        """Remove every key k with first <= k <= last. Not atomic as a whole; idempotent."""

    @abstractmethod
    def count(self, partition: str, *, limit: int) -> int:
        """How many keys the partition holds, counted no further than `limit`."""

    def close(self) -> None:
        """Release connections. Calling it twice is fine."""
        return

    def get(self, key: Key) -> bytes | Absent:
        return self.get_many((key,))[0]

    def set(self, key: Key, value: bytes) -> None:
        self.execute((Set(key, value),))

    def set_if(self, key: Key, expected: bytes | Absent, value: bytes | Absent, *, once: bool = False) -> bool:
        return self.set_if_many((SetIf(key, expected, value, once),))[0]

    def exchange(self, key: Key, value: bytes) -> bytes | Absent:
        return self.exchange_many((Exchange(key, value),))[0]

    def delete(self, key: Key) -> None:
        self.execute((Delete(key),))

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Absent]:
        return self.execute([Get(key) for key in keys])  # type: ignore[return-value]  # Get yields just these

    def set_many(self, pairs: Sequence[tuple[Key, bytes]]) -> None:
        self.execute([Set(key, value) for key, value in pairs])

    def set_if_many(self, ops: Sequence[SetIf]) -> list[bool]:
        return self.execute(ops)  # type: ignore[return-value]  # SetIf yields bool

    def exchange_many(self, ops: Sequence[Exchange]) -> list[bytes | Absent]:
        return self.execute(ops)  # type: ignore[return-value]  # Exchange yields just these

    def delete_many(self, keys: Sequence[Key]) -> None:
        self.execute([Delete(key) for key in keys])

    def scan_all(self, partition: str, *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT) -> Iterator[tuple[str, bytes]]:
        """Every pair from `after` on, page by page. What is written behind the cursor meanwhile is not seen."""
        while True:
            pairs = self.scan(partition, prefix=prefix, after=after, limit=page)
            yield from pairs
            if len(pairs) < page:
                return
            after = pairs[-1][0]
