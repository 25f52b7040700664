"""Inventories of S3 in place of a listing: what they list, what is refused, and that an old one takes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, Invalid, PruneStopped
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import SkippedKeys
from refstore_gc.engines.choice import Engines
from refstore_gc.run_layout import read_table
from refstore_prune import inventory
from refstore_prune.inventory import list_inventory
from refstore_prune.list_store import Listing
from refstore_prune.prune_layout import make_prune_layout
from tests.prune.given_names import count_of, prune
from tests.prune.inventories import FORMATS, InventoryWriter, make_rows
from tests.servers.s3_servers import BUCKET, S3Server

MADE = 1_763_708_400_000
PRUNED = "s3://big/lake/raw?endpoint=http://127.0.0.1:9"
ODD = ["a b", "a+b", "a%2Fb", "é/😀", "dt=2024-01-01/x", "x%", 'quote"d', "com,ma"]

Objects = Sequence[tuple[str, int, int, str]]


def objects_of(keys: Sequence[str], *, prefix: str = "lake/raw/") -> list[tuple[str, int, int, str]]:
    return [(prefix + key, number, MADE - 1000 * number, f"e{number}") for number, key in enumerate(keys)]


@pytest.fixture
def copied(tmp_path: Path) -> ObjectStore:
    """A folder into which an inventory was copied."""
    return open_objects(f"file://{tmp_path}/copied?fsync=0", create=True)


@pytest.fixture
def make(copied: ObjectStore) -> Callable[[str], InventoryWriter]:
    return lambda file_format: InventoryWriter(copied.put, bucket="big", file_format=file_format, made_ms=MADE)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few rows make several sorted files, intervals and chunks."""
    monkeypatch.setattr(inventory, "CHUNK_ROWS", 20)
    monkeypatch.setattr(inventory, "BLOCK_ROWS", 4)


def read(tmp_path: Path, engines: Engines, writer: InventoryWriter, *, pruned: str = PRUNED) -> Listing:
    key = writer.finish()
    layout = make_prune_layout(pruned, "run", files=f"file://{tmp_path}/files?fsync=0")
    open_objects(layout.files, create=True)
    return list_inventory(layout, engines.for_objects(0), f"file://{tmp_path}/copied/{key}")


def rows_of(tmp_path: Path, listing: Listing) -> list[tuple[Any, ...]]:
    store = open_objects(f"file://{tmp_path}/files")
    tables = [read_table(store, chunk.key) for chunk in listing.chunks]
    assert [chunk.first_key for chunk in listing.chunks] == [table["key"][0].as_py() for table in tables]
    assert [chunk.objects for chunk in listing.chunks] == [len(table) for table in tables]
    return [row for table in tables for row in zip(*table.to_pydict().values(), strict=True)]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("pruned", [PRUNED, "s3://big"])
def test_rows_in_no_order_become_chunks_in_order(
    tmp_path: Path,
    make: Callable[[str], InventoryWriter],
    engines: Engines,
    small: None,
    file_format: str,
    pruned: str,
) -> None:
    keys = [*ODD, *(f"t/{number:03d}" for number in range(300))]
    objects = objects_of(keys)
    random.Random(4).shuffle(objects)
    writer = make(file_format)
    for at in range(0, len(objects), 70):
        writer.add_file(make_rows(objects[at : at + 70]))
    writer.add_file(make_rows(objects_of(["far"], prefix="lake/rawest/")))
    found = read(tmp_path, engines, writer, pruned=pruned)
    prefix = "" if pruned == "s3://big" else "lake/raw/"
    due = sorted(("lake/raw/" + key).removeprefix(prefix) for key in keys) + (["lake/rawest/far"] if not prefix else [])
    rows = rows_of(tmp_path, found)
    assert [row[0] for row in rows] == due
    assert {row for row in rows if "far" not in row[0]} == {(row[0].removeprefix(prefix), *row[1:]) for row in objects}
    assert len(found.chunks) > 8
    assert found.facts.listed.objects == len(due)
    assert found.facts.has_encoded_keys
    assert found.as_of_ms == MADE


def test_as_many_rows_as_leave_the_last_interval_empty(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines, small: None
) -> None:
    """A block that begins with the greatest key may be where the last cut is."""
    for count in range(1, 90):
        writer = make("Parquet")
        keys = [f"{number:03d}" for number in range(count)]
        writer.add_file(make_rows(objects_of(keys)))
        assert [row[0] for row in rows_of(tmp_path, read(tmp_path, engines, writer))] == keys


@pytest.mark.parametrize("file_format", FORMATS)
def test_only_the_latest_versions_are_objects(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines, file_format: str
) -> None:
    rows = make_rows(
        objects_of(["old", "latest", "marker"]),
        version_id=["1", "2", "3"],
        is_latest=[False, True, True],
        is_delete_marker=[False, False, True],
        size=[1, 2, None],
    )
    writer = make(file_format)
    writer.add_file(rows)
    assert [row[0] for row in rows_of(tmp_path, read(tmp_path, engines, writer))] == ["latest"]
    writer = make(file_format)
    writer.add_file(rows.drop_columns(["is_latest"]))
    with pytest.raises(Invalid, match="IsLatest"):
        read(tmp_path, engines, writer)


def test_of_a_key_that_is_there_twice_the_later_counts(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines, small: None
) -> None:
    writer = make("Parquet")
    writer.add_file(make_rows([("lake/raw/twice", size, MADE - size, "") for size in range(50, 0, -1)]))
    writer.add_file(make_rows([("lake/raw/a", 1, MADE, ""), ("lake/raw/z", 1, MADE, "")]))
    found = read(tmp_path, engines, writer)
    assert rows_of(tmp_path, found) == [("a", 1, MADE, ""), ("twice", 1, MADE - 1, ""), ("z", 1, MADE, "")]
    assert found.facts.listed.objects == 3


def test_what_is_told_of_keys_is_as_of_a_listing(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines
) -> None:
    keys = ["_refstore/prune/x", "t/_delta_log/0.json", "folder/", "a//b", "../up", "x" * 1100, "plain", ".hidden"]
    writer = make("CSV")
    writer.add_file(make_rows(objects_of(keys)))
    found = read(tmp_path, engines, writer)
    assert [row[0] for row in rows_of(tmp_path, found)] == [".hidden", "plain", "t/_delta_log/0.json"]
    assert (found.facts.skipped, found.facts.own.objects, found.facts.listed.objects) == (4, 1, 4)
    assert [place.folder for place in found.facts.places] == ["t"]


def test_without_etags_the_size_and_the_time_remain(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines
) -> None:
    writer = make("ORC")
    writer.add_file(make_rows(objects_of(["a"])).drop_columns(["e_tag"]))
    assert rows_of(tmp_path, read(tmp_path, engines, writer)) == [("a", 0, MADE, "")]


@pytest.mark.parametrize("missing", ["size", "last_modified_date"])
@pytest.mark.parametrize("file_format", FORMATS)
def test_without_size_or_time_it_is_refused(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines, file_format: str, missing: str
) -> None:
    writer = make(file_format)
    writer.add_file(make_rows(objects_of(["a"])).drop_columns([missing]))
    with pytest.raises(Invalid, match=r"Size|LastModifiedDate"):
        read(tmp_path, engines, writer)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"sourceBucket": "other"}, Invalid),
        ({"version": "2030-01-01"}, Invalid),
        ({"fileFormat": "JSON"}, Invalid),
        ({"creationTimestamp": "yesterday"}, Invalid),
        ({"creationTimestamp": None}, Invalid),
        ({"files": []}, Invalid),
        ({"files": [{"key": "x/y/data/a.csv.gz", "size": 1, "MD5checksum": ""}]}, Corrupt),
    ],
)
def test_a_manifest_that_does_not_fit(
    tmp_path: Path,
    make: Callable[[str], InventoryWriter],
    engines: Engines,
    change: dict[str, object],
    error: type[Exception],
) -> None:
    writer = make("CSV")
    writer.add_file(make_rows(objects_of(["a"])))
    writer.change = change
    with pytest.raises(error):
        read(tmp_path, engines, writer)


@pytest.mark.parametrize(("cut", "added"), [(9, b""), (1, b"?")])
@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_that_is_not_as_it_was_written(
    tmp_path: Path,
    copied: ObjectStore,
    make: Callable[[str], InventoryWriter],
    engines: Engines,
    file_format: str,
    cut: int,
    added: bytes,
) -> None:
    writer = make(file_format)
    key = writer.add_file(make_rows(objects_of(["a", "b"])))
    copied.put(key, copied.read(key)[:-cut] + added)
    with pytest.raises(Corrupt, match="take another inventory"):
        read(tmp_path, engines, writer)
    copied.delete_many([key])
    with pytest.raises(Corrupt, match="take another inventory"):
        read(tmp_path, engines, writer)


def test_a_file_that_is_another_one(
    tmp_path: Path, copied: ObjectStore, make: Callable[[str], InventoryWriter], engines: Engines
) -> None:
    writer, other = make("Parquet"), make("Parquet")
    keys = [each.add_file(make_rows(objects_of([name]))) for each, name in ((writer, "a"), (other, "b"))]
    bodies = [copied.read(key) for key in keys]
    assert len(bodies[0]) == len(bodies[1])
    copied.put(keys[0], bodies[1])
    with pytest.raises(Corrupt, match="checksum"):
        read(tmp_path, engines, writer)


def test_a_checksum_of_another_manifest(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines
) -> None:
    writer = make("CSV")
    writer.add_file(make_rows(objects_of(["a"])))
    key = writer.finish(checksum="0" * 32)
    layout = make_prune_layout(PRUNED, "run", files=f"file://{tmp_path}/files")
    with pytest.raises(Corrupt, match="checksum"):
        list_inventory(layout, engines.for_objects(0), f"file://{tmp_path}/copied/{key}")
    with pytest.raises(Invalid, match=r"manifest\.json"):
        list_inventory(layout, engines.for_objects(0), f"file://{tmp_path}/copied/{key}l")


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_with_rows_of_another_bucket_or_without_a_size(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines, file_format: str
) -> None:
    for columns in ({"bucket": ["big", "other"]}, {"size": [1, None]}, {"last_modified_date": ["no", "time"]}):
        writer = make(file_format)
        writer.add_file(make_rows(objects_of(["a", "b"]), **columns))
        with pytest.raises(Corrupt):
            read(tmp_path, engines, writer)


def test_csv_with_a_row_that_is_cut(
    tmp_path: Path, copied: ObjectStore, make: Callable[[str], InventoryWriter], engines: Engines
) -> None:
    writer = make("CSV")
    writer.add_file(make_rows(objects_of(["a"])))
    writer.add_file(make_rows(objects_of(["b"])).drop_columns(["e_tag"]))
    writer.add_file(make_rows(objects_of(["c"])))
    with pytest.raises(Corrupt, match="what its manifest says"):
        read(tmp_path, engines, writer)


def test_an_inventory_of_another_prefix(
    tmp_path: Path, make: Callable[[str], InventoryWriter], engines: Engines
) -> None:
    writer = make("CSV")
    writer.add_file(make_rows(objects_of(["a"], prefix="other/")))
    with pytest.raises(Invalid, match="no object"):
        read(tmp_path, engines, writer)


# ---- whole runs


NAMED = [f"kept/{number}" for number in range(30)]
STRAY = [f"stray/{number}" for number in range(12)] + ["a b", "c+d", "e%2Ff", "é"]


def write_inventory(bucket: ObjectStore, prefix: str, *, file_format: str = "CSV", made_ms: int = 0) -> str:
    """Write an inventory of what there is below a prefix into the same bucket; return its URL."""
    made_ms = made_ms or SystemClock().now_ms()
    writer = InventoryWriter(bucket.put, bucket=BUCKET, file_format=file_format, made_ms=made_ms, folder=f"inv{prefix}")
    for page in bucket.list_pages(f"{prefix}/", skipped=SkippedKeys()):
        writer.add_file(make_rows(list(zip(*page, strict=True))[::-1]))
    base, _, options = bucket.url.partition("?")
    return f"{base}/{writer.finish()}?{options}"


@pytest.fixture
def bucket(rclone_s3_server: S3Server) -> Iterator[ObjectStore]:
    store = open_objects(f"s3://{BUCKET}?{rclone_s3_server.url().partition('?')[2]}")
    yield store
    store.close()


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_run_takes_what_the_next_inventory_has_unchanged(
    tmp_path: Path, rclone_s3_server: S3Server, bucket: ObjectStore, engines: Engines, file_format: str
) -> None:
    url = rclone_s3_server.url(f"pruned-{file_format}")
    prefix = f"pruned-{file_format}"
    for key in [*NAMED, *STRAY]:
        bucket.put(f"{prefix}/{key}", key.encode())
    listed = prune(url, NAMED, engines, dry_run=True)
    first_url = write_inventory(bucket, prefix, file_format=file_format)
    options: dict[str, Any] = {"state": f"file://{tmp_path}/state", "inventory": first_url}
    simulated = prune(url, NAMED, engines, dry_run=True, inventory=first_url)
    assert (simulated.verdicts, simulated.names) == (listed.verdicts, listed.names)
    assert any("inventory" in sentence for sentence in simulated.not_looked_at)
    assert prune(url, NAMED, engines, **options).newly_marked.objects == len(STRAY)
    assert prune(url, NAMED, engines, **options).due.objects == 0
    bucket.put(f"{prefix}/since", b"written after the first inventory")
    options["inventory"] = write_inventory(bucket, prefix, file_format=file_format)
    bucket.put(f"{prefix}/{STRAY[0]}", b"written after the second inventory")
    bucket.delete_many([f"{prefix}/{STRAY[1]}"])
    swept = prune(url, NAMED, engines, **options)
    assert {name: count.objects for name, count in swept.outcomes.items()} == {
        "deleted": len(STRAY) - 2,
        "changed": 1,
        "already gone": 1,
    }
    assert {info.key for info in bucket.list(f"{prefix}/")} == {
        f"{prefix}/{key}" for key in [*NAMED, STRAY[0], "since"]
    }


def test_nothing_younger_than_the_inventory_allows_is_taken(
    rclone_s3_server: S3Server, bucket: ObjectStore, engines: Engines
) -> None:
    """Ages are counted up to when the inventory was made."""
    url = rclone_s3_server.url("aged")
    for key in [*NAMED, *STRAY]:
        bucket.put(f"aged/{key}", key.encode())
    made_ms = SystemClock().now_ms() - 9 * 86_400_000
    found = prune(url, NAMED, engines, dry_run=True, inventory=write_inventory(bucket, "aged", made_ms=made_ms))
    assert count_of(found, "young") == len(STRAY)
    assert found.failed_checks == []


def test_an_old_inventory_needs_consent(
    tmp_path: Path, rclone_s3_server: S3Server, bucket: ObjectStore, engines: Engines
) -> None:
    bucket.put("old/a", b"a")
    made_ms = SystemClock().now_ms() - timedelta(days=11) // timedelta(milliseconds=1)
    options: dict[str, Any] = {
        "state": f"file://{tmp_path}/state",
        "inventory": write_inventory(bucket, "old", made_ms=made_ms),
    }
    with pytest.raises(PruneStopped, match="over 10 days ago") as stopped:
        prune(rclone_s3_server.url("old"), ["a"], engines, **options)
    assert stopped.value.words == ("old-inventory",)
    assert prune(rclone_s3_server.url("old"), ["a"], engines, consent=["old-inventory"], **options).state == "marked"
