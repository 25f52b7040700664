"""What clients and reapers that died in the middle have left is finished, or taken away, by the next pass."""

from __future__ import annotations

import pytest

from refstore.core.ids import BranchName, new_address, new_token
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Deleting, Emptied, Listed, Reference, decode_reference
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, Crash, World


def test_a_branch_operation_that_died_before_it_published_is_finished(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.kv.crash_at(lambda op: op.key.partition.endswith("/staging/deleted"))
    with pytest.raises(Crash):
        world.repo.reset("main")
    world.run_past_grace()
    assert entry.address not in world.stored()


def test_a_commit_that_died_before_it_published_keeps_its_data(at_once: World) -> None:
    entry = at_once.upload("main", "a")[0]
    at_once.kv.crash_at(lambda op: op.key.partition.endswith("/landed"))
    with pytest.raises(Crash):
        at_once.repo.commit("main", "a")
    assert at_once.run_once().committed == 1
    assert at_once.stored() == {entry.address}
    assert at_once.repo.read("main@", "a") == b"x"


def test_the_name_of_a_branch_that_was_never_finished_is_free_again(world: World) -> None:
    world.kv.crash_at(lambda op: op.key.partition.endswith("/branches"), behind=True)
    with pytest.raises(Crash):
        world.repo.create_branch("feature", source="main")
    world.run_once()
    assert world.kv.count(keys.branches(world.repo.context.repo), limit=10) == 1


def test_an_upload_that_died_before_its_entry_is_scrubbed(world: World) -> None:
    world.kv.crash_at(lambda op: "/staging/main:" in op.key.partition)
    with pytest.raises(Crash):
        world.repo.upload("main", "a", b"x")
    world.repo.reset("main")
    world.run_past_grace()
    assert len(world.stored()) == 1
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    done = world.run_once(scrub_now=True)
    assert done.scrubbed == 1
    world.clock.advance(GRACE_SECONDS + 1)
    world.run_once()
    assert not world.stored()


def test_the_scrubber_looks_at_nothing_young(world: World) -> None:
    world.kv.crash_at(lambda op: "/staging/main:" in op.key.partition)
    with pytest.raises(Crash):
        world.repo.upload("main", "a", b"x")
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS - 10)
    assert world.run_once(scrub_now=True).scrubbed == 0


def test_an_empty_list_without_a_hint_gets_one(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.kv.crash_at(lambda op: "/due/" in op.key.partition)
    with pytest.raises(Crash):
        world.repo.delete("main", "a")
    assert world.hints() == 0
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    assert world.run_once(scrub_now=True).hints == 1
    world.run_once()
    assert entry.address not in world.stored()


def test_each_shard_is_scrubbed_once_in_its_interval_and_not_all_at_once(world: World) -> None:
    every = int(world.settings.scrub_every_seconds)
    seen: list[str] = []
    world.run_pass()
    for _ in range(67):
        world.kv.before = lambda op: seen.append(op.key.name) if op.key.name.startswith("scrubbed/") else None
        world.clock.advance(every / 67 + 0.001)
        world.run_pass()
    assert len(seen) == len(set(seen)) == 67
    world.kv.before = None


def test_a_reaper_that_died_after_deleting_was_written_is_taken_over_at_once(at_once: World) -> None:
    """Its page's entries are still there: the next one need not wait for the scrubber."""
    entry = at_once.upload("main", "a")[0]
    at_once.repo.reset("main")

    def crash(_keys: object) -> None:
        raise Crash

    at_once.objects.before_delete = crash
    with pytest.raises(Crash):
        at_once.run_pass()
    at_once.objects.before_delete = None
    found = at_once.kv.get(keys.reference(at_once.repo.context.repo, entry.address))
    assert isinstance(found, bytes)
    assert isinstance(decode_reference(found), Deleting)
    done = at_once.run_pass(reaper="r2")
    assert done.deleted == 1
    assert not at_once.stored()


def test_a_reaper_that_died_before_its_hints_is_taken_over_at_once(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.reset("main")
    world.kv.crash_at(lambda op: "/due/" in op.key.partition)
    with pytest.raises(Crash):
        world.run_pass()
    found = world.kv.get(keys.reference(world.repo.context.repo, entry.address))
    assert isinstance(found, bytes)
    assert isinstance(decode_reference(found), Emptied)
    assert world.hints() == 0
    world.run_pass(reaper="r2")
    assert world.hints() == 1
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_pass(reaper="r2").deleted == 1


@pytest.mark.parametrize("grace_seconds", [None, 0])
@pytest.mark.slow
def test_killed_at_any_step_the_next_reaper_finishes(grace_seconds: int | None) -> None:
    """Every single KV step of a pass, before and behind it; leases held by the dead run out."""
    for behind in (False, True):
        step = 0
        while True:
            world = World(grace_seconds=grace_seconds)
            kept = world.upload("main", "kept")
            world.repo.commit("main", "kept")
            world.upload("main", "a", "b")
            world.repo.copy("main", "a", to_branch="main", to_path="c")
            world.repo.reset("main")
            steps = iter(range(10**6))
            world.kv.crash_at(lambda _op, at=step, steps=steps: next(steps) == at, behind=behind)
            try:
                world.run_pass()
            except Crash:
                pass
            else:
                break
            world.kv.before = world.kv.behind = None
            world.clock.advance(world.settings.lease_seconds + 1)
            world.run_past_grace()
            assert world.stored() == {kept[0].address}, (behind, step)
            assert (world.references(), world.hints()) == (0, 0), (behind, step)
            step += 1
        assert step > 20


def test_all_is_scrubbed_that_was_asked_for_though_one_pass_has_not_the_time() -> None:
    """A KV that takes its time, and references of a token that is dead in every shard."""
    world = World()
    ctx = world.repo.context
    now = world.clock.now_ms()
    token = new_token(ctx.ids, BranchName("gone"), now)
    for _ in range(600):
        address = new_address(ctx.ids, now)
        world.kv.set(keys.reference(ctx.repo, address), encode(Listed((Reference(token, "p"),), now)))
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    world.kv.before = lambda _: world.clock.advance(0.05)
    assert world.run_once(scrub_now=True).scrubbed == 600
