"""Short safety durations for the demo. Every process gets the same ones, through its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from refstore import Safety
from refstore.configuration.settings import ReaperSettings

SAFETY: Final = Safety(
    operation_deadline_seconds=10,
    io_timeout_seconds=4,
    clock_skew_seconds=1,
    recheck_after_seconds=5,
    scrub_after_seconds=15,
    grace_seconds=2,
    issue_seconds=8,
)
"""The same rules as in production, with shorter durations. No duration is shorter than the rules require."""

REAPER: Final = ReaperSettings(
    pause_seconds=0.5,
    lease_seconds=5,
    scrub_every_seconds=2,
    breaker_share=1,  # the demo deletes most of what it writes, on purpose
)


def environment(stores: Mapping[str, str], safety: Safety = SAFETY) -> dict[str, str]:
    """Return the environment of a process that must find these stores (`data`, or `kv` and `objects`) and durations."""
    others = {name: value for name, value in os.environ.items() if name not in _STORES}
    reaper = {f"reaper_{name}": value for name, value in asdict(REAPER).items() if value is not None}
    s3 = {"s3_multipart_seconds": safety.issue_seconds}
    settings = {**stores, **asdict(safety), **reaper, **s3, "log_level": "info", "log_format": "json"}
    return others | {f"REFSTORE_{name.upper()}": str(value) for name, value in settings.items()}


_STORES: Final = frozenset({"REFSTORE_DATA", "REFSTORE_KV", "REFSTORE_OBJECTS"})
"""Whoever runs the demo may have set others."""
