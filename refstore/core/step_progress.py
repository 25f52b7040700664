"""How far a run of the reaper, the offline job or a purge is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a run is: each call of `report_progress` gets one."""

    repository: str
    """The repository in hand."""
    step: str
    """What is done there, such as `listing the object store`."""
    done_items: int = 0
    """Tasks, objects, or what else the step counts."""
    _: KW_ONLY
    done_bytes: int = 0
    """The bytes of these, where the step counts objects that it deletes and knows their sizes."""
    total_items: int | None = None
    """None: not known."""
    elapsed: timedelta = timedelta(0)
    """Since the step began."""
    wait: timedelta | None = None
    """How long the step still waits, if it only waits for operations that began before it. None: it does not."""

    @property
    def remaining(self) -> timedelta | None:
        """Return the rest of a wait, or estimate the rest by the speed so far. None: not known."""
        if self.wait is not None:
            return self.wait
        if not self.total_items or not self.done_items:
            return None
        return self.elapsed * (self.total_items - self.done_items) / self.done_items


ReportProgress = Callable[[StepProgress], None]


def ignore_progress(_: StepProgress) -> None:
    """Report to nobody."""
