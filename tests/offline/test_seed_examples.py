"""The worked examples of the designs that the offline job comes from, on real files and on both engines. (That of the
purge, seed 002, stands in `test_purge.py`.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from refstore.retention.commit_arrays import SNAPSHOT, TRANSACTION
from refstore_gc import run
from refstore_gc.run import Options
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
    world.repo.create_branch("feature1", "main")
    world.commit("feature1", days_ago=9, example3=b"example3")  # C
    world.commit(days_ago=8, example2=b"example2", example1=None)  # B
    world.commit("feature1", days_ago=5, example3=None)  # D
    world.commit(days_ago=4, example2=None)  # E
    release_all(world.repo)
    world.age()
    run.run(world.ctx, both_engines, Options())
    assert bodies(world) == {"example1", "example2"}


def test_a_later_snapshot_begins_the_latest_view_of_seed_003(world: World, both_engines: Engines) -> None:
    """T1 and T2 stand before the snapshot T3 on abc, but in the latest view of xyz."""
    world.repo.set_retention('{"default_retention_days": 0, "keep_latest_view": true, "grace_days": 0}')
    world.repo.create_branch("abc", "main")

    def transaction(name: str, branch: str, kind: str = "APPEND") -> None:
        for item in list(world.repo.list(branch)) if kind == SNAPSHOT else []:
            world.repo.delete(branch, item.path)
        world.repo.upload(branch, name, name.encode())
        made_ms = world.clock.now_ms() - 30 * DAY_MS
        world.repo.commit(branch, name, metadata={TRANSACTION: kind}, date_ms=made_ms)

    transaction("T1", "abc")
    transaction("T2", "abc")
    world.repo.create_branch("xyz", "abc")
    transaction("T3", "abc", SNAPSHOT)
    transaction("T4", "abc")
    transaction("T5", "xyz")
    release_all(world.repo)
    world.age()
    run.run(world.ctx, both_engines, Options())
    assert bodies(world) == {"T1", "T2", "T3", "T4", "T5"}
    world.repo.delete_branch("xyz")
    release_all(world.repo)
    run.run(world.ctx, both_engines, Options())
    assert bodies(world) == {"T3", "T4"}
