"""What the commands that look into a loss need of a lake, which is a layer above."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from refstore.audit import AuditLog
from refstore.context import Context
from refstore.core.clock import Clock
from refstore.core.ids import Ids, RepositoryName
from refstore.core.safety import Durations
from refstore.kv.base import KV
from refstore.kv_recovery.fence import PositionFence
from refstore.objects.base import ObjectStore
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.manifest import AnyEntry, EntryKey, Manifest

Entries = dict[EntryKey, AnyEntry]
"""Entries of a manifest, each once."""


class LakeAccess(Protocol):
    """A lake."""

    @property
    def kv(self) -> KV: ...
    @property
    def own_store(self) -> ObjectStore: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def ids(self) -> Ids: ...
    @property
    def audit(self) -> AuditLog: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def durations(self) -> Durations: ...

    def context(self, name: RepositoryName, record: RepositoryRecord) -> Context: ...

    def all_repositories(self) -> Iterator[tuple[RepositoryName, RepositoryRecord]]: ...


class RestoredRecord(NamedTuple):
    """What became of something that the KV did not know, or had in an older state."""

    repository: RepositoryName | str
    """'' for a record of the whole lake."""
    kind: str
    """`commit`, `branch`, `tag`, `content`, `object`, `repository`; `access key`, `retention rules`, `purge document`
    or `durations`.
    """
    name: str
    outcome: str
    commit: str = ""


class Progress(Protocol):
    """Shows how far long work is."""

    def advance(self, count: int = 1) -> None: ...

    def describe(self, text: str) -> None: ...


class _NoProgress:
    """Shows nothing."""

    def advance(self, count: int = 1) -> None: ...

    def describe(self, text: str) -> None: ...


NO_PROGRESS: Final = _NoProgress()


def fence_of(lake: LakeAccess, deleter: str) -> PositionFence:
    return PositionFence(lake.kv, lambda: lake.own_store, lake.clock, lake.durations, deleter)


def index_entries(entries: Iterable[AnyEntry]) -> Entries:
    """Return each entry once: one that is being confirmed is in both folders."""
    return {(type(entry), entry.identity): entry for entry in entries}


def open_repositories(lake: LakeAccess) -> list[Context]:
    """Return the contexts of the repositories that are not deleted."""
    return [lake.context(name, record) for name, record in lake.all_repositories() if not record.closed_ms]
