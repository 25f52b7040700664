"""The acceptance example of seed 002 in the seed's layout, and `examples/purge_events`, small and in this
process; and that its comparison can fail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.purge_events import __main__ as example
from examples.purge_events import events
from refstore_purge import purge_run, verify
from tests.commands import Command
from tests.offline.purge_runs import options_of
from tests.offline.world import World
from tests.purge.tracking import DOCUMENT, PARTITION, PREFIX, event, guestids, parquet, rows_at

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


@pytest.fixture
def here(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "DAYS", events.DAYS[:2])


@pytest.mark.usefixtures("here")
def test_every_row_is_as_expected_after_the_purge_and_after_the_revert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.prove(tmp_path / "lake", rows=2_000) == 0
    shown = capsys.readouterr().out
    assert "rows of 1,000 guests are gone, all others are there, in order; the report says the same" in shown
    assert "Reverted: all rows are there again." in shown


@pytest.mark.usefixtures("here")
def test_a_row_too_many_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = events.without

    def one_less(made: Any, ids: list[str]) -> Any:
        return without(made, ids)[1:]

    monkeypatch.setattr(events, "without", one_less)
    with pytest.raises(SystemExit):
        example.prove(tmp_path / "lake", rows=100)


def test_the_size_is_about_what_was_asked_for() -> None:
    rows = events.rows_for(100_000_000)
    size = len(events.parquet(events.table(events.paths()[0], rows))) * len(events.paths())
    assert 0.9 < size / 100_000_000 < 1.1


class TestTheSeedsLayout:
    """`tracking.event` as seed 002 has it: the partitions lie below `original/`, and below the timestamps of purges."""

    ORIGINAL = f"{PREFIX}original/{PARTITION}/part-0.parquet"
    STAGED = f"{PREFIX}1234567890123/{PARTITION}/part-0.parquet"
    OTHER = f"{PREFIX}original/datepartition=2017-02-16-00/is_guest=1/part-0.parquet"
    NEXT = f"{PREFIX}original/datepartition=2017-02-17-00/is_guest=0/part-0.parquet"

    @pytest.fixture
    def world(self, refstore: Command) -> World:
        world = World(refstore.folder / "lake")
        for number, path in enumerate((self.ORIGINAL, self.STAGED, self.OTHER, self.NEXT)):
            world.repo.upload("main", path, parquet([event("bob", number), event("ann", number)]))
        world.repo.commit("main", "events")
        return world

    def guests(self, world: World, *paths: str) -> list[list[str]]:
        return [[row["metadata"]["guestid"] for row in rows_at(world.repo, "main", path)] for path in paths]

    @pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
    def test_the_purge_of_its_partitions(self, refstore: Command, world: World, engines: Engines, mode: str) -> None:
        before = world.repo.get_branch("main").head
        document = refstore.folder / "purge.json"
        document.write_text(json.dumps({**DOCUMENT, "datasets": [{**DOCUMENT["datasets"][0], "mode": mode}]}))
        assert refstore.ok("purge", "onboard", "sales", document).err == ""
        ids = guestids(refstore.folder, "bob")  # u_purger.guestids
        first = refstore("purge", "run", "sales", "--ids", ids, "--yes", "--max-partitions", "1", "--json")
        assert (first.code, first.json["partitions_left"]) == (4, 2)
        assert [(row["partition"], row["objects"], row["rows_changed"]) for row in first.json["rows"]] == [
            (PARTITION, 2, 2)
        ]
        assert first.json["watermark"] == f"{PREFIX}{PARTITION}"
        every = (self.ORIGINAL, self.STAGED, self.OTHER, self.NEXT)
        assert self.guests(world, *every) == [["ann"], ["ann"], ["bob", "ann"], ["bob", "ann"]]
        rest = refstore.json("purge", "run", "sales", "--ids", ids, "--yes", "--after", first.json["watermark"])
        assert [row["partition"].split("/")[0][-5:] for row in rest["rows"]] == ["16-00", "17-00"]
        assert self.guests(world, *every) == [["ann"]] * 4
        refstore.ok("purge", "verify", "sales", "--ids", ids)
        if mode == "keep-history":
            refstore.ok("revert", "sales", "main", "--on", "main")
            refstore.ok("revert", "sales", "main~2", "--on", "main")
            assert self.guests(world, *every) == [["bob", "ann"]] * 4
            return
        assert world.repo.get_branch("main").head == before
        only = ("--dataset", "tracking.event", "--partition", PARTITION)
        assert refstore("purge", "restore", "sales", "--dataset", "tracking.event", "--partition", "original").code == 2
        assert refstore.json("purge", "restore", "sales", *only, "--yes")["objects"] == 2
        assert self.guests(world, *every) == [["bob", "ann"], ["bob", "ann"], ["ann"], ["ann"]]
        day = ("--dataset", "tracking.event", "--partition", "datepartition=2017-02-16-00/")
        assert refstore.json("purge", "restore", "sales", rest["run"], *day, "--yes")["objects"] == 1
        assert self.guests(world, self.OTHER, self.NEXT) == [["bob", "ann"], ["ann"]]

    def test_a_folder_of_a_person_is_a_partition_wherever_it_lies(self, world: World, engines: Engines) -> None:
        places = {
            "original/guest=bob/1": True,
            "guest=bob/2": True,
            "a/day=1/b/guest=bob/3": True,
            "a/guest=bobby/4": False,
        }
        for place in places:
            world.repo.upload("main", f"visits/{place}", b'{"n":1}\n')
            world.repo.upload("main", f"faces/{place}", place.encode())
        world.repo.commit("main", "visits")
        visits = {
            "name": "visits",
            "prefix": "visits/",
            "format": "json",
            "identifier": "guest",
            "mode": "keep-history",
        }
        faces = {"name": "faces", "prefix": "faces/", "identifier": "guest", "mode": "erase"}
        world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": [visits, faces]}), by="tests")
        ids = guestids(world.folder, "bob")
        assert len({left.path for left in verify(world.repo, ids).findings}) == 6
        made = purge_run.run_purge(world.repo, engines, options_of(ids, share=1), lambda _: None)
        assert [(row.partition, row.objects) for row in made.rows if row.dataset == "visits"] == [
            ("day=1/guest=bob", 1),
            ("guest=bob", 2),
            ("guest=bobby", 1),
        ]
        for place, is_bobs in places.items():
            assert (world.repo.read("main", f"visits/{place}") == b"") == is_bobs
            assert (world.repo.stat("main", f"faces/{place}").size_bytes == 0) == is_bobs
        assert verify(world.repo, ids).findings == []
