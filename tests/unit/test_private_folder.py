"""The temporary folders that nobody else can read."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from refstore_gc.private_folder import make_private_folder


def test_one_that_is_just_being_made_is_not_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else makes one just before the first is locked."""
    lock = fcntl.flock
    waiting = [True]

    def make_another_then_lock(*arguments: Any) -> None:
        if waiting:
            waiting.clear()
            with make_private_folder("ids-", tmp_path):
                pass
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", make_another_then_lock)
    with make_private_folder("ids-", tmp_path) as folder:
        assert folder.exists()
        assert [each.name for each in folder.iterdir()] == ["lock"]
