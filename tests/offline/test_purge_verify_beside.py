"""`purge verify` looks beside the rows: at key-value metadata, `ARROW:schema`, and summary files of Parquet."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest

from refstore.purge_document.document import Dataset
from refstore_purge import verify
from refstore_purge.formats import orc as orc_format
from refstore_purge.untyped_pandas import orc, pa, pq
from refstore_purge.verify_ids import VerifyReadError
from tests.commands import Command
from tests.offline.purge_runs import OneDataset
from tests.offline.world import World
from tests.purge.avro_files import of_rows
from tests.purge.looking import dataset_ids, encrypted, orc_of, rows_left, summaries

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

BOB = "bob-secret"
ANN = pa.table({"guest": ["ann", "cid"]})


class Left(NamedTuple):
    rows: int
    entries: int
    reason: str


class Lake(OneDataset):
    """One data set in a lake, a run on it, and what verify says of it."""

    def put(self, files: Mapping[str, bytes]) -> None:
        for path, body in files.items():
            self.world.repo.upload("main", f"visits/{path}", body)
        self.world.repo.commit("main", "files", allow_empty=True)

    def verify(self, file: Path, **options: Any) -> dict[str, Left]:
        """Return what verify finds by path. No reason shows an id."""
        found: dict[str, Left] = {}
        for each in verify(self.world.repo, file, **options).findings:
            assert BOB not in each.reason
            known = found.get(each.path.removeprefix("visits/"), Left(0, 0, ""))
            reason = " | ".join(filter(None, (known.reason, each.reason)))
            found[each.path.removeprefix("visits/")] = Left(
                known.rows + each.rows, known.entries + each.entries, reason
            )
        return found


@pytest.fixture
def lake(world: World, engines: Engines) -> Lake:
    return Lake(world, engines)


def parquet(table: Any, metadata: Any = None, **options: Any) -> bytes:
    """Return a file whose footer has these entries, in their order, also keys that are there twice."""
    out = io.BytesIO()
    options = {"store_schema": False, **options}
    with pq.ParquetWriter(out, table.schema, **options) as writer:
        writer.write_table(table)
        if metadata:
            writer.add_key_value_metadata(metadata)
    return out.getvalue()


NESTED = pa.struct([pa.field("x", pa.list_(pa.field("item", pa.int8(), metadata={"of": BOB})))])
FIELDS: list[Any] = [
    pa.field("n", pa.int8(), metadata={"seen": BOB}),
    pa.field("n", pa.int8(), metadata={BOB: "x"}),
    pa.field("n", NESTED),
    pa.field("n", pa.map_(pa.string(), pa.field("value", pa.int8(), metadata={"of": BOB}))),
]
ENTRIES: list[tuple[str, Any, str]] = [
    ("value", {"owner": BOB}, "an id stands in the footer's entry 'owner'"),
    ("key", {BOB: "x"}, "an id stands in the footer's entry whose name has an id"),
    ("part of the key", {f"last {BOB}": BOB}, "an id stands in the footer's entry whose name has an id"),
    ("Hudi", {"hoodie_max_record_key": f"guest:{BOB},day:2"}, "entry 'hoodie_max_record_key'"),
    ("Hudi's one field", {"hoodie_min_record_key": BOB}, "entry 'hoodie_min_record_key'"),
]


@pytest.mark.parametrize(("metadata", "told"), [case[1:] for case in ENTRIES], ids=[case[0] for case in ENTRIES])
@pytest.mark.parametrize("format_", ["parquet", "orc", "avro"])
def test_an_entry_of_a_file_is_found_until_a_run(lake: Lake, format_: str, metadata: Any, told: str) -> None:
    lake.onboard(format_)
    if format_ == "orc":
        lake.put({"a": orc_of({key: value.encode() for key, value in metadata.items()}, "ann")})
    elif format_ == "avro":
        lake.put({"a": of_rows([{"guest": "ann"}], metadata=metadata)})
    else:
        lake.put({"a": parquet(ANN, metadata), "b": parquet(ANN, {"note": f"{BOB} and ann", "empty": ""})})
    ids = lake.ids(BOB)
    (left,) = lake.verify(ids).values()
    assert (left.rows, left.entries) == (0, 1)
    assert told.removeprefix("an id stands in the footer's" if format_ != "parquet" else "") in left.reason
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}


@pytest.mark.parametrize("field", FIELDS, ids=["value", "key", "nested", "map"])
def test_metadata_of_fields_is_found_in_the_schema_of_arrow(lake: Lake, field: Any) -> None:
    lake.onboard()
    schema = pa.schema([pa.field("guest", pa.string()), field])
    lake.put({"a": parquet(schema.empty_table(), store_schema=True)})
    ids = lake.ids(BOB)
    assert lake.verify(ids) == {"a": Left(0, 1, "an id stands in the footer's entry 'ARROW:schema'")}
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}


def test_metadata_of_the_schema_that_stands_twice_is_told(lake: Lake) -> None:
    lake.onboard()
    pairs = pa.KeyValueMetadata([("k", "ann"), ("k", BOB)])
    schema = base64.b64encode(ANN.schema.with_metadata(pairs).serialize().to_pybytes())
    lake.put({"a": parquet(ANN, {"ARROW:schema": schema})})
    assert lake.verify(lake.ids(BOB)) == {"a": Left(0, 0, "its ARROW:schema has an entry twice")}


def test_a_key_that_stands_twice_is_found_and_purged(lake: Lake) -> None:
    lake.onboard()
    lake.put({"a": parquet(ANN, pa.KeyValueMetadata([("k", "ann"), ("k", BOB)]))})
    assert lake.verify(lake.ids(BOB))["a"].entries == 1
    assert lake.run(lake.ids(BOB)).rows[0].matched_entries == 1
    assert lake.verify(lake.ids(BOB)) == {}


def test_a_name_of_orc_that_stands_twice_is_not_looked_at(lake: Lake) -> None:
    lake.onboard("orc")
    out = io.BytesIO(orc_of({"k": b"ann"}, "ann"))
    out.seek(0, io.SEEK_END)
    orc_format.append_metadata(out, {b"k": BOB.encode()}, orc.ORCFile(io.BytesIO(out.getvalue())))
    assert [name for name, _ in orc.ORCFile(out).metadata.items()] == [b"k", b"k"]
    lake.put({"a": out.getvalue()})
    assert lake.verify(lake.ids(BOB)) == {"a": Left(0, 0, "its user metadata has a name twice")}


def test_an_entry_of_a_long_footer_is_found(lake: Lake) -> None:
    lake.onboard()
    lake.put({"a": parquet(ANN, {"note": "x" * 200_000, "owner": BOB, "more": "y" * 200_000})})
    assert lake.verify(lake.ids(BOB))["a"].entries == 1


def test_rows_and_entries_of_an_object_are_one_finding(lake: Lake) -> None:
    lake.onboard()
    names = {f"k{number}": BOB for number in range(8)}
    lake.put({"a": parquet(pa.table({"guest": [BOB, "ann"]}), names)})
    (finding,) = verify(lake.world.repo, lake.ids(BOB)).findings
    assert (finding.rows, finding.entries) == (1, 8)
    assert finding.reason.endswith("entry 'k4', and in 3 more places")


@pytest.mark.parametrize(("type_", "values", "text"), [
    (pa.int64(), [-420_000], "-420000"),
    (pa.uint64(), [2**64 - 1], str(2**64 - 1)),
    (pa.binary(), [b"\xff\xfe"], b"\xff\xfe"),
    (pa.binary(16), [UUID(int=7).bytes], f"urn:uuid:{UUID(int=7)}".upper()),
])  # fmt: skip
def test_ids_of_other_types_are_found_as_text(lake: Lake, type_: Any, values: list[Any], text: Any) -> None:
    lake.onboard()
    lake.put({"a": parquet(pa.table({"guest": pa.array([None], type_)}), {b"last": text})})
    ids = lake.ids(*values, type_=type_)
    assert lake.verify(ids)["a"].entries == 1
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}


def test_ids_that_are_text_are_compared_as_the_column_is(lake: Lake) -> None:
    lake.onboard()
    table = pa.table({"guest": pa.array([UUID(int=7).bytes, UUID(int=8).bytes], pa.binary(16))})
    file = parquet(table.slice(1), {"last": f"{{{UUID(int=7)}}}"})
    lake.put(
        {"a": file, "b/p": parquet(table)}
        | {f"b/{key}": body for key, body in summaries({"p": parquet(table)}).items()}
    )
    ids = lake.ids(str(UUID(int=7)))
    assert {path: (each.rows, each.entries) for path, each in lake.verify(ids).items()} == {
        "a": (0, 1),
        "b/p": (1, 0),
        "b/_metadata": (0, 1),
    }
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}
    lake.put({"c": parquet(ANN, {"last": f"{{{UUID(int=7)}}}", "other": str(UUID(int=7))})})
    left = lake.verify(ids)
    assert left == {"c": Left(0, 1, "an id stands in the footer's entry 'other'")}  # in text it is text


def test_integers_in_other_forms_are_none(lake: Lake) -> None:
    lake.onboard()
    texts = {str(number): text for number, text in enumerate(["042", "+42", "42.0", "٤٢", "4_2", " 42"], 100)}
    lake.put({"a": parquet(pa.table({"guest": [1]}), texts)})
    assert lake.verify(lake.ids(42)) == {}
    assert lake.run(lake.ids(42), dry_run=True).rows[0].matched_entries == 0


# ---- summary files


@pytest.mark.parametrize("mode", ["rewrite", "keep-history"])
def test_bounds_of_row_groups_are_found_in_a_summary(lake: Lake, mode: str) -> None:
    lake.onboard(mode=mode)
    before = {"day=1/p": parquet(pa.table({"guest": ["ann", BOB]})), "day=2/p": parquet(ANN)}
    after = {"day=1/p": parquet(pa.table({"guest": ["ann"]})), "day=2/p": parquet(ANN)}
    lake.put(after | summaries(before, {"mine": "x"}))  # somebody purged the files alone
    ids = lake.ids(BOB)
    left = lake.verify(ids)
    assert left == {"_metadata": Left(0, 1, "an id stands in the highest 'guest' of a row group")}
    assert [each.path for each in lake.run(ids).skipped_objects] == ["visits/_metadata"]
    lake.world.repo.delete("main", "visits/_metadata")
    lake.world.repo.commit("main", "without")
    assert lake.verify(ids) == ({} if mode == "keep-history" else left)
    lake.onboard(mode=mode, set_null=["n"])  # then ids stay in the rows, and in what describes them
    assert lake.verify(ids).get("_metadata", Left(0, 0, "")).entries == 0


def test_entries_of_summaries_are_found(lake: Lake) -> None:
    lake.onboard()
    files = {"day=1/p": parquet(pa.table({"guest": ["ann", BOB, "cid"]}))}
    lake.put(files | summaries(files, {"owner": BOB}))
    ids = lake.ids(BOB)
    left = lake.verify(ids)
    assert {path: (each.rows, each.entries) for path, each in left.items()} == {
        "day=1/p": (1, 0),
        "_metadata": (0, 2),  # the schema of Arrow repeats it
        "_common_metadata": (0, 2),
    }
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}


def test_other_files_with_such_a_name_and_other_names_with_an_underscore(lake: Lake) -> None:
    lake.onboard()
    lake.put({"_metadata": parquet(pa.table({"guest": [BOB]})), "_x": parquet(ANN, {"owner": BOB}), "_SUCCESS": b""})
    left = lake.verify(lake.ids(BOB))
    assert left == {"_metadata": Left(0, 0, "it has rows of its own, and is no summary of other files")}
    assert [each.path for each in lake.run(lake.ids(BOB)).skipped_objects] == ["visits/_metadata"]
    lake.onboard("csv")
    assert lake.verify(lake.ids(BOB)) == {"": Left(0, 0, "nothing lies below visits/; is it mistyped?")}


@pytest.mark.parametrize(("type_", "low", "high"), [
    (pa.int32(), -5, 7), (pa.uint32(), 7, 2**32 - 1), (pa.uint64(), 7, 2**64 - 1), (pa.int64(), -(2**63), 7),
])  # fmt: skip
def test_bounds_of_integers(lake: Lake, type_: Any, low: int, high: int) -> None:
    lake.onboard()
    files = {"p": parquet(pa.table({"guest": pa.array([low, high], type_)}))}
    lake.put(files | summaries(files))
    for each in (low, high):
        assert lake.verify(lake.ids(each, type_=type_))["_metadata"].entries == 1
    assert "_metadata" not in lake.verify(lake.ids(8, type_=type_))


@pytest.mark.parametrize(("identifier", "map_part", "row"), [
    ("user.id", "value", {"user": {"id": BOB, "other": "a"}}),
    ("tags", "value", {"tags": [BOB]}),
    ("seen", "key", {"seen": {BOB: "x"}}),
    ("seen", "value", {"seen": {"x": BOB}}),
])  # fmt: skip
def test_bounds_of_nested_identifiers(lake: Lake, identifier: str, map_part: str, row: dict[str, Any]) -> None:
    lake.onboard(identifier=identifier, map_part=map_part)
    types: dict[str, Any] = {
        "user": pa.struct([("id", pa.string()), ("other", pa.string())]),
        "tags": pa.list_(pa.string()),
        "seen": pa.map_(pa.string(), pa.string()),
    }
    name = identifier.partition(".")[0]
    row = {name: list(row[name].items()) if name == "seen" else row[name]}
    files = {"p": parquet(pa.Table.from_pylist([row], pa.schema([(name, types[name])])))}
    lake.put(files | summaries(files))
    ids = lake.ids(BOB)
    assert {path: (each.rows, each.entries) for path, each in lake.verify(ids).items()} == {
        "p": (1, 0),
        "_metadata": (0, 2),
    }
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}


# ---- what cannot be looked at


@pytest.mark.parametrize("name", ["a", "_metadata", "_common_metadata"])
def test_encrypted_files_are_told_by_both(lake: Lake, name: str) -> None:
    lake.onboard()
    lake.put({name: encrypted(ANN, has_plain_footer=False)})
    assert lake.verify(lake.ids(BOB)) == {name: Left(0, 0, "it is encrypted")}
    (told,) = lake.run(lake.ids(BOB)).skipped_objects
    assert told.path == f"visits/{name}"
    assert "encrypted" in told.reason
    report = verify(lake.world.repo, lake.ids(BOB))
    assert (report.objects, report.affected_objects, report.unexamined_objects) == (0, 0, 1)


@pytest.mark.parametrize("name", ["a", "_metadata", "_common_metadata"])
def test_encrypted_columns_below_a_footer_that_is_not_are_told(lake: Lake, name: str) -> None:
    lake.onboard()
    lake.put({name: encrypted(ANN, has_plain_footer=True)})
    assert lake.verify(lake.ids(BOB)) == {name: Left(0, 0, "it is encrypted")}


def test_damaged_summaries_and_schemas_are_told(lake: Lake) -> None:
    lake.onboard()
    files = {"p": parquet(ANN)}
    body = summaries(files)["_metadata"]
    for number, damaged in enumerate(
        (b"", b"PAR1", body[:-1], body[: -len(body) // 2], body[:-8] + b"\xff" * 4 + b"PAR1")
    ):
        lake.put({f"day={number}/_metadata": damaged})
    lake.put({"day=9/_common_metadata": b"", "p": parquet(ANN, {"ARROW:schema": "no base64"})})
    left = lake.verify(lake.ids(BOB))
    assert sorted(left) == [*(f"day={number}/_metadata" for number in range(5)), "day=9/_common_metadata", "p"]
    assert all(each.reason and not each.entries for each in left.values())
    not_purged = {each.path.removeprefix("visits/") for each in lake.run(lake.ids(BOB)).skipped_objects}
    assert not_purged == left.keys() - {"p"}  # no reader uses its schema of Arrow, and a run takes it for a text


def test_every_change_of_a_footer_is_read_or_refused() -> None:
    """No byte of a footer ends in another error than VerifyReadError."""
    schema = pa.schema([pa.field("guest", pa.string(), metadata={"k": "v"}), pa.field("n", NESTED)])
    body = parquet(schema.empty_table(), store_schema=True)
    length = int.from_bytes(body[-8:-4], "little")
    dataset, ids = Dataset("d", "d/", "guest", "rewrite", "parquet"), dataset_ids(BOB)
    rng = random.Random(3)
    outcomes = {True: 0, False: 0}
    for _ in range(500):
        at = rng.randrange(len(body) - 8 - length, len(body))
        changed = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        try:
            assert rows_left(changed, dataset, ids) == 0
            outcomes[True] += 1
        except VerifyReadError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 20


# ---- against a run


def metadata_of(rng: random.Random, one: str) -> dict[str, str]:
    """Return entries, some of which have an id as key or value."""
    keys = ["owner", one, "hoodie_min_record_key", "hoodie_max_record_key", "note", "org.apache.hudi.bloomfilter"]
    texts = [one, "ann", f"0{one}", f"guest:{one},n:1", f"n:2,guest:{one}", f"{one} and ann", ""]
    return {rng.choice(keys): rng.choice(texts) for _ in range(rng.randrange(3))}


def table_of(rng: random.Random, guests: Sequence[Any]) -> Any:
    with_metadata = pa.field("n", pa.int8(), metadata=metadata_of(rng, str(guests[0])) or None)
    schema = pa.schema([pa.field("guest", pa.int64() if 7 in guests else pa.string()), with_metadata])
    rows = [{"guest": rng.choice(guests), "n": 1} for _ in range(rng.randrange(4))]
    return pa.Table.from_pylist(rows, schema)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_verify_finds_beside_the_rows_what_a_run_finds(lake: Lake, format_: str, seed: int) -> None:
    """Random metadata: of the footer, of fields, and of summaries."""
    rng = random.Random(seed)
    found = 0
    for are_integers in (False, True):
        lake.onboard(format_, prefix=f"visits/{are_integers}/")
        guests: list[Any] = [7, 8, 9] if are_integers else [BOB, "ann", "cid"]
        files: dict[str, bytes] = {}
        for number in range(30):
            table, metadata = table_of(rng, guests), metadata_of(rng, str(guests[0]))
            if format_ == "parquet":
                body = parquet(table, metadata, store_schema=rng.random() < 0.7)
            else:
                body = orc_with(table, metadata)
            files[f"{are_integers}/day={number}/p"] = body
        lake.put(files)
        ids = lake.ids(guests[0])
        dry = {f"{row.dataset}/{are_integers}/{row.partition}/p": row for row in lake.run(ids, dry_run=True).rows}
        assert {f"visits/{path}": (each.rows, each.entries) for path, each in lake.verify(ids).items()} == {
            path: (row.matched_rows, row.matched_entries)
            for path, row in dry.items()
            if row.matched_rows or row.matched_entries
        }
        found += sum(row.matched_entries for row in dry.values())
        assert lake.run(ids).is_whole
        assert lake.verify(ids) == {}
    assert found > 4


@pytest.mark.parametrize("seed", range(2))
def test_verify_finds_in_summaries_what_a_run_finds(lake: Lake, seed: int) -> None:
    rng = random.Random(seed)
    lake.onboard()
    every: dict[str, bytes] = {}
    for day in range(6):
        tables = [pa.table({"guest": rng.choices([BOB, "ann", "cid"], k=2)}) for _ in range(2)]
        files = {f"p{number}": parquet(table) for number, table in enumerate(tables)}
        every |= {f"day={day}/{path}": body for path, body in files.items()}
        every |= {f"day={day}/{name}": body for name, body in summaries(files, metadata_of(rng, BOB)).items()}
    lake.put(every)
    ids = lake.ids(BOB)
    dry = {row.partition: row for row in lake.run(ids, dry_run=True).rows}
    left = lake.verify(ids)
    for partition, row in dry.items():
        rows = sum(each.rows for path, each in left.items() if path.startswith(f"{partition}/"))
        with_ids = {path for path in left if path.startswith(f"{partition}/_")}
        assert rows == row.matched_rows
        assert (
            len(with_ids) <= row.rewritten_summaries
        )  # a run writes those again, too, that describe files which it replaces
        assert row.matched_rows or len(with_ids) == row.rewritten_summaries
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}


def orc_with(table: Any, metadata: Mapping[str, str]) -> bytes:
    import pyorc

    out = io.BytesIO()
    type_ = "bigint" if pa.types.is_int64(table.schema.field("guest").type) else "string"
    with pyorc.Writer(out, f"struct<guest:{type_},n:tinyint>") as writer:
        writer.writerows([(row["guest"], row["n"]) for row in table.to_pylist()])
        writer.set_user_metadata(**{key: value.encode() for key, value in metadata.items()})
    assert orc.ORCFile(out).nrows == len(table)
    return out.getvalue()


def test_the_command_counts_entries_and_ends_with_4(refstore: Command, engines: Engines) -> None:
    lake = Lake(World(refstore.folder / "lake"), engines)
    lake.onboard()
    lake.put({"a": parquet(ANN, {"owner": BOB}), "b": parquet(ANN)})
    ids = lake.ids(BOB)
    ran = refstore("purge", "verify", "sales", "--ids", ids)
    assert ran.code == 4
    assert "looked at 2 objects: 1 entries beside the rows are left in 1 objects" in ran.out
    assert BOB not in ran.out + ran.err
    told = refstore("purge", "verify", "sales", "--ids", ids, "--json")
    document = json.loads(told.out)
    assert (document["remaining_rows"], document["remaining_entries"], document["affected_objects"]) == (0, 1, 1)
    assert document["findings"][0]["reason"] == "an id stands in the footer's entry 'owner'"
    lake.put({"a": parquet(pa.table({"guest": [BOB]}), {"owner": BOB})})
    ran = refstore("purge", "verify", "sales", "--ids", ids)
    assert "1 rows and 2 entries beside the rows are left in 2 objects" in ran.out
