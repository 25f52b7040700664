"""Batches carry addresses through an engine. A batch holds some thousands of them, which all lie in one bucket.

    bucket   the partition of the next step
    kind     what the batch says of its addresses (`BatchKind`)
    body     their keys as they lie in memory, or their characters (`WHOLE_ADDRESS_KINDS`); or a value that tells a task
    what to read

So a billion addresses are some million batches of eight bytes an address. In Spark a batch is a row, and the JVM never
looks into it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from refstore.core.arrow_arrays import make_array
from refstore_gc.address_codec import (
    AddressKeys,
    BucketBounds,
    are_among,
    encode_addresses,
    filter_own,
    own_addresses,
    sort_distinct,
    split_by_bucket,
)
from refstore_gc.untyped_arrow import pa, pc

SCHEMA: Final = "bucket int, kind int, body binary"
ARROW: Final = pa.schema([("bucket", pa.int32()), ("kind", pa.int32()), ("body", pa.binary())])

ROWS_MAX: Final = 1 << 20
"""How many addresses a task gathers before it sends them: a few MB."""
SLICE_ROWS: Final = 1 << 15
"""How many addresses are encoded at a time: they fit the processor's cache."""


class BatchKind(IntEnum):
    LIVE_IN_KV = 0
    """Keys of what the KV names."""
    EXPIRED = 1
    """Keys of what marked commits name. They tell the reason, and decide nothing."""
    PENDING = 2
    """Keys of what an earlier mark will sweep."""
    LISTED = 3
    """A chunk of the listing."""
    TO_READ = 4
    """Ranges and listings of added addresses to be read."""
    LIVE_IN_COMMITS = 5
    """Keys of what commits keep, each as often as it stands in the ranges and listings that are read."""
    RANGES = 6
    """Keys of ranges that some commit's tree has."""
    NO_LONGER_READ = 7
    """Addresses that stand in ranges and listings that are not read any more, each as often."""
    FORMERLY_IN_KV = 8
    """Addresses that the KV named when the last run scanned it."""
    EARLIER_KEYS = 9
    """A file of what an earlier run recorded (`incremental/baseline_keys.py`)."""
    IDENTITIES = 10
    """Identities of purged objects, whose content lies elsewhere."""
    MARKED_AGAIN = 11
    """Keys of what commits name that an earlier mark had before. That mark leaves it."""
    NAMED = 12
    """Keys that a source's names stand for, as it spells them (`refstore_prune`)."""
    NAMED_OTHERWISE = 13
    """Keys that they stand for in another spelling."""
    NAME_EXAMPLES = 14
    """Some names, whole."""
    NAME_COUNT = 15
    """How many names a task read."""
    MARKED_BEFORE = 16
    """Files of the last run's mark, with what was unnamed then."""


WHOLE_ADDRESS_KINDS: Final = frozenset((BatchKind.NO_LONGER_READ, BatchKind.FORMERLY_IN_KV, BatchKind.IDENTITIES))
"""Batches of these kinds carry whole addresses, because these may be garbage."""


_OLD_AND_NEW: Final = {BatchKind.NO_LONGER_READ, BatchKind.LIVE_IN_COMMITS}
"""The kinds of a range and of the one that replaced it."""


class Batch(NamedTuple):
    bucket: int
    kind: BatchKind
    body: bytes

    @classmethod
    def from_value(cls, bucket: int, kind: BatchKind, what: object) -> Batch:
        return cls(bucket, kind, msgspec.msgpack.encode(what))

    @property
    def keys(self) -> AddressKeys:
        return np.frombuffer(self.body, np.uint64)

    @property
    def addresses(self) -> Any:
        """Return an Arrow array of own addresses, of a kind in `WHOLE_ADDRESS_KINDS`."""
        return own_addresses(self.body)


def decode_batches(record_batches: Iterable[Any]) -> Iterator[Batch]:
    """Yield the batches of a task's input."""
    for record_batch in record_batches:
        buckets, kinds = (record_batch.column(name).to_pylist() for name in ("bucket", "kind"))
        bodies = record_batch.column("body")
        for number, (bucket, kind) in enumerate(zip(buckets, kinds, strict=True)):
            yield Batch(bucket, BatchKind(kind), bodies[number].as_py())


def group_by_bucket(batches: Iterable[Batch]) -> list[list[Batch]]:
    """Return the batches of each bucket that has some, in order of the buckets."""
    buckets: dict[int, list[Batch]] = {}
    for batch in batches:
        buckets.setdefault(batch.bucket, []).append(batch)
    return [buckets[number] for number in sorted(buckets)]


def encode_batches(batches: Iterable[Batch]) -> Iterator[Any]:
    """Yield batches as a task's output, a record batch each, because they are large."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [
                make_array([batch.bucket], pa.int32()),
                make_array([int(batch.kind)], pa.int32()),
                make_array([batch.body], pa.binary()),
            ],
            schema=ARROW,
        )


class EncodedAddresses(NamedTuple):
    """Addresses as numbers."""

    buckets: NDArray[np.int32]
    keys: AddressKeys


def drop_unchanged(ranges: Iterable[tuple[BatchKind, Any]]) -> Iterator[tuple[BatchKind, Any]]:
    """Yield the addresses of ranges without the rows in which a range and the one that it replaced agree, which is most
    of them. Such a row is left out of both, so each address is still taken off as often as it should be.

    The two are neighbours (`incremental/baseline.py`). What this does not find, `BatchBuilder` does.
    """
    last: tuple[BatchKind, Any] | None = None
    for kind, addresses in ranges:
        if last is not None and {last[0], kind} == _OLD_AND_NEW and len(last[1]) == len(addresses):
            differs = pc.not_equal(last[1], addresses)
            yield last[0], last[1].filter(differs)
            yield kind, addresses.filter(differs)
            last = None
            continue
        if last is not None:
            yield last
        last = kind, addresses
    if last is not None:
        yield last


class BatchBuilder:
    """Gathers addresses until there are many, then splits them into batches by bucket. It encodes them as they come, so
    it holds 12 bytes an address; except those of the kinds in `WHOLE_ADDRESS_KINDS`.
    """

    def __init__(self, cuts: BucketBounds, seed: int, own: Collection[BatchKind] = WHOLE_ADDRESS_KINDS) -> None:
        """`own`: the kinds of which only own addresses count (`filter_own`)."""
        self._cuts = cuts
        self._seed = seed
        self._own = own
        self._waiting: dict[BatchKind, list[Any]] = {}
        self._encoded: dict[BatchKind, list[EncodedAddresses]] = {}
        self._unencoded = 0
        self._rows = 0

    def add(self, kind: BatchKind, addresses: Any) -> Iterator[Batch]:
        """`addresses`: an Arrow array of strings."""
        if len(addresses):
            self._waiting.setdefault(kind, []).append(addresses)
            self._rows += len(addresses)
            self._unencoded += len(addresses)
            if self._unencoded >= SLICE_ROWS:
                self._encode()
            if self._rows >= ROWS_MAX:
                yield from self.flush()

    def flush(self) -> Iterator[Batch]:
        self._encode()
        whole = {kind: self._concatenate(kind) for kind in self._waiting}
        encoded = {
            kind: EncodedAddresses(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            for kind, parts in self._encoded.items()
        }
        if BatchKind.NO_LONGER_READ in whole and BatchKind.LIVE_IN_COMMITS in encoded:
            self._cancel_pairs(whole, encoded)
        for kind, addresses in whole.items():
            buckets = self._cuts.buckets_of(addresses)
            for bucket in sort_distinct(buckets).tolist():
                some = addresses.filter(make_array(buckets == bucket))
                yield Batch(bucket, kind, "".join(some.to_pylist()).encode())
        for kind, (buckets, keys) in encoded.items():
            for bucket, some in split_by_bucket(buckets, keys):
                yield Batch(bucket, kind, some.tobytes())
        self._waiting.clear()
        self._encoded.clear()
        self._rows = 0

    def _encode(self) -> None:
        for kind in self._waiting.keys() - WHOLE_ADDRESS_KINDS:
            addresses = self._concatenate(kind)
            for at in range(0, len(addresses), SLICE_ROWS):
                some = addresses.slice(at, SLICE_ROWS)
                encoded = EncodedAddresses(self._cuts.buckets_of(some), encode_addresses(some, self._seed))
                self._encoded.setdefault(kind, []).append(encoded)
            del self._waiting[kind]
        self._unencoded = 0

    def _concatenate(self, kind: BatchKind) -> Any:
        addresses = pa.concat_arrays(self._waiting[kind])
        return filter_own(addresses) if kind in self._own else addresses

    def _cancel_pairs(self, whole: dict[BatchKind, Any], encoded: dict[BatchKind, EncodedAddresses]) -> None:
        """Drop what is both taken off and added, once each: most of a range that a commit changed a little."""
        lost, (buckets, keys) = whole[BatchKind.NO_LONGER_READ], encoded[BatchKind.LIVE_IN_COMMITS]
        lost_keys = encode_addresses(lost, self._seed)
        once = [
            values[counts == 1]
            for values, counts in (np.unique(each, return_counts=True) for each in (lost_keys, keys))
        ]
        both = np.intersect1d(*once, assume_unique=True)
        stay = ~are_among(keys, [both])
        whole[BatchKind.NO_LONGER_READ] = lost.filter(make_array(~are_among(lost_keys, [both])))
        encoded[BatchKind.LIVE_IN_COMMITS] = EncodedAddresses(buckets[stay], keys[stay])
