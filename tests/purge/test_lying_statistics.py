"""Statistics that lie: a run sees every row that `verify` sees, and leaves none."""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.errors import Corrupt
from refstore.objects.memory import MemoryObjects
from refstore.purge_document.document import Dataset
from refstore_purge import id_index
from refstore_purge.formats import parquet
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    SchemaElementField,
    StatisticsField,
    ThriftStruct,
    ThriftType,
)
from refstore_purge.formats.parquet_schema import ConvertedType
from refstore_purge.formats.parquet_summary import read_summary
from refstore_purge.purge_ids import to_comparable
from tests.purge.looking import dataset_ids, find, id_set, parquet_of, rewrite, rows_left, task
from tests.purge.lying_statistics import LyingFile, lying_parquet
from tests.purge.test_parquet_kept import edited, element

INT_8 = 15
"""Of Parquet's converted types."""

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_a_run_sees_what_verify_sees(rng: random.Random) -> None:
    file = lying_parquet(rng)
    wanted, what = {file.denied}, task(file.identifier)
    gone = sum(value in wanted for value in file.values)
    assert count_by_verify(file, file.body, wanted) == gone
    made, counts = rewrite(parquet, file.body, what, id_set(*wanted, kind=file.kind, type_=_id_type(file)))
    assert counts == (len(file.values), gone)
    assert _read(file, made) == [value for value in file.values if value not in wanted]
    assert count_by_verify(file, made, wanted) == 0
    again = find(parquet, made, what, id_set(*wanted, kind=file.kind, type_=_id_type(file)))
    assert again.matched_rows == 0


def _id_type(file: LyingFile) -> Any:
    return file.type if file.kind == "integer" else None


def count_by_verify(file: LyingFile, body: bytes, wanted: set[Any]) -> int:
    dataset = Dataset("d", "d/", file.identifier, "rewrite", "parquet")
    return rows_left(body, dataset, dataset_ids(*wanted, kind=file.kind, type_=_id_type(file)))


def _read(file: LyingFile, body: bytes) -> list[Any]:
    """Return what stands at the identifier, as a reader tells that looks at no statistics."""
    opened = pq.ParquetFile(io.BytesIO(body))
    groups = [opened.read_row_group(number).column("guest") for number in range(opened.num_row_groups)]
    rows = [row for group in groups for row in group.to_pylist()]
    return [row["id"] for row in rows] if "." in file.identifier else rows


def test_numbers_that_do_not_fit_their_type_are_read() -> None:
    """Arrow reads their low bits, and so do a run and `verify`."""

    def narrow(footer: ThriftStruct) -> None:
        element(footer, b"guest").set(SchemaElementField.CONVERTED, ThriftType.I32, INT_8)

    body = edited(parquet_of(pa.table({"guest": pa.array([300, 301], pa.int32())}), store_schema=False), narrow)
    assert pq.read_table(io.BytesIO(body)).column("guest").to_pylist() == [44, 45]
    assert find(parquet, body, task("guest"), id_set(44, kind="integer")) == (2, 1, "column")


def test_bounds_of_types_without_a_known_order_are_not_believed() -> None:
    def call_it(converted: int) -> bytes:
        def change(footer: ThriftStruct) -> None:
            element(footer, b"guest").set(SchemaElementField.CONVERTED, ThriftType.I32, converted)

        return edited(parquet_of(pa.table({"guest": pa.array([b"a" * 12, b"c" * 12], pa.binary(12))})), change)

    wanted = id_set(b"z" * 12, kind="binary")
    assert find(parquet, call_it(ConvertedType.INTERVAL), task("guest"), wanted).decided_by == "column"


def test_nulls_in_a_required_column_are_not_believed() -> None:
    schema = pa.schema([pa.field("guest", pa.string(), nullable=False)])
    body = parquet_of(pa.table({"guest": ["bob", "cid"]}, schema=schema))

    def deny(footer: ThriftStruct) -> None:
        metadata = footer[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS][0][ColumnChunkField.METADATA]
        statistics = ThriftStruct()
        statistics.set(StatisticsField.NULLS, ThriftType.I64, 2)
        metadata.change(ColumnMetadataField.STATISTICS, statistics)

    assert find(parquet, body, task("guest"), id_set("zoe")).decided_by == "statistics"
    assert find(parquet, edited(body, deny), task("guest"), id_set("bob")) == (2, 1, "column")


@pytest.mark.parametrize("writer", [b"parquet-mr version 1.6.0", b"Polars"])
def test_a_summary_has_the_ids_of_statistics_that_nobody_believes(writer: bytes) -> None:
    def make_old(footer: ThriftStruct) -> ThriftStruct:
        footer.change(FileField.CREATED_BY, writer)
        for chunk in footer[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS]:
            chunk.set(ColumnChunkField.FILE_PATH, ThriftType.STRING, b"part-0.parquet")
        statistics = ThriftStruct()
        statistics.set(StatisticsField.MIN, ThriftType.STRING, b"ann")
        statistics.set(StatisticsField.MAX, ThriftType.STRING, b"bob")
        footer[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS][0][ColumnChunkField.METADATA].change(
            ColumnMetadataField.STATISTICS, statistics
        )
        return footer.copy_without(FileField.COLUMN_ORDERS)

    body = edited(parquet_of(pa.table({"guest": ["ann", "bob"]})), make_old)
    assert read_summary(io.BytesIO(body), task("guest")).has_ids(id_set("bob"))


def test_an_index_that_says_something_else_is_not_believed() -> None:
    """Its bounds lie in the footer, where no page's checksum covers them."""
    objects = MemoryObjects()
    key = id_index.IndexKey.derive(b"k" * 32)
    guests = pa.array([f"guest-{number}" for number in range(3 * id_index.GROUP_ROWS)])
    collector = id_index.HashCollector(id_set("bob"), key.hash_key)
    collector.matches(guests)
    body = collector.to_bytes(len(guests)) or b""
    wanted = id_index.hash_distinct(to_comparable(guests, "string"), "string", key.hash_key)
    bounds = [pq.read_metadata(io.BytesIO(body)).row_group(number).column(0).statistics.max for number in range(3)]

    def look_up(stored: bytes, wanted: Any) -> bool:
        objects.put("index", stored)
        return id_index.look_up(objects, "index", len(stored), wanted).may_match

    for bound in bounds:
        one = wanted[wanted == bound]
        assert look_up(body, one)
        lower = body.replace(bound.to_bytes(8, "little"), (bound - 1).to_bytes(8, "little"))
        with pytest.raises(Corrupt, match="is not what was written"):
            look_up(lower, one)
