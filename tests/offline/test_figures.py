"""What operators see of the offline job: figures and progress of real runs, and how a run is stopped."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from refstore.core.step_progress import StepProgress
from refstore.errors import NotFound, RunStopped
from refstore.gc_marks import Marks, RunState
from refstore.monitoring import figures, run_control
from refstore.monitoring.figures import Concern
from refstore_gc import gc_run as nightly
from refstore_gc import mark as mark_module
from refstore_gc import sweep as sweep_module
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_context import BreakerLimits, RunContext
from tests.offline.world import World
from tests.reaping import release_all

if TYPE_CHECKING:
    from pathlib import Path

    from refstore_gc.engines.choice import Engines


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.commit(days_ago=9, a=b"old")
    made.commit(days_ago=8, a=b"new")
    release_all(made.repo)
    made.plant("data/2020010100/01e0000000000000000000000a", b"orphan")
    made.age()
    return made


def figures_of(world: World) -> figures.Figures:
    return figures.read_figures(world.ctx.kv, world.ctx.repo)


def test_a_run_tells_what_it_found_and_what_it_deleted(world: World, engines: Engines) -> None:
    seen: list[str] = []

    def watch(progress: StepProgress) -> None:
        seen.extend(each.progress.kind for each in run_control.active_runs(world.ctx))

    nightly.run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0), watch)
    gc = figures_of(world).gc
    assert gc.marked_ms
    assert gc.run_ms >= gc.marked_ms
    assert gc.orphans.objects == 1
    assert [(day.objects, day.bytes) for day in gc.reclaimed] == [(2, 3 + len(b"orphan"))]
    assert (gc.error, gc.failed_objects) == ("", 0)
    assert {"mark", "sweep"} <= set(seen)
    assert not list(run_control.active_runs(world.ctx))  # it has ended


def test_what_is_marked_is_known_without_a_reaper(world: World, engines: Engines) -> None:
    limits = BreakerLimits(share_max=0.01, floor_objects=1)
    nightly.run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0, grace_days=3, limits=limits))
    found = figures_of(world).gc
    assert (found.marked.objects, found.questions, found.next_sweep_ms) == (2, 1, 0)
    warned = figures.find_warnings(figures_of(world), 0, world.clock.now_ms())
    assert Concern.QUESTION in [each.concern for each in warned]
    Marks(world.ctx).decisions.confirm(next(Marks(world.ctx).runs.scan()).mark_id, "a-test")
    figures.write_marks(world.ctx)
    found = figures_of(world).gc
    assert found.questions == 0
    assert found.next_sweep_ms > world.clock.now_ms()


def test_a_run_that_fails_says_why_until_one_succeeds(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotFound("there is no such thing; make one")

    with monkeypatch.context() as patch:
        patch.setattr(mark_module, "decide_marks", fail)
        with pytest.raises(NotFound):
            nightly.run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0))
    assert figures_of(world).gc.error == "there is no such thing; make one"
    nightly.run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0))
    assert figures_of(world).gc.error == ""


def test_a_marking_that_is_stopped_marks_nothing(world: World, engines: Engines) -> None:
    def stop(progress: StepProgress) -> None:
        if progress.step.startswith("waiting"):
            for each in run_control.active_runs(world.ctx):
                run_control.request_stop(world.ctx, each.run_id, "ada")

    with pytest.raises(RunStopped, match=r"ada stopped the run"):
        nightly.mark(world.ctx, engines, GcOptions(min_age_seconds=0), stop)
    (run,) = Marks(world.ctx).runs.scan()
    assert run.state is RunState.ABANDONED
    assert "ada stopped the run" in run.record.end_reason
    assert not list(Marks(world.ctx).commits.scan())
    assert figures_of(world).gc.error == ""  # nobody is warned of what an operator did
    assert nightly.run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0)).mark_summary.marked.objects == 2


def test_a_sweep_that_is_stopped_goes_on_with_the_next_run(
    world: World, both_engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_for_long(run: RunContext, *_: object) -> None:
        run_control.request_stop(world.ctx, run.layout.mark_id, "ada")
        list(run.engine.map(partial(map, time.sleep), [[0.05]] * 2400))

    with monkeypatch.context() as patch:
        patch.setattr(sweep_module, "sweep_units", sweep_for_long)
        with pytest.raises(RunStopped, match=r"ada stopped the run"):
            nightly.run_nightly(world.ctx, both_engines, GcOptions(min_age_seconds=0))
    assert [run.state for run in Marks(world.ctx).runs.scan()] == [RunState.SWEEPING]
    assert not list(run_control.active_runs(world.ctx))
    done = nightly.run_nightly(world.ctx, both_engines, GcOptions(min_age_seconds=0))
    assert {each.state for each in done.sweep_summaries} == {"swept"}
    assert sum(day.objects for day in figures_of(world).gc.reclaimed) == 2


def test_only_a_run_under_way_can_be_stopped(world: World) -> None:
    with pytest.raises(NotFound, match="may have ended just now"):
        run_control.request_stop(world.ctx, "01none", "ada")
