"""The file of ids: what is read from Parquet and CSV, and what is refused without a word about an id."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from refstore.errors import Invalid
from refstore_purge import ids_file
from refstore_purge.formats.base import IdKind
from refstore_purge.ids_form import IdsFormOptions
from refstore_purge.purge_ids import IdSet
from refstore_purge.untyped_pandas import pa, pq


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def load(
    folder: Path, ids: Any, *, id_type: str = "", empty_id: bool = False, **options: Any
) -> tuple[IdKind, list[Any]]:
    """Write a file, of CSV or JSON lines if it is bytes, and return what is loaded from it."""
    file = folder / "ids.file"
    if isinstance(ids, bytes):
        file.write_bytes(ids)
    else:
        pq.write_table(pa.table(ids), file)
    form = IdsFormOptions(**options)
    read = ids_file.load_ids(file, folder / "written", form=form, id_type=id_type, empty_id=empty_id)
    made = IdSet(folder / "written")
    values = made.values.to_pylist()
    assert read.ids == made.count == len(values)
    return made.kind, sorted(values)


class TestParquet:
    @pytest.mark.parametrize(
        ("values", "kind", "expected"),
        [
            (pa.array(["b", None, "a", "b"]), "string", [b"a", b"b"]),
            (pa.array(["a", "b" * 30], pa.string_view()), "string", [b"a", b"b" * 30]),
            (pa.array(["a"], pa.large_string()), "string", [b"a"]),
            (pa.array(["a", None, "a"]).dictionary_encode(), "string", [b"a"]),
            (pa.array([3, -1, None], pa.int8()), "integer", [Decimal(-1), Decimal(3)]),
            (pa.array([2**64 - 1], pa.uint64()), "integer", [Decimal(2**64 - 1)]),
            (pa.array([b"\xff", b""]), "binary", [b"\xff"]),
            (pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
        ],
    )
    def test_has_its_own_types(self, folder: Path, values: Any, kind: IdKind, expected: list[Any]) -> None:
        assert load(folder, {"id": values}) == (kind, expected)

    @pytest.mark.parametrize(
        ("values", "id_type", "expected"),
        [
            (pa.array(["7", "-8", None]), "integer", [Decimal(-8), Decimal(7)]),
            (pa.array(["7", "8"]).dictionary_encode(), "integer", [Decimal(7), Decimal(8)]),
            (pa.array([7, None]), "string", [b"7"]),
            (pa.array([2**64 - 1], pa.uint64()), "string", [b"18446744073709551615"]),
            (pa.array([b"ab"], pa.binary(2)), "string", [b"ab"]),
            (pa.array(["ä"]), "binary", ["ä".encode()]),
            (pa.array([7]), "binary", [b"7"]),
        ],
    )
    def test_is_compared_as_told(self, folder: Path, values: Any, id_type: IdKind, expected: list[Any]) -> None:
        assert load(folder, {"id": values}, id_type=id_type) == (id_type, expected)

    def test_of_many_row_groups_is_read_whole(self, folder: Path) -> None:
        file = folder / "ids.parquet"
        pq.write_table(pa.table({"id": range(1000)}), file, row_group_size=10)
        assert ids_file.load_ids(file, folder / "written").ids == 1000

    @pytest.mark.parametrize("values", [[True], [1.5], [{"a": 1}], [["a"]], [Decimal(1)]])
    def test_of_other_types_is_refused(self, folder: Path, values: list[Any]) -> None:
        with pytest.raises(Invalid, match=r"the ids of ids\.file are .*; ids are strings, integers or binary"):
            load(folder, {"id": values})

    def test_a_column_whose_name_has_a_dot_is_not_taken_for_a_field_of_a_struct(self, folder: Path) -> None:
        columns = {"a": pa.array([{"b": "wrong"}]), "a.b": ["right"]}
        assert load(folder, columns, column="a.b") == ("string", [b"right"])


class TestCsv:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b"id\na\nb\na\n", [b"a", b"b"]),
            (b"id\r\na\r\nb", [b"a", b"b"]),
            (b"\xef\xbb\xbfid\n007\n7\n", [b"007", b"7"]),
            (b'id\n"a\nb"\n"x,""y"""\n', [b"a\nb", b'x,"y"']),
            (b"id\nNA\nnull\nNaN\ntrue\n1e3\n", [b"1e3", b"NA", b"NaN", b"null", b"true"]),
            (b"id\n\n\n7\n", [b"7"]),
            ("id\ngröße\n".encode(), ["größe".encode()]),
        ],
    )
    def test_has_strings(self, folder: Path, text: bytes, expected: list[bytes]) -> None:
        assert load(folder, text) == ("string", expected)

    def test_an_empty_field_is_null_and_a_quoted_one_is_empty(self, folder: Path) -> None:
        text = b'n,id\n1,""\n2,\n3,x\n'
        assert load(folder, text, column="id", empty_id=True) == ("string", [b"", b"x"])
        assert load(folder, text, column="id") == ("string", [b"x"])

    def test_columns_that_are_not_chosen_may_change_their_type_late(self, folder: Path) -> None:
        text = b"n,id\n" + b"1,2\n" * 300_000 + b"x,y\n"
        assert load(folder, text, column="id") == ("string", [b"2", b"y"])

    def test_is_compared_as_told(self, folder: Path) -> None:
        assert load(folder, b"id\n007\n-7\n", id_type="integer") == ("integer", [Decimal(-7), Decimal(7)])
        assert load(folder, b"id\na\n", id_type="binary") == ("binary", [b"a"])


class TestRefusals:
    @pytest.mark.parametrize(
        ("ids", "options", "told"),
        [
            (b"a,b\n1,2\n", {}, "ids.file has 2 columns; say which has the ids with --id-column; a CSV file begins"),
            (b"a,b\n1,2\n", {"column": "c"}, "ids.file has no column 'c'"),
            (b"id,id\n1,2\n", {"column": "id"}, "ids.file has more than one column 'id'"),
            ({"a": [1], "b": [2]}, {}, "2 columns"),
            ({"a": [1]}, {"column": "b"}, "no column 'b'"),
            (b"id\n1\n", {"id_type": "text"}, "'text' is no type of ids; use string, integer, binary, uuid"),
            ({"id": [b"7"]}, {"id_type": "integer"}, "binary ids are no integers"),
            (b"", {}, "ids.file is empty"),
            (b"\n\n", {}, "ids.file is empty"),
            (b"PAR1", {}, "begins like Parquet and cannot be read"),
        ],
    )
    def test_say_what_to_do(self, folder: Path, ids: Any, options: dict[str, str], told: str) -> None:
        with pytest.raises(Invalid) as raised:
            load(folder, ids, **options)
        assert told in str(raised.value)

    @pytest.mark.parametrize(
        ("ids", "options"),
        [
            (b"id\nsecret-7\n", {"id_type": "integer"}),
            (b"id\n12345678901234567890123\n", {"id_type": "integer"}),
            (b"id\n1\nsecret-7,x\n", {}),
            (b"n,id\nsecret-7\n", {"column": "id"}),
            (b"id\nsecret-7\xff\n", {}),
            ({"id": ["secret-7"]}, {"id_type": "integer"}),
            ({"id": pa.array(["secret-7"]).dictionary_encode()}, {"id_type": "integer"}),
            ({"id": [b"secret-7\xff"]}, {"id_type": "string"}),
        ],
    )
    def test_name_no_id(self, folder: Path, ids: Any, options: dict[str, str]) -> None:
        with pytest.raises(Invalid, match=r"the ids of ids\.file cannot be read") as raised:
            load(folder, ids, **options)
        assert not any(word in str(raised.value) for word in ("secret", "1234567"))
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__

    def test_of_csv_without_a_header_name_no_id(self, folder: Path) -> None:
        with pytest.raises(Invalid) as raised:
            load(folder, b"secret-7,x\nsecret-8,y\n")
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize("text", [b"0x10", b"1.0", b"1e3", b" 1"])
    def test_of_what_is_no_integer(self, folder: Path, text: bytes) -> None:
        with pytest.raises(Invalid, match="a value cannot be converted"):
            load(folder, b"id\n" + text + b"\n", id_type="integer")

    def test_of_parquet_do_not_say_that_it_is_none(self, folder: Path) -> None:
        with pytest.raises(Invalid) as raised:
            load(folder, {"id": [b"\xff"]}, id_type="string")
        assert "a value cannot be converted" in str(raised.value)

    def test_of_a_damaged_file(self, folder: Path) -> None:
        file = folder / "ids.parquet"
        table = pa.table({"id": [f"secret-{number}" for number in range(99)]})
        pq.write_table(table, file, compression="snappy", use_dictionary=False)
        body = bytearray(file.read_bytes())
        body[30:500] = b"\xff" * 470
        file.write_bytes(body)
        with pytest.raises(Invalid, match=r"the ids of ids\.parquet cannot be read") as raised:
            ids_file.load_ids(file, folder / "written")
        assert "secret" not in str(raised.value)

    def test_of_a_folder_or_nothing(self, folder: Path) -> None:
        with pytest.raises(Invalid, match="cannot be read: Is a directory"):
            ids_file.load_ids(folder, folder / "written")
        with pytest.raises(Invalid, match="cannot be read: No such file"):
            ids_file.load_ids(folder / "gone", folder / "written")
