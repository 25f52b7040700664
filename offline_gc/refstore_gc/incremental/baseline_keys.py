"""The keys of one bucket that a run records for the next one.

Names are counted: each key is recorded as often as it was read, and removed as often when its names are no longer read.
A key whose count comes to zero is named by no commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from refstore.errors import Corrupt
from refstore_gc.address_codec import AddressKeys, are_among
from refstore_gc.run_layout import ROOT, decode_keys

FOLDER: Final = "carried/"


class BaselineKeys(msgspec.Struct, frozen=True):
    """Keys as they lie in memory, and a size for each of `listed`."""

    named_keys: bytes
    """Keys that commits name, each as often as it was read."""
    released_keys: bytes
    """Keys that are no longer read, each as often as it was read before."""
    range_keys: bytes
    listed_keys: bytes
    """Keys of blobs that were listed, and stay."""
    sizes: bytes

    @classmethod
    def from_arrays(
        cls,
        named: Sequence[AddressKeys],
        lost: AddressKeys,
        ranges: Sequence[AddressKeys],
        listed: Sequence[AddressKeys],
        sizes: Sequence[Any],
    ) -> BaselineKeys:
        return cls(*(b"".join(each.tobytes() for each in some) for some in (named, [lost], ranges, listed, sizes)))


def filter_still_named(
    known: Sequence[BaselineKeys], candidates: AddressKeys, new: Sequence[AddressKeys], lost: AddressKeys
) -> AddressKeys:
    """Return the candidates that some commit still names. `candidates`: in order, each once.

    Raises Corrupt if a key is removed more often than it was recorded.
    """
    read = [*(decode_keys(each.named_keys) for each in known), *new]
    removed = [*(decode_keys(each.released_keys) for each in known), lost]
    counts = _count_among(candidates, read) - _count_among(candidates, removed)
    if bool((counts < 0).any()):
        raise Corrupt("the records of earlier runs do not agree with the commits; mark again with --full")
    return candidates[counts > 0]


def _count_among(candidates: AddressKeys, keys: Sequence[AddressKeys]) -> NDArray[np.int64]:
    """Return how often each candidate is among the keys."""
    together = np.concatenate([candidates[:0], *keys])  # also where there are none
    relevant = together[are_among(together, [candidates])]
    return np.bincount(np.searchsorted(candidates, relevant), minlength=len(candidates))


def find_sizes(known: Sequence[BaselineKeys], candidates: AddressKeys) -> NDArray[np.int64]:
    """Return the sizes of blobs that an earlier run listed and kept; -1 for a blob that no run listed. `candidates`: in
    order, each once.
    """
    sizes = np.full(len(candidates), -1, np.int64)
    for each in known:
        listed = decode_keys(each.listed_keys)
        chosen = are_among(listed, [candidates])
        sizes[np.searchsorted(candidates, listed[chosen])] = np.frombuffer(each.sizes, np.int64)[chosen]
    return sizes


def decode_range_keys(known: Sequence[BaselineKeys]) -> list[AddressKeys]:
    return [decode_keys(each.range_keys) for each in known]


def bucket_key(mark_id: str, bucket: int) -> str:
    """Return the file of a bucket's known keys."""
    return f"{ROOT}{mark_id}/{FOLDER}{bucket:06d}.bin"
