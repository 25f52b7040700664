"""Tell a file from another one that has its name later, or its inode.

A file system may give a new file the inode of one that was removed, so device and inode do not suffice; the time at
which the file was made does. Python reads it on macOS only, so on Linux this calls statx(2) of the C library, which
opens no descriptor: closing one would drop the locks that SQLite holds on the file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_BUFFER_BYTES: Final = 256
_BTIME_OFFSET: Final = 80
"""Of `stx_btime` in `struct statx`: seconds as a signed 64-bit number, then nanoseconds in 32 bits."""


def read_file_identity(path: Path) -> str:
    """Return what identifies the file itself: device, inode, and when it was made, '0' where that is not known. Raises
    OSError.
    """
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}:{_made_ns(path, status)}"


def _made_ns(path: Path, status: os.stat_result) -> int:
    made = getattr(status, "st_birthtime", None)
    if made is not None:
        return round(made * 1e9)
    statx = _statx()
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return 0
    mask = int.from_bytes(buffer.raw[:4], sys.byteorder)
    if not mask & _STATX_BTIME:
        return 0
    seconds = int.from_bytes(buffer.raw[_BTIME_OFFSET : _BTIME_OFFSET + 8], sys.byteorder, signed=True)
    return seconds * 1_000_000_000 + int.from_bytes(buffer.raw[_BTIME_OFFSET + 8 : _BTIME_OFFSET + 12], sys.byteorder)


@cache
def _statx() -> Any:
    """Return the C library's function; None where it has none (macOS, Windows, glibc before 2.28)."""
    try:
        return ctypes.CDLL(None).statx
    except (OSError, TypeError, AttributeError):
        return None
