"""Short durations and other constants for the processes of a test, which each has from its beginning."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from refstore import Safety
from refstore.configuration.settings import ReaperSettings
from refstore.core.durations import write_duration
from refstore.core.safety import NO_SETTINGS

SAFETY: Final = Safety(
    operation_deadline_seconds=10,
    io_timeout_seconds=4,
    clock_skew_seconds=1,
    recheck_after_seconds=5,
    grace_seconds=2,
    issue_seconds=8,
)
"""The same rules as in production, with shorter durations."""

_REAPER: Final = {"pause_seconds": 0.5, "lease_seconds": 5.0, "scrub_every_seconds": 2.0}
REAPER: Final = ReaperSettings(
    pause_seconds=_REAPER["pause_seconds"],
    lease_seconds=_REAPER["lease_seconds"],
    scrub_every_seconds=_REAPER["scrub_every_seconds"],
    breaker_share=1,  # most of what is written is deleted, on purpose
)


def environment(stores: Mapping[str, str], safety: Safety = SAFETY) -> dict[str, str]:
    """Return the environment of a process that must find these stores (`data`, or `kv` and `objects`) and durations."""
    others = {name: value for name, value in os.environ.items() if name not in _STORES}
    settings = {
        **stores,
        "safety_grace": write_duration(safety.grace_seconds),
        "reaper_breaker_share": REAPER.breaker_share,
        "log_level": "info",
    }
    constants = {
        "Safety": {name: getattr(safety, name) for name in sorted(NO_SETTINGS)},
        "ReaperSettings": _REAPER,
        "S3Settings": {"multipart_seconds": safety.issue_seconds},
    }
    own = {f"REFSTORE_{name.upper()}": str(value) for name, value in settings.items()}
    return others | own | constants_environment(constants)


def constants_environment(constants: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return the variables of a process with constants of its own, by class and field."""
    folders = [str(Path(__file__).with_name("short_constants")), os.environ.get("PYTHONPATH", "")]
    return {"SHORT_CONSTANTS": json.dumps(constants), "PYTHONPATH": os.pathsep.join(filter(None, folders))}


_STORES: Final = frozenset({"REFSTORE_DATA", "REFSTORE_KV", "REFSTORE_OBJECTS"})
"""Whoever runs the tests may have set others."""
