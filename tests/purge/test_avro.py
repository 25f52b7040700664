"""Avro: what stays of a file keeps its bytes, however deep the identifier lies and whatever lies beside it."""

from __future__ import annotations

import datetime
import io
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from refstore_purge.formats import avro
from refstore_purge.formats.base import FormatTask
from refstore_purge.purge_error import PurgeError
from tests.purge.avro_files import (
    PACK,
    block,
    blocks,
    header,
    header_of,
    logical,
    metadata_of,
    outcomes,
    read,
    record_of,
    sized,
    texts,
    written,
)
from tests.purge.looking import find, id_set, rewrite, task

GUESTS = [f"guest-{number}" for number in range(30)] + ["", "größe", "x" * 100]
GONE = ["guest-3", "guest_3", "größe", "x" * 100]
METADATA = {"shop": "s1", "zebra": "last", "alpha": "first"}
UTC = datetime.UTC
AT = datetime.datetime(1960, 2, 29, 1, 2, 3, 456_000, UTC)


def fields(called: str, **types: Any) -> dict[str, Any]:
    pairs = [{"name": name, "type": type_} for name, type_ in types.items()]
    return {"type": "record", "name": called, "fields": pairs}


BESIDE: list[tuple[str, Any, Callable[[random.Random], Any]]] = [
    ("nothing", "null", lambda _: None),
    ("flag", "boolean", lambda rng: rng.random() < 0.5),
    ("small", "int", lambda rng: rng.randrange(-(2**31), 2**31)),
    ("large", ["null", "long"], lambda rng: rng.choice([None, 0, -1, 2**63 - 1, -(2**63)])),
    ("single", "float", lambda rng: rng.choice([0.0, -0.0, float("nan"), float("inf"), 1.5])),
    ("double", "double", lambda rng: rng.choice([0.0, float("nan"), -float("inf"), 1e300])),
    ("text", ["string", "null"], lambda rng: rng.choice([None, "", "guest-3", "ö" * 90])),
    ("bytes", "bytes", lambda rng: rng.randbytes(rng.randrange(150))),
    ("fixed", {"type": "fixed", "name": "four", "size": 4}, lambda rng: rng.randbytes(4)),
    ("again", ["null", "four"], lambda rng: rng.choice([None, b"abcd"])),
    ("color", {"type": "enum", "name": "color", "symbols": ["red", "blue"]}, lambda rng: rng.choice(["red", "blue"])),
    ("day", logical("int", "date"), lambda _: datetime.date(1960, 2, 29)),
    ("millis", logical("long", "timestamp-millis"), lambda _: AT),
    ("micros", logical("long", "timestamp-micros"), lambda _: AT),
    ("local_millis", logical("long", "local-timestamp-millis"), lambda _: AT.replace(tzinfo=None)),
    ("local_micros", logical("long", "local-timestamp-micros"), lambda _: AT.replace(tzinfo=None)),
    ("time_millis", logical("int", "time-millis"), lambda _: datetime.time(1, 2, 3)),
    ("time_micros", logical("long", "time-micros"), lambda _: datetime.time(1, 2, 3)),
    ("money", logical("bytes", "decimal", precision=9, scale=2), lambda _: Decimal("-12.34")),
    ("fixed_money", logical("fixed", "decimal", precision=9, scale=2, name="m", size=5), lambda _: Decimal("-12.34")),
    ("uuid", logical("string", "uuid"), lambda _: UUID(int=7)),
    ("duration", logical("fixed", "duration", name="duration", size=12), lambda rng: rng.randbytes(12)),
    ("unknown", logical("string", "unheard of"), lambda _: "x"),
    ("list", {"type": "array", "items": ["null", "long"]}, lambda rng: [None, 1] * rng.randrange(40)),
    ("doubles", {"type": "array", "items": "double"}, lambda rng: [1.5] * rng.randrange(3)),
    (
        "map",
        {"type": "map", "values": {"type": "array", "items": {"type": "map", "values": "string"}}},
        lambda rng: {"guest-3": [{"b": "c"}, {}], "": []} if rng.random() < 0.5 else {},
    ),
    (
        "inner",
        ["null", fields("inner", a="int", who="string")],
        lambda rng: rng.choice([None, {"a": 1, "who": "guest-3"}]),
    ),
    (
        "several",
        ["null", "long", "string", "inner"],
        lambda rng: rng.choice([None, 5, "x", {"a": 2, "who": "guest-3"}]),
    ),
]  # fmt: skip


def guest(rng: random.Random) -> str:
    return rng.choice(GUESTS)


USER = {**fields("user", n="int", guest=["null", "string"]), "namespace": "shop.users"}
Shape = tuple[str, str, Any, Callable[[random.Random], tuple[Any, list[str]]]]


def one(value: Any) -> tuple[Any, list[str]]:
    return value, [value]


def user(name: str | None) -> dict[str, Any]:
    return {"n": 1, "guest": name}


def some(rng: random.Random, form: Callable[[list[str]], Any]) -> tuple[Any, list[str]]:
    names = [guest(rng) for _ in range(rng.randrange(3))]
    return form(names), names


SHAPES: dict[str, Shape] = {
    "required": ("who", "value", "string", lambda rng: one(guest(rng))),
    "optional": ("who", "value", ["null", "string"], lambda rng: rng.choice([(None, []), one(guest(rng))])),
    "null behind": ("who", "value", ["string", "null"], lambda rng: rng.choice([(None, []), one(guest(rng))])),
    "record": ("who.guest", "value", USER, lambda rng: (user(name := guest(rng)), [name])),
    "optional record": (
        "who.guest", "value", ["null", USER],
        lambda rng: rng.choice([(None, []), (user(None), []), (user("guest-3"), ["guest-3"])]),
    ),
    "array": ("who", "value", {"type": "array", "items": "string"}, lambda rng: some(rng, list)),
    "array of records": (
        "who.guest", "value", {"type": "array", "items": ["null", USER]},
        lambda rng: some(rng, lambda names: [None, *map(user, names)]),
    ),
    "keys": (
        "who", "key", {"type": "map", "values": USER},
        lambda rng: some(rng, lambda names: {name: user("guest-3") for name in names}),
    ),
    "values": (
        "who", "value", {"type": "map", "values": ["null", "string"]},
        lambda rng: some(rng, lambda names: {"guest-3": None} | {str(at): name for at, name in enumerate(names)}),
    ),
    "records in maps": (
        "who.guest", "value", ["null", {"type": "map", "values": {"type": "array", "items": USER}}],
        lambda rng: some(rng, lambda names: {"guest-3": [], "b": list(map(user, names))}),
    ),
    "one or many": (
        "who", "value", ["null", "string", {"type": "array", "items": "string"}],
        lambda rng: rng.choice([(None, []), one(guest(rng)), some(rng, list)]),
    ),
    "records of several types": (
        "who.guest", "value",
        ["null", USER, fields("other", m="double"), fields("third", guest="string")],
        lambda rng: rng.choice(
            [(None, []), (("shop.users.user", user("guest-3")), ["guest-3"]), (("other", {"m": 1.5}), []),
             (("third", {"guest": "größe"}), ["größe"])]
        ),
    ),
    "enum": (
        "who", "value", {"type": "enum", "name": "some", "symbols": ["ann", "guest_3"]},
        lambda rng: one(rng.choice(["ann", "guest_3"])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_rows_that_stay_keep_their_bytes_and_blocks(shape: str, codec: str) -> None:
    identifier, map_part, type_, make = SHAPES[shape]
    rng = random.Random(f"{shape} {codec}")
    at = rng.randrange(len(BESIDE))
    schema = record_of(
        *((name, kind) for name, kind, _ in BESIDE[:at]), ("who", type_), *((n, k) for n, k, _ in BESIDE[at:])
    )
    made = [make(rng) for _ in range(300)]
    rows = [{"who": who, **{name: value(rng) for name, _, value in BESIDE}} for who, _ in made]
    body = written(schema, rows, codec=codec, block_bytes=4000, metadata=METADATA)
    stays = [not set(GONE).intersection(ids) for _, ids in made]
    what = task(identifier, map_part=map_part)
    new, counts = rewrite(avro, body, what, id_set(*GONE))
    assert counts == (300, stays.count(False))
    assert texts(new) == [text for text, does_stay in zip(texts(body), stays, strict=True) if does_stay]
    assert header_of(new) == header_of(body)
    at = 0
    kept: list[bytes | None] = []
    for number, raw in zip(blocks_of_rows(body), blocks(body), strict=True):
        mine = stays[at : at + number]
        at += number
        kept += [raw if all(mine) else None] if any(mine) else []
    assert [raw if same else same for same, raw in zip(kept, blocks(new), strict=True)] == kept
    assert 0 < stays.count(False) < 300
    assert outcomes(body, what, id_set(*GONE))[:2] == (counts.matched_rows, counts.matched_rows)
    assert outcomes(new, what, id_set(*GONE))[:2] == (0, 0)


def blocks_of_rows(body: bytes) -> list[int]:
    found: Any = fastavro.block_reader(io.BytesIO(body))
    return [each.num_records for each in found]


@pytest.mark.parametrize("codec", PACK)
def test_every_codec_is_read_and_written(codec: str) -> None:
    """Others read what is written: fastavro and Polars here, and Java where Spark runs."""
    texts = [sized(f"g{number}".encode()) for number in range(100)]
    body = header(record_of(("who", "string")), codec=codec.encode()) + b"".join(
        block(20, PACK[codec](b"".join(texts[start : start + 20]))) for start in range(0, 100, 20)
    )
    new, counts = rewrite(avro, body, task("who"), id_set("g7", "g50"))
    assert counts == (100, 2)
    every = id_set(*(f"g{number}" for number in range(100)))
    assert find(avro, new, task("who"), every) == (98, 98, "column")
    assert outcomes(body, task("who"), every)[:2] == (100, 100)
    assert outcomes(new, task("who"), every)[:2] == (98, 98)
    assert outcomes(new, task("who"), id_set("g7", "g50"))[:2] == (0, 0)
    if codec in ("null", "deflate", "bzip2", "xz"):
        assert [row["who"] for row in read(new)] == [f"g{number}" for number in range(100) if number not in (7, 50)]


FIXED = {"type": "fixed", "name": "id", "size": 16}


class TestKindsOfIds:
    @pytest.mark.parametrize("type_", ["int", "long", ["null", "int", "long"]])
    def test_integers(self, type_: Any) -> None:
        body = written(record_of(("who", type_)), [{"who": value} for value in (-1, 0, 64, 2**31 - 1, -(2**31))])
        new, counts = rewrite(avro, body, task("who"), id_set(-1, 64, 2**31 - 1, kind="integer"))
        assert (counts.matched_rows, read(new)) == (3, [{"who": 0}, {"who": -(2**31)}])
        assert outcomes(body, task("who"), id_set(-1, 0, kind="integer"))[:2] == (2, 2)

    @pytest.mark.parametrize("type_", ["bytes", FIXED, {**FIXED, "logicalType": "uuid"}])
    def test_bytes(self, type_: Any) -> None:
        rows = [{"who": UUID(int=number).bytes} for number in range(3)]
        stripped = {**type_, "logicalType": "none"} if isinstance(type_, dict) else type_
        body = written(record_of(("who", stripped)), rows).replace(b'"none"', b'"uuid"')
        wanted = id_set(UUID(int=1).bytes, b"short", kind="binary")
        assert rewrite(avro, body, task("who"), wanted)[1] == (3, 1)
        assert outcomes(body, task("who"), wanted)[:2] == (1, 1)
        if isinstance(type_, dict):
            assert avro.schema_of(io.BytesIO(body)).field("who").type == pa.binary(16)

    def test_enums_and_texts_that_are_uuids(self) -> None:
        enum = {"type": "enum", "name": "kind", "symbols": ["ann", "bob"]}
        uuid = {"type": "string", "logicalType": "uuid"}
        body = written(
            record_of(("who", enum), ("id", uuid)),
            [{"who": "ann", "id": UUID(int=1)}, {"who": "bob", "id": UUID(int=2)}],
        )
        assert read(rewrite(avro, body, task("who"), id_set("bob"))[0])[0]["who"] == "ann"
        assert rewrite(avro, body, task("id"), id_set(str(UUID(int=2))))[1] == (2, 1)
        assert outcomes(body, task("who"), id_set("bob"))[:2] == (1, 1)

    @pytest.mark.parametrize(
        ("type_", "told"),
        [
            ("double", "column 'who' is double, and the ids are strings"),
            ({"type": "int", "logicalType": "date"}, "column 'who' is date32"),
            ({"type": "long", "logicalType": "timestamp-micros"}, "column 'who' is timestamp"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "column 'who' is decimal"),
            (["null", "long"], "column 'who' is int64, and the ids are strings; give ids of its type"),
            (USER, "column 'who' is struct<n: int32"),
        ],
    )
    def test_other_types_are_refused(self, type_: Any, told: str) -> None:
        body = written(record_of(("who", type_)), [])
        outcome = outcomes(body, task("who"), id_set("bob"))
        assert outcome[:2] == (None, 0)  # there are no rows
        assert told in outcome.reasons[0]

    def test_a_column_of_nulls_has_nobody(self) -> None:
        body = written(record_of(("who", "null"), ("n", "int")), [{"who": None, "n": 1}] * 3)
        assert rewrite(avro, body, task("who"), id_set("bob")) == (body, (3, 0))
        only = written(record_of(("who", "null")), [{"who": None}] * 3)
        assert rewrite(avro, only, task("who"), id_set("bob")) == (only, (3, 0))
        assert outcomes(only, task("who"), id_set("bob"))[:2] == (0, 0)


class TestSeveralTypesAtTheIdentifier:
    TYPE: ClassVar[Any] = ["null", "string", "long", USER]

    def test_values_of_the_ids_type_are_looked_up(self) -> None:
        body = written(record_of(("who", self.TYPE)), [{"who": "bob"}, {"who": None}, {"who": "ann"}])
        assert rewrite(avro, body, task("who"), id_set("bob"))[1] == (3, 1)
        assert outcomes(body, task("who"), id_set("bob"))[:2] == (1, 1)

    @pytest.mark.parametrize("value", [7, {"n": 1, "guest": "bob"}])
    def test_a_value_of_another_type_fails_the_file(self, value: Any) -> None:
        body = written(record_of(("who", self.TYPE)), [{"who": "ann"}, {"who": value}])
        outcome = outcomes(body, task("who"), id_set("bob"))
        assert outcome[:2] == (None, None)
        assert "column 'who' has values that are" in outcome.reasons[0]

    @pytest.mark.parametrize("type_", [["string"], ["string", "long"], ["long", "string", "double"]])
    def test_a_union_without_null(self, type_: Any) -> None:
        body = written(
            record_of(("who", type_), ("n", ["long", "string"])), [{"who": who, "n": 1} for who in ("ann", "bob")]
        )
        assert outcomes(body, task("who"), id_set("bob"))[:2] == (1, 1)
        assert outcomes(body, task("who"), id_set("ann", "bob", "eve"))[:2] == (2, 2)

    def test_a_type_with_the_name_in_another_case_fails_the_file(self) -> None:
        body = written(
            record_of(("who", [fields("a", guest="string"), fields("b", GUEST="string")])),
            [{"who": ("b", {"GUEST": "bob"})}],
        )
        outcome = outcomes(body, task("who.guest"), id_set("bob"))
        assert outcome[:2] == (None, None)
        assert "in another case only" in outcome.reasons[0]


class TestSetNull:
    SCHEMA = record_of(
        ("n", "int"),
        ("mail", ["null", "string"]),
        ("who", ["null", USER]),
        ("phone", ["string", "null"]),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    )

    def rows(self) -> list[Any]:
        at = datetime.datetime(2020, 1, 1, tzinfo=UTC)
        return [
            {"n": 1, "mail": "m", "who": {"n": 2, "guest": "bob"}, "phone": "p" * 100, "at": at},
            {"n": 2, "mail": "m", "who": {"n": 2, "guest": "ann"}, "phone": "p", "at": at},
            {"n": 3, "mail": None, "who": {"n": 2, "guest": "bob"}, "phone": None, "at": at},
            {"n": 4, "mail": "m", "who": None, "phone": "p", "at": at},
        ]

    def test_only_these_values_change(self) -> None:
        body = written(self.SCHEMA, self.rows(), codec="deflate", block_bytes=30)
        what = task("who.guest", set_null=["mail", "phone"])
        new, counts = rewrite(avro, body, what, id_set("bob"))
        expected = self.rows()
        expected[0] |= {"mail": None, "phone": None}
        assert (counts, read(new)) == ((4, 1), expected)
        assert len(list(blocks(new))) == len(list(blocks(body)))
        assert outcomes(body, what, id_set("bob"), ["mail", "phone"])[:2] == (1, 1)
        assert outcomes(new, what, id_set("bob"), ["mail", "phone"])[:2] == (0, 0)

    def test_the_identifier_and_what_lies_around_it(self) -> None:
        body = written(self.SCHEMA, self.rows())
        for nulls, changed in (
            (["who.guest"], {"n": 2, "guest": None}),
            (["who"], None),
            (["who.guest", "who"], None),
        ):
            new, counts = rewrite(avro, body, task("who.guest", set_null=nulls), id_set("bob"))
            expected = self.rows()
            expected[0]["who"] = expected[2]["who"] = changed
            assert (counts, read(new)) == ((4, 2), expected)

    def test_everything_beside_them_is_stored_as_it_was(self) -> None:
        rng = random.Random(7)
        either = ["null", "int", "long", "float", "double", "bytes", "string"]
        schema = record_of(
            ("mail", ["null", "string"]), ("either", either), *((name, kind) for name, kind, _ in BESIDE)
        )
        values = [None, ("int", 5), ("long", 5), ("float", 1.5), ("double", 1.5), ("bytes", b"a"), ("string", "a")]
        rows = [
            {"mail": f"m{at % 3}", "either": values[at % 7], **{name: value(rng) for name, _, value in BESIDE}}
            for at in range(70)
        ]
        nulled = [row | {"mail": None} if row["mail"] == "m1" else row for row in rows]
        body = written(schema, rows, block_bytes=1 << 30)
        new, counts = rewrite(avro, body, task("mail", set_null=["mail"]), id_set("m1"))
        assert (counts, new) == ((70, 23), written(schema, nulled, block_bytes=1 << 30))

    def test_a_column_that_is_required_in_one_of_its_types_is_refused(self) -> None:
        """Else what stands there would stay."""
        types = [fields("a", mail="string"), fields("b", mail=["null", "long"])]
        body = written(record_of(("who", "string"), ("x", types)), [{"who": "bob", "x": ("a", {"mail": "m"})}])
        with pytest.raises(PurgeError, match="required in some of its types"):
            find(avro, body, task("who", set_null=["x.mail"]), id_set("bob"))

    def test_what_cannot_be_null_is_refused(self) -> None:
        body = written(self.SCHEMA, self.rows())
        for name, told in (
            ("n", "column 'n' is required"),
            ("who.n", "column 'who.n' is required"),
            ("x", "no column 'x'"),
        ):
            outcome = outcomes(body, task("who.guest", set_null=[name]), id_set("bob"), [name])
            assert (outcome.run, outcome.verify) == (None, None if name == "x" else 2)
            assert told in outcome.reasons[0]

    def test_where_the_partition_tells(self) -> None:
        body = written(self.SCHEMA, self.rows())
        what = FormatTask(("guest",), set_null=(("mail",),), matches_every_row=True)
        new, counts = rewrite(avro, body, what, id_set("bob"))
        assert (counts, [row["mail"] for row in read(new)]) == ((4, 3), [None] * 4)
        assert outcomes(body, what, id_set("bob"), ["mail"])[:2] == (3, 3)


def test_where_the_partition_tells_no_row_is_left() -> None:
    body = written(
        record_of(("n", "int")), [{"n": number} for number in range(1000)], block_bytes=100, metadata=METADATA
    )
    what = FormatTask(("guest",), matches_every_row=True)
    assert find(avro, body, what, id_set("bob")) == (1000, 1000, "partition")
    assert rewrite(avro, body, what, id_set("bob")) == (header_of(body), (1000, 1000))
    assert outcomes(body, what, id_set("bob"))[:2] == (1000, 1000)


class TestMetadata:
    ROWS = ({"who": "ann"}, {"who": "eve"})

    def test_entries_with_an_id_go_and_the_rest_keeps_its_order(self) -> None:
        schema = record_of(("who", "string"))
        body = written(
            schema,
            self.ROWS,
            codec="deflate",
            metadata={"zebra": "1", "owner": "bob", "bob": "x", "alpha": "about bob"},
        )
        assert outcomes(body, task("who"), id_set("bob"))[:2] == (0, 0)
        new, counts = rewrite(avro, body, task("who"), id_set("bob"))
        assert (counts, read(new)) == ((2, 0), list(self.ROWS))
        left = [name for name in metadata_of(body) if name not in ("owner", "bob")]
        assert list(metadata_of(new)) == left
        assert metadata_of(new) == {name: metadata_of(body)[name] for name in left}
        assert list(blocks(new)) == list(blocks(body))
        assert avro.find(io.BytesIO(body), task("who"), id_set("bob")).matched_entries == 2

    def test_what_avro_needs_is_no_entry(self) -> None:
        body = written(record_of(("who", "string")), self.ROWS, codec="deflate")
        wanted = id_set("deflate", "avro.codec", "avro.schema")
        assert rewrite(avro, body, task("who"), wanted) == (body, (2, 0))
        assert avro.find(io.BytesIO(body), task("who"), wanted).matched_entries == 0


def test_a_missing_column_is_told_with_its_like() -> None:
    body = written(record_of(("Who", USER)), [])
    with pytest.raises(PurgeError, match=r"no column 'who.guest', but 'Who.guest', in another case"):
        find(avro, body, task("who.guest"), id_set("bob"))
    with pytest.raises(PurgeError, match=r"no column 'Who.x'"):
        find(avro, body, task("Who.x"), id_set("bob"))


def test_a_large_block_is_looked_at_in_parts() -> None:
    rows = [{"who": f"g{number}", "n": number} for number in range(50_000)]
    body = written(record_of(("who", "string"), ("n", ["null", "int"])), rows, block_bytes=1 << 30)
    assert blocks_of_rows(body) == [50_000]
    wanted = {f"g{number}" for number in (0, 19_999, 20_000, 49_999)}
    new, counts = rewrite(avro, body, task("who"), id_set(*wanted))
    assert (counts, read(new)) == ((50_000, 4), [row for row in rows if row["who"] not in wanted])
    assert blocks_of_rows(new) == [49_996]
    nulled, counts = rewrite(avro, body, task("who", set_null=["n"]), id_set(*wanted))
    assert (counts, read(nulled)) == ((50_000, 4), [row | {"n": None} if row["who"] in wanted else row for row in rows])


@pytest.mark.parametrize("branches", [["string", "long"], ["long", {"type": "array", "items": ["int", "string"]}]])
def test_unions_of_several_types_without_null_stay_as_they_are(branches: Any) -> None:
    body = written(record_of(("who", "string"), ("x", branches)), [{"who": "ann", "x": 1}, {"who": "bob", "x": 2}])
    outcome = outcomes(body, task("who"), id_set("bob"))
    assert (outcome.run, outcome.verify) == (outcome.run, 1)
    assert outcome.run is not None
