"""The options that say what a file of ids is, as the commands have them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.commands import Command
from tests.offline.world import World
from tests.purge.looking import ids_at, parquet_of

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

ONE, TWO = "550e8400-e29b-41d4-a716-446655440000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture
def lake(refstore: Command, engines: Engines) -> World:
    """Make a lake with a data set of integers, one of text and one of UUIDs."""
    world = World(refstore.folder / "lake")
    columns = {"events": pa.array([7, 8, 9]), "clicks": pa.array(["7", "8", "", "9"]), "visits": uuids(ONE, TWO)}
    for name, values in columns.items():
        world.repo.upload("main", f"{name}/x", parquet_of(pa.table({"id": values})))
    world.repo.commit("main", "data")
    datasets = [
        {"name": name, "prefix": f"{name}/", "format": "parquet", "identifier": "id", "mode": "keep-history"}
        for name in columns
    ]
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": datasets}), by="tests")
    return world


def uuids(*texts: str) -> Any:
    return pa.array([bytes.fromhex(text.replace("-", "")) for text in texts], pa.binary(16))


def test_a_run_says_what_it_read_and_of_which_data_sets(refstore: Command, lake: World) -> None:
    file = refstore.folder / "forget.csv"
    file.write_text(f"set;id;name\nevents;7;Ann, Ltd.\nclicks;8;B\nvisits;{TWO.upper()};C\n")
    words = ["purge", "run", "sales", "--ids", file, "--id-column", "id", "--dataset-column", "set", "--delimiter", ";"]
    tried = refstore.ok(*words, "--dry-run")
    assert "refstore: ids: 3 values, text; for clicks, events, visits\n" in tried.err
    refstore.ok(*words, "--yes")
    assert ids_at(lake.repo, "events/x") == [8, 9]
    assert ids_at(lake.repo, "clicks/x") == ["7", "", "9"]
    assert ids_at(lake.repo, "visits/x") == [uuids(ONE)[0].as_py()]
    rows = sorted((row["datasets"], row["type"], row["ids"]) for row in refstore.json("purge", "ledger", "sales"))
    assert rows == [(["clicks"], "string", 1), (["events"], "integer", 1), (["visits"], "binary", 1)]
    assert "visits" in refstore.ok("purge", "ledger", "sales").out


def test_a_file_without_a_header_is_refused_until_that_is_said(refstore: Command, lake: World) -> None:
    file = refstore.folder / "forget.csv"
    file.write_text("7\n8\n")
    words = ["purge", "run", "sales", "--ids", file, "--dataset", "clicks", "--yes"]
    ran = refstore(*words)
    assert ran.code == 2
    assert "line 1 of forget.csv is no header with the one column 'id'" in ran.err
    assert "7" not in ran.err
    assert ids_at(lake.repo, "clicks/x") == ["7", "8", "", "9"]
    assert "ids: 2 values, text" in refstore.ok(*words, "--no-header").err
    assert ids_at(lake.repo, "clicks/x") == ["", "9"]
    assert ids_at(lake.repo, "events/x") == [7, 8, 9]


def test_the_empty_id_is_asked_for(refstore: Command, lake: World) -> None:
    file = refstore.folder / "forget.csv"
    file.write_text('id\n""\n7\n')
    words = ["purge", "run", "sales", "--ids", file, "--dataset", "clicks", "--yes"]
    assert "1 empty values are left out, --empty-id takes them for ids" in refstore.ok(*words).err
    assert ids_at(lake.repo, "clicks/x") == ["8", "", "9"]
    refstore.ok(*words, "--empty-id")
    assert ids_at(lake.repo, "clicks/x") == ["8", "9"]


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("id\n", [], "has no ids"),
        ("id\n7\n", [], "or purge other data sets alone with --dataset"),
        ("id\n7\n", ["--dataset", "nobody"], "no data set 'nobody' is onboarded"),
        (
            "id,set\n7,events\n7,nobody\n",
            ["--dataset-column", "set"],
            "line 3 of forget.csv names no onboarded data set in 'set'",
        ),
    ],
)
def test_what_cannot_be_is_bad_input(refstore: Command, lake: World, text: str, words: list[str], told: str) -> None:
    file = refstore.folder / "forget.csv"
    file.write_text(text)
    ran = refstore("purge", "run", "sales", "--ids", file, *words, "--yes")
    assert ran.code == 2
    assert told in ran.err
    assert ids_at(lake.repo, "events/x") == [7, 8, 9]


@pytest.mark.parametrize("words", [["--no-header"], ["--delimiter", ";"], ["--id-column", "id"], ["--empty-id"]])
def test_the_ledger_has_no_file(refstore: Command, lake: World, words: list[str]) -> None:
    ran = refstore("purge", "run", "sales", "--ledger", *words, "--yes")
    assert ran.code == 2
    assert "give the options of a file of ids with --ids" in ran.err
