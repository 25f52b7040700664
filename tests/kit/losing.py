"""Worlds whose KV may lose writes (rule 21): what a shard holds, what a loss excuses, and what has to hold then.

A shard is a part of the KV that one server stores, so that it may lose its last writes apart from the others. `rest` is
whatever no other shard of a scenario has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from refstore.kv.base import Key
from refstore.kv_recovery.fence import WITNESSES_FOLDER, PositionFence, PositionWitness
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.location_records import Location
from refstore.records.reference_records import Deleting, decode_reference
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning.manifest import (
    CONFIRMED_FOLDER,
    WAITING_FOLDER,
    AnyEntry,
    CommitLanded,
    EntriesPlaced,
    LocationsPublished,
)
from tests.kit import guarded_reaping
from tests.kit.calls import positions_of
from tests.kit.domain import RepositoryDomain
from tests.kit.steps import OBJECTS, SERVERS, Interned, body_of

if TYPE_CHECKING:
    from refstore.core.ids import RepositoryId
    from tests.kit.domain import World
    from tests.kit.replay import Stage

REST: Final = "rest"

FOLDERS: Final = {
    "references": ("references/", "due/"),
    "markers": ("staging/deleted", "staging/committed"),
    "entries": ("staging/",),
    "branches": ("branches",),
    "locations": ("locations/", "purge"),
    "commits": ("commits", "landed"),
}
"""Which partitions of a repository a shard has. The first that fits counts."""

MARKED: Final = "\0marked"
"""The partition of what shards held when they were marked."""
EXCUSED: Final = "\0excused"
"""The partition of objects that no fence could have saved, as a deleter had passed it before the loss."""

_PAIR: Final = 16
"""Bytes of a key and a value, as they are interned."""


def begin(world: World, shards: tuple[str, ...]) -> None:
    """Let a deleter witness each shard, and confirm what waits in the manifest."""
    for shard in shards:
        world.contents[Key(SERVERS, shard)] = b"1"
    ctx = world.repo.context
    fence = PositionFence(ctx.kv, ctx.lake_objects, ctx.clock, ctx.durations, "first")
    fence.begin(lambda: None)
    ctx.manifest.confirm(ctx.manifest.read_waiting(), "first")


def shard_of(repo: RepositoryId, partition: str, shards: tuple[str, ...]) -> str:
    """The shard of a partition; '' for what is no part of the KV."""
    if partition.startswith("\0"):
        return ""
    for shard in shards:
        if partition == positions_of(shard):
            return shard
    folder = partition.removeprefix(f"{repo}/")
    for shard, prefixes in FOLDERS.items():
        if folder != partition and folder.startswith(prefixes):
            return shard if shard in shards else REST
    return REST


class LosingDomain(RepositoryDomain):
    """A repository whose KV may lose writes."""

    def __init__(
        self, world: World, private: dict[str, bytes], shards: tuple[str, ...], *, safety_only: bool, leaves: bool
    ) -> None:
        super().__init__(world, private, safety_only=safety_only, leaves=leaves)
        self._shards = shards
        self._of: dict[int, str] = {}
        """By partition."""
        self._first = {name for name in world.blobs if name.startswith("data/")}
        self._acknowledged: dict[int, frozenset[int]] = {}
        """By value: the objects that an entry of the manifest names."""
        self.watch.may_lose_records = True

    def is_visible(self, partition: str) -> bool:
        return partition == SERVERS or super().is_visible(partition)

    def stages(self) -> tuple[Stage, ...]:
        return guarded_reaping.settle()

    def left_over(self, store: Mapping[int, int], names: Interned) -> str | None:
        """What was lost may leak; `violation` knows what is excused."""
        return None if self.safety_only else super().left_over(store, names)

    def violation(self, store: Mapping[int, int], names: Interned) -> str | None:
        excused = {names.key(Key(OBJECTS, name)): 1 for name in self._excused(store, names) | self._saved(store, names)}
        there = {**excused, **store} if excused else store
        why = self.watch.lost(there, names)
        if why is not None:
            return why
        for key, value in store.items():
            name = names.keys[key].name
            if names.keys[key].partition == OBJECTS and name.startswith((WAITING_FOLDER, CONFIRMED_FOLDER)):
                for gone in self._named(value, names):
                    if gone not in there:
                        return f"{names.keys[gone].name} is gone, but an acknowledged call named it ({name})"
        return None

    def mark(self, store: Mapping[int, int], shard: str, names: Interned) -> dict[int, int]:
        held = sorted(pair for pair in store.items() if self._shard(pair[0], names) == shard)
        packed = b"".join(key.to_bytes(8, "big") + value.to_bytes(8, "big") for key, value in held)
        return {**store, names.key(Key(MARKED, shard)): names.value(packed)}

    def lose(self, store: Mapping[int, int], shard: str, identity: bytes, names: Interned) -> dict[int, int]:
        marked = names.key(Key(MARKED, shard))
        packed = names.values[store[marked]]
        after = {key: value for key, value in store.items() if self._shard(key, names) != shard and key != marked}
        for at in range(0, len(packed), _PAIR):
            after[int.from_bytes(packed[at : at + 8], "big")] = int.from_bytes(packed[at + 8 : at + _PAIR], "big")
        if identity:
            after[names.key(Key(SERVERS, shard))] = names.value(identity)
        if not self._is_witnessed(after, names):
            excused = self._excused(store, names) | self._leaving(store, names)
            excused |= {name for name in self._known(store, names) | self._known(after, names)
                        if names.key(Key(OBJECTS, name)) not in store}  # fmt: skip
            excused -= self._with_content(store, names)  # the object store has to know where that lies
            after[names.key(Key(EXCUSED, ""))] = names.value("\n".join(sorted(excused)).encode())
        return after

    def _shard(self, key: int, names: Interned) -> str:
        partition = names.partition_of[key]
        shard = self._of.get(partition)
        if shard is None:
            shard = self._of[partition] = shard_of(self.repo_id, names.partitions[partition], self._shards)
        return shard

    def _excused(self, store: Mapping[int, int], names: Interned) -> set[str]:
        value = store.get(names.key(Key(EXCUSED, "")))
        return set(names.values[value].decode().split("\n")) if value else set()

    def _is_witnessed(self, store: Mapping[int, int], names: Interned) -> bool:
        """Whether the KV holds what every witness says."""
        for key, value in store.items():
            if names.keys[key].partition == OBJECTS and names.keys[key].name.startswith(WITNESSES_FOLDER):
                witness = msgspec.json.decode(body_of(names.values[value]), type=PositionWitness)
                for partition, number in witness.positions.items():
                    held = store.get(names.key(Key(partition, witness.deleter)))
                    if not held or msgspec.msgpack.decode(names.values[held])[1] < number:
                        return False
        return True

    def _leaving(self, store: Mapping[int, int], names: Interned) -> set[str]:
        return {
            names.keys[key].name
            for key, value in store.items()
            if names.keys[key].partition.startswith(f"{self.repo_id}/references/")
            and isinstance(decode_reference(names.values[value]), Deleting)
        }

    def _locations(self, store: Mapping[int, int], names: Interned) -> dict[str, Location]:
        """The locations that the KV has, by identity."""
        return {
            names.keys[key].name: decode(names.values[value], Location)
            for key, value in store.items()
            if names.keys[key].partition == keys.locations(self.repo_id, 0)
        }

    def _with_content(self, store: Mapping[int, int], names: Interned) -> set[str]:
        """The identities whose content is there, where the KV says."""
        return {
            identity
            for identity, location in self._locations(store, names).items()
            if location.current is not None and names.key(Key(OBJECTS, location.current.address)) in store
        }

    def _saved(self, store: Mapping[int, int], names: Interned) -> set[str]:
        """What a KV that lost a location still takes for the content, if the manifest knows where that lies."""
        newest: dict[str, Location] = {}
        for key, value in store.items():
            if names.keys[key].partition == OBJECTS and names.keys[key].name.startswith(
                (WAITING_FOLDER, CONFIRMED_FOLDER)
            ):
                for line in body_of(names.values[value]).splitlines():
                    entry = msgspec.json.decode(line, type=AnyEntry)
                    for item in entry.items if isinstance(entry, LocationsPublished) else ():
                        told = decode(item.record, Location)
                        if (
                            item.identity not in newest
                            or newest[item.identity].replacement_count < told.replacement_count
                        ):
                            newest[item.identity] = told
        if not newest:
            return set()
        known = self._locations(store, names)
        saved: set[str] = set()
        for identity, told in newest.items():
            if told.current is not None and names.key(Key(OBJECTS, told.current.address)) in store:
                own = known.get(identity)
                saved |= {identity, *([own.current.address] if own is not None and own.current is not None else [])}
        return saved

    def _known(self, store: Mapping[int, int], names: Interned) -> set[str]:
        """The addresses that a state knows of, in whatever way."""
        known = set(self._first)
        for key, value in store.items():
            partition = names.keys[key].partition
            if partition.startswith(keys.references(self.repo_id, 0)):
                known.add(names.keys[key].name)
            elif partition.startswith(f"{self.repo_id}/staging/") and ":" in partition:
                record = decode_staged(names.values[value])
                if isinstance(record, StoredEntry):
                    known.add(record.address)
        return known

    def _named(self, value: int, names: Interned) -> frozenset[int]:
        found = self._acknowledged.get(value)
        if found is None:
            named: set[int] = set()
            for line in body_of(names.values[value]).splitlines():
                entry = msgspec.json.decode(line, type=AnyEntry)
                if isinstance(entry, CommitLanded):
                    named |= self.watch.parents_and_objects(entry.record, names)[1]
                elif isinstance(entry, EntriesPlaced):  # no scenario releases what it has witnessed
                    placed = (decode(item.record, StoredEntry) for item in entry.entries)
                    named |= {names.key(Key(OBJECTS, item.address)) for item in placed}
            found = self._acknowledged[value] = frozenset(named)
        return found
