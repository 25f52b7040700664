"""A reaper lets others go first, and leaves the process that it ran in as it was. Linux counts by thread: each test has
one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import pytest

from refstore_reaper.process_priority import NICE, lowered_priority

T = TypeVar("T")
pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux has these calls")
SAY = "import os; print(len(os.sched_getaffinity(0)), os.sched_getscheduler(0))"


class Priority(NamedTuple):
    niceness: int
    policy: int
    processors: set[int]


def priority() -> Priority:
    return Priority(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0))


def apart(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def within(niceness: int) -> tuple[Priority, Priority, Priority]:
    before = priority()
    with lowered_priority(niceness):
        during = priority()
    return before, during, priority()


def test_it_is_nice_never_takes_a_processor_by_waking_up_and_keeps_to_one() -> None:
    before, during, _ = apart(lambda: within(NICE))
    assert during.niceness == max(NICE, before.niceness)
    assert during.policy == os.SCHED_BATCH
    assert len(during.processors) == 1
    assert during.processors <= before.processors


def test_afterwards_all_is_as_it_was_but_a_niceness_that_nobody_may_lower() -> None:
    before, during, after = apart(lambda: within(NICE))
    assert during != before
    assert after == before._replace(niceness=before.niceness if os.geteuid() == 0 else during.niceness)


def test_who_asks_for_no_niceness_keeps_everything() -> None:
    before, during, _ = apart(lambda: within(0))
    assert during == before


def test_nobody_becomes_more_urgent() -> None:
    def idle() -> tuple[Priority, Priority, Priority]:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return within(NICE)

    _, during, _ = apart(idle)
    assert during.niceness == 19
    assert during.policy == os.SCHED_IDLE


def test_several_reapers_spread_over_the_processors() -> None:
    allowed = os.sched_getaffinity(0)
    chosen = [apart(lambda: within(NICE)[1].processors) for _ in range(64 * len(allowed))]
    assert set[int]().union(*chosen) == allowed


def test_what_it_starts_gives_way_as_well() -> None:
    def start() -> str:
        with lowered_priority(NICE):
            return subprocess.check_output([sys.executable, "-c", SAY], text=True)

    assert apart(start).split() == ["1", str(os.SCHED_BATCH)]
