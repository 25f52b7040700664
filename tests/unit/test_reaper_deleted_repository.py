"""A repository that was deleted is drained, and its name is free when the last of it is gone."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from refstore.errors import AlreadyExists, RepositoryNotFound
from refstore.kv.base import ABSENT, SetIf
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.encoding import encode
from refstore_reaper import breaker
from refstore_reaper.status import read_status
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, Crash, World


def test_a_deleted_repository_is_drained_and_its_name_is_free_again(world: World) -> None:
    committed = world.upload("main", "a")[0]
    world.repo.commit("main", "a")
    world.upload("main", "b")
    world.repo.create_branch("feature", source="main")
    world.repo.create_tag("v1", ref="main")
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


def until_of(world: World) -> tuple[int, str]:
    """Until when its name is taken, and why, as who wants it is told."""
    with pytest.raises(AlreadyExists) as refused:
        world.lake.create_repository("lake")
    (shown,) = read_status(world.lake, repository="lake").repositories
    assert shown.name_hold == str(refused.value)
    told = re.search(r"is taken until ([-0-9T:]+Z), because ([^;]+);", str(refused.value))
    assert told is not None, refused.value
    return int(datetime.fromisoformat(told[1]).timestamp()) * 1000, told[2]


def pass_to(world: World, at_ms: int) -> None:
    """Set the clock to just behind a time."""
    world.clock.advance((at_ms - world.clock.now_ms()) / 1000 + 1)


@pytest.mark.parametrize("staged", [False, True])
def test_the_name_of_a_deleted_repository_is_taken_until_the_time_that_is_told(world: World, staged: bool) -> None:
    if staged:
        world.upload("main", "a")
    world.lake.delete_repository("lake")
    with pytest.raises(RepositoryNotFound, match=r"was deleted at .*; list the repositories"):
        world.lake.repository("lake")
    assert "no reaper has processed its staging areas yet" in until_of(world)[1]
    world.run_once()
    until_ms, why = until_of(world)
    assert "may still" in why
    if staged:
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
    assert until_of(world)[0] == until_ms
    world.clock.advance((until_ms - world.clock.now_ms()) / 1000 - 60)
    assert world.run_once(scrub_now=True).drained == 0
    pass_to(world, until_ms)
    with pytest.raises(AlreadyExists, match="until a reaper has scrubbed what is left of it"):
        world.lake.create_repository("lake")
    assert world.run_once(scrub_now=True).drained == 1
    world.lake.create_repository("lake")


def test_what_can_be_restored_keeps_the_name_of_a_deleted_repository(world: World) -> None:
    """The grace window is longer than any operation here."""
    world.lake.delete_repository("lake")
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    world.run_once(scrub_now=True)
    world.lake.create_repository("lake", grace_seconds=10 * SCRUB_AFTER_SECONDS).upload("main", "a", b"x")
    world.lake.delete_repository("lake")
    world.run_once()
    until_ms, why = until_of(world)
    assert why == "1 uncommitted objects of it can be restored until then"
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    assert world.run_once(scrub_now=True).drained == 0
    assert until_of(world) == (until_ms, why)
    pass_to(world, until_ms)
    assert world.run_once(scrub_now=True).drained == 1


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
    world.kv.set(keys.branch(ctx.repo, "late"), encode(StoredBranch("c" * 64, token, (), (), "w")))
    world.run_once()
    assert world.kv.count(keys.branches(ctx.repo), limit=10) == 0


def test_a_branch_that_cannot_be_read_keeps_no_other_open(world: World) -> None:
    """The deletion died behind its first step, so that the branches are the reaper's to close."""
    world.repo.create_branch("a", source="main")
    world.repo.create_branch("b", source="main")
    kept, gone = world.upload("a", "p")[0], world.upload("b", "p")[0]
    world.kv.crash_at(lambda op: op.key == keys.repository(world.repo.name) and isinstance(op, SetIf), behind=True)
    with pytest.raises(Crash):
        world.lake.delete_repository("lake")
    world.corrupt(keys.branch(world.repo.context.repo, "a"))
    done = world.run_once()
    assert {error.unit for error in done.errors} == {"branch/a"}
    world.run_past_grace()
    assert world.stored() == {kept.address} != {gone.address}


def test_however_much_of_it_was_never_committed_its_share_does_not_stop_it() -> None:
    """The heads are closed and count for nothing, so all that is left is due, as was asked for."""
    world = World(breaker_floor_objects=5, breaker_share=0.5)
    world.upload("main", *(f"c{number}" for number in range(40)))
    world.repo.commit("main", "much more is committed than is due")
    world.run_once()
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.lake.delete_repository("lake")
    world.run_past_grace()
    assert len(world.stored()) == 40
    for _ in range(3):
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        world.run_once(scrub_now=True)
    assert world.kv.get(keys.repository(world.repo.name)) is ABSENT


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_how_fast_it_goes_is_watched_all_the_same(grace_seconds: int | None) -> None:
    world = World(grace_seconds=grace_seconds, breaker_floor_objects=5, breaker_per_hour=15, batch_keys=10)
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.lake.delete_repository("lake")
    world.run_past_grace()
    assert len(world.stored()) == 5
    state = breaker.read_state(world.kv, world.repo.context.repo)
    assert state is not None
    assert state.reason == "hourly"
