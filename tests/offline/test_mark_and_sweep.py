"""Mark and sweep over real rules, a real KV and real files: what goes, what stays, and what the report says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from tests.offline.world import World
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def test_what_only_an_expired_commit_names_goes(world: World, both_engines: Engines) -> None:
    world.commit(days_ago=9, a=b"old", b=b"kept")
    old, kept = world.address("main", "a"), world.address("main", "b")
    world.commit(days_ago=8, a=b"new")
    world.commit(days_ago=7, c=b"x")
    world.settle()
    ran = gc_run.run_nightly(world.ctx, both_engines, GcOptions())
    assert world.data() == {world.address("main", path) for path in "abc"}
    assert kept in world.data()
    assert old not in world.data()
    (swept,) = ran.sweep_summaries
    assert swept.sweep is not None
    assert swept.sweep.outcomes["deleted"].objects == 1
    assert swept.by_reason["expired"].objects == 1
    assert world.repo.read("main", "a") == b"new"


def test_an_orphan_blob_goes_when_it_is_old_enough(world: World, both_engines: Engines) -> None:
    world.commit(a=b"kept")
    release_all(world.repo)
    orphan = world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    assert gc_run.mark(world.ctx, both_engines, GcOptions()).marked.objects == 0
    world.age()
    summary = gc_run.mark(world.ctx, both_engines, GcOptions())
    assert {reason: count.objects for reason, count in summary.by_reason.items()} == {"orphan blob": 1}
    gc_run.sweep(world.ctx, both_engines, summary.mark_id)
    assert orphan not in world.data()
    assert world.repo.read("main", "a") == b"kept"


def test_a_second_sweep_does_nothing(world: World, both_engines: Engines) -> None:
    world.let_one_expire()
    summary = gc_run.mark(world.ctx, both_engines, GcOptions())
    first = gc_run.sweep(world.ctx, both_engines, summary.mark_id)
    assert gc_run.sweep(world.ctx, both_engines, summary.mark_id) == first


@pytest.mark.parametrize("grace_days", [7.0])
def test_nothing_is_swept_before_its_time(world: World, both_engines: Engines, grace_days: float) -> None:
    world.let_one_expire()
    before = world.data()
    ran = gc_run.run_nightly(world.ctx, both_engines, GcOptions(grace_days=grace_days))
    assert ran.sweep_summaries == []
    assert [each.mark_id for each in ran.waiting_marks] == [ran.mark_summary.mark_id]
    assert world.data() == before
