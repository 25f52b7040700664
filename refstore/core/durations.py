"""Read and write durations as people do: `30s`, `15m`, `36h`, `7d`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from refstore.core.units import DAY_SECONDS
from refstore.errors import InvalidSettings

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])", re.ASCII)
_UNITS: Final = {"d": DAY_SECONDS, "h": 3600, "m": 60, "s": 1, "ms": 0.001}


def parse_duration(name: str, text: str, *, least: float = 1.0, most: float = 366 * DAY_SECONDS) -> float:
    """Return the seconds of a duration such as `90s`, `30m`, `6h` or `1d`; `0` is one, too.

    `name`: the option or setting, for the message. `least`, `most`: its bounds in seconds. Raises InvalidSettings.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if (match is None and text.strip() != "0") or not least <= seconds <= most:
        raise InvalidSettings(
            f"{name} {text!r} is no duration that fits; write a number and s, m, h or d, such as 6h, from "
            f"{write_duration(least)} to {write_duration(most)}"
        )
    return seconds


def read_duration(name: str, value: object, *, least: float = 0.0, most: float) -> float:
    """Return the seconds of what a program or a file gives: a `timedelta`, or a text as `parse_duration` reads it.

    Raises InvalidSettings.
    """
    if isinstance(value, timedelta):
        value = f"{value.total_seconds():f}s"
    if not isinstance(value, str):
        raise InvalidSettings(f"{name} is {value!r}; it must be a duration, such as '30s', '15m', '36h' or '7d'")
    return parse_duration(name, value, least=least, most=most)


def write_duration(seconds: float | timedelta) -> str:
    """Return a duration in the largest unit in which it is a whole number, such as `36h`; as `parse_duration` reads."""
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if not value:
        return "0"
    unit = next((unit for unit, size in _UNITS.items() if unit != "ms" and value % size == 0), "ms")
    return f"{value / _UNITS[unit]:.12g}{unit}"
