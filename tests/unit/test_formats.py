"""The bytes of every stored form that is no record, version 1 (docs/formats.md). `test_records.py` pins the records."""

from __future__ import annotations

import gzip
import hashlib
import io
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from refstore.audit.audit_entries import VERSION, Act, Actor, AuditEntry, encode_entry
from refstore.core.arrow_arrays import make_array
from refstore.core.ids import Address, BranchName, CommitId, RepositoryId, RepositoryName, Token
from refstore.core.ids import Path as ObjectPath
from refstore.core.signing_keys import SigningKey
from refstore.deletion_history import deletion_index
from refstore.deletion_history.deletion_index import Unreadable
from refstore.deletion_history.deletion_journal import DeletionRecord, JournalWriter
from refstore.gc_marks.sweep_records import outcome_key
from refstore.kv.base import Key
from refstore.kv.sqlite import open_sqlite
from refstore.objects import open_objects
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.objects.memory import MemoryObjects
from refstore.records.pending_deletes import PendingDelete
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore.records.staging_records import StoredEntry as ObjectEntry
from refstore.versioning import manifest
from refstore.versioning.commits import added_addresses, columns, metaranges, ranges
from refstore.versioning.commits.metaranges import Metarange, RangeRow
from refstore.versioning.issuance import AddressTokenIssuer, IssuedAddressClaims
from refstore_gc import deletion_index_writer, garbage, run_summary, sweep_tasks
from refstore_gc.run_layout import ObjectKind, RunLayout
from refstore_gc.run_summary import CleanupSummary, GcSummary, ObjectCount, SweepManifest, SweepResult, UnitRow
from refstore_purge import id_index, ledger, purge_ids
from tests.kit.clock import FakeClock

NOW_MS = 1_700_000_000_000
ADDRESS = Address("data/2023111422/01j8x6w3vr0000000000000000")
REPO = RepositoryId("sales.01j8x6w3vr0000000000000000")
MAIN = BranchName("main")
RANGE = RangeRow("a", "b", "c" * 64, 2, 10)
PURGE_KEY = id_index.IndexKey.derive(b"k" * 32)


ATTRIBUTES = S3Attributes(
    ContentDescription("crc32", "x", False, "1-3", ((2, 5), (1, 3)), sources=(ADDRESS,)), {"expires": "0"}, {"a": "1"}
)


def _range() -> bytes:
    entry = ObjectEntry(ADDRESS, 5, "ab" * 32, NOW_MS, {"b": "2", "a": "1"}, "text/csv", "", "d" * 32, ATTRIBUTES)
    return ranges.encode(ranges.rows_of(["a", "b"], [entry, ObjectEntry(ADDRESS, 6, "", NOW_MS)]))


def _metarange() -> bytes:
    return metaranges.encode(Metarange.from_rows([RANGE], ranges.CUT_RULE.label))


def _listing() -> bytes:
    file = io.BytesIO()
    with columns.open_encoder(added_addresses.LAYOUT, file, 10, {added_addresses.NEW_RANGES_KEY: RANGE.id}) as write:
        write(make_array([ADDRESS], columns.pa.string()))
    return file.getvalue()


def _manifest() -> bytes:
    entries = (
        manifest.CommitLanded(CommitId("c" * 64), b"record", MAIN, "b1"),
        manifest.BranchCreated(MAIN, "b1", CommitId("c" * 64), NOW_MS, is_hidden=True),
        manifest.BranchDeleted(MAIN, "b1"),
        manifest.RecordCreated("tags", "v1", b"record"),
        manifest.RecordRemoved("tags", "v1", b"record"),
        manifest.RepositoryCreated(RepositoryName("sales"), REPO, b"record"),
        manifest.RepositoryDeleted(RepositoryName("sales"), REPO),
    )
    return b"\n".join(map(msgspec.json.encode, entries))


def _audit_entry() -> bytes:
    actor = Actor("cli", "ada", "host", "refstore tag create")
    act = Act(id="i1", time="2023-11-14T22:13:20.000Z", actor=actor, action="tag.create", after={"commit": "c"})
    return encode_entry(AuditEntry(VERSION, "c1", 1, "", NOW_MS, act))


def _journal() -> bytes:
    objects = MemoryObjects()
    writer = JournalWriter(objects, "r1", FakeClock(wall_ms=NOW_MS), count(1))
    batch = [PendingDelete(ADDRESS, Token("main:01j8x6w3vr0000000000000001"), ObjectPath("a/b"), "reset", 5)]
    writer.record_start(batch)
    writer.record_end(batch, DeleteResult((), (), ((ADDRESS, "refused"),)))
    segments = [(info.key, gzip.decompress(objects.read(info.key))) for info in objects.list()]
    return b"\n".join(key.encode() + b"\n" + body for key, body in segments)


def _token() -> bytes:
    claims = IssuedAddressClaims(REPO, MAIN, ObjectPath("a/b"), ADDRESS, "t1", NOW_MS + 60_000)
    return AddressTokenIssuer(lambda: [SigningKey("k1", b"s" * 32)], FakeClock(wall_ms=NOW_MS)).sign(claims).encode()


def _mark_a_blob(folder: str) -> tuple[RunLayout, ObjectStore, UnitRow]:
    """Mark one blob as an orphan. Return the run's layout, its store, and the file of the mark."""
    layout = RunLayout(url=f"file://{folder}", files=f"file://{folder}", mark_id="m1", seed=1)
    blob = {
        "address": make_array([ADDRESS], columns.pa.string()),
        "size_bytes": make_array([5], columns.pa.int64()),
        "mtime_ms": make_array([NOW_MS], columns.pa.int64()),
        "kind": make_array([int(ObjectKind.DATA)], columns.pa.int8()),
    }
    rows = garbage.write_garbage(layout, 0, columns.pa.table(blob), [])
    (unit,) = (row for row in rows if isinstance(row, UnitRow))
    return layout, open_objects(layout.url), unit


def _mark() -> bytes:
    manifest_of_mark = SweepManifest("m1", 1, "delete", [UnitRow("key", ADDRESS, 1, 5)], {"main": "s1"}, ["dead"])
    with TemporaryDirectory() as folder:
        _, objects, unit = _mark_a_blob(folder)
        run_summary.write_manifest(objects, manifest_of_mark)
        return objects.read("_refstore/gc/m1/mark.json") + objects.read(unit.key)


def _run_summary() -> bytes:
    count = ObjectCount(1, 5)
    counts = {"orphan blob": count}
    sweep = SweepResult(mode="delete", at_ms=NOW_MS, outcomes={"deleted": count}, by_reason={"orphan blob": counts})
    summary = GcSummary(
        repository="sales",
        mark_id="m1",
        state="swept",
        began_ms=NOW_MS,
        deletes_at_ms=NOW_MS,
        min_age_seconds=60.0,
        rules_digest="d",
        commits={"marked": 1},
        **dict.fromkeys(("listed", "young", "foreign", "kept", "pending", "marked"), count),
        by_reason=counts,
        sources={"trees": 1},
        sweep=sweep,
        purge_cleanup=CleanupSummary(backups=count),
    )
    objects = MemoryObjects()
    run_summary.write_summary(objects, summary)
    return objects.read("_refstore/gc/m1/summary.json")


def _sweep_record() -> bytes:
    with TemporaryDirectory() as folder:
        layout, objects, unit = _mark_a_blob(folder)
        objects.put(ADDRESS, b"12345")
        sweep_tasks.sweep_unit(layout, unit.key, [], "delete")
        return objects.read(outcome_key(unit.key))


def _deletion_index() -> bytes:
    objects = MemoryObjects()
    record = DeletionRecord(ADDRESS, NOW_MS, "sweep", "m1", "deleted", "orphan blob", "", "a/b", "", 5, "")
    schema = deletion_index.schema()
    cells = zip((ADDRESS, *record), schema.types, strict=True)
    table = columns.pa.table([make_array([value], type_) for value, type_ in cells], schema=schema)
    key = deletion_index.sweep_file("m1", 0, 1)
    deletion_index_writer.write_file(objects, key, [table], [Unreadable(NOW_MS, "a file was removed")])
    return key.encode() + objects.read(key)


def _purge_index() -> bytes:
    with TemporaryDirectory() as folder:
        purge_ids.write_ids(Path(folder), "string", [])
        collector = id_index.HashCollector(purge_ids.IdSet(Path(folder)), PURGE_KEY.hash_key)
    collector.matches(make_array(["ada", "bob"], columns.pa.string()))
    body = collector.to_bytes(2)
    assert body is not None
    return body


def _purge_ledger() -> bytes:
    objects = MemoryObjects()
    with TemporaryDirectory() as folder:
        purge_ids.write_ids(Path(folder), "string", [make_array(["ada", "bob"], columns.pa.string())])
        ledger.write_ledger(objects, PURGE_KEY, "run-1", [(purge_ids.IdSet(Path(folder)), ["events"])], NOW_MS)
    (info,) = objects.list()
    return info.key.encode() + objects.read(info.key)


FORMS: dict[str, tuple[Callable[[], bytes], str]] = {
    "range": (_range, "096fe0e834c8fdd4d026e455d95a2ee6c77dd23f2dbafd69a39abb37603a4341"),
    "metarange": (_metarange, "26cbae8a504aa43d2376ce0a187ae8f04521e9cf29655d39a87ccf0f3ddc6d06"),
    "listing": (_listing, "9c111ca5c85c1126194966b3777d823bc0e02697596cca27c057edff1b83fb65"),
    "manifest entries": (_manifest, "dbe5cb51aa3a53a482f93386629b4735bb6ecc2557d5cb3588bdb305ce588fad"),
    "audit entry": (_audit_entry, "bf514b75b6cb1d1bbaa527bfd3d49d4c3df346e4033167d8b79f6a03429addaf"),
    "journal": (_journal, "c405cc65fc39d1e714673e92e1187e0e960ef40fc4b5fd8ea068ef22813348e0"),
    "mark": (_mark, "fd548ccfdfa73f80678d530cd3035a2d61e30ddb748e0417e8fd1abd7302a2af"),
    "summary of a run": (_run_summary, "d8e0b807716727a8e8d28bff815ea2d4fa56f09cbb3844a228260345e0960494"),
    "sweep record": (_sweep_record, "1ac8698000927e71276c01f651361eba74877d9ad586a431d5b1de9e1843d3e8"),
    "index of deletions": (_deletion_index, "49a0924942221bf06bd00ca2ff893a256f45bfaf99529e20efd20fe1aa3f41a2"),
    "signed token": (_token, "c0cdfb8cb4ab5216f845b541bb28e122eae4e9f0dab2bf36f5825a0cb8138991"),
    "purge index": (_purge_index, "a6febdd97863e4dc5db8568b4f0b48119312cacb4ab944b13be1c6050f9f34a9"),
    "purge ledger": (_purge_ledger, "ba2e816ffe75e19e8e45d92276587c254461935e2595f068a49a63c69e03c433"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_are_pinned(form: str) -> None:
    make, sha256 = FORMS[form]
    assert hashlib.sha256(make()).hexdigest() == sha256


def test_the_sqlite_file_is_pinned(tmp_path: Path) -> None:
    kv = open_sqlite(f"sqlite://{tmp_path}/kv.sqlite", FakeClock())
    kv.set(Key("partition", "name"), b"value")
    kv.close()
    with sqlite3.connect(tmp_path / "kv.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchall() == [(1,)]
        ((table,),) = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    assert table == (
        "CREATE TABLE kv (partition TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (partition, "
        "name)) WITHOUT ROWID"
    )
