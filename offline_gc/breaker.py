"""The breaker: a mark that would take more than anybody expected is written, and not swept until an operator confirms it."""

from __future__ import annotations

from dataclasses import dataclass

from offline_gc.summary import Count, Summary
from refstore.errors import InvalidSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    share: float = 0.5
    """Of the repository's objects, or of their bytes. 1: never for this reason."""
    floor_objects: int = 10_000
    """Fewer than this are never asked about: half of a small repository is nothing unusual."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.floor_objects < 0:
            raise InvalidSettings(f"{self} makes no sense; the share is between 0 and 1, the floor not negative")


def question(limits: Limits, summary: Summary) -> str:
    """What an operator has to confirm; '' where nothing is unusual. Judged by what was listed, the young included."""
    seen, before = summary.listed + summary.young, summary.there_before
    there = Count(max(seen.objects, before.objects), max(seen.bytes, before.bytes))
    marked = summary.marked
    if marked.objects < limits.floor_objects or limits.share >= 1:
        return ""
    if marked.objects > limits.share * there.objects:
        return f"{marked.objects} of {there.objects} objects would go, more than a share of {limits.share:g}"
    if marked.bytes > limits.share * there.bytes:
        return f"{marked.bytes} of {there.bytes} bytes would go, more than a share of {limits.share:g}"
    return ""
