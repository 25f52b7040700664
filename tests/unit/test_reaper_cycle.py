"""One pass at a time, over a lake in memory: what goes, what stays, and what stops what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reaper import cycle
from refstore import keys
from refstore.errors import CommitNotFound, Gone, KVUnavailable, ObjectsUnavailable, RepositoryNotFound
from refstore.flows.viewing import AddressState
from refstore.ids import Address
from refstore.kv.base import ABSENT, Op, SetIf
from refstore.records import Branch, Deleting, Emptied, Entry, Stamp, decode, decode_reference, encode
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, Crash, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def at_once() -> World:
    """No grace: blobs go while their tokens are processed."""
    return World(grace_seconds=0)


def after_grace(world: World) -> None:
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
    world.run_once()


# ---- what goes, and what stays


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
    world.repo.create_branch("feature", "main")
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
    world.repo.move("main", "a", "b")
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
    world.repo.copy("main", "a", "main", "c")
    world.repo.reset("main")
    done = world.run_once()
    assert (done.tokens, done.released, done.emptied, done.deleted) == (1, 3, 2, 0)
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_once()
    assert (done.deleted, done.bytes, done.missing, done.failed) == (2, 10, 0, 0)
    assert (world.references(), world.hints()) == (0, 0)
    assert world.run_once().idle


def test_with_no_grace_one_pass_does_it_all_and_needs_no_hints(at_once: World) -> None:
    at_once.upload("main", "a", "b")
    at_once.repo.copy("main", "a", "main", "c")
    at_once.repo.reset("main")
    hints: list[Op] = []
    at_once.kv.before = lambda op: hints.append(op) if "/due/" in op.key.partition else None
    done = at_once.run_pass()
    assert (done.tokens, done.released, done.emptied, done.deleted, done.missing) == (1, 3, 2, 2, 0)
    assert not hints
    assert not at_once.stored()
    assert at_once.references() == 0


def test_a_zero_window_given_for_the_run_finds_what_is_due_much_later(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    assert world.run_pass().idle
    done = world.run_pass(grace_override_seconds=0)
    assert done.deleted == 1
    assert entry.address not in world.stored()
    assert world.hints() == 0


def test_a_longer_window_given_for_the_run_holds_what_is_due(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_pass(grace_override_seconds=10 * GRACE_SECONDS).idle
    assert entry.address in world.stored()
    assert world.run_pass().deleted == 1


def test_restored_within_grace_it_stays_and_its_old_hint_does_no_harm(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(GRACE_SECONDS - 1)
    world.repo.restore("main", entry.address)
    world.clock.advance(2)
    world.run_once()
    assert entry.address in world.stored()
    assert world.hints() == 0
    world.repo.reset("main")
    after_grace(world)
    assert entry.address not in world.stored()


def test_a_hint_that_is_early_moves_to_its_time(world: World) -> None:
    """Restored and released again: the first hint's time comes before the second window is over."""
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS - 1)
    world.repo.restore("main", entry.address)
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
    world.repo.restore("main", entry.address)
    world.repo.delete("main", "a")
    world.run_pass(grace_override_seconds=GRACE_SECONDS - 1)
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


# ---- what crashes left


def test_a_branch_operation_that_died_before_it_published_is_finished(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.kv.crash_at(lambda op: op.key.partition.endswith("/staging/deleted"))
    with pytest.raises(Crash):
        world.repo.reset("main")
    after_grace(world)
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
        world.repo.create_branch("feature", "main")
    world.run_once()
    assert world.kv.count(keys.branches(world.repo.context.repo), limit=10) == 1


def test_an_upload_that_died_before_its_entry_is_scrubbed(world: World) -> None:
    world.kv.crash_at(lambda op: "/staging/main:" in op.key.partition)
    with pytest.raises(Crash):
        world.repo.upload("main", "a", b"x")
    world.repo.reset("main")
    after_grace(world)
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
    for _ in range(66):
        world.kv.before = lambda op: seen.append(op.key.name) if op.key.name.startswith("scrubbed/") else None
        world.clock.advance(every / 66 + 0.001)
        world.run_pass()
    assert len(seen) == len(set(seen)) == 66
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
def test_killed_at_any_step_the_next_reaper_finishes(grace_seconds: int | None) -> None:
    """Every single KV step of a pass, before and behind it; leases held by the dead run out."""
    for behind in (False, True):
        step = 0
        while True:
            world = World(grace_seconds=grace_seconds)
            kept = world.upload("main", "kept")
            world.repo.commit("main", "kept")
            world.upload("main", "a", "b")
            world.repo.copy("main", "a", "main", "c")
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
            world.run_once()
            world.clock.advance(GRACE_SECONDS + 1)
            world.run_once()
            assert world.stored() == {kept[0].address}, (behind, step)
            assert (world.references(), world.hints()) == (0, 0), (behind, step)
            step += 1
        assert step > 20


# ---- what cannot be read, and stores that fail


def corrupt(world: World, key: keys.Key) -> None:
    assert world.kv.get(key) is not ABSENT
    world.kv.set(key, b"\xc1 not a record")


def test_a_reference_that_cannot_be_read_stays_and_stops_no_other(world: World) -> None:
    bad, good = world.upload("main", "a", "b")
    world.repo.delete_many("main", ["a", "b"])
    corrupt(world, keys.reference(world.repo.context.repo, bad.address))
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_pass()
    assert done.deleted == 1
    assert world.stored() == {bad.address}
    assert good.address not in world.stored()
    assert done.corrupt
    assert [error.unit for error in done.errors] == [f"reference/{bad.address}"]
    assert world.hints() == 1


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_an_entry_that_cannot_be_read_stops_its_token_only(grace_seconds: int | None) -> None:
    world = World(grace_seconds=grace_seconds)
    world.repo.create_branch("feature", "main")
    bad = world.upload("main", "a", "b")
    good = world.upload("feature", "a")
    ctx = world.repo.context
    token = world.repo.get_branch("main").token
    world.repo.reset("main")
    world.repo.reset("feature")
    corrupt(world, keys.entry(ctx.repo, token, "a"))
    done = world.run_pass()
    assert [error.unit for error in done.errors] == [f"deleted/{token}"]
    world.clock.advance(GRACE_SECONDS + 1)
    world.run_pass()
    assert world.stored() == {entry.address for entry in bad}
    assert good[0].address not in world.stored()
    assert world.kv.get(keys.deleted_token(ctx.repo, token)) is not ABSENT


def test_a_commit_that_is_missing_stops_its_marker_only(at_once: World) -> None:
    entry = at_once.upload("main", "a")[0]
    commit = at_once.repo.commit("main", "a")
    ctx = at_once.repo.context
    at_once.kv.delete(keys.commit(ctx.repo, commit))
    done = at_once.run_pass()
    assert [(error.unit, error.code) for error in done.errors] == [(f"committed/{commit}", CommitNotFound.code)]
    assert at_once.stored() == {entry.address}
    assert at_once.references() == 1
    assert at_once.kv.get(keys.committed(ctx.repo, commit)) is not ABSENT


@pytest.mark.parametrize("how", ["torn", "missing"])
def test_a_list_of_added_addresses_that_cannot_be_read_stops_its_marker_only(at_once: World, how: str) -> None:
    entries = at_once.upload("main", "a", "b")
    at_once.repo.commit("main", "a")
    key = next(info.key for info in at_once.objects.inner.list("_refstore/added/"))
    if how == "torn":
        at_once.objects.put(key, at_once.objects.read(key)[:-20])
    else:
        at_once.objects.inner.delete_many([key])
    done = at_once.run_pass()
    assert done.corrupt
    assert done.committed == 0
    assert at_once.stored() == {entry.address for entry in entries}
    assert at_once.references() == 2


def test_a_branch_that_cannot_be_read_keeps_every_token_from_the_scrubber(world: World) -> None:
    """Any token might be in it."""
    world.upload("main", "a")
    ctx = world.repo.context
    world.repo.create_branch("other", "main")
    corrupt(world, keys.branch(ctx.repo, world.repo.default_branch))
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    done = world.run_pass(scrub=True)
    assert done.scrubbed == 0
    assert done.dead_tokens == 0
    assert done.corrupt
    assert world.references() == 1


def test_a_due_key_that_cannot_be_read_stops_its_shard_only(world: World) -> None:
    entries = world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.delete_many("main", [f"p{number}" for number in range(20)])
    ctx = world.repo.context
    shard = keys.shard_of(entries[0].address)
    world.kv.set(keys.Key(keys.due_shard(ctx.repo, shard), "0000000000000/../../etc"), b"")
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_pass()
    blocked = {entry.address for entry in entries if keys.shard_of(entry.address) == shard}
    assert world.stored() == blocked
    assert done.corrupt


def test_a_marker_that_cannot_be_read_stops_no_other(at_once: World) -> None:
    entry = at_once.upload("main", "a")[0]
    at_once.repo.reset("main")
    ctx = at_once.repo.context
    at_once.kv.set(keys.Key(keys.deleted_tokens(ctx.repo), "main:00000000000000000000000000"), b"\xc1")
    done = at_once.run_pass()
    assert done.corrupt
    assert entry.address not in at_once.stored()


def test_what_the_store_refuses_is_tried_again_and_counted(world: World) -> None:
    entries = world.upload("main", "a", "b", "c")
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
    world.objects.refuses = {entries[0].address}
    done = world.run_once()
    assert (done.deleted, done.failed) == (2, 2)  # the second round tried it again, then there was nothing else to do
    assert world.stored() == {entries[0].address}
    with pytest.raises(Gone):
        world.repo.restore("main", entries[0].address)
    world.objects.refuses = set()
    assert world.run_once().deleted == 1
    assert (world.references(), world.hints()) == (0, 0)


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_a_store_that_is_down_loses_nothing_and_is_not_hammered(grace_seconds: int | None) -> None:
    world = World(grace_seconds=grace_seconds, batch_keys=2)
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    if grace_seconds is None:
        world.run_once()
        world.clock.advance(GRACE_SECONDS + 1)
    asked = 0

    def count(_keys: object) -> None:
        nonlocal asked
        asked += 1

    world.objects.before_delete = count
    world.objects.down = True
    done = world.run_pass()
    assert done.unavailable
    assert (done.deleted, asked) == (0, 0)
    world.objects.down = False
    assert world.run_once().deleted == 20
    assert (world.references(), world.hints()) == (0, 0)


def test_a_kv_that_is_down_ends_the_pass(world: World) -> None:
    ctx, record, tools = world.lake.context(world.repo.name, world.record), world.record, world.tools()
    world.kv.down = True
    with pytest.raises(KVUnavailable):
        cycle.run(ctx, record, tools)


def test_a_journal_that_cannot_be_written_deletes_nothing(at_once: World) -> None:
    entry = at_once.upload("main", "a")[0]
    at_once.repo.reset("main")
    put = at_once.objects.inner.put

    def refuse(key: str, body: object, *, if_absent: bool = False) -> object:
        if key.startswith("_refstore/journal/"):
            raise ObjectsUnavailable("planted: no room")
        return put(key, body, if_absent=if_absent)

    at_once.objects.inner.put = refuse
    done = at_once.run_pass()
    assert (done.deleted, done.unavailable) == (0, True)
    assert at_once.stored() == {entry.address}
    at_once.objects.inner.put = put
    assert at_once.run_once().deleted == 1


# ---- sharing, stopping, pace


def test_two_reapers_share_the_shards_and_do_nothing_twice(world: World) -> None:
    world.upload("main", *(f"p{number}" for number in range(40)))
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
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
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
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
    done = at_once.run_pass(batch_keys=5, budget_seconds=30)
    assert 5 <= done.deleted < 20
    assert done.more
    assert at_once.run_once().deleted == 20 - done.deleted
    assert not at_once.stored()


def test_full_batches_are_gathered_over_all_shards(world: World) -> None:
    world.upload("main", *(f"p{number}" for number in range(40)))
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_pass(batch_keys=16).deleted == 40
    assert sorted(world.objects.batches) == [8, 16, 16]


def test_the_rate_is_held(world: World) -> None:
    world.upload("main", *(f"p{number}" for number in range(30)))
    world.repo.delete_prefix("main", "p")
    world.clock.advance(GRACE_SECONDS + 1)
    began = world.clock.monotonic_seconds()
    assert world.run_pass(rate_per_second=2, grace_override_seconds=0, budget_seconds=60).deleted == 30
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


# ---- a deleted repository


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
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
    world.run_once()
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


def test_nothing_of_another_repository_goes(world: World) -> None:
    other = world.lake.create_repository("other")
    kept = other.upload("main", "a", b"other")
    world.upload("main", "a")
    world.repo.reset("main")
    after_grace(world)
    assert {info.key for info in world.stores[other.record.namespace].inner.list("data/")} == {kept.address}


def test_the_guess_of_an_untouched_list_decides_nothing(at_once: World) -> None:
    """Of two uploads one is copied to another branch: its list is not as an upload leaves it, so it is read, and stays."""
    at_once.repo.create_branch("feature", "main")
    copied, alone = at_once.upload("main", "a", "b")
    at_once.repo.copy("main", "a", "feature", "a")
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
    assert at_once.run_pass().deleted == 2
    assert not read & {entry.address for entry in entries}


def test_scrubbed_state_survives_what_it_cannot_read(world: World) -> None:
    world.run_pass()
    ctx = world.repo.context
    corrupt(world, keys.reaper_state(ctx.repo, "scrubbed/00"))
    assert world.run_pass().error_count == 0
    raw = world.kv.get(keys.reaper_state(ctx.repo, "scrubbed/00"))
    assert isinstance(raw, bytes)
    assert decode(raw, Stamp).at_ms == world.clock.now_ms()


def test_a_pass_that_is_stopped_before_it_began_does_nothing(world: World) -> None:
    world.upload("main", "a")
    world.repo.reset("main")
    before = world.kv.dump()
    done = world.run_pass(should_stop=lambda: True)
    assert done.idle
    assert done.more
    assert world.kv.dump() == before
