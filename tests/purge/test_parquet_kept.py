"""What Parquet files have besides their rows: it is the same after a purge, byte for byte where nothing changes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats import parquet
from refstore_purge.formats.parquet_chunks import (
    DATA_PAGE,
    PAGE_TYPE,
    ChunkSource,
    ChunkStorage,
    FileAssembly,
    read_storage,
)
from refstore_purge.formats.parquet_footer import (
    OFFSET_INDEX,
    PAGE_HEADER,
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    SchemaElementField,
    ThriftList,
    ThriftStruct,
    ThriftType,
    read_footer,
    read_struct_at,
    write_footer,
)
from refstore_purge.formats.parquet_schema import PhysicalType
from refstore_purge.purge_error import PurgeError
from tests.corpus.parquet_layout import layout
from tests.purge.looking import find, id_set, rewrite, task

GUEST = task("guest")
BOB = id_set("bob")
GUESTS = ["ann", "bob", "cid", "ann", "cid", "cid"]
"""With two row groups of three rows, the second one has nobody who goes."""


def written(columns: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    table = pa.table({"guest": GUESTS, **columns})
    pq.write_table(
        table, out, **{"row_group_size": 3, "store_schema": False, "use_dictionary": False, **options}
    )  # Arrow's dictionaries may have more
    return out.getvalue()


def footer_of(body: bytes) -> ThriftStruct:
    return read_footer(io.BytesIO(body))[0]


def edited(body: bytes, edit: Callable[[ThriftStruct], ThriftStruct | None]) -> bytes:
    """Return the file with another footer: the one that `edit` returns, or changes."""
    footer, start = read_footer(io.BytesIO(body))
    footer = edit(footer) or footer
    out = io.BytesIO(body[:start])
    out.seek(start)
    write_footer(out, footer)
    return out.getvalue()


def element(footer: ThriftStruct, name: bytes) -> ThriftStruct:
    (found,) = [each for each in footer[FileField.SCHEMA] if each[SchemaElementField.NAME] == name]
    return found


def chunks(body: bytes) -> list[list[bytes]]:
    """Return the bytes of the column chunks of each row group."""
    return [[chunk.body for chunk in group] for group in layout(body).groups]


def stored_in(body: bytes) -> list[list[ChunkStorage]]:
    source = ChunkSource(io.BytesIO(body), read_footer(io.BytesIO(body))[1])
    return [
        [read_storage(source, chunk) for chunk in group[RowGroupField.COLUMNS]]
        for group in footer_of(body)[FileField.ROW_GROUPS]
    ]


def pages_found_by_indexes(body: bytes) -> int:
    """Return how many pages the offset indexes name, after a look at each."""
    source = io.BytesIO(body)
    pages = 0
    for group in footer_of(body)[FileField.ROW_GROUPS]:
        for chunk in group[RowGroupField.COLUMNS]:
            if ColumnChunkField.OFFSET_INDEX in chunk:
                index, size = read_struct_at(source, chunk[ColumnChunkField.OFFSET_INDEX], OFFSET_INDEX)
                assert size == chunk[ColumnChunkField.OFFSET_INDEX_BYTES]
                assert index[1][0][1] == chunk[ColumnChunkField.METADATA][ColumnMetadataField.DATA_PAGE]
                pages += sum(
                    read_struct_at(source, page[1], PAGE_HEADER)[0][PAGE_TYPE] == DATA_PAGE for page in index[1]
                )
    return pages


def rows_by_duckdb(body: bytes, tmp_path: Any) -> list[Any]:
    path = tmp_path / "file.parquet"
    path.write_bytes(body)
    return duckdb.read_parquet(str(path)).fetchall()


# ---- the schema


def as_variant(footer: ThriftStruct) -> None:
    union = ThriftStruct()
    union.set(16, ThriftType.STRUCT, ThriftStruct())
    element(footer, b"v").set(SchemaElementField.LOGICAL, ThriftType.STRUCT, union)


def with_old_names_of_lists(footer: ThriftStruct) -> None:
    element(footer, b"list").change(SchemaElementField.NAME, b"bag")
    element(footer, b"element").change(SchemaElementField.NAME, b"array_element")
    _paths(footer, [b"l", b"bag", b"array_element"])


def with_lists_of_two_levels(footer: ThriftStruct) -> None:
    """As Avro and Thrift wrote them: the repeated field is the element."""
    elements = footer[FileField.SCHEMA]
    repeated = element(footer, b"list")
    inner = element(footer, b"element")
    elements.remove(repeated)
    inner.change(SchemaElementField.NAME, b"array")
    inner.change(SchemaElementField.REPETITION, 2)
    _paths(footer, [b"l", b"array"])


def _paths(footer: ThriftStruct, path: Sequence[bytes]) -> None:
    for group in footer[FileField.ROW_GROUPS]:
        group[RowGroupField.COLUMNS][1][ColumnChunkField.METADATA].change(
            ColumnMetadataField.PATH, ThriftList(ThriftType.STRING, path)
        )


def without_logical_types(footer: ThriftStruct) -> None:
    """As writers of 2013 to 2018 did, and Spark's and Hive's older versions."""
    elements = footer[FileField.SCHEMA]
    footer.change(
        FileField.SCHEMA,
        ThriftList(ThriftType.STRUCT, [each.copy_without(SchemaElementField.LOGICAL) for each in elements]),
    )


def with_what_nobody_knows(footer: ThriftStruct) -> None:
    union = ThriftStruct()
    union.set(99, ThriftType.STRUCT, ThriftStruct())
    element(footer, b"b").set(SchemaElementField.LOGICAL, ThriftType.STRUCT, union)
    element(footer, b"b").set(42, ThriftType.STRING, b"new")
    footer.set(77, ThriftType.I64, 7)


def of_another_root(footer: ThriftStruct) -> None:
    footer[FileField.SCHEMA][0].change(SchemaElementField.NAME, b"spark_schema")
    footer.change(FileField.CREATED_BY, b"parquet-mr version 1.13.1 (build x)")
    footer.change(1, 1)


LISTS: Any = pa.array([[1], [], None, [2, 3], [4], [5]], pa.list_(pa.field("element", pa.int32(), nullable=False)))
TIMES: Any = {
    "ms": pa.array(range(6), pa.timestamp("ms", "UTC")),
    "us": pa.array(range(6), pa.timestamp("us", "UTC")),
    "t": pa.array(range(6), pa.time64("us")),
    "u": pa.array(range(6), pa.uint16()),
    "d": pa.array([Decimal(number) for number in range(6)], pa.decimal128(9, 0)),
}


@pytest.mark.parametrize(
    ("edit", "columns"),
    [
        (as_variant, {"v": pa.array([{"metadata": b"\x01\x00\x00", "value": b"\x0c\x05"}, None] * 3)}),
        (with_old_names_of_lists, {"l": LISTS}),
        (with_lists_of_two_levels, {"l": LISTS}),
        (without_logical_types, TIMES),
        (with_what_nobody_knows, {"b": pa.array([b"x"] * 6)}),
        (of_another_root, {"n": range(6)}),
    ],
)
def test_the_footer_stays_but_for_the_row_groups(
    edit: Callable[[ThriftStruct], None], columns: dict[str, Any], tmp_path: Any
) -> None:
    body = edited(written(columns, data_page_size=1, write_batch_size=1), edit)  # a page for each value
    made, counts = rewrite(parquet, body, GUEST, BOB)
    assert counts == (6, 1)
    parts = (FileField.ROWS, FileField.ROW_GROUPS)
    assert footer_of(made).copy_without(*parts) == footer_of(body).copy_without(*parts)
    assert chunks(made)[1] == chunks(body)[1]
    if edit is not with_what_nobody_knows:
        assert rows_by_duckdb(made, tmp_path) == [row for row in rows_by_duckdb(body, tmp_path) if row[0] != "bob"]


def test_times_of_96_bits_stay_to_the_bit_beside_times_of_64(tmp_path: Any) -> None:
    """Spark writes both, of a table with TIMESTAMP and TIMESTAMP_NTZ."""

    def as_times(footer: ThriftStruct) -> None:
        element(footer, b"n").set(SchemaElementField.CONVERTED, ThriftType.I32, 10)

    body = written(
        {"t": pa.array([-(2**62), 1, 2**62, 5, 6, 7], pa.timestamp("ns")), "n": pa.array(range(6), pa.int64())},
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        compression="none",
    )
    body = edited(body, as_times)
    made, _ = rewrite(parquet, body, GUEST, BOB)
    assert [each.get(SchemaElementField.TYPE) for each in footer_of(made)[FileField.SCHEMA]][2:] == [
        PhysicalType.INT96,
        PhysicalType.INT64,
    ]
    types = [
        chunk[ColumnChunkField.METADATA][ColumnMetadataField.TYPE]
        for chunk in footer_of(made)[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS]
    ]
    assert types == [PhysicalType.BYTE_ARRAY, PhysicalType.INT96, PhysicalType.INT64]
    old = pq.read_table(io.BytesIO(body)).to_pylist()
    assert pq.read_table(io.BytesIO(made)).to_pylist() == [row for row in old if row["guest"] != "bob"]
    assert rows_by_duckdb(made, tmp_path) == [row for row in rows_by_duckdb(body, tmp_path) if row[0] != "bob"]


# ---- how columns are stored


def test_each_column_of_each_row_group_keeps_its_codec_and_encoding() -> None:
    table = {"n": pa.array(range(6), pa.int64()), "x": pa.array([1.5] * 6), "s": pa.array(["abc"] * 6)}
    plain = {"use_dictionary": False, "row_group_size": 6}
    bodies = [
        written(table, compression="zstd", version="1.0", use_dictionary=True, row_group_size=6),
        written(table, compression={"guest": "none", "n": "gzip", "x": "brotli", "s": "lz4"}, **plain),
        written(
            table,
            column_encoding={
                "guest": "DELTA_BYTE_ARRAY",
                "n": "DELTA_BINARY_PACKED",
                "x": "BYTE_STREAM_SPLIT",
                "s": "DELTA_LENGTH_BYTE_ARRAY",
            },
            data_page_version="2.0",
            write_page_checksum=True,
            write_statistics=False,
            **plain,
        ),
        written(table, write_page_index=True, bloom_filter_options={"s": {"ndv": 9, "fpp": 0.01}}, row_group_size=6),
    ]
    out = io.BytesIO()
    assembly = FileAssembly(out)
    groups: list[ThriftStruct] = []
    for each in bodies:
        footer, end = read_footer(io.BytesIO(each))
        (group,) = footer[FileField.ROW_GROUPS]
        source = ChunkSource(io.BytesIO(each), end)
        groups.append(assembly.add_group(group, 6, [(source, chunk) for chunk in group[RowGroupField.COLUMNS]]))
    assembly.finish()
    footer = footer_of(bodies[0])
    footer.change(FileField.ROW_GROUPS, ThriftList(ThriftType.STRUCT, groups))
    footer.change(FileField.ROWS, 24)
    write_footer(out, footer)
    body = out.getvalue()

    made, counts = rewrite(parquet, body, GUEST, BOB)
    assert counts == (24, 4)
    for before, after in zip(stored_in(body), stored_in(made), strict=True):
        assert after == [
            each._replace(dictionary_bytes=new.dictionary_bytes, dictionary_values=new.dictionary_values)
            for each, new in zip(before, after, strict=True)
        ]
    assert pq.read_table(io.BytesIO(made)).num_rows == 20
    assert pages_found_by_indexes(made) == pages_found_by_indexes(body) == 4


def test_lowest_and_highest_values_have_the_order_of_their_types() -> None:
    columns = {
        "u8": pa.array([200, 1, 100, 255, 0, 3], pa.uint8()),
        "u64": pa.array([2**63 + 5, 1, 3, 4, 5, 6], pa.uint64()),
        "short": pa.array([Decimal(number) for number in (-5, 1, 7, 8, 9, 10)], pa.decimal128(20, 0)),
        "long": pa.array([Decimal(number) for number in (-5, 1, 7, 8, 9, 10)], pa.decimal256(50, 0)),
        "half": pa.array([-1.5, 0, 2.5, 3, 4, 5], pa.float16()),
        "id": pa.array([UUID(int=2**127).bytes, UUID(int=5).bytes] * 3, pa.binary(16)),
    }
    body = written(columns, write_page_index=True)
    made, _ = rewrite(parquet, body, GUEST, BOB)
    before, after = pq.read_metadata(io.BytesIO(body)), pq.read_metadata(io.BytesIO(made))
    kept = pa.table(columns).take([0, 2])
    for number, name in enumerate(columns, 1):
        old, new = before.row_group(0).column(number).statistics, after.row_group(0).column(number).statistics
        assert (old.has_min_max, new.has_min_max) == (True, True), name
        values = sorted(kept[name].to_pylist())
        if name not in ("short", "long", "half"):
            assert (new.min, new.max) == (values[0], values[-1]), name
    # bytes whose order pyarrow does not show: a reader that skips by them finds the rows
    out = pq.read_table(io.BytesIO(made), filters=[("short", "<", Decimal(0))])
    assert out["short"].to_pylist() == [Decimal(-5)]


@pytest.mark.parametrize("kind", ["INT96", "INTERVAL"])
def test_types_without_an_order_get_no_lowest_and_highest_value(kind: str) -> None:
    def as_interval(footer: ThriftStruct) -> None:
        element(footer, b"v").set(SchemaElementField.CONVERTED, ThriftType.I32, 21)

    if kind == "INT96":
        times = pa.array(range(6), pa.timestamp("ns"))
        body = written({"v": times}, use_deprecated_int96_timestamps=True, write_page_index=True)
    else:
        body = edited(written({"v": pa.array([b"x" * 12] * 6, pa.binary(12))}, write_page_index=True), as_interval)
    made, _ = rewrite(parquet, body, GUEST, BOB)
    chunk = footer_of(made)[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS][1]
    statistics = chunk[ColumnChunkField.METADATA].get(ColumnMetadataField.STATISTICS)
    assert statistics is None or not any(number in statistics for number in (1, 2, 5, 6))
    assert ColumnChunkField.COLUMN_INDEX not in chunk
    assert ColumnChunkField.OFFSET_INDEX in chunk


class TestPageChecksums:
    OPTIONS: ClassVar[dict[str, Any]] = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}

    def test_are_written_again(self) -> None:
        body = written({"s": ["text"] * 6}, **self.OPTIONS)
        made, _ = rewrite(parquet, body, GUEST, BOB)
        assert all(each.has_checksums for group in stored_in(made) for each in group)
        pq.ParquetFile(io.BytesIO(made), page_checksum_verification=True).read()

    @pytest.mark.parametrize("text", [b"ann", b"text"])
    def test_are_checked(self, text: bytes) -> None:
        body = bytearray(written({"s": ["text"] * 6}, **self.OPTIONS))
        body[body.index(len(text).to_bytes(4, "little") + text) + 4] ^= 1  # behind the page's header
        with pytest.raises(PurgeError, match="damaged"):
            rewrite(parquet, bytes(body), GUEST, BOB)


# ---- what has to be copied as it is, and what must not


def test_columns_beside_those_that_are_set_to_null_stay_as_they_are() -> None:
    body = written({"mail": ["x@y"] * 6, "n": range(6)})
    made, counts = rewrite(parquet, body, task("guest", set_null=["mail"]), BOB)
    assert counts == (6, 1)
    (guests, mails, numbers), second = chunks(body)
    (_, others, _), _ = chunks(made)
    assert others != mails
    assert chunks(made) == [[guests, others, numbers], second]


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_category_of_a_row_that_goes_stays_in_no_row_group(*, store_schema: bool) -> None:
    """Arrow writes all categories into the dictionary of each row group, also where it does not say so."""
    table = pa.table({"guest": GUESTS, "mail": pa.array(["a@", "secret@", "c@", "a@", "a@", "c@"]).dictionary_encode()})
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=3, compression="none", store_schema=store_schema)
    assert out.getvalue().count(b"secret@") >= 2
    made, _ = rewrite(parquet, out.getvalue(), GUEST, BOB)
    assert b"secret@" not in made


def test_categories_of_fastparquet_are_named() -> None:
    """Its reader takes the dictionary of one row group for those of all."""

    def with_categories(footer: ThriftStruct) -> None:
        pair = ThriftStruct()
        pair.set(1, ThriftType.STRING, b"num_categories")
        pair.set(2, ThriftType.STRING, b"3")
        for group in footer[FileField.ROW_GROUPS]:
            group[RowGroupField.COLUMNS][1][ColumnChunkField.METADATA].set(
                ColumnMetadataField.KEY_VALUES, ThriftType.LIST, ThriftList(ThriftType.STRUCT, [pair])
            )

    body = edited(written({"mail": ["a@", "b@", "c@"] * 2, "n": range(6)}), with_categories)
    with pytest.raises(PurgeError, match="'mail' is a category"):
        rewrite(parquet, body, GUEST, BOB)
    assert rewrite(parquet, body, task("guest", set_null=["n"]), BOB)[1] == (6, 1)


def test_chunks_of_writers_that_gave_wrong_sizes_are_not_copied() -> None:
    def of_an_old_writer(footer: ThriftStruct) -> None:
        footer.change(FileField.CREATED_BY, b"parquet-mr version 1.2.8")
        for group in footer[FileField.ROW_GROUPS]:  # without the header of the dictionary, as these did
            for chunk in group[RowGroupField.COLUMNS]:
                sizes = chunk[ColumnChunkField.METADATA]
                sizes.change(ColumnMetadataField.COMPRESSED_BYTES, sizes[ColumnMetadataField.COMPRESSED_BYTES] - 14)

    body = edited(written({"s": ["text"] * 6}, use_dictionary=True), of_an_old_writer)
    made, _ = rewrite(parquet, body, GUEST, BOB)
    assert pq.read_table(io.BytesIO(made))["s"].to_pylist() == ["text"] * 5
    made, _ = rewrite(parquet, body, task("guest", set_null=["s"]), BOB)
    assert pq.read_table(io.BytesIO(made)).to_pylist() == [
        {"guest": guest, "s": None if guest == "bob" else "text"} for guest in GUESTS
    ]


def test_metadata_stay_in_their_order_and_twice() -> None:
    def with_pairs(footer: ThriftStruct) -> None:
        pairs = ThriftList(ThriftType.STRUCT)
        for key, value in (b"z", b"1"), (b"a", b"bob"), (b"a", b"2"), (b"m", None), (b"a", b"3"):
            pairs.append(ThriftStruct())
            pairs[-1].set(1, ThriftType.STRING, key)
            if value is not None:
                pairs[-1].set(2, ThriftType.STRING, value)
        footer.set(FileField.KEY_VALUES, ThriftType.LIST, pairs)
        for group in footer[FileField.ROW_GROUPS]:
            group[RowGroupField.COLUMNS][0][ColumnChunkField.METADATA].set(
                ColumnMetadataField.KEY_VALUES, ThriftType.LIST, pairs
            )

    made, _ = rewrite(parquet, edited(written({}), with_pairs), GUEST, BOB)
    footer = footer_of(made)
    every = [
        group[RowGroupField.COLUMNS][0][ColumnChunkField.METADATA][ColumnMetadataField.KEY_VALUES]
        for group in footer[FileField.ROW_GROUPS]
    ]
    for pairs in (footer[FileField.KEY_VALUES], *every):
        left = [(pair[1], pair.get(2)) for pair in pairs]
        assert left == [(b"z", b"1"), (b"a", b"2"), (b"m", None), (b"a", b"3")]


def _far_away(chunk: ThriftStruct) -> None:
    chunk[ColumnChunkField.METADATA].change(ColumnMetadataField.COMPRESSED_BYTES, 10**9)


def _elsewhere(chunk: ThriftStruct) -> None:
    chunk.set(ColumnChunkField.FILE_PATH, ThriftType.STRING, b"other.parquet")


def _by_lzo(chunk: ThriftStruct) -> None:
    chunk[ColumnChunkField.METADATA].change(ColumnMetadataField.CODEC, 3)


@pytest.mark.parametrize(
    ("edit", "told"),
    [(_far_away, "leads out of it"), (_elsewhere, "in another file"), (_by_lzo, "'n' is compressed with LZO")],
)
def test_files_that_cannot_be_purged_say_why(edit: Callable[[ThriftStruct], None], told: str) -> None:
    body = edited(
        written({"n": range(6)}), lambda footer: edit(footer[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS][1])
    )
    with pytest.raises(PurgeError, match=told):
        rewrite(parquet, body, GUEST, BOB)


def test_an_annotation_that_does_not_fit_is_named() -> None:
    def as_text(footer: ThriftStruct) -> None:
        element(footer, b"n").set(SchemaElementField.CONVERTED, ThriftType.I32, 0)

    body = edited(written({"n": range(6)}), as_text)
    assert rewrite(parquet, body, GUEST, BOB)[1] == (6, 1)  # it is not the identifier's
    with pytest.raises(PurgeError, match="the type of 'n'"):
        find(parquet, body, task("n"), id_set(3, kind="integer"))


# ---- what pyarrow writes otherwise


def test_a_struct_with_a_required_field_becomes_null() -> None:
    type_ = pa.struct([pa.field("mail", pa.string(), nullable=False), pa.field("age", pa.int8())])
    values = [{"mail": f"{guest}@", "age": 5} for guest in GUESTS]
    body = written({"user": pa.array([*values[:2], None, *values[3:]], type_)}, compression="none")
    made, counts = rewrite(parquet, body, task("guest", set_null=["user"]), BOB)
    assert counts == (6, 1)
    assert pq.read_table(io.BytesIO(made))["user"].to_pylist() == [values[0], None, None, *values[3:]]
    assert b"bob@" not in made


@pytest.mark.parametrize("is_inner", [True, False])
def test_a_required_list_of_a_fixed_size_below_null_is_named(*, is_inner: bool) -> None:
    """pyarrow writes such a file, and then cannot read it."""
    type_ = pa.struct([pa.field("l", pa.list_(pa.float32(), 2), nullable=False)])
    value: Any = {"l": [1, 2]}
    if is_inner:
        type_, value = pa.struct([pa.field("s", type_, nullable=False)]), {"s": value}
    body = written({"user": pa.array([value] * 6, type_)}, store_schema=True)
    with pytest.raises(PurgeError, match="'user' has a required list of a fixed size"):
        rewrite(parquet, body, task("guest", set_null=["user"]), BOB)
    assert rewrite(parquet, body, GUEST, BOB)[1] == (6, 1)


def test_a_column_of_nothing_but_nan_has_no_column_index_any_more() -> None:
    body = written({"x": [float("nan"), 1.5, float("nan"), 2, 3, 4]}, write_page_index=True)
    made, _ = rewrite(parquet, body, GUEST, BOB)
    first, second = (group[1] for group in stored_in(made))
    assert (first.has_column_index, first.has_offset_index) == (False, True)
    assert second.has_column_index


def test_a_dictionary_whose_place_is_not_told_may_have_more_values() -> None:
    def without_places(footer: ThriftStruct) -> None:
        """As some writers do: the first page of the chunk is its dictionary."""
        for group in footer[FileField.ROW_GROUPS]:
            for chunk in group[RowGroupField.COLUMNS]:
                metadata = chunk[ColumnChunkField.METADATA]
                if start := metadata.get(ColumnMetadataField.DICTIONARY_PAGE):
                    metadata.change(ColumnMetadataField.DATA_PAGE, start)
                    chunk.change(ColumnChunkField.METADATA, metadata.copy_without(ColumnMetadataField.DICTIONARY_PAGE))

    mails = pa.array(["a@", "secret@", "c@", "a@", "a@", "c@"]).dictionary_encode()
    body = edited(written({"mail": mails}, compression="none", use_dictionary=True), without_places)
    assert body.count(b"secret@") >= 2
    made, _ = rewrite(parquet, body, GUEST, BOB)
    assert b"secret@" not in made
    assert pq.read_table(io.BytesIO(made))["mail"].to_pylist() == ["a@", "c@", "a@", "a@", "c@"]


def test_an_index_of_pages_stays_where_chunks_have_no_statistics() -> None:
    """pyarrow writes none without statistics, which then go again."""

    def without_statistics(footer: ThriftStruct) -> None:
        for group in footer[FileField.ROW_GROUPS]:
            for chunk in group[RowGroupField.COLUMNS]:
                metadata = chunk[ColumnChunkField.METADATA].copy_without(ColumnMetadataField.STATISTICS)
                chunk.change(ColumnChunkField.METADATA, metadata)

    body = edited(written({"n": range(6)}, write_page_index=True), without_statistics)
    made, counts = rewrite(parquet, body, GUEST, BOB)
    assert counts == (6, 1)
    chunks_made = [each for group in footer_of(made)[FileField.ROW_GROUPS] for each in group[RowGroupField.COLUMNS]]
    assert all(ColumnChunkField.COLUMN_INDEX in each for each in chunks_made)
    assert not any(ColumnMetadataField.STATISTICS in each[ColumnChunkField.METADATA] for each in chunks_made)


def test_an_identifier_that_is_compressed_by_lzo_is_told_so() -> None:
    def by_lzo(footer: ThriftStruct) -> None:
        _by_lzo(footer[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS][0])

    with pytest.raises(PurgeError, match="column 'guest' is compressed with LZO"):
        find(parquet, edited(written({}), by_lzo), GUEST, BOB)
