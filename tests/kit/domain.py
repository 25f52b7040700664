"""A refstore repository as the explorer sees it: worlds, what tasks are called with, and what has to hold in every
state.

Sharding only splits work: an address is in one shard for ever. So worlds have a single shard of references and hints
(`simulated`), and a pass over all shards is a pass over one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar, cast

from refstore.context import Context
from refstore.core.clock import Clock
from refstore.core.ids import Address, RepositoryName
from refstore.core.safety import Safety
from refstore.core.signing_keys import SigningKey
from refstore.kv.base import Key
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.objects import parallel_reads
from refstore.objects.base import ObjectStore
from refstore.operations import upload_bodies
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.tree_diff import EntryChange
from refstore.versioning.commits.tree_rewrite import WrittenTree
from refstore.versioning.commits.trees import SCAN_LIMIT, Trees
from tests.kit.audit import NoAudit
from tests.kit.clock import FakeClock
from tests.kit.explorer import Scenario
from tests.kit.ids import CountingIds
from tests.kit.independent_audit import BRANCH, DATA, ENTRY, NO_KEY, Garbage, audit, column_of, decoded
from tests.kit.reaping import settle
from tests.kit.replay import Stage, Stores, Task, is_private
from tests.kit.steps import CLOCK, OBJECTS, Interned, body_of, clock_value, stored
from tests.kit.store_uploads import UPLOADS, StoreWithUploads
from tests.kit.stores import DictKV, DictObjects

T = TypeVar("T")
Ends = Callable[[Mapping[str, tuple[Hashable, ...]], Mapping[int, int], Interned], str | None]

REPOSITORY: Final = "lake"
DAY_MS: Final = 86_400_000

NO_AGES: Final = Safety(
    operation_deadline_seconds=0.0001,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
    grace_seconds=0,
    issue_seconds=3600,
)
"""Nothing is too young for anything: scrubbers look at what is being written, empty lists are due at once, and every
upload re-checks its reference. What holds then holds without any clock, but for rules that are about nothing else.
"""
_KEY: Final = SigningKey("simulated", bytes(32))
_ROUND_MS: Final = 30 * DAY_MS
"""How far the clock goes on from one round of settling to the next: past every age there is."""


@contextmanager
def simulated() -> Generator[None]:
    """While worlds are built and explored: one shard, no batch written by several threads, no word about a million
    retries.
    """
    before = keys.SHARDS, upload_bodies.WRITE_THREADS, parallel_reads.SEQUENTIAL_READS_MAX
    keys.SHARDS = upload_bodies.WRITE_THREADS = 1  # Finals, for the product
    parallel_reads.SEQUENTIAL_READS_MAX = 1_000_000
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        keys.SHARDS, upload_bodies.WRITE_THREADS, parallel_reads.SEQUENTIAL_READS_MAX = before


class RememberedTrees(Trees):
    """Trees that compute what was computed before no second time: they are run again and again with the same input.

    What is written is named by its content and by an id, so the place in the sequence of ids is input too.
    """

    def __init__(
        self, objects: ObjectStore, ids: CountingIds, clock: Clock, memory: dict[object, tuple[object, int]]
    ) -> None:
        super().__init__(objects, ids, clock, threads=1)
        self._counting = ids
        self._memory = memory

    def get_many(self, metarange: str, paths: Iterable[str]) -> dict[str, StoredEntry]:
        asked = tuple(paths)
        return dict(self._remembered(("get", metarange, asked), lambda: Trees.get_many(self, metarange, asked)))

    def scan(
        self, metarange: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, StoredEntry]]:
        key = ("scan", metarange, prefix, after, limit)
        return list(self._remembered(key, lambda: Trees.scan(self, metarange, prefix=prefix, after=after, limit=limit)))

    def apply(self, base: str, sorted_changes: Iterable[tuple[str, StoredEntry | None]]) -> WrittenTree:
        pairs = list(sorted_changes)
        changes = tuple((path, None if entry is None else encode(entry)) for path, entry in pairs)
        return self._remembered(
            ("apply", base, changes, self._counting.position), lambda: Trees.apply(self, base, pairs)
        )

    def apply_encoded(self, base: str, sorted_changes: Iterable[tuple[str, bytes]]) -> WrittenTree:
        changes = tuple(sorted_changes)
        return self._remembered(
            ("encoded", base, changes, self._counting.position), lambda: Trees.apply_encoded(self, base, changes)
        )

    def read_added_addresses(self, listing: str) -> Iterator[list[Address]]:
        return iter(self._remembered(("added", listing), lambda: list(Trees.read_added_addresses(self, listing))))

    def diff(
        self, left: str, right: str, *, prefix: str = "", after: str = "", only: PathFilter | None = None
    ) -> Iterator[EntryChange]:
        if only is not None:
            return Trees.diff(self, left, right, prefix=prefix, after=after, only=only)
        key = ("diff", left, right, prefix, after)
        return iter(self._remembered(key, lambda: list(Trees.diff(self, left, right, prefix=prefix, after=after))))

    def _remembered(self, key: object, compute: Callable[[], T]) -> T:
        found = self._memory.get(key)
        if found is None:
            given = self._counting.given
            result = compute()
            found = self._memory[key] = (result, self._counting.given - given)
        else:
            self._counting.given += found[1]
        return cast(T, found[0])


@dataclass(frozen=True, slots=True)
class Tools:
    """What a task's stages are called with."""

    repo: Repository
    lake: Lake
    stores: Stores

    @property
    def ctx(self) -> Context:
        return self.repo.context


@dataclass(slots=True)
class World:
    """A repository in dicts, filled by real calls of the SDK, from which scenarios start."""

    safety: Safety = NO_AGES
    store_has_uploads: bool = False
    """Whether the store has multipart uploads of its own."""
    contents: dict[Key, bytes] = field(default_factory=dict[Key, bytes])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    clock: FakeClock = field(default_factory=FakeClock)
    lake: Lake = field(init=False)
    repo: Repository = field(init=False)

    def __post_init__(self) -> None:
        store = DictObjects(self.blobs, self.clock)
        self.lake = Lake(
            DictKV(self.contents),
            "memory://simulated",
            clock=self.clock,
            ids=CountingIds("w"),
            safety=self.safety,
            signing_keys=(_KEY,),
            audit_log=NoAudit(),
            open_store=lambda _url: self.open(store, CountingIds("s")),
        )
        self.repo = self.lake.create_repository(REPOSITORY)

    def open(self, store: ObjectStore, ids: CountingIds) -> ObjectStore:
        """The store as this world has it."""
        return StoreWithUploads(store, lambda: ids.new_id(0)) if self.store_has_uploads else store

    def scenario(
        self,
        name: str,
        *tasks: Task,
        clock_moves: bool = False,
        safety_only: bool = False,
        leaves: bool = False,
        ends: Callable[[dict[str, bytes]], Ends] | None = None,
        remembers: frozenset[str] = frozenset(),
        shards: tuple[str, ...] = (),
    ) -> Scenario:
        """`ends` is made from the private objects, which it may want to read. `leaves`: blobs without a reference key
        may be left. `shards`: those that may lose writes (`losing.py`).
        """
        from tests.kit import losing

        if shards:
            losing.begin(self, shards)
        names = Interned()
        store = {names.key(key): names.value(value) for key, value in self.contents.items()}
        private: dict[str, bytes] = {}
        for key, value in self.blobs.items():
            if is_private(key, may_lose=bool(shards)):
                private[key] = body_of(value)
            else:
                store[names.key(Key(OBJECTS, key))] = names.value(value)
        if clock_moves:
            store[names.key(CLOCK)] = names.value(clock_value(self.clock.now_ms()))
        domain = (
            losing.LosingDomain(self, private, shards, safety_only=safety_only, leaves=leaves)
            if shards
            else RepositoryDomain(self, private, safety_only=safety_only, leaves=leaves)
        )
        judge = ends(private) if ends is not None else None
        return Scenario(
            name, domain, store, names, private, tasks, self.clock.now_ms(), clock_moves, judge, shards, remembers
        )


class RepositoryDomain:
    """See `explorer.Domain`."""

    def __init__(self, world: World, private: dict[str, bytes], *, safety_only: bool, leaves: bool) -> None:
        self._record = world.repo.record
        self.repo_id = world.repo.record.id
        self._safety = world.safety
        self._open = world.open
        self._wall_ms = world.clock.now_ms()
        self._private = private
        self.safety_only = safety_only
        self._leaves = leaves
        self._trees: dict[object, tuple[object, int]] = {}
        self.watch = Watch(self.repo_id, private)

    def bind(self, stores: Stores) -> Tools:
        kv = RetryingKV(stores.kv, clock=stores.clock, random=_Still())
        lake = Lake(
            kv,
            "memory://simulated",
            clock=stores.clock,
            ids=stores.ids,
            safety=self._safety,
            signing_keys=(_KEY,),
            audit_log=NoAudit(),
            open_store=lambda _url: self._open(stores.objects, stores.ids),
        )
        context = lake.context(RepositoryName(REPOSITORY), self._record)
        # what the time is makes no difference to trees, and looking at it would be a step that a remembered result does
        # not take
        trees = RememberedTrees(stores.objects, stores.ids, FakeClock(self._wall_ms), self._trees)
        context = replace(context, make_trees=lambda: trees)
        return Tools(Repository(context.name, self._record, lambda: context), lake, stores)

    def is_immutable(self, partition: str) -> bool:
        return partition == keys.commits(self.repo_id)

    def is_visible(self, partition: str) -> bool:
        return partition in (
            OBJECTS,
            CLOCK.partition,
            keys.branches(self.repo_id),
            keys.tags(self.repo_id),
            keys.marks(self.repo_id),
            keys.locations(self.repo_id, 0),
        ) or (partition.startswith(f"{self.repo_id}/staging/") and ":" in partition)

    def violation(self, store: Mapping[int, int], names: Interned) -> str | None:
        return self.watch.lost(store, names)

    def settling(self, round_number: int) -> Task:
        return Task(
            "Z" + "ABCDEFGH"[round_number], self.stages(), clock_ms=self._wall_ms + (round_number + 1) * _ROUND_MS
        )

    def stages(self) -> tuple[Stage, ...]:
        """Return those of a round of settling."""
        return settle()

    def mark(self, store: Mapping[int, int], shard: str, names: Interned) -> dict[int, int]:
        raise NotImplementedError(f"no shard of this world may lose writes: {shard}")

    def lose(self, store: Mapping[int, int], shard: str, identity: bytes, names: Interned) -> dict[int, int]:
        raise NotImplementedError(f"no shard of this world may lose writes: {shard}")

    def left_over(self, store: Mapping[int, int], names: Interned) -> str | None:
        contents, blobs = contents_of(store, names)
        blobs |= {key: stored(body, 0) for key, body in self._private.items()}
        found = audit(
            DictKV(contents),
            DictObjects(blobs, FakeClock()),
            self.repo_id,
            now_ms=self._wall_ms + 1000 * DAY_MS,
            shards=1,
        )
        if self._leaves:
            found.leaked = [leaked for leaked in found.leaked if leaked.state != NO_KEY]
        found.garbage += [*found.unnamed, *self._left_of_uploads(contents, blobs)]
        findings = (
            found.findings() if not self.safety_only else [f"lost: {what}, named by {by}" for what, by in found.lost]
        )
        return findings[0] if findings else None

    def _left_of_uploads(self, contents: Mapping[Key, bytes], blobs: Mapping[str, bytes]) -> list[Garbage]:
        """What is left of multipart uploads, which have all expired by then: records, and what the store keeps."""
        folders = (f"{self.repo_id}/uploads", f"{self.repo_id}/parts/")
        left = [Garbage(key, "an upload that is over") for key in contents if key.partition.startswith(folders)]
        kept = [key for key in blobs if key.startswith(UPLOADS)]
        return [*left, *(Garbage(Key(OBJECTS, key), "the store keeps an upload that is over") for key in kept)]


def contents_of(store: Mapping[int, int], names: Interned) -> tuple[dict[Key, bytes], dict[str, bytes]]:
    """A state as a KV's and an object store's contents."""
    contents = {names.keys[key]: names.values[value] for key, value in store.items() if key}
    blobs = {key.name: value for key, value in contents.items() if key.partition == OBJECTS}
    return {key: value for key, value in contents.items() if not key.partition.startswith("\0")}, blobs


class _Still(Random):
    """No jitter: waiting takes no time here."""

    def random(self) -> float:
        return 0.0


class Watch:
    """The invariant that is looked at in every state; `independent_audit.audit` over again, over numbers, and only what
    can be lost.
    """

    def __init__(self, repo: str, private: Mapping[str, bytes]) -> None:
        self._repo = repo
        self._private = private
        self._kinds: list[tuple[int, str]] = []
        """By key: (what it is, the token or name in it)."""
        self._branches: dict[int, tuple[str, tuple[str, ...]]] = {}
        """By value: (head, live tokens); ('', ()) for a closed one."""
        self._addresses: dict[int, int] = {}
        """By value of an entry: the key of the object that it names, 0 for none of ours."""
        self._commits: dict[str, tuple[tuple[str, ...], frozenset[int]]] = {}
        """(parents, keys of the objects that it names)."""
        self._contents: dict[int, int] = {}
        """By value of a location: the key of its content; 0 for none."""
        self.may_lose_records = False

    def lost(self, store: Mapping[int, int], names: Interned) -> str | None:
        kinds = self._kinds
        while len(kinds) < len(names.keys):
            kinds.append(self._kind(names.keys[len(kinds)]))
        live: set[str] = set()
        heads: list[str] = []
        marked: set[str] = set()
        entries: list[tuple[str, int, int]] = []
        located: dict[int, int] = {}
        for key, value in store.items():
            kind, text = kinds[key]
            if kind == _ENTRY:
                entries.append((text, key, value))
            elif kind == _BRANCH:
                head, tokens = self._branch(value, names)
                live.update(tokens)
                if head:
                    heads.append(head)
            elif kind == _MARK:
                marked.add(text)
            elif kind == _TAG:
                heads.append(decoded(names.values[value])[1])  # type: ignore[index]  # a tag
            elif kind == _LOCATION:
                located[names.key(Key(OBJECTS, text))] = self._content(value, names)
        for token, key, value in entries:
            if token in live:
                address = self._addresses.get(value)
                if address is None:
                    address = self._addresses[value] = self._address(value, names)
                if address and located.get(address, address) not in store:
                    at = names.keys[key]
                    return f"{names.keys[address].name} is gone, but {at.name!r} is live under {token}"
        return self._lost_of_commits(store, names, heads, marked, located)

    def _lost_of_commits(
        self,
        store: Mapping[int, int],
        names: Interned,
        heads: Sequence[str],
        marked: set[str],
        located: Mapping[int, int],
    ) -> str | None:
        waiting, seen = list(heads), set[str]()
        while waiting:
            commit = waiting.pop()
            if commit in seen:
                continue
            seen.add(commit)
            if commit not in self._commits:
                if names.key(Key(f"{self._repo}/commits", commit)) not in store:
                    if self.may_lose_records:
                        continue  # what it names stands in the manifest
                    return f"commit {commit} is reachable and has no record"
                self._commits[commit] = self._commit(store, names, commit)
            parents, addresses = self._commits[commit]
            waiting += parents
            if commit in marked and commit not in heads:
                continue
            for address in addresses:
                if located.get(address, address) not in store:
                    return f"{names.keys[address].name} is gone, but named by commit {commit[:12]}"
        return None

    def _kind(self, key: Key) -> tuple[int, str]:
        if not key.partition.startswith(self._repo):
            return _OTHER, ""
        folder = key.partition[len(self._repo) + 1 :]
        if folder == "branches":
            return _BRANCH, key.name
        if folder == "marks":
            return _MARK, key.name
        if folder == "tags":
            return _TAG, key.name
        if folder.startswith("locations/"):
            return _LOCATION, key.name
        if folder.startswith("staging/") and ":" in folder:
            return _ENTRY, folder.removeprefix("staging/")
        return _OTHER, ""

    def _branch(self, value: int, names: Interned) -> tuple[str, tuple[str, ...]]:
        found = self._branches.get(value)
        if found is None:
            record = decoded(names.values[value]) or [0]
            found = self._branches[value] = (record[1], (record[2], *record[3])) if record[0] == BRANCH else ("", ())
        return found

    def _address(self, value: int, names: Interned) -> int:
        record = decoded(names.values[value]) or [0]
        return names.key(Key(OBJECTS, record[1])) if record[0] == ENTRY and record[1].startswith(DATA) else 0

    def _content(self, value: int, names: Interned) -> int:
        """The key of the object where a location says that the content lies; 0: nowhere, as its identity goes."""
        found = self._contents.get(value)
        if found is None:
            current = (decoded(names.values[value]) or [0, None])[1]
            found = names.key(Key(OBJECTS, current[0])) if current is not None else 0
            self._contents[value] = found
        return found

    def _commit(self, store: Mapping[int, int], names: Interned, commit: str) -> tuple[tuple[str, ...], frozenset[int]]:
        return self.parents_and_objects(names.values[store[names.key(Key(f"{self._repo}/commits", commit))]], names)

    def parents_and_objects(self, commit: bytes, names: Interned) -> tuple[tuple[str, ...], frozenset[int]]:
        """Of a commit's record."""
        record = decoded(commit)
        assert record is not None
        addresses: set[int] = set()
        if record[2]:
            for range_id in column_of(self._private[f"_refstore/metaranges/{record[2]}.parquet"], "range"):
                found = column_of(self._private[f"_refstore/ranges/{range_id}.parquet"], "address")
                addresses |= {names.key(Key(OBJECTS, address)) for address in found if address.startswith(DATA)}
        return tuple(record[1]), frozenset(addresses)


_OTHER, _ENTRY, _BRANCH, _MARK, _TAG, _LOCATION = range(6)
