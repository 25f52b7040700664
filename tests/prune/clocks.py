"""Time that moves when a test says so, for runs: they ask the system's clock."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refstore.core.clock import SystemClock
from refstore.objects.base import Body, StoredObject
from refstore.objects.local import LocalObjects
from tests.kit.clock import FakeClock


@contextmanager
def moving_clock(wall_ms: int = 0) -> Generator[FakeClock, None, None]:
    """Let the wall clock of this process stand still but for what a test moves it."""
    clock = FakeClock(wall_ms) if wall_ms else FakeClock()

    def now_ms(_: SystemClock) -> int:
        return clock.now_ms()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now_ms", now_ms)
        yield clock


class FolderInTime(LocalObjects):
    """A folder whose files were written when its clock says so."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        super().__init__(root, fsync=False)
        self._now = clock

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        stored = super().put(key, body, if_absent=if_absent)
        at_ns = self._now.now_ms() * 1_000_000
        os.utime(self.local_folder / key, ns=(at_ns, at_ns))
        return stored
