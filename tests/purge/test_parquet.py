"""Parquet: what a rewritten file keeps, and what is refused."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats import parquet
from refstore_purge.purge_error import PurgeError
from tests.purge.looking import encrypted, find, id_set, parquet_of, rewrite, task

pytestmark = pytest.mark.usefixtures("own_temporary_folder")
GUEST = task("guest")


def opened(body: bytes, **options: Any) -> Any:
    return pq.ParquetFile(io.BytesIO(body), **options)


FULL: Any = pa.table({"guest": [f"g{number % 9}" for number in range(900)], "n": pa.array(range(900), pa.int32())})


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


CATEGORY: Any = pa.dictionary(pa.int32(), pa.string())


class TestNoByteOfARowThatGoesStays:
    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            (pa.dictionary(pa.int8(), pa.binary()), b"secret@x"),
            (pa.struct([("mail", CATEGORY)]), {"mail": "secret@x"}),
            (pa.map_(pa.string(), CATEGORY), [("k", "secret@x")]),
            (pa.map_(CATEGORY, pa.int8()), [("secret@x", 1)]),
            (pa.large_list(CATEGORY), ["secret@x"]),
            (pa.list_(CATEGORY, 1), ["secret@x"]),
            (pa.list_(pa.struct([("mail", pa.list_(CATEGORY))])), [{"mail": ["secret@x"]}]),
            (pa.list_view(CATEGORY), ["secret@x"]),
        ],
    )
    def test_of_categories_in_any_type(self, type_: Any, value: Any) -> None:
        table = pa.table({"guest": ["bob", "ann"], "v": pa.array([value, None], type_)})
        body = parquet_of(table, compression="none")
        assert b"secret@x" in body
        made, counts = rewrite(parquet, body, GUEST, id_set("bob"))
        assert counts == (2, 1)
        assert b"secret@x" not in made
        assert opened(made).schema_arrow.equals(opened(body).schema_arrow, check_metadata=True)

    def test_of_columns_set_to_null(self) -> None:
        table = pa.table(
            {
                "guest": ["bob", "ann"],
                "mail": ["secret@x", "a@x"],
                "category": pa.array(["secret@x", "a@x"]).dictionary_encode(),
                "user": pa.array([{"mail": "secret@x"}, {"mail": "a@x"}]),
                "mails": [["secret@x"], ["a@x"]],
            }
        )
        what = task("guest", set_null=["mail", "category", "user.mail", "mails"])
        made, counts = rewrite(parquet, parquet_of(table, compression="none"), what, id_set("bob"))
        assert counts == (2, 1)
        assert b"secret@x" not in made


class TestStatistics:
    @pytest.mark.parametrize(
        ("type_", "numbers"),
        [
            (pa.uint64(), [2**63 + 5, 3]),
            (pa.uint32(), [2**31 + 5, 2**31 + 9]),
            (pa.uint8(), [200, 255]),
            (pa.int64(), [-(2**63), 2**63 - 1]),
            (pa.int8(), [-128, 127]),
        ],
    )
    def test_integers_with_and_without_sign_are_found(self, type_: Any, numbers: list[int]) -> None:
        body = parquet_of(pa.table({"guest": pa.array(numbers, type_)}))
        for number in numbers:
            wanted = id_set(number, kind="integer", type_=pa.uint64() if number >= 2**63 else pa.int64())
            assert find(parquet, body, GUEST, wanted) == (2, 1, "column")

    def test_binary_is_ordered_by_its_bytes(self) -> None:
        body = parquet_of(pa.table({"guest": pa.array([b"\x00", b"\xff"])}))
        assert find(parquet, body, GUEST, id_set(b"\xff", kind="binary")) == (2, 1, "column")
        assert find(parquet, body, GUEST, id_set(b"\xff\x00", kind="binary")) == (2, 0, "statistics")

    def test_a_file_without_them_is_read(self) -> None:
        body = parquet_of(pa.table({"guest": ["a", "b"]}), write_statistics=False)
        assert find(parquet, body, GUEST, id_set("z")) == (2, 0, "column")

    def test_those_of_lists_are_not_used(self) -> None:
        body = parquet_of(pa.table({"guest": [["a"], ["b"]]}))
        assert find(parquet, body, GUEST, id_set("z")) == (2, 0, "column")

    def test_strings_that_are_no_utf_8(self) -> None:
        """Writers that take bytes for strings make them, and then the statistics are no text either."""
        values = pa.array([b"\xff\xfe", b"bob"]).cast(pa.string(), safe=False)
        assert find(parquet, parquet_of(pa.table({"guest": values})), GUEST, id_set("bob")).matched_rows == 1

    @pytest.mark.parametrize("other", ["zzz", 5])
    def test_those_of_a_column_whose_name_has_a_dot_are_not_taken_for_a_field_of_a_struct(self, other: Any) -> None:
        body = parquet_of(pa.table({"user.guest": [other], "user": pa.array([{"guest": "bob"}])}))
        assert find(parquet, body, task("user.guest"), id_set("bob")).matched_rows == 1


class TestSetNullOfEachType:
    def test_of_the_identifier_itself(self) -> None:
        what = task("guest", set_null=["guest"])
        made, counts = rewrite(parquet, parquet_of(pa.table({"guest": ["ann", "bob"]})), what, id_set("bob"))
        assert counts == (2, 1)
        assert opened(made).read()["guest"].to_pylist() == ["ann", None]
        assert find(parquet, made, what, id_set("bob")).matched_rows == 0

    def test_of_the_struct_that_has_the_identifier(self) -> None:
        rows = [{"guest": "ann", "age": 1}, {"guest": "bob", "age": 2}, None]
        what = task("user.guest", set_null=["user", "user.age"])
        made, counts = rewrite(parquet, parquet_of(pa.table({"user": pa.array(rows)})), what, id_set("bob"))
        assert counts == (3, 1)
        assert opened(made).read()["user"].to_pylist() == [{"guest": "ann", "age": 1}, None, None]

    def test_of_a_field_beside_a_required_one_in_a_struct_that_is_null_elsewhere(self) -> None:
        user = pa.struct([pa.field("id", pa.int32(), nullable=False), pa.field("mail", pa.string())])
        rows = [{"guest": "ann", "user": None}, {"guest": "bob", "user": {"id": 1, "mail": "b@x"}}]
        body = parquet_of(pa.Table.from_pylist(rows, pa.schema([("guest", pa.string()), ("user", user)])))
        made, _ = rewrite(parquet, body, task("guest", set_null=["user.mail"]), id_set("bob"))
        assert opened(made).read().to_pylist() == [rows[0], {"guest": "bob", "user": {"id": 1, "mail": None}}]

    def test_of_a_column_by_which_the_file_is_sorted(self) -> None:
        """A file that says it is sorted, and is not, makes readers skip rows."""
        table = pa.table({"guest": ["a", "b", "c"], "day": ["1", "2", "3"]})
        body = parquet_of(table, sorting_columns=[pq.SortingColumn(1)])
        made, _ = rewrite(parquet, body, task("guest", set_null=["day"]), id_set("b"))
        assert opened(made).read()["day"].to_pylist() == ["1", None, "3"]
        assert not opened(made).metadata.row_group(0).sorting_columns


class TestNested:
    def test_lists_of_lists(self) -> None:
        body = parquet_of(pa.table({"guest": [[["a"], None, ["bob"]], [["c"]], [], None]}))
        assert rewrite(parquet, body, GUEST, id_set("bob"))[1] == (4, 1)

    def test_what_lies_below_null_is_nothing(self) -> None:
        lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array(["bob", "bob"]), mask=pa.array([True, False]))
        assert rewrite(parquet, parquet_of(pa.table({"guest": lists})), GUEST, id_set("bob"))[1] == (2, 1)

    def test_a_map_of_lists_by_value(self) -> None:
        maps = pa.array([[("bob", ["x"])], [("y", ["bob", None])], []], pa.map_(pa.string(), pa.list_(pa.string())))
        body = parquet_of(pa.table({"n": range(3), "guest": maps}))
        made, _ = rewrite(parquet, body, GUEST, id_set("bob"))
        assert opened(made).read()["n"].to_pylist() == [0, 2]


def test_a_row_group_that_loses_all_its_rows_goes_and_the_others_stay() -> None:
    body = parquet_of(pa.table({"guest": ["a"] * 4 + ["b"] * 4 + ["c"] * 4}), row_group_size=4)
    made, counts = rewrite(parquet, body, GUEST, id_set("b"))
    assert counts == (12, 4)
    groups = [opened(made).read_row_group(number)["guest"].to_pylist() for number in range(2)]
    assert groups == [["a"] * 4, ["c"] * 4]
    assert opened(made).num_row_groups == 2
