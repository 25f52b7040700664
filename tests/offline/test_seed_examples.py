"""The worked examples of the designs that the offline job comes from, on real files and on both engines. (That of the
purge, seed 002, stands in `test_purge.py`.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from refstore.core.clock import to_datetime
from refstore.core.user_metadata import TRANSACTION
from refstore.retention.commit_arrays import SNAPSHOT
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from tests.offline.world import DAY_MS, World
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def bodies(world: World) -> set[str]:
    return {(world.blobs / key).read_text() for key in world.data()}


def test_cleanup_on_multiple_branches_of_seed_000(world: World, both_engines: Engines) -> None:
    """7 days for main, 3 for the feature branch: example2 is accessible from B, example1 from D; example3 from
    neither.
    """
    branches = [{"branch_id": "main", "retention_days": 7}, {"branch_id": "feature1", "retention_days": 3}]
    world.repo.set_retention(json.dumps({"default_retention_days": 7, "branches": branches, "grace_days": 0}))
    world.commit(days_ago=12, example1=b"example1")  # A
    world.repo.create_branch("feature1", source="main")
    world.commit("feature1", days_ago=9, example3=b"example3")  # C
    world.commit(days_ago=8, example2=b"example2", example1=None)  # B
    world.commit("feature1", days_ago=5, example3=None)  # D
    world.commit(days_ago=4, example2=None)  # E
    world.settle()
    gc_run.run_nightly(world.ctx, both_engines, GcOptions())
    assert bodies(world) == {"example1", "example2"}


def transaction(world: World, branch: str, name: str, kind: str = "APPEND") -> None:
    """Commit a file of that name; a snapshot has nothing else."""
    for item in list(world.repo.list(branch)) if kind == SNAPSHOT else []:
        world.repo.delete(branch, item.path)
    world.repo.upload(branch, name, name.encode())
    world.repo.commit(branch, name, metadata={TRANSACTION: kind}, date=to_datetime(world.clock.now_ms() - 30 * DAY_MS))


def transactions(world: World) -> None:
    """Branch abc: T1 (APPEND), T2 (APPEND), T3 (SNAPSHOT), T4 (APPEND); xyz forks from it at T2: T5 (APPEND)."""
    world.repo.create_branch("abc", source="main")
    transaction(world, "abc", "T1")
    transaction(world, "abc", "T2")
    world.repo.create_branch("xyz", source="abc")
    transaction(world, "abc", "T3", SNAPSHOT)
    transaction(world, "abc", "T4")
    transaction(world, "xyz", "T5")
    world.settle()


def test_a_later_snapshot_begins_the_latest_view_of_seed_003(world: World, both_engines: Engines) -> None:
    """T1 and T2 stand before the snapshot T3 on abc, but in the latest view of xyz. The rules do not mention views."""
    transactions(world)
    gc_run.run_nightly(world.ctx, both_engines, GcOptions())
    assert bodies(world) == {"T1", "T2", "T3", "T4", "T5"}
    world.repo.delete_branch("xyz")
    release_all(world.repo)
    gc_run.run_nightly(world.ctx, both_engines, GcOptions())
    assert bodies(world) == {"T3", "T4"}


def overwritten(world: World, branch: str, kind: str | None) -> None:
    """Commit a file three times at one path, so that only history has the first two."""
    world.repo.create_branch(branch, source="main")
    for number in range(3):
        world.repo.upload(branch, "file", f"{branch} {number}".encode())
        metadata = {} if kind is None else {TRANSACTION: kind}
        world.repo.commit(branch, "write", metadata=metadata, date=to_datetime(world.clock.now_ms() - 30 * DAY_MS))


@pytest.mark.parametrize("lifted", [{}, {"keep_latest_view": False}, {"allow_deletion_from_latest_view": True}])
def test_only_branches_with_transaction_types_keep_their_view_unless_the_rules_lift_that(
    world: World, engines: Engines, lifted: dict[str, bool]
) -> None:
    rules = {"default_retention_days": 0, "grace_days": 0} | lifted
    world.repo.set_retention(json.dumps(rules))
    overwritten(world, "typed", "APPEND")
    overwritten(world, "plain", None)
    world.settle()
    simulated = simulate_mark(world.ctx, engines, GcOptions()).marked.objects
    before = bodies(world)
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    left = bodies(world)
    typed = {"typed 2"} if lifted else {"typed 0", "typed 1", "typed 2"}
    assert left == {"plain 2"} | typed
    assert simulated == len(before - left)


def test_a_branch_that_begins_to_use_types_keeps_what_was_marked_and_not_swept(world: World, engines: Engines) -> None:
    world.repo.set_retention('{"default_retention_days": 0, "grace_days": 7}')
    overwritten(world, "abc", None)
    world.settle()
    first = gc_run.mark(world.ctx, engines, GcOptions())
    assert first.marked.objects == 2
    world.clock.sleep(8 * DAY_MS / 1000)
    transaction(world, "abc", "T1")
    release_all(world.repo)
    gc_run.sweep(world.ctx, engines, first.mark_id)
    assert bodies(world) == {"abc 0", "abc 1", "abc 2", "T1"}
    assert gc_run.mark(world.ctx, engines, GcOptions()).marked.objects == 0
    transaction(world, "abc", "T2", SNAPSHOT)
    world.settle()
    gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0))
    assert bodies(world) == {"T2"}
