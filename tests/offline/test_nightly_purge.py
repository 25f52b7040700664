"""What the nightly job says of purges: the look for the ledger's ids, and what it deleted that purges left behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from refstore.cli.gc_job import AllRan, Job, run_all
from refstore.cli.purge_report import describe_left, night_row
from refstore.core.step_progress import ignore_progress
from refstore.errors import Conflict
from refstore.objects.base import DeleteResult
from refstore_gc.gc_run import GcOptions
from refstore_purge import nightly_job as nightly
from refstore_purge import purge_run
from tests.commands import Command
from tests.offline.purge_runs import options_of, run_nightly
from tests.offline.world import World
from tests.purge.tracking import DOCUMENT, PREFIX, event, guestids, onboard, parquet

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

KEY = b"a key of at least thirty-two characters"


@pytest.fixture
def world(world: World) -> World:
    world.commit_files({f"{PREFIX}x": parquet([event("bob", 1), event("ann", 2)])})
    return world


def purge(world: World, engines: Engines) -> None:
    purge_run.run_purge(world.repo, engines, options_of(guestids(world.folder, "bob"), purge_key=KEY), lambda _: None)


def run_night(world: World, engines: Engines) -> AllRan:
    job = Job("run", GcOptions(min_age_seconds=0.0), purge_key=KEY)
    return run_all(world.lake, ["sales"], job, engines, ignore_progress)


def test_what_the_purge_left_is_said_and_left(world: World, engines: Engines) -> None:
    onboard(world.repo, mode="rewrite")
    purge(world, engines)
    assert not run_night(world, engines).has_purge_leftovers
    world.commit_files({f"{PREFIX}broken-{number}": b"no Parquet" for number in range(7)})
    ran = run_night(world, engines)
    ((name, made),) = ran.purges
    assert (ran.has_purge_leftovers, ran.failed, ran.troubles) == (True, 0, [])
    assert night_row(name, made)["skipped_count"] == 7
    lines = describe_left(made, 5, "the report")
    assert len(lines) == 6
    assert lines[-1] == "not purged: ... and 2 more: the report"


def test_a_data_set_that_has_nothing_is_left_too(world: World, engines: Engines) -> None:
    onboard(world.repo)
    purge(world, engines)
    onboard(world.repo, prefix="mistyped/")
    ((name, made),) = run_night(world, engines).purges
    assert night_row(name, made)["untouched"] == ["tracking.event"]
    assert describe_left(made, 5, "") == [
        "not purged: data set tracking.event: nothing lies below mistyped/ at any head"
    ]


def test_nothing_onboarded_and_no_ledger_are_no_error(world: World, engines: Engines) -> None:
    for text in ("", json.dumps({**DOCUMENT, "whitelist": []}), json.dumps(DOCUMENT)):
        if text:
            world.repo.onboard_purge(text, by="tests")
        ran = run_night(world, engines)
        assert (ran.has_purge_leftovers, list(ran.purges), ran.troubles) == (False, [], [])


def test_a_purge_that_fails_shows_each_sweep_once(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(other=b"1")
    world.commit(other=b"2")
    world.age()

    def fail(*_: Any) -> None:
        raise Conflict("more rows would go than anybody expects")

    monkeypatch.setattr(nightly, "purge_again", fail)
    ran = run_night(world, engines)
    assert [str(error) for _, error in ran.troubles] == ["more rows would go than anybody expects"]
    marks = [each.mark_id for each in ran.done]
    assert any(each.sweep is not None for each in ran.done)
    assert len(marks) == len({*marks})


def test_a_backup_that_the_store_does_not_delete_counts_as_failed(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are still there, so the night does not end with 0."""
    onboard(world.repo, mode="rewrite")
    identity = world.address("main", f"{PREFIX}x")
    purge(world, engines)
    world.clock.sleep(60 * 86_400)
    store = type(world.ctx.objects)
    delete_many = store.delete_many

    def refuse(self: Any, keys: Sequence[str]) -> DeleteResult:
        some = delete_many(self, [key for key in keys if key != identity])
        return some._replace(failed_keys=((identity, "slow down"),)) if identity in keys else some

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete_many", refuse)
        assert run_night(world, engines).failed == 1
    assert identity in world.data()
    assert run_night(world, engines).failed == 0
    assert identity not in world.data()


def test_what_was_deleted_stands_in_the_table_of_the_report(refstore: Command, engines: Engines) -> None:
    world = World(refstore.folder / "lake")
    body = parquet([event("bob", 1), event("ann", 2)])
    world.commit_files({f"{PREFIX}x": body})
    document = {**DOCUMENT, "datasets": [{**DOCUMENT["datasets"][0], "mode": "rewrite"}]}
    world.repo.onboard_purge(json.dumps({**document, "backup": {"days": 1, "versions": 1}}), by="tests")
    purge(world, engines)
    for days, line in ((0, "purges: not deleted: backups that stay for now"), (2, "purges: backups past their days")):
        world.clock.sleep(days * 86_400)
        run_nightly(world.ctx, engines, GcOptions())
        shown = refstore.ok("gc", "status", "sales", "last").out
        (told,) = [each for each in shown.splitlines() if each.startswith("purges: ")]
        assert told.split("  ")[0] == line
        assert told.endswith(f"1 objects, {len(body):,} bytes")
