"""One pass at a time, over a lake in memory: what goes, what stays, and how passes share the work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refstore.core.ids import Address
from refstore.kv.base import Op, SetIf
from refstore.operations.address_info import AddressState
from refstore.public_types import Entry
from refstore.records import keys
from refstore_reaper.pass_summary import PassSummary
from tests.reaper_world import GRACE_SECONDS, Crash, World
from tests.reaping import release_all


def overwrite(world: World) -> list[Entry]:
    gone = world.upload("main", "a")
    world.upload("main", "a")
    return gone


def delete(world: World) -> list[Entry]:
    gone = world.upload("main", "a")
    world.repo.delete("main", "a")
    return gone


def reset(world: World) -> list[Entry]:
    gone = world.upload("main", "a", "b")
    world.repo.reset("main")
    return gone


def delete_branch(world: World) -> list[Entry]:
    world.repo.create_branch("feature", source="main")
    gone = world.upload("feature", "a", "b")
    world.repo.delete_branch("feature")
    return gone


def commit_over(world: World) -> list[Entry]:
    """Overwritten under a sealed token that a crashed commit left: only the commit's tokens know of it."""
    gone = world.upload("main", "a")
    world.kv.crash_at(lambda op: isinstance(op, SetIf) and op.key.partition.endswith("/branches"), behind=True)
    with pytest.raises(Crash):
        world.repo.commit("main", "crashes when it has sealed")
    world.upload("main", "a")
    world.repo.commit("main", "a")
    return gone


def move_and_reset(world: World) -> list[Entry]:
    gone = world.upload("main", "a")
    world.repo.move("main", "a", to_path="b")
    world.repo.reset("main")
    return gone


@pytest.mark.parametrize("grace_seconds", [None, 0])
@pytest.mark.parametrize("make", [overwrite, delete, reset, delete_branch, commit_over, move_and_reset])
def test_what_nobody_names_goes_after_its_grace_window_and_nothing_else(
    make: Callable[[World], list[Entry]], grace_seconds: int | None
) -> None:
    world = World(grace_seconds=grace_seconds)
    kept = world.upload("main", "kept")
    world.repo.commit("main", "kept")
    staged = world.upload("main", "staged") if make not in (reset, move_and_reset) else []
    gone = {entry.address for entry in make(world)}
    if grace_seconds is None:
        world.run_once()
        assert gone <= world.stored()
        world.clock.advance(GRACE_SECONDS - 1)
        world.run_once()
        assert gone <= world.stored()
        world.clock.advance(2)
    world.run_once()
    assert not gone & world.stored()
    assert {entry.address for entry in (*kept, *staged)} <= world.stored()
    assert world.repo.read("main", "kept") == b"x"


def test_committed_data_needs_no_reference_and_stays(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.commit("main", "a")
    done = world.run_once()
    assert (done.committed, done.tokens, done.released) == (1, 1, 0)
    assert world.references() == 0
    world.clock.advance(10 * GRACE_SECONDS)
    world.run_once()
    assert world.stored() == {entry.address}


def test_a_pass_says_what_was_confirmed(world: World) -> None:
    world.upload("main", "a", "b", body=b"12345")
    world.repo.copy("main", "a", to_branch="main", to_path="c")
    world.repo.reset("main")
    done = world.run_once()
    assert (done.tokens, done.released, done.emptied, done.deleted) == (1, 3, 2, 0)
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_once()
    assert (done.deleted, done.bytes, done.missing, done.failed) == (2, 10, 0, 0)
    assert (world.references(), world.hints()) == (0, 0)
    assert world.run_once().idle


def test_with_no_grace_one_pass_does_it_all(at_once: World) -> None:
    at_once.upload("main", "a", "b")
    at_once.repo.copy("main", "a", to_branch="main", to_path="c")
    at_once.repo.reset("main")
    done = at_once.run_pass()
    assert (done.tokens, done.released, done.emptied, done.deleted, done.missing) == (1, 3, 2, 2, 0)
    assert not at_once.stored()
    assert (at_once.references(), at_once.hints()) == (0, 0)


def test_a_zero_window_given_for_the_run_finds_what_is_due_much_later(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    assert world.run_pass().idle
    done = world.run_pass(grace_seconds=0)
    assert done.deleted == 1
    assert entry.address not in world.stored()
    assert world.hints() == 0


def test_a_longer_window_given_for_the_run_holds_what_is_due(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_pass(grace_seconds=10 * GRACE_SECONDS).idle
    assert entry.address in world.stored()
    assert world.run_pass().deleted == 1


def test_restored_within_grace_it_stays_and_its_old_hint_does_no_harm(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(GRACE_SECONDS - 1)
    world.repo.restore(entry.address, to="main")
    world.clock.advance(2)
    world.run_once()
    assert entry.address in world.stored()
    assert world.hints() == 0
    world.repo.reset("main")
    world.run_past_grace()
    assert entry.address not in world.stored()


def test_a_hint_that_is_early_moves_to_its_time(world: World) -> None:
    """Restored and released again: the first hint's time comes before the second window is over."""
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS - 1)
    world.repo.restore(entry.address, to="main")
    world.repo.delete("main", "a")
    assert world.hints() == 2
    world.clock.advance(2)
    world.run_once()
    assert world.hints() == 1
    looked: list[Op] = []
    world.kv.before = lambda op: looked.append(op) if op.key.name == entry.address else None
    world.run_once()
    assert not looked
    world.kv.before = None
    world.clock.advance(GRACE_SECONDS)
    world.run_once()
    assert entry.address not in world.stored()
    assert world.hints() == 0


def test_two_hints_of_one_address_in_one_batch_do_not_lose_it(world: World) -> None:
    """With a window for the run, hints of any time are looked at together; one that is moved may meet the other."""
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    world.clock.advance(60)
    world.repo.restore(entry.address, to="main")
    world.repo.delete("main", "a")
    world.run_pass(grace_seconds=GRACE_SECONDS - 1)
    assert world.hints() == 1
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_pass().deleted == 1


def test_an_issued_address_goes_when_it_has_expired_for_every_clock(world: World) -> None:
    issued = world.repo.issue("main", "a")
    world.objects.put(issued.address, b"external")
    never_written = world.repo.issue("main", "b")
    world.clock.advance(world.safety.issue_seconds + world.safety.clock_skew_seconds - 1)
    assert world.run_once().deleted == 0
    world.clock.advance(2)
    done = world.run_once()
    assert (done.expired, done.deleted, done.missing) == (2, 1, 1)
    assert not world.stored()
    assert world.repo.address(never_written.address).state is AddressState.GONE


def test_a_linked_address_is_not_expired(world: World) -> None:
    issued = world.repo.issue("main", "a")
    world.objects.put(issued.address, b"external")
    world.repo.link("main", "a", issued.token)
    world.clock.advance(10 * GRACE_SECONDS)
    done = world.run_once()
    assert (done.expired, done.deleted) == (0, 0)
    assert world.repo.read("main", "a") == b"external"


def test_data_outside_the_namespace_is_never_touched(at_once: World) -> None:
    at_once.repo.stage("main", "out", "s3://elsewhere/key", size_bytes=1)
    at_once.repo.reset("main")
    done = at_once.run_once()
    assert (done.tokens, done.released, done.deleted) == (1, 0, 0)
    assert at_once.objects.batches == []


def test_the_guess_of_an_untouched_list_decides_nothing(at_once: World) -> None:
    """Of two uploads one is copied to another branch: its list is not as an upload leaves it, so it is read, and
    stays.
    """
    at_once.repo.create_branch("feature", source="main")
    copied, alone = at_once.upload("main", "a", "b")
    at_once.repo.copy("main", "a", to_branch="feature", to_path="a")
    at_once.repo.reset("main")
    done = at_once.run_once()
    assert (done.released, done.emptied, done.deleted) == (2, 1, 1)
    assert at_once.stored() == {copied.address}
    assert at_once.repo.read("feature", "a") == b"x"
    assert alone.address not in at_once.stored()


def test_an_untouched_list_is_released_without_being_read(at_once: World) -> None:
    entries = at_once.upload("main", "a", "b")
    at_once.repo.reset("main")
    read: set[Address] = set()

    def watch(op: Op) -> None:
        if "/references/" in op.key.partition and type(op).__name__ == "Get":
            read.add(Address(op.key.name))

    at_once.kv.before = watch
    release_all(at_once.repo)
    assert at_once.hints() == 2
    assert not read & {entry.address for entry in entries}


def test_nothing_of_another_repository_goes(world: World) -> None:
    other = world.lake.create_repository("other")
    kept = other.upload("main", "a", b"other")
    world.upload("main", "a")
    world.repo.reset("main")
    world.run_past_grace()
    assert {info.key for info in world.stores[other.record.namespace].inner.list("data/")} == {kept.address}


# ---- sharing, stopping, throttle


def test_two_reapers_share_the_shards_and_do_nothing_twice(world: World) -> None:
    world.upload_due(*(f"p{number}" for number in range(40)))
    others: list[int] = []

    def meanwhile(_keys: object) -> None:
        world.objects.before_delete = None
        others.append(world.run_pass(reaper="r2").deleted)

    world.objects.before_delete = meanwhile
    mine = world.run_pass(reaper="r1", batch_keys=5)
    assert mine.deleted + sum(others) == 40
    assert mine.missing == 0
    assert others[0] > 0
    assert not world.stored()


def test_a_marker_that_another_reaper_is_at_is_left_to_it(at_once: World) -> None:
    at_once.upload("main", "a")
    at_once.repo.reset("main")
    nested: list[tuple[int, int]] = []

    def meanwhile(_keys: object) -> None:
        at_once.objects.before_delete = None
        done = at_once.run_pass(reaper="r2")
        nested.append((done.tokens, done.busy))

    at_once.objects.before_delete = meanwhile
    assert at_once.run_pass(reaper="r1").tokens == 1
    assert nested[0][0] == 0
    assert nested[0][1] >= 1


def test_asked_to_stop_the_batch_in_hand_is_finished_and_no_other_begun(world: World) -> None:
    world.upload_due(*(f"p{number}" for number in range(20)))
    asked = False

    def ask(_keys: object) -> None:
        nonlocal asked
        asked = True

    world.objects.before_delete = ask
    done = world.run_pass(batch_keys=5, should_stop=lambda: asked)
    assert done.deleted == 5
    assert done.more
    assert world.hints() == 15
    assert world.kv.count(keys.LEASES, limit=10) == 0
    world.objects.before_delete = None
    assert world.run_once().deleted == 15


def test_a_step_ends_when_its_time_is_over_and_the_next_pass_goes_on(at_once: World) -> None:
    at_once.upload("main", *(f"p{number:02d}" for number in range(20)))
    at_once.repo.reset("main")
    at_once.objects.before_delete = lambda _keys: at_once.clock.advance(20)
    done = at_once.run_pass(batch_keys=5, step_seconds=30)
    assert 5 <= done.deleted < 20
    assert done.more
    assert at_once.run_once().deleted == 20 - done.deleted
    assert not at_once.stored()


def test_full_batches_are_gathered_over_all_shards(world: World) -> None:
    world.upload_due(*(f"p{number}" for number in range(40)))
    assert world.run_pass(batch_keys=16).deleted == 40
    assert sorted(world.objects.batches) == [8, 16, 16]


def test_the_rate_is_held(world: World) -> None:
    world.upload("main", *(f"p{number}" for number in range(30)))
    world.repo.delete_prefix("main", "p")
    world.clock.advance(GRACE_SECONDS + 1)
    began = world.clock.monotonic_seconds()
    assert world.run_pass(rate_per_second=2, grace_seconds=0, step_seconds=60).deleted == 30
    assert 14 <= world.clock.monotonic_seconds() - began <= 16
    assert max(world.objects.batches) == 2


def test_what_is_due_is_found_without_looking_at_what_lives(world: World) -> None:
    world.upload("main", *(f"live{number}" for number in range(50)))
    gone = world.upload("main", "gone")[0]
    world.repo.delete("main", "gone")
    world.run_pass()  # the first one spreads the scrubber's times
    world.clock.advance(GRACE_SECONDS + 1)
    looked: set[str] = set()
    world.kv.before = lambda op: looked.add(op.key.name) if "/references/" in op.key.partition else None
    assert world.run_pass(scrub_every_seconds=366 * 86_400).deleted == 1
    assert looked == {gone.address}


def test_a_pass_that_is_stopped_before_it_began_does_nothing(world: World) -> None:
    world.upload("main", "a")
    world.repo.reset("main")
    before = world.kv.dump()
    done = world.run_pass(should_stop=lambda: True)
    assert done.idle
    assert done.more
    assert world.kv.dump() == before


def test_markers_that_another_reaper_processed_meanwhile_are_not_counted_twice(world: World) -> None:
    for number in range(6):
        world.repo.create_branch(f"b{number}", source="main")
        world.upload(f"b{number}", "p")
        world.repo.commit(f"b{number}", "p")
    others: list[PassSummary] = []

    def meanwhile(op: Op) -> None:
        if op.key.partition == keys.LEASES and "/committed/" in op.key.name:
            world.kv.before = None
            others.append(world.run_pass(reaper="r2"))  # all of it, between the page and its leases

    world.kv.before = meanwhile
    one = world.run_pass(reaper="r1")
    assert (others[0].committed, others[0].tokens) == (6, 6)
    assert (one.committed, one.tokens) == (0, 0)
