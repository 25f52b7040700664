"""The clock that is passed in, so that no test sleeps to make time pass.

Wall time is milliseconds since the epoch (it stands in records, and may jump); monotonic time is seconds (it
measures how long something of this process took, a sleep of the machine included, and never jumps back).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_PASSED: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""This clock runs while the machine sleeps. `time.monotonic` does not, but other processes do not wait longer."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def format_utc(at_ms: int) -> str:
    """Return a wall time as messages and tables show it: `2026-11-22T17:20:00Z`."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(tzinfo=None).isoformat() + "Z"  # %Y has no leading zeros


def to_datetime(at_ms: int) -> datetime:
    """Return a wall time as applications see it, in UTC; one beyond the calendar as the calendar's end."""
    try:
        return _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if at_ms > 0 else datetime.min.replace(tzinfo=UTC)


def to_optional_datetime(at_ms: int | None) -> datetime | None:
    """Do that for a time that a record may lack; 0 means that it does."""
    return to_datetime(at_ms) if at_ms else None


def to_ms(at: datetime) -> int:
    """Return what an application gave, which has a time zone, as a wall time."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


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
        return time.clock_gettime(_PASSED)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
