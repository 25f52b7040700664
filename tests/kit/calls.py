"""What the real code asks of its stores, made of atomic steps.

A call (`KV.execute`, `KV.scan`, `ObjectStore.put`, ...) is a small machine over steps: `start`, then `steps` says what
may come next, and `advance` takes the reply of one of them. Where the interface promises no order (a run of ops of one
kind), any of several steps may come next. A scan lists its names in one step and reads each value in a step of its own,
in page order: a page may so hold what never stood there at one time, as the interface allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, cast

from refstore.errors import AlreadyExists, ObjectNotFound
from refstore.kv.base import ABSENT, Delete, Exchange, Get, Key, Op, Server, Set, SetIf
from refstore.objects.base import DeleteResult
from tests.kit.steps import (
    CLOCK,
    EXCHANGE,
    GET,
    LIST,
    LOSE,
    MARK,
    NOTHING,
    OBJECTS,
    SERVERS,
    SET,
    SET_IF,
    WAIT,
    Done,
    Interned,
    Progress,
    Raised,
    Reply,
    Step,
    body_of,
    clock_value,
    info_of,
)

_Replies = tuple[Reply | None, ...]
_Keys = tuple[int, ...]

# ---- KV


@dataclass(frozen=True, slots=True)
class Execute:
    """`KV.execute`. Progress: a reply for each op, or None."""

    ops: tuple[Op, ...]

    def start(self, names: Interned) -> Progress | Done:
        del names
        return (None,) * len(self.ops) if self.ops else Done(())

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        return tuple(_step_of(self.ops[at], names) for at in self._open(cast(_Replies, progress)))

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done:
        replies = cast(_Replies, progress)
        at = self._open(replies)[index]
        after = (*replies[:at], reply, *replies[at + 1 :])
        if None in after:
            return after
        return Done(tuple(_result_of(op, each, names) for op, each in zip(self.ops, after, strict=True)))

    def _open(self, progress: _Replies) -> list[int]:
        """The ops that have no reply yet, of the first run that is not over: within a run any order is allowed."""
        for _, run in groupby(range(len(self.ops)), key=lambda at: type(self.ops[at])):
            waiting = [at for at in run if progress[at] is None]
            if waiting:
                return waiting
        return []


def _step_of(op: Op, names: Interned) -> Step:
    key = names.key(op.key)
    match op:
        case Get():
            return Step(GET, key)
        case Set(_, value):
            return Step(SET, key, names.value(value))
        case SetIf(_, expected, value):
            return Step(SET_IF, key, names.value(value), names.value(expected))
        case Exchange(_, value):
            return Step(EXCHANGE, key, names.value(value))
        case Delete():
            return Step(SET, key, NOTHING)


def _result_of(op: Op, reply: Reply | None, names: Interned) -> object:
    assert isinstance(reply, int)
    match op:
        case Get() | Exchange():
            return names.bytes_of(reply)
        case SetIf():
            return bool(reply)
        case Set() | Delete():
            return None


class _Scanned(NamedTuple):
    found: tuple[tuple[int, int], ...]
    """Keys and values read so far."""
    waiting: tuple[int, ...] | None
    """Keys listed whose value is not read yet; None: a listing is to come."""
    after: str
    full: bool
    """Whether the last listing was cut at its limit, so that there may be more behind it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """`KV.scan`."""

    partition: str
    prefix: str
    after: str
    limit: int

    def start(self, names: Interned) -> Progress | Done:
        del names
        return _Scanned((), None, self.after, full=True)

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        assert isinstance(progress, _Scanned)
        if progress.waiting is None:
            bounds = (self.prefix, progress.after, "", self.limit - len(progress.found))
            return (Step(LIST, names.partition(self.partition), bounds=bounds),)
        return (Step(GET, progress.waiting[0]),)

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done:
        del index
        assert isinstance(progress, _Scanned)
        found, waiting = progress.found, progress.waiting
        if waiting is None:
            assert isinstance(reply, tuple)
            full = len(reply) == self.limit - len(found)
            after = names.keys[reply[-1]].name if reply else progress.after
            progress = _Scanned(found, reply, after, full)
        else:
            assert isinstance(reply, int)
            if reply != NOTHING:  # one that went between listing and reading is left out
                found = (*found, (waiting[0], reply))
            progress = _Scanned(found, waiting[1:], progress.after, progress.full)
        if progress.waiting:
            return progress
        if progress.full and len(found) < self.limit:
            return progress._replace(waiting=None)  # never short unless the end was reached
        return Done(tuple((names.keys[key].name, names.values[value]) for key, value in found))


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """`KV.delete_range`. Progress: the keys that are still to go, or None before they are listed."""

    partition: str
    first: str
    last: str

    def start(self, names: Interned) -> Progress | Done:
        del names
        return None

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        if progress is None:
            return (Step(LIST, names.partition(self.partition), bounds=("", "", self.last, 0)),)
        return (Step(SET, cast(_Keys, progress)[0], NOTHING),)

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done:
        del index
        if progress is None:
            assert isinstance(reply, tuple)
            left = tuple(key for key in reply if names.keys[key].name >= self.first)
        else:
            left = cast(_Keys, progress)[1:]
        return left or Done(None)


class _OneStep:
    """A call that is a single step."""

    __slots__ = ()

    def start(self, names: Interned) -> Progress | Done:
        del names
        return ()

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        del progress
        return (self.step(names),)

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done:
        del progress, index
        return Done(self.result(reply, names))

    def step(self, names: Interned) -> Step:
        raise NotImplementedError

    def result(self, reply: Reply, names: Interned) -> object:
        del reply, names
        return None


@dataclass(frozen=True, slots=True)
class Count(_OneStep):
    """`KV.count`."""

    partition: str
    limit: int

    def step(self, names: Interned) -> Step:
        return Step(LIST, names.partition(self.partition), bounds=("", "", "", self.limit))

    def result(self, reply: Reply, names: Interned) -> object:
        del names
        assert isinstance(reply, tuple)
        return len(reply)


# ---- objects


@dataclass(frozen=True, slots=True)
class Put(_OneStep):
    name: str
    value: bytes
    if_absent: bool

    def step(self, names: Interned) -> Step:
        return Step(SET_IF if self.if_absent else SET, names.key(Key(OBJECTS, self.name)), names.value(self.value))

    def result(self, reply: Reply, names: Interned) -> object:
        del names
        if self.if_absent and not reply:
            return Raised(AlreadyExists, f"there is an object at {self.name!r} already")
        return None


@dataclass(frozen=True, slots=True)
class Look(_OneStep):
    """`ObjectStore.head`, or with `body` the whole of `ObjectStore.get`."""

    name: str
    body: bool

    def step(self, names: Interned) -> Step:
        return Step(GET, names.key(Key(OBJECTS, self.name)))

    def result(self, reply: Reply, names: Interned) -> object:
        assert isinstance(reply, int)
        value = names.bytes_of(reply)
        if value is ABSENT:
            return Raised(ObjectNotFound, f"there is no object at {self.name!r}")
        return body_of(value) if self.body else info_of(self.name, value)


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """`ObjectStore.delete_many`. Progress: whether each of the first keys was there."""

    names: tuple[str, ...]

    def start(self, names: Interned) -> Progress | Done:
        del names
        return () if self.names else Done(DeleteResult((), (), ()))

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        return (Step(EXCHANGE, names.key(Key(OBJECTS, self.names[len(cast(_Keys, progress))])), NOTHING),)

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done:
        del index, names
        there = (*cast(tuple[bool, ...], progress), bool(reply))
        if len(there) < len(self.names):
            return there
        deleted = tuple(name for name, was in zip(self.names, there, strict=True) if was)
        missing = tuple(name for name, was in zip(self.names, there, strict=True) if not was)
        return Done(DeleteResult(deleted, missing, ()))


@dataclass(frozen=True, slots=True)
class ListObjects(_OneStep):
    """`ObjectStore.list`: names only."""

    prefix: str
    after: str

    def step(self, names: Interned) -> Step:
        return Step(LIST, names.partition(OBJECTS), bounds=(self.prefix, self.after, "", 0))

    def result(self, reply: Reply, names: Interned) -> object:
        assert isinstance(reply, tuple)
        return tuple(names.keys[key].name for key in reply)


# ---- the clock, and waiting


@dataclass(frozen=True, slots=True)
class ReadClock(_OneStep):
    def step(self, names: Interned) -> Step:
        return Step(GET, names.key(CLOCK))

    def result(self, reply: Reply, names: Interned) -> object:
        assert isinstance(reply, int)
        return int(names.values[reply])


@dataclass(frozen=True, slots=True)
class SetClock(_OneStep):
    wall_ms: int
    waits: bool

    def step(self, names: Interned) -> Step:
        return Step(SET, names.key(CLOCK), names.value(clock_value(self.wall_ms)), waits=self.waits)


@dataclass(frozen=True, slots=True)
class Barrier(_OneStep):
    """Waits until no other operation is under way. Others may begin behind it."""

    def step(self, names: Interned) -> Step:
        del names
        return Step(WAIT, 0, waits=True)


# ---- servers of the KV, and what they lose


def positions_of(shard: str) -> str:
    """The partition of a shard in which deleters have their positions."""
    return f"positions-{shard}"


@dataclass(frozen=True, slots=True)
class Servers:
    """`KV.servers`. Progress: the identities read so far."""

    shards: tuple[str, ...]

    def start(self, names: Interned) -> Progress | Done:
        del names
        return ()

    def steps(self, progress: Progress, names: Interned) -> tuple[Step, ...]:
        return (Step(GET, names.key(Key(SERVERS, self.shards[len(cast(_Keys, progress))]))),)

    def advance(self, progress: Progress, index: int, reply: Reply, names: Interned) -> Progress | Done:
        del index
        read = (*cast(_Keys, progress), cast(int, reply))
        if len(read) < len(self.shards):
            return read
        return Done(
            tuple(
                Server(positions_of(shard), names.values[value].decode())
                for shard, value in zip(self.shards, read, strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class Switch(_OneStep):
    """Another server answers for a shard, with everything that was written."""

    shard: str
    identity: str

    def step(self, names: Interned) -> Step:
        return Step(SET, names.key(Key(SERVERS, self.shard)), names.value(self.identity.encode()))


@dataclass(frozen=True, slots=True)
class MarkShard(_OneStep):
    """What is written to a shard from here on is lost by the next `LoseWrites`."""

    shard: str

    def step(self, names: Interned) -> Step:
        return Step(MARK, names.key(Key(SERVERS, self.shard)))


@dataclass(frozen=True, slots=True)
class LoseWrites(_OneStep):
    """The shard is as it was marked. `identity`: of the server that answers from now on; '': of the same one."""

    shard: str
    identity: str

    def step(self, names: Interned) -> Step:
        return Step(LOSE, names.key(Key(SERVERS, self.shard)), names.value(self.identity.encode()))
