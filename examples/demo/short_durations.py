"""Short durations for the demo: those of its lake, and the settings of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from refstore import Safety

SAFETY: Final = Safety(
    operation_deadline_seconds=10,
    io_timeout_seconds=4,
    clock_skew_seconds=1,
    grace_seconds=2,
    issue_seconds=8,
)
"""The same rules as in production, with shorter durations. A lake has them from its making on; only the grace window
is a setting.
"""


def environment(stores: Mapping[str, str], safety: Safety = SAFETY) -> dict[str, str]:
    """Return the environment of a process that must find these stores (`data`, or `kv` and `objects`)."""
    others = {name: value for name, value in os.environ.items() if name not in _STORES}
    settings = {
        **stores,
        "safety_grace": f"{safety.grace_seconds:g}s",
        "reaper_breaker_share": 1,  # the demo deletes most of what it writes, on purpose
        "log_level": "info",
    }
    return others | {f"REFSTORE_{name.upper()}": str(value) for name, value in settings.items()}


_STORES: Final = frozenset({"REFSTORE_DATA", "REFSTORE_KV", "REFSTORE_OBJECTS"})
"""Whoever runs the demo may have set others."""
