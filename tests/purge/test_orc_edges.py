"""Files in which an ORC rewrite could lose, keep or overlook what it must not."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any

import pytest

from refstore_purge.formats import orc
from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import orc as plain
from refstore_purge.untyped_pandas import pa
from tests.purge.looking import find, id_set, rewrite, task

pyorc: Any = import_module("pyorc")

GUEST = task("guest")


pytestmark = pytest.mark.usefixtures("own_temporary_folder")


def written(schema: Any, *rows: tuple[Any, ...], **options: Any) -> bytes:
    out = io.BytesIO()
    with pyorc.Writer(out, schema, **options) as writer:
        writer.writerows(rows)
    return out.getvalue()


def of_arrow(**columns: Any) -> bytes:
    out = io.BytesIO()
    plain.write_table(pa.table(columns), out)
    return out.getvalue()


def rows_of(body: bytes) -> list[Any]:
    return list(pyorc.Reader(io.BytesIO(body)))


def test_every_type_that_can_be_kept_keeps_its_values() -> None:
    schema = (
        "struct<guest:string,a:boolean,b:tinyint,c:smallint,d:int,e:bigint,f:float,g:double,h:binary,i:date,"
        "j:decimal(20,4),k:decimal(5,0),l:array<string>,m:map<string,int>,n:struct<x:int,y:string>>"
    )
    values = (True, -3, 300, 70_000, 2**40, 1.5, 2.5, b"\xff", date(9999, 12, 31), Decimal("123.4567"), Decimal(12_345))
    nested = (["a", None], {"k": 1}, (1, "y"))
    nothing = (None,) * (len(values) + len(nested))
    rows = [("bob", *values, *nested), ("ann", *values, *nested), ("zoe", *nothing)]
    made, counts = rewrite(orc, written(schema, *rows), GUEST, id_set("bob"))
    assert counts == (3, 1)
    assert rows_of(made) == rows[1:]
    assert str(pyorc.Reader(io.BytesIO(made)).schema) == schema


@pytest.mark.parametrize("type_", ["timestamp", "timestamp with local time zone"])
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2020, 2, 3, 4, 5, 6, 7, UTC),
        datetime(1900, 1, 1, tzinfo=UTC),
        datetime(1900, 1, 1, 0, 0, 0, 7, UTC),
        datetime(1500, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
    ],
)
def test_moments_are_kept(type_: str, moment: datetime) -> None:
    body = written(f"struct<guest:string,t:{type_}>", ("bob", moment), ("ann", moment))
    made, _ = rewrite(orc, body, GUEST, id_set("bob"))
    assert rows_of(made) == rows_of(body)[1:]


def test_attributes_of_columns_stay() -> None:
    """Iceberg has its fields' ids there."""
    schema = pyorc.Struct(guest=pyorc.String(), n=pyorc.Int())
    schema["guest"].set_attributes({"iceberg.id": "1"})
    made, _ = rewrite(orc, written(schema, ("bob", 1), ("ann", 2)), GUEST, id_set("bob"))
    assert pyorc.Reader(io.BytesIO(made)).schema["guest"].attributes == {"iceberg.id": "1"}


def test_no_byte_of_a_row_that_goes_stays() -> None:
    rows = [("bob-secret", "secret@x"), ("ann", "a@x")]
    body = written("struct<guest:string,mail:string>", *rows, compression=pyorc.CompressionKind.NONE)
    assert b"bob-secret" in body
    made, _ = rewrite(orc, body, GUEST, id_set("bob-secret"))
    assert b"bob-secret" not in made
    assert b"secret@x" not in made
    nulled, _ = rewrite(orc, body, task("guest", set_null=["mail"]), id_set("bob-secret"))
    assert b"secret@x" not in nulled


def test_a_file_without_a_row_index_stays_one() -> None:
    body = written("struct<guest:string>", ("bob",), ("ann",), row_index_stride=0)
    made, counts = rewrite(orc, body, GUEST, id_set("bob"))
    assert counts == (2, 1)
    assert plain.ORCFile(io.BytesIO(made)).read().to_pylist() == [{"guest": "ann"}]
    assert pyorc.Reader(io.BytesIO(made)).row_index_stride == 0


class TestColumns:
    def test_strings_that_are_no_utf_8(self) -> None:
        values = pa.array([b"\xff\xfe", b"bob"]).cast(pa.string(), safe=False)
        assert find(orc, of_arrow(guest=values), GUEST, id_set("bob")).matched_rows == 1

    def test_varchar_is_found(self) -> None:
        assert find(orc, written("struct<guest:varchar(9)>", ("bob",)), GUEST, id_set("bob")).matched_rows == 1

    @pytest.mark.parametrize(
        ("what", "told"),
        [
            (task("who"), "there is no column 'who'"),
            (task("guest.x"), "there is no column 'guest.x'"),
            (task("n"), "column 'n' is int32, and the ids are strings"),
            (task("guest", set_null=["who"]), "no column 'who' outside of lists and maps"),
            (task("guest", set_null=["l.x"]), "no column 'l.x' outside of lists and maps"),
        ],
    )
    def test_that_are_not_there_or_of_another_type_are_refused_by_both(self, what: Any, told: str) -> None:
        body = written("struct<guest:string,n:int,l:array<struct<x:int>>>", ("ann", 1, []))
        with pytest.raises(PurgeError, match=told):
            find(orc, body, what, id_set("bob"))
        with pytest.raises(PurgeError, match=told):
            rewrite(orc, body, what, id_set("bob"))

    def test_a_name_with_a_dot_is_not_taken_for_a_field_of_a_struct(self) -> None:
        fields = of_arrow(**{"user.guest": ["zzz"], "user": pa.array([{"guest": "bob"}])})
        assert find(orc, fields, task("user.guest"), id_set("bob")).matched_rows == 1

    def test_set_to_null_once(self) -> None:
        body = written("struct<guest:string,l:array<string>,m:map<string,int>>", ("bob", ["a"], {"k": 1}))
        what = task("guest", set_null=["l", "m"])
        made, counts = rewrite(orc, body, what, id_set("bob"))
        assert counts == (1, 1)
        assert rows_of(made) == [("bob", None, None)]
        assert find(orc, made, what, id_set("bob")).matched_rows == 0


def test_the_block_size_of_a_file_that_is_not_compressed_means_nothing() -> None:
    body = written("struct<guest:string>", ("ann",), ("bob",), compression=pyorc.CompressionKind.NONE)
    assert b"\x18\x80\x80\x04" in body[-40:]  # 65,536
    made, counts = rewrite(
        orc, body[:-40] + body[-40:].replace(b"\x18\x80\x80\x04", b"\x18\xa0\x8d\x06"), task("guest"), id_set("bob")
    )
    assert (rows_of(made), counts) == ([("ann",)], (2, 1))


def test_a_type_that_cannot_be_kept_is_named() -> None:
    """Hive 0.11 wrote decimals so, and pyarrow takes them for others."""
    body = written("struct<guest:string,d:decimal(0,0)>")
    with pytest.raises(PurgeError, match=r"columns as they are: 'd' \(decimal\(0,0\)\)"):
        rewrite(orc, body, task("guest"), id_set("bob"))
