"""How fast: a bound on deletions per second, and waiting longer and longer while a store is failing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from refstore.clock import Clock

NAP_SECONDS: Final = 0.25
"""Waits are cut into naps, so that a reaper that is asked to stop does not sleep on."""


class Random(Protocol):
    def random(self) -> float: ...


class Pace:
    """A token bucket that holds one second's worth. `per_second` 0: no limit."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = per_second
        self._at = clock.monotonic_seconds()

    @property
    def limited(self) -> bool:
        return self._per_second > 0

    def batch(self, most: int) -> int:
        """How many may go at a time: at most one second's worth."""
        return min(most, max(1, int(self._per_second))) if self.limited else most

    def wait_for(self, count: int, stop: Callable[[], bool]) -> bool:
        """Wait until `count` more may go, and take them. False: asked to stop meanwhile; none were taken."""
        if not self.limited:
            return not stop()
        while True:
            now = self._clock.monotonic_seconds()
            self._left = min(max(self._per_second, count), self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left >= count:
                self._left -= count
                return not stop()
            if not nap(self._clock, (count - self._left) / self._per_second, stop):
                return False


class Backoff:
    """Longer and longer waits after failures, each with jitter, so that many reapers do not come back at once."""

    def __init__(self, clock: Clock, random: Random, *, first_seconds: float = 1.0, most_seconds: float = 120.0) -> None:
        self._clock = clock
        self._random = random
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._failures = 0
        self._until = clock.monotonic_seconds()

    @property
    def waiting(self) -> bool:
        return self._clock.monotonic_seconds() < self._until

    def failed(self) -> float:
        """Count a failure; how many seconds it is to be left alone."""
        self._failures = min(self._failures + 1, 32)
        seconds = min(self._first_seconds * 2 ** (self._failures - 1), self._most_seconds) * (0.5 + self._random.random() / 2)
        self._until = self._clock.monotonic_seconds() + seconds
        return seconds

    def succeeded(self) -> None:
        self._failures = 0
        self._until = self._clock.monotonic_seconds()


def nap(clock: Clock, seconds: float, stop: Callable[[], bool]) -> bool:
    """Sleep, but not through a request to stop. False: there was one."""
    until = clock.monotonic_seconds() + seconds
    while (left := until - clock.monotonic_seconds()) > 0:
        if stop():
            return False
        clock.sleep(min(left, NAP_SECONDS))
    return not stop()
