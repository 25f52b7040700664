"""A Delta table is pruned: every version that its log has can be read afterwards, and what none names is gone."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import refstore_prune
from refstore.errors import Corrupt, Invalid, PruneStopped
from tests.prune.folders import make_store, stored_keys
from tests.prune.tables.delta_tables import (
    ODD_DAYS,
    changes_of,
    delete_rows,
    log_file,
    make_table,
    move_to_sidecars,
    needed_keys,
    numbers,
    rows_of,
    split_checkpoint,
    versions_of,
)
from tests.prune.tables.table_runs import age, names_of, open_table, prune_twice, read_parts

ORPHANS = {
    "part-00000-left-over.snappy.parquet",
    "day=tues%2Fday/part-00000-left-over.parquet",
    "_change_data/cdc-00000-left-over.parquet",
    "deletion_vector_00000000-0000-0000-0000-000000000000.bin",
    "_hour=1/part-00000-left-over.parquet",
}
HIDDEN = {
    "_SUCCESS",
    ".part-1.parquet.crc",
    "_delta_index/x.parquet",
    "_delta_log/.tmp/x",
    "day=tues%2Fday/_committed_1",
    "day=tues%2Fday/_temporary/0/part-00000.parquet",
    "_checkpoints/offsets/0",
    ".staging/part-00000.parquet",
    "metadata/snap-1.avro",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lake" / "orders"
    make_table(folder)
    return folder


def test_every_version_stays(folder: Path) -> None:
    make_store(folder, ORPHANS | HIDDEN)
    versions, changes, needed = versions_of(folder), changes_of(folder), needed_keys(folder)
    assert len(versions) == 7
    assert any(key.startswith("_change_data/") for key in needed)
    assert prune_twice(folder, f"delta:{folder}") == ORPHANS
    assert versions_of(folder) == versions
    assert changes_of(folder) == changes
    assert stored_keys(folder) == needed | HIDDEN


def test_what_lies_beside_the_table_stays(folder: Path) -> None:
    """A table names its own files. It says nothing of the photos that lie in the same bucket."""
    make_store(folder, ORPHANS)
    make_store(folder.parent, {"photos/1", "orders2/1"})
    assert prune_twice(folder.parent, f"delta:{folder}") == {f"orders/{key}" for key in ORPHANS}


def test_partitions_of_odd_values(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    make_table(folder, ODD_DAYS)
    make_store(folder, ORPHANS)
    versions, needed = versions_of(folder), needed_keys(folder)
    assert any("%" in key for key in needed)
    assert prune_twice(folder, f"delta:{folder}") == ORPHANS
    assert versions_of(folder) == versions
    assert stored_keys(folder) == needed


def test_odd_values_in_a_folder_with_an_encoded_name(tmp_path: Path) -> None:
    """The store lies above, so its keys have both: `%20` of the folder, and what the log has encoded."""
    make_table(tmp_path / "orders", ["a b", "c", "d"])
    folder = tmp_path / "lake" / "my%20lake"
    folder.parent.mkdir()
    (tmp_path / "orders").rename(folder)
    for commit in (folder / "_delta_log").glob("*.json"):  # as Spark writes it
        commit.write_text(commit.read_text().replace("a%2520b", "a%20b"))
    (folder / "day=a%20b").rename(folder / "day=a b")
    kept = stored_keys(folder)
    make_store(folder, {"day=a b/left-over.parquet"})
    assert prune_twice(tmp_path / "lake", f"delta:{folder}") == {"my%20lake/day=a b/left-over.parquet"}
    assert stored_keys(folder) == kept


def test_deletion_vectors(folder: Path) -> None:
    vectors = [
        delete_rows(folder, [0]),
        delete_rows(folder, [0, 1], prefix="ab"),
        delete_rows(folder, [1], absolute=True),
    ]
    make_store(folder, ORPHANS)
    versions = versions_of(folder)
    assert prune_twice(folder, f"delta:{folder}") == ORPHANS
    assert versions_of(folder) == versions
    assert all(vector.exists() for vector in vectors)
    DeltaTable(folder).create_checkpoint()
    for version in range(9):
        log_file(folder, version).unlink()
    write_deltalake(folder, numbers(90), mode="append")
    newest = rows_of(DeltaTable(folder))
    assert prune_twice(folder, f"delta:{folder}")
    assert rows_of(DeltaTable(folder)) == newest
    assert [vector.exists() for vector in vectors] == [False, True, True]  # the second one was removed by version 9


@pytest.mark.parametrize("form", ["one file", "three parts", "sidecars of Parquet", "sidecars of JSON"])
def test_versions_of_a_checkpoint_stay(folder: Path, form: str) -> None:
    """The commits before it are gone, and so is what only they name."""
    DeltaTable(folder).create_checkpoint()
    for version in range(6):
        log_file(folder, version).unlink()
    if form == "three parts":
        split_checkpoint(folder, 6, 3)
    elif form != "one file":
        delete_rows(folder, [0])  # which writes the protocol that has such checkpoints
        DeltaTable(folder).create_checkpoint()
        log_file(folder, 6, "checkpoint.parquet").unlink()
        log_file(folder, 6).unlink()
        move_to_sidecars(folder, 7, as_json=form == "sidecars of JSON")
    write_deltalake(folder, numbers(70), mode="append")
    DeltaTable(folder).delete("id = 70")
    versions = versions_of(folder)
    assert len(versions) == 3
    make_store(folder, ORPHANS)
    gone = prune_twice(folder, f"delta:{folder}")
    assert gone >= ORPHANS
    assert versions_of(folder) == versions
    assert all("_change_data/" in key for key in gone - ORPHANS)  # only commits name change data


def test_checkpoints_between_commits_that_are_gone(folder: Path) -> None:
    """A checkpoint is all that names the files of its version: the commits that added and removed them are gone, and
    later checkpoints forgot them.
    """
    DeltaTable(folder).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    for first in range(100, 150, 10):
        write_deltalake(folder, numbers(first), mode="overwrite")
        DeltaTable(folder).create_checkpoint()
    for version in range(11):
        log_file(folder, version).unlink()
    log_file(folder, 9, "checkpoint.parquet").unlink()
    versions = versions_of(folder)
    assert set(versions) == {8, 10, 11, 12}
    make_store(folder, ORPHANS)
    assert prune_twice(folder, f"delta:{folder}") > ORPHANS
    assert versions_of(folder) == versions


def test_a_vacuumed_table(folder: Path) -> None:
    """Names of files that are gone keep nothing, and hinder nothing that can be read."""
    for first in range(100, 130, 10):
        write_deltalake(folder, numbers(first), mode="append")
    DeltaTable(folder).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    newest = rows_of(DeltaTable(folder))
    make_store(folder, ORPHANS)
    assert prune_twice(folder, f"delta:{folder}") == ORPHANS
    assert rows_of(DeltaTable(folder)) == newest


def test_files_of_a_failed_commit_go(folder: Path) -> None:
    first, second = DeltaTable(folder), DeltaTable(folder)
    first.delete("id = 10")
    before = stored_keys(folder)
    with pytest.raises(DeltaError):
        second.delete("id = 11")
    left = {key for key in stored_keys(folder) - before if not key.startswith("_delta_log/")}
    assert left
    versions = versions_of(folder)
    assert prune_twice(folder, f"delta:{folder}") == left
    assert versions_of(folder) == versions


def test_a_shallow_clone_keeps_files_of_its_source(folder: Path) -> None:
    """It names them by absolute paths; the source alone would let them go."""
    clone = folder.parent / "clone"
    (clone / "_delta_log").mkdir(parents=True)
    files = DeltaTable(folder).file_uris()
    state = [json.loads(line) for line in log_file(folder, 0).read_text().splitlines()]
    lines = [action for action in state if "add" not in action]
    for version in range(7):
        for action in map(json.loads, log_file(folder, version).read_text().splitlines()):
            if "add" in action:
                path = f"{folder}/{action['add']['path']}"
                lines.append({"add": {**action["add"], "path": f"file://{path}"}})
    log_file(clone, 0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert files
    before = rows_of(DeltaTable(clone))
    DeltaTable(folder).create_checkpoint()
    write_deltalake(folder, numbers(200), mode="overwrite")
    for version in range(7):
        log_file(folder, version).unlink()
    names = [f"delta:{folder}", f"delta:{clone}"]
    make_store(folder, ORPHANS)
    assert prune_twice(folder, names) >= ORPHANS
    assert rows_of(DeltaTable(clone)) == before
    with pytest.raises(PruneStopped, match="clone"):
        prune_twice(folder.parent, names[0])


def test_a_log_that_is_cleaned_up_while_it_is_read(folder: Path) -> None:
    """A checkpoint that was not there when the log was listed has what the lost commits named, and it is not read."""
    parts = list(open_table(f"delta:{folder}").parts())
    DeltaTable(folder).create_checkpoint()
    for version in range(7):
        log_file(folder, version).unlink()
    with pytest.raises(Corrupt, match="run again"):
        list(read_parts(parts))


@pytest.mark.parametrize("lost", ["commit", "checkpoint part", "sidecar"])
def test_a_log_that_is_not_complete_stops_the_run(folder: Path, lost: str) -> None:
    if lost == "commit":
        log_file(folder, 3).unlink()
    else:
        delete_rows(folder, [0])
        DeltaTable(folder).create_checkpoint()
        for version in range(8):
            log_file(folder, version).unlink()
        if lost == "sidecar":
            move_to_sidecars(folder, 7, as_json=False)
            next(folder.glob("_delta_log/_sidecars/*")).unlink()
        else:
            split_checkpoint(folder, 7, 2)
            log_file(folder, 7, "checkpoint.0000000002.0000000002.parquet").unlink()
    with pytest.raises((Corrupt, Invalid), match="delta:"):
        names_of(f"delta:{folder}")


def test_half_a_file_of_the_log_is_refused(folder: Path) -> None:
    DeltaTable(folder).create_checkpoint()
    for version in range(6):
        log_file(folder, version).unlink()
    for file in (log_file(folder, 6), log_file(folder, 6, "checkpoint.parquet")):
        whole = file.read_bytes()
        for end in range(1, len(whole), len(whole) // 20):
            if whole[end - 1 : end] != b"\n":
                file.write_bytes(whole[:end])
                with pytest.raises(Corrupt):
                    names_of(f"delta:{folder}")
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ({"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}, "4"),
        (
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]}},
            "catalogManaged",
        ),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["newThings"]}}, "newThings"),
        ({"bloomFilter": {"path": "x"}}, "bloomFilter"),
        ({"add": {"path": "x", "deletionVector": {"storageType": "z", "pathOrInlineDv": "x"}}}, "'z'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(folder: Path, action: object, told: str) -> None:
    log_file(folder, 7).write_text(json.dumps(action) + "\n")
    with pytest.raises((Corrupt, Invalid), match=told):
        names_of(f"delta:{folder}")


@pytest.mark.parametrize("store", ["other", "orders/_change_data", "orders/_delta_log"])
def test_a_store_that_has_not_the_whole_table_is_refused(folder: Path, store: str) -> None:
    make_store(folder.parent, {"other/photos/1"})
    with pytest.raises(Invalid, match=f"{store}.*prune the"):
        prune_twice(folder.parent / store, f"delta:{folder}")


def test_a_table_that_is_none(folder: Path) -> None:
    with pytest.raises(Invalid, match="no log"):
        names_of(f"delta:{folder.parent}")
    with pytest.raises(Invalid):
        refstore_prune.prune(folder, f"delta:{folder}", properties={"a": "b"})


def test_files_of_a_commit_under_way_stay(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    age(copy)
    make_store(copy, ORPHANS)
    make_store(copy, {"part-00000-under-way.parquet"}, days_ago=6.9)
    report = refstore_prune.prune(copy, f"delta:{copy}", dry_run=True, grace=timedelta(0), engine="local")
    assert report.verdicts["unnamed"].objects == len(ORPHANS)
    assert report.verdicts["young"].objects == 1
