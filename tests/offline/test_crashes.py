"""The driver dies at every step of a mark and of a sweep; then the job is run again, and the end is that of a run that
did not die.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.core.step_progress import StepProgress
from refstore.gc_marks import Marks, RunState
from refstore.kv.base import KV, SCAN_LIMIT, Op, Result, Server, Set, SetIf
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


class Died(BaseException):
    """Nothing of the run's own clearing up is to count: see `DyingKV`."""


class DyingKV(KV):
    """Dies at its n-th write, before or behind it, and answers nobody any more until it is revived.

    What a run writes by the clock does not count: a slow machine makes more of it. That is its progress, every 2 s.
    """

    def __init__(self, kv: KV, at: int, *, behind: bool) -> None:
        self._kv = kv
        self._left = at
        self._behind = behind
        self.dead = False
        self.writes = 0

    def execute(self, ops: list[Op]) -> list[Result]:
        self._alive()
        if not any(isinstance(op, Set | SetIf) and not op.key.partition.endswith("/progress") for op in ops):
            return self._kv.execute(ops)
        self.writes += 1
        if self.writes == self._left:
            if self._behind:
                self._kv.execute(ops)
            self.dead = True
            raise Died
        return self._kv.execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        self._alive()
        return self._kv.scan(partition, prefix=prefix, after=after, limit=limit)

    def servers(self) -> list[Server]:
        self._alive()
        return self._kv.servers()

    def _alive(self) -> None:
        if self.dead:
            raise Died


def lake_with_history(folder: Path) -> tuple[World, set[str]]:
    """(a world in which two blobs are to go, what is to be left)"""
    world = World(folder)
    world.commit(days_ago=9, a=b"one", b=b"stays")
    world.commit(days_ago=8, a=b"two")
    world.commit(days_ago=7, a=b"three")
    world.settle()
    return world, {world.address("main", "a"), world.address("main", "b")}


def with_kv(world: World, kv: KV) -> World:
    """The same lake, seen through another KV."""
    world.lake.kv = kv
    world.repo = world.lake.repository("sales")
    return world


STEPS = ("waiting", "listing", "reading", "comparing", "sweeping")


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_dies_in_a_step_is_made_good_by_the_next(tmp_path: Path, engines: Engines, step: str) -> None:
    world, left = lake_with_history(tmp_path)
    kv = world.lake.kv
    dying = DyingKV(kv, -1, behind=False)
    with_kv(world, dying)

    def die(now: StepProgress) -> None:
        if now.step.startswith(step):
            dying.dead = True
            raise Died

    with pytest.raises(Died):
        gc_run.run_nightly(world.ctx, engines, GcOptions(), die)
    with_kv(world, kv)
    gc_run.run_nightly(world.ctx, engines, GcOptions(take_over=True))
    assert world.data() == left
    assert Marks(world.ctx).runs.read_flag() is None
    assert {each.state for each in Marks(world.ctx).runs.scan()} <= {RunState.SWEPT, RunState.ABANDONED}
    world.close()


def test_the_run_may_die_at_its_writes_to_the_kv(tmp_path: Path, engines: Engines) -> None:
    counted, _ = lake_with_history(tmp_path / "counted")
    counting = DyingKV(counted.lake.kv, -1, behind=False)
    gc_run.run_nightly(with_kv(counted, counting).ctx, engines, GcOptions())
    counted.close()
    assert counting.writes >= 6, counting.writes
    # a few of them, in their order: each by itself is looked at where marks are tested
    for at in range(2, counting.writes + 1, counting.writes // 4):
        world, left = lake_with_history(tmp_path / f"at-{at}")
        kv = world.lake.kv
        with pytest.raises(Died):
            gc_run.run_nightly(with_kv(world, DyingKV(kv, at, behind=at % 2 == 1)).ctx, engines, GcOptions())
        gc_run.run_nightly(with_kv(world, kv).ctx, engines, GcOptions(take_over=True))
        assert world.data() == left, f"died at write {at}"
        world.close()


def test_a_sweep_that_died_goes_on_where_it_stopped(tmp_path: Path, both_engines: Engines) -> None:
    """What an earlier sweep wrote down is not deleted a second time."""
    world, left = lake_with_history(tmp_path)
    summary = gc_run.mark(world.ctx, both_engines, GcOptions())
    kv = world.lake.kv
    dying = DyingKV(
        kv, 2, behind=False
    )  # the first write says that the sweep begins, the next ones come when all is deleted
    with pytest.raises(Died):
        gc_run.sweep(with_kv(world, dying).ctx, both_engines, summary.mark_id)
    with_kv(world, kv)
    outcomes = sorted((world.blobs / "_refstore" / "gc" / summary.mark_id / "sweep").glob("*.parquet"))
    written = [file.stat().st_mtime_ns for file in outcomes]
    swept = gc_run.sweep(world.ctx, both_engines, summary.mark_id).sweep
    assert swept is not None
    assert {name: count.objects for name, count in swept.outcomes.items()} == {"deleted": 2}
    assert [file.stat().st_mtime_ns for file in outcomes] == written
    assert world.data() == left
    world.close()
