"""Commits that were unmarked and are marked again: their data goes with the mark that they have, and no run leaves a
commit as swept whose data is all there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.core.ids import CommitId
from refstore.gc_marks import Marks
from refstore.operations.log_and_diff import CommitLifetime
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_summary import GcSummary
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

NONCURRENT = [{"filter": {"prefix": "logs/"}, "expiration": {"noncurrent": {"days": 1}}}]


def night(world: World, engines: Engines, *, days: float = 0, full: bool = False) -> GcSummary:
    """Run the nightly job so many days later."""
    world.clock.sleep(days * 86_400)
    return gc_run.run_nightly(world.ctx, engines, GcOptions(is_full=full, full_days=30)).mark_summary


def lifetime(world: World, commit: CommitId) -> CommitLifetime:
    return next(line.lifetime for line in world.repo.history("main") if line.commit.id == commit)


@pytest.fixture
def old(world: World) -> CommitId:
    """A commit whose `a` nothing else names; its `b` is on main. `z` is in each mark, too."""
    world.commit(days_ago=10, z=b"z")
    world.commit(days_ago=9.5, z=None)
    made = world.commit(days_ago=9, a=b"a", b=b"b")
    world.commit(days_ago=8, a=None)
    world.commit(days_ago=7, c=b"c")
    world.settle()
    world.set_rules(grace_days=7)
    return made


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("days", [1, 8])
def test_its_data_goes_with_the_later_mark(
    world: World, engines: Engines, old: CommitId, full: bool, days: int
) -> None:
    """After a day the first mark still stands when the second is made, after eight its sweep has left the data."""
    gone = world.address(old, "a")
    first = night(world, engines, full=full)
    world.repo.unmark(old)
    second = night(world, engines, days=days, full=full)
    assert second.marked.objects == 1
    assert second.by_reason == {"expired": second.marked}
    night(world, engines, days=15, full=full)
    assert {run.mark_id: run.state_text for run in Marks(world.ctx).runs.scan()}.items() >= {(second.mark_id, "swept")}
    assert first.mark_id != second.mark_id
    assert lifetime(world, old) is CommitLifetime.SWEPT
    assert gone not in world.data()
    assert world.repo.read(old, "b") == b"b"
    assert night(world, engines, full=True).drift == {}


def test_its_data_goes_with_the_later_mark_although_a_night_kept_it(
    world: World, engines: Engines, old: CommitId
) -> None:
    """The first mark still holds the data when the last night builds on the one that kept it."""
    gone = world.address(old, "a")
    night(world, engines)
    world.repo.unmark(old)
    world.set_rules(grace_days=7, default_retention_days=365)
    night(world, engines, days=1)
    world.set_rules(grace_days=7)
    assert night(world, engines, days=1).marked.objects == 1
    night(world, engines, days=15)
    assert lifetime(world, old) is CommitLifetime.SWEPT
    assert gone not in world.data()


def test_what_a_pinned_commit_keeps_is_not_called_swept(world: World, engines: Engines) -> None:
    """Both commits name `a` alone. Both are unmarked, and one of them is pinned, so the other loses nothing."""
    pinned = world.commit(days_ago=9, a=b"a")
    other = world.commit(days_ago=8, kept=b"kept")
    world.commit(days_ago=7, a=None, c=b"c")
    world.settle()
    world.set_rules(grace_days=7)
    assert night(world, engines).marked.objects == 1
    world.repo.unmark(pinned, pin=True)
    world.repo.unmark(other)
    night(world, engines, days=1)
    assert lifetime(world, other) is CommitLifetime.NOTHING_TO_DELETE
    night(world, engines, days=15)
    assert world.repo.read(other, "a") == b"a"
    assert lifetime(world, other) is CommitLifetime.NOTHING_TO_DELETE


@pytest.mark.parametrize("full", [False, True])
def test_the_part_that_was_marked_before_goes_with_the_whole(world: World, engines: Engines, full: bool) -> None:
    made = world.commit(days_ago=3, logs__a=b"log", b=b"b")
    world.commit(days_ago=2, logs__a=None, b=None)
    world.settle()
    world.set_rules(grace_days=7, default_retention_days=4, rules=NONCURRENT)
    gone = {world.address(made, path) for path in ("logs/a", "b")}
    assert night(world, engines, full=full).marked.objects == 1
    assert night(world, engines, days=3, full=full).marked.objects == 2
    night(world, engines, days=15, full=full)
    assert lifetime(world, made) is CommitLifetime.SWEPT
    assert gone.isdisjoint(world.data())
    assert night(world, engines, full=True).drift == {}


@pytest.mark.parametrize("orphan", [False, True])
def test_what_an_unmark_takes_back_is_told_nowhere_any_more(
    world: World, engines: Engines, old: CommitId, orphan: bool
) -> None:
    """One mark has several commits. When the last is unmarked, the mark stands only if it holds orphans as well."""
    repo, marks = world.repo, Marks(world.ctx)
    if orphan:
        world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
        world.age()
    first = next(line.commit.id for line in repo.history("main") if repo.stat_many(line.commit.id, ["z"]))
    address, other = world.address(old, "a"), world.address(first, "z")
    mark_id = night(world, engines).mark_id
    assert [mark.mark_id for mark in repo.why(address).marked] == [mark_id]
    repo.unmark(old)
    assert repo.why(address).marked == ()
    assert [mark.mark_id for mark in repo.why(other).marked] == [mark_id]
    counts = marks.statuses.read_counts(marks.runs.get(mark_id))
    assert (counts["commits_marked"], counts["commits_unmarked"], counts["objects"]) == (1, 1, 2 + orphan)
    repo.unmark(first)
    assert repo.why(other).marked == ()
    assert marks.runs.get(mark_id).state_text == ("marked" if orphan else "abandoned")
    assert marks.statuses.read_counts(marks.runs.get(mark_id))["commits_marked"] == (0 if orphan else 2)
