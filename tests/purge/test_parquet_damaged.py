"""Parquet files that contradict themselves: a run names what is wrong, and neither loses a row nor leaves an id."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats import parquet, parquet_footer
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    SchemaElementField,
    ThriftList,
    ThriftStruct,
    ThriftType,
)
from refstore_purge.purge_error import PurgeError
from tests.purge.looking import find, id_set, rewrite, task
from tests.purge.test_parquet_kept import edited, written

GUEST = task("guest")
BOB = id_set("bob")
"""Is in the first of two row groups."""
LISTS: Any = pa.array([[1], [], None, [2, 3], [4], [5]], pa.list_(pa.int64()))


def a_file(**options: Any) -> bytes:
    """Return a file with the columns guest, n, s and l."""
    return written({"n": range(6), "s": ["a", "b", None, "d", "e", "f"], "l": LISTS}, **options)


def chunk(footer: ThriftStruct, column: int, group: int = 1) -> ThriftStruct:
    """Return a column chunk, of the row group that has no id."""
    return footer[FileField.ROW_GROUPS][group][RowGroupField.COLUMNS][column]


def metadata(footer: ThriftStruct, column: int, group: int = 1) -> ThriftStruct:
    return chunk(footer, column, group)[ColumnChunkField.METADATA]


def more_rows(footer: ThriftStruct) -> None:
    footer[FileField.ROW_GROUPS][1].change(RowGroupField.ROWS, 4)


def fewer_rows(footer: ThriftStruct) -> None:
    footer[FileField.ROW_GROUPS][1].change(RowGroupField.ROWS, 2)


def negative_rows(footer: ThriftStruct) -> None:
    footer[FileField.ROW_GROUPS][1].change(RowGroupField.ROWS, -3)


def fewer_rows_and_values(footer: ThriftStruct) -> None:
    """The pages have more than any reader shows."""
    fewer_rows(footer)
    for column in range(4):
        metadata(footer, column).change(ColumnMetadataField.VALUES, 2)


def more_rows_and_values(footer: ThriftStruct) -> None:
    more_rows(footer)
    for column in range(4):
        metadata(footer, column).change(ColumnMetadataField.VALUES, 4)


def one_column_less(footer: ThriftStruct) -> None:
    del footer[FileField.ROW_GROUPS][1][RowGroupField.COLUMNS][3]


def one_column_twice(footer: ThriftStruct) -> None:
    footer[FileField.ROW_GROUPS][1][RowGroupField.COLUMNS].append(chunk(footer, 3))


def two_columns_swapped(footer: ThriftStruct) -> None:
    """As their paths tell: pyarrow goes by their order, and others by their paths."""
    chunks = footer[FileField.ROW_GROUPS][1][RowGroupField.COLUMNS]
    chunks[0], chunks[2] = chunks[2], chunks[0]


def one_place_for_two(footer: ThriftStruct) -> None:
    for field in (ColumnMetadataField.DATA_PAGE, ColumnMetadataField.COMPRESSED_BYTES):
        metadata(footer, 2).change(field, metadata(footer, 0, 0)[field])


def a_chunk_too_short(footer: ThriftStruct) -> None:
    """A copy would lack its last byte."""
    metadata(footer, 1).change(
        ColumnMetadataField.COMPRESSED_BYTES, metadata(footer, 1)[ColumnMetadataField.COMPRESSED_BYTES] - 1
    )


def another_chunk_too_short(footer: ThriftStruct) -> None:
    last = metadata(footer, 3)
    last.change(ColumnMetadataField.COMPRESSED_BYTES, last[ColumnMetadataField.COMPRESSED_BYTES] - 1)


def a_negative_size(footer: ThriftStruct) -> None:
    metadata(footer, 1).change(ColumnMetadataField.COMPRESSED_BYTES, -1)


def another_type(footer: ThriftStruct) -> None:
    metadata(footer, 1).change(ColumnMetadataField.TYPE, 6)


def a_text_for_a_number(footer: ThriftStruct) -> None:
    metadata(footer, 1).set(ColumnMetadataField.VALUES, ThriftType.STRING, b"3")


def a_number_for_the_schema(footer: ThriftStruct) -> None:
    footer.set(FileField.SCHEMA, ThriftType.I32, 5)


def no_rows_said(footer: ThriftStruct) -> ThriftStruct:
    return footer.copy_without(FileField.ROWS)


def no_type(footer: ThriftStruct) -> None:
    chunk(footer, 1).change(ColumnChunkField.METADATA, metadata(footer, 1).copy_without(ColumnMetadataField.TYPE))


def too_many_children(footer: ThriftStruct) -> None:
    footer[FileField.SCHEMA][0].change(SchemaElementField.CHILDREN, 9)


def a_schema_in_itself(footer: ThriftStruct) -> None:
    """Of 200 groups, each in the one before."""
    group = ThriftStruct()
    group.set(SchemaElementField.REPETITION, ThriftType.I32, 1)
    group.set(SchemaElementField.NAME, ThriftType.STRING, b"g")
    group.set(SchemaElementField.CHILDREN, ThriftType.I32, 1)
    elements = footer[FileField.SCHEMA]
    elements[2:2] = [group] * 200


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (more_rows, "row group 1 of the file has 4 rows, and 3 values of column 'guest'"),
        (fewer_rows, "row group 1 of the file has 2 rows, and 3 values of column 'guest'"),
        (negative_rows, "-3 rows"),
        (fewer_rows_and_values, "the pages of column 'guest' have 3 values"),
        (more_rows_and_values, "pyarrow reads|the pages of column 'guest' have 3 values"),
        (one_column_less, "row group 1 of the file has 3 columns of 4"),
        (one_column_twice, "row group 1 of the file has 5 columns of 4"),
        (two_columns_swapped, "has another column in the place of 'guest'"),
        (one_place_for_two, "column chunks of the file overlap"),
        (a_chunk_too_short, "the pages of column 'n' have 3 values in"),
        (another_chunk_too_short, "the pages of column 'l.list.element' have"),
        (a_negative_size, "leads out of it"),
        (another_type, "has another type of column 'n' than the schema"),
        (a_text_for_a_number, "its footer is damaged"),
        (a_number_for_the_schema, "its footer is damaged"),
        (no_rows_said, "lacks a part"),
        (no_type, "lacks a part"),
        (too_many_children, "schema is damaged"),
        (a_schema_in_itself, "more than 100 levels"),
    ],
)
def test_a_footer_that_contradicts_itself_is_named(
    edit: Callable[[ThriftStruct], ThriftStruct | None], told: str
) -> None:
    body = edited(a_file(), edit)
    with pytest.raises(PurgeError, match=told):
        rewrite(parquet, body, replace(GUEST, ignores_statistics=True), BOB)


@pytest.mark.parametrize(
    "field", [ColumnChunkField.OFFSET_INDEX, ColumnChunkField.OFFSET_INDEX_BYTES, ColumnChunkField.COLUMN_INDEX_BYTES]
)
@pytest.mark.parametrize("value", [-5, 3, 10**9])
def test_an_index_that_leads_elsewhere_is_named(field: int, value: int) -> None:
    """What stands there would come into the new file: it may be of a row that goes."""
    body = edited(a_file(write_page_index=True), lambda footer: chunk(footer, 1).change(field, value))
    if field == ColumnChunkField.OFFSET_INDEX and value < 0:  # readers take it for none
        assert rewrite(parquet, body, GUEST, BOB)[1] == (6, 1)
        return
    with pytest.raises(PurgeError, match=r"index of the file's pages is damaged|footer is damaged|lacks a part"):
        rewrite(parquet, body, GUEST, BOB)


def test_a_bloom_filter_of_another_size_than_it_says_is_named() -> None:
    def larger(footer: ThriftStruct) -> None:
        metadata(footer, 1).change(ColumnMetadataField.BLOOM_FILTER_BYTES, 2**31 - 1)

    body = edited(a_file(bloom_filter_options={"n": {"ndv": 3, "fpp": 0.05}}), larger)
    with pytest.raises(PurgeError, match="Bloom filter"):
        rewrite(parquet, body, GUEST, BOB)


def test_a_place_that_moves_beyond_all_numbers_is_named() -> None:
    place = ThriftStruct()
    place.set(ColumnChunkField.OFFSET, ThriftType.I64, 2**63 - 1 + 5)
    with pytest.raises(PurgeError, match="its footer is damaged"):
        parquet_footer.to_bytes(place)


def test_a_footer_of_too_many_parts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of it may be a struct that takes 200 of memory."""
    monkeypatch.setattr(parquet_footer, "PARTS_MAX", 100_000)
    body = edited(
        a_file(),
        lambda footer: footer.set(99, ThriftType.LIST, ThriftList(ThriftType.STRUCT, [ThriftStruct()] * 100_000)),
    )
    with pytest.raises(PurgeError, match="more than 100,000 parts"):
        rewrite(parquet, body, GUEST, BOB)


def test_statistics_of_one_row_group_do_no_harm_where_the_column_is_read() -> None:
    """Whatever a look counts, the rewrite removes."""

    def above(footer: ThriftStruct) -> None:
        statistics = metadata(footer, 0, 0)[ColumnMetadataField.STATISTICS]
        for field in (1, 2, 5, 6):
            if field in statistics:
                statistics.change(field, b"x")

    body = io.BytesIO()
    table = pa.table({"guest": ["bob", "ann", "bob", "cid"]})
    pq.write_table(table, body, row_group_size=2, store_schema=False, use_dictionary=False)
    lying = edited(body.getvalue(), above)
    assert find(parquet, lying, GUEST, BOB).matched_rows == 2
    assert rewrite(parquet, lying, GUEST, BOB)[1] == (4, 2)


def test_a_list_that_pyarrow_does_not_read_is_named() -> None:
    """Of a row group of one row, with a page for each value, it reads no row: the new file would have a column less."""
    body = io.BytesIO()
    pq.write_table(pa.table({"guest": ["bob"], "l": [[1, 2]]}), body, data_page_size=1)
    assert pq.ParquetFile(body).read_row_group(0, columns=["l"]).num_rows == 0
    with pytest.raises(PurgeError, match="pyarrow reads 0 rows of column 'l', and the footer says 1"):
        rewrite(parquet, body.getvalue(), task("guest", set_null=["l"]), BOB)


@pytest.mark.parametrize("seed", range(60))
def test_a_footer_with_other_bytes_is_right_or_refused(seed: int) -> None:
    """Nothing but PurgeError is raised, and where pyarrow reads both files, the rows are the same."""
    chance = random.Random(seed)
    body = a_file(write_page_index=bool(seed % 2), bloom_filter_options={"guest": {"ndv": 6, "fpp": 0.1}})
    length = int.from_bytes(body[-8:-4], "little")
    changed = bytearray(body)
    for _ in range(chance.choice([1, 1, 3])):
        changed[chance.randrange(len(body) - 8 - length, len(body) - 8)] = chance.randrange(256)
    try:
        made, _ = rewrite(parquet, bytes(changed), GUEST, BOB)
    except PurgeError:
        return
    try:
        rows = pq.read_table(io.BytesIO(changed)).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return
    assert pq.read_table(io.BytesIO(made)).to_pylist() == [row for row in rows if row.get("guest") != "bob"]
