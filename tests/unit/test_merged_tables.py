"""Two branches wrote one table: a merge takes the log of one of them, and never a log of both."""

from __future__ import annotations

import pytest

from refstore.core.clock import Clock
from refstore.errors import MergeConflict
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.repository import Repository
from tests.contents import contents

LOGS = {
    "Delta": ("shop/sales/_delta_log/", "000.json", "001.json", "002.json"),
    "Delta at the root": ("_delta_log/", "000.json", "001.json", "_sidecars/2.parquet"),
    "Hudi": ("shop/sales/.hoodie/", "hoodie.properties", "1.commit", "metadata/2.commit"),
    "Iceberg": ("shop/sales/metadata/", "v1.metadata.json", "v2.metadata.json", "v3.metadata.json"),
    "Iceberg, by its hint": ("shop/sales/metadata/", "v1.metadata.json", "version-hint.text", "v3.metadata.json"),
}


@pytest.fixture
def repo(clock: Clock) -> Repository:
    return Lake(MemoryKV(), "memory://merged-tables", clock=clock).create_repository("tables")


def write(repo: Repository, branch: str, files: dict[str, bytes]) -> None:
    for path, body in files.items():
        repo.upload(branch, path, body)
    repo.commit(branch, f"by {branch}")


def two_writers(repo: Repository, log: tuple[str, str, str, str]) -> None:
    """Both write the next version; main writes one more."""
    folder, base, shared, more = log
    write(repo, "main", {folder + base: b"0", "shop/notes.txt": b"0"})
    repo.create_branch("dev", source="main")
    write(repo, "main", {folder + shared: b"main", folder + more: b"main", "shop/sales/main.parquet": b"m"})
    write(repo, "dev", {folder + shared: b"dev", "shop/sales/dev.parquet": b"d", "zoo.txt": b"dev"})


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize(("source", "into", "strategy", "winner"), [
    ("dev", "main", "source-wins", "dev"),
    ("dev", "main", "dest-wins", "main"),
    ("main", "dev", "source-wins", "main"),
    ("main", "dev", "dest-wins", "dev"),
])  # fmt: skip
def test_a_strategy_takes_the_whole_log_of_the_winner(
    repo: Repository, log: tuple[str, str, str, str], source: str, into: str, strategy: str, winner: str
) -> None:
    two_writers(repo, log)
    folder = log[0]
    wanted = {path: body for path, body in contents(repo, winner).items() if path.startswith(folder)}
    repo.merge(source, into=into, strategy=strategy)
    merged = contents(repo, into)
    assert {path: body for path, body in merged.items() if path.startswith(folder)} == wanted
    assert {"shop/sales/main.parquet", "shop/sales/dev.parquet", "shop/notes.txt", "zoo.txt"} < set(merged)


def test_a_conflict_names_the_table(repo: Repository) -> None:
    two_writers(repo, LOGS["Delta"])
    with pytest.raises(MergeConflict, match="wrote the Delta table 'shop/sales/'") as told:
        repo.merge("dev", into="main")
    assert told.value.paths == ("shop/sales/_delta_log/001.json",)


def test_a_table_that_one_side_wrote_is_merged_as_ever(repo: Repository) -> None:
    folder = LOGS["Delta"][0]
    write(repo, "main", {folder + "000.json": b"0", "a.txt": b"0"})
    repo.create_branch("dev", source="main")
    write(repo, "main", {"a.txt": b"main", folder + "000.checkpoint.parquet": b"main"})
    write(repo, "dev", {"a.txt": b"dev", folder + "001.json": b"dev"})
    repo.merge("dev", into="main", strategy="dest-wins")
    assert contents(repo) == {
        "a.txt": b"main",
        folder + "000.json": b"0",
        folder + "000.checkpoint.parquet": b"main",
        folder + "001.json": b"dev",
    }


def test_a_folder_that_is_called_metadata_is_no_table(repo: Repository) -> None:
    write(repo, "main", {"metadata/notes.json": b"0"})
    repo.create_branch("dev", source="main")
    write(repo, "main", {"metadata/notes.json": b"main", "metadata/main.json": b"main"})
    write(repo, "dev", {"metadata/notes.json": b"dev", "metadata/t/metadata/v1.metadata.json": b"dev"})
    with pytest.raises(MergeConflict) as told:
        repo.merge("dev", into="main")
    assert "table" not in str(told.value)
    repo.merge("dev", into="main", strategy="source-wins")
    assert contents(repo) == {
        "metadata/main.json": b"main",
        "metadata/notes.json": b"dev",
        "metadata/t/metadata/v1.metadata.json": b"dev",
    }
