"""`refstore gc`: what people type. Marking and sweeping run in the tests' own session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.errors import Gone, RunStopped
from refstore.gc_marks import Marks
from refstore.monitoring.run_control import RunControl
from tests.commands import Command
from tests.durations import AT_ONCE_CONSTANTS, set_constants
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


@pytest.fixture
def lake(refstore: Command, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two commits, of which the first has expired; nobody else is at work there, so there is nobody to wait for."""
    world = World(refstore.folder / "lake")
    world.let_one_expire()
    set_constants(monkeypatch, Safety=AT_ONCE_CONSTANTS)
    return world


def test_run_marks_and_sweeps_and_report_says_what_was_done(refstore: Command, lake: World) -> None:
    (run,) = refstore.json("gc", "run", "sales", "--min-age", "0")["runs"]
    assert run["state"] == "swept"
    assert run["sweep"]["outcomes"] == {"deleted": {"objects": 1, "bytes": 3}}
    assert refstore.json("gc", "status", "sales", "last")["runs"] == [run]
    assert refstore.json("gc", "status", "sales", run["mark_id"])["runs"] == [run]
    told = refstore.ok("gc", "status", "sales", "last").out
    assert "expired" in told
    assert "deleted below data/" in told
    assert [row["state"] for row in refstore.json("gc", "status", "sales")] == ["swept"]
    assert lake.repo.read("main", "a") == b"new"
    with pytest.raises(Gone, match=run["mark_id"]):
        lake.repo.read("main~1", "a")


def test_orphans_are_told_with_what_they_may_count_too_much(refstore: Command, lake: World) -> None:
    """What the reaper deletes between the listing and the look is listed, and nobody names it any more."""
    expired = refstore.ok("gc", "run", "--only", "mark", "sales", "--min-age", "0")
    assert "too high" not in expired.err
    lake.plant(ids.new_address(ids.RandomIds(), lake.clock.now_ms()))
    lake.age()
    refstore.ok("gc", "run", "--only", "mark", "sales", "--min-age", "0", "--full")
    ran = refstore.ok("gc", "status", "sales", "last")
    assert "orphan blob" in ran.out
    assert "too high" in ran.err


def test_expire_is_run_by_a_shorter_name(refstore: Command, lake: World) -> None:
    answer = refstore.json("expire", "--all", "--min-age", "0", "--grace", "0")
    assert [run["state"] for run in answer["runs"]] == ["swept"]
    assert answer["deleted_repositories"] == []


def test_a_mark_can_be_taken_back_until_it_is_swept(refstore: Command, lake: World) -> None:
    (marked,) = refstore.json("gc", "run", "--only", "mark", "sales", "--min-age", "0", "--grace", "7d")["runs"]
    assert marked["state"] == "marked"
    assert "Nothing of sales is due" in refstore.ok("gc", "run", "--only", "sweep", "sales").err
    early = refstore("gc", "run", "--only", "sweep", "sales", "--mark", marked["mark_id"])
    assert early.code == 4
    assert "not due" in early.err
    assert refstore.json("gc", "unmark", "sales", marked["mark_id"])["unmarked"] == 1
    assert refstore("gc", "run", "--only", "sweep", "sales", "--mark", marked["mark_id"]).code == 4
    assert list(Marks(lake.ctx).commits.scan()) == []


def test_a_large_mark_ends_with_4_and_waits_for_confirm(refstore: Command, lake: World) -> None:
    limits = ("--breaker-share", "0.01", "--breaker-floor", "0")
    ran = refstore("gc", "run", "sales", "--min-age", "0", *limits, "--json")
    assert ran.code == 4
    (run,) = ran.json["runs"]
    assert run["state"] == "needs confirmation"
    assert len(lake.data()) == 2
    assert "allow the sweep with" in refstore.ok("gc", "status", "sales", "last").err
    assert run["mark_id"][:12] in refstore.ok("gc", "status", "sales").out
    refstore.ok("gc", "confirm", "sales", run["mark_id"][:12], "--yes")
    assert "allow the sweep with" not in refstore.ok("gc", "status", "sales", "last").err
    assert "allow the sweep with" not in refstore.ok("gc", "run", "--only", "sweep", "sales").err
    assert "allow the sweep with" not in refstore.ok("gc", "status", "sales", "last").err
    assert len(lake.data()) == 1


def test_other_rules_are_tried_without_touching_anything(refstore: Command, lake: World) -> None:
    lake.repo.delete_retention()
    rules = json.dumps({"default_retention_days": 0}).encode()
    (run,) = refstore.json("gc", "run", "--dry-run", "sales", "--rules", "-", "--min-age", "0", stdin=rules)["runs"]
    assert run["state"] == "simulated"
    assert run["by_reason"]["expired"]["objects"] == 1
    assert refstore.json("gc", "status", "sales") == []


def test_a_simulation_says_which_age_is_too_young(refstore: Command, lake: World) -> None:
    told = refstore.ok("gc", "run", "--dry-run", "sales", "--min-age", "999d").out
    assert "bytes, younger than 999 d" in told


@pytest.mark.parametrize("part", [("--dry-run",), ("--only", "mark")], ids=" ".join)
def test_where_everything_is_too_young_the_age_is_told(refstore: Command, lake: World, part: tuple[str, ...]) -> None:
    """Not only that 0 objects were listed."""
    ran = refstore.ok("gc", "run", *part, "sales", "--min-age", f"{999 * 24 + 1}h")
    assert "0 objects, 0 bytes, older than 999 d 1 h" in ran.out
    assert "everything that sales has is younger than 999 d 1 h, so nothing can be marked yet" in ran.err
    assert "--min-age DURATION lowers this age" in ran.err
    old = refstore.ok("gc", "run", *part, "sales", "--min-age", "0")
    assert "younger" not in old.out + old.err


def test_a_marking_says_at_once_how_long_it_waits_and_why(refstore: Command, lake: World) -> None:
    ran = refstore.ok("gc", "run", "--only", "mark", "sales", "--min-age", "0", "--json")
    assert "the marking waits 0 s (now: until 20" in ran.err
    for part in ("0 s for an operation", "2 x 0 s for a request", "0 s for the clocks' difference"):
        assert part in " ".join(ran.err.split())
    assert "waits" not in refstore.ok("gc", "run", "--dry-run", "sales", "--json").err
    assert "the wait is over" not in ran.err, "there was none"


def test_a_run_is_stopped_by_its_beginning(refstore: Command, lake: World) -> None:
    assert refstore("gc", "stop", "sales", "--yes").code == 3
    control = RunControl(lake.ctx, "01m85qe9er0hfs936jcs5zh5pk", "mark", "host:1")
    control.beat("listing", 1, 2, 3)
    asked = refstore.json("gc", "stop", "sales", "01m85qe9", "--yes")
    assert (asked["run"], asked["kind"]) == ("01m85qe9er0hfs936jcs5zh5pk", "mark")
    assert control.beat("listing", 1, 2, 3)
    with pytest.raises(RunStopped):
        control.check()


def test_why_a_run_was_abandoned_is_told(refstore: Command, lake: World) -> None:
    refstore.ok("gc", "run", "--only", "mark", "sales", "--min-age", "0")
    (run,) = Marks(lake.ctx).runs.scan()
    refstore.ok("gc", "unmark", "sales", run.mark_id[:12])
    assert refstore.ok("gc", "status", "sales").out.splitlines()[-1].endswith("unmarked")


def test_the_error_of_another_run_says_how_to_take_over(refstore: Command, lake: World) -> None:
    marks = Marks(lake.ctx)
    marks.mark_run.begin("d", 0, (), "another-run", owner="host:1")
    ran = refstore("gc", "run", "--only", "mark", "sales", "--min-age", "0")
    assert ran.code == 4
    assert "refstore gc run sales --take-over" in ran.err


def test_java_and_spark_say_nothing_as_they_start(refstore: Command, lake: World) -> None:
    command = ("gc", "run", "--dry-run", "sales", "--min-age", "0", "--json", "--master", "local[1]")
    ran = refstore.process(*command)
    assert ran.code == 0, ran.err
    assert ran.err == ""


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("run",), "name one repository, or give --all"),
        (("run", "sales", "--all"), "name one repository, or give --all"),
        (("run", "sales", "--mode", "burn"), "not a mode of sweeping"),
        (("run", "sales", "--rules", "rules.json"), "--rules is not for the whole job"),
        (("run", "--all", "--dry-run", "--rules", "rules.json"), "--rules are of one repository"),
        (("run", "sales", "--dry-run", "--purge-ledger"), "--purge-ledger is not for the whole job with --dry-run"),
        (("run", "sales", "--only", "sweep", "--grace", "7d"), "--grace is not for --only sweep"),
        (("run", "--all", "--only", "sweep", "--mark", "x"), "--mark is of one repository"),
        (("run", "sales", "--only", "index", "--dry-run"), "--dry-run is not for --only index"),
        (("run", "sales", "--grace", "7"), "is no duration that fits"),
        (("run", "sales", "--conf", "spark"), "is not KEY=VALUE"),
        (("lifecycle", "sales"), "has no lifecycle rules"),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(refstore: Command, words: tuple[str, ...], what: str) -> None:
    refstore.ok("repo", "create", "sales")
    ran = refstore("gc", *words)
    assert ran.code == 2
    assert what in ran.err


def test_a_run_says_how_many_commits_wait_for_a_reaper(refstore: Command, lake: World) -> None:
    lake.commit(waits=b"waits")
    lake.commit(waits=None)
    ran = refstore.ok("gc", "run", "--only", "mark", "sales", "--min-age", "0")
    assert "1 commits wait for a reaper" in ran.err
    (run,) = refstore.json("gc", "status", "sales", "last")["runs"]
    assert run["commits"]["commits_waiting"] == 1
