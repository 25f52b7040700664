"""The breaker: when it trips, that it stays so, that releases go on, and how an operator lets it go on."""

from __future__ import annotations

from functools import partial

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core.ids import BranchName
from refstore.errors import Invalid
from refstore.kv.base import ABSENT
from refstore.operations.address_info import AddressState
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reaper_records import BreakerState, DueHintRecord
from refstore.versioning import due_hints
from refstore_reaper import breaker
from refstore_reaper.backlog import count_due, count_objects, measure
from refstore_reaper.breaker import BUCKET_MS, HOUR_MS, Breaker
from refstore_reaper.deletion import due_addresses
from tests.reaper_world import GRACE_SECONDS, World

OFF = {"breaker_share": 1, "breaker_per_hour": 0}


def world_with(due: int, live: int = 0, committed: int = 0, **settings: object) -> World:
    """So many objects that are due, staged, and committed."""
    world = World(**{"breaker_floor_objects": 5, "batch_keys": 10, **settings})
    if committed:
        world.upload("main", *(f"c{number}" for number in range(committed)))
        world.repo.commit("main", "c")
        world.run_once()
    if live:
        world.upload("main", *(f"l{number}" for number in range(live)))
    if due:
        world.upload("main", *(f"d{number}" for number in range(due)))
        world.repo.delete_prefix("main", "d")
    world.clock.advance(GRACE_SECONDS + 1)
    return world


def state_of(world: World) -> BreakerState:
    found = breaker.read_state(world.kv, world.repo.context.repo)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("due", "live", "committed", "trips"),
    [
        (5, 0, 0, False),  # no more than the floor
        (6, 0, 0, True),
        (20, 20, 0, False),  # exactly half
        (21, 20, 0, True),
        (20, 0, 20, False),
        (20, 10, 10, False),
        (22, 10, 11, True),
        (40, 0, 0, True),
    ],
)
def test_it_trips_when_more_than_its_share_is_due(due: int, live: int, committed: int, trips: bool) -> None:
    world = world_with(due, live, committed, breaker_share=0.5)
    done = world.run_once()
    assert (done.blocked > 0) == trips
    assert done.deleted == (0 if trips else due)
    assert bool(state_of(world).tripped_ms) == trips
    if trips:
        assert (state_of(world).reason, state_of(world).due_objects, state_of(world).live_objects) == (
            "share",
            due,
            due + live + committed,
        )
        assert f"{due} objects are due for deletion, of {due + live + committed}" in breaker.explain(state_of(world))


def test_a_share_of_one_never_trips_and_a_share_of_zero_trips_above_the_floor() -> None:
    assert world_with(40, breaker_share=1).run_once().deleted == 40
    assert world_with(6, live=100, breaker_share=0).run_once().deleted == 0
    assert world_with(5, live=100, breaker_share=0).run_once().deleted == 5


def test_it_stays_tripped_while_releases_go_on_and_restore_works() -> None:
    world = world_with(20, breaker_share=0.5)
    world.run_once()
    later = world.upload("main", "later")[0]
    world.repo.reset("main")
    done = world.run_once()
    assert (done.released, done.deleted) == (1, 0)
    world.upload("main", *(f"l{number}" for number in range(1000)))  # a small share by now
    world.clock.advance(10 * GRACE_SECONDS)
    assert world.run_once().deleted == 0
    assert world.repo.address(later.address).state is AddressState.IN_GRACE
    assert world.repo.restore(later.address, to="main").address == later.address


def test_with_no_grace_and_a_tripped_breaker_what_is_released_waits_in_its_list() -> None:
    world = World(grace_seconds=0, breaker_floor_objects=5, breaker_share=0.5)
    entries = world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    done = world.run_once()
    assert (done.released, done.deleted, done.blocked) == (20, 0, 1)
    assert len(world.stored()) == 20
    assert world.repo.address(entries[0].address).state is AddressState.IN_GRACE
    breaker.resume(world.repo.context, seconds=60)
    assert world.run_once().deleted == 20


def test_resumed_for_a_time_it_is_looked_at_again_after_that() -> None:
    world = world_with(20, breaker_share=0.5)
    world.run_once()
    breaker.resume(world.repo.context, seconds=60)
    assert world.run_once().deleted == 20
    world.upload("main", *(f"e{number}" for number in range(20)))
    world.repo.delete_prefix("main", "e")
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_once().deleted == 0
    assert state_of(world).tripped_ms


def test_resumed_for_a_number_exactly_so_many_go() -> None:
    world = world_with(40, breaker_share=0.5)
    world.run_once()
    breaker.resume(world.repo.context, objects=15)
    done = world.run_once()
    assert done.deleted == 15
    assert done.blocked > 0
    assert state_of(world).tripped_ms
    breaker.resume(world.repo.context, objects=1000)
    assert world.run_once().deleted == 25
    assert state_of(world).allowed_objects == 1000 - 25


def test_resuming_takes_a_number_of_objects_or_a_time_but_not_both() -> None:
    world = world_with(40, breaker_share=0.5)
    world.run_once()
    with pytest.raises(Invalid, match="give one of the two"):
        breaker.resume(world.repo.context, seconds=3600, objects=15)
    assert world.run_once().deleted == 0


def test_what_turns_out_to_be_gone_is_given_back_to_the_allowance() -> None:
    world = world_with(20, breaker_share=0.5)
    world.run_once()
    world.objects.inner.delete_many([next(iter(world.stored()))])
    breaker.resume(world.repo.context, objects=50)
    done = world.run_once()
    assert (done.deleted, done.missing) == (19, 1)
    assert state_of(world).allowed_objects == 50 - 19


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_store_that_is_down_takes_nothing_from_the_allowance(asynchronous: bool) -> None:
    world = world_with(20, breaker_share=0.5)
    world.run_once()
    breaker.resume(world.repo.context, objects=20)
    world.objects.down = True
    assert world.run_once(asynchronous=asynchronous).unavailable
    assert state_of(world).allowed_objects == 20
    world.objects.down = False
    assert world.run_once(asynchronous=asynchronous).deleted == 20


def test_what_another_batch_has_in_hand_takes_nothing_from_the_allowance() -> None:
    """Two hints of one address, in two batches of which the second begins before the first has ended."""
    world = world_with(6, breaker_share=0.5, batch_keys=1)
    world.run_once()
    ctx = world.repo.context
    now = world.clock.now_ms()
    for shard in range(keys.SHARDS):
        for each in due_addresses(due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=now, limit=9)):
            world.kv.set(keys.due_hint(ctx.repo, now - 1, each.address), encode(DueHintRecord()))
    breaker.resume(ctx, objects=20)
    assert world.run_once(asynchronous=True).deleted == 6
    assert state_of(world).allowed_objects == 20 - 6


def test_the_hourly_limit_is_exact_for_one_reaper_and_kept_for_all() -> None:
    world = world_with(40, breaker_share=1, breaker_per_hour=25)
    first = world.run_once(reaper="r1")
    assert first.deleted == 25
    assert (state_of(world).reason, state_of(world).due_objects, state_of(world).live_objects) == ("hourly", 25, 25)
    assert "25 objects were deleted within an hour, of 25 that are allowed" in breaker.explain(state_of(world))
    assert world.run_once(reaper="r2").deleted == 0
    breaker.resume(world.repo.context, seconds=1)
    world.clock.advance(2)
    assert world.run_once(reaper="r2").deleted == 0  # the hour is not over
    breaker.resume(world.repo.context, seconds=1)
    world.clock.advance(HOUR_MS // 1000 + BUCKET_MS // 1000 + 1)
    assert world.run_once(reaper="r2").deleted == 15


def test_old_counters_are_removed() -> None:
    world = world_with(10, **OFF)
    world.run_once()
    ctx = world.repo.context
    counters = [name for name, _ in world.kv.scan(keys.reaper_states(ctx.repo), prefix="deleted/")]
    assert len(counters) == 1
    world.clock.advance(2 * HOUR_MS // 1000)
    checked = Breaker(ctx, ReaperSettings(), "r")
    assert checked.check_share(lambda _: 0, lambda _: 0, lambda _: 0)
    assert checked.request_permit(1).count == 1
    assert not world.kv.scan(keys.reaper_states(ctx.repo), prefix="deleted/")


def test_a_state_that_cannot_be_read_counts_as_tripped() -> None:
    for grace in (None, 0):
        world = World(grace_seconds=grace)
        world.upload("main", "a")
        world.repo.reset("main")
        world.kv.set(keys.reaper_state(world.repo.context.repo, "breaker"), b"\xc1")
        world.clock.advance(GRACE_SECONDS + 1)
        done = world.run_once()
        world.clock.advance(GRACE_SECONDS + 1)
        done = world.run_once()
        assert done.corrupt
        assert len(world.stored()) == 1
        assert breaker.explain(breaker.read_state(world.kv, world.repo.context.repo))
        breaker.resume(world.repo.context, seconds=60)
        assert world.run_once().deleted == 1


def test_an_operator_who_resumes_while_it_is_weighed_is_not_overruled() -> None:
    world = world_with(20, breaker_share=0.5)
    counted = False

    def count(limit: int) -> int:
        nonlocal counted
        if not counted:
            counted = True
            breaker.resume(world.repo.context, seconds=60)
        return count_objects(world.repo.context, BranchName("main"), limit)

    mine = Breaker(world.repo.context, world.settings, "r1")
    hints = partial(count_due, world.repo.context, world.clock.now_ms())
    mine.check_share(hints, hints, count)
    assert counted
    assert not state_of(world).tripped_ms
    assert state_of(world).allowed_until_ms


def test_weighing_counts_no_further_than_what_is_due_asks_for() -> None:
    limits: list[int] = []

    def many(limit: int) -> int:
        limits.append(limit)
        return limit  # as far as anybody counts, there are more

    world = World(breaker_floor_objects=1000, breaker_share=0.5)
    assert Breaker(world.repo.context, world.settings, "r").check_share(partial(min, 1500), partial(min, 1500), many)
    assert limits == [8000]
    limits.clear()
    assert Breaker(world.repo.context, world.settings, "r").check_share(partial(min, 1000), partial(min, 1000), many)
    assert limits == []
    assert Breaker(world.repo.context, world.settings, "r").check_share(
        partial(min, 100_000), partial(min, 100_000), many
    )
    assert max(limits) <= 8 * 4 * 100_000


def test_counting_is_exact_up_to_its_limit() -> None:
    world = world_with(30, live=7, committed=11, **OFF)
    ctx = world.repo.context
    assert count_due(ctx, world.clock.now_ms(), 100) == 30
    assert count_due(ctx, world.clock.now_ms(), 12) == 12
    assert count_due(ctx, world.clock.now_ms() - 2 * GRACE_SECONDS * 1000, 100) == 0
    assert count_due(ctx, None, 100) == 30
    assert count_objects(ctx, BranchName("main"), 1000) == 48
    assert count_objects(ctx, BranchName("main"), 40) == 40


def test_objects_of_several_heads_count_once_and_those_of_an_unreadable_head_never() -> None:
    world = world_with(0, committed=10, **OFF)
    ctx = world.repo.context
    for number in range(5):
        world.repo.create_branch(f"b{number}", source="main")
    assert count_objects(ctx, BranchName("main"), 1000) == 10
    world.kv.delete(keys.commit(ctx.repo, world.repo.get_branch("main").head))
    assert count_objects(ctx, BranchName("main"), 1000) == 0


def test_the_backlog_says_what_waits_and_since_when() -> None:
    world = World()
    world.upload("main", "a", "b")
    world.repo.delete("main", "a")
    released_ms = world.clock.now_ms()
    world.repo.reset("main")
    found = measure(world.repo.context, limit=100)
    assert found == (0, None, 1, 1)
    world.clock.advance(GRACE_SECONDS + 5)
    found = measure(world.repo.context, limit=100)
    assert found == (1, released_ms + GRACE_SECONDS * 1000, 0, 1)
    world.upload("main", "c")
    world.repo.delete("main", "c")
    assert measure(world.repo.context, limit=1) == (1, released_ms + GRACE_SECONDS * 1000, 1, 1), "each has its limit"


def test_the_state_is_there_for_whoever_asks_and_nowhere_else() -> None:
    world = world_with(1, **OFF)
    world.run_once()
    assert world.kv.get(keys.reaper_state(world.repo.context.repo, "breaker")) is ABSENT
    assert breaker.explain(state_of(world)) == ""


def linked(world: World, number: int) -> None:
    """Each has a hint at the time when it would have expired."""
    for each in range(number):
        given = world.repo.issue("main", f"p{each:03d}")
        world.objects.put(given.address, b"x")
        world.repo.link("main", given.path, given.token)


@pytest.mark.parametrize("committed", [False, True])
def test_what_was_issued_and_linked_is_not_due(*, committed: bool) -> None:
    world = World(breaker_floor_objects=5, breaker_share=0.5)
    linked(world, 20)
    if committed:
        world.repo.commit("main", "c")
    world.clock.advance(3600 + 120)
    assert world.run_once().blocked == 0
    assert not state_of(world).tripped_ms
    assert len(list(world.repo.list("main"))) == 20


def test_what_was_issued_and_has_not_expired_is_not_due_where_there_is_no_grace() -> None:
    world = World(breaker_floor_objects=5, breaker_share=0.5, grace_seconds=0)
    for each in range(20):
        world.repo.issue("main", f"p{each}")
    assert world.run_once().blocked == 0


def test_what_it_trips_for_is_counted_as_it_is() -> None:
    """Hints of what was linked stand among those of what is due."""
    world = World(breaker_floor_objects=5, breaker_share=0.5)
    linked(world, 20)
    for each in range(15):
        world.repo.delete("main", f"p{each:03d}")
    world.clock.advance(GRACE_SECONDS + 3600 + 120)
    assert world.run_once().blocked == 1
    assert state_of(world).due_objects == 15
