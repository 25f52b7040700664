"""Encode addresses as numbers, which travel between Spark's tasks instead of forty characters each.

- A *key* is 64 bits, a hash of the whole address under the run's seed. An object is garbage if its key is not
  among the keys of live addresses. So two addresses with one key can keep garbage until a run with another seed, and
  can never lose a live object.
- A *bucket* is an interval of the listing, which is in the order of addresses: bucket n begins with the n-th cut. Both
  sides find an address's bucket by exact comparison of its first bytes with the cuts', so what is in the listing and
  what names it always meet.

Everything is done on whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refstore.core.arrow_arrays import make_array, make_scalar, to_numpy
from refstore_gc.column_hash import ByteArray, Hashes, hash_texts, pad_column, text_buffers
from refstore_gc.untyped_arrow import pa, pc

AddressKeys = Hashes

CUT_BYTES: Final = 48
"""How many bytes of an address decide its bucket: all of an own address, and a range's folder with half of its hash."""
OWN_BYTES: Final = 42
"""The length of an own address."""


def encode_addresses(addresses: Any, seed: int) -> AddressKeys:
    """Return the key of each address, in order. `addresses`: an Arrow array of strings without nulls."""
    return hash_texts(addresses, seed)


def own_addresses(characters: bytes) -> Any:
    """Return an Arrow array of own addresses, from all their characters, joined."""
    offsets = np.arange(0, len(characters) + 1, OWN_BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(characters))


def filter_own(addresses: Any) -> Any:
    """Return the addresses of blobs that refstore wrote, as an Arrow array."""
    same = pc.equal(pc.binary_length(addresses), make_scalar(OWN_BYTES, pa.int32()))
    return addresses if pc.all(same).as_py() else addresses.filter(same)


@dataclass(frozen=True, slots=True)
class BucketBounds:
    """Where buckets begin: bucket 0 before the first cut, bucket n from the n-th on."""

    firsts: NDArray[np.bytes_]
    """The first bytes of each cut, padded with zeros: as many of all as decide."""

    @classmethod
    def from_addresses(cls, cuts: Sequence[str], *, are_whole: bool = False) -> BucketBounds:
        """`cuts` in order. `are_whole`: all bytes decide, because keys of others may begin alike for long; else the
        first CUT_BYTES.
        """
        encoded = [cut.encode() for cut in cuts]
        width = max(map(len, encoded), default=CUT_BYTES) if are_whole else CUT_BYTES
        return cls(np.array([cut[:width] for cut in encoded], f"S{width}"))

    @property
    def buckets(self) -> int:
        return len(self.firsts) + 1

    def buckets_of(self, addresses: Any) -> NDArray[np.int32]:
        buckets, width = np.empty(len(addresses), np.int32), self.firsts.dtype.itemsize
        for places, characters in _group_by_length(addresses):
            rows = pad_column(characters[:, :width], width).view(self.firsts.dtype).ravel()
            buckets[slice(None) if places is None else places] = np.searchsorted(self.firsts, rows, "right")
        return buckets


def split_by_bucket(buckets: NDArray[np.int32], keys: AddressKeys) -> list[tuple[int, AddressKeys]]:
    """Return the keys of each bucket that has some."""
    if not len(keys):
        return []
    first = int(buckets[0])
    if bool((buckets == first).all()):
        return [(first, keys)]
    narrow = buckets.astype(np.uint16) if int(buckets.max()) < 1 << 16 else buckets
    order = np.argsort(narrow, kind="stable")
    ordered, moved = buckets[order], keys[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    ends = [*starts[1:].tolist(), len(ordered)]
    return [(int(ordered[start]), moved[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]


def sort_distinct(values: Any) -> Any:
    """Return the distinct numbers, in order. (`np.unique` takes longer, and imports all of `numpy.ma`.)"""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def are_among(keys: AddressKeys, others: Sequence[AddressKeys]) -> NDArray[np.bool_]:
    """Return which of the keys are among the others."""
    if not others or not len(keys):
        return np.zeros(len(keys), np.bool_)
    known = np.concatenate(others) if len(others) > 1 else others[0]
    # a hash table: twice as fast as sorting both sides, at these sizes
    return to_numpy(pc.is_in(make_array(keys), value_set=make_array(known)))


def _group_by_length(addresses: Any) -> list[tuple[NDArray[np.int64] | None, ByteArray]]:
    """Return (places, characters) of the addresses of each length. Places None: these are all, in order."""
    offsets, data = text_buffers(addresses)
    lengths = np.diff(offsets)
    if not len(lengths):
        return []
    first = int(lengths[0])
    if bool((lengths == first).all()):
        return [(None, data[int(offsets[0]) : int(offsets[-1])].reshape(len(lengths), first))]
    found: list[tuple[NDArray[np.int64] | None, ByteArray]] = []
    for length in sort_distinct(lengths):
        places = np.flatnonzero(lengths == length)
        found.append((places, data[offsets[:-1][places].astype(np.int64)[:, None] + np.arange(int(length))]))
    return found
