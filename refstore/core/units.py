"""Add up sizes, and show sizes and durations to people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SUM_BYTES_MAX: Final = (1 << 63) - 1
"""A sum of sizes stops here: callers say how large staged objects are, and files and JSON hold no larger number."""

DAY_SECONDS: Final = 86_400
DAY_MS: Final = 1000 * DAY_SECONDS

_UNITS: Final = ("KB", "MB", "GB", "TB", "PB")
_AGES: Final = ((DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def sum_sizes(sizes: Iterable[int]) -> int:
    """Add up sizes, or what came and went; a sum that grows beyond `SUM_BYTES_MAX` stays there."""
    return max(-SUM_BYTES_MAX, min(sum(sizes), SUM_BYTES_MAX))


def format_bytes(size_bytes: int) -> str:
    """Return a sum of sizes in full, such as `1,500,000 bytes`."""
    return f"{_bound_prefix(size_bytes)}{size_bytes:,} bytes"


def _bound_prefix(size_bytes: int) -> str:
    if abs(size_bytes) < SUM_BYTES_MAX:
        return ""
    return "at least " if size_bytes > 0 else "at most "


def format_size(size_bytes: int) -> str:
    """Return a size in units of 1000, such as `1.5 MB`; of a sum that stopped growing, `at least` so much."""
    if abs(size_bytes) < 1000:
        return f"{size_bytes} B"
    shown = float(size_bytes)
    for unit in _UNITS:
        shown /= 1000
        if abs(shown) < 999.95 or unit == _UNITS[-1]:
            return f"{_bound_prefix(size_bytes)}{shown:,.1f} {unit}"
    raise AssertionError


def format_duration(seconds: float) -> str:
    """Return a duration in full, such as `1 h 2 min`."""
    left, parts = round(seconds * 1000), list[str]()
    for unit_ms, unit in _AGES:
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or f"{seconds:g} s"


def format_countdown(left_ms: int) -> str:
    """Return what is left of a wait, in hours, minutes and seconds, such as `1:02:03`."""
    minutes, seconds = divmod(-(-left_ms // 1000), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def format_age(since_ms: int) -> str:
    """Return a duration by its largest unit, such as `3 h`."""
    for unit_ms, unit in _AGES:
        if since_ms >= unit_ms:
            return f"{since_ms // unit_ms} {unit}"
    return "0 s"
