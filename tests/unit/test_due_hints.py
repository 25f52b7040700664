"""Hints that several addresses share: each address keeps its hint until it needs it no more, and no longer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from refstore.core.ids import Address
from refstore.errors import CorruptRecord
from refstore.kv.base import Key
from refstore.public_types import Entry
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reaper_records import SharedDueHintRecord
from refstore.versioning import due_hints
from refstore_reaper import scrub
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, World

COUNT = 200
"""Enough for hints of several addresses in most shards, and few enough for one in some."""


@pytest.fixture
def world() -> World:
    return World(breaker_share=1.0)


def released(world: World) -> list[Entry]:
    entries = world.upload("main", *(f"p{number:03d}" for number in range(COUNT)))
    world.repo.reset("main")
    world.run_once()
    return entries


def hint_keys(world: World) -> list[Key]:
    return [key for key in world.kv.dump() if "/due/" in key.partition]


def shared_hint(world: World) -> Key:
    return max((key for key in hint_keys(world) if "/many/" in key.name), key=lambda key: len(addresses_of(world, key)))


def addresses_of(world: World, key: Key) -> list[Address]:
    value = world.kv.get(key)
    assert isinstance(value, bytes)
    return list(due_hints.parse(key.partition, key.name, value).addresses)


def test_what_a_reset_releases_shares_a_hint_for_each_shard(world: World) -> None:
    entries = released(world)
    shards = {keys.shard_of(entry.address) for entry in entries}
    assert len(hint_keys(world)) == len(shards)
    assert world.hints() == COUNT
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_once().deleted == COUNT
    assert (world.hints(), world.references(), world.stored()) == (0, 0, set())


def test_more_addresses_than_a_hint_takes_are_in_several() -> None:
    repo = World().repo.context.repo
    address = "data/2026112407/01kabcdefghjkmnpqrstvwxyz0"
    hints = due_hints.encode_many(repo, [(5, Address(address))] * (due_hints.ADDRESSES_MAX + 1))
    assert [key.name.partition("/")[2][:5] for key, _ in hints] == ["many/", "data/"]


def test_of_what_the_store_refuses_only_that_keeps_a_hint(world: World) -> None:
    released(world)
    key = shared_hint(world)
    refused = addresses_of(world, key)[0]
    world.clock.advance(GRACE_SECONDS + 1)
    world.objects.refuses = {refused}
    done = world.run_once()
    assert (done.deleted, world.stored(), world.hints()) == (COUNT - 1, {refused}, 1)
    world.objects.refuses = set()
    assert world.run_once().deleted == 1
    assert (world.hints(), world.references()) == (0, 0)


def test_a_pass_that_stops_within_a_hint_leaves_the_rest_hinted(world: World) -> None:
    """With a rate limit, the next pass must not spend its time on the addresses that are gone."""
    released(world)
    world.clock.advance(GRACE_SECONDS + 1)
    for left in range(COUNT - 1, COUNT - 6, -1):
        done = world.run_pass(batch_keys=1, should_stop=stopping_after_a_batch(world))
        assert (done.deleted, world.hints(), world.references()) == (1, left, left)


def stopping_after_a_batch(world: World) -> Callable[[], bool]:
    before = len(world.objects.batches)
    return lambda: len(world.objects.batches) > before


def test_a_restored_address_goes_off_its_shared_hint_when_that_is_read(world: World) -> None:
    released(world)
    key = shared_hint(world)
    restored = addresses_of(world, key)[0]
    world.repo.restore(restored, to="main")
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_once().deleted == COUNT - 1
    assert (world.stored(), world.hints()) == ({restored}, 0)


def test_an_address_released_again_waits_for_its_later_hint(world: World) -> None:
    entries = released(world)
    again = addresses_of(world, shared_hint(world))[0]
    world.clock.advance(GRACE_SECONDS - 1)
    world.repo.restore(again, to="main")
    world.repo.reset("main")
    world.clock.advance(2)
    assert world.run_once().deleted == len(entries) - 1
    assert (world.stored(), world.hints()) == ({again}, 1)
    world.clock.advance(GRACE_SECONDS)
    assert world.run_once().deleted == 1
    assert world.hints() == 0


def test_a_damaged_shared_hint_stops_its_shard_only(world: World) -> None:
    released(world)
    key = shared_hint(world)
    kept = addresses_of(world, key)
    world.corrupt(key)
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_once()
    assert done.corrupt
    assert done.deleted == COUNT - len(kept)
    assert world.stored() == set(kept)


@pytest.mark.parametrize("names", [[], [Address("../../etc/passwd")], [Address("data/x\ndata/y")]])
def test_a_shared_hint_of_what_is_no_own_address_is_refused(names: list[Address]) -> None:
    key = keys.shared_due_hint(World().repo.context.repo, 0, 1, "00")
    with pytest.raises(CorruptRecord):
        due_hints.parse(key.partition, key.name, encode(SharedDueHintRecord(names)))


def test_the_trash_is_listed_page_by_page_through_shared_hints(world: World) -> None:
    entries = released(world)
    found: list[Address] = []
    after = ""
    while page := list(islice(world.repo.list_trash(after=after), 3)):
        found += [item.address for item in page]
        after = page[-1].cursor
    assert sorted(found) == sorted(entry.address for entry in entries)


def test_the_scrubber_knows_shared_hints_and_writes_lost_ones(world: World) -> None:
    released(world)
    world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS // 2)
    key = shared_hint(world)
    count = len(addresses_of(world, key))
    assert scrubbed_hints(world) == 0
    world.kv.delete(key)
    assert world.hints() == COUNT - count
    assert scrubbed_hints(world) == count
    assert world.hints() == COUNT


def scrubbed_hints(world: World) -> int:
    ctx = world.repo.context
    return sum(scrub.scrub_references(ctx, shard).hints for shard in range(keys.SHARDS))
