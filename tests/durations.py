"""Safety for tests whose processes wait in real time: as short as they bear, or nothing where nobody else is at
work.
"""

from __future__ import annotations

from dataclasses import replace

from refstore.core.safety import Safety

AT_ONCE = Safety(
    operation_deadline_seconds=0,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
    scrub_after_seconds=0,
)
"""Nobody else is at work, so there is nobody to wait for."""
AT_ONCE_WITHOUT_GRACE = replace(AT_ONCE, grace_seconds=0)
AT_ONCE_ENVIRONMENT = {f"REFSTORE_{name.upper()}": "0" for name in Safety.__slots__ if getattr(AT_ONCE, name) == 0}
"""The same for a process."""

COLLECTOR = Safety(
    operation_deadline_seconds=3,
    io_timeout_seconds=1.5,
    clock_skew_seconds=0,
    recheck_after_seconds=2,
    scrub_after_seconds=5,
    grace_seconds=1,
    issue_seconds=4,
)
"""So short that an offline run's wait, and the least age of what it takes, are six seconds."""
MAIN_JOB = Safety(
    operation_deadline_seconds=8,
    io_timeout_seconds=3,
    clock_skew_seconds=0,
    recheck_after_seconds=2,
    scrub_after_seconds=11,
    grace_seconds=1,
    issue_seconds=8,
)
"""Shorter than the demo's own, which somebody watches."""
