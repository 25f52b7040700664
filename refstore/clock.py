"""The clock that is passed in, so that no test sleeps to make time pass.

Wall time is milliseconds since the epoch (it stands in records, and may jump); monotonic time is seconds (it
measures how long something of this process took, and never jumps back).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time."""
        ...

    def monotonic_seconds(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
