"""Join the batches of one bucket: what is listed there, and what names it. An engine calls `join_bucket` in its tasks.

The engine brings everything that says something about an address to the address's bucket (`address_codec.py`). The
listing is not shuffled, because each of its chunks lies in one bucket. Live addresses arrive as keys of eight bytes. A
task reads the chunks of its bucket, asks `garbage.is_garbage`, and writes what goes to the mark.

An incremental run lists only objects that are newer than its horizon. An older object can be garbage only if it was
named by a commit that is not kept any more, or by the KV. Such objects come to their bucket as whole addresses.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refstore.core.arrow_arrays import make_array, make_scalar, to_numpy
from refstore.versioning.commits.workers import Workers
from refstore_gc.address_batches import WHOLE_ADDRESS_KINDS, Batch, BatchKind
from refstore_gc.address_codec import AddressKeys, are_among, encode_addresses
from refstore_gc.garbage import Flags, MarkedRow, count_of, is_garbage, write_garbage
from refstore_gc.incremental.baseline_keys import (
    BaselineKeys,
    bucket_key,
    decode_range_keys,
    filter_still_named,
    find_sizes,
)
from refstore_gc.run_layout import (
    ObjectKind,
    RunLayout,
    open_store,
    read_keys,
    read_required,
    read_table,
    request_threads,
    write_table,
    write_value,
)
from refstore_gc.run_summary import ObjectCount
from refstore_gc.untyped_arrow import pa, pc

EARLIER_NUMBERS: Final = 1_000_000_000
"""The numbers of files with garbage that earlier runs listed. They are higher than the numbers of chunks."""
DEAD_IDENTITIES: Final = "dead-identities"
"""The folder of files with identities of purged objects that nothing names."""


class ComparedCount(NamedTuple):
    """What became of listed objects; the rest is marked."""

    listed: ObjectCount
    kept: ObjectCount
    pending: ObjectCount


class DeadIdentities(NamedTuple):
    """A file with identities of purged objects that nothing names."""

    key: str


class RecordedKeys(NamedTuple):
    """The file of a bucket's known keys, for the next run."""

    bucket: int
    key: str


BucketRow = MarkedRow | ComparedCount | DeadIdentities | RecordedKeys
"""What a task tells the run of a bucket."""


class BucketTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of all buckets have in common."""

    layout: RunLayout
    horizon: str = ""
    """Where the listing of an incremental run began. '': everything was listed."""
    expired_files: list[str] = []
    """Files with the keys that expired commits of the run before name, of which nothing was garbage then."""
    is_recorded: bool = False
    """Whether the known keys are recorded for the next run."""
    every_reason: str = ""
    """The reason for all garbage. '': it depends on who named it."""


class ChunkReference(msgspec.Struct, frozen=True):
    """A part of the listing, in one file. A batch of the kind LISTED carries it."""

    number: int
    key: str


class OpenChunk(NamedTuple):
    number: int
    table: Any
    """The listed objects, in order of their addresses."""
    keys: AddressKeys
    """The key of each."""


class JoinedBucket:
    """The batches that came to one bucket, sorted by kind."""

    def __init__(self, layout: RunLayout, batches: Iterable[Batch], expired_files: Sequence[str] = ()) -> None:
        self.layout = layout
        self.number = 0
        self.keys: dict[BatchKind, list[AddressKeys]] = {kind: [] for kind in BatchKind}
        self.earlier_files: list[str] = []
        self._chunks: list[ChunkReference] = []
        self._addresses: dict[BatchKind, list[Any]] = {kind: [] for kind in WHOLE_ADDRESS_KINDS}
        for batch in batches:
            self.number = batch.bucket
            if batch.kind is BatchKind.LISTED:
                self._chunks.append(msgspec.msgpack.decode(batch.body, type=ChunkReference))
            elif batch.kind is BatchKind.EARLIER_KEYS:
                self.earlier_files.append(msgspec.msgpack.decode(batch.body, type=str))
            elif batch.kind in WHOLE_ADDRESS_KINDS:
                self._addresses[batch.kind].append(batch.addresses)
            else:
                self.keys[batch.kind].append(batch.keys)
        self.live = self.keys[BatchKind.LIVE_IN_KV] + self.keys[BatchKind.LIVE_IN_COMMITS] + self.keys[BatchKind.RANGES]
        """Keys of what the KV or a commit names."""
        self.no_longer_read = self.addresses(BatchKind.NO_LONGER_READ)
        self.lost = encode_addresses(self.no_longer_read, layout.seed)
        self.expired = [*self.keys[BatchKind.EXPIRED], self.lost]
        """Keys of what marked commits name. They only tell the reason."""
        self._expired_files = expired_files

    def addresses(self, kind: BatchKind) -> Any:
        """Return the addresses of a kind in `WHOLE_ADDRESS_KINDS`."""
        arrays = self._addresses[kind]
        return pa.concat_arrays(arrays) if arrays else make_array([], pa.string())

    def chunks(self) -> Iterator[OpenChunk]:
        store = open_store(self.layout.files, self.layout)
        for chunk in self._chunks:
            table = read_table(store, chunk.key)
            yield OpenChunk(chunk.number, table, encode_addresses(table.column("address"), self.layout.seed))

    def expired_among(self, garbage: Any) -> list[AddressKeys]:
        """Return keys that tell which of a table of garbage marked commits name. Files of the run before are read only
        if something is in question.
        """
        keys = encode_addresses(garbage.column("address"), self.layout.seed)
        if self._expired_files and not are_among(keys, self.expired).all():
            store = open_store(self.layout.files, self.layout)
            self.expired += [read_keys(store, key) for key in self._expired_files]
            self._expired_files = ()
        return self.expired

    def is_pending(self, keys: AddressKeys) -> Flags:
        """Return what an earlier mark will sweep. That mark leaves what a commit names that is marked again."""
        return are_among(keys, self.keys[BatchKind.PENDING]) & ~are_among(keys, self.keys[BatchKind.MARKED_AGAIN])

    def add_known(self, chunks: Iterable[OpenChunk]) -> list[BaselineKeys]:
        """Read what earlier runs recorded, and count as live what it says. `chunks`: all of the bucket."""
        formerly = encode_addresses(self.addresses(BatchKind.FORMERLY_IN_KV), self.layout.seed)
        candidates = np.unique(np.concatenate([self.lost, formerly, *(chunk.keys for chunk in chunks)]))
        store = open_store(self.layout.files, self.layout)
        known = [read_required(store, key, BaselineKeys) for key in self.earlier_files] if len(candidates) else []
        still = filter_still_named(known, candidates, self.keys[BatchKind.LIVE_IN_COMMITS], self.lost)
        self.live = [*self.keys[BatchKind.LIVE_IN_KV], still, *self.keys[BatchKind.RANGES], *decode_range_keys(known)]
        return known


def join_bucket(task: BucketTask, batches: Iterable[Batch]) -> Iterator[BucketRow]:
    """Write the garbage of one bucket to the mark, and count the bucket. Record its keys if the task says so."""
    bucket = JoinedBucket(task.layout, batches, task.expired_files)
    chunks: Iterable[OpenChunk] = bucket.chunks()
    if task.horizon:
        chunks = list(chunks)
        earlier = _garbage_of_earlier_listings(bucket, bucket.add_known(chunks), task.horizon)
        yield from write_garbage(task.layout, EARLIER_NUMBERS + bucket.number, earlier, bucket.expired_among(earlier))
    listed: list[AddressKeys] = []
    sizes: list[Any] = []
    for chunk in chunks:
        is_live = are_among(chunk.keys, bucket.live)
        yield from _compare(bucket, chunk, is_live, task.every_reason)
        if task.is_recorded:
            blobs = is_live & (to_numpy(chunk.table.column("kind")) == ObjectKind.DATA)
            listed.append(chunk.keys[blobs])
            sizes.append(to_numpy(chunk.table.column("size_bytes"))[blobs])
    if not task.horizon:
        yield from _find_dead_identities(bucket)
    in_commits, ranges = bucket.keys[BatchKind.LIVE_IN_COMMITS], bucket.keys[BatchKind.RANGES]
    if task.is_recorded and (listed or in_commits or ranges or len(bucket.lost)):
        key = bucket_key(task.layout.mark_id, bucket.number)
        known = BaselineKeys.from_arrays(in_commits, bucket.lost, ranges, listed, sizes)
        write_value(open_store(task.layout.files, task.layout), key, known)
        yield RecordedKeys(bucket.number, key)


def _compare(bucket: JoinedBucket, chunk: OpenChunk, is_live: Flags, every_reason: str) -> Iterator[BucketRow]:
    """Count the objects of a chunk of the listing, and write its garbage. `is_live`: which of them are named."""
    is_pending = bucket.is_pending(chunk.keys)
    sizes = to_numpy(chunk.table.column("size_bytes"))
    listed = np.full(len(sizes), True)
    yield ComparedCount(*(count_of(sizes, chosen) for chosen in (listed, is_live, is_pending & ~is_live)))
    places = np.flatnonzero(is_garbage(listed, is_live, is_pending))
    garbage = chunk.table.take(make_array(places))
    yield from write_garbage(bucket.layout, chunk.number, garbage, bucket.expired_among(garbage), every_reason)


def _find_dead_identities(bucket: JoinedBucket) -> Iterator[DeadIdentities]:
    """Write the identities of a bucket's purged objects that nothing names to a file of the mark (rule 22)."""
    identities, layout = bucket.addresses(BatchKind.IDENTITIES), bucket.layout
    dead = identities.filter(make_array(~are_among(encode_addresses(identities, layout.seed), bucket.live)))
    if len(dead):
        key = layout.file_key(DEAD_IDENTITIES, bucket.number, secrets.token_hex(8))
        write_table(open_store(layout.files, layout), key, pa.table({"address": dead}))
        yield DeadIdentities(key)


def _garbage_of_earlier_listings(bucket: JoinedBucket, known: Sequence[BaselineKeys], horizon: str) -> Any:
    """Return the garbage among the objects that earlier runs listed, as a table like a chunk's.

    Objects that commits no longer name still exist, because only a sweep deletes them. Objects that the KV no longer
    names were most likely deleted by the operation that released them, so the store is asked. Nothing can name them
    again, so their presence decides.
    """
    layout = bucket.layout
    addresses = pa.concat_arrays([bucket.no_longer_read, bucket.addresses(BatchKind.FORMERLY_IN_KV)])
    addresses = pc.unique(addresses)
    addresses = addresses.filter(pc.less(addresses, make_scalar(horizon, pa.string())))
    own_keys = encode_addresses(addresses, layout.seed)
    ordered, places = np.unique(own_keys, return_inverse=True)
    sizes = find_sizes(known, ordered)[places]  # -1: no run listed it
    goes = is_garbage(sizes >= 0, are_among(own_keys, bucket.live), bucket.is_pending(own_keys))
    uncertain = np.flatnonzero(goes & ~are_among(own_keys, bucket.expired))
    with Workers(request_threads(layout)) as workers:
        in_question = (addresses[place].as_py() for place in uncertain.tolist())
        present = workers.map_ahead(open_store(layout.url, layout).is_stored, in_question)
        goes[uncertain] = np.fromiter(present, bool, len(uncertain))
    addresses, sizes = addresses.filter(make_array(goes)), sizes[goes]
    table = pa.table(
        {
            "address": addresses,
            "size_bytes": make_array(sizes, pa.int64()),
            "mtime_ms": pa.nulls(len(addresses), pa.int64()),
            "kind": make_array(np.full(len(addresses), ObjectKind.DATA, np.int8)),
        }
    )
    return table.sort_by("address")
