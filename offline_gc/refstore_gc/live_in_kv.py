"""The addresses that the KV names. The driver reads them in the order of rule 13 and writes them to files, which the
executors read.

Only the driver sees the KV, because an SQLite file is on one machine. It holds one file of addresses at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from refstore.core.arrow_arrays import array
from refstore.objects.base import ObjectStore
from refstore_gc.address_codec import Cuts
from refstore_gc.batches import ARROW, SCHEMA, Batch, BatchBuilder, BatchKind, Step, in_spark, sent
from refstore_gc.helper_processes import helpers
from refstore_gc.run_layout import RunLayout, read_table, store_at, write_table
from refstore_gc.untyped_arrow import pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_ROWS: Final = 1 << 18
"""20 MB in the driver."""
FEW: Final = 64
"""So few batches start faster from one Arrow table."""


class AddressWriter:
    """Writes addresses to files of a bounded size."""

    def __init__(self, store: ObjectStore, layout: RunLayout, folder: str = "kept") -> None:
        self._store = store
        self._work = layout
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
        key = self._work.place(self._folder, len(self.files))
        write_table(self._store, key, pa.table({"address": array(self._waiting, pa.string())}))
        self.files.append(key)
        self._waiting = []


def batches_of(spark: SparkSession, batches: Sequence[Batch], parts: int) -> DataFrame:
    """Spread batches of the driver over the executors. They say what to read; none holds addresses."""
    if len(batches) <= FEW:
        return spark.createDataFrame(
            pa.Table.from_batches(list(sent(batches)), schema=ARROW)
        )  # begins in a third of the time
    rows = [(batch.bucket, int(batch.kind), batch.rows, bytearray(batch.body)) for batch in batches]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, max(1, min(parts, len(rows)))), SCHEMA)


def read_files(
    spark: SparkSession, layout: RunLayout, cuts: Cuts, files: Sequence[tuple[str, BatchKind]], parts: int
) -> DataFrame:
    """Read the files of addresses that a run wrote, into batches of keys."""
    return batches_of(spark, file_batches(files), parts).mapInArrow(in_spark(file_reader(layout, cuts)), SCHEMA)


def read_files_here(layout: RunLayout, cuts: Cuts, files: Sequence[tuple[str, BatchKind]]) -> Iterator[Batch]:
    """Yield the same, read in this process and by its helpers."""
    return helpers.share(partial(_read_file, layout, cuts), file_batches(files))


def _read_file(layout: RunLayout, cuts: Cuts, batch: Batch) -> Iterator[Batch]:
    return file_reader(layout, cuts)([batch])


def file_batches(files: Sequence[tuple[str, BatchKind]]) -> list[Batch]:
    return [Batch.of_value(0, kind, key) for key, kind in files]


def file_reader(layout: RunLayout, cuts: Cuts) -> Step:
    def read_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
        store = store_at(layout.files, layout)
        builder = BatchBuilder(cuts, layout.seed)
        for batch in batches:
            table = read_table(store, msgspec.msgpack.decode(batch.body, type=str), ["address"])
            addresses = table.column("address").combine_chunks()
            yield from builder.add(batch.kind, addresses)
        yield from builder.flush()

    return read_batches
