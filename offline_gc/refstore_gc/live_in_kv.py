"""The addresses that the KV names. The run's own process reads them in the order of rule 13 and writes them to files,
which tasks of the engine read.

Only that process sees the KV, because an SQLite file is on one machine. It holds one file of addresses at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from refstore.core.arrow_arrays import make_array
from refstore_gc.address_batches import Batch, BatchBuilder, BatchKind
from refstore_gc.address_codec import BucketBounds
from refstore_gc.engines.base import Flow
from refstore_gc.run_layout import RunLayout, open_store, read_table, write_table
from refstore_gc.untyped_arrow import pa

FILE_ROWS: Final = 1 << 18
"""20 MB in the run's own process."""


class AddressWriter:
    """Writes addresses to files of a bounded size."""

    def __init__(self, layout: RunLayout, folder: str = "kept") -> None:
        self._layout = layout
        self._folder = folder
        self._waiting: list[str] = []
        self.files: list[str] = []
        self.rows = 0

    def add(self, addresses: Sequence[str]) -> None:
        self._waiting += addresses
        self.rows += len(addresses)
        if len(self._waiting) >= FILE_ROWS:
            self._write()

    def finish(self) -> list[str]:
        """Write the rest, and return the files' keys."""
        if self._waiting:
            self._write()
        return self.files

    def _write(self) -> None:
        key = self._layout.file_key(self._folder, len(self.files))
        table = pa.table({"address": make_array(self._waiting, pa.string())})
        write_table(open_store(self._layout.files, self._layout), key, table)
        self.files.append(key)
        self._waiting = []


def files_flow(layout: RunLayout, cuts: BucketBounds, files: Sequence[tuple[str, BatchKind]]) -> Flow:
    """Return the flow of the addresses in files that a run wrote. `layout`: where the files lie."""
    return Flow([Batch.from_value(0, kind, key) for key, kind in files], partial(read_files, layout, cuts))


def read_files(layout: RunLayout, cuts: BucketBounds, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the addresses of files, as batches for their buckets."""
    store = open_store(layout.files, layout)
    builder = BatchBuilder(cuts, layout.seed)
    for batch in batches:
        table = read_table(store, msgspec.msgpack.decode(batch.body, type=str), ["address"])
        addresses = table.column("address").combine_chunks()
        yield from builder.add(batch.kind, addresses)
    yield from builder.flush()
