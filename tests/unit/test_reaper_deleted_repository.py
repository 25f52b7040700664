"""A repository that was deleted is drained, and its name is free when the last of it is gone."""

from __future__ import annotations

import pytest

from refstore import keys
from refstore.errors import RepositoryNotFound
from refstore.kv.base import ABSENT
from refstore.records import Branch, encode
from tests.reaper_world import SCRUB_AFTER_SECONDS, World


def test_a_deleted_repository_is_drained_and_its_name_is_free_again(world: World) -> None:
    committed = world.upload("main", "a")[0]
    world.repo.commit("main", "a")
    world.upload("main", "b")
    world.repo.create_branch("feature", "main")
    world.repo.create_tag("v1", "main")
    world.upload("feature", "c")
    repo = world.repo.context.repo
    world.lake.delete_repository("lake")
    with pytest.raises(RepositoryNotFound):
        world.lake.repository("lake")
    world.run_past_grace()
    assert world.stored() == {committed.address}
    assert world.run_once().drained == 0  # an operation may still be under way
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    assert world.run_once(scrub_now=True).drained == 1
    left = {key.partition for key in world.kv.dump()}
    assert not [partition for partition in left if partition.startswith(repo)]
    assert {key.name for key in world.kv.dump() if key.partition == keys.CLOSED_REPOSITORIES} == {repo}
    assert not [key for key in world.kv.dump() if key.partition == keys.LEASES]
    again = world.lake.create_repository("lake")
    assert again.context.repo != repo


def test_a_repository_is_not_retired_before_its_last_reference_is_gone(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.lake.delete_repository("lake")
    world.objects.refuses = {entry.address}
    for _ in range(4):
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        assert world.run_once(scrub_now=True).drained == 0
    world.objects.refuses = set()
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    world.run_once(scrub_now=True)
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    world.run_once(scrub_now=True)
    assert world.kv.get(keys.repository(world.repo.name)) is ABSENT
    assert not world.stored()


def test_a_branch_that_was_made_too_late_is_closed_by_the_reaper(world: World) -> None:
    """Its maker died before it could take it back."""
    world.lake.delete_repository("lake")
    ctx = world.repo.context
    token = "late:00000000000000000000000001"
    world.kv.set(keys.branch(ctx.repo, "late"), encode(Branch("c" * 64, token, (), (), "w")))
    world.run_once()
    assert world.kv.count(keys.branches(ctx.repo), limit=10) == 0
