"""A lake in memory with stores that fail when told to, a clock that stands still, and reapers: for the tests of the
reaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from refstore.configuration.settings import ReaperSettings
from refstore.core.ids import Address
from refstore.core.safety import Safety
from refstore.deletion_history.deletion_journal import JournalWriter
from refstore.errors import KVUnavailable, ObjectsUnavailable
from refstore.kv.base import ABSENT, KV, Key, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery.fence import DryRunFence
from refstore.lake import Lake
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.objects.memory import MemoryObjects
from refstore.public_types import Entry
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.reference_records import Listed, decode_reference
from refstore.records.repository_records import RepositoryRecord
from refstore.repository import Repository
from refstore.versioning import due_hints, manifest
from refstore_reaper import reaper_pass
from refstore_reaper.daemon import Reaper
from refstore_reaper.pass_summary import PassSummary
from refstore_reaper.throttle import Throttle
from tests.kit.clock import FakeClock
from tests.kit.forwarding import ForwardingKV, ForwardingObjects

GRACE_SECONDS = 3600
SCRUB_AFTER_SECONDS = int(Safety().scrub_after_seconds)


def never() -> bool:
    return False


class Crash(Exception):
    """The process that made the call is no more."""


@dataclass
class WatchedKV(ForwardingKV):
    """`before` and `behind` see each single operation; what they raise is raised."""

    inner: KV = field(default_factory=MemoryKV)
    before: Callable[[Op], None] | None = None
    behind: Callable[[Op], None] | None = None
    down: bool = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.check()
        if self.before is None and self.behind is None:
            return self.inner.execute(ops)
        results: list[Result] = []
        for op in ops:
            if self.before is not None:
                self.before(op)
            results += self.inner.execute((op,))
            if self.behind is not None:
                self.behind(op)
        return results

    def check(self) -> None:
        if self.down:
            raise KVUnavailable("planted: the KV is down")

    def dump(self) -> dict[Key, bytes]:
        """Everything that is in it."""
        assert isinstance(self.inner, MemoryKV)
        return {Key(name, key): value for name in self.inner.partitions() for key, value in self.inner.scan_all(name)}

    def crash_at(self, matches: Callable[[Op], bool], *, behind: bool = False) -> None:
        """The next operation that matches is the last thing its process does: before it lands, or behind it."""

        def crash(op: Op) -> None:
            if matches(op):
                self.before = self.behind = None
                raise Crash

        self.before, self.behind = (None, crash) if behind else (crash, None)


@dataclass
class WatchedObjects(ForwardingObjects):
    inner: ObjectStore
    refuses: set[str] = field(default_factory=set)
    """Keys that the store will not delete."""
    down: bool = False
    before_delete: Callable[[Sequence[str]], None] | None = None
    batches: list[int] = field(default_factory=list)
    """How many keys each call of `delete_many` had, but for those that confirm manifest entries."""
    asked: int = 0
    """How many calls there were, those that found it down among them."""

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        self.check()
        if keys and not keys[0].startswith(manifest.WAITING_FOLDER):
            if self.before_delete is not None:
                self.before_delete(keys)
            self.batches.append(len(keys))
        done = self.inner.delete_many([key for key in keys if key not in self.refuses])
        return DeleteResult(
            done.deleted_keys,
            done.missing_keys,
            tuple((key, "planted: refused") for key in keys if key in self.refuses),
        )

    def check(self) -> None:
        self.asked += 1
        if self.down:
            raise ObjectsUnavailable("planted: the store is down")

    def dump(self) -> dict[str, bytes]:
        return {info.key: self.inner.read(info.key) for info in self.inner.list()}


TUNING = ("batch_keys", "step_seconds", "grace_seconds")
"""Options of a pass that are no settings."""


class World:
    """One lake with the repository `lake`."""

    def __init__(self, *, grace_seconds: int | None = None, **settings: object) -> None:
        self.clock = FakeClock()
        self.kv = WatchedKV()
        self.stores: dict[str, WatchedObjects] = {}
        self.safety = Safety(grace_seconds=GRACE_SECONDS)
        self.lake = Lake(self.kv, "memory://reaper", clock=self.clock, safety=self.safety, open_store=self._open)
        self.repo: Repository = self.lake.create_repository("lake", grace_seconds=grace_seconds)
        self.tuning = _taken(settings, *TUNING)
        self.settings = ReaperSettings(**settings)
        self.numbers = count(1)

    def _open(self, url: str) -> WatchedObjects:
        return self.stores.setdefault(url, WatchedObjects(MemoryObjects(clock=self.clock, name=url)))

    @property
    def objects(self) -> WatchedObjects:
        return self.stores[self.repo.record.namespace]

    @property
    def record(self) -> RepositoryRecord:
        raw = self.kv.get(keys.repository(self.repo.name))
        assert isinstance(raw, bytes)
        return decode(raw, RepositoryRecord)

    def stored(self) -> set[Address]:
        return {Address(info.key) for info in self.objects.inner.list("data/")}

    def upload(self, branch: str, *paths: str, body: bytes = b"x") -> list[Entry]:
        return [self.repo.upload(branch, path, body) for path in paths]

    def upload_due(self, *paths: str) -> list[Entry]:
        """Upload to `main`; what was uploaded is reset, and its grace window is over."""
        entries = self.upload("main", *paths)
        self.repo.reset("main")
        self.run_once()
        self.clock.advance(GRACE_SECONDS + 1)
        return entries

    def tools(
        self, *, reaper: str = "r1", should_stop: Callable[[], bool] = never, scrub: bool = False, **settings: object
    ) -> reaper_pass.PassTools:
        tuning = self.tuning | _taken(settings, *TUNING)
        chosen = ReaperSettings(**{**_fields(self.settings), **settings})
        return reaper_pass.PassTools(
            settings=chosen,
            reaper=reaper,
            journal=JournalWriter(self.objects, reaper, self.clock, self.numbers),
            throttle=Throttle(chosen.rate_per_second, self.clock),
            random=Random(1),
            should_stop=should_stop,
            fence=DryRunFence(),
            scrub_requested_ms=self.clock.now_ms() if scrub else None,
            **tuning,
        )

    def run_pass(self, **options: object) -> PassSummary:
        """Make one pass that is not asynchronous; options of `tools`."""
        tools = self.tools(**options)
        return reaper_pass.run_pass(self.lake.context(self.repo.name, self.record), self.record, tools)

    def reaper(self, **options: object) -> Reaper:
        options.setdefault("asynchronous", False)
        options.setdefault("random", Random(1))
        return Reaper(self.lake, self.settings, **{**self.tuning, **options})

    def run_once(self, **options: object) -> PassSummary:
        with self.reaper(**options) as reaper:
            return reaper.run_once(never)

    def run_past_grace(self) -> None:
        """What is released now goes."""
        self.run_once()
        self.clock.advance(GRACE_SECONDS + 1)
        self.run_once()

    def corrupt(self, key: Key, *, one_byte: bool = False) -> None:
        """What stands there cannot be read any more. `one_byte`: of a text in it; all else is as it was."""
        value = self.kv.get(key)
        assert value is not ABSENT
        self.kv.set(key, value.replace(b"m", b"\xff", 1) if one_byte else b"\xc1 not a record")
        assert self.kv.get(key) != value

    def references(self) -> int:
        return sum(
            self.kv.count(keys.references(self.repo.context.repo, shard), limit=10**6) for shard in range(keys.SHARDS)
        )

    def listed(self) -> int:
        """Addresses that something is listed for."""
        shards = (keys.references(self.repo.context.repo, shard) for shard in range(keys.SHARDS))
        return sum(isinstance(decode_reference(raw), Listed) for shard in shards for _, raw in self.kv.scan_all(shard))

    def hints(self) -> int:
        """How many addresses have due hints, each hint counted."""
        repo = self.repo.context.repo
        return sum(due_hints.count(self.kv, repo, shard, now_ms=None, limit=10**6) for shard in range(keys.SHARDS))


def _taken(options: dict[str, object], *names: str) -> dict[str, object]:
    """Take these options out of others."""
    return {name: options.pop(name) for name in names if name in options}


def _fields(settings: ReaperSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__slots__}
