"""Ranges, metaranges and listings in the object store: written once, verified on every read, cached while decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from refstore.core.clock import Clock
from refstore.core.ids import Ids
from refstore.errors import ObjectNotFound
from refstore.objects.base import ObjectStore
from refstore.versioning.commits import metaranges, object_names, ranges
from refstore.versioning.commits.caches import Caches
from refstore.versioning.commits.columns import Column, Rows
from refstore.versioning.commits.metaranges import Metarange, RangeRow

_ROW_BYTES: Final = 200
"""The bytes that a decoded range row takes besides its paths."""


class TreeStore:
    """Thread-safe."""

    def __init__(self, objects: ObjectStore, ids: Ids, clock: Clock, caches: Caches) -> None:
        self._objects = objects
        self._ids = ids
        self._clock = clock
        self._ranges = caches.ranges
        self._metaranges = caches.metaranges

    def new_suffix(self) -> str:
        """Make a new object's suffix, in the operation's own thread, so that a simulated run can be repeated."""
        return self._ids.new_id(self._clock.now_ms())

    def cached_range(self, range_id: str) -> Rows | None:
        """Return the range if it is cached, so that it costs no request and needs no thread."""
        return self._ranges.get(range_id)

    def range(self, range_id: str) -> Rows:
        """Raises CorruptRange, ObjectsUnavailable."""
        rows = self._ranges.get(range_id)
        if rows is None:
            rows = ranges.decode(range_id, self.read(object_names.RANGES, range_id))
            self._ranges.put(range_id, rows, rows.nbytes)
        return rows

    def range_addresses(self, range_id: str) -> Column:
        """Read only the addresses of a range, without caching it. Raises CorruptRange, ObjectsUnavailable."""
        return ranges.decode_addresses(range_id, self.read(object_names.RANGES, range_id))

    def metarange(self, metarange_id: str) -> Metarange:
        """Raises CorruptRange, ObjectsUnavailable."""
        if not metarange_id:
            return metaranges.EMPTY
        tree = self._metaranges.get(metarange_id)
        if tree is None:
            tree = metaranges.decode(metarange_id, self.read(object_names.METARANGES, metarange_id))
            self._cache_metarange(metarange_id, tree)
        return tree

    def range_ids(self, metarange_id: str) -> Column:
        """Read only the range ids of a metarange, without caching it. Raises CorruptRange, ObjectsUnavailable."""
        return metaranges.range_ids(metarange_id, self.read(object_names.METARANGES, metarange_id))

    def put_range(self, row: RangeRow, body: bytes) -> None:
        self._objects.put(object_names.key(object_names.RANGES, row.id), body)

    def put_metarange(self, metarange: Metarange, suffix: str) -> str:
        """Write a metarange and return its id; '' if it is empty."""
        if not metarange.rows:
            return ""
        content_hash = metarange.content_hash
        metarange_id = object_names.new_id(content_hash, suffix)
        self._objects.put(
            object_names.key(object_names.METARANGES, metarange_id), metaranges.encode(metarange, content_hash)
        )
        self._cache_metarange(metarange_id, metarange)  # the next commit's base
        return metarange_id

    def read(self, folder: str, object_id: str) -> bytes:
        try:
            return self._objects.read(object_names.key(folder, object_id))
        except ObjectNotFound as error:
            raise object_names.corrupt_range(folder, object_id, "it is not in the object store") from error

    def chunks(self, folder: str, object_id: str) -> Iterator[bytes]:
        """Yield the chunks of an object that may be large."""
        try:
            yield from self._objects.get(object_names.key(folder, object_id))
        except ObjectNotFound as error:
            raise object_names.corrupt_range(folder, object_id, "it is not in the object store") from error

    def put_added_addresses(self, listing_id: str, body: BinaryIO) -> None:
        self._objects.put(object_names.key(object_names.ADDED_ADDRESSES, listing_id), body)

    def _cache_metarange(self, metarange_id: str, metarange: Metarange) -> None:
        weight_bytes = sum(_ROW_BYTES + len(row.first_path) + len(row.last_path) for row in metarange.rows)
        self._metaranges.put(metarange_id, metarange, weight_bytes)
