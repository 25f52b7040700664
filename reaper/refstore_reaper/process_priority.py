"""Lower the reaper's priority: its deletions have waited for their grace window, and can wait for a service.

Linux keeps each of these settings for each thread. Threads and processes that are started later inherit them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

NICE: Final = 10
"""The niceness of a reaper that is a process of its own."""


@contextmanager
def lowered_priority(niceness: int) -> Generator[None, None, None]:
    """Run the block at this niceness, so that a service on the same machine has priority. 0: change nothing.

    On Linux the thread also uses one processor only, any of its allowed ones, so that the others are free when a thread
    of the service wakes up. As SCHED_BATCH (sched(7)) it never preempts another thread when it wakes up, which happens
    several times for each batch. Settings that a sandbox forbids stay unchanged. A niceness that only an administrator
    may lower stays after the block, too.
    """
    if not niceness:
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, before))
    try:
        with _on_linux() if hasattr(os, "sched_setscheduler") else nullcontext():
            yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def _on_linux() -> Generator[None, None, None]:
    policy, processors = os.sched_getscheduler(0), os.sched_getaffinity(0)
    with suppress(OSError):
        if policy == os.SCHED_OTHER:  # every other class stays: changing it could make the thread more urgent
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        os.sched_setaffinity(0, {random.choice(sorted(processors))})  # noqa: S311  # several reapers spread
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, processors)
        with suppress(OSError):
            if policy == os.SCHED_OTHER:
                os.sched_setscheduler(0, policy, os.sched_param(0))
