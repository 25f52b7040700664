"""Limit the deletions per second, and wait longer and longer while a store is failing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from refstore.core.clock import Clock

NAP_SECONDS: Final = 0.25
"""Waits are divided into naps, so that a request to stop is noticed soon."""


class Random(Protocol):
    def random(self) -> float: ...


class Throttle:
    """A token bucket with the capacity of one second. `per_second` 0: no limit."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = per_second
        self._at = clock.monotonic_seconds()

    @property
    def is_limited(self) -> bool:
        return self._per_second > 0

    def batch_size(self, most: int) -> int:
        """Return how many may be deleted at a time: at most one second's worth."""
        return min(most, max(1, int(self._per_second))) if self.is_limited else most

    def wait_for(self, count: int, stop: Callable[[], bool]) -> bool:
        """Wait until `count` more may be deleted, and take them. Return False if `stop` returned True
        meanwhile.
        """
        if not self.is_limited:
            return not stop()
        while True:
            now = self._clock.monotonic_seconds()
            self._left = min(max(self._per_second, count), self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left >= count:
                if stop():
                    return False
                self._left -= count
                return True
            if not nap(self._clock, (count - self._left) / self._per_second, stop):
                return False


class Backoff:
    """Waits longer and longer after failures, each time with jitter, so that many reapers do not return at once."""

    def __init__(
        self, clock: Clock, random: Random, *, first_seconds: float = 1.0, most_seconds: float = 120.0
    ) -> None:
        self._clock = clock
        self._random = random
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._failures = 0
        self._until = clock.monotonic_seconds()

    @property
    def is_waiting(self) -> bool:
        return self._clock.monotonic_seconds() < self._until

    def record_failure(self) -> float:
        """Count a failure. Return for how many seconds to leave the store alone."""
        self._failures = min(self._failures + 1, 32)
        seconds = min(self._first_seconds * 2 ** (self._failures - 1), self._most_seconds) * (
            0.5 + self._random.random() / 2
        )
        self._until = self._clock.monotonic_seconds() + seconds
        return seconds

    def record_success(self) -> None:
        self._failures = 0
        self._until = self._clock.monotonic_seconds()


def nap(clock: Clock, seconds: float, stop: Callable[[], bool]) -> bool:
    """Sleep until the time is over or `stop` returns True. Return whether the time is over."""
    until = clock.monotonic_seconds() + seconds
    while (left := until - clock.monotonic_seconds()) > 0:
        if stop():
            return False
        clock.sleep(min(left, NAP_SECONDS))
    return not stop()
