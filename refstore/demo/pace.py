"""Short safety durations for the demo. Every process gets the same ones, through its environment."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Final

from refstore.core.safety import Safety
from refstore.core.settings import ENVIRONMENT_PREFIX, SETTINGS, LogSettings, ReaperSettings, Settings

SAFETY: Final = Safety(
    operation_deadline_seconds=15,
    io_timeout_seconds=5,
    clock_skew_seconds=1,
    recheck_after_seconds=5,
    scrub_after_seconds=21,
    grace_seconds=2,
    issue_seconds=10,
)
"""The same rules as in production, with shorter durations. No duration is shorter than the rules require."""

REAPER: Final = ReaperSettings(
    cycle_seconds=0.5,
    lease_seconds=5,
    scrub_every_seconds=3,
    batch_keys=500,
    breaker_share=1,  # the demo deletes most of what it writes, on purpose
)


def settings(stores: Settings, safety: Safety = SAFETY) -> Settings:
    """Return the settings in force with the demo's durations."""
    return dataclasses.replace(
        stores, safety=safety, safety_origins=None, reaper=REAPER, log=LogSettings(level="info", format="json")
    )


def environment(of: Settings, scratch: Path) -> dict[str, str]:
    """Return the environment of a process that must run with these settings only, whatever files exist."""
    empty = scratch / "empty.toml"
    empty.touch()
    found = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    found[ENVIRONMENT_PREFIX + "CONFIG"] = str(empty)
    for setting in SETTINGS.values():
        value: object = of
        for part in setting.name.split("."):
            value = getattr(value, part)
        if setting.name in ("kv", "objects") and of.data is not None:
            continue
        if value is not None:
            # texts
            found[setting.variable] = " ".join(value) if isinstance(value, tuple) else str(value)  # type: ignore[arg-type]
    for store, options in of.named_stores.items():
        found |= {f"REFSTORE_OBJECT_STORES_{store}_{name}".upper(): value for name, value in options.items()}
    return found
