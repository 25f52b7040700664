"""An Iceberg table is pruned: every snapshot can be read afterwards, and what no snapshot names is gone."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

import refstore_prune
from refstore.errors import Corrupt, Invalid, ObjectsRefused, PruneStopped
from tests.prune.folders import make_store, stored_keys
from tests.prune.tables.iceberg_tables import (
    catalog_properties,
    keys_in,
    make_table,
    needed_files,
    numbers,
    path_of,
    read_rows,
    same_state,
)
from tests.prune.tables.table_runs import names_of, open_table, prune_twice, read_parts

ORPHANS = {"data/00000-0-left-over.parquet", "data/day=monday/x.parquet", "metadata/snap-1-0-left-over.avro"}
HIDDEN = {"_SUCCESS", "data/.x.parquet.crc", "data/_temporary/0/x.parquet", "metadata/version-hint.text"}
NAME = "iceberg:shop.sales.orders"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def table(lake: Path) -> Table:
    """A table with a history: a branch, a tag, deletes, an overwrite, a schema that changed."""
    table = make_table(lake)
    for first in range(0, 20, 5):
        table.append(numbers(first))
    first_id = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first_id, "begun").create_branch(first_id, "audit").commit()
    table.append(numbers(100), branch="audit")
    table.delete("id < 3")
    with table.update_schema() as update:
        update.rename_column("day", "weekday")
    table.overwrite(numbers(50).rename_columns(["id", "weekday"]))
    return table


def folder_of(table: Table) -> Path:
    return path_of(table.location())


@pytest.mark.parametrize("how", ["catalog", "file", "folder"])
def test_everything_that_a_snapshot_names_stays(lake: Path, table: Table, how: str) -> None:
    folder = folder_of(table)
    make_store(folder, ORPHANS | HIDDEN)
    before = same_state(table)
    name = {"catalog": NAME, "file": f"iceberg:{table.metadata_location}", "folder": f"iceberg:{folder}"}[how]
    assert prune_twice(folder, name, catalog_properties(lake) if how == "catalog" else None) == ORPHANS
    assert same_state(table) == before
    assert stored_keys(folder) == keys_in(folder, needed_files(table)) | HIDDEN


def test_expired_snapshots_stay_as_long_as_the_log_has_them(lake: Path, table: Table) -> None:
    """pyiceberg removes the snapshots only, and no files. The log has two metadata files more."""
    with table.transaction() as change:
        change.set_properties(
            {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
        )
    expired = table.snapshots()[1].snapshot_id
    table.maintenance.expire_snapshots().by_id(expired).commit()
    folder = folder_of(table)
    make_store(folder, ORPHANS)
    before = same_state(table)
    assert any(expired in snapshots for snapshots in before.values())
    assert prune_twice(folder, NAME, catalog_properties(lake)) >= ORPHANS
    assert same_state(table) == before

    table.append(numbers(200).rename_columns(["id", "weekday"]))
    table.append(numbers(300).rename_columns(["id", "weekday"]))
    before = same_state(table)
    assert not any(expired in snapshots for snapshots in before.values())
    expected = stored_keys(folder) - keys_in(folder, needed_files(table))
    assert expected
    assert prune_twice(folder, NAME, catalog_properties(lake)) == expected
    assert same_state(table) == before


def test_files_of_a_failed_commit_go(lake: Path, table: Table) -> None:
    with table.transaction() as change:
        change.set_properties({"commit.retry.num-retries": "0"})
    other = SqlCatalog("shop", **catalog_properties(lake)).load_table("sales.orders")
    table.append(numbers(400).rename_columns(["id", "weekday"]))
    kept = needed_files(table)
    with pytest.raises(CommitFailedException):
        other.append(numbers(500).rename_columns(["id", "weekday"]))
    folder = folder_of(table)
    expected = stored_keys(folder) - keys_in(folder, kept)
    assert any(key.startswith("data/") for key in expected)
    before = same_state(table)
    assert prune_twice(folder, NAME, catalog_properties(lake)) == expected
    assert same_state(table) == before


def test_data_and_metadata_that_lie_elsewhere(lake: Path) -> None:
    """The store that is pruned may be the table's, that of its data, or that of its metadata."""
    elsewhere = {"write.data.path": f"file://{lake}/data", "write.metadata.path": f"file://{lake}/meta"}
    table = make_table(lake, properties=elsewhere)
    table.append(numbers(0))
    table.append(numbers(5))
    before = same_state(table)
    for folder in (lake / "data", lake / "meta"):
        make_store(folder, {"left-over"})
        assert prune_twice(folder, NAME, catalog_properties(lake)) == {"left-over"}
    assert same_state(table) == before
    assert read_rows(table) == [(number, "monday") for number in range(10)]


def test_what_lies_beside_the_data_of_a_table_elsewhere_stays(lake: Path) -> None:
    elsewhere = {"write.data.path": f"file://{lake}/store/data", "write.metadata.path": f"file://{lake}/store/meta"}
    make_table(lake, properties=elsewhere).append(numbers(0))
    left_over = {"data/left-over", "meta/left-over"}
    make_store(lake / "store", left_over | {"photos/1", "metadata/1", "data2/1"})
    assert prune_twice(lake / "store", NAME, catalog_properties(lake)) == left_over


def test_what_lies_beside_a_metadata_file_that_was_registered_stays(lake: Path, table: Table) -> None:
    """The table's log names that file for a hundred commits."""
    make_store(lake, {"warehouse/inbox/1.csv", "warehouse/inbox/2.csv"})
    moved = lake / "warehouse" / "inbox" / "00001-moved.metadata.json"
    shutil.copy(path_of(table.metadata_location), moved)
    catalog = SqlCatalog("shop", **catalog_properties(lake))
    catalog.drop_table("sales.orders")
    table = catalog.register_table("sales.orders", f"file://{moved}")
    table.append(numbers(600).rename_columns(["id", "weekday"]))
    make_store(folder_of(table), ORPHANS)
    before = same_state(table)
    gone = prune_twice(lake / "warehouse", NAME, catalog_properties(lake))
    assert {key for key in gone if "inbox" in key} == set()
    assert gone >= {f"sales/orders/{key}" for key in ORPHANS}
    assert same_state(table) == before


def test_a_snapshot_without_files(lake: Path) -> None:
    """pyiceberg writes a manifest list with an empty block for it."""
    table = make_table(lake)
    table.append(numbers(0).slice(0, 0))
    table.append(numbers(0))
    make_store(folder_of(table), ORPHANS)
    assert prune_twice(folder_of(table), NAME, catalog_properties(lake)) == ORPHANS
    assert read_rows(table) == [(number, "monday") for number in range(5)]


def test_a_store_that_has_nothing_of_the_table_is_refused(lake: Path, table: Table) -> None:
    make_store(lake, {"other/photos/1"})
    with pytest.raises(Invalid, match=r"orders lies in .*other"):
        prune_twice(lake / "other", NAME, catalog_properties(lake))


def test_a_folder_of_the_data_of_many_tables_is_refused(lake: Path) -> None:
    shared = {"write.data.path": f"file://{lake}/data", "write.object-storage.enabled": "true"}
    make_table(lake, properties=shared).append(numbers(0))
    make_store(lake, {"data/0110/1001/1010/10000000/sales/returns/1.parquet"})
    with pytest.raises(Invalid, match="lies in"):
        prune_twice(lake / "data", NAME, catalog_properties(lake))


def test_a_table_whose_files_may_be_shared_is_refused(lake: Path, table: Table) -> None:
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    for name in (NAME, f"iceberg:{folder_of(table)}"):
        with pytest.raises(Invalid, match=r"gc\.enabled"):
            open_table(name, catalog_properties(lake)).check(f"file://{lake}")


@pytest.mark.parametrize("place", ["metadata", "."])
@pytest.mark.parametrize("how", ["catalog", "file", "folder"])
def test_metadata_of_another_table_in_the_same_folder_is_refused(
    lake: Path, table: Table, how: str, place: str
) -> None:
    metadata = json.loads(path_of(table.metadata.metadata_log[0].metadata_file).read_text())
    other = folder_of(table) / place / "00001-other.metadata.json"
    other.write_text(json.dumps({**metadata, "table-uuid": "00000000-0000-0000-0000-000000000000"}))
    name = {"catalog": NAME, "file": f"iceberg:{table.metadata_location}", "folder": f"iceberg:{folder_of(table)}"}[how]
    with pytest.raises(Invalid, match="00001-other"):
        names_of(name, catalog_properties(lake) if how == "catalog" else None)


def test_commits_of_another_catalog_stay(lake: Path, table: Table) -> None:
    """The table has left the catalog that is asked."""
    old = catalog_properties(lake) | {"uri": f"sqlite:///{lake}/old.db"}
    shutil.copyfile(lake / "catalog.db", lake / "old.db")
    for first in (60, 70):
        table.append(numbers(first).rename_columns(["id", "weekday"]))
    before = same_state(table)
    make_store(folder_of(table), ORPHANS)
    assert prune_twice(folder_of(table), NAME, old) == ORPHANS
    assert same_state(table) == before


def test_two_tables_below_a_prefix_need_two_sources(lake: Path, table: Table) -> None:
    other = make_table(lake, "sales.returns")
    other.append(numbers(0))
    warehouse = lake / "warehouse"
    make_store(warehouse, {"sales/old/x.parquet", "sales/returns/data/x.parquet", "photos/1"})
    with pytest.raises(PruneStopped, match="sales/returns"):
        prune_twice(warehouse, NAME, catalog_properties(lake))
    before = same_state(table), same_state(other)
    names = [NAME, "iceberg:shop.sales.returns"]
    assert prune_twice(warehouse, names, catalog_properties(lake)) == {"sales/returns/data/x.parquet"}
    assert (same_state(table), same_state(other)) == before


def test_a_newer_metadata_file_than_the_named_one_is_read(lake: Path, table: Table) -> None:
    """Else a run by a file that was named once would delete what was written since."""
    named = table.metadata_location
    table.append(numbers(60).rename_columns(["id", "weekday"]))
    before = same_state(table)
    make_store(folder_of(table), ORPHANS)
    assert prune_twice(folder_of(table), f"iceberg:{named}") == ORPHANS
    assert same_state(table) == before


def test_statistics_and_compressed_metadata(lake: Path, table: Table) -> None:
    """Written as the specification has them: pyiceberg has no writer of statistics, and compresses nothing."""
    folder = folder_of(table)
    metadata = json.loads(path_of(table.metadata_location).read_text())
    named = {f"metadata/{name}" for name in ("a.stats", "b.parquet", "c.avro")}
    make_store(folder, named | ORPHANS)
    metadata["statistics"] = [{"statistics-path": f"file://{folder}/metadata/a.stats", "snapshot-id": 1}]
    metadata["partition-statistics"] = [{"statistics-path": f"file://{folder}/metadata/b.parquet"}]
    metadata["snapshots"].append({"snapshot-id": 1, "manifests": [f"file://{folder}/metadata/c.avro"]})
    newest = folder / "metadata" / "99999-x.gz.metadata.json"
    newest.write_bytes(gzip.compress(json.dumps(metadata).encode()))
    manifest = next(each for each in folder.glob("metadata/*-m0.avro"))
    (folder / "metadata" / "c.avro").write_bytes(manifest.read_bytes())
    assert prune_twice(folder, f"iceberg:{newest}") == ORPHANS


def test_a_snapshot_that_expires_while_the_table_is_read(lake: Path, table: Table) -> None:
    """Its manifests go, as Spark removes them. New ones, which this reading has not, may name the same data files."""
    parts = list(open_table(NAME, catalog_properties(lake)).parts())
    named_by = {
        each.snapshot_id: {manifest.manifest_path for manifest in each.manifests(table.io)}
        for each in table.snapshots()
    }
    kept = set().union(*(named_by.pop(ref.snapshot_id, set()) for ref in table.metadata.refs.values()))
    expired, lost = next((each, paths - kept) for each, paths in named_by.items() if paths - kept)
    table.maintenance.expire_snapshots().by_id(expired).commit()
    for manifest in lost:
        path_of(manifest).unlink()
    with pytest.raises(Corrupt, match="run again"):
        list(read_parts(parts))


@pytest.mark.parametrize("kind", ["manifest", "manifest list"])
def test_what_the_newest_metadata_file_names_must_be_there(lake: Path, table: Table, kind: str) -> None:
    """Whichever file of the table is named."""
    named = table.metadata_location
    table.append(numbers(60).rename_columns(["id", "weekday"]))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path_of(
        snapshot.manifest_list if kind == "manifest list" else snapshot.manifests(table.io)[0].manifest_path
    ).unlink()
    with pytest.raises(Corrupt, match="run again"):
        names_of(f"iceberg:{named}")


def test_a_manifest_that_is_missing_stops_the_run(lake: Path, table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = path_of(snapshot.manifests(table.io)[0].manifest_path)
    content = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(Corrupt, match="restore it"):
        names_of(NAME, catalog_properties(lake))
    manifest.write_bytes(content)
    path_of(snapshot.manifest_list).unlink()
    with pytest.raises(Corrupt, match="restore it"):
        names_of(NAME, catalog_properties(lake))


def test_an_older_metadata_file_may_be_gone(lake: Path, table: Table) -> None:
    path_of(table.metadata.metadata_log[0].metadata_file).unlink()
    source = open_table(NAME, catalog_properties(lake))
    assert set(read_parts(source.parts())) == needed_files(table)
    assert source.facts().read["metadata files and manifest lists that are gone"] == 1


def test_half_a_file_is_refused(lake: Path, table: Table) -> None:
    """pyiceberg's own reader would go on with what follows in memory, or take it, or an empty block, for the end. A
    manifest list alone looks whole if it ends with a whole block: nothing says how long it is.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None
    name, lists = f"iceberg:{table.metadata_location}", snapshot.manifest_list
    for location in (lists, snapshot.manifests(table.io)[0].manifest_path):
        file = path_of(location)
        whole = file.read_bytes()
        for end in (*range(0, len(whole), len(whole) // 20), whole.index(whole[-16:]) + 8):
            if location != lists or not whole[:end].endswith(whole[-16:]):
                file.write_bytes(whole[:end])
                with pytest.raises(Corrupt):
                    names_of(name)
        mark = whole[-16:]
        header = whole[: whole.index(mark) + 16]
        without_records = [header] if location != lists else []
        for content in (*without_records, header + b"\0\4\3\0" + mark + whole[len(header) :]):
            file.write_bytes(content)
            with pytest.raises(Corrupt):
                names_of(name)
        file.write_bytes(whole)
    metadata = path_of(table.metadata.metadata_log[-1].metadata_file)
    metadata.write_bytes(metadata.read_bytes()[:100])
    with pytest.raises(Corrupt):
        names_of(name)


class RefusingFileIO(PyArrowFileIO):
    """Refuses older metadata files, as a store does whose rights changed."""

    def new_input(self, location: str) -> Any:
        if "/00000-" in location:
            raise PermissionError(location)
        return super().new_input(location)


def test_a_file_that_may_not_be_read_stops_the_run(lake: Path, table: Table) -> None:
    properties = {**catalog_properties(lake), "py-io-impl": f"{RefusingFileIO.__module__}.{RefusingFileIO.__name__}"}
    with pytest.raises(ObjectsRefused, match="/00000-"):
        names_of(NAME, properties)


def test_what_is_not_known_is_refused_by_name(lake: Path, table: Table) -> None:
    metadata = json.loads(path_of(table.metadata_location).read_text())
    file = folder_of(table) / "metadata" / "99999-x.metadata.json"
    file.write_text(json.dumps({**metadata, "format-version": 4}))
    with pytest.raises(Invalid, match="version 4"):
        names_of(f"iceberg:{file}")
    for name in ("iceberg:shop.sales.nothing", "iceberg:shop", f"iceberg:{lake}/nothing"):
        with pytest.raises(Invalid):
            names_of(name, catalog_properties(lake))


def test_files_of_a_commit_under_way_stay(lake: Path, table: Table) -> None:
    """They are younger than the source's minimum age."""
    folder = folder_of(table)
    make_store(folder, ORPHANS)
    make_store(folder, {"data/00000-0-under-way.parquet"}, days_ago=2.9)
    report = refstore_prune.prune(folder, NAME, properties=catalog_properties(lake), dry_run=True, engine="local")
    assert report.verdicts["unnamed"].objects == len(ORPHANS)
    assert report.verdicts["young"].objects == 1
