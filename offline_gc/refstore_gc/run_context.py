"""What the functions of one run share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refstore.context import Context
from refstore.objects.base import ObjectStore
from refstore.retention.rules import Rules
from refstore_gc.mark_breaker import Limits
from refstore_gc.run_layout import TAG, RunLayout, store_at
from refstore_gc.run_progress import Steps
from refstore_gc.run_summary import Mode
from refstore_gc.session import parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLimits:
    """How much an incremental run does in the driver, without Spark."""

    keys: int = 200_000
    """Objects that are listed."""
    rows: int = 2_000_000
    """Addresses that are compared; and as many that are read from changed ranges."""
    buckets: int = 16
    """Buckets of what earlier runs recorded: some 12 MB for each bucket and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run. Durations that safety rests on stand in `Safety`."""

    grace_days: float | None = None
    """Overrides the rules' grace."""
    min_age_seconds: float | None = None
    """Younger objects are left alone. None: a day. It is never less than the longest operation."""
    mode: Mode = "delete"
    tag: str = TAG
    """In the mode `tag`: the key of the tag that the bucket's lifecycle rule deletes by."""
    limits: Limits = field(default_factory=Limits)
    foreign: bool = False
    """Whether objects in `data/` that refstore did not write are garbage, too."""
    full: bool = False
    """Whether the run lists and reads everything, although it could be incremental."""
    full_days: float = 7.0
    """How old the last complete run may be, for a run to be incremental."""
    local_limits: LocalLimits | None = field(default_factory=LocalLimits)
    """What an incremental run does in the driver. None: Spark does everything."""
    signed_seconds: float = 0.0
    """How long URLs are valid that services sign: so long no content goes that a purge has replaced."""
    take_over: bool = False
    """Whether to take over a run that is active, or died a moment ago, without waiting until it is stale."""
    rules: Rules | None = None
    """Replace the repository's own rules: for `simulate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run on one repository: functions take this instead of its parts."""

    repository: Context
    spark: SparkSession
    options: Options
    steps: Steps
    layout: RunLayout
    cutoff_ms: int = 0
    """Objects that were written later, by the store's clock, are left alone."""

    @property
    def files(self) -> ObjectStore:
        """The store that holds the run's own files."""
        layout = self.layout
        return self.repository.objects if layout.files == layout.url else store_at(layout.files, layout)

    @property
    def parts(self) -> int:
        """Into how many tasks Spark cuts work."""
        return parts_of(self.spark)
