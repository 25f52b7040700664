"""Avro files that are damaged, or made to do harm: a run leaves them with the reason, and so does `verify`."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
import zlib
from typing import Any

import pytest

from refstore_purge.formats import avro, avro_container
from refstore_purge.purge_error import PurgeError
from tests.purge.avro_files import (
    PACK,
    SYNC,
    block,
    header,
    header_of_pairs,
    number,
    outcomes,
    read,
    record_of,
    sized,
    written,
)
from tests.purge.looking import find, id_set, rewrite, task

WHO = record_of(("who", "string"))
DAMAGED = "it is damaged, or no Avro"
HUGE = number(2**60)


def nested(depth: int) -> Any:
    type_: Any = "string"
    for _ in range(depth):
        type_ = {"type": "array", "items": type_}
    return record_of(("who", "string"), ("x", type_))


def many_types() -> Any:
    """Return a schema of 20 names that stand for 10^20 types, none of which takes a byte."""
    inner: Any = "null"
    for level in range(20):
        name = inner if level == 0 else f"r{level - 1}"
        fields = [{"name": f"f{at}", "type": name if at else inner} for at in range(10)]
        inner = {"type": "record", "name": f"r{level}", "fields": fields}
    return record_of(("who", "string"), ("x", inner))


BOB = sized(b"bob")
FILES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", DAMAGED),
    "another format": (b"PAR1" * 10, DAMAGED),
    "no header": (b"Obj\x01", DAMAGED),
    "a huge number of entries": (b"Obj\x01" + HUGE + b"\x02a\x02b", DAMAGED),
    "a huge entry": (b"Obj\x01" + number(1) + HUGE, DAMAGED),
    "an entry of negative size": (b"Obj\x01" + number(1) + number(-4), DAMAGED),
    "an entry twice": (header_of_pairs([(b"avro.schema", json.dumps(WHO).encode()), *[(b"a", b"1")] * 2]), "twice"),
    "no schema": (header_of_pairs([(b"avro.codec", b"null")]), "it has no Avro schema"),
    "no JSON": (header(b'{"type":'), "is no JSON"),
    "no UTF-8": (header(b"\xff\xfe{}"), "is no JSON"),
    "JSON that is deep": (header(b"[" * 100_000), "is no JSON, or nested too deep"),
    "a schema that is deep": (header(nested(200)), "nested more than 100 deep"),
    "names for 10^20 types": (header(many_types()), "more than 100,000 types"),
    "no record": (header("string"), "is no record but string"),
    "a union": (header([WHO]), "is no record but union"),
    "a type of numbers": (header(record_of(("who", 7))), "something that is no type"),
    "an unknown type": (header(record_of(("who", "guid"))), "no type 'guid'"),
    "a fixed type without a size": (header(record_of(("who", {"type": "fixed", "name": "f"}))), "lacks a part"),
    "a field without a name": (header({**WHO, "fields": [{"type": "string"}]}), "lacks a part"),
    "a type twice": (header(record_of(("who", "string"), ("x", WHO))), "type 'event' twice"),
    "a field twice": (header(record_of(("who", "string"), ("who", "int"))), "a field twice"),
    "a union of unions": (header(record_of(("who", ["null", ["string"]]))), "a union of nothing, or of unions"),
    "a type that contains itself": (
        header(record_of(("who", "string"), ("next", ["null", "event"])))
        + block(1, BOB + b"\x02\x06bob" * 99_999 + b"\0"),
        "type 'event' of its Avro schema contains itself",
    ),
    "elements without bytes": (
        header(record_of(("who", "string"), ("x", {"type": "array", "items": "null"}))) + block(1, BOB + HUGE + b"\0"),
        "an array of elements that take no bytes",
    ),
    "an unknown codec": (header(WHO, codec=b"lz4") + block(1, BOB), "codec 'lz4' is none of null, deflate"),
    "another sync marker": (header(WHO) + block(1, BOB, bytes(16)), DAMAGED),
    "a block of negative size": (header(WHO) + number(1) + number(-7) + SYNC, DAMAGED),
    "a block of huge size": (header(WHO) + number(1) + HUGE + BOB, DAMAGED),
    "a huge number of records": (header(WHO) + block(2**60, BOB), DAMAGED),
    "a negative number of records": (header(WHO) + block(-1, BOB), DAMAGED),
    "records without bytes": (header(record_of(("who", "null"))) + block(2**60, b""), "rows, which is more"),
    "less records than it says": (header(WHO) + block(2, BOB), DAMAGED),
    "more records than it says": (header(WHO) + block(1, BOB + BOB), DAMAGED),
    "a text behind the block's end": (header(WHO) + block(1, number(30) + b"bob"), DAMAGED),
    "a text of huge size": (header(WHO) + block(1, HUGE + b"bob"), DAMAGED),
    "a text of negative size": (header(WHO) + block(1, number(-2) + b"bob"), DAMAGED),
    "a number without end": (
        header(record_of(("who", "string"), ("n", "long"))) + block(1, BOB + b"\xff" * 30), DAMAGED
    ),
    "a huge array": (
        header(record_of(("who", "string"), ("x", {"type": "array", "items": "double"})))
        + block(1, BOB + HUGE + bytes(80)),
        DAMAGED,
    ),
    "a huge array of ids": (
        header(record_of(("who", {"type": "array", "items": {"type": "fixed", "name": "f", "size": 3}})))
        + block(1, HUGE + b"bob" * 9),
        DAMAGED,
    ),
    "an unknown branch": (header(record_of(("who", ["null", "string"]))) + block(1, number(7) + BOB), DAMAGED),
    "an unknown symbol": (
        header(record_of(("who", {"type": "enum", "name": "e", "symbols": ["bob"]}))) + block(1, number(5)), DAMAGED
    ),
    "a wrong checksum": (
        header(WHO, codec=b"snappy") + block(1, PACK["snappy"](BOB)[:-4] + bytes(4)), "the checksum"
    ),
    **{
        f"half a block of {codec}": (header(WHO, codec=codec.encode()) + block(9, PACK[codec](BOB * 9)[:-9]), DAMAGED)
        for codec in ("deflate", "bzip2", "xz", "zstandard")
    },
    "a block that says to be large": (
        header(WHO, codec=b"snappy") + block(9, b"\x80\x80\x80\x80\x04" + bytes(30)), "more than 256 MiB"
    ),
}  # fmt: skip
READ_ON: dict[str, bytes] = {
    "an array's wrong size": header(record_of(("who", {"type": "array", "items": "string"})))
    + block(2, number(-1) + number(7) + BOB + b"\0" + number(-1) + number(9) + sized(b"ann") + b"\0"),
    "a negative branch": header(record_of(("who", ["null", "string"])))
    + block(2, number(-1) + BOB + number(1) + sized(b"ann")),
}
"""Files that are wrong in a way of which fastavro says nothing."""
NOT_SEEN = {"a wrong checksum"}
"""Of what is wrong there fastavro says nothing to `verify`, which reads on."""
WITHOUT_ROWS = {"a schema that is deep", "names for 10^20 types", "a union of unions"}


@pytest.mark.parametrize("name", FILES)
def test_what_is_wrong_is_told(name: str) -> None:
    body, told = FILES[name]
    kind: Any = "binary" if name == "a huge array of ids" else "string"
    outcome = outcomes(body, task("who"), id_set(b"bob" if kind == "binary" else "bob", kind=kind))
    assert outcome.run is None
    assert told in outcome.reasons[0]
    assert "bob" not in outcome.reasons[0]
    assert outcome.verify == (0 if name in WITHOUT_ROWS else 1 if name in NOT_SEEN else None)


@pytest.mark.parametrize("name", READ_ON)
def test_what_fastavro_reads_on_goes_as_all_that_it_reads(name: str) -> None:
    body = READ_ON[name]
    assert outcomes(body, task("who"), id_set("bob"))[:2] == (1, 1)
    new, counts = rewrite(avro, body, task("who"), id_set("bob"))
    assert (counts, [str(row["who"]).strip("[']") for row in read(new)]) == ((2, 1), ["ann"])
    assert rewrite(avro, body, task("who"), id_set("eve")) == (body, (2, 0))


@pytest.mark.parametrize("codec", ["bzip2", "xz"])
def test_something_behind_a_compressed_block_is_damage(codec: str) -> None:
    body = header(WHO, codec=codec.encode()) + block(1, PACK[codec](BOB) + b"more")
    with pytest.raises(PurgeError, match=DAMAGED):
        find(avro, body, task("who"), id_set("bob"))


def test_a_number_that_is_none_keeps_its_bits() -> None:
    schema = record_of(("who", ["null", "string"]), ("x", "float"), ("y", "double"))
    signaling = b"\x01\0\x80\x7f" + b"\x01\0\0\0\0\0\xf0\x7f"
    body = header(schema) + block(1, number(1) + BOB + signaling)
    new, _ = rewrite(avro, body, task("who", set_null=["who"]), id_set("bob"))
    assert new == header(schema) + block(1, number(0) + signaling)


def test_a_record_costs_all_types_of_its_schema() -> None:
    """fastavro goes through them for each record, so a few bytes of many types would be work without end."""
    several = [{"name": f"f{at}", "type": ["int", "string"]} for at in range(30_000)]
    wide = ["null", {"type": "record", "name": "wide", "fields": several}]
    body = header(record_of(("who", "string"), ("x", wide)), codec=b"deflate")
    body += block(4000, PACK["deflate"](b"\0\0" * 4000)) * 9000
    with pytest.raises(PurgeError, match=r"values, which is more than"):
        find(avro, body, task("who"), id_set("bob"))


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_a_small_block_with_large_content_is_not_unpacked(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr(avro_container, "BLOCK_BYTES_MAX", 1 << 20)
    body = header(WHO, codec=codec.encode()) + block(9, PACK[codec](bytes(64 << 20)))
    tracemalloc.start()
    try:
        outcome = outcomes(body, task("who"), id_set("bob"))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert outcome[:2] == (None, None)


def test_a_file_that_was_cut_off() -> None:
    """Cut behind a block it is a file of less blocks, and nobody can tell."""
    body = written(
        record_of(("who", "string"), ("n", "int")), [{"who": "bob", "n": at} for at in range(30)], block_bytes=40
    )
    whole = {at for at in range(len(body) + 1) if body[:at].endswith(SYNC)}
    assert len(whole) > 3
    for at in range(len(body)):
        outcome = outcomes(body[:at], task("who"), id_set("bob"))
        assert outcome[0] == outcome[1]
        assert (outcome.run is not None) == (at in whole), at


@pytest.mark.parametrize("codec", PACK)
def test_damage_is_never_taken_for_a_clean_file(codec: str) -> None:
    """Random bytes change: what is read is read alike by both, and nothing but a reason is raised."""
    rng = random.Random(codec)
    schema = record_of(
        ("n", ["null", "long", "double"]),
        ("who", ["null", {"type": "array", "items": ["null", "string"]}]),
        ("by", {"type": "map", "values": "bytes"}),
    )
    rows = [{"n": rng.choice([None, 1, 2.5]), "who": ["bob", None], "by": {"a": b"c"}} for _ in range(20)]
    plain = written(schema, rows)
    start = plain.index(SYNC) + 16
    data = plain[start:].split(SYNC)[0][3:]
    assert len(data) > 100
    refused = 0
    for _ in range(150):
        changed = bytearray(data if rng.random() < 0.7 else PACK[codec](data))
        is_inside = len(changed) == len(data) and changed == data
        for _ in range(rng.randrange(1, 3)):
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        packed = PACK[codec](bytes(changed)) if is_inside else bytes(changed)
        body = header(schema, codec=codec.encode()) + block(20, packed)
        outcome = outcomes(body, task("who"), id_set("bob"))
        refused += outcome.run is None
        assert outcome.run == outcome.verify or None in outcome[:2], outcome
        assert outcome.run is None or outcome.verify is not None, outcome
    assert refused > 15


def test_blocks_of_arrays_with_sizes() -> None:
    """Java writes them where an array does not fit its buffer."""
    schema = record_of(("who", {"type": "array", "items": "string"}), ("by", {"type": "map", "values": "int"}))
    items = number(-2) + number(8) + BOB + sized(b"ann") + number(1) + sized(b"eve") + b"\0"
    pairs = number(-1) + number(5) + sized(b"bob") + b"\x02" + number(1) + sized(b"x") + b"\x04" + b"\0"
    body = header(schema) + block(2, items + pairs + b"\0\0")
    assert read(body) == [{"who": ["bob", "ann", "eve"], "by": {"bob": 1, "x": 2}}, {"who": [], "by": {}}]
    for what in (task("who"), task("by", map_part="key")):
        new, counts = rewrite(avro, body, what, id_set("bob"))
        assert (counts, new) == ((2, 1), header(schema) + block(1, b"\0\0"))
        assert outcomes(body, what, id_set("bob"))[:2] == (1, 1)


def test_a_header_in_several_parts() -> None:
    schema = json.dumps(WHO, indent=3).encode()
    first = sized(b"avro.schema") + sized(schema)
    second = sized(b"bob") + sized(b"") + sized(b"z") + sized(b"\xff\0")
    body = (
        b"Obj\x01"
        + number(-1)
        + number(len(first))
        + first
        + number(2)
        + second
        + b"\0"
        + SYNC
        + block(1, sized(b"ann"))
    )
    assert rewrite(avro, body, task("who"), id_set("eve")) == (body, (1, 0))
    new, _ = rewrite(avro, body, task("who"), id_set("bob"))
    assert new == header_of_pairs([(b"avro.schema", schema), (b"z", b"\xff\0")]) + block(1, sized(b"ann"))
    assert avro.find(io.BytesIO(body), task("who"), id_set("bob")).matched_entries == 1


def test_names_are_found_as_the_specification_says() -> None:
    inner = {"type": "record", "name": "a", "fields": [{"name": "guest", "type": "string"}]}
    schema = {
        "type": "record", "name": "shop.event", "fields": [
            {"name": "first", "type": inner},
            {"name": "second", "type": "a"},
            {"name": "third", "type": {"type": "record", "name": "b", "namespace": "other", "fields": [
                {"name": "x", "type": "shop.a"},
                {"name": "y", "type": {"type": "fixed", "name": "a", "size": 1}},
                {"name": "z", "type": ["null", "a"]}]}},
            {"name": "fourth", "type": {"type": "array", "items": {"type": "other.a"}}},
        ],
    }  # fmt: skip
    who = {"guest": "bob"}
    row = {"first": who, "second": who, "third": {"x": who, "y": b"1", "z": b"2"}, "fourth": [b"3"]}
    assert json.dumps(schema).count('{"type": "other.a"}') == 1  # which Java reads, and fastavro does not
    plain = json.loads(json.dumps(schema).replace('{"type": "other.a"}', '"other.a"'))
    rows = written(plain, [row]).split(SYNC, 1)[1]
    # `verify` reads with fastavro, so it says of such a schema that it cannot look
    for head, by_verify in ((header(plain), 1), (header(schema), None)):
        for name in ("first.guest", "second.guest", "third.x.guest"):
            assert outcomes(head + rows, task(name), id_set("bob"))[:2] == (1, by_verify)
        assert find(avro, head + rows, task("third.z"), id_set(b"2", kind="binary")).matched_rows == 1
        assert outcomes(head + rows, task("fourth"), id_set(b"3", kind="binary"))[:2] == (1, by_verify)


def test_texts_that_are_no_utf_8_match_nothing_and_stay() -> None:
    body = header(WHO) + block(3, sized(b"\xff\xfe") + BOB + sized(b"\xed\xa0\x80"))
    new, counts = rewrite(avro, body, task("who"), id_set("bob"))
    assert (counts.matched_rows, new) == (1, header(WHO) + block(2, sized(b"\xff\xfe") + sized(b"\xed\xa0\x80")))
    assert outcomes(body, task("who"), id_set("bob"))[:2] == (1, 1)


def test_a_compressed_block_depends_on_its_records_alone() -> None:
    """All attempts at an object must write the same."""
    body = written(WHO, [{"who": f"g{at}"} for at in range(99)], codec="deflate")
    made = {rewrite(avro, body, task("who"), id_set("g7"))[0] for _ in range(3)}
    assert len(made) == 1
    assert zlib.decompress(made.pop().split(SYNC)[1][4:], -15)[:3] == sized(b"g0")


def test_a_target_is_not_read_where_a_file_fails_late() -> None:
    body = header(WHO) + block(1, BOB) + block(1, b"\x7f")
    with pytest.raises(PurgeError, match=DAMAGED):
        avro.rewrite(io.BytesIO(body), io.BytesIO(), task("who"), id_set("bob"))
