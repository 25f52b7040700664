"""What the KV names: read by the driver in the order of rule 13, written down, and read again by the executors.

Only the driver sees the KV (an SQLite file is on one machine). It holds a file's worth of addresses at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from offline_gc.addresses import Cuts
from offline_gc.arrow import pa
from offline_gc.packets import ARROW, SCHEMA, Gathering, Packet, Side, Step, in_spark, sent
from offline_gc.places import Work, read_table, store_at, write_table
from refstore.objects.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_ROWS: Final = 1 << 18
"""20 MB in the driver."""
FEW: Final = 64
"""Packets that need no more tasks than there are cores."""


class Keeper:
    """Writes addresses down, file by file."""

    def __init__(self, store: ObjectStore, work: Work, folder: str = "kept") -> None:
        self._store = store
        self._work = work
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
        """The files' keys."""
        if self._waiting:
            self._write()
        return self.files

    def _write(self) -> None:
        key = self._work.place(self._folder, len(self.files))
        write_table(self._store, key, pa.table({"address": pa.array(self._waiting, pa.string())}))
        self.files.append(key)
        self._waiting = []


def packets_of(spark: SparkSession, told: Sequence[Packet], parts: int) -> DataFrame:
    """Packets that the driver makes, spread over the executors: what there is to read, never addresses."""
    if len(told) <= FEW:
        return spark.createDataFrame(pa.Table.from_batches(list(sent(told)), schema=ARROW))  # begins in a third of the time
    rows = [(packet.bucket, int(packet.side), packet.rows, bytearray(packet.body)) for packet in told]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, max(1, min(parts, len(rows)))), SCHEMA)


def addresses_in(spark: SparkSession, work: Work, cuts: Cuts, files: Sequence[tuple[str, Side]], parts: int) -> DataFrame:
    """The addresses that files of a run hold, as packets of their keys."""
    return packets_of(spark, told_of(files), parts).mapInArrow(in_spark(reading(work, cuts)), SCHEMA)


def told_of(files: Sequence[tuple[str, Side]]) -> list[Packet]:
    return [Packet.telling(0, side, key) for key, side in files]


def reading(work: Work, cuts: Cuts) -> Step:
    def read(told: Iterable[Packet]) -> Iterator[Packet]:
        store = store_at(work.files, work)
        gathering = Gathering(cuts, work.seed)
        for packet in told:
            table = read_table(store, msgspec.msgpack.decode(packet.body, type=str), ["address"])
            addresses = table.column("address").combine_chunks()
            yield from gathering.add(packet.side, addresses)
        yield from gathering.flush()

    return read
