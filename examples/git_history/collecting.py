"""Run the reaper once, then the offline job: mark and sweep in one run, without grace.

No other client uses the example's lake, so no operation has to be waited for, and the safety durations are zero. Never
run the offline job like this on a lake that others write to.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import refstore
from refstore import Lake, Safety, StepProgress
from refstore.errors import Conflict
from refstore_gc import CollectReport, collect
from refstore_reaper import reap

ALONE: Final = Safety(
    operation_deadline_seconds=0,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
    grace_seconds=0,
)
AT_ONCE: Final = timedelta(0)


def release_references(lake: Lake, name: str) -> None:
    """Run the reaper until nothing is due. Committed objects lose their references; the offline job decides about them.
    Raises Conflict.
    """
    done = reap(lake, repositories=[name], grace=AT_ONCE, share_max=1)
    if done.errors:
        raise Conflict(f"the reaper met errors: {done}")


def collect_expired(kv: str, objects: str, name: str, tell: Callable[[StepProgress], None]) -> CollectReport:
    """Mark and sweep. Return what the store confirmed."""
    opened = refstore.open(kv=kv, objects=objects)
    with Lake(opened.kv, opened.objects_url, safety=ALONE) as lake:
        return collect(lake.repository(name), grace=AT_ONCE, min_age=AT_ONCE, share_max=1, report_progress=tell)
