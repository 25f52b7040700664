"""Who may read a lake that lies on a disk: its owner, or its group where the folder it lies in says so, and nobody
else.

A lake's folder holds the key that signs tokens, so whoever reads it can pass for anybody. Folders are made with mode
0700 and files with 0600, which no umask widens. A folder that was made for a group (setgid, and the group may write:
`install -d -m 2770 -g GROUP lake`) is shared: what is made in it gets 2770 and 0660, whatever the umask takes away.
Folders that are there already keep their modes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple


class FileModes(NamedTuple):
    folder: int
    file: int
    is_shared: bool
    """Whether a group shares the folder. Modes are set after the file is made then, because of the umask."""


PRIVATE_MODES: Final = FileModes(0o700, 0o600, is_shared=False)
SHARED_MODES: Final = FileModes(0o2770, 0o660, is_shared=True)
_OTHERS: Final = 0o007
_GROUP: Final = 0o070


def modes_for(folder: os.stat_result) -> FileModes:
    """Return the modes for new files and folders in the folder."""
    return SHARED_MODES if folder.st_mode & stat.S_ISGID and folder.st_mode & stat.S_IWGRP else PRIVATE_MODES


def make_folder(folder: Path) -> None:
    """Make the folder and those above it, as far as they are missing. Raises OSError."""
    missing_folders: list[Path] = []
    while not folder.exists():
        missing_folders.append(folder)
        folder = folder.parent
    if not missing_folders and not folder.is_dir():
        raise NotADirectoryError(20, os.strerror(20), str(folder))
    for below in reversed(missing_folders):
        modes = modes_for(below.parent.stat())
        with suppress(FileExistsError):  # another process was quicker
            below.mkdir(modes.folder)
            if modes.is_shared:
                below.chmod(modes.folder)


def find_exposed(places: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return the files and folders, with their modes, that others than their owner, or the group that shares them, can
    access.
    """
    return [(place, mode) for place in places if (mode := _exposed_mode(place)) is not None]


def _exposed_mode(place: Path) -> int | None:
    """Return the mode of a place that is open to others; None: it is not, or is not there."""
    try:
        status = place.stat()
        above = [parent.stat().st_mode for parent in place.resolve().parents]
        folder = status if stat.S_ISDIR(status.st_mode) else place.parent.stat()
    except OSError:
        return None
    for_others = status.st_mode & _OTHERS and all(mode & stat.S_IXOTH for mode in above)
    for_group = (
        status.st_mode & _GROUP
        and not modes_for(folder).is_shared
        and all(mode & (stat.S_IXGRP | stat.S_IXOTH) for mode in above)
    )
    return stat.S_IMODE(status.st_mode) if for_others or for_group else None
