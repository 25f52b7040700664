"""Ids in the key-value metadata of files."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest

from refstore_purge.formats import key_values, orc, parquet
from refstore_purge.formats.base import FormatTask, IdMatcher
from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import orc as arrow_orc
from refstore_purge.untyped_pandas import pa, pq
from tests.purge.looking import id_set, orc_of, parquet_of, task

GUEST = task("guest")


def footed(metadata: dict[Any, Any], guests: list[Any], type_: Any = None) -> bytes:
    """Return a file whose footer has this metadata, and no schema of Arrow."""
    out = io.BytesIO()
    table = pa.table({"guest": pa.array(guests, type_ or pa.string())})
    with pq.ParquetWriter(out, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    return out.getvalue()


def guests_table(metadata: dict[Any, Any], guests: list[Any], type_: Any = None) -> Any:
    return pa.table({"guest": pa.array(guests, type_ or pa.string())}).replace_schema_metadata(metadata)


def purged(module: Any, body: bytes, what: FormatTask, wanted: IdMatcher) -> tuple[bytes, tuple[int, int, int]]:
    """Rewrite, look again, and return the file and what was found."""
    found = module.find(io.BytesIO(body), what, wanted)
    target = io.BytesIO()
    made = module.rewrite(io.BytesIO(body), target, what, wanted)
    counts = (made.rows, made.matched_rows, made.matched_entries)
    assert counts == (found.rows, found.matched_rows, found.matched_entries)
    again = module.find(io.BytesIO(target.getvalue()), what, wanted)
    assert (again.matched_rows, again.matched_entries) == (0, 0)
    return target.getvalue(), counts


def metadata_of(body: bytes) -> dict[bytes, bytes]:
    return dict(pq.read_metadata(io.BytesIO(body)).metadata or {})


def test_an_entry_whose_value_is_an_id_goes_and_the_others_stay() -> None:
    body = parquet_of(guests_table({"owner": "bob", "bob": "x", "note": "bob and ann", "k": "v"}, ["ann", "cid"]))
    made, counts = purged(parquet, body, GUEST, id_set("bob"))
    assert counts == (2, 0, 3)  # with that of Arrow's schema, which repeats them
    assert pq.read_table(io.BytesIO(made)).column("guest").to_pylist() == ["ann", "cid"]
    assert metadata_of(made).keys() == {b"note", b"k", b"ARROW:schema"}
    assert pq.read_schema(io.BytesIO(made)).metadata == {b"note": b"bob and ann", b"k": b"v"}


def test_no_form_of_the_schema_keeps_the_id() -> None:
    nested = pa.struct([pa.field("x", pa.list_(pa.field("item", pa.int8(), metadata={"of": "bob-secret"})))])
    of_map = pa.map_(pa.string(), pa.field("value", pa.int8(), metadata={"bob-secret": "x"}))
    schema = pa.schema(
        [
            pa.field("guest", pa.large_string(), metadata={"seen": "bob-secret", "unit": "person"}),
            pa.field("nested", nested),
            pa.field("m", of_map),
            pa.field("t", pa.timestamp("us", "Europe/Berlin")),
        ],
        metadata={"mine": "bob-secret"},
    )
    rows = {"guest": ["bob-secret", "ann"], "nested": [{"x": [1]}, None], "m": [None, [("k", 1)]], "t": [1, 2]}
    body = parquet_of(pa.table(rows, schema=schema), compression="none")
    made, _ = purged(parquet, body, GUEST, id_set("bob-secret"))
    assert b"bob-secret" not in made
    assert b"bob-secret" not in base64.b64decode(metadata_of(made)[b"ARROW:schema"])
    kept = pq.read_schema(io.BytesIO(made))
    assert (kept.field("guest").type, kept.field("t").type) == (pa.large_string(), schema.field("t").type)
    assert kept.field("guest").metadata == {b"unit": b"person"}


def test_an_id_that_only_the_metadata_of_a_field_has() -> None:
    schema = pa.schema([pa.field("guest", pa.string()), pa.field("n", pa.int8(), metadata={"seen": "bob-secret"})])
    body = parquet_of(pa.table({"guest": ["ann"], "n": [1]}, schema=schema))
    made, counts = purged(parquet, body, GUEST, id_set("bob-secret"))
    assert counts == (1, 0, 1)
    assert b"bob-secret" not in base64.b64decode(metadata_of(made)[b"ARROW:schema"])


def test_an_id_that_cannot_be_taken_out_fails_the_file() -> None:
    items = pa.list_view(pa.field("item", pa.int8(), metadata={"of": "bob"}))
    entry = base64.b64encode(pa.schema([pa.field("v", items)]).serialize().to_pybytes())
    with pytest.raises(PurgeError, match="metadata of a nested column"):
        key_values.drop_ids({b"ARROW:schema": entry}, id_set("bob"), rows_changed=False)


HUDI = {
    "hoodie_min_record_key": "guest:ann,day:1",
    "hoodie_max_record_key": "guest:bob,day:2",
    "org.apache.hudi.bloomfilter": "AAAA",
    "hoodie_bloom_filter_type_code": "SIMPLE",
    "parquet.avro.schema": "{}",
}


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_what_hudi_says_of_the_keys_goes_with_the_rows(format_: str) -> None:
    module: Any = {"parquet": parquet, "orc": orc}[format_]
    guests = ["ann", "bob"]
    body = (
        footed(HUDI, guests)
        if format_ == "parquet"
        else orc_of({name: value.encode() for name, value in HUDI.items()}, *guests)
    )
    made, counts = purged(module, body, GUEST, id_set("bob"))
    assert counts == (2, 1, 1)
    kept = metadata_of(made) if format_ == "parquet" else arrow_orc.ORCFile(io.BytesIO(made)).metadata
    assert dict(kept) == {b"parquet.avro.schema": b"{}"}


def test_a_hudi_file_without_rows_of_the_ids_keeps_its_bloom_filter() -> None:
    body = footed(HUDI, ["ann"])
    made, counts = purged(parquet, body, GUEST, id_set("bob"))
    assert counts == (1, 0, 1)
    assert metadata_of(made).keys() == {each.encode() for each in HUDI} - {b"hoodie_max_record_key"}


@pytest.mark.parametrize(
    ("value", "is_id"), [("42", True), ("-7", True), ("042", False), ("+42", False), ("42.0", False), ("٤٢", False)]
)
def test_integers_are_ids_in_plain_digits(value: str, *, is_id: bool) -> None:
    body = footed({"hoodie_max_record_key": value}, [1], pa.int64())
    assert purged(parquet, body, GUEST, id_set(42, -7, kind="integer"))[1] == (1, 0, int(is_id))


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_a_small_number_in_what_holds_no_keys_is_nobodys(kind: Any) -> None:
    """`PARQUET:field_id` stands in Arrow's schema, too."""
    is_number = kind == "integer"
    field = pa.field("guest", pa.int64() if is_number else pa.string(), metadata={"PARQUET:field_id": "2"})
    schema = pa.schema([field], metadata={"format-version": "2", "2": "x", "hoodie_max_record_key": "guest:9"})
    body = parquet_of(pa.table({"guest": [1, 2] if is_number else ["1", "2"]}, schema=schema))
    made, counts = purged(parquet, body, GUEST, id_set(*((2, 9) if is_number else ("2", "9")), kind=kind))
    assert counts == (2, 1, 2)  # with that of Arrow's schema, which repeats it
    kept = pq.read_schema(io.BytesIO(made))
    assert kept.metadata == {b"format-version": b"2", b"2": b"x"}
    assert kept.field("guest").metadata == {b"PARQUET:field_id": b"2"}


def test_binary_ids_and_texts_that_are_no_utf_8() -> None:
    body = footed({b"last": b"\xff\xfe"}, [b"a"], pa.binary())
    assert purged(parquet, body, GUEST, id_set(b"\xff\xfe", kind="binary"))[1] == (1, 0, 1)
    body = footed({b"last": b"\xff\xfe"}, ["a"])
    assert purged(parquet, body, GUEST, id_set("bob"))[1] == (1, 0, 0)


def test_an_empty_value_is_nobodys() -> None:
    body = footed({"comment": ""}, ["ann"])
    assert purged(parquet, body, GUEST, id_set(""))[1] == (1, 0, 0)


def test_a_file_without_rows_and_one_whose_partition_is_the_id() -> None:
    body = footed({"owner": "bob"}, [])
    assert purged(parquet, body, GUEST, id_set("bob"))[1] == (0, 0, 1)
    every = FormatTask(("who",), matches_every_row=True)
    body = footed({"owner": "bob"}, ["x"])
    assert purged(parquet, body, every, id_set("bob"))[1] == (1, 1, 1)
