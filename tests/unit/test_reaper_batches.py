"""Batches of deletions that overlap: their order, and their failures."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from refstore.core.ids import Address, Token
from refstore.deletion_history.deletion_journal import JournalWriter
from refstore.errors import KVUnavailable, ObjectsUnavailable
from refstore.kv_recovery.fence import DryRunFence
from refstore.objects.local import LocalObjects
from refstore.records import keys
from refstore.records.pending_deletes import PendingDelete
from refstore.versioning.address_state import DeletionDelays
from refstore.versioning.due_hints import DueHint
from refstore_reaper.breaker import Breaker
from refstore_reaper.deletion import AsyncDeleter, BatchDeleter, BatchSteps, DueAddress, Pipeline
from refstore_reaper.pass_summary import Tally
from tests.reaper_world import GRACE_SECONDS, World
from tests.reaping import NoJournal, release_all


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    store = LocalObjects(tmp_path / "objects", fsync=False)
    for number in range(10):
        store.put(f"data/x/{number}", b"x")
    return store


@pytest.fixture
def async_deleter() -> AsyncDeleter:
    deleter = AsyncDeleter()
    yield deleter
    deleter.close()


def stored_names(store: LocalObjects) -> set[str]:
    return {info.key.rpartition("/")[2] for info in store.list("data/")}


def test_batches_are_deleted_in_order_whichever_is_waited_for_first(
    store: LocalObjects, async_deleter: AsyncDeleter
) -> None:
    batches = [pending(f"data/x/{number}", "data/x/0") for number in range(1, 5)]
    futures = [async_deleter.submit(store, batch, NoJournal()) for batch in batches]
    confirmed = [future.result() for future in reversed(futures)][::-1]
    assert [len(done.missing_keys) for done in confirmed] == [0, 1, 1, 1]
    assert stored_names(store) == {"5", "6", "7", "8", "9"}


# ---- batches


def pending(*addresses: str) -> list[PendingDelete]:
    return [PendingDelete(Address(address), Token("main:t"), "p", "reset", 1) for address in addresses]


class Batches:
    """A world's batches of addresses that nothing names."""

    def __init__(self, world: World, async_deleter: AsyncDeleter | None) -> None:
        ctx = world.repo.context
        self._repo, self._now_ms = ctx.repo, world.clock.now_ms()
        self.tally = Tally()
        self._breaker = Breaker(ctx, world.settings, "r")
        self._deleter = BatchDeleter(
            ctx,
            self._breaker,
            self.tally,
            JournalWriter(world.objects, "r", world.clock, world.numbers),
            delays=DeletionDelays(0, 0),
            async_deleter=async_deleter,
            fence=DryRunFence(),
            on_corrupt=lambda _address, error: pytest.fail(str(error)),
        )

    def batch(self, *addresses: str) -> BatchSteps:
        repo, now = self._repo, self._now_ms
        due = [
            DueAddress(Address(each), DueHint(keys.due_hint(repo, now, Address(each)), now, [Address(each)]))
            for each in addresses
        ]
        self._breaker.check_share(lambda _: 0, lambda _: 0, lambda _: 0)
        return self._deleter.delete_batch(self._breaker.request_permit(len(addresses)), due)

    @property
    def under_way(self) -> int:
        return self._breaker.under_way


def test_what_one_batch_has_in_flight_is_left_to_it(async_deleter: AsyncDeleter) -> None:
    world = World()
    a, b = (entry.address for entry in world.upload("main", "a", "b"))
    world.repo.reset("main")
    release_all(world.repo)
    batches = Batches(world, async_deleter)
    with Pipeline() as pipeline:
        pipeline.start(first := batches.batch(a))
        second = batches.batch(a, b)
        next(second)
        assert not list(batches.batch(a)), "nothing is left for a third batch, so it ends at once"
        assert batches.under_way == 3
        assert not list(second)
        assert batches.tally.counts["deleted"] == 1
    assert not list(first)
    assert (batches.tally.counts["deleted"], batches.tally.counts["missing"], batches.under_way) == (2, 0, 0)
    assert not world.stored()


def test_one_batch_that_fails_does_not_keep_the_others_from_ending(async_deleter: AsyncDeleter) -> None:
    world = World()
    entries = world.upload("main", "a", "b", "c")
    world.repo.reset("main")
    release_all(world.repo)

    def fail(keys_: object) -> None:
        if entries[1].address in keys_:
            raise ObjectsUnavailable("planted")

    world.objects.before_delete = fail
    batches = Batches(world, async_deleter)
    pipeline = Pipeline()
    pipeline.start(batches.batch(entries[0].address))
    pipeline.start(batches.batch(entries[1].address))
    with pytest.raises(ObjectsUnavailable), pipeline:
        pipeline.start(batches.batch(entries[2].address))
    assert (batches.tally.counts["deleted"], batches.under_way) == (2, 0)
    assert world.stored() == {entries[1].address}
    world.objects.before_delete = None
    assert world.run_pass(grace_seconds=0).deleted == 1


def test_the_next_batch_begins_before_the_one_before_it_goes_on() -> None:
    steps: list[str] = []

    def batch(name: str) -> BatchSteps:
        steps.append(f"{name} begins")
        yield
        steps.append(f"{name} ends")

    with suppress(KVUnavailable), Pipeline() as pipeline:
        for name in ("a", "b", "c"):
            pipeline.start(batch(name))
        raise KVUnavailable("planted")
    assert steps == ["a begins", "b begins", "a ends", "c begins", "b ends", "c ends"]


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_asynchronous_or_not_the_outcome_is_the_same(grace_seconds: int | None) -> None:
    outcomes = []
    for asynchronous in (False, True):
        world = World(grace_seconds=grace_seconds, batch_keys=7)
        world.upload("main", *(f"p{number:02d}" for number in range(50)))
        world.repo.copy("main", "p01", to_branch="main", to_path="q")
        world.repo.move("main", "p02", to_path="r")
        world.repo.reset("main")
        world.run_once(asynchronous=asynchronous)
        world.clock.advance(GRACE_SECONDS + 1)
        with world.reaper(asynchronous=asynchronous) as reaper:
            outcomes.append((reaper.run_once(lambda: False), world.stored(), world.references(), world.hints()))
        assert not world.stored()
    assert outcomes[0] == outcomes[1]
