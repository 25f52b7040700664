"""What cannot be read stops as little as may be, and nothing of it goes; stores that fail lose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from refstore.cli.reaper import choose_exit_code
from refstore.core.ids import BranchName
from refstore.errors import Gone, KVUnavailable, KVWentBack, ObjectsUnavailable
from refstore.kv.base import ABSENT, Op
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.reaper_records import StampRecord
from refstore_reaper import reaper_pass
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, World


@pytest.mark.parametrize("one_byte", [False, True])
def test_a_reference_that_cannot_be_read_stays_and_stops_no_other(world: World, one_byte: bool) -> None:
    bad, good = world.upload("main", "a", "b")
    world.repo.delete_many("main", ["a", "b"])
    world.corrupt(keys.reference(world.repo.context.repo, bad.address), one_byte=one_byte)
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
    world.repo.create_branch("feature", source="main")
    bad = world.upload("main", "a", "b")
    good = world.upload("feature", "a")
    ctx = world.repo.context
    token = world.repo.context.branches.read_open(BranchName("main")).record.token
    world.repo.reset("main")
    world.repo.reset("feature")
    world.corrupt(keys.entry(ctx.repo, token, "a"))
    done = world.run_pass()
    assert [error.unit for error in done.errors] == [f"deleted/{token}"]
    world.clock.advance(GRACE_SECONDS + 1)
    world.run_pass()
    assert world.stored() == {entry.address for entry in bad}
    assert good[0].address not in world.stored()
    assert world.kv.get(keys.deleted_token(ctx.repo, token)) is not ABSENT


def test_a_commit_that_is_missing_stops_hard_deletion(at_once: World) -> None:
    entry = at_once.upload("main", "a")[0]
    commit = at_once.repo.commit("main", "a").id
    ctx = at_once.repo.context
    at_once.kv.delete(keys.commit(ctx.repo, commit))
    done = at_once.run_pass()
    assert [(error.unit, error.code) for error in done.errors] == [("manifest", KVWentBack.code)]
    assert commit[:12] in done.errors[0].message
    assert (done.blocked, done.corrupt) == (1, True)
    assert at_once.stored() == {entry.address}
    assert at_once.references() == 1
    assert at_once.kv.get(keys.committed_marker(ctx.repo, commit)) is not ABSENT


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
    world.repo.create_branch("other", source="main")
    world.corrupt(keys.branch(ctx.repo, world.repo.default_branch))
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
    world.kv.set(keys.Key(keys.due_hint_shard(ctx.repo, shard), "0000000000000/../../etc"), b"")
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
    entries = world.upload_due("a", "b", "c")
    world.objects.refuses = {entries[0].address}
    done = world.run_once()
    assert (done.deleted, done.failed) == (2, 1), "the second round tried it again, then there was nothing else to do"
    assert choose_exit_code(done) == 5
    assert world.stored() == {entries[0].address}
    with pytest.raises(Gone):
        world.repo.restore(entries[0].address, to="main")
    world.objects.refuses = set()
    assert world.run_once().deleted == 1
    assert (world.references(), world.hints()) == (0, 0)


def test_what_went_at_the_second_try_did_not_fail(world: World) -> None:
    entries = world.upload_due("a", "b")
    world.objects.refuses = {entries[0].address}

    def relents(_: Sequence[str]) -> None:
        if world.stored() == {entries[0].address}:
            world.objects.refuses = set()

    world.objects.before_delete = relents
    done = world.run_once()
    assert (done.deleted, done.failed) == (2, 0)
    assert choose_exit_code(done) == 0


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_a_store_that_is_down_loses_nothing_and_is_not_hammered(grace_seconds: int | None) -> None:
    world = World(grace_seconds=grace_seconds, batch_keys=2)
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    if grace_seconds is None:
        world.run_once()
        world.clock.advance(GRACE_SECONDS + 1)
    world.objects.down = True
    before = world.objects.asked
    done = world.run_pass()
    assert done.unavailable
    assert done.deleted == 0
    assert world.objects.asked - before == 1
    world.objects.down = False
    assert world.run_once().deleted == 20
    assert (world.references(), world.hints()) == (0, 0)


def test_a_kv_that_is_down_ends_the_pass(world: World) -> None:
    ctx, record, tools = world.lake.context(world.repo.name, world.record), world.record, world.tools()
    world.kv.down = True
    with pytest.raises(KVUnavailable):
        reaper_pass.run_pass(ctx, record, tools)


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


def test_scrubbed_state_survives_what_it_cannot_read(world: World) -> None:
    world.run_pass()
    ctx = world.repo.context
    world.corrupt(keys.reaper_state(ctx.repo, "scrubbed/00"))
    assert world.run_pass().error_count == 0
    raw = world.kv.get(keys.reaper_state(ctx.repo, "scrubbed/00"))
    assert isinstance(raw, bytes)
    assert decode(raw, StampRecord).at_ms == world.clock.now_ms()


def test_an_expired_address_that_the_store_refuses_to_delete_is_counted_when_it_goes(world: World) -> None:
    given = world.repo.issue("main", "p")
    world.objects.put(given.address, b"x")
    world.objects.refuses = {given.address}
    world.clock.advance(world.safety.issue_seconds + world.safety.clock_skew_seconds + 1)
    assert [world.run_once().expired for _ in range(3)] == [0, 0, 0]
    world.objects.refuses = set()
    assert [world.run_once().expired for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("what", ["store", "kv"])
def test_what_was_released_counts_though_the_pass_was_broken_off_behind_it(what: str) -> None:
    world = World(grace_seconds=0, batch_keys=5, breaker_share=1)
    world.upload("main", *(f"p{number:02d}" for number in range(20)))
    world.repo.reset("main")

    def fail(_: Sequence[str]) -> None:
        world.objects.before_delete = None
        if what == "store":
            raise ObjectsUnavailable("planted: no answer")
        world.kv.down = True

    world.objects.before_delete = fail
    first = world.tools()
    with suppress(KVUnavailable):
        reaper_pass.run_pass(world.lake.context(world.repo.name, world.record), world.record, first)
    world.kv.down = False
    released = 20 - world.listed()
    assert released > 0
    assert first.tally.summary().released == released
    world.clock.advance(world.settings.lease_seconds + 1)
    again = world.run_once()
    assert (first.tally.summary().released + again.released, world.stored()) == (20, set())


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_what_the_store_deleted_counts_though_the_kv_fails_right_behind_it(grace_seconds: int | None) -> None:
    world = World(grace_seconds=grace_seconds, breaker_share=1)
    world.upload("main", "a", "b", "c")
    world.repo.reset("main")
    if grace_seconds is None:
        world.run_once()
        world.clock.advance(GRACE_SECONDS + 1)
    counter = keys.reaper_state(world.repo.context.repo, "deleted/")

    def fail(op: Op) -> None:
        """As the reaper tells the others how much it deleted."""
        if op.key.partition == counter.partition and op.key.name.startswith(counter.name):
            raise KVUnavailable("planted: the KV is down")

    world.kv.before = fail
    tools = world.tools()
    with pytest.raises(KVUnavailable):
        reaper_pass.run_pass(world.lake.context(world.repo.name, world.record), world.record, tools)
    assert not world.stored()
    assert tools.tally.summary().deleted == 3
