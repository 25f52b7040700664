"""A dry run: the same passes, over read-only stores.

`Overlay` is a KV that keeps writes in memory, above a KV that is only read. `OverlayObjects` is an object store that
remembers the objects that would be deleted. Nothing is written, not even a lease or a heartbeat. The memory grows with
the changes: about 500 bytes for each entry, reference and hint.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from random import Random
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from refstore.audit import AuditLog
from refstore.configuration.settings import ReaperSettings
from refstore.context import Context
from refstore.core import ids
from refstore.errors import Invalid, KVUnavailable, RefstoreError
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Absent, Delete, Exchange, Get, Key, Op, Result, Server, Set, SetIf
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery.fence import DryRunFence
from refstore.lake import Lake
from refstore.objects.base import Body, DeleteResult, ObjectInfo, ObjectStore, StoredObject, chunks_of
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.pending_deletes import PendingDelete
from refstore.records.repository_records import RepositoryRecord
from refstore_reaper import reaper_pass
from refstore_reaper.leases import Leases
from refstore_reaper.pass_summary import PassSummary, Tally
from refstore_reaper.throttle import Throttle

PASSES_MAX: Final = 10_000


class PlannedDelete(NamedTuple):
    repository: str
    item: PendingDelete


def dry_run(
    lake: Lake,
    settings: ReaperSettings,
    *,
    repositories: Collection[str] = (),
    scrub_now: bool = False,
    grace_seconds: float | None = None,
    report: Callable[[PlannedDelete], None],
    should_stop: Callable[[], bool],
) -> PassSummary:
    """Return what `--once` would do now. `report` is called with each address that would be deleted. Raises
    KVUnavailable.
    """
    total = Tally()
    overlay = Overlay(lake.kv)
    for name, raw in lake.kv.scan_all(keys.REPOSITORIES):
        if (repositories and name not in repositories) or should_stop():
            continue
        try:
            checked, record = ids.repository_name(name), decode(raw, RepositoryRecord)
            ctx = lake.context(checked, record)
            objects = OverlayObjects(ctx.objects)
            audit = AuditLog(overlay, lambda objects=objects: objects, ctx.clock, ctx.ids, ctx.durations)
            own = OverlayObjects(lake.own_store)
            read_only = replace(ctx, kv=overlay, objects=objects, audit=audit, lake_objects=lambda own=own: own)
            total.add(_dry_run(read_only, record, settings, scrub_now, grace_seconds, report, should_stop))
        except RefstoreError as error:
            if isinstance(error, KVUnavailable):
                raise
            total.fail(name, "pass", error)
    return total.summary()


def _dry_run(
    ctx: Context,
    record: RepositoryRecord,
    settings: ReaperSettings,
    scrub_now: bool,
    grace_seconds: float | None,
    report: Callable[[PlannedDelete], None],
    should_stop: Callable[[], bool],
) -> PassSummary:
    total = Tally()
    scrub_requested_ms = ctx.clock.now_ms() if scrub_now else None
    leases = Leases(MemoryKV(), ctx.repo, "dry-run", ctx.clock, ctx.ids, seconds=settings.lease_seconds)
    for _ in range(PASSES_MAX):
        tools = reaper_pass.PassTools(
            settings=settings,
            reaper="dry-run",
            journal=_ReportingJournal(ctx.name, report),
            throttle=Throttle(0, ctx.clock),
            random=Random(0),  # noqa: S311  # an order, not a secret
            should_stop=should_stop,
            fence=DryRunFence(),
            leases=leases,
            grace_seconds=grace_seconds,
            scrub_requested_ms=scrub_requested_ms,
        )
        done = reaper_pass.run_pass(ctx, record, tools)
        total.follow(done)
        if should_stop() or (done.idle and (done.error_count or not done.more)):
            break
    return total.summary()


class _ReportingJournal:
    """Reports the journal's lines, and writes none."""

    def __init__(self, repository: str, report: Callable[[PlannedDelete], None]) -> None:
        self._repository = repository
        self._report = report

    def record_start(self, batch: Sequence[PendingDelete]) -> None:
        for item in batch:
            self._report(PlannedDelete(self._repository, item))

    def record_end(self, batch: Sequence[PendingDelete], confirmed: DeleteResult) -> None: ...


class OverlayObjects(ObjectStore):
    """Reads the store, and remembers what would have been deleted."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._pretended: set[str] = set()

    @property
    def url(self) -> str:
        return self._objects.url

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        del key, if_absent
        return StoredObject(sum(len(chunk) for chunk in chunks_of(body)), "")

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        return self._objects.get(key, start=start, end=end, size_bytes=size_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._objects.head(key)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self._objects.list(prefix, after=after, before=before)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        """Return which keys exist. On a store across a network each key costs a request."""
        infos = self._objects.head_many(keys)
        existing = {key for key, info in zip(keys, infos, strict=True) if info is not None} - self._pretended
        self._pretended |= existing
        deleted = tuple(key for key in keys if key in existing)
        return DeleteResult(deleted, tuple(key for key in keys if key not in existing), ())

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return self._objects.presign_get(key, expires_seconds=expires_seconds)

    def presign_put(self, key: str, *, expires_seconds: int, if_absent: bool = False) -> str:
        del key, expires_seconds, if_absent
        raise Invalid("a dry run hands out no URLs to write to")


class Overlay(KV):
    """A KV that keeps its writes in memory."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._changes: defaultdict[str, SortedDict[str, bytes | Absent]] = defaultdict(SortedDict[str, bytes | Absent])
        """What was written to each partition; ABSENT: it was deleted."""
        self._lock = threading.RLock()

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        with self._lock:
            needed = [op.key for op in ops if isinstance(op, Get | SetIf | Exchange) and not self._is_changed(op.key)]
            below = dict(zip(needed, self._kv.get_many(needed), strict=True)) if needed else {}
            return [self._perform(op, below) for op in ops]

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        with self._lock:
            changes = self._changes[partition]
            page: list[tuple[str, bytes]] = []
            while True:
                below = self._kv.scan(partition, prefix=prefix, after=after, limit=limit)
                last = below[-1][0] if len(below) == limit else None
                unchanged = [(name, value) for name, value in below if name not in changes]
                page += sorted([*unchanged, *_written_changes(changes, prefix, after, last)])
                if last is None or len(page) >= limit:
                    return page[:limit]
                after = last

    def delete_range(self, partition: str, first: str, last: str) -> None:
        with self._lock:
            changes = self._changes[partition]
            below = takewhile(lambda pair: pair[0] <= last, self._kv.scan_all(partition, after=first))
            names = [first, *changes.irange(first, last), *(name for name, _ in below)]
            for name in names if first <= last else ():
                changes[name] = ABSENT

    def count(self, partition: str, *, limit: int) -> int:
        if partition not in self._changes:
            return self._kv.count(partition, limit=limit)
        return sum(1 for _ in islice(self.scan_all(partition), limit))

    def servers(self) -> list[Server]:
        return self._kv.servers()

    def _is_changed(self, key: Key) -> bool:
        return key.partition in self._changes and key.name in self._changes[key.partition]

    def _perform(self, op: Op, below: Mapping[Key, bytes | Absent]) -> Result:
        changes, name = self._changes[op.key.partition], op.key.name
        old = changes[name] if name in changes else below.get(op.key, ABSENT)
        match op:
            case Get():
                return old
            case Set(_, value):
                changes[name] = value
                return None
            case SetIf(_, expected, value):
                if old != expected:
                    return False
                changes[name] = value
                return True
            case Exchange(_, value):
                changes[name] = value
                return old
            case Delete():
                changes[name] = ABSENT
                return None


def _written_changes(
    changes: SortedDict[str, bytes | Absent], prefix: str, after: str, last: str | None
) -> Iterator[tuple[str, bytes]]:
    """Yield what was written under the prefix, after one key and up to another; None: to the end."""
    low = max(prefix, after)
    for name in changes.irange(low or None, last, inclusive=(low != after, True)):
        if not name.startswith(prefix):
            return
        if (value := changes[name]) is not ABSENT:
            yield name, value
