"""Leases share the work; nothing rests on them."""

from __future__ import annotations

import pytest

from refstore.core.ids import RandomIds, RepositoryId
from refstore.kv.base import ABSENT, Op
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reaper_records import Lease
from refstore_reaper.leases import AHEAD_SECONDS_MAX, Leases
from tests.kit.clock import FakeClock
from tests.reaper_world import WatchedKV

REPO = RepositoryId("lake.00000000000000000000000001")


@pytest.fixture
def kv() -> WatchedKV:
    return WatchedKV()


def leases(kv: WatchedKV, clock: FakeClock, owner: str = "a", repo: RepositoryId = REPO) -> Leases:
    return Leases(kv, repo, owner, clock, RandomIds(), seconds=60)


def test_a_unit_belongs_to_one_at_a_time(kv: WatchedKV, clock: FakeClock) -> None:
    a, b = leases(kv, clock, "a"), leases(kv, clock, "b")
    assert a.acquire(["x", "y"]) == ["x", "y"]
    assert b.acquire(["w", "x", "y", "z"]) == ["w", "z"]
    a.release(["x"])
    assert b.acquire(["x", "y"]) == ["x"]
    assert set(a.units) == {"y"}


def test_repositories_have_leases_of_their_own(kv: WatchedKV, clock: FakeClock) -> None:
    other = RepositoryId("other.00000000000000000000000001")
    assert leases(kv, clock, "a").acquire(["x"])
    assert leases(kv, clock, "b", other).acquire(["x"])


def test_any_number_of_units_costs_two_round_trips(kv: WatchedKV, clock: FakeClock) -> None:
    calls = 0
    execute = kv.execute

    def count(ops: list[Op]) -> list[object]:
        nonlocal calls
        calls += 1
        return execute(ops)

    kv.execute = count
    assert len(leases(kv, clock).acquire([f"due/{number:02x}" for number in range(64)])) == 64
    assert calls == 2


def test_one_that_died_is_taken_over_when_its_time_is_over_and_not_before(kv: WatchedKV, clock: FakeClock) -> None:
    leases(kv, clock, "dead").acquire(["x"])
    b = leases(kv, clock, "b")
    clock.advance(59.9)
    assert b.acquire(["x"]) == []
    clock.advance(0.2)
    assert b.acquire(["x"]) == ["x"]


def test_what_is_kept_does_not_expire(kv: WatchedKV, clock: FakeClock) -> None:
    a, b = leases(kv, clock, "a"), leases(kv, clock, "b")
    a.acquire(["x"])
    for _ in range(10):
        clock.advance(31)
        a.renew()
        assert b.acquire(["x"]) == []
    assert set(a.units) == {"x"}


def test_keeping_costs_nothing_before_half_of_the_time(kv: WatchedKV, clock: FakeClock) -> None:
    a = leases(kv, clock)
    a.acquire(["x"])
    seen: list[Op] = []
    kv.before = seen.append
    clock.advance(29)
    a.renew()
    assert not seen
    clock.advance(2)
    a.renew()
    assert len(seen) == 1


def test_what_was_lost_meanwhile_is_not_held_and_not_taken_back(kv: WatchedKV, clock: FakeClock) -> None:
    a, b = leases(kv, clock, "a"), leases(kv, clock, "b")
    a.acquire(["x", "y"])
    clock.advance(61)  # a was asleep
    assert b.acquire(["x"]) == ["x"]
    a.renew()
    assert set(a.units) == {"y"}
    a.release()
    assert kv.get(keys.lease(REPO, "x")) is not ABSENT
    assert kv.get(keys.lease(REPO, "y")) is ABSENT


def test_releasing_leaves_nothing_behind(kv: WatchedKV, clock: FakeClock) -> None:
    a = leases(kv, clock)
    a.acquire(["x", "y", "z"])
    a.release()
    a.release()
    assert kv.count(keys.LEASES, limit=10) == 0
    assert not a.units


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", encode(Lease("future", 1_763_708_400_000 + int(AHEAD_SECONDS_MAX * 1000) + 1, "w"))]
)
def test_a_lease_that_makes_no_sense_stops_nobody(kv: WatchedKV, clock: FakeClock, raw: bytes) -> None:
    kv.set(keys.lease(REPO, "x"), raw)
    assert leases(kv, clock).acquire(["x"]) == ["x"]


def test_of_two_that_saw_it_free_one_gets_it(kv: WatchedKV, clock: FakeClock) -> None:
    a, b = leases(kv, clock, "a"), leases(kv, clock, "b")
    got: list[list[str]] = []

    def meanwhile(op: Op) -> None:
        if type(op).__name__ == "SetIf":
            kv.before = None
            got.append(b.acquire(["x"]))

    kv.before = meanwhile
    got.append(a.acquire(["x"]))
    assert got == [["x"], []]


def test_a_clock_that_was_set_back_makes_nobody_keep_too_late(kv: WatchedKV, clock: FakeClock) -> None:
    a = leases(kv, clock)
    a.acquire(["x"])
    clock.jump(-3600)
    seen: list[Op] = []
    kv.before = seen.append
    a.renew()
    assert len(seen) == 1
