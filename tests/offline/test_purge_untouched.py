"""A run that could look at no row of a data set does not say that all is done; onboarding warns of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from refstore_purge.dataset_results import find_empty_datasets
from refstore_purge.purge_report import PurgeReport
from tests.commands import Command
from tests.offline.purge_runs import onboard_visits, purge_with
from tests.offline.test_purge_partitions import FORMATS, written
from tests.offline.world import World
from tests.purge.tracking import guestids

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

KEY = b"k" * 32
MODES = ("keep-history", "rewrite")


def warned(world: World) -> list[str]:
    return find_empty_datasets(world.repo, world.repo.purge_document().document.onboarded_datasets)


def purged(world: World, engines: Engines, **options: Any) -> PurgeReport:
    return purge_with(world, engines, guestids(world.folder, "bob"), **options)


def reason_of(made: PurgeReport) -> str:
    (result,) = made.datasets
    assert made.is_done == (not result.untouched_reason and made.is_whole)
    return result.untouched_reason


@pytest.mark.parametrize(("mode", "where"), [("keep-history", "at any head"), ("rewrite", "in any version")])
def test_nothing_lies_below_the_prefix(world: World, engines: Engines, mode: str, where: str) -> None:
    world.commit_files({"visit/x": written("json", guest=["bob"])})
    onboard_visits(world, mode=mode)
    assert reason_of(purged(world, engines)) == f"nothing lies below visits/ {where}"
    assert reason_of(purged(world, engines, dry_run=True)).startswith("nothing lies below visits/")
    (told,) = warned(world)
    assert told.startswith("data set 'visits': nothing lies below visits/ at")
    assert "mistyped" in told


def test_no_branch_has_the_name_that_is_asked_for(world: World, engines: Engines) -> None:
    world.commit_files({"visits/x": written("json", guest=["bob"])})
    onboard_visits(world, mode="keep-history", branches=["mian", "release-*"])
    assert reason_of(purged(world, engines)) == "nothing lies below visits/ at the heads of mian, release-*"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("identifier", ["guset", "guest.id"])
def test_no_object_has_the_identifier(world: World, engines: Engines, format_: str, mode: str, identifier: str) -> None:
    world.commit_files({f"visits/{name}": written(format_, guest=["bob", "ann"]) for name in ("x", "y")})
    onboard_visits(world, mode=mode, format=format_, identifier=identifier)
    for key in (None, KEY, KEY):  # the second time an index might tell
        made = purged(world, engines, purge_key=key)
        assert reason_of(made) == f"no object that could be read has the column {identifier}"
        assert not made.is_done


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format_", FORMATS)
def test_ids_without_rows_are_normal(world: World, engines: Engines, format_: str, mode: str) -> None:
    world.commit_files({"visits/x": written(format_, guest=["ann", "cid"])})
    onboard_visits(world, mode=mode, format=format_)
    for key in (None, KEY, KEY):
        assert reason_of(purged(world, engines, purge_key=key)) == ""
    assert warned(world) == []


@pytest.mark.parametrize(
    "body", [b'{"guest":null,"at":1}\n', b"", b'{"other":1}\n{"guest":"ann"}\n', b"[]\n", b'[{"guest":1}]\n']
)
def test_lines_that_have_the_field_or_do_not_tell(world: World, engines: Engines, body: bytes) -> None:
    world.commit_files({"visits/x": body, "visits/y": b""})
    onboard_visits(world)
    assert reason_of(purged(world, engines)) == ""


def test_one_object_of_many_has_it(world: World, engines: Engines) -> None:
    world.commit_files({"visits/x": b'{"at":1}\n', "visits/y": b'{"guest":"ann"}\n'})
    onboard_visits(world)
    assert reason_of(purged(world, engines)) == ""


def test_what_was_purged_whole_is_no_mistake(world: World, engines: Engines) -> None:
    world.commit_files({"visits/x": b'{"guest":"bob"}\n'})
    world.repo.upload("main", "faces/guest=bob/1", b"a picture")
    world.repo.commit("main", "picture")
    faces = {"name": "faces", "prefix": "faces/", "identifier": "guest", "mode": "erase"}
    visits = {"name": "visits", "prefix": "visits/", "format": "json", "identifier": "guest", "mode": "rewrite"}
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": [visits, faces]}), by="tests")
    for _ in range(2):
        assert purged(world, engines, share=1).is_done


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "no object that could be read has a folder guset=..., or guset in its user metadata"),
        ({"path": "{guset}/*.jpg"}, "no object that could be read has a path of the form {guset}/*.jpg"),
    ],
)
def test_no_name_has_the_identifier_of_what_is_erased(
    world: World, engines: Engines, more: dict[str, str], told: str
) -> None:
    world.repo.upload("main", "visits/guest=bob/1.png", b"a picture", metadata={"guest": "bob"})
    world.repo.commit("main", "picture")
    onboard_visits(world, mode="erase", format=None, identifier="guset", **more)
    assert reason_of(purged(world, engines)) == told


def test_a_watermark_behind_all_partitions(world: World, engines: Engines) -> None:
    world.commit_files({f"visits/day={day}/x": b'{"guest":"bob"}\n' for day in (1, 2)})
    onboard_visits(world)
    made = purged(world, engines, after="visits/day=3")
    assert reason_of(made) == "all of its partitions are left out by --after 'visits/day=3'"
    assert (made.rows, made.partitions_left, made.is_final) == ([], 2, False)
    first = purged(world, engines, max_partitions=1, share=1)
    assert reason_of(first) == ""
    rest = purged(world, engines, after=first.watermark, share=1)
    assert (rest.is_done, rest.watermark, rest.partitions_left) == (True, "", 1)


def test_what_people_read(refstore: Command, engines: Engines) -> None:
    world = World(refstore.folder / "lake")
    world.commit_files({"visits/x": b'{"guest":"bob"}\n', "orders/x": b'{"client":1}\n'})
    ids, document = guestids(refstore.folder, "bob"), refstore.folder / "purge.json"
    datasets = [
        {"name": name, "prefix": f"{prefix}/", "format": "json", "identifier": "guest", "mode": "rewrite"}
        for name, prefix in (("visits", "visits"), ("orders", "orders"), ("logins", "logins"))
    ]
    document.write_text(json.dumps({"whitelist": ["*"], "datasets": datasets}))
    for words in (["--dry-run"], []):
        ran = refstore.ok("purge", "onboard", "sales", document, *words)
        assert "data set 'logins': nothing lies below logins/ at the heads; is it mistyped?" in ran.err
        assert not any(name in ran.err for name in ("'visits'", "'orders'"))
    ran = refstore("purge", "run", "sales", "--ids", ids, "--yes", "--breaker-share", "1")
    assert ran.code == 4
    assert "not purged: data set logins: nothing lies below logins/ in any version" in ran.out
    assert "not purged: data set orders: no object that could be read has the column guest" in ran.out
    made = refstore.json("purge", "status", "sales", "last")
    shown = {each["dataset"]: each["untouched_reason"] for each in made["datasets"]}
    assert (shown["visits"], shown["logins"]) == ("", "nothing lies below logins/ in any version")
    assert [each["dataset"] for each in made["places"] if each["kind"] == "run"] == ["logins", "orders"]
    (row,) = refstore.json("purge", "status", "sales")
    assert row["final"] is False
    assert "2 places were not looked into" in refstore.ok("purge", "status", "sales", "last").out
    ran = refstore("purge", "verify", "sales", "--ids", ids)
    assert ran.code == 4
    assert "2 data sets have no object or no identifier" in ran.out
    assert "nothing lies below logins/; is it mistyped?" in ran.out
    assert "no object has the identifier guest; is it mistyped?" in ran.out
    beyond = ["--after", "zzzz", "--dataset", "visits"]
    ran = refstore("purge", "run", "sales", "--ids", ids, "--yes", "--breaker-share", "1", *beyond)
    assert ran.code == 4
    assert "1 partitions were left out by --after" in ran.out
