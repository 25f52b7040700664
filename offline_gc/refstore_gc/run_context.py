"""What the functions of one run share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from refstore.context import Context
from refstore.errors import InvalidSettings
from refstore.objects.base import ObjectStore
from refstore.retention.rules import Rules
from refstore_gc.engines.base import Engine
from refstore_gc.mark_breaker import Limits
from refstore_gc.run_layout import RunLayout, store_at
from refstore_gc.run_progress import Steps
from refstore_gc.run_summary import Mode

GRACE_DAYS_MAX: Final = 3650


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run. Durations that safety rests on stand in `Safety`."""

    grace_days: float | None = None
    """Overrides the rules' grace."""
    min_age_seconds: float | None = None
    """Younger objects are left alone. None: a day. It is never less than the longest operation."""
    mode: Mode = "delete"
    limits: Limits = field(default_factory=Limits)
    foreign: bool = False
    """Whether objects in `data/` that refstore did not write are garbage, too."""
    full: bool = False
    """Whether the run lists and reads everything, although it could be incremental."""
    full_days: float = 7.0
    """How old the last complete run may be, for a run to be incremental."""
    take_over: bool = False
    """Whether to take over a run that is active, or died a moment ago, without waiting until it is stale."""
    rules: Rules | None = None
    """Replace the repository's own rules: for `simulate`."""

    def __post_init__(self) -> None:
        """Raises InvalidSettings."""
        if self.grace_days is not None and not 0 <= self.grace_days <= GRACE_DAYS_MAX:
            raise InvalidSettings(f"grace_days is {self.grace_days:g}; use 0 to {GRACE_DAYS_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run on one repository: functions take this instead of its parts."""

    repository: Context
    engine: Engine
    options: Options
    steps: Steps
    layout: RunLayout
    cutoff_ms: int = 0
    """Objects that were written later, by the store's clock, are left alone."""

    def move_to(self, engine: Engine) -> RunContext:
        """Return the run on another engine, between two steps."""
        self.steps.use(engine)
        return replace(self, engine=engine)

    @property
    def files(self) -> ObjectStore:
        """The store that holds the run's own files."""
        layout = self.layout
        return self.repository.objects if layout.files == layout.url else store_at(layout.files, layout)
