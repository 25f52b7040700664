"""Rates, waits that grow, and naps that end when asked to."""

from __future__ import annotations

from random import Random

import pytest

from refstore_reaper.throttle import NAP_SECONDS, Backoff, Throttle, nap
from tests.kit.clock import FakeClock


class Half:
    def random(self) -> float:
        return 0.5


def never() -> bool:
    return False


def test_without_a_limit_nobody_waits(clock: FakeClock) -> None:
    throttle = Throttle(0, clock)
    began = clock.monotonic_seconds()
    assert throttle.batch_size(5000) == 5000
    assert all(throttle.wait_for(10**6, never) for _ in range(10))
    assert clock.monotonic_seconds() == began


@pytest.mark.parametrize(("rate", "batch"), [(0.5, 1), (1, 1), (7, 7), (1000, 1000), (10**6, 5000)])
def test_over_time_the_rate_is_held(clock: FakeClock, rate: float, batch: int) -> None:
    throttle = Throttle(rate, clock)
    assert throttle.batch_size(5000) == batch
    began = clock.monotonic_seconds()
    for _ in range(50):
        assert throttle.wait_for(batch, never)
    seconds = clock.monotonic_seconds() - began
    first_second = rate
    assert seconds >= (50 * batch - first_second) / rate - 1e-6
    assert seconds <= 50 * batch / rate + 1


def test_a_pause_saves_up_no_more_than_a_second(clock: FakeClock) -> None:
    throttle = Throttle(10, clock)
    clock.advance(3600)
    began = clock.monotonic_seconds()
    for _ in range(3):
        throttle.wait_for(10, never)
    assert clock.monotonic_seconds() - began == pytest.approx(2, abs=0.01)


def test_asked_to_stop_nothing_is_taken(clock: FakeClock) -> None:
    throttle = Throttle(1, clock)
    assert throttle.wait_for(1, never)
    began = clock.monotonic_seconds()
    assert not throttle.wait_for(1, lambda: clock.monotonic_seconds() > began + 0.4)
    assert clock.monotonic_seconds() - began <= 0.4 + 2 * NAP_SECONDS


def test_waits_grow_with_jitter_to_a_bound_and_are_forgotten_by_success(clock: FakeClock) -> None:
    backoff = Backoff(clock, Half(), first_seconds=1, most_seconds=10)
    assert not backoff.is_waiting
    assert [backoff.record_failure() for _ in range(6)] == [0.75, 1.5, 3.0, 6.0, 7.5, 7.5]
    assert backoff.is_waiting
    clock.advance(7.6)
    assert not backoff.is_waiting
    backoff.record_success()
    assert backoff.record_failure() == 0.75


def test_it_never_overflows_and_two_reapers_do_not_wait_alike(clock: FakeClock) -> None:
    one, two = (Backoff(clock, Random(seed)) for seed in (1, 2))
    waits = [(one.record_failure(), two.record_failure()) for _ in range(5000)]
    assert all(60 <= seconds <= 120 for pair in waits[20:] for seconds in pair)
    assert sum(a == b for a, b in waits) == 0


def test_a_nap_ends_soon_after_it_is_asked_to(clock: FakeClock) -> None:
    began = clock.monotonic_seconds()
    assert nap(clock, 10, never)
    assert clock.monotonic_seconds() - began == pytest.approx(10)
    began = clock.monotonic_seconds()
    assert not nap(clock, 3600, lambda: clock.monotonic_seconds() - began > 1)
    assert clock.monotonic_seconds() - began <= 1 + 2 * NAP_SECONDS
