"""Rules that act on branches, in the nightly job: what was staged too long ago, and the latest view. And where what
goes had lain.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from refstore.core import ids
from refstore.errors import Gone
from refstore.gc_marks import Marks
from refstore.versioning.commits import object_names
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from refstore_gc.run_summary import BranchRuleResult, ObjectCount
from tests.offline.world import World, everything_in, marked_in
from tests.reaping import delete_due, release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

DAY_SECONDS = 86_400


def rules(world: World, *path_rules: dict[str, Any], **fields: Any) -> None:
    world.repo.set_retention(json.dumps({"default_retention_days": 365, "grace_days": 0, "rules": path_rules} | fields))


def rule(prefix: str, kind: str, days: int) -> dict[str, Any]:
    return {"filter": {"prefix": prefix}, "expiration": {kind: {"days": days}}}


def wait(world: World, days: float) -> None:
    world.clock.skipped_seconds += days * DAY_SECONDS


@pytest.fixture
def staged(world: World) -> World:
    """Six days ago `tmp/a` was staged, whose rule gives it two, and `other`."""
    rules(world, rule("tmp/", "uncommitted", 2))
    for path in ("tmp/a", "other"):
        world.repo.upload("main", path, b"1234")
    wait(world, 6)
    return world


def test_staged_entries_that_expired_are_reset_and_the_online_path_deletes_them(
    staged: World, engines: Engines
) -> None:
    address, other = staged.address("main", "tmp/a"), staged.address("main", "other")
    summary = gc_run.run_nightly(staged.ctx, engines, GcOptions()).latest_summary
    assert summary.branch_rules == BranchRuleResult(staged=ObjectCount(1, 4))
    assert [each.path for each in staged.repo.list("main")] == ["other"]
    assert address not in marked_in(staged, summary.mark_id)
    wait(staged, 1)
    delete_due(staged.repo)
    assert staged.data() == {other}


def test_a_simulation_says_what_would_be_reset_and_resets_nothing(staged: World, engines: Engines) -> None:
    before = everything_in(staged)
    assert simulate_mark(staged.ctx, engines, GcOptions()).branch_rules == BranchRuleResult(staged=ObjectCount(1, 4))
    assert everything_in(staged) == before
    assert [each.path for each in staged.repo.list("main")] == ["other", "tmp/a"]


def test_a_branch_that_could_not_be_looked_through_is_named(staged: World, engines: Engines) -> None:
    rules(staged, rule("", "all", 2), allow_deletion_from_latest_view=True)
    staged.commit(old=b"old")
    wait(staged, 6)
    staged.repo.upload("main", "staged", b"")
    summary = gc_run.mark(staged.ctx, engines, GcOptions())
    assert summary.branch_rules.incomplete_branches == ["paths * of branch 'main': it has uncommitted changes"]


@pytest.fixture
def old(world: World) -> World:
    """Twelve days ago `logs/a` and `other` were committed, and the rules let the first go from the branch, after
    ten.
    """
    rules(world, rule("logs/", "all", 10), allow_deletion_from_latest_view=True)
    world.commit(logs__a=b"1234", other=b"other")
    wait(world, 12)
    world.settle()
    return world


def test_the_latest_view_is_left_by_a_commit_and_the_object_goes_after_its_grace(old: World, engines: Engines) -> None:
    before, address = old.repo.get_branch("main").head, old.address("main", "logs/a")
    summary = gc_run.mark(old.ctx, engines, GcOptions(grace_days=7))
    assert summary.branch_rules == BranchRuleResult(latest_view=ObjectCount(1, 4), commits=1)
    assert [each.path for each in old.repo.list("main")] == ["other"]
    assert old.repo.get_commit("main").parents == (before,)
    assert address in marked_in(old, summary.mark_id)
    assert old.repo.read(before, "logs/a") == b"1234"
    wait(old, 8)
    gc_run.run_nightly(old.ctx, engines, GcOptions())
    assert old.data() == {old.address("main", "other")}


def test_until_then_it_can_be_taken_back(old: World, engines: Engines) -> None:
    summary = gc_run.mark(old.ctx, engines, GcOptions(grace_days=7))
    Marks(old.ctx).decisions.unmark(old.repo.get_commit("main~1").id)
    old.repo.revert("main@", on="main")
    release_all(old.repo)
    wait(old, 8)
    with pytest.raises(Gone, match="unmarked"):
        gc_run.sweep(old.ctx, engines, summary.mark_id)
    assert old.repo.read("main", "logs/a") == b"1234"


def test_what_another_branch_shows_stays_while_it_does(old: World, engines: Engines) -> None:
    """One with staged changes, which is left as it is."""
    old.repo.create_branch("dev", source="main")
    old.repo.upload("dev", "mine", b"mine")
    gc_run.run_nightly(old.ctx, engines, GcOptions())
    assert [each.path for each in old.repo.list("main")] == ["other"]
    assert old.repo.read("dev", "logs/a") == b"1234"
    assert old.repo.read("dev", "mine") == b"mine"


def test_without_the_flag_nothing_leaves_a_branch(old: World, engines: Engines) -> None:
    rules(old, rule("logs/", "all", 10))
    ran = gc_run.run_nightly(old.ctx, engines, GcOptions())
    assert ran.latest_summary.branch_rules == BranchRuleResult()
    assert ran.latest_summary.marked.objects == 0
    assert old.repo.read("main", "logs/a") == b"1234"


def test_a_simulation_says_what_would_leave_the_latest_view_and_touches_nothing(old: World, engines: Engines) -> None:
    before = everything_in(old)
    assert simulate_mark(old.ctx, engines, GcOptions()).branch_rules == BranchRuleResult(latest_view=ObjectCount(1, 4))
    assert everything_in(old) == before


def test_the_counts_say_where_what_goes_had_lain(world: World, engines: Engines) -> None:
    world.commit(days_ago=9, a=b"old")
    world.commit(days_ago=8, a=b"new")
    release_all(world.repo)
    world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()), b"12345")
    world.plant(
        object_names.key(
            object_names.RANGES, object_names.new_id("0" * 64, world.ctx.ids.new_id(world.clock.now_ms()))
        ),
        b"x",
    )
    world.age()
    summary = gc_run.run_nightly(world.ctx, engines, GcOptions()).latest_summary
    assert summary.by_prefix == {"data/": ObjectCount(2, 8), "_refstore/ranges/": ObjectCount(1, 1)}
    assert summary.sweep is not None
    assert summary.sweep.by_prefix == {
        "data/": {"deleted": ObjectCount(2, 8)},
        "_refstore/ranges/": {"deleted": ObjectCount(1, 1)},
    }
