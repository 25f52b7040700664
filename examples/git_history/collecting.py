"""The reaper once, then the offline job: mark and sweep in one, without grace.

Nobody else is at work in the example's own lake, so there is nobody to wait for: the durations that safety rests on are
none. Never run the offline job so on a lake that others write to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from refstore import Lake
from refstore.core.safety import Safety
from refstore.core.settings import ReaperSettings
from refstore.errors import Conflict
from refstore_gc import run
from refstore_gc.mark_breaker import Limits
from refstore_gc.run import Options
from refstore_gc.run_progress import Tell
from refstore_gc.run_summary import Summary
from refstore_reaper.daemon import Reaper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALONE: Final = Safety(
    operation_deadline_seconds=0,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
    scrub_after_seconds=0,
    grace_seconds=0,
)
AT_ONCE: Final = Options(grace_days=0, min_age_seconds=0, limits=Limits(share=1))


def reap(lake: Lake, name: str) -> None:
    """Until nothing is due: what was committed loses its references, and is the offline job's to judge. Raises
    Conflict.
    """
    with Reaper(lake, ReaperSettings(grace_override_seconds=0, breaker_share=1), repositories=[name]) as reaper:
        done = reaper.run_once(lambda: False)
    if done.error_count:
        raise Conflict(f"the reaper met {done.error_count} errors; see its log")


def collect(kv: str, objects: str, name: str, spark: SparkSession, tell: Tell) -> Summary:
    """What was marked, and what the store confirmed."""
    with Lake.open(kv, objects, safety=ALONE) as lake:
        return run.run(lake.repository(name).context, spark, AT_ONCE, tell).latest
