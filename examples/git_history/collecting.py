"""Run the reaper once, then the offline job: mark and sweep in one run, without grace.

No other client uses the example's lake, so no operation has to be waited for, and the safety durations are zero. Never
run the offline job like this on a lake that others write to.
"""

from __future__ import annotations

from typing import Final

from refstore import Lake
from refstore.configuration.settings import ReaperSettings
from refstore.core.safety import Safety
from refstore.errors import Conflict
from refstore.kv import open_kv
from refstore_gc import gc_run
from refstore_gc.engines.choice import Engines
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_context import BreakerLimits
from refstore_gc.run_progress import ReportProgress
from refstore_gc.run_summary import GcSummary
from refstore_reaper.daemon import Reaper

ALONE: Final = Safety(
    operation_deadline_seconds=0,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
    scrub_after_seconds=0,
    grace_seconds=0,
)
AT_ONCE: Final = GcOptions(grace_days=0, min_age_seconds=0, limits=BreakerLimits(share_max=1))


def reap(lake: Lake, name: str) -> None:
    """Run the reaper until nothing is due. Committed objects lose their references; the offline job decides about them.
    Raises Conflict.
    """
    with Reaper(lake, ReaperSettings(breaker_share=1), repositories=[name], grace_seconds=0) as reaper:
        done = reaper.run_once(lambda: False)
    if done.error_count:
        raise Conflict(f"the reaper met {done.error_count} errors; see its log")


def collect(kv: str, objects: str, name: str, engines: Engines, tell: ReportProgress) -> GcSummary:
    """Mark and sweep. Return what was marked, and what the store confirmed."""
    with Lake(open_kv(kv), objects, safety=ALONE) as lake:
        return gc_run.run_nightly(lake.repository(name).context, engines, AT_ONCE, tell).latest_summary
