"""What `Repository.open` requests of a large Parquet file, of which one row group is read."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import lakes
from bench.measure import Row, Series, at_most
from bench.workshop import Workshop
from refstore.objects.stored_file import ReadAheadFile
from refstore.repository import Repository

COLUMNS: Final = 8
GROUPS: Final = 32
PATH: Final = "large.parquet"
REQUESTED_FACTOR: Final = 1.2


def run(shop: Workshop) -> Iterator[Row]:
    size_bytes = shop.scale.frame_bytes
    with lakes.open_lake(*lakes.stores_in(shop.on_disk("file-objects")), lakes.nowhere) as lake:
        repo = lake.create_repository(lakes.REPOSITORY)
        shop.say(f"file-objects: writing a Parquet file of {size_bytes >> 20:,} MiB")
        write_frame(repo, size_bytes)
        for name, pre_buffer in (("column by column", False), ("as pyarrow joins its ranges", True)):
            read = [read_group(repo, group, pre_buffer=pre_buffer) for group in range(0, GROUPS, GROUPS // 4)]
            yield Row(
                what=f"open a Parquet file of {size_bytes >> 20:,} MiB and read one row group, {name}",
                ours=Series(tuple(requested / 2**20 for requested, _ in read), "MiB requested"),
                other=Series(tuple(stored / 2**20 for _, stored in read), "MiB"),
                other_name="the row group",
                bar=at_most(REQUESTED_FACTOR),
                note="with the footer; row groups at four places",
            )


def write_frame(repo: Repository, size_bytes: int) -> None:
    """Upload a file of random numbers, which no encoding makes smaller."""
    rows, random = size_bytes // (8 * COLUMNS * GROUPS), np.random.default_rng(1)
    names = [f"c{number}" for number in range(COLUMNS)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    with (
        repo.open("main", PATH, "wb") as file,
        pq.ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer,
    ):
        for _ in range(GROUPS):
            writer.write_table(
                pa.table([pa.array(random.random(rows)) for _ in names], schema=schema), row_group_size=rows
            )


def read_group(repo: Repository, number: int, *, pre_buffer: bool) -> tuple[int, int]:
    """Read a row group, and return the bytes that were requested from the opening of the file on, and its own."""
    with repo.open("main", PATH) as file:
        parquet = pq.ParquetFile(file, pre_buffer=pre_buffer)
        group = parquet.metadata.row_group(number)
        assert parquet.read_row_group(number, use_threads=False).num_rows == group.num_rows
        raw = file.raw
        assert isinstance(raw, ReadAheadFile)
        stored = sum(group.column(column).total_compressed_size for column in range(COLUMNS))
        return raw.requested_bytes, stored
