"""Running real code one call at a time, by replay.

An operation is a deterministic function of what it reads. To learn what a task calls next, its function runs from the
start over stores that answer from the task's recorded results; at the first call that has none, `Pause` (a
BaseException, so that no `except Exception` of the code under test sees it) ends the run and carries the call. Nothing
of a run outlives it: the same results always lead to the same call, and `Replay` fails loudly where they do not.

Objects under `_refstore/` (ranges, metaranges, listings, journals) are written once, under names that nobody else makes
and nobody reads before a record names them, and no task here deletes them. Writing and reading them commutes with every
step of every other task, so they are no steps: they are kept beside the states, one content per name for all of them.
Where the KV may lose writes, `SHARED` are objects as others: who deletes looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from refstore.core.clock import Clock
from refstore.errors import KVUnavailable, ObjectNotFound, ObjectsUnavailable
from refstore.kv.base import KV, SCAN_LIMIT, Op, Result, Server
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
from tests.kit.calls import (
    Barrier,
    Count,
    DeleteObjects,
    DeleteRange,
    Execute,
    ListObjects,
    Look,
    LoseWrites,
    MarkShard,
    Put,
    ReadClock,
    Scan,
    Servers,
    SetClock,
    Switch,
)
from tests.kit.ids import CountingIds
from tests.kit.steps import Call, Raised, stored

PRIVATE: Final = "_refstore/"
"""Objects that are written once under a new name."""

SHARED: Final = ("_refstore/manifest/", "_refstore/witnesses/", "_refstore/servers/")
"""What tells whether the KV lost writes."""


def is_private(key: str, *, may_lose: bool) -> bool:
    """Whether an object is kept beside the states. `may_lose`: whether the KV may lose writes."""
    return key.startswith(PRIVATE) and not (may_lose and key.startswith(SHARED))


LOST_REPLY: Final = Raised(KVUnavailable, "the reply was lost after the write landed")
LOST_OBJECT_REPLY: Final = Raised(ObjectsUnavailable, "the reply was lost after the write landed")


class Pause(BaseException):
    """The recorded results are used up."""


class NotDeterministic(BaseException):
    """The same results led to another call than before."""


class Replay:
    """What a task's stores share: the results so far, and the call that has none yet."""

    def __init__(self) -> None:
        self._recorded: Sequence[tuple[Call, object]] = ()
        self._at = 0
        self.pending: Call | None = None

    def restart(self, recorded: Sequence[tuple[Call, object]]) -> None:
        self._recorded = recorded
        self._at = 0
        self.pending = None

    def ask(self, call: Call) -> Any:  # each kind of call has its own result
        if self.pending is not None:
            raise Pause  # a `finally` that calls a store while the pause unwinds: not reached yet
        if self._at == len(self._recorded):
            self.pending = call
            raise Pause
        asked, result = self._recorded[self._at]
        if asked != call:
            raise NotDeterministic(f"asked for {call!r} where a run with the same results asked for {asked!r}")
        self._at += 1
        if isinstance(result, Raised):
            raise result.error(result.message)
        return result


class ReplayKV(KV):
    def __init__(self, replay: Replay, shards: tuple[str, ...]) -> None:
        """`shards`: those that may lose writes apart from each other."""
        self._replay = replay
        self._shards = shards

    def servers(self) -> list[Server]:
        return list(self._replay.ask(Servers(self._shards))) if self._shards else super().servers()

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        return list(self._replay.ask(Execute(tuple(ops)))) if ops else []

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        return list(self._replay.ask(Scan(partition, prefix, after, limit)))

    def delete_range(self, partition: str, first: str, last: str) -> None:
        self._replay.ask(DeleteRange(partition, first, last))

    def count(self, partition: str, *, limit: int) -> int:
        return cast(int, self._replay.ask(Count(partition, limit)))


class ReplayObjects(ObjectStore):
    def __init__(self, replay: Replay, private: dict[str, bytes], clock: Clock, *, may_lose: bool) -> None:
        self._replay = replay
        self._may_lose = may_lose
        self._private = private
        self._clock = clock

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        whole = b"".join(chunks_of(body))
        if is_private(key, may_lose=self._may_lose):
            if self._private.setdefault(key, whole) != whole:
                raise NotDeterministic(
                    f"{key} was written with other content before; what is private must be named by its content or anew"
                )
        else:
            self._replay.ask(Put(key, stored(whole, self._clock.now_ms()), if_absent))
        tally = BodyDigest(key)
        tally.add(whole)
        return tally.stored_object

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        if is_private(key, may_lose=self._may_lose):
            if key not in self._private:
                raise ObjectNotFound(f"there is no object at {key!r}")
            body = self._private[key]
        else:
            body = cast(bytes, self._replay.ask(Look(key, body=True)))
        check_length(key, size_bytes, len(body))
        return iter((body[start:end],))

    def head(self, key: str) -> ObjectInfo:
        return cast(ObjectInfo, self._replay.ask(Look(key, body=False)))

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        """Names only; sizes and times are 0."""
        names: Sequence[str] = self._replay.ask(ListObjects(prefix, after))
        return iter([ObjectInfo(name, 0, 0) for name in names if not before or name < before])

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        return cast(DeleteResult, self._replay.ask(DeleteObjects(tuple(dict.fromkeys(keys)))))

    @property
    def url(self) -> str:
        return "memory://simulated"


class ReplayClock:
    """Stands still, or, where a task of the scenario moves it, is read as a key is."""

    def __init__(self, replay: Replay, wall_ms: int, *, moves: bool) -> None:
        self._replay = replay
        self._wall_ms = wall_ms
        self._moves = moves

    def now_ms(self) -> int:
        return cast(int, self._replay.ask(ReadClock())) if self._moves else self._wall_ms

    def monotonic_seconds(self) -> float:
        """Stands still. Whether an upload counts as long is up to its world's `recheck_after_seconds`: 0, and it always
        does.
        """
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Takes no time: what others do meanwhile, they may do anyway."""


@dataclass(frozen=True, slots=True)
class Stores:
    """What a task has: its own doors to the stores that all share, a clock, ids, and what only a simulated task can
    do.
    """

    kv: KV
    objects: ObjectStore
    clock: Clock
    ids: CountingIds
    replay: Replay

    def wait_for_others(self) -> None:
        """Until no operation that has begun is under way (of those that are bounded)."""
        self.replay.ask(Barrier())

    def switch(self, shard: str, identity: str) -> None:
        """Let another server answer for a shard."""
        self.replay.ask(Switch(shard, identity))

    def mark(self, shard: str) -> None:
        """From here on writes to the shard are lost by `lose`."""
        self.replay.ask(MarkShard(shard))

    def lose(self, shard: str, identity: str) -> None:
        """`identity`: of the server that answers then; '': of the same one."""
        self.replay.ask(LoseWrites(shard, identity))

    def set_clock(self, wall_ms: int, *, waits: bool) -> None:
        """`waits`: by more than an operation may take, so not while one is under way."""
        self.replay.ask(SetClock(wall_ms, waits))


class Stage(NamedTuple):
    """A piece of a task that remembers nothing of the pieces before it but its arguments, as one pass of a loop does.

    Cutting a task into stages lets states that differ only in what was read before be recognised as one.
    """

    name: str
    run: Callable[..., object]
    """Called with the bound task environment, then `args`. Returns `Then` to go on with other stages first."""
    args: tuple[Hashable, ...] = ()


class Then(NamedTuple):
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Task:
    label: str
    """One to four capitals. A `Z` in front is for settling."""
    stages: tuple[Stage, ...]
    may_crash: bool = False
    lost_replies: int = 0
    """How many of its writes may lose their replies."""
    lost_object_replies: int = 0
    clock_ms: int | None = None
    """Its own clock, standing still. None: the scenario's."""
    bounded: bool = True
    """Whether it ends within the deadline of operations. Barriers do not wait for those that may take for ever:
    reapers.
    """


@dataclass(slots=True)
class Runner:
    """Runs one task's stages for the explorer."""

    task: Task
    bind: Callable[[Stores], object]
    """Makes the environment that stages are called with."""
    private: dict[str, bytes]
    wall_ms: int
    clock_moves: bool
    shards: tuple[str, ...] = ()
    replay: Replay = field(default_factory=Replay)
    ids: CountingIds = field(init=False)
    _environment: object = field(init=False)
    runs: int = 0
    """How often real code was run."""

    def __post_init__(self) -> None:
        self.ids = CountingIds(self.task.label.lower())
        own = self.task.clock_ms
        clock = ReplayClock(self.replay, self.wall_ms if own is None else own, moves=self.clock_moves and own is None)
        kv = ReplayKV(self.replay, self.shards)
        objects = ReplayObjects(self.replay, self.private, clock, may_lose=bool(self.shards))
        self._environment = self.bind(Stores(kv, objects, clock, self.ids, self.replay))

    def run(self, stage: Stage, label: str, recorded: Sequence[tuple[Call, object]]) -> Call | Ended:
        """The call that comes after `recorded`, or how the stage ended."""
        self.runs += 1
        self.ids.restart(label)
        self.replay.restart(recorded)
        try:
            result = stage.run(self._environment, *stage.args)
        except Pause:
            assert self.replay.pending is not None
            return self.replay.pending
        except Exception as error:  # noqa: BLE001  # how an operation ends is for the scenario to judge
            return Ended((), error)
        if self.replay.pending is not None:
            raise NotDeterministic(
                f"stage {stage.name!r} of {self.task.label} caught the pause; it must let BaseException pass"
            )
        return Ended(result.stages if isinstance(result, Then) else (), result)


class Ended(NamedTuple):
    then: tuple[Stage, ...]
    outcome: object
    """What it returned, or the exception that it raised."""
