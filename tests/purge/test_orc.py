"""ORC: what a rewritten file keeps, and what is refused."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import orc as plain

from refstore_purge.formats import orc
from refstore_purge.purge_error import PurgeError
from tests.purge.looking import find, id_set, rewrite, task

pytestmark = pytest.mark.usefixtures("own_temporary_folder")
pyorc: Any = import_module("pyorc")
GUEST = task("guest")

ROWS = 200_000


def written(*tables: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    with plain.ORCWriter(out, stripe_size=1, batch_size=ROWS, **options) as writer:
        for table in tables:  # a stripe each, if they fill a block
            writer.write(table)
    return out.getvalue()


def written_rows(schema: Any, *rows: tuple[Any, ...], **options: Any) -> bytes:
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


def numbers(start: int, count: int) -> Any:
    rows = range(start, start + count)
    return pa.table({"n": pa.array(rows, pa.int64()), "guest": [f"g{number * 7919 % 10_007}" for number in rows]})


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_a_rewritten_file_is_like_the_old_one_but_for_its_rows(codec: str) -> None:
    body = written(
        numbers(0, 60_000), numbers(60_000, 30_000), compression=codec, row_index_stride=5000, bloom_filter_columns=[2]
    )
    made, counts = rewrite(orc, body, task("guest"), id_set("g0", "g7919", "nobody"))
    old, new = plain.ORCFile(io.BytesIO(body)), plain.ORCFile(io.BytesIO(made))
    assert counts.matched_rows == sum(name in ("g0", "g7919") for name in old.read()["guest"].to_pylist())
    assert new.read().equals(old.read().filter(~pc.field("guest").isin(["g0", "g7919"])))
    for name in ("compression", "compression_size", "row_index_stride", "file_version", "nstripes", "schema"):
        assert getattr(new, name) == getattr(old, name), name
    assert [new.read_stripe(number).num_rows > 29_000 for number in range(2)] == [True, True]
    assert tuple(pyorc.Reader(io.BytesIO(made)).read_stripe(0).bloom_filter_columns) == (2,)


@pytest.mark.parametrize("codec", [pyorc.CompressionKind.NONE, pyorc.CompressionKind.ZLIB, pyorc.CompressionKind.ZSTD])
def test_user_metadata_stays(codec: Any) -> None:
    """Spark writes its version there."""
    out = io.BytesIO()
    with pyorc.Writer(out, "struct<guest:string>", compression=codec, compression_block_size=65_536) as writer:
        writer.writerows([("bob",), ("ann",)])
        writer.set_user_metadata(**{"org.apache.spark.version": b"4.1.0", "long": b"x" * 200_000})
    made, _ = rewrite(orc, out.getvalue(), task("guest"), id_set("bob"))
    reader: Any = pyorc.Reader(io.BytesIO(made))
    assert list(reader) == [("ann",)]
    assert reader.user_metadata == {"org.apache.spark.version": b"4.1.0", "long": b"x" * 200_000}


def test_a_file_without_rows_left_keeps_its_schema() -> None:
    body = written(numbers(0, 10))
    made, _ = rewrite(orc, body, task("n"), id_set(*range(10), kind="integer"))
    assert str(pyorc.Reader(io.BytesIO(made)).schema) == "struct<n:bigint,guest:string>"
    assert rewrite(orc, made, task("n"), id_set(1, kind="integer"))[1] == (0, 0)


def test_columns_are_set_to_null() -> None:
    table = pa.table({"guest": ["bob", "ann"], "u": pa.array([{"a": 1, "b": "x"}, None])})
    made, _ = rewrite(orc, written(table), task("guest", set_null=["u.a"]), id_set("bob"))
    assert plain.ORCFile(io.BytesIO(made)).read().to_pylist() == [
        {"guest": "bob", "u": {"a": None, "b": "x"}},
        {"guest": "ann", "u": None},
    ]


def test_a_union_beside_the_identifier_stays_and_is_not_set_to_null() -> None:
    rows = [(("bob", 1),), (None,), (("ann", "x"),), (("zoe", None),)]
    body = written_rows("struct<s:struct<guest:string,u:uniontype<int,string>>>", *rows)
    assert rows_of(rewrite(orc, body, task("s.guest"), id_set("bob"))[0]) == rows[1:]
    with pytest.raises(PurgeError, match=r"column 's\.u' is a union"):
        rewrite(orc, body, task("s.guest", set_null=["s.u"]), id_set("bob"))


@pytest.mark.parametrize("length", [0, 3, 50, -1, -20])
def test_a_file_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(PurgeError, match="damaged, or no ORC"):
        find(orc, written(numbers(0, 1000))[:length], task("guest"), id_set("g1"))


class TestTimes:
    SCHEMA = "struct<guest:string,at:struct<times:array<timestamp>>>"

    def body(self, *times: Any) -> bytes:
        gone = ("bob", ([datetime(1950, 1, 1, 0, 0, 0, 500_000, UTC)],))
        return written_rows(self.SCHEMA, gone, ("ann", (list(times),)))

    @pytest.mark.parametrize(
        "time",
        [
            datetime(1960, 1, 1, 0, 0, 0, 1, UTC),
            datetime(1969, 12, 31, 23, 59, 58, 999_999, UTC),
            datetime(2300, 1, 1, tzinfo=UTC),
            datetime(1600, 1, 1, tzinfo=UTC),
        ],
    )
    def test_that_pyarrow_cannot_write_stay(self, time: datetime) -> None:
        made, _ = rewrite(orc, self.body(time), task("guest"), id_set("bob"))
        assert list(pyorc.Reader(io.BytesIO(made))) == [("ann", ([time],))]

    def test_that_pyarrow_cannot_read_are_refused_beside_the_identifier(self) -> None:
        row = ([("bob", datetime(2300, 1, 1, tzinfo=UTC))],)
        body = written_rows("struct<people:array<struct<guest:string,at:timestamp>>>", row)
        with pytest.raises(PurgeError, match="before 1677 or after 2262"):
            rewrite(orc, body, task("people.guest"), id_set("bob"))

    def test_that_can_be_written_stay(self) -> None:
        """Also where a row that goes has another one."""
        times = [datetime(1960, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 0, 1, UTC), None]
        made, _ = rewrite(orc, self.body(*times), task("guest"), id_set("bob"))
        assert list(pyorc.Reader(io.BytesIO(made))) == [("ann", (times,))]


def test_a_block_size_that_pyarrow_does_not_write_stays() -> None:
    body = bytearray(written(numbers(0, 10), compression="zlib", compression_block_size=65_536))
    at = body.rindex(b"\x18\x80\x80\x04")  # of the postscript, field 3
    body[at : at + 4] = b"\x18\xf0\xa2\x04"
    assert plain.ORCFile(io.BytesIO(bytes(body))).compression_size == 70_000
    made, counts = rewrite(orc, bytes(body), task("n"), id_set(1, kind="integer"))
    assert (counts, plain.ORCFile(io.BytesIO(made)).compression_size) == ((10, 1), 70_000)


def test_strings_that_are_not_utf_8_are_refused_where_pyorc_writes() -> None:
    texts = pa.array([b"\xff\xfe", b"x"], pa.binary()).view(pa.string())
    columns = {"guest": ["bob", "ann"], "t": texts}
    assert rewrite(orc, written(pa.table(columns)), task("guest"), id_set("bob"))[1] == (2, 1)
    times = {**columns, "at": pa.array([1, 2], pa.timestamp("ns"))}
    with pytest.raises(PurgeError, match="strings that are not UTF-8"):
        rewrite(orc, written(pa.table(times)), task("guest"), id_set("ann"))


def test_timestamps_of_a_time_zone_that_is_not_known_are_refused() -> None:
    row = ("bob", datetime(2020, 1, 1, tzinfo=UTC))
    plain_rows = written_rows("struct<guest:string,at:timestamp>", row, compression=pyorc.CompressionKind.NONE)
    body = plain_rows.replace(b"\x03UTC", b"\x03XYZ")
    assert b"\x03XYZ" in body
    with pytest.raises(PurgeError, match="timestamps of the time zone 'XYZ', which is not known here"):
        rewrite(orc, body, task("guest"), id_set("bob"))


def test_no_byte_of_a_row_that_goes_stays() -> None:
    rows = [("bob-secret", "secret@x"), ("ann", "a@x")]
    body = written_rows("struct<guest:string,mail:string>", *rows, compression=pyorc.CompressionKind.NONE)
    assert b"bob-secret" in body
    made, _ = rewrite(orc, body, GUEST, id_set("bob-secret"))
    assert b"bob-secret" not in made
    assert b"secret@x" not in made
    nulled, _ = rewrite(orc, body, task("guest", set_null=["mail"]), id_set("bob-secret"))
    assert b"secret@x" not in nulled


class TestColumns:
    def test_strings_that_are_no_utf_8(self) -> None:
        values = pa.array([b"\xff\xfe", b"bob"]).cast(pa.string(), safe=False)
        assert find(orc, of_arrow(guest=values), GUEST, id_set("bob")).matched_rows == 1

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
        body = written_rows("struct<guest:string,n:int,l:array<struct<x:int>>>", ("ann", 1, []))
        with pytest.raises(PurgeError, match=told):
            find(orc, body, what, id_set("bob"))
        with pytest.raises(PurgeError, match=told):
            rewrite(orc, body, what, id_set("bob"))

    def test_a_name_with_a_dot_is_not_taken_for_a_field_of_a_struct(self) -> None:
        fields = of_arrow(**{"user.guest": ["zzz"], "user": pa.array([{"guest": "bob"}])})
        assert find(orc, fields, task("user.guest"), id_set("bob")).matched_rows == 1

    def test_set_to_null_once(self) -> None:
        body = written_rows("struct<guest:string,l:array<string>,m:map<string,int>>", ("bob", ["a"], {"k": 1}))
        what = task("guest", set_null=["l", "m"])
        made, counts = rewrite(orc, body, what, id_set("bob"))
        assert counts == (1, 1)
        assert rows_of(made) == [("bob", None, None)]
        assert find(orc, made, what, id_set("bob")).matched_rows == 0


def test_the_block_size_of_a_file_that_is_not_compressed_means_nothing() -> None:
    body = written_rows("struct<guest:string>", ("ann",), ("bob",), compression=pyorc.CompressionKind.NONE)
    assert b"\x18\x80\x80\x04" in body[-40:]  # 65,536
    made, counts = rewrite(
        orc, body[:-40] + body[-40:].replace(b"\x18\x80\x80\x04", b"\x18\xa0\x8d\x06"), task("guest"), id_set("bob")
    )
    assert (rows_of(made), counts) == ([("ann",)], (2, 1))


def test_a_type_that_cannot_be_kept_is_named() -> None:
    """Hive 0.11 wrote decimals so, and pyarrow takes them for others."""
    body = written_rows("struct<guest:string,d:decimal(0,0)>")
    with pytest.raises(PurgeError, match=r"columns as they are: 'd' \(decimal\(0,0\)\)"):
        rewrite(orc, body, task("guest"), id_set("bob"))
