"""The breaker. A mark that takes more than anybody expected is written, and not swept until an operator confirms it."""

from __future__ import annotations

from dataclasses import dataclass

from refstore.errors import InvalidSettings
from refstore_gc.run_summary import GcSummary, ObjectCount


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    share_max: float = 0.5
    """Of the repository's objects, or of their bytes. 1: no mark needs confirmation."""
    floor_objects: int = 10_000
    """A mark of fewer objects needs no confirmation: half of a small repository is nothing unusual."""

    def __post_init__(self) -> None:
        if not 0 <= self.share_max <= 1 or self.floor_objects < 0:
            raise InvalidSettings(f"{self} makes no sense; the share is between 0 and 1, the floor not negative")


def confirmation_question(limits: BreakerLimits, summary: GcSummary) -> str:
    """Return what an operator has to confirm; '' where nothing is unusual. Young objects count as listed."""
    listed_now, before = summary.listed + summary.young, summary.previously_listed
    total = ObjectCount(max(listed_now.objects, before.objects), max(listed_now.bytes, before.bytes))
    marked = summary.marked
    if marked.objects < limits.floor_objects or limits.share_max >= 1:
        return ""
    if marked.objects > limits.share_max * total.objects:
        return f"{marked.objects} of {total.objects} objects would go, more than a share of {limits.share_max:g}"
    if marked.bytes > limits.share_max * total.bytes:
        return f"{marked.bytes} of {total.bytes} bytes would go, more than a share of {limits.share_max:g}"
    return ""
