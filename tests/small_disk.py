"""A disk of a few megabytes, for tests that fill it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *, size_mib: int) -> Generator[Path]:
    """Mount a file system in memory at a new folder. Skips the test where that is not permitted; fails in CI."""
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "refstore-test", str(folder))
    permitted = os.geteuid() == 0 and shutil.which("mount") is not None
    if not permitted or subprocess.run(command, check=False, capture_output=True).returncode:
        reason = f"needs root and the right to mount a file system of {size_mib} MiB"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def fill(folder: Path, *, leave_bytes: int = 0) -> Path:
    """Fill the disk of a folder, as another program does; return the file."""
    filler = folder / "filler"
    status = os.statvfs(folder)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - leave_bytes)
    return filler
