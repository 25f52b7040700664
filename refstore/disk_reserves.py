"""The reserves of a lake: one on each disk of this machine that its KV or its objects lie on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from refstore.core import event_log
from refstore.core.disk_space import DiskReserve, DiskSpace, disk_space_at
from refstore.lake import Lake

_log = event_log.get_logger(__name__)


class DiskReserves:
    def __init__(self, lake: Lake, size_bytes: int) -> None:
        """`size_bytes`: of each reserve, and less on a small disk; 0: none."""
        self._reserves = [DiskReserve(folder, size_bytes) for folder in local_folders(lake)] if size_bytes else []

    def release_if_full(self) -> None:
        """Give up the reserve of each disk that is nearly full, so that marks and journals can be written."""
        for reserve in self._reserves:
            space = _try_reserve(reserve.release_if_full, reserve)
            if isinstance(space, DiskSpace):
                _log.warning("disk_reserve_released", disk=space.mount, free_bytes=space.free_bytes)

    def make_if_room(self) -> None:
        """Make the reserves that are missing where there is room."""
        for reserve in self._reserves:
            if _try_reserve(reserve.make_if_room, reserve):
                _log.info("disk_reserve_made", file=str(reserve.path))

    @contextmanager
    def release(self) -> Generator[None, None, None]:
        """Release the reserves of full disks for the block, and make them again where it has made room."""
        self.release_if_full()
        try:
            yield
        finally:
            self.make_if_room()


def local_folders(lake: Lake) -> list[Path]:
    """Return the folders of the lake on this machine, one for each disk."""
    folders: dict[int, Path] = {}
    for folder in (*(file.parent for file in lake.kv.local_files[:1]), lake.own_store.local_folder):
        if folder is not None:
            try:
                folders.setdefault(folder.stat().st_dev, folder)
            except OSError:
                continue  # whoever uses the store says what ails it
    return list(folders.values())


def disk_spaces(lake: Lake) -> list[DiskSpace]:
    """Return the room on the disks of the lake. Raises OSError."""
    return [disk_space_at(folder) for folder in local_folders(lake)]


def _try_reserve(act: Callable[[], DiskSpace | bool | None], reserve: DiskReserve) -> DiskSpace | bool | None:
    """A reserve that cannot be made or given up stops nobody."""
    try:
        return act()
    except OSError as error:
        _log.warning("disk_reserve_failed", file=str(reserve.path), error=str(error))
        return None
