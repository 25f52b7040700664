"""What a mark must never hold, and what a sweep must not delete although a mark holds it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.errors import Conflict, CorruptRange, Gone, StoreMisconfigured
from refstore.gc_marks import Marks, RunState
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from refstore_gc.run_context import BreakerLimits
from tests.offline.world import World, everything_in, marked_in
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def test_everything_that_something_names_stays(world: World, engines: Engines) -> None:
    """Staged; in its grace window; issued; a branch's head; a tag; a pin; a commit that has not expired."""
    repo = world.repo
    tagged = world.commit(days_ago=90, tagged=b"1")
    pinned = world.commit(days_ago=80, tagged=None, pinned=b"2")
    world.commit(days_ago=70, pinned=None, gone=b"3")
    world.commit(days_ago=60, gone=None, current=b"4")
    world.commit(days_ago=1, current=b"5")
    world.commit(days_ago=0, head=b"6")
    repo.create_tag("v1", ref=tagged)
    rules = {"default_retention_days": 30, "grace_days": 0, "pins": {"commits": [pinned]}}
    repo.set_retention(json.dumps(rules))
    repo.create_branch("side", source="main")
    repo.upload("side", "staged", b"7")
    issued = repo.issue("side", "issued")
    repo.context.objects.put(issued.address, b"8")
    repo.upload("side", "overwritten", b"9")
    in_grace = world.address("side", "overwritten")
    repo.upload("side", "overwritten", b"10")
    named = {
        world.address(tagged, "tagged"),
        world.address(pinned, "pinned"),
        world.address("main~1", "current"),
        world.address("main~2", "current"),
        world.address("main", "head"),
        world.address("side", "staged"),
        world.address("side", "overwritten"),
        issued.address,
        in_grace,
    }
    gone = world.address("main~3", "gone")
    release_all(repo)
    world.age(days=60)
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    marked = marked_in(world, summary.mark_id)
    assert gone in marked
    assert not named & set(marked)


def test_what_an_unmarked_commit_names_drops_out_of_the_sweep(world: World, engines: Engines) -> None:
    world.commit(days_ago=9, a=b"first", b=b"also")
    old = world.commit(days_ago=8, a=b"second")
    world.commit(days_ago=7, a=b"third", b=None)
    world.settle()
    lost, kept = world.address("main~2", "a"), world.address(old, "a")
    shared = world.address(old, "b")
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert {lost, kept, shared} <= set(marked_in(world, summary.mark_id))
    Marks(world.ctx).decisions.unmark(old)
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id).sweep
    assert swept is not None
    assert swept.outcomes["excluded"].objects == 2
    assert swept.excluded_commits == 1
    assert world.data() == {kept, shared, world.address("main", "a")}
    assert world.repo.read(old, "a") == b"second"


def test_a_mark_that_was_taken_back_is_not_swept(world: World, engines: Engines) -> None:
    world.let_one_expire()
    before = world.data()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    Marks(world.ctx).decisions.unmark(summary.mark_id)
    with pytest.raises(Gone, match="abandoned"):
        gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert world.data() == before


@pytest.mark.parametrize("damage", ["missing range", "damaged range", "missing metarange"])
def test_what_cannot_be_read_ends_the_run_and_nothing_is_marked(world: World, engines: Engines, damage: str) -> None:
    world.let_one_expire()
    folder = world.blobs / "_refstore" / ("metaranges" if "metarange" in damage else "ranges")
    newest = max(folder.iterdir(), key=lambda file: file.name.partition(".")[2])
    if damage.startswith("missing"):
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:-9] + b"x" * 9)
    before = world.data()
    with pytest.raises(CorruptRange, match="cannot be trusted"):
        gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert world.data() == before
    marks = Marks(world.ctx)
    assert [each.state for each in marks.runs.scan()] == [RunState.ABANDONED]
    assert list(marks.commits.scan()) == []
    assert marks.runs.read_flag() is None


def test_a_legal_hold_keeps_what_was_ever_committed_below_it(world: World, engines: Engines) -> None:
    world.commit(days_ago=9, held__a=b"held", other=b"goes", holding=b"goes, too")
    world.commit(days_ago=8, held__a=None, other=None, holding=None)
    world.commit(days_ago=7, new=b"new")
    world.settle()
    held, other = world.address("main~2", "held/a"), world.address("main~2", "other")
    world.repo.set_retention(
        json.dumps({"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "held/"}]})
    )
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert held in world.data()
    assert other not in world.data()
    assert len(world.data()) == 2


def test_a_path_rule_takes_only_what_lies_below_its_prefix(world: World, engines: Engines) -> None:
    world.commit(days_ago=30, logs__a=b"log", other=b"stays")
    world.commit(days_ago=20, logs__a=None, other=None)
    world.commit(days_ago=0, new=b"new")
    world.settle()
    log, other = world.address("main~2", "logs/a"), world.address("main~2", "other")
    rule = {"filter": {"prefix": "logs/"}, "expiration": {"noncurrent": {"days": 3}}}
    world.repo.set_retention(json.dumps({"default_retention_days": 365, "grace_days": 0, "rules": [rule]}))
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert log not in world.data()
    assert other in world.data()


def test_the_breaker_holds_a_large_mark_until_an_operator_confirms_it(world: World, engines: Engines) -> None:
    world.commit(days_ago=9, **dict.fromkeys("abcdef", b"old"))
    world.commit(days_ago=8, **{name: b"new!" if name == "a" else None for name in "abcdef"})
    world.settle()
    before = world.data()
    ran = gc_run.run_nightly(world.ctx, engines, GcOptions(limits=BreakerLimits(share_max=0.3, floor_objects=2)))
    assert "would go" in ran.mark_summary.question
    assert world.data() == before
    with pytest.raises(Conflict, match="confirm it first"):
        gc_run.sweep(world.ctx, engines, ran.mark_summary.mark_id)
    Marks(world.ctx).decisions.confirm(ran.mark_summary.mark_id, "an operator")
    gc_run.sweep(world.ctx, engines, ran.mark_summary.mark_id)
    assert world.data() == {world.address("main", "a")}


def test_a_clock_that_is_off_ends_the_run_before_anything_is_marked(world: World, engines: Engines) -> None:
    world.clock.off_seconds = 600
    with pytest.raises(StoreMisconfigured, match="set the clocks right"):
        gc_run.mark(world.ctx, engines, GcOptions())
    assert list(Marks(world.ctx).runs.scan()) == []


def test_a_later_mark_leaves_out_what_an_earlier_one_is_going_to_sweep(world: World, engines: Engines) -> None:
    world.let_one_expire()
    first = gc_run.mark(world.ctx, engines, GcOptions(grace_days=7))
    world.commit(days_ago=0, a=b"newer")
    world.settle()
    second = gc_run.mark(world.ctx, engines, GcOptions(grace_days=7))
    assert not set(marked_in(world, first.mark_id)) & set(marked_in(world, second.mark_id))
    assert second.pending.objects == first.marked.objects == 1
    assert second.marked.objects == 1


def test_what_refstore_did_not_write_is_left_alone_unless_asked_for(world: World, engines: Engines) -> None:
    world.commit(a=b"kept")
    release_all(world.repo)
    inside, outside = world.plant("data/from-before/part-0.parquet"), world.plant("notes.txt")
    world.age()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert summary.marked.objects == 0
    assert summary.foreign.objects == 2
    asked = gc_run.mark(world.ctx, engines, GcOptions(includes_foreign=True))
    assert marked_in(world, asked.mark_id) == {inside: "foreign"}
    assert (world.blobs / outside).exists()


def test_a_simulation_touches_nothing(world: World, engines: Engines) -> None:
    world.commit(days_ago=9, a=b"old")
    world.commit(days_ago=8, a=b"new")
    release_all(world.repo)
    world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    world.age()
    before = everything_in(world)
    summary = simulate_mark(world.ctx, engines, GcOptions())
    assert everything_in(world) == before
    real = gc_run.mark(world.ctx, engines, GcOptions())
    assert {reason: count.objects for reason, count in summary.by_reason.items()} == {"expired": 1, "orphan blob": 1}
    assert real.by_reason == summary.by_reason
