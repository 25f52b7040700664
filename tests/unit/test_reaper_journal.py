"""The journal, and `why`: what was deleted, when, and why, and what became of it."""

from __future__ import annotations

import gzip
import json

import pytest

from refstore.core.clock import to_ms
from refstore.core.ids import Address, BranchName, Path, Token
from refstore.deletion_history import deletion_journal
from refstore.deletion_history.deletion_journal import BEGAN, ENDED, PREFIX, JournalWriter
from refstore.deletion_history.explain import deletion_token
from refstore.deletion_history.explain import explain_address as why
from refstore.errors import AddressNotFound, InvalidName, ObjectsUnavailable
from refstore.objects.base import Body, DeleteResult, StoredObject
from refstore.operations.address_info import AddressState
from refstore.records.pending_deletes import PendingDelete
from refstore_gc import deletion_index_writer
from tests.reaper_world import GRACE_SECONDS, Crash, World


def reaped(world: World, *paths: str) -> list[Address]:
    addresses = [entry.address for entry in world.upload("main", *paths)]
    world.repo.reset("main")
    world.run_past_grace()
    return addresses


def segments(world: World) -> list[str]:
    return [info.key for info in world.objects.inner.list(PREFIX)]


def test_segments_are_lines_of_json_that_anybody_can_read(world: World) -> None:
    token = world.repo.context.branches.read_open(BranchName("main")).record.token
    addresses = reaped(world, "a", "b")
    began, ended = segments(world)
    assert began.startswith("_refstore/journal/2025/11/21/")
    assert (began.removesuffix(BEGAN), began.endswith(BEGAN)) == (ended.removesuffix(ENDED), True)
    header, *lines = [json.loads(line) for line in gzip.decompress(world.objects.read(began)).splitlines()]
    assert (header["event"], header["addresses"]) == ("began", 2)
    assert {line["address"] for line in lines} == set(addresses)
    assert {(line["token"], line["cause"], line["size_bytes"]) for line in lines} == {(token, "reset", 1)}
    (end,) = [json.loads(line) for line in gzip.decompress(world.objects.read(ended)).splitlines()]
    assert (end["event"], end["deleted"], end["missing"], end["failed"]) == ("ended", 2, 0, 0)


def test_it_is_written_down_before_the_blobs_go(world: World) -> None:
    seen: list[list[str]] = []
    world.objects.before_delete = lambda _keys: seen.append(segments(world))
    reaped(world, "a")
    assert [name.endswith(BEGAN) for name in seen[0]] == [True]


def test_why_tells_the_token_the_fate_and_what_the_store_confirmed(world: World) -> None:
    token = world.repo.context.branches.read_open(BranchName("main")).record.token
    address = reaped(world, "dir/a")[0]
    found = why(world.repo.context, address)
    assert found.info.state is AddressState.GONE
    (event,) = found.deletions
    assert (event.outcome, deletion_token(event), event.path, event.cause) == ("deleted", token, "dir/a", "reset")
    assert to_ms(event.at) == world.clock.now_ms()


def test_why_follows_an_address_through_its_life(world: World) -> None:
    address = world.upload("main", "a")[0].address
    assert why(world.repo.context, address).info.state is AddressState.REFERENCED
    world.repo.reset("main")
    world.run_once()
    found = why(world.repo.context, address)
    assert (found.info.state, found.info.cause, found.deletions) == (AddressState.IN_GRACE, "reset", ())
    kept = world.upload("main", "kept")[0].address
    world.repo.commit("main", "kept")
    world.run_once()
    assert why(world.repo.context, kept).info.state is AddressState.COMMITTED


def test_a_refusal_and_the_later_success_are_both_told(world: World) -> None:
    address = world.upload("main", "a")[0].address
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    world.objects.refuses = {address}
    world.run_pass()
    world.objects.refuses = set()
    world.run_pass()
    outcomes = [(event.outcome, event.reason) for event in why(world.repo.context, address).deletions]
    assert outcomes == [("failed", "planted: refused"), ("deleted", "")]


def test_an_address_that_never_had_a_blob_was_missing(world: World) -> None:
    issued = world.repo.issue("main", "a")
    world.clock.advance(10 * GRACE_SECONDS)
    world.run_once()
    (event,) = why(world.repo.context, issued.address).deletions
    assert (event.outcome, event.cause, deletion_token(event)) == ("missing", "issued and not linked", "")


def test_a_batch_whose_reaper_died_is_told_as_interrupted(world: World) -> None:
    address = world.upload("main", "a")[0].address
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)

    def crash(_keys: object) -> None:
        raise Crash

    world.objects.before_delete = crash
    with pytest.raises(Crash):
        world.run_pass()
    world.objects.before_delete = None
    assert [event.outcome for event in why(world.repo.context, address).deletions] == ["interrupted"]
    world.clock.advance(world.settings.lease_seconds + 1)
    world.run_pass(reaper="r2")
    assert [event.outcome for event in why(world.repo.context, address).deletions] == ["interrupted", "deleted"]


@pytest.mark.parametrize(
    "address", ["data/2025112107/00000000000000000000000000", "data/9999999999/00000000000000000000000000"]
)
def test_an_address_nobody_ever_heard_of_is_not_found(world: World, address: str) -> None:
    reaped(world, "a")
    with pytest.raises(AddressNotFound):
        why(world.repo.context, address)


def test_what_is_no_address_is_refused(world: World) -> None:
    with pytest.raises(InvalidName):
        why(world.repo.context, "data/../../etc/passwd")


def test_the_text_of_one_address_in_the_path_of_another_misleads_nobody(world: World) -> None:
    first = reaped(world, "a")[0]
    second = reaped(world, f"about/{first}")[0]
    assert [event.path for event in why(world.repo.context, first).deletions] == ["a"]
    assert [event.path for event in why(world.repo.context, second).deletions] == [f"about/{first}"]


def test_only_segments_that_can_hold_it_are_read(world: World) -> None:
    reaped(world, "a")
    world.clock.advance(30 * 86_400)
    address = reaped(world, "b")[0]
    read: list[str] = []
    original = world.objects.read
    world.objects.read = lambda key: read.append(key) or original(key)
    assert [event.outcome for event in why(world.repo.context, address).deletions] == ["deleted"]
    assert len([key for key in read if key.endswith(BEGAN)]) == 1


@pytest.mark.parametrize("damage", ["torn", "not gzip", "empty", "overwritten"])
def test_a_damaged_segment_hides_no_other(world: World, damage: str) -> None:
    reaped(world, "a")
    key = segments(world)[0]
    body = world.objects.read(key)
    world.objects.put(
        key, {"torn": body[:-9], "not gzip": b"not gzip", "empty": b"", "overwritten": body[:30] + b"x" * 40}[damage]
    )
    address = reaped(world, "b")[0]
    assert [event.outcome for event in why(world.repo.context, address).deletions] == ["deleted"]


def test_no_segment_is_written_twice_however_fast_the_reaper_is(world: World) -> None:
    """The clock stands still here: everything happens in one millisecond."""
    world.upload("main", *(f"p{number}" for number in range(30)))
    world.repo.delete_prefix("main", "p")
    world.clock.advance(GRACE_SECONDS + 1)
    written: list[str] = []
    put = world.objects.put
    world.objects.put = lambda key, body, **options: written.append(key) or put(key, body, **options)
    world.run_pass(batch_keys=4)
    world.run_pass(batch_keys=4)
    ours = [key for key in written if key.startswith(PREFIX)]
    assert len(ours) == len(set(ours)) == 2 * 8


def doomed(*names: str) -> list[PendingDelete]:
    return [PendingDelete(Address(name), Token("main:t"), Path("p"), "reset", 1) for name in names]


def test_an_end_that_cannot_be_written_down_stops_nothing(world: World) -> None:
    pen = JournalWriter(world.objects, "r", world.clock, iter(range(1, 100)))
    batch = doomed("a", "b")
    pen.record_start(batch)
    world.objects.down = True
    pen.record_end(batch, DeleteResult(("a", "b"), (), ()))
    with pytest.raises(ObjectsUnavailable):
        pen.record_start(batch)


def test_two_batches_may_be_open_at_once(world: World) -> None:
    pen = JournalWriter(world.objects, "r", world.clock, iter(range(1, 100)))
    one, two = doomed("data/2025112107/" + "1" * 26), doomed("data/2025112107/" + "2" * 26)
    pen.record_start(one)
    pen.record_start(two)
    pen.record_end(two, DeleteResult((), (two[0].address,), ()))
    pen.record_end(one, DeleteResult((one[0].address,), (), ()))
    outcomes = {
        item.address: [event.outcome for event in deletion_journal.find(world.objects, item.address, after="")]
        for item in one + two
    }
    assert outcomes == {one[0].address: ["deleted"], two[0].address: ["missing"]}


@pytest.mark.parametrize("stopped_in", [BEGAN, "the deletion"])
def test_a_segment_that_comes_when_its_time_is_indexed_is_written_again(world: World, stopped_in: str) -> None:
    """The reaper is stopped for three hours, and another host indexes the journal meanwhile."""
    pen = JournalWriter(world.objects, "r", world.clock, iter(range(1, 100)))
    address = Address("data/2025112106/" + "1" * 26)
    batch = [PendingDelete(address, Token("main:t"), Path("p"), "reset", 1)]
    put = world.objects.inner.put

    def stop() -> None:
        world.objects.inner.put = put
        world.clock.advance(3 * 3600)
        other = JournalWriter(world.objects, "other", world.clock, iter(range(1, 100)))
        world.clock.jump(-2.5 * 3600)
        other.record_start(doomed("data/2025112107/" + "2" * 26))
        world.clock.jump(2.5 * 3600)
        assert deletion_index_writer.index_missing(world.repo.context).journal_segments >= 1

    def put_later(key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        if key.endswith(stopped_in):
            stop()
        return put(key, body, if_absent=if_absent)

    world.objects.inner.put = put_later
    pen.record_start(batch)
    if stopped_in != BEGAN:
        stop()
    pen.record_end(batch, DeleteResult((address,), (), ()))
    for _ in range(2):
        assert "deleted" in [event.outcome for event in why(world.repo.context, address).deletions]
        world.clock.advance(3 * 3600)
        deletion_index_writer.index_missing(world.repo.context)
