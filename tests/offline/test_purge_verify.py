"""`purge verify` calls no object clean that it did not read as a run reads it, and counts rows as a run does."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from refstore.context import Context
from refstore.core.ids import Address
from refstore.errors import Gone
from refstore.objects.local import LocalObjects
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.mark_records import StoredMark
from refstore.records.repository_records import ImportSource
from refstore_gc import gc_run as nightly
from refstore_gc.engines import worker_processes
from refstore_gc.gc_run import GcOptions
from refstore_purge import IdsFile, verify, verify_datasets
from refstore_purge.verify_ids import ObjectFindings
from tests.commands import Command
from tests.offline.purge_runs import OneDataset
from tests.offline.test_purge_partitions import FORMATS, written
from tests.offline.world import World
from tests.purge import datasets
from tests.purge.avro_files import of_rows
from tests.reaping import reap_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

Rows = list[dict[str, Any]]


class Lake(OneDataset):
    """One data set in a lake, a run on it, and what verify says of it."""

    def put(self, path: str, body: bytes, **more: Any) -> None:
        self.world.repo.upload("main", f"visits/{path}", body, **more)
        self.world.repo.commit("main", path)

    def verify(self, file: Path, *, column: str = "", **options: Any) -> dict[str, tuple[int, str]]:
        found = verify(self.world.repo, IdsFile(file, column), **options).findings
        return {each.path.removeprefix("visits/"): (each.rows, each.reason) for each in found}


@pytest.fixture
def lake(world: World, engines: Engines) -> Lake:
    return Lake(world, engines)


def parquet(rows: Rows, schema: Any = None, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), out, **options)
    return out.getvalue()


def orc_of(rows: Rows) -> bytes:
    out = io.BytesIO()
    orc.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def orc_of_char() -> bytes:
    import pyorc

    out = io.BytesIO()
    with pyorc.Writer(out, "struct<guest:char(9)>") as writer:
        writer.write(("bob",))
    return out.getvalue()


def twice() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array(["bob"]), pa.array(["ann"])], names=["guest", "guest"]), out)
    return out.getvalue()


BOB = [{"guest": "bob", "n": 1}, {"guest": "ann", "n": 2}]
CSV = b"guest,n\nbob,1\nann,2\n"
REFUSED: list[tuple[str, bytes, str]] = [
    ("csv", b"visitor,n\nbob,1\n", "there is no column 'guest'"),
    ("csv", b"GUEST,n\nbob,1\n", "in another case"),
    ("csv", b"guest;n\nbob;1\n", "there is no column 'guest'"),
    ("csv", b"guest,guest\nbob,bob\n", "more than one column"),
    ("csv", b"\n\n" + CSV, "there is no column 'guest'"),
    ("csv", "guest,größe\nbob,1\n".encode("latin-1"), "header is no UTF-8"),
    ("csv", CSV + "größe,1\n".encode("latin-1"), "is no UTF-8"),
    ("csv", CSV + b'x"y,1\n', "RFC 4180"),
    ("csv", CSV + b'"x\\""",1\n', "after a backslash"),
    ("csv", CSV + b'"x,1\n', "RFC 4180"),
    ("csv", CSV + b"x\r,1\n", "carriage return"),
    ("csv", CSV + b"x\n", "has 1 fields, and the header 2"),
    ("csv", CSV + b"x\0,1\n", "no text"),
    ("csv", CSV.decode().encode("utf-16"), "no text"),
    ("csv", gzip.compress(CSV, mtime=0)[:-9], "decompressed to its end"),
    ("csv", bz2.compress(CSV) + b"more", "decompressed to its end"),
    ("csv", lzma.compress(CSV)[:-20], "decompressed to its end"),
    ("csv", pa.compress(CSV, codec="zstd", asbytes=True)[:-4], "decompressed to its end"),
    ("json", b'{"guest":"bob"}\nguest,n\n', "line 2 is no JSON"),
    ("json", b'["bob"]\n', "no JSON object"),
    ("json", b'{"guest":7}\n', "another type"),
    ("json", '{"guest":"bob","größe":1}'.encode("latin-1"), "no JSON in UTF-8"),
    ("json", '{"guest":"bob"}\n'.encode("utf-16"), "no JSON in UTF-8"),
    ("parquet", parquet([{"visitor": "bob"}]), "there is no column 'guest'"),
    ("parquet", parquet([{"Guest": "bob"}]), "there is 'Guest', in another case"),
    ("parquet", parquet([{"guest": 7}]), "is int64, and the ids are strings"),
    ("parquet", parquet([{"guest": b"bob"}]), "is binary, and the ids are strings"),
    ("parquet", parquet([{"guest": {"id": "bob"}}]), "and the ids are strings"),
    ("parquet", twice(), "more than one column"),
    ("parquet", parquet(BOB)[:-9] + b"\0" * 9, "damaged, or no parquet"),
    ("parquet", CSV, "damaged, or no parquet"),
    ("orc", orc_of([{"visitor": "bob"}]), "there is no column 'guest'"),
    ("orc", orc_of([{"guest": 7}]), "is int64, and the ids are strings"),
    ("orc", orc_of_char(), "whose values are padded"),
    ("orc", parquet(BOB), "damaged, or no orc"),
    ("avro", of_rows([{"visitor": "bob"}]), "there is no column 'guest'"),
    ("avro", of_rows([{"guest": 7}]), "is int64, and the ids are strings"),
    ("avro", of_rows([{"guest": {"id": "bob"}}]), "and the ids are strings"),
    ("avro", of_rows(BOB)[:-1], "damaged, or no avro"),
]


@pytest.mark.parametrize(
    ("format_", "body", "told"), REFUSED, ids=[f"{format_}: {told}" for format_, _, told in REFUSED]
)
def test_what_a_run_refuses_is_not_called_clean(lake: Lake, format_: str, body: bytes, told: str) -> None:
    lake.onboard(format_)
    lake.put("a", written(format_, guest=["bob", "ann"], n=[1, 2]))
    lake.put("b", body)
    ids = lake.ids("bob")
    assert lake.verify(ids)["a"] == (1, "")
    made = lake.run(ids)
    assert [each.path for each in made.skipped_objects] == ["visits/b"]
    report = verify(lake.world.repo, ids)
    left = lake.verify(ids)
    assert list(left) == ["b"]
    assert told in left["b"][1]
    assert (report.objects, report.unexamined_objects) == (1, 1)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_folder_or_a_field_in_another_case_is_told(lake: Lake, format_: str) -> None:
    lake.onboard(format_)
    lake.put("GUEST=bob/a", written(format_, n=[1]))
    lake.put("guest=ann/a", written(format_, n=[1]))
    left = lake.verify(lake.ids("bob"))
    assert list(left) == ["GUEST=bob/a"]
    assert "'GUEST' in its path or metadata is the identifier in another case" in left["GUEST=bob/a"][1]


def test_names_of_erased_objects_in_another_case_are_told(lake: Lake) -> None:
    lake.onboard(None, mode="erase")
    lake.put("GUEST=bob/a.jpg", b"a")
    lake.put("b.jpg", b"b", metadata={"Guest": "bob"})
    lake.put("c.jpg", b"c", metadata={"guest": "bob"})
    lake.put("guest=bob/d.jpg", b"d")
    lake.put("e.jpg", b"e", metadata={"guest": "ann"})
    ids = lake.ids("bob")
    left = lake.verify(ids)
    assert {path: rows for path, (rows, _) in left.items()} == {
        "GUEST=bob/a.jpg": 0,
        "b.jpg": 0,
        "c.jpg": 1,
        "guest=bob/d.jpg": 1,
    }
    lake.run(ids)
    assert sorted(lake.verify(ids)) == ["GUEST=bob/a.jpg", "b.jpg"]


def test_a_copy_whose_folder_is_in_another_case_is_told(lake: Lake) -> None:
    lake.onboard(None, mode="erase")
    lake.put("a.jpg", b"a")
    lake.world.repo.copy("main", "visits/a.jpg", to_branch="main", to_path="visits/x/GUEST=bob/a.jpg")
    lake.world.repo.commit("main", "copy")
    left = lake.verify(lake.ids("bob"))
    assert list(left) == ["x/GUEST=bob/a.jpg", ""]
    assert "no object has the identifier" in left[""][1]


def test_a_value_of_a_folder_that_is_no_utf_8_is_told(lake: Lake) -> None:
    lake.onboard("csv")
    lake.put("guest=gr%F6%DFe/a", b"n\n1\n")
    assert "no UTF-8" in lake.verify(lake.ids("größe"))["guest=gr%F6%DFe/a"][1]


@pytest.mark.parametrize(("null", "rows", "told"), [("mail", 0, "no column 'mail'"), ("n", 1, "")])
def test_what_no_run_can_set_to_null_is_told(lake: Lake, null: str, rows: int, told: str) -> None:
    lake.onboard("parquet", set_null=[null])
    schema = pa.schema([pa.field("guest", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    lake.put("a", parquet(BOB, schema))
    ids = lake.ids("bob")
    assert not lake.run(ids).is_whole
    left = lake.verify(ids)["a"]
    assert left[0] == rows
    assert told in left[1]


READ: list[tuple[str, bytes, int]] = [
    ("csv", "größe,guest\n1,bob\n".encode() + "gr\xf6\xdfe,bob\n".encode("latin-1"), 2),
    ("csv", b'\xef\xbb\xbf"guest",n\r\n"bob",1\r\n\r\n"a\r\n""b",2\r\nbob,3', 2),
    ("csv", gzip.compress(b"guest\nbob\n", mtime=0) + gzip.compress(b"bob\nann\n", mtime=0) + b"\0\0", 2),
    ("csv", bz2.compress(b"guest\nbob\n") + bz2.compress(b"bob\nann\n"), 2),
    ("csv", lzma.compress(b"guest\nbob\n") + lzma.compress(b"bob\nann\n"), 2),
    ("csv", b"guest\nbob\r", 1),
    ("csv", b"", 0),
    ("json", b'\xef\xbb\xbf{"guest":"bob"}\r\n\n{"guest":["ann","bob"]}\n{"guest":"ann","guest":"bob"}', 3),
    ("json", b'{"guest":{"a":"bob"}}\n{"guest":null}\n{"guest":"\\ud800"}\n{}', 1),
    ("parquet", parquet([{"guest": "bob"}, {"guest": None}]), 1),
    ("parquet", parquet([{"guest": "bob"}], pa.schema([("guest", pa.dictionary(pa.int32(), pa.string()))])), 1),
    ("parquet", parquet([{"guest": "bob"}], pa.schema([("guest", pa.large_string())])), 1),
    ("parquet", parquet([{"guest": ["bob", "bob"]}, {"guest": None}, {"guest": []}, {"guest": ["ann"]}]), 1),
    (
        "parquet",
        parquet(
            [{"guest": ["bob", "bob"]}, {"guest": None}, {"guest": ["ann", "bob"]}, {"guest": ["ann", "ann"]}],
            pa.schema([("guest", pa.list_(pa.string(), 2))]),
        ),
        2,
    ),
    ("parquet", parquet([{"guest": ["bob"], "GUEST": "bob"}]), 1),
    ("parquet", parquet([{"guest": "bob", "guest.x": "ann"}]), 1),
]


@pytest.mark.parametrize(
    ("format_", "body", "rows"), READ, ids=[f"{format_} {number}" for number, (format_, _, _) in enumerate(READ)]
)
def test_what_a_run_reads_is_counted_as_the_run_counts_it(lake: Lake, format_: str, body: bytes, rows: int) -> None:
    lake.onboard(format_)
    lake.put("a", body)
    ids = lake.ids("bob", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    assert lake.verify(ids) == ({"a": (rows, "")} if rows else {})
    made = lake.run(ids)
    assert (made.is_whole, made.rows[0].rows_changed) == (True, rows)
    assert lake.verify(ids) == {}


def test_bytes_of_parquet_that_are_no_utf_8_are_compared_as_bytes(lake: Lake) -> None:
    lake.onboard("parquet")
    texts = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\4\0\0\0"), pa.py_buffer(b"\xf6bob"))
    out = io.BytesIO()
    pq.write_table(pa.table({"guest": texts}), out)
    lake.put("a", out.getvalue())
    ids = lake.ids("bob")
    assert lake.verify(ids) == {"a": (1, "")}
    assert lake.run(ids).rows[0].rows_changed == 1
    assert lake.verify(ids) == {}


@pytest.mark.parametrize(
    ("type_", "values", "id_types"),
    [
        (pa.binary(), [b"bob", b"\xff\0"], [pa.binary(), pa.large_binary()]),
        (pa.binary(2), [b"bo", b"\xff\0"], [pa.binary(2), pa.binary()]),
        (pa.binary(16), [UUID(int=7).bytes, UUID(int=8).bytes], [pa.binary(16)]),
        (pa.int32(), [-7, 8], [pa.int64(), pa.int8()]),
        (pa.uint64(), [7, 2**64 - 1], [pa.uint64()]),
        (pa.int64(), [7, -(2**63)], [pa.int64()]),
    ],
)
def test_ids_of_every_type_are_found(lake: Lake, type_: Any, values: list[Any], id_types: list[Any]) -> None:
    lake.onboard("parquet")
    lake.put("a", parquet([{"guest": value} for value in [*values, None]], pa.schema([("guest", type_)])))
    for id_type in id_types:
        assert lake.verify(lake.ids(*values, type_=id_type)) == {"a": (2, "")}
    ids = lake.ids(*values, type_=id_types[0])
    assert lake.run(ids).rows[0].rows_changed == 2
    assert lake.verify(ids) == {}


# ---- which versions


def test_commits_that_rules_hide_are_looked_at(tmp_path: Path, engines: Engines) -> None:
    world = World(tmp_path, rules='{"default_retention_days": 0, "grace_days": 3, "hide_marked": true}')
    lake = Lake(world, engines)
    lake.onboard("csv")
    world.repo.upload("main", "visits/a", CSV)
    first = world.commit(days_ago=2)
    world.repo.delete("main", "visits/a")
    world.commit(days_ago=1)
    world.age()
    ids = lake.ids("bob")
    reap_all(world.repo)
    nightly.run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0))
    with pytest.raises(Gone, match="will be deleted"):
        world.repo.read(first, "visits/a")
    (finding,) = verify(world.repo, ids).findings
    assert finding == (first, "visits/a", 1, 0, "")
    assert lake.run(ids).is_whole
    assert verify(world.repo, ids).findings == []
    world.repo.unmark(first)
    assert world.repo.read(first, "visits/a") == b"guest,n\nann,2\n"

    lake.onboard("csv", mode="keep-history")
    (finding,) = verify(world.repo, lake.ids("ann")).findings  # no head has it
    assert (finding.path, finding.rows) == ("visits/", 0)
    assert "nothing lies below" in finding.reason
    assert [each.ref for each in verify(world.repo, lake.ids("ann"), history=True).findings] == [first]
    world.close()


def test_a_commit_is_looked_at_until_its_sweep_has_ended(lake: Lake) -> None:
    world, ids = lake.world, lake.ids("bob")
    lake.onboard("csv")
    lake.put("a", CSV)
    first = world.repo.get_branch("main").head
    content = world.address("main", "visits/a")
    world.repo.delete("main", "visits/a")
    world.repo.commit("main", "without")
    world.ctx.kv.set(keys.mark(world.ctx.repo, first), encode(StoredMark(1, 1, "m", sweeping_ms=2)))
    assert [each.ref for each in verify(world.repo, ids).findings] == [first]
    world.ctx.objects.delete_many([content])  # as the sweep does
    assert verify(world.repo, ids).findings == []
    world.ctx.kv.set(keys.mark(world.ctx.repo, first), encode(StoredMark(1, 1, "m", sweeping_ms=2, swept_ms=3)))
    assert verify(world.repo, ids).findings == []


def test_what_restore_can_bring_back_is_looked_at(lake: Lake) -> None:
    world, ids = lake.world, lake.ids("bob")
    lake.onboard("csv")
    world.repo.upload("main", "visits/a", CSV)
    world.repo.reset("main")
    assert [(each.ref, each.rows) for each in verify(world.repo, ids).findings] == [("trash of main", 1)]
    assert lake.run(ids).is_whole
    assert lake.verify(ids) == {}
    world.repo.upload("main", "visits/a", CSV)
    world.repo.commit("main", "again")
    assert [each.ref for each in verify(world.repo, ids).findings] == ["main"]  # although its reference is still there
    world.repo.upload("main", "visits/b", CSV)
    world.repo.reset("main")
    lake.onboard("csv", mode="keep-history")
    assert list(lake.verify(ids)) == ["a"]  # as a run


def test_a_content_that_should_be_there_and_is_not_is_told(lake: Lake) -> None:
    for mode in ("rewrite", "keep-history"):
        lake.onboard("csv", mode=mode)
        lake.put(mode, CSV)
        lake.world.ctx.objects.delete_many([lake.world.address("main", f"visits/{mode}")])
        rows, reason = lake.verify(lake.ids("bob"))[mode]
        assert rows == 0
        assert "do not run any collection" in reason


def test_an_object_that_a_run_replaces_meanwhile_is_found_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.onboard("csv", mode="rewrite")
    lake.put("a", CSV)
    store, address = lake.world.ctx.objects, lake.world.address("main", "visits/a")
    read, ids = verify_datasets.read_content, lake.ids("bob")

    def replace_first(ctx: Context, content: Address, *args: Any, **others: Any) -> ObjectFindings:
        if content == address and store.head_many([address])[0] is not None:
            lake.run(lake.ids("bob"))
            store.delete_many([address])
        return read(ctx, content, *args, **others)

    monkeypatch.setattr(verify_datasets, "read_content", replace_first)
    assert lake.verify(ids) == {}
    assert lake.world.address("main", "visits/a") != address


@pytest.mark.parametrize("mode", ["rewrite", "keep-history"])
def test_what_others_own_is_looked_at_while_it_can_be_read(lake: Lake, tmp_path: Path, mode: str) -> None:
    lake.onboard("csv", mode=mode)
    (tmp_path / "landing").mkdir()
    for name, body in (("a", CSV), ("b", b"guest,n\nann,1\n")):
        (tmp_path / "landing" / name).write_bytes(body)
    lake.world.repo.import_objects("main", [ImportSource(f"file://{tmp_path}/landing", "visits/")], "import")
    ids = lake.ids("bob")
    assert {each.path for each in lake.run(ids).skipped_objects} == {"visits/a", "visits/b"}
    assert lake.verify(ids) == {"a": (1, "")}
    lake.world.repo.stage("main", "visits/0", "file:///etc/hostname", size_bytes=1)
    left = lake.verify(ids)
    assert (sorted(left), left["0"][0]) == (["0", "a"], 0)
    assert "--allow-foreign PREFIX" in left["0"][1]
    lake.world.repo.delete("main", "visits/0")
    (tmp_path / "landing" / "b").unlink()
    left = lake.verify(ids)
    assert sorted(left) == ["a", "b"]
    assert left["b"][0] == 0


# ---- what a run does not see


def lying_parquet() -> bytes:
    body = parquet([{"guest": "bob"}] * 3 + [{"guest": None}])
    footer = -8 - int.from_bytes(body[-8:-4], "little")
    return body[:footer] + body[footer:].replace(b"bob", b"aaa")


def test_rows_that_statistics_exclude_are_found(lake: Lake) -> None:
    lake.onboard("parquet")
    lake.put("a", parquet(BOB))
    lake.put("b", lying_parquet())
    ids = lake.ids("bob")
    assert lake.run(ids).rows[0].rows_changed == 1  # the run believes the file
    assert lake.verify(ids) == {"b": (3, "")}
    assert lake.run(ids, ignores_statistics=True).is_whole
    assert lake.verify(ids) == {}


@pytest.mark.parametrize("seed", range(2))
def test_verify_counts_as_a_run_does_and_reads_no_more(lake: Lake, seed: int) -> None:
    """Random files of each format, some of them damaged."""
    rng = random.Random(seed)
    for are_integers in (False, True):
        cases = [case for case in datasets.CASES if case.is_integer == are_integers]
        lake.world.repo.onboard_purge(datasets.document_of(cases, "rewrite"), by="tests")
        for case in cases:
            for number in range(3):
                body = datasets.write(case, datasets.make_rows(rng, case, rng.choice([1, 7, 60])))
                if number == 2:
                    body = damaged(rng, body, only_cut=case.format in ("orc", "parquet"))
                lake.world.repo.upload("main", f"{case.name}/day={number}/part", body)
        lake.world.repo.commit("main", "data")
        wanted: list[Any] = rng.sample(range(200), 20) if are_integers else rng.sample(datasets.GUESTS, 8)
        ids = lake.ids(*wanted)
        dry = lake.run(ids, dry_run=True)
        before = lake.verify(ids)
        refused = {each.path for each in dry.skipped_objects}
        by_run = {f"{row.dataset}/{row.partition}/part": row.matched_rows for row in dry.rows}
        assert {path: rows for path, (rows, reason) in before.items() if not reason} == {
            path: rows for path, rows in by_run.items() if rows and path not in refused
        }
        assert {path for path, (_, reason) in before.items() if reason} == refused
        made = lake.run(ids)
        after = lake.verify(ids)
        assert {each.path for each in made.skipped_objects} <= after.keys()
        assert all(reason for _, reason in after.values())


def damaged(rng: random.Random, body: bytes, *, only_cut: bool) -> bytes:
    """Cut a file off, or change a byte of it: some readers of Parquet and ORC end the process then."""
    at = rng.randrange(len(body))
    return body[:at] if only_cut or rng.random() < 0.5 else body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :]


def test_large_objects_are_read_in_pieces(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.onboard("csv")
    lake.put("a", CSV + b"x" * 99 + b",1\n" * 1 + (b"y" * 99 + b",1\n") * 300_000 + b"bob,3\n")
    get = LocalObjects.get
    sizes: list[int] = []

    def counted(store: LocalObjects, key: str, *, start: int = 0, end: int | None = None, **more: Any) -> Any:
        sizes.append((end or 0) - start)
        return get(store, key, start=start, end=end, **more)

    monkeypatch.setattr(LocalObjects, "get", counted)
    monkeypatch.setattr(worker_processes, "call", lambda work: work())  # in this process, to count
    assert lake.verify(lake.ids("bob")) == {"a": (2, "")}
    assert sum(sizes) > 30_000_000
    assert max(sizes) <= 8 << 20


def test_the_command_counts_and_says_what_it_looked_at(refstore: Command, engines: Engines) -> None:
    lake = Lake(World(refstore.folder / "lake"), engines)
    lake.onboard("csv")
    lake.put("a", CSV)
    lake.put("b", b"visitor\nbob\n")
    lake.put("c", b"guest,n\nann,1\n")
    ids = lake.ids("bob")
    ran = refstore("purge", "verify", "sales", "--ids", ids)
    assert ran.code == 4
    assert "looked at 2 objects: 1 rows are left in 1 objects; 1 objects could not be looked at" in ran.out
    told = refstore("purge", "verify", "sales", "--ids", ids, "--json")
    assert told.code == 4
    document = json.loads(told.out)
    findings = document.pop("findings")
    assert document == {
        "objects": 2,
        "remaining_rows": 1,
        "remaining_entries": 0,
        "affected_objects": 1,
        "unexamined_objects": 1,
        "unexamined_datasets": 0,
    }
    assert {(each["path"], each["rows"]) for each in findings} == {("visits/a", 1), ("visits/b", 0)}
    lake.world.repo.delete("main", "visits/b")
    lake.onboard("csv", mode="keep-history")
    lake.world.repo.commit("main", "without b")
    lake.run(ids)
    ran = refstore.ok("purge", "verify", "sales", "--ids", ids)
    assert "looked at 2 objects: nothing is left" in ran.out


def test_columns_whose_types_pyarrow_does_not_know_are_told(lake: Lake) -> None:
    """Polars' integers of 128 bits, beside an identifier of bytes that text is compared with as UUIDs."""
    guests = [UUID(int=number) for number in range(4)]
    out = io.BytesIO()
    pl.DataFrame(
        {"guest": [guest.bytes for guest in guests], "n": [2**100, None, -1, 0]},
        schema={"guest": pl.Binary, "n": pl.Int128},
    ).write_parquet(out)
    with pytest.raises(pa.ArrowException, match="Integers"):
        pq.ParquetFile(out)
    lake.onboard("parquet")
    lake.put("a", out.getvalue())
    wanted = lake.ids(str(guests[2]))
    told = "it has a type that pyarrow does not know, so that nobody can look into it"
    assert lake.verify(wanted, id_type="uuid") == {"a": (0, told)}
    made = lake.run(wanted, id_type="uuid")
    assert (made.rows[0].rows_changed, made.skipped_objects) == (1, [])
    assert pl.read_parquet(lake.world.repo.read("main", "visits/a"))["n"].to_list() == [2**100, None, 0]
