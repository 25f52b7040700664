"""Safety for tests whose processes wait in real time: as short as they bear, or nothing where nobody else is at
work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from refstore.agreed_durations import shared_seconds
from refstore.configuration.settings import ApiSettings, ReaperSettings, S3Settings
from refstore.core import deadline
from refstore.core.clock import Clock, SystemClock
from refstore.core.safety import Safety
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.lake_records import DurationsRecord
from tests.kit.short_durations import constants_environment

AT_ONCE = Safety(
    operation_deadline_seconds=0,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
)
"""Nobody else is at work, so there is nobody to wait for."""
AT_ONCE_WITHOUT_GRACE = replace(AT_ONCE, grace_seconds=0)
AT_ONCE_CONSTANTS = {name: 0.0 for name in Safety.__slots__ if getattr(AT_ONCE, name) == 0}
AT_ONCE_ENVIRONMENT = constants_environment({"Safety": AT_ONCE_CONSTANTS})
"""The same for a process."""


def set_constants(monkeypatch: pytest.MonkeyPatch, **constants: Mapping[str, float]) -> None:
    """Give this process, and those that it starts, other defaults of these classes' fields, such as
    `Safety={"issue_seconds": 60}`.
    """
    for kind in (Safety, ReaperSettings, ApiSettings, S3Settings):
        for name, value in constants.get(kind.__name__, {}).items():
            monkeypatch.setitem(cast(Any, kind.__init__).__kwdefaults__, name, value)
    for name, text in constants_environment(constants).items():
        monkeypatch.setenv(name, text)


COLLECTOR = Safety(
    operation_deadline_seconds=3,
    io_timeout_seconds=1.5,
    clock_skew_seconds=0,
    recheck_after_seconds=2,
    grace_seconds=1,
    issue_seconds=4,
)
"""So short that an offline run's wait, and the least age of what it takes, are six seconds."""
MAIN_JOB = Safety(
    operation_deadline_seconds=8,
    io_timeout_seconds=3,
    clock_skew_seconds=0,
    recheck_after_seconds=2,
    grace_seconds=1,
    issue_seconds=8,
)
"""Shorter than the demo's own, which somebody watches."""


def unchecked_lake(
    kv: str,
    objects: str,
    *,
    safety: Safety | None = None,
    clock: Clock | None = None,
    import_from: Sequence[str] = (),
) -> Lake:
    """Open a lake with durations that its other processes, if any, need not have agreed on, and set none for them."""
    clock = clock or SystemClock()
    opened = open_kv(kv, clock=clock, check=deadline.check)
    return Lake(opened, objects, clock=clock, safety=safety or Safety(), import_from=import_from)


def set_agreed(kv: str, safety: Safety) -> None:
    """Make these the agreed durations at once. Nobody else may be at work."""
    with unchecked_lake(kv, "memory://none") as lake:
        lake.kv.set(keys.DURATIONS, encode(DurationsRecord(shared_seconds(safety), "a-test", 0)))
