"""What the functions of one run share."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from refstore.context import Context
from refstore.core.step_progress import ReportProgress
from refstore.errors import InvalidSettings
from refstore.monitoring.run_control import RunControl
from refstore.retention.rules import Rules
from refstore_gc.engines.base import Engine
from refstore_gc.run_layout import RunLayout
from refstore_gc.run_progress import RunSteps
from refstore_gc.run_summary import SweepMode

GRACE_DAYS_MAX: Final = 3650


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """What a mark may take: one that takes more is written, and not swept until an operator confirms it."""

    share_max: float = 0.5
    """Of the repository's objects, or of their bytes. 1: no mark needs confirmation."""
    floor_objects: int = 10_000
    """A mark of fewer objects needs no confirmation: half of a small repository is nothing unusual."""

    def __post_init__(self) -> None:
        if not 0 <= self.share_max <= 1 or self.floor_objects < 0:
            raise InvalidSettings(f"{self} makes no sense; the share is between 0 and 1, the floor not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """The options of a run. Durations that safety rests on stand in `Safety`."""

    grace_days: float | None = None
    """Overrides the rules' grace."""
    min_age_seconds: float | None = None
    """Younger objects are left alone. None: a day. It is never less than the longest operation."""
    mode: SweepMode = "delete"
    limits: BreakerLimits = field(default_factory=BreakerLimits)
    includes_foreign: bool = False
    """Whether objects in `data/` that refstore did not write are garbage, too."""
    is_full: bool = False
    """Whether the run lists and reads everything, although it could be incremental."""
    full_days: float = 7.0
    """How many days old the last full run may be, for a run to be incremental."""
    take_over: bool = False
    """Whether to take over a run that is active, or died a moment ago, without waiting until it is stale."""
    rules: Rules | None = None
    """Replace the repository's own rules: for `simulate`."""

    def __post_init__(self) -> None:
        """Raises InvalidSettings."""
        if self.grace_days is not None and not 0 <= self.grace_days <= GRACE_DAYS_MAX:
            raise InvalidSettings(f"grace_days is {self.grace_days:g}; use 0 to {GRACE_DAYS_MAX}")
        if self.min_age_seconds is not None and self.min_age_seconds < 0:
            raise InvalidSettings(f"min_age_seconds is {self.min_age_seconds:g}; it cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run on one repository: functions take this instead of its parts."""

    repository: Context
    engine: Engine
    options: GcOptions
    steps: RunSteps
    layout: RunLayout
    cutoff_ms: int = 0
    """Objects that were written later, by the store's clock, are left alone."""

    def move_to(self, engine: Engine) -> RunContext:
        """Return the run on another engine, between two steps."""
        self.steps.use_engine(engine)
        return replace(self, engine=engine)

    def with_seed(self, seed: int) -> RunContext:
        """Return the run with another seed of the addresses' keys."""
        return replace(self, layout=msgspec.structs.replace(self.layout, seed=seed))


def new_run(
    ctx: Context,
    engine: Engine,
    options: GcOptions,
    report_progress: ReportProgress,
    layout: RunLayout,
    *,
    controlled_as: str = "",
) -> RunContext:
    """`controlled_as`: the kind of run that operators see, and can stop; '': they cannot."""
    control = RunControl(ctx, layout.mark_id, controlled_as, owner()) if controlled_as else None
    steps = RunSteps(ctx.name, engine, report_progress, control)
    return RunContext(repository=ctx, engine=engine, options=options, steps=steps, layout=layout)


def owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
