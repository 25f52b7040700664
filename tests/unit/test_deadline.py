"""The deadline of an operation, by the clock of the machine."""

from __future__ import annotations

import time

import pytest

from refstore.core import deadline
from refstore.core.clock import SystemClock
from refstore.errors import DeadlineExceeded


def test_a_deadline_passes_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others wait for is that its time is over, not that this machine was awake for so long."""
    passed = time.clock_gettime
    counts_sleep: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def two_hours_later(which: int) -> float:
        return passed(which) + (7200 if which == counts_sleep else 0)

    with deadline.limit_operation(SystemClock(), 3600):
        deadline.check()
        monkeypatch.setattr(time, "clock_gettime", two_hours_later)
        with pytest.raises(DeadlineExceeded):
            deadline.check()
