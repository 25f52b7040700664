"""What a mark holds, against a walk over every commit and every key: slow, and plainly right."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.core.clock import to_datetime
from refstore.core.ids import CommitId
from refstore.core.user_metadata import TRANSACTION
from refstore.errors import NothingToCommit
from refstore.gc_marks import Marks
from refstore.public_types import stored_commit
from refstore.records import keys
from refstore.retention.commit_arrays import SNAPSHOT
from refstore.versioning.commits import object_names
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from tests.offline.world import World, marked_in
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def live_happily(world: World, rng: random.Random, *, typed: bool = False) -> None:
    """Three months of uploads, deletions, copies out of history, branches, merges and deleted branches. `typed`: some
    commits on other branches than main say their transaction types.
    """
    branches = ["main"]
    for day in range(90, 0, -3):
        branch = rng.choice(branches)
        for _ in range(rng.randrange(1, 5)):
            path = f"{rng.choice('ab')}/{rng.randrange(12)}"
            if rng.random() < 0.25:
                world.repo.delete(branch, path)
            else:
                world.repo.upload(branch, path, rng.randbytes(8))
        if rng.random() < 0.2:
            listed = [each.path for each in world.repo.list(f"{branch}@")]
            if listed:
                world.repo.copy(f"{branch}@", rng.choice(listed), to_branch=branch, to_path=f"copied/{day}")
        if typed and branch != "main" and rng.random() < 0.5:
            metadata = {TRANSACTION: rng.choice(["APPEND", "APPEND", SNAPSHOT])}
            date = to_datetime(world.clock.now_ms() - day * 86_400_000)
            world.repo.commit(branch, "change", metadata=metadata, date=date, allow_empty=True)
        else:
            world.commit(branch, days_ago=day)
        if rng.random() < 0.2:
            world.repo.create_branch(f"branch-{day}", source=branch)
            branches.append(f"branch-{day}")
        if rng.random() < 0.2 and branch != "main":
            date = to_datetime(world.clock.now_ms() - day * 86_400_000)
            with suppress(NothingToCommit):
                world.repo.merge(branch, into="main", strategy="source-wins", date=date)
        if rng.random() < 0.1 and len(branches) > 2:
            world.repo.delete_branch(branches.pop())
    world.repo.upload("main", "staged", b"staged")


def obviously(world: World) -> set[str]:
    """The blobs that no unmarked commit, no head, no staged entry and no reference names."""
    repo, ctx = world.repo, world.ctx
    marked = {commit for commit, _ in Marks(ctx).commits.scan()}
    heads = {branch.head for branch in repo.branches()} | {tag.commit_id for tag in repo.tags()}
    named: set[str] = set()
    for name, _ in ctx.kv.scan_all(keys.commits(ctx.repo)):
        if name not in marked or CommitId(name) in heads:
            metarange = stored_commit(repo.get_commit(name)).metarange
            named |= {address for page in ctx.trees.addresses(metarange) for address in page}
    for branch in [each.name for each in repo.branches()]:
        named |= {each.entry.address for each in repo.list(branch) if each.entry is not None}
    for shard in range(keys.SHARDS):
        named |= {name for name, _ in ctx.kv.scan_all(keys.references(ctx.repo, shard))}
    return world.data() - named


def latest_views(world: World) -> set[CommitId]:
    """The commits of the latest view of each branch that uses transaction types."""
    views: set[CommitId] = set()
    for branch in [each.name for each in world.repo.branches()]:
        line = [world.repo.get_commit(branch)]
        while line[-1].parents:
            line.append(world.repo.get_commit(line[-1].parents[0]))
        if any(TRANSACTION in commit.metadata for commit in line):
            for commit in line:
                views.add(commit.id)
                if commit.metadata.get(TRANSACTION) == SNAPSHOT:
                    break
    return views


def ranges_of_commits(world: World) -> set[str]:
    """The keys of the ranges and metaranges of all commits, which stay also when their blobs are swept."""
    named: set[str] = set()
    for name, _ in world.ctx.kv.scan_all(keys.commits(world.ctx.repo)):
        if metarange := stored_commit(world.repo.get_commit(name)).metarange:
            named.add(object_names.key(object_names.METARANGES, metarange))
            named |= {object_names.key(object_names.RANGES, each) for each in world.ctx.trees.ranges(metarange)}
    return named


@pytest.mark.parametrize("seed", [1, 2])
def test_a_mark_holds_what_a_plain_walk_finds_unnamed(tmp_path: Path, both_engines: Engines, seed: int) -> None:
    rules = {"default_retention_days": 20, "branches": [{"branch_id": "main", "retention_days": 45}], "grace_days": 0}
    world = World(tmp_path, rules=json.dumps(rules))
    live_happily(world, random.Random(seed))
    release_all(world.repo)
    orphan = world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    world.age()
    summary = gc_run.mark(world.ctx, both_engines, GcOptions())
    wanted, ranges = obviously(world), ranges_of_commits(world)
    found = {
        address: reason for address, reason in marked_in(world, summary.mark_id).items() if address.startswith("data/")
    }
    assert len(wanted) > 5
    assert set(found) == wanted
    assert [address for address, reason in found.items() if reason != "expired"] == [orphan]
    gc_run.sweep(world.ctx, both_engines, summary.mark_id)
    for branch in [each.name for each in world.repo.branches()]:
        assert all(world.repo.read(branch, each.path) is not None for each in world.repo.list(branch))
    assert not world.data() & wanted
    assert len(ranges) > 20
    assert {each for each in ranges if (world.blobs / each).exists()} == ranges
    world.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_mark_has_a_commit_of_a_latest_view(tmp_path: Path, engines: Engines, seed: int) -> None:
    world = World(tmp_path, rules='{"default_retention_days": 0, "grace_days": 0}')
    live_happily(world, random.Random(seed), typed=True)
    world.settle()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    views = latest_views(world)
    marked = {commit for commit, _ in Marks(world.ctx).commits.scan()}
    assert marked
    assert not marked & views
    assert len(views - {branch.head for branch in world.repo.branches()}) > 3
    found = {address for address in marked_in(world, summary.mark_id) if address.startswith("data/")}
    assert found == obviously(world)
    gc_run.sweep(world.ctx, engines, summary.mark_id)
    for commit in views:
        assert all(world.repo.read(commit, each.path) is not None for each in world.repo.list(commit))
    world.close()
