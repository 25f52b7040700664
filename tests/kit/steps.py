"""Atomic steps: the one kind of thing that can happen in a simulated run.

A step reads or writes a single key, or reads the names in a range, in one instant. Keys and values are interned as
numbers (`Interned`), because the explorer compares and hashes them millions of times; 0 is ABSENT. What the real code
calls is made of steps in `calls.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, Protocol

from refstore.kv.base import ABSENT, Absent, Key
from refstore.objects.base import ObjectInfo

OBJECTS: Final = "\0objects"
"""The partition that stands for the object store; no KV partition can have this name."""
CLOCK: Final = Key("\0clock", "wall")
"""The key that stands for the wall clock."""

NOTHING: Final = 0
"""The number of ABSENT."""

SERVERS: Final = "\0servers"
"""The partition of the identities of the servers that store a shard of the KV each."""

GET, SET, SET_IF, EXCHANGE, LIST, WAIT, MARK, LOSE = range(8)
KINDS: Final = ("get", "set", "set_if", "exchange", "list", "wait", "mark", "lose")

LOST: Final = -1
"""The reply of a step that took effect and whose reply was lost."""


class Interned:
    """Keys and values as numbers."""

    def __init__(self) -> None:
        self.keys: list[Key] = [Key("", "")]
        self.partition_of: list[int] = [0]
        self.values: list[bytes] = [b""]
        self.partitions: list[str] = [""]
        self._keys: dict[Key, int] = {}
        self._values: dict[bytes, int] = {}
        self._partitions: dict[str, int] = {}

    def key(self, key: Key) -> int:
        number = self._keys.get(key)
        if number is None:
            number = self._keys[key] = len(self.keys)
            self.keys.append(key)
            self.partition_of.append(self.partition(key.partition))
        return number

    def partition(self, name: str) -> int:
        number = self._partitions.get(name)
        if number is None:
            number = self._partitions[name] = len(self.partitions)
            self.partitions.append(name)
        return number

    def value(self, value: bytes | Absent) -> int:
        if value is ABSENT:
            return NOTHING
        number = self._values.get(value)
        if number is None:
            number = self._values[value] = len(self.values)
            self.values.append(value)
        return number

    def bytes_of(self, number: int) -> bytes | Absent:
        return self.values[number] if number else ABSENT


class Step(NamedTuple):
    """One atomic step on one key; MARK and LOSE are on a whole shard of the KV. Replies: a value's number; for SET_IF 0
    or 1; for LIST a tuple of keys; for the others 0.
    """

    kind: int
    key: int
    """For LIST, the number of a partition."""
    value: int = NOTHING
    """What is written."""
    expected: int = NOTHING
    bounds: tuple[str, str, str, int] = ("", "", "", 0)
    """For LIST: prefix, after (exclusive), last (inclusive, '' for none), limit (0 for none)."""
    waits: bool = False
    """Only while no other operation is under way: none that has begun and is not over."""


Reply = int | tuple[int, ...]
Progress = Hashable


class Raised(NamedTuple):
    """A call that ends in an error."""

    error: type[Exception]
    message: str


class Done(NamedTuple):
    result: object


class Call(Protocol):
    """What the real code asks of a store. Equal calls compare equal."""

    def start(self, names: Interned) -> Progress | Done: ...

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        """What may come next; one of these does."""
        ...

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done: ...


# ---- objects: a value is the time of writing in 8 bytes, then the body


def stored(body: bytes, mtime_ms: int) -> bytes:
    return mtime_ms.to_bytes(8, "big") + body


def body_of(value: bytes) -> bytes:
    return value[8:]


def info_of(name: str, value: bytes) -> ObjectInfo:
    return ObjectInfo(name, len(value) - 8, int.from_bytes(value[:8], "big"))


def clock_value(wall_ms: int) -> bytes:
    return str(wall_ms).encode()
