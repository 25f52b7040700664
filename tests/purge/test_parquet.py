"""Parquet: what a rewritten file keeps, and what is refused."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats import parquet
from refstore_purge.purge_error import PurgeError
from tests.purge.looking import encrypted, find, id_set, parquet_of, rewrite, task


def opened(body: bytes) -> Any:
    return pq.ParquetFile(io.BytesIO(body))


FULL: Any = pa.table(
    [
        pa.array([f"g{number % 9}" for number in range(900)]),
        pa.array(range(900), pa.int32()),
        pa.array([float(number) for number in range(900)]),
        pa.array([number * 1000 for number in range(900)], pa.timestamp("ns")),
    ],
    schema=pa.schema(
        [
            pa.field("guest", pa.string(), metadata={"PARQUET:field_id": "7"}),
            pa.field("n", pa.int32(), nullable=False, metadata={"PARQUET:field_id": "3"}),
            pa.field("x", pa.float64()),
            pa.field("t", pa.timestamp("ns")),
        ],
        metadata={"mine": "kept"},
    ),
)


@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
def test_a_rewritten_file_is_like_the_old_one_but_for_its_rows(version: str) -> None:
    table = FULL if version == "2.6" else FULL.drop(["t"])
    body = parquet_of(
        table,
        version=version,
        row_group_size=300,
        compression={"guest": "zstd", "n": "snappy", "x": "none"},
        use_dictionary=["guest"],
        write_statistics=["guest", "n"],
        sorting_columns=[pq.SortingColumn(1)],
        bloom_filter_options={"guest": {"ndv": 9, "fpp": 0.01}},
        write_page_index=True,
        store_schema=False,
    )
    made, counts = rewrite(parquet, body, task("guest"), id_set("g3", "nobody"))
    old, new = opened(body).metadata, opened(made).metadata
    assert counts == (900, 100)
    assert opened(made).read().equals(opened(body).read().filter(pc.field("guest") != "g3"))
    assert opened(made).schema.equals(opened(body).schema)
    assert opened(made).schema_arrow.field("guest").metadata == {b"PARQUET:field_id": b"7"}
    assert (new.metadata, new.format_version) == (old.metadata, old.format_version)
    assert [new.row_group(group).num_rows for group in range(new.num_row_groups)] == [267, 266, 267]
    assert new.row_group(0).sorting_columns == old.row_group(0).sorting_columns
    for number in range(old.num_columns):
        before, after = old.row_group(0).column(number), new.row_group(0).column(number)
        for name in ("compression", "has_dictionary_page", "is_stats_set", "has_column_index", "path_in_schema"):
            assert getattr(after, name) == getattr(before, name), (number, name)
        assert (after.bloom_filter_offset is None) == (before.bloom_filter_offset is None)


def test_a_file_without_rows_left_keeps_its_schema() -> None:
    body = parquet_of(FULL)
    made, _ = rewrite(parquet, body, task("guest"), id_set(*(f"g{number}" for number in range(9))))
    assert opened(made).metadata.num_rows == 0
    assert opened(made).schema.equals(opened(body).schema)
    again, counts = rewrite(parquet, made, task("guest"), id_set("g1"))
    assert (counts, opened(again).metadata.num_rows) == ((0, 0), 0)


def test_row_groups_whose_statistics_rule_the_ids_out_are_not_read() -> None:
    body = parquet_of(pa.table({"guest": [f"g{number:04}" for number in range(1000)]}), row_group_size=100)
    assert find(parquet, body, task("guest"), id_set("a", "z")) == (1000, 0, "statistics")
    assert find(parquet, body, task("guest"), id_set("g0555")) == (1000, 1, "column")
    nulls = parquet_of(pa.table({"guest": pa.array([None] * 5, pa.string())}))
    assert find(parquet, nulls, task("guest"), id_set("g")) == (5, 0, "statistics")


ROWS: list[Any] = [["bob"], ["ann", None, "bob"], [], None, ["ann"], [None]]


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.dictionary(pa.int32(), pa.string()))]
)
def test_a_row_goes_if_any_element_of_its_list_matches(type_: Any) -> None:
    body = parquet_of(pa.table({"n": range(6), "guests": pa.array(ROWS, type_)}))
    made, _ = rewrite(parquet, body, task("guests"), id_set("bob"))
    assert opened(made).read()["n"].to_pylist() == [2, 3, 4, 5]


def test_lists_of_a_fixed_size() -> None:
    body = parquet_of(pa.table({"g": pa.array([["a", "bob"], None, ["c", "d"]], pa.list_(pa.string(), 2))}))
    assert rewrite(parquet, body, task("g"), id_set("bob"))[1] == (3, 1)


def test_maps_by_key_and_by_value_and_structs_within_lists() -> None:
    type_ = pa.map_(pa.string(), pa.list_(pa.struct([("guest", pa.string())])))
    rows = [[("x", [{"guest": "bob"}])], [("bob", [{"guest": "ann"}])], [("y", None)], None]
    body = parquet_of(pa.table({"n": range(4), "m": pa.array(rows, type_)}))
    assert opened(rewrite(parquet, body, task("m.guest"), id_set("bob"))[0]).read()["n"].to_pylist() == [1, 2, 3]
    keys = task("m", map_part="key")
    assert opened(rewrite(parquet, body, keys, id_set("bob"))[0]).read()["n"].to_pylist() == [0, 2, 3]


class TestSetNull:
    SCHEMA: Any = pa.schema(
        [
            pa.field("u", pa.struct([pa.field("guest", pa.string()), pa.field("age", pa.int8())])),
            pa.field("mail", pa.string()),
            pa.field("n", pa.int8(), nullable=False),
            pa.field("tags", pa.list_(pa.struct([("x", pa.string())]))),
        ]
    )
    ROWS: ClassVar[list[Any]] = [
        {"u": {"guest": "bob", "age": 1}, "mail": "b", "n": 1, "tags": None},
        {"u": None, "mail": "c", "n": 2, "tags": []},
        {"u": {"guest": "ann", "age": 3}, "mail": None, "n": 3, "tags": [{"x": "y"}]},
    ]

    def test_in_the_rows_that_match_and_once(self) -> None:
        body = parquet_of(pa.Table.from_pylist(self.ROWS, self.SCHEMA))
        what = task("u.guest", set_null=["mail", "u.age", "tags"])
        made, counts = rewrite(parquet, body, what, id_set("bob"))
        assert counts == (3, 1)
        nulled = {"u": {"guest": "bob", "age": None}, "mail": None, "n": 1, "tags": None}
        assert opened(made).read().to_pylist() == [nulled, *self.ROWS[1:]]
        assert find(parquet, made, what, id_set("bob")).matched_rows == 0

    @pytest.mark.parametrize(
        ("column", "told"),
        [("n", "'n' is required"), ("nothing", "no column 'nothing'"), ("tags.x", "outside of lists and maps")],
    )
    def test_is_refused_where_it_cannot_be(self, column: str, told: str) -> None:
        body = parquet_of(pa.Table.from_pylist(self.ROWS, self.SCHEMA))
        with pytest.raises(PurgeError, match=told):
            find(parquet, body, task("u.guest", set_null=[column]), id_set("zoe"))


class TestWhatIsRefused:
    @pytest.mark.parametrize("length", [0, 3, 50, -1, -9])
    def test_a_file_that_is_cut_off(self, length: int) -> None:
        with pytest.raises(PurgeError, match="damaged, or no Parquet"):
            find(parquet, parquet_of(FULL)[:length], task("guest"), id_set("g1"))

    def test_a_file_whose_pages_are_damaged(self) -> None:
        body = bytearray(parquet_of(FULL, compression="zstd", use_dictionary=False))
        body[40:400] = bytes(360)
        with pytest.raises(PurgeError, match="damaged"):
            find(parquet, bytes(body), task("guest"), id_set("g1"))

    def test_another_column_or_type(self) -> None:
        body = parquet_of(FULL)
        with pytest.raises(PurgeError, match="there is no column 'who'"):
            find(parquet, body, task("who"), id_set("g1"))
        with pytest.raises(PurgeError, match="'n' is int32, and the ids are strings"):
            find(parquet, body, task("n"), id_set("1"))
        with pytest.raises(PurgeError, match=r"there is no column 'guest\.x'"):
            find(parquet, body, task("guest.x"), id_set("1"))

    @pytest.mark.parametrize("has_plain_footer", [True, False])
    def test_an_encrypted_file(self, *, has_plain_footer: bool) -> None:
        body = encrypted(FULL, has_plain_footer=has_plain_footer)
        with pytest.raises(PurgeError, match="encrypted"):
            find(parquet, body, task("guest"), id_set("g1"))
