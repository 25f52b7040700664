"""A listing: the own addresses that one commit put, sorted, each once, in a Parquet file (rule 7 reads it).

It also names the commit's new ranges: those of its tree that the tree of its first parent does not have. Who knows the
parent's ranges need not read the commit's metarange, which names all. A commit with more new ranges than
NEW_RANGES_MAX has a listing without them.

Addresses come in the order of their paths, any number of them. They are sorted by external merge: runs of RUN_ROWS in
memory, put aside in a temporary file, then merged window by window. Reading goes through a temporary file too, so that
the hash of the whole is verified before the first address is given out.

Memory: a run (6 MB), and while merging RUN_BATCH_ROWS of each run (3 bytes per address in all). The system's temporary
directory takes about 46 bytes per address beyond the first 16 MiB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, BinaryIO, Final, NamedTuple, cast

from refstore.core.ids import OWN_ADDRESS_PATTERN, Address
from refstore.objects.base import CHUNK_BYTES
from refstore.versioning.commits import columns, object_names, ranges
from refstore.versioning.commits.columns import SPOOL_BYTES, Column, ColumnKind, Layout, Rows, UnreadableColumns
from refstore.versioning.commits.sorted_runs import SortedRuns, temporary_space
from refstore.versioning.commits.tree_changes import ChangePage
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.workers import PendingResult, Workers

LAYOUT: Final = Layout("refstore.added", "1", (("address", ColumnKind.SORTED),))

NEW_RANGES_KEY: Final = "refstore.new_ranges"
"""The metadata key that holds the ids of the new ranges, with spaces between."""
NEW_RANGES_MAX: Final = 4096
"""The most that one listing names: 370 KB. With more, the metarange does not take much longer to read."""

RUN_ROWS: Final = 1 << 17
"""Sorted in 30 ms by one thread while the next ones arrive."""
RUN_BATCH_ROWS: Final = 1 << 13
"""The unit of merging."""
ROW_GROUP_ROWS: Final = 1 << 16
"""What a reader decodes at once."""


class AddedAddressCollector:
    """Collects the own addresses of the pages of changes; then writes the listing."""

    def __init__(self, workers: Workers, *, run_rows: int = RUN_ROWS, run_batch_rows: int = RUN_BATCH_ROWS) -> None:
        self._workers = workers
        self._run_rows = run_rows
        self._run_batch_rows = run_batch_rows
        self._parts: list[Column] = []
        """The run that is being filled."""
        self._rows = 0
        self._sorting: PendingResult[Column] | None = None
        """The run before."""
        self._spill: SortedRuns | None = None
        """All runs before that."""

    def add(self, page: ChangePage) -> None:
        own = columns.filter_matches(page.rows.column(ranges.ADDRESS), OWN_ADDRESS_PATTERN)
        if len(own):
            self._parts.append(own)
            self._rows += len(own)
        if self._rows >= self._run_rows:
            self._spill_sorted()
            self._sorting = self._workers.submit(columns.merge_unique, self._parts)
            self._parts, self._rows = [], 0

    def finish(self, store: TreeStore, new_ranges: Sequence[str]) -> PendingResult[str] | None:
        """Start to write the listing, and return the job with its id; None if no own address was put.

        `new_ranges`: the ids of all ranges that the new tree has and its base does not have.
        """
        rest = columns.merge_unique(self._parts) if self._parts else None
        self._spill_sorted()
        if self._spill is not None:
            if rest is not None:
                self._spill_run(rest)
            pieces = (rows.column(0) for rows in self._spill.merge_runs())
            return self._workers.submit(_write, store, store.new_suffix(), pieces, new_ranges)
        return (
            None if rest is None else self._workers.submit(_write, store, store.new_suffix(), iter([rest]), new_ranges)
        )

    def close(self) -> None:
        if self._spill is not None:
            self._spill.close()

    def _spill_sorted(self) -> None:
        if self._sorting is not None:
            self._spill_run(self._sorting.result())
            self._sorting = None

    def _spill_run(self, run: Column) -> None:
        if self._spill is None:
            self._spill = SortedRuns(LAYOUT, _merge_rows)
        self._spill.start_run()
        for at in range(0, len(run), self._run_batch_rows):
            self._spill.add(columns.rows_of_columns(LAYOUT, [run.slice(at, self._run_batch_rows)]))


def _merge_rows(parts: Sequence[Rows]) -> Rows:
    return columns.rows_of_columns(LAYOUT, [columns.merge_unique([rows.column(0) for rows in parts])])


def _write(store: TreeStore, suffix: str, pieces: Iterator[Column], new_ranges: Sequence[str]) -> str:
    """Write a listing; runs in a worker."""
    metadata = {NEW_RANGES_KEY: " ".join(new_ranges)} if len(new_ranges) <= NEW_RANGES_MAX else {}
    with SpooledTemporaryFile(max_size=SPOOL_BYTES) as file:
        with temporary_space():
            with columns.open_encoder(LAYOUT, file, ROW_GROUP_ROWS, metadata) as write:
                for piece in pieces:
                    write(piece)
            listing_id = object_names.new_id(_hash(file), suffix)
            file.seek(0)
        store.put_added_addresses(listing_id, cast(BinaryIO, file))
        return listing_id


def read(store: TreeStore, listing_id: str) -> Iterator[list[Address]]:
    """Yield the addresses in order, in batches. Raises CorruptRange or ObjectsUnavailable before the first one."""
    if listing_id:
        with open_added_addresses(store, listing_id) as listing:
            yield from (column.to_pylist() for column in listing.addresses)


class OpenAddedAddresses(NamedTuple):
    """A listing whose hash is verified."""

    addresses: Iterator[Column]
    """In order, in Arrow arrays."""
    new_ranges: list[str] | None
    """The ids of the ranges that the commit's tree has and that of its first parent does not; None: not told."""


@contextmanager
def open_added_addresses(store: TreeStore, listing_id: str) -> Generator[OpenAddedAddresses]:
    """Open a listing, verify its hash, and close it. Raises CorruptRange, ObjectsUnavailable."""
    with SpooledTemporaryFile(max_size=SPOOL_BYTES) as file:
        for chunk in store.chunks(object_names.ADDED_ADDRESSES, listing_id):
            with temporary_space():
                file.write(chunk)
        if _hash(file) != object_names.hash_of(listing_id):
            raise object_names.corrupt_range(
                object_names.ADDED_ADDRESSES, listing_id, f"its {file.tell()} bytes do not have the hash in its name"
            )
        file.seek(0)
        try:
            batches, metadata = columns.decode_batches(LAYOUT, file, ROW_GROUP_ROWS)
            new_ranges = metadata.get(NEW_RANGES_KEY)
            yield OpenAddedAddresses(
                (rows.column(0) for rows in batches), None if new_ranges is None else new_ranges.split()
            )
        except UnreadableColumns as error:
            raise object_names.corrupt_range(object_names.ADDED_ADDRESSES, listing_id, str(error)) from error


def _hash(file: IO[bytes]) -> str:
    """Return the hash of the whole file; its position is at the end then."""
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
