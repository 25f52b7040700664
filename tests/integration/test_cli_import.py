"""`refstore import`: what it prints, refuses and counts."""

from __future__ import annotations

from pathlib import Path

import pytest

import refstore
from tests.commands import Command
from tests.kit.unchecked_staging import stage_unchecked


@pytest.fixture
def landing(sales: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = sales.folder / "landing"
    monkeypatch.setenv("REFSTORE_IMPORT_FROM", f"file://{folder}")
    for name in ("a.csv", "b/1.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"data of {name}")
    (folder / "link").symlink_to("/etc/passwd")
    return folder


@pytest.mark.parametrize(("source", "destination"), [("landing", "in/"), ("landing/", "in/"), ("./landing", "in")])
def test_a_folder_is_imported_with_message_and_metadata(
    sales: Command, landing: Path, source: str, destination: str
) -> None:
    answer = sales.json(
        "import", "sales", "main", source, destination, "-m", "landing zone", "--meta", "job=7", "--by", "ann"
    )
    head = sales.json("log", "sales", "--limit", "1")[0]
    assert (head["message"], head["committer"]) == ("landing zone (1 name of the source was left out)", "ann")
    assert (head["metadata"], head["notes"]) == ({"job": "7"}, {"skipped": "1"})
    assert answer == {
        "branch": "main",
        "destination": destination,
        "commit": head["commit"],
        "objects": 2,
        "size_bytes": 28,
        "existing_paths": 0,
        "removed_paths": 0,
        "skipped_objects": 1,
        "skipped_examples": [{"name": "link", "reason": "it is a symbolic link"}],
    }
    assert sales.ok("cat", "sales", "main", "in/b/1.csv").out == "data of b/1.csv"
    sales.ok("download", "-r", "sales", "main", "in/", "down")
    assert (sales.folder / "down" / "b" / "1.csv").read_text() == "data of b/1.csv"


def test_one_object_is_imported_to_a_path(sales: Command, landing: Path) -> None:
    sales.ok("import", "sales", "main", f"file://{landing}/a.csv", "x.csv", "--object")
    assert sales.ok("cat", "sales", "main", "x.csv").out == "data of a.csv"


def test_what_cannot_be_read_yet_is_said(sales: Command, landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sales.ok("import", "sales", "main", landing, "in/").err == ""
    monkeypatch.delenv("REFSTORE_IMPORT_FROM")
    ran = sales.ok("import", "sales", "main", landing / "b", "b/")
    assert "cannot be read yet: put it, or a folder above it, into the setting import_from" in ran.err


def test_a_dry_run_counts_and_changes_nothing(sales: Command, landing: Path) -> None:
    sales.ok("import", "sales", "main", "landing", "in/")
    before = sales.json("log", "sales")
    answer = sales.json("import", "sales", "main", landing / "b", "in/", "--dry-run")
    assert (answer["commit"], answer["objects"], answer["existing_paths"]) == (None, 1, 2)
    assert sales.json("log", "sales") == before


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["landing"], 2, "usage"),  # the whole branch is never meant by leaving something out
        (["nowhere", "in/"], 3, "object_not_found"),
        (["landing/a.csv", "in/"], 4, "conflict"),
        (["gs://bucket/x", "in/"], 2, "invalid_name"),
        (["lake", "in/"], 2, "invalid_name"),
        (["landing", "../x"], 2, "invalid_path"),
        (["landing", "", "--object"], 2, "usage"),
    ],
)
def test_what_is_refused(sales: Command, landing: Path, words: list[str], code: int, error: str) -> None:
    del landing
    ran = sales("import", "sales", "main", *words, "--json")
    assert (ran.code, ran.error["code"]) == (code, error)


@pytest.mark.parametrize(
    ("first", "error"),
    [
        pytest.param(["import", "sales", "main", "landing", "in/"], "nothing_to_commit", id="unchanged again"),
        pytest.param(["upload", "sales", "main", "-", "x"], "dirty_branch", id="staged changes"),
    ],
)
def test_what_stands_in_the_way(sales: Command, landing: Path, first: list[str], error: str) -> None:
    del landing
    sales.ok(*first, stdin=b"x")
    ran = sales("import", "sales", "main", "landing", "in/", "--json")
    assert (ran.code, ran.error["code"]) == (4, error)


def test_what_cannot_be_parsed_is_refused_and_where_it_is_already_the_others_are_downloaded(
    sales: Command, landing: Path
) -> None:
    for url in ("s3://[bad/x", "s3://b/x%00y"):
        ran = sales("import", "--stage", "sales", "main", url, "p", "--size", "1", "--json")
        assert (ran.code, ran.error["code"]) == (2, "invalid_name")
        assert sales("import", "sales", "main", url, "in/", "--json").code == 2
    sales.ok("import", "--stage", "sales", "main", f"file://{landing}/a.csv", "in/good", "--size", "13")
    with refstore.open(sales.folder / "lake") as lake:
        stage_unchecked(lake.repository("sales"), "in/bad", "s3://[bad/x")
    why = {row["path"]: row.get("unreadable", "") for row in sales.json("ls", "sales", "main", "in/")}
    assert (bool(why["in/bad"]), why["in/good"]) == (True, "")
    assert sales.json("stat", "sales", "main", "in/bad")["unreadable"] == why["in/bad"]
    ran = sales("download", "-r", "sales", "main", "in/", "down")
    assert ran.code == 6
    assert "'in/bad', which lies at s3://[bad/x, was not downloaded" in ran.err
    assert (sales.folder / "down" / "good").read_text() == "data of a.csv"
    assert sales("cat", "sales", "main", "in/bad", "--json").error["code"] == "foreign_not_allowed"
