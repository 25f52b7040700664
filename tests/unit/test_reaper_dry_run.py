"""The dry run touches nothing, and says exactly what the run then does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from refstore.conformance.kv_suite import KVSuite
from refstore.kv.base import ABSENT, KV, Delete, Exchange, Get, Key, Op, Result, Set, SetIf
from refstore.kv.memory import MemoryKV
from refstore_reaper.dry_run import Overlay, PlannedDelete, dry_run
from refstore_reaper.pass_summary import PassSummary
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, Crash, World, never


class ReadOnly(MemoryKV):
    """A store that must not be written to any more."""

    sealed = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        assert not self.sealed or all(isinstance(op, Get) for op in ops), f"written to: {ops}"
        return super().execute(ops)

    def delete_range(self, partition: str, first: str, last: str) -> None:
        assert not self.sealed, f"written to: {partition}"
        super().delete_range(partition, first, last)


@pytest.fixture(scope="module")
def kv() -> KV:
    below = ReadOnly()
    below.sealed = True
    return Overlay(below)


@pytest.mark.slow
class TestOverlay(KVSuite):
    """It is a KV like any other."""


PARTITIONS = ("p", "q")
NAMES = (*"abcdefghij", "ab", "a/", "jé")


@pytest.mark.parametrize("seed", range(60))
def test_over_any_store_it_looks_as_if_that_had_been_written(seed: int) -> None:
    """The same steps on a copy of the store and on an overlay over it, compared after each."""
    rng = random.Random(seed)
    below, copy = ReadOnly(), MemoryKV()
    for name in rng.sample(NAMES, 9):
        key, value = Key(rng.choice(PARTITIONS), name), bytes([rng.randrange(3)])
        below.set(key, value)
        copy.set(key, value)
    below.sealed = True
    overlay = Overlay(below)
    for _ in range(60):
        key = Key(rng.choice(PARTITIONS), rng.choice(NAMES))
        value = bytes([rng.randrange(3)])
        expected = rng.choice([ABSENT, b"\0", b"\1", b"\2"])
        op = rng.choice(
            [
                Get(key),
                Set(key, value),
                SetIf(key, expected, rng.choice([ABSENT, value])),
                Exchange(key, value),
                Delete(key),
            ]
        )
        match rng.randrange(8):
            case 0:
                first, last = sorted(rng.sample(NAMES, 2))
                for each in (overlay, copy):
                    each.delete_range(key.partition, first, last)
            case _:
                assert overlay.execute([op]) == copy.execute([op])
        prefix, after, limit = rng.choice(["", "a", "b"]), rng.choice(["", *NAMES]), rng.choice([1, 2, 3, 100])
        for partition in PARTITIONS:
            options = {"prefix": prefix, "after": after, "limit": limit}
            assert overlay.scan(partition, **options) == copy.scan(partition, **options)
            assert overlay.count(partition, limit=limit) == copy.count(partition, limit=limit)
            assert [*overlay.scan_all(partition, page=2)] == [*copy.scan_all(partition, page=2)]


def busy_world(grace_seconds: int | None, **settings: object) -> World:
    """Something of everything, crashed operations among it."""
    world = World(grace_seconds=grace_seconds, batch_keys=7, **settings)
    world.upload("main", *(f"kept{number}" for number in range(9)))
    world.repo.commit("main", "kept")
    world.repo.create_branch("feature", source="main")
    world.upload("feature", *(f"f{number}" for number in range(20)))
    world.repo.copy("feature", "f1", to_branch="main", to_path="copied")
    world.upload("main", "over", "over", "gone")
    world.repo.delete("main", "gone")
    world.repo.issue("main", "issued")
    given = world.repo.issue("main", "written")
    world.objects.put(given.address, b"external")
    world.kv.crash_at(lambda op: "/staging/main:" in op.key.partition)
    with pytest.raises(Crash):
        world.repo.upload("main", "crashed", b"x")
    world.repo.delete_branch("feature")
    world.kv.crash_at(lambda op: op.key.partition.endswith("/staging/deleted"))
    with pytest.raises(Crash):
        world.repo.reset("main")
    return world


def predict(world: World, **options: object) -> tuple[PassSummary, set[str]]:
    would: list[PlannedDelete] = []
    before = world.kv.dump(), world.objects.dump()
    done = dry_run(world.lake, world.settings, report=would.append, should_stop=never, **options)
    assert (world.kv.dump(), world.objects.dump()) == before
    assert len({planned.item.address for planned in would}) == len(would)
    return done, {planned.item.address for planned in would}


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_it_touches_nothing_and_the_run_then_does_exactly_that(grace_seconds: int | None) -> None:
    world = busy_world(grace_seconds)
    for seconds in (0, GRACE_SECONDS + 1, SCRUB_AFTER_SECONDS, GRACE_SECONDS + 1):
        world.clock.advance(seconds)
        predicted, would = predict(world, scrub_now=True)
        before = world.stored()
        done = world.run_once(scrub_now=True)
        assert done == predicted
        assert before - world.stored() == would & before
    assert {world.repo.stat("main", f"kept{number}").address for number in range(9)} == world.stored()


def test_it_says_where_the_breaker_would_stop() -> None:
    world = busy_world(None, breaker_floor_objects=2, breaker_share=0.1)
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
    predicted, would = predict(world)
    assert (predicted.blocked, predicted.deleted, would) == (1, 0, set())
    assert world.run_once() == predicted


def test_it_is_kept_from_nothing_by_the_leases_of_others() -> None:
    world = busy_world(0)
    nested: list[int] = []

    def meanwhile(_keys: object) -> None:
        world.objects.before_delete = None
        nested.append(predict(world)[0].busy)

    world.objects.before_delete = meanwhile
    world.run_pass()
    assert nested == [0]


def test_the_end_of_a_deleted_repository_is_foretold() -> None:
    world = busy_world(None)
    world.lake.delete_repository("lake")
    drained = 0
    for seconds in (0, GRACE_SECONDS + 1, SCRUB_AFTER_SECONDS + 1, GRACE_SECONDS + 1):
        world.clock.advance(seconds)
        predicted, _ = predict(world, scrub_now=True)
        assert world.run_once(scrub_now=True) == predicted
        drained += predicted.drained
    assert drained == 1


def test_what_cannot_be_read_is_said_and_stops_nothing_else() -> None:
    world = busy_world(None)
    other = world.lake.create_repository("other")
    other.upload("main", "a", b"x")
    other.reset("main")
    world.kv.set(Key("repositories", "broken"), b"\xc1")
    predicted, _ = predict(world)
    assert predicted.corrupt
    assert [error.repository for error in predicted.errors] == ["broken"]
    assert predicted.tokens >= 2
