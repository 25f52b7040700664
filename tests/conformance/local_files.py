"""What the tests of the local store look at it with."""

from __future__ import annotations

from pathlib import Path

from refstore.core.clock import SystemClock


class Later(SystemClock):
    """A clock that is ahead."""

    def __init__(self, seconds: float) -> None:
        self._ahead_ms = int(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


def staged(directory: Path) -> list[Path]:
    return list((directory / ".tmp").iterdir()) if (directory / ".tmp").exists() else []
