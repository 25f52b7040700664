"""Parse durations: `90s`, `30m`, `6h`, `1d`."""

from __future__ import annotations

import re
from typing import Final

from refstore.core.units import DAY_SECONDS
from refstore.errors import InvalidSettings

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
_SECONDS_MIN: Final = 1.0


def duration_seconds(option: str, text: str, *, days_max: int = 366) -> float:
    """Return the seconds of an option such as `90s`, `30m`, `6h` or `1d`, from one second to `days_max` days. Raises
    InvalidSettings.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not _SECONDS_MIN <= seconds <= days_max * DAY_SECONDS:
        raise InvalidSettings(
            f"{option} {text!r} is no interval; write a number and s, m, h or d, such as 6h, from 1s to {days_max}d"
        )
    return seconds
