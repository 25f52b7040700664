"""Show sizes and durations to people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("KB", "MB", "GB", "TB", "PB")
_AGES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def size_shown(size_bytes: int) -> str:
    """Return a size in units of 1000, such as `1.5 MB`."""
    if abs(size_bytes) < 1000:
        return f"{size_bytes} B"
    shown = float(size_bytes)
    for unit in _UNITS:
        shown /= 1000
        if abs(shown) < 999.95 or unit == _UNITS[-1]:
            return f"{shown:,.1f} {unit}"
    raise AssertionError


def duration_shown(seconds: float) -> str:
    """Return a duration in full, such as `1 h 2 min`."""
    left, parts = round(seconds * 1000), list[str]()
    for unit_ms, unit in _AGES:
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or f"{seconds:g} s"


def countdown_shown(left_ms: int) -> str:
    """Return what is left of a wait, in hours, minutes and seconds, such as `1:02:03`."""
    minutes, seconds = divmod(-(-left_ms // 1000), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def age_shown(since_ms: int) -> str:
    """Return a duration by its largest unit, such as `3 h`."""
    for unit_ms, unit in _AGES:
        if since_ms >= unit_ms:
            return f"{since_ms // unit_ms} {unit}"
    return "0 s"
