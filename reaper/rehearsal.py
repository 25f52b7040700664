"""A dry run: the very same passes, over stores that only pretend to change.

`Overlay` is a KV whose writes stay in memory, over one that is only read; `Pretending` is an object store that notes what would go.
Nothing is written, not even a lease or a heartbeat. What is held in memory grows with what the run would change: some 500
bytes per entry, reference and hint of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from reaper import cycle
from reaper.leases import Leases
from reaper.pace import Pace
from reaper.processing import Doomed
from reaper.summary import Summary, Tally
from refstore import ids, keys
from refstore.clock import Clock
from refstore.context import Context
from refstore.errors import Invalid, KVUnavailable, ObjectNotFound, RefstoreError
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Absent, Delete, Exchange, Get, Key, Op, Result, Set, SetIf
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.objects.base import Body, Deletion, ObjectInfo, ObjectStore, Stored, chunks_of
from refstore.records import RepositoryRecord, decode
from refstore.settings import ReaperSettings

ROUNDS_MAX: Final = 10_000


class WouldGo(NamedTuple):
    repository: str
    doomed: Doomed


def rehearse(
    lake: Lake,
    settings: ReaperSettings,
    *,
    repositories: Collection[str] = (),
    scrub_now: bool = False,
    tell: Callable[[WouldGo], None],
    should_stop: Callable[[], bool],
) -> Summary:
    """What `--once` would do now. `tell` gets each address whose blob would go, as it is found. Raises KVUnavailable."""
    total = Tally()
    overlay = Overlay(lake.kv)
    for name, raw in lake.kv.scan_all(keys.REPOSITORIES):
        if (repositories and name not in repositories) or should_stop():
            continue
        try:
            checked, record = ids.repository_name(name), decode(raw, RepositoryRecord)
            ctx = lake.context(checked, record)
            pretending = replace(ctx, kv=overlay, objects=Pretending(ctx.objects))
            total.add(_rehearse(pretending, record, settings, scrub_now, tell, should_stop))
        except RefstoreError as error:
            if isinstance(error, KVUnavailable):
                raise
            total.fail(name, "pass", error)
    return total.summary()


def _rehearse(
    ctx: Context,
    record: RepositoryRecord,
    settings: ReaperSettings,
    scrub_now: bool,
    tell: Callable[[WouldGo], None],
    should_stop: Callable[[], bool],
) -> Summary:
    total = Tally()
    scrub_asked_ms = ctx.clock.now_ms() if scrub_now else None
    nobody = Leases(MemoryKV(), ctx.repo, "rehearsal", ctx.clock, ctx.ids, seconds=settings.lease_seconds)
    for _ in range(ROUNDS_MAX):
        tools = cycle.Tools(
            settings=settings,
            reaper="rehearsal",
            journal=_Telling(ctx.name, tell),
            pace=Pace(0, ctx.clock),
            random=Random(0),  # noqa: S311  # an order, not a secret
            should_stop=should_stop,
            leases=nobody,
            scrub_asked_ms=scrub_asked_ms,
        )
        done = cycle.run(ctx, record, tools)
        total.follow(done)
        if should_stop() or (done.idle and (done.error_count or not done.more)):
            break
    return total.summary()


class _Telling:
    """A journal that is told to somebody, and not kept."""

    def __init__(self, repository: str, tell: Callable[[WouldGo], None]) -> None:
        self._repository = repository
        self._tell = tell

    def began(self, doomed: Sequence[Doomed]) -> None:
        for item in doomed:
            self._tell(WouldGo(self._repository, item))

    def ended(self, doomed: Sequence[Doomed], confirmed: Deletion) -> None: ...


class Pretending(ObjectStore):
    """Reads what is there, and deletes nothing."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._gone: set[str] = set()

    @property
    def url(self) -> str:
        return self._objects.url

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> Stored:
        del key, if_absent
        return Stored(sum(len(chunk) for chunk in chunks_of(body)), "")

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        return self._objects.get(key, start=start, end=end)

    def head(self, key: str) -> ObjectInfo:
        return self._objects.head(key)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self._objects.list(prefix, after=after, before=before)

    def delete_many(self, keys: Sequence[str]) -> Deletion:
        """Asks for each whether it is there, which costs a request on a store across a network."""
        deleted: list[str] = []
        missing: list[str] = []
        for key in keys:
            try:
                self._objects.head(key)
            except ObjectNotFound:
                missing.append(key)
            else:
                (missing if key in self._gone else deleted).append(key)
        self._gone.update(deleted)
        return Deletion(tuple(deleted), tuple(missing), ())

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return self._objects.presign_get(key, expires_seconds=expires_seconds)

    def presign_put(self, key: str, *, expires_seconds: int) -> str:
        del key, expires_seconds
        raise Invalid("a dry run hands out nothing to write to")

    def sweep_temporary(self, *, older_than_seconds: float, clock: Clock) -> int:
        del older_than_seconds, clock
        return 0


class Overlay(KV):
    """A KV whose writes stay here."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._partitions: dict[str, _Written] = {}
        self._lock = threading.RLock()

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        with self._lock:
            asked = [op.key for op in ops if isinstance(op, Get | SetIf | Exchange) and not self._knows(op.key)]
            below = dict(zip(asked, self._kv.get_many(asked), strict=True)) if asked else {}
            return [self._perform(op, below) for op in ops]

    def scan(self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT) -> list[tuple[str, bytes]]:
        with self._lock:
            written = self._partitions.get(partition)
            if written is None:
                return self._kv.scan(partition, prefix=prefix, after=after, limit=limit)
            return self._scan(written, partition, prefix, after, limit)

    def _scan(self, written: _Written, partition: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        page: list[tuple[str, bytes]] = []
        above = after  # how far what is written here is in the page; `after` goes ahead of it, over what was cut out below
        while True:
            below = self._kv.scan(partition, prefix=prefix, after=after, limit=limit)
            last = below[-1][0] if len(below) == limit else None
            page += sorted([*written.uncovered(below), *written.between(prefix, above, last)])
            if last is None or len(page) >= limit:
                return page[:limit]
            above, after = last, written.end_of_cut(last)

    def delete_range(self, partition: str, first: str, last: str) -> None:
        with self._lock:
            self._partitions.setdefault(partition, _Written()).cut(first, last)

    def count(self, partition: str, *, limit: int) -> int:
        if partition not in self._partitions:
            return self._kv.count(partition, limit=limit)
        count, after = 0, ""
        while count < limit and (page := self.scan(partition, after=after, limit=min(SCAN_LIMIT, limit - count))):
            count, after = count + len(page), page[-1][0]
        return count

    def _knows(self, key: Key) -> bool:
        written = self._partitions.get(key.partition)
        return written is not None and written.knows(key.name)

    def _perform(self, op: Op, below: Mapping[Key, bytes | Absent]) -> Result:
        written = self._partitions.setdefault(op.key.partition, _Written())
        name = op.key.name
        old = written.changes.get(name, ABSENT) if written.knows(name) else below.get(op.key, ABSENT)
        match op:
            case Get():
                return old
            case Set(_, value):
                written.changes[name] = value
                return None
            case SetIf(_, expected, value):
                if old != expected:
                    return False
                written.changes[name] = value
                return True
            case Exchange(_, value):
                written.changes[name] = value
                return old
            case Delete():
                written.changes[name] = ABSENT
                return None


class _Written:
    """What was written to one partition."""

    def __init__(self) -> None:
        self.changes: SortedDict[str, bytes | Absent] = SortedDict()
        self._cuts: SortedDict[str, str] = SortedDict()
        """First and last key of each range that was removed; they do not overlap. Changes came after the cuts."""

    def knows(self, name: str) -> bool:
        """Whether what is below does not matter for the key."""
        return name in self.changes or self._cut_at(name) is not None

    def uncovered(self, below: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        return [(name, value) for name, value in below if not self.knows(name)]

    def between(self, prefix: str, after: str, last: str | None) -> Iterator[tuple[str, bytes]]:
        """What was written under the prefix, after one key and up to another; None: to the end."""
        low = max(prefix, after)
        for name in self.changes.irange(low or None, last, inclusive=(low != after, True)):
            value = self.changes[name]
            if not name.startswith(prefix):
                return
            if value is not ABSENT:
                yield name, value

    def end_of_cut(self, name: str) -> str:
        """The last key of the cut that the key is in; the key itself if it is in none."""
        return self._cut_at(name) or name

    def cut(self, first: str, last: str) -> None:
        for name in list(self.changes.irange(first, last)):
            del self.changes[name]
        before = self._cuts.bisect_right(first) - 1
        if before >= 0 and self._cuts.values()[before] >= first:
            first = self._cuts.keys()[before]
        for name in list(self._cuts.irange(first, last)):
            last = max(last, self._cuts.pop(name))
        self._cuts[first] = last

    def _cut_at(self, name: str) -> str | None:
        before = self._cuts.bisect_right(name) - 1
        last = self._cuts.values()[before] if before >= 0 else None
        return last if last is not None and last >= name else None
