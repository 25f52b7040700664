"""The folder of ids: nobody else reads it, and it goes, also after a process that was killed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from refstore_gc.private_folder import make_private_folder
from refstore_purge.ids_file import FOLDER_PREFIX, ids_folder

KILLED = """
import os, signal
from refstore_purge.ids_file import ids_folder
with ids_folder() as folder:
    (folder / "ids").write_text("bob")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_only_its_owner_reads_it_and_it_goes_with_the_block(temporary: Path) -> None:
    with ids_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(temporary: Path) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    ran = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "PYTHONPATH": paths}, check=False, timeout=60
    )
    assert ran.returncode == -signal.SIGKILL
    (left,) = temporary.glob(f"{FOLDER_PREFIX}*")
    assert (left / "ids").read_text() == "bob"
    with ids_folder() as one:
        assert not left.exists()
        with ids_folder() as two:
            assert {one, two} == set(temporary.iterdir())


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
