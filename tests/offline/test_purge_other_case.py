"""An object that has the identifier in another case only is left and listed, by a run as by `purge verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refstore_purge import verify
from refstore_purge.purge_report import PurgeReport
from tests.offline.purge_runs import onboard_visits, purge_with
from tests.offline.test_purge_partitions import FORMATS, written
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def of_row(format_: str, row: dict[str, Any]) -> bytes:
    return written(format_, **{name: [value] for name, value in row.items()})


def put(world: World, **files: bytes) -> None:
    for name, body in files.items():
        world.repo.upload("main", f"visits/{name}", body)
    world.repo.commit("main", "files", allow_empty=True)


def purged(world: World, engines: Engines) -> tuple[PurgeReport, dict[str, str]]:
    """Run, and return with the report why objects were not purged; verify leaves the same."""
    file: Path = world.folder / "ids.csv"
    file.write_text("id\nbob\n")
    made = purge_with(world, engines, file, share=1)
    left = {each.path.removeprefix("visits/"): each.reason for each in made.skipped_objects}
    found = {each.path.removeprefix("visits/") for each in verify(world.repo, file).findings}
    assert found == left.keys()
    return made, left


@pytest.mark.parametrize("format_", FORMATS)
def test_a_column_in_another_case_is_told(world: World, engines: Engines, format_: str) -> None:
    onboard_visits(world, format=format_)
    good, other = ({"guest": "bob", "n": 1}, {"Guest": "bob", "n": 1})
    put(world, a=of_row(format_, good), b=of_row(format_, other))
    made, left = purged(world, engines)
    assert list(left) == ["b"]
    assert "in another case" in left["b"]
    assert format_ == "json" or "'Guest'" in left["b"]
    assert (made.is_whole, made.rows[0].rows_changed) == (False, 1)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_column_in_another_case_beside_the_identifier_is_another_one(
    world: World, engines: Engines, format_: str
) -> None:
    onboard_visits(world, format=format_)
    put(world, a=of_row(format_, {"guest": "ann", "GUEST": "bob"}))
    made, left = purged(world, engines)
    assert (made.is_whole, left) == (True, {})


@pytest.mark.parametrize("format_", ["parquet", "orc", "avro", "json"])
def test_a_step_of_the_path_in_another_case(world: World, engines: Engines, format_: str) -> None:
    onboard_visits(world, format=format_, identifier="user.guest")
    put(world, a=of_row(format_, {"user": {"guest": "bob"}}), b=of_row(format_, {"User": {"guest": "bob"}}))
    put(world, c=of_row(format_, {"user": {"GUEST": "bob"}}))
    _, left = purged(world, engines)
    assert sorted(left) == ["b", "c"]
    assert all("in another case" in reason for reason in left.values())
    if format_ != "json":
        assert "'User.guest'" in left["b"]


def test_one_line_of_json_is_enough(world: World, engines: Engines) -> None:
    onboard_visits(world)
    put(world, a=b'{"guest":"bob"}\n{"n":1}\n{"n":2,"GUEST":"ann"}\n', b=b'{"guest":null,"GUEST":null}\n{"n":1}\n')
    _, left = purged(world, engines)
    reason = "line 3 has 'guest' in another case only; correct the data set's identifier, or the line"
    assert left == {"a": reason}


def test_a_folder_tells_and_not_the_fields(world: World, engines: Engines) -> None:
    onboard_visits(world)
    put(world, **{"guest=bob/a": b'{"GUEST":"x"}\n', "guest=ann/a": b'{"GUEST":"bob"}\n'})
    made, left = purged(world, engines)
    assert (made.is_whole, left) == (True, {})
