"""A temporary folder that nobody else can read, and that a killed process does not leave for ever."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOCK: Final = "lock"
_NEW_LOCK: Final = "new-lock"


@contextmanager
def make_private_folder(prefix: str, parent: Path | None = None) -> Generator[Path, None, None]:
    """Make a folder for the block (mode 0700), and remove it afterwards. Those that killed processes left go first.

    `prefix`: what its name begins with. `parent`: where it is made; None: in the system's folder for temporary files.
    Raises OSError.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(prefix, parent)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with (folder / _NEW_LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # only now: others take a lock that nobody holds for one that was left
            (folder / _NEW_LOCK).rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove the folders whose lock nobody holds. One without a lock has just been made."""
    for lock in parent.glob(f"{prefix}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as opened:  # another user's, or in use
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
