"""Let an operation go round again after a write of which it is not known whether it landed.

`RetryingKV` never repeats such a write (`OutcomeUnknown`); the operation itself makes a new one. It waits in between,
as `RetryingKV` does: otherwise a KV that refuses for a moment would use up the attempts of the operation in
milliseconds, and its caller would be told of a conflict with others.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from random import SystemRandom
from typing import Final

from refstore.core.clock import Clock
from refstore.errors import OutcomeUnknown
from refstore.kv.retries import ATTEMPTS, wait_seconds

_random: Final = SystemRandom()


class UnknownOutcomes:
    """The writes of one operation whose outcome is not known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0

    @contextmanager
    def tolerate(self) -> Generator[None, None, None]:
        """Wait after a write in the block whose outcome is not known. The code behind the block looks what landed."""
        try:
            yield
        except OutcomeUnknown as error:
            self.wait(error)

    def wait(self, error: OutcomeUnknown) -> None:
        """Wait before the operation goes round again. Raises `error` where `RetryingKV` would give up, too."""
        self._count += 1
        if self._count >= ATTEMPTS:
            raise error
        self._clock.sleep(wait_seconds(self._count, _random))
