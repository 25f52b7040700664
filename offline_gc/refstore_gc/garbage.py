"""Decide what is garbage: an object that is listed, and that nothing names.

The engine brings everything that says something about an address to the address's bucket (`address_codec.py`). The
listing is not shuffled, because each of its chunks lies in one bucket. Live addresses arrive as keys of eight bytes. A
task reads the chunks of its bucket, subtracts the live keys, and writes the rest to the mark.

A live address always has its key among the keys of its bucket, so it is never garbage. A garbage address may share its
key with a live one by chance; then it stays until the next run.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refstore.core.arrow_arrays import array, numpy_of
from refstore_gc.address_codec import Keys, among, distinct_of, keys_of
from refstore_gc.batches import WHOLE, Batch, BatchKind
from refstore_gc.run_layout import DATA, ObjectKind, RunLayout, read_table, store_at, write_table
from refstore_gc.untyped_arrow import pa, pc

UNIT_ROWS: Final = 10_000
"""What a file of the mark holds: ten bulk deletions. A sweep goes on unit by unit after a crash."""

EXPIRED: Final = "expired"
"""The reason where a marked commit named the object, and no other commit does."""
ORPHAN: Final = {
    ObjectKind.DATA: "orphan blob",
    ObjectKind.RANGE: "orphan range",
    ObjectKind.METARANGE: "orphan metarange",
    ObjectKind.ADDED: "orphan listing of a commit",
    ObjectKind.FOREIGN: "foreign",
}
"""The reasons where no marked commit named the object either."""
DEAD_IDENTITIES: Final = "dead-identities"
"""What is counted of purged objects that nothing names, and the folder of their files."""
DELETED_REPOSITORY: Final = "deleted repository"


class Chunk(msgspec.Struct, frozen=True):
    """A part of the listing, in one file. A batch of the kind LISTED carries it."""

    number: int
    key: str


class OpenChunk(NamedTuple):
    number: int
    table: Any
    """The listed objects, in order of their addresses."""
    keys: Keys
    """The key of each."""


class GarbageCount(NamedTuple):
    """One count of a bucket. A `unit` is a file of the mark, with its key and first address; `day` says when the
    garbage was written.
    """

    kind: int
    reason: str
    what: str
    detail: str
    first: str
    objects: int
    bytes: int


class LiveKeys(NamedTuple):
    """The keys that a bucket's listed objects are compared with."""

    live: list[Keys]
    """What the KV or a commit names."""
    pending: list[Keys]
    """What an earlier mark will sweep."""
    expired: list[Keys]
    """What marked commits name. It only tells the reason."""
    marked_again: list[Keys]
    """What commits name that an earlier mark had before: that mark leaves it, so it is not pending."""


class Bucket:
    """The batches that came to one bucket, sorted by kind."""

    def __init__(self, layout: RunLayout, batches: Iterable[Batch]) -> None:
        self._layout = layout
        self.number = 0
        self.keys: dict[BatchKind, list[Keys]] = {kind: [] for kind in BatchKind}
        self.earlier_files: list[str] = []
        self._chunks: list[Chunk] = []
        self._addresses: dict[BatchKind, list[Any]] = {kind: [] for kind in WHOLE}
        for batch in batches:
            self.number = batch.bucket
            if batch.kind is BatchKind.LISTED:
                self._chunks.append(msgspec.msgpack.decode(batch.body, type=Chunk))
            elif batch.kind is BatchKind.EARLIER_KEYS:
                self.earlier_files.append(msgspec.msgpack.decode(batch.body, type=str))
            elif batch.kind in WHOLE:
                self._addresses[batch.kind].append(batch.addresses)
            else:
                self.keys[batch.kind].append(batch.keys)

    def live_keys(self) -> LiveKeys:
        keys = self.keys
        live = keys[BatchKind.LIVE_IN_KV] + keys[BatchKind.LIVE_IN_COMMITS] + keys[BatchKind.RANGES]
        return LiveKeys(live, keys[BatchKind.PENDING], keys[BatchKind.EXPIRED], keys[BatchKind.MARKED_AGAIN])

    def addresses(self, kind: BatchKind) -> Any:
        """Return the addresses of a kind in `WHOLE`."""
        arrays = self._addresses[kind]
        return pa.concat_arrays(arrays) if arrays else array([], pa.string())

    def chunks(self) -> Iterator[OpenChunk]:
        store = store_at(self._layout.files, self._layout)
        for chunk in self._chunks:
            table = read_table(store, chunk.key)
            yield OpenChunk(chunk.number, table, keys_of(table.column("address"), self._layout.seed))


def join_bucket(layout: RunLayout, batches: Iterable[Batch], every_reason: str = "") -> Iterator[GarbageCount]:
    """Write the garbage of one bucket to the mark, and count the bucket. `every_reason`: the reason for all of it."""
    bucket = Bucket(layout, batches)
    keys = bucket.live_keys()
    for chunk in bucket.chunks():
        yield from subtract_live(layout, chunk, keys, among(chunk.keys, keys.live), every_reason)
    yield from find_dead(layout, bucket, keys)


def find_dead(layout: RunLayout, bucket: Bucket, keys: LiveKeys) -> Iterator[GarbageCount]:
    """Write the identities of a bucket's purged objects that nothing names to a file of the mark (rule 22)."""
    identities = bucket.addresses(BatchKind.IDENTITIES)
    if not len(identities):
        return
    dead = identities.filter(array(~among(keys_of(identities, layout.seed), keys.live)))
    if len(dead):
        key = layout.place(DEAD_IDENTITIES, bucket.number, secrets.token_hex(8))
        write_table(store_at(layout.files, layout), key, pa.table({"address": dead}))
        yield GarbageCount(-1, "", DEAD_IDENTITIES, key, "", len(dead), 0)


def subtract_live(
    layout: RunLayout, chunk: OpenChunk, keys: LiveKeys, is_live: Any, every_reason: str = ""
) -> Iterator[GarbageCount]:
    """Decide: what is neither live nor in an earlier mark is garbage. `is_live`: which objects of the chunk are."""
    is_pending = among(chunk.keys, keys.pending) & ~among(chunk.keys, keys.marked_again) & ~is_live
    kinds, sizes = numpy_of(chunk.table.column("kind")), numpy_of(chunk.table.column("size_bytes"))
    for kind in distinct_of(kinds).tolist():
        of_kind = kinds == kind
        for what, chosen in (("listed", of_kind), ("kept", of_kind & is_live), ("pending", of_kind & is_pending)):
            yield GarbageCount(kind, "", what, "", "", int(chosen.sum()), int(sizes[chosen].sum()))
    places = np.flatnonzero(~(is_live | is_pending))
    yield from write_garbage(layout, chunk.number, chunk.table.take(array(places)), keys.expired, every_reason)


def write_garbage(
    layout: RunLayout, number: int, garbage: Any, expired: list[Keys], every_reason: str = ""
) -> Iterator[GarbageCount]:
    """Write a table of garbage, in order of addresses, to files of the mark.

    File names contain the attempt, because an engine may run a task twice, and the store may tell the two attempts
    different things. Under one name, a unit could hold what the manifest says is in another.
    """
    if not garbage.num_rows:
        return
    store, attempt = store_at(layout.files, layout), secrets.token_hex(8)
    kinds, sizes = numpy_of(garbage.column("kind")), numpy_of(garbage.column("size_bytes"))
    reasons = _reasons(kinds, among(keys_of(garbage.column("address"), layout.seed), expired), every_reason)
    garbage = garbage.append_column("reason", array(reasons, pa.string()))
    days = numpy_of(pc.utf8_slice_codeunits(garbage.column("address"), len(DATA), len(DATA) + 8))
    for part, at in enumerate(range(0, garbage.num_rows, UNIT_ROWS)):
        unit = garbage.slice(at, UNIT_ROWS)
        key = layout.place("mark", number * 1000 + part, attempt)
        write_table(store, key, unit)
        first, total = unit.column("address")[0].as_py(), int(sizes[at : at + UNIT_ROWS].sum())
        yield GarbageCount(-1, "", "unit", key, first, unit.num_rows, total)
    for kind in distinct_of(kinds).tolist():
        for reason in sorted({*reasons[kinds == kind].tolist()}):
            chosen = (kinds == kind) & (reasons == reason)
            yield GarbageCount(kind, reason, "marked", "", "", int(chosen.sum()), int(sizes[chosen].sum()))
            if kind == ObjectKind.DATA:
                for day in np.unique(days[chosen].astype(str)).tolist():
                    of_day = chosen & (days == day)
                    yield GarbageCount(kind, reason, "day", day, "", int(of_day.sum()), int(sizes[of_day].sum()))


def _reasons(kinds: Any, expired: Any, every_reason: str) -> Any:
    reasons = np.full(len(kinds), every_reason, object)
    if not every_reason:
        for kind in distinct_of(kinds).tolist():
            reasons[kinds == kind] = ORPHAN[ObjectKind(kind)]
        reasons[expired] = EXPIRED
    return reasons
