"""The index: the ids that each object has, as keyed hashes, so that a later run reads only objects that may match.

    _refstore/purge/ids/<key>/<task>/<address>     Parquet: sorted hashes of 48 bits, in row groups

It is written when an object is scanned for the first time. A hash is SipHash-2-4 (Aumasson and Bernstein, 2012) under a
key that is derived from the purge's own, so that nobody without that key can try ids. It only chooses what is read: the
object's column decides. `<key>` tells keys apart, and `<task>` columns. An object never changes, so neither does its
index; it goes when the object is purged or stands at no head any more.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from refstore.errors import Corrupt
from refstore.objects.base import ObjectStore
from refstore.objects.stored_file import open_object
from refstore.purge_document.document import Dataset
from refstore_purge.formats.base import IdKind, IdMatcher
from refstore_purge.purge_ids import to_comparable
from refstore_purge.untyped_pandas import pa, pc, pq, siphash

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER: Final = "_refstore/purge/ids/"
BITS: Final = 48
"""Of a hash. With ten million ids, one object in thirty that has a million others is read for nothing."""
HASHES_MAX: Final = 4_000_000
"""An object with more distinct ids gets no index: to read it would cost what reading the column costs."""
GROUP_ROWS: Final = 8_192
AHEAD_BYTES: Final = 32 * 1024
CHUNK_ROWS: Final = 1_000_000

_COLUMN: Final = "hash"
_ROWS: Final = b"refstore.rows"
_DIGEST: Final = b"refstore.digest"
"""Of what the footer says of the rows and the row groups; the pages have checksums."""


class IndexKey(NamedTuple):
    """What is derived from the purge's key."""

    name: str
    hash_key: bytes
    mac_key: bytes
    """Of the ledger's HMACs."""

    @staticmethod
    def derive(purge_key: bytes) -> IndexKey:
        def derive(purpose: bytes) -> bytes:
            return hmac.digest(purge_key, b"refstore purge index: " + purpose, "sha256")

        return IndexKey(derive(b"name").hex()[:16], derive(b"hash")[:16], derive(b"ledger"))


def index_folder(key: IndexKey, dataset: Dataset, kind: IdKind) -> str:
    """Return where the index of a data set's objects stands. What changes what is hashed changes the name."""
    task = msgspec.json.encode((dataset.format, dataset.identifier, dataset.map_part, dataset.set_null, kind))
    return f"{FOLDER}{key.name}/{hashlib.sha256(task).hexdigest()[:16]}/"


def hash_distinct(values: Any, kind: IdKind, hash_key: bytes) -> NDArray[np.uint64]:
    """Return the hashes of the distinct values of an array that `purge_ids.to_comparable` made, in order. Null has
    none.
    """
    return _sort_unique([hash_each(values.unique().drop_null(), kind, hash_key)])


def hash_each(distinct: Any, kind: IdKind, hash_key: bytes) -> NDArray[np.uint64]:
    """Return the hash of each value of an array that `purge_ids.to_comparable` made, without null."""
    if kind == "integer":
        distinct = pc.cast(distinct, pa.string()).cast(pa.large_binary())
    found: list[NDArray[np.uint64]] = []
    for start in range(0, len(distinct), CHUNK_ROWS):
        objects = distinct.slice(start, CHUNK_ROWS).to_numpy(zero_copy_only=False)
        found.append(np.asarray(siphash(objects, hash_key), dtype=np.uint64) >> np.uint64(64 - BITS))
    return np.concatenate([*found, np.zeros(0, dtype=np.uint64)])


def _sort_unique(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return what is in the parts, sorted, each once. (`np.unique` takes seven times as long in numpy 2.3.)"""
    found = np.sort(np.concatenate([*parts, np.zeros(0, dtype=np.uint64)]))
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


class _RowGroup(NamedTuple):
    rows: int
    low: int
    high: int


def _digest(rows: int, groups: Iterable[_RowGroup]) -> bytes:
    return hashlib.sha256(msgspec.json.encode((rows, list(groups)))).digest()


class HashCollector:
    """Ids that collect the hashes of what is compared with them. Implements `formats.base.IdMatcher`."""

    def __init__(self, ids: IdMatcher, hash_key: bytes) -> None:
        self.kind: IdKind = ids.kind
        self._ids = ids
        self._hash_key = hash_key
        self._found: list[NDArray[np.uint64]] = []
        self._pending = 0
        self.is_full = False

    def may_match(self, minimum: Any, maximum: Any) -> bool:
        return self._ids.may_match(minimum, maximum)

    def matches(self, values: Any) -> NDArray[np.bool_]:
        if not self.is_full:
            self._add(values.dictionary if pa.types.is_dictionary(values.type) else values)
        return self._ids.matches(values)

    def _add(self, values: Any) -> None:
        found = hash_distinct(to_comparable(values, self.kind), self.kind, self._hash_key)
        self._found.append(found)
        self._pending += len(found)
        if self._pending > HASHES_MAX:
            self._merge()

    def to_bytes(self, rows: int) -> bytes | None:
        """Return the index of an object of so many rows; None: it has too many distinct ids."""
        self._merge()
        if self.is_full:
            return None
        hashes = self._found[0].astype(np.int64) if self._found else np.zeros(0, np.int64)
        groups = [hashes[start : start + GROUP_ROWS] for start in range(0, len(hashes), GROUP_ROWS)]
        digest = _digest(rows, [_RowGroup(len(group), int(group[0]), int(group[-1])) for group in groups])
        schema = pa.schema([(_COLUMN, pa.int64())], metadata={_ROWS: str(rows).encode(), _DIGEST: digest})
        out = io.BytesIO()
        pq.write_table(
            pa.table([hashes], schema=schema),
            out,
            row_group_size=GROUP_ROWS,
            use_dictionary=False,
            compression="none",
            column_encoding={_COLUMN: "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
        )
        return out.getvalue()

    def _merge(self) -> None:
        if self._found:
            self._found = [_sort_unique(self._found)]
            self._pending = len(self._found[0])
            self.is_full = self._pending > HASHES_MAX
        if self.is_full:
            self._found = []


class IndexAnswer(NamedTuple):
    may_match: bool
    rows: int
    """Of the object."""
    read_bytes: int


def look_up(store: ObjectStore, key: str, size_bytes: int, wanted: NDArray[np.uint64]) -> IndexAnswer:
    """Return whether an object may have one of the ids whose hashes, sorted, are given. Raises ObjectNotFound,
    ObjectsUnavailable, Corrupt, and what pyarrow raises for an index that is damaged.
    """
    source = open_object(store, key, size_bytes, ahead_bytes=AHEAD_BYTES)
    file = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
    rows, groups = int(file.schema_arrow.metadata[_ROWS]), list(_row_groups(file.metadata))
    if file.schema_arrow.metadata[_DIGEST] != _digest(rows, groups):
        raise Corrupt(f"{key} is not what was written; it is not used, and goes with its object")
    for number, group in enumerate(groups):
        first, end = np.searchsorted(wanted, np.array([group.low, group.high + 1], dtype=np.uint64))
        if first == end:
            continue
        there = file.read_row_group(number).column(0).to_numpy().astype(np.uint64)
        if np.isin(wanted[first:end], there, assume_unique=True).any():
            return IndexAnswer(True, rows, source.requested_bytes)
    return IndexAnswer(False, rows, source.requested_bytes)


def _row_groups(metadata: Any) -> Iterator[_RowGroup]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            bounds = group.column(0).statistics
            yield _RowGroup(group.num_rows, bounds.min, bounds.max)


def read_sizes(store: ObjectStore, folder: str) -> dict[str, int]:
    """Return the size of each object's index, by the object's address."""
    return {info.key[len(folder) :]: info.size_bytes for info in store.list(folder)}


def delete_superfluous(store: ObjectStore, wanted: Mapping[str, Iterable[str]]) -> None:
    """Delete every index but those of these addresses, by folder. Raises ObjectsUnavailable."""
    keys = {f"{folder}{address}" for folder, addresses in wanted.items() for address in addresses}
    store.delete_many([info.key for info in store.list(FOLDER) if info.key not in keys])
