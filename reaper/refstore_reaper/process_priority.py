"""Lower the reaper's priority: what it deletes has waited out its grace, and can wait for a service.

Linux keeps each of these settings by thread; threads and processes that are started later inherit them.
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
    """Run the block at this niceness, so that a service on the same machine goes first. 0: change nothing.

    On Linux it also keeps to one processor, any of those that it may use: a thread of the service that wakes up finds
    the others free of it. And it never takes that one from another by waking up, which a reaper does some times for
    each batch (SCHED_BATCH, sched(7)). What a sandbox forbids is left as it is; so is, afterwards, a niceness that only
    an administrator may lower.
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
        if policy == os.SCHED_OTHER:  # no other one is less urgent by being changed
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
