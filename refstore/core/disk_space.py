"""Know when a disk is full, and keep a reserve for those who make room.

Deleting needs a little room first: marks in the KV, the journal and the witness are written before an object goes. So
two things keep the last bytes of a disk for that. Uploads to a local store stop before the disk is full
(`has_reserved_bytes`). And a reaper keeps a file as a reserve, which it gives up when others have filled the disk
(`DiskReserve`).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
LAST_BYTES: Final = 32 << 20
"""What uploads leave free on a disk; of a small one 1/LAST_SHARE."""
LAST_SHARE: Final = 20


class DiskSpace(NamedTuple):
    """The room on the disk that a path lies on."""

    mount: str
    free_bytes: int
    """What this user may still write."""
    size_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """What is kept free for those who make room."""
        return min(LAST_BYTES, self.size_bytes // LAST_SHARE)

    def __str__(self) -> str:
        return f"{self.free_bytes:,} of {self.size_bytes:,} bytes are free at {self.mount}"


def disk_space_at(path: str | Path) -> DiskSpace:
    """Return the room on the disk of a path that exists. Raises OSError."""
    status = os.statvfs(path)
    return DiskSpace(_mount_of(path), status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def is_full(number: int | None) -> bool:
    """Return whether an error number of the system says that a disk or a quota is full."""
    return number in _FULL


def describe_full_disk(path: str | Path, number: int = errno.ENOSPC) -> str:
    """Return which disk is full, and what to do; for errors that began with what was tried."""
    try:
        which = str(disk_space_at(path))
    except OSError:
        which = f"that of {path}"
    what = "this user's quota on the disk is used up" if number == errno.EDQUOT else "the disk is full"
    return f"{what}: {which}; make room there, or let refstore reaper free what was deleted, then try again"


def has_reserved_bytes(descriptor: int) -> bool:
    """Return whether more is free on the disk of an open file than what is kept for those who make room."""
    status = os.fstatvfs(descriptor)
    last = min(LAST_BYTES, status.f_blocks * status.f_frsize // LAST_SHARE)
    return status.f_bavail * status.f_frsize >= last


class DiskReserve:
    """A file that takes room on a disk until somebody needs it to make more room. Several processes may share it."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.path = folder / "refstore-reserve"
        self._folder = folder
        self._size_bytes = size_bytes

    def release_if_full(self) -> DiskSpace | None:
        """Give the reserve up if the disk is nearly full. Return the room as it was before, if so. Raises OSError."""
        space = disk_space_at(self._folder)
        if space.free_bytes >= self._reserve_size(space):
            return None
        try:
            self.path.unlink()
        except FileNotFoundError:
            return None
        return space

    def make_if_room(self) -> bool:
        """Make the reserve if it is missing and twice its room is free. Return whether it was made. Raises OSError."""
        space = disk_space_at(self._folder)
        size_bytes = self._reserve_size(space)
        if not size_bytes or space.free_bytes < 2 * size_bytes or self.path.exists():
            return False
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False  # another process makes it
        try:
            os.posix_fallocate(file, 0, size_bytes)
        except OSError:
            with suppress(OSError):
                self.path.unlink()
            raise
        finally:
            os.close(file)
        return True

    def _reserve_size(self, space: DiskSpace) -> int:
        return min(self._size_bytes, space.size_bytes // LAST_SHARE)


def _mount_of(path: str | Path) -> str:
    here = Path(path).absolute()
    with suppress(OSError):
        device = here.stat().st_dev
        while here != here.parent and here.parent.stat().st_dev == device:
            here = here.parent
    return str(here)
