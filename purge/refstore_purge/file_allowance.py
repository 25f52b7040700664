"""What one file may cost who reads it: memory, and work. Both are bounded by its size.

A few bytes can stand for gigabytes: a compressed line, a run of equal values, a number that somebody made up. So a
file that takes more memory than `limit_memory` allows fails alone, whichever library reads it; and so does one that
holds more than `FileAllowance` does. Honest files are packed tightly, too, and the figures leave them room.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final

from refstore.core import large_blocks
from refstore_purge.purge_error import OtherMeansError
from refstore_purge.untyped_pandas import pa

MEMORY_BYTES: Final = 192 * 1024 * 1024
MEMORY_PER_BYTE: Final = 32
"""For each of its bytes a file may take so much besides: a footer of Parquet takes 50 times its size when it is taken
apart, and is a part of its file.
"""
NO_MEMORY: Final = (
    f"reading or writing it takes more memory than {MEMORY_BYTES >> 20} MiB and {MEMORY_PER_BYTE} times its size, or "
    "than there is: too much is packed into few bytes, or it is damaged; see to it by other means"
)
_STATM: Final = Path("/proc/self/statm")

UNPACKED_BYTES: Final = 32 * 1024 * 1024
UNPACKED_PER_BYTE: Final = 1_100
"""gzip makes at most 1,032 bytes of one."""
ROWS: Final = 1 << 22
ROWS_PER_BYTE: Final = 500
VALUES: Final = 1 << 25
VALUES_PER_BYTE: Final = 4_000
"""Of all columns: those that are the same in each row take hardly a byte."""


@contextmanager
def limit_memory(size_bytes: int) -> Generator[None, None, None]:
    """Let this process take no more memory than a file of this size may, besides what it has: where it would, it meets
    a MemoryError, or ends. Where the system does not count what a process has, as macOS, nothing is limited.
    """
    _prepare_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):
        wanted = _data_bytes() + MEMORY_BYTES + MEMORY_PER_BYTE * size_bytes
        limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(wanted, *limits, (1 << 63) - 1), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def raise_if_memory(error: Exception) -> None:
    """Raise MemoryError where the error of a library means that it got no memory: those of Arrow are also OSErrors, or
    tell so in words only.
    """
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        raise MemoryError from error


@lru_cache(maxsize=1)
def _prepare_memory() -> None:
    """Let Arrow take memory from the system, as workers do from their start (`worker_processes.py`): its own pool takes
    a gigabyte at once, whatever it has use for, and keeps what a file took.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    large_blocks.return_when_freed()


def _data_bytes() -> int:
    """Return how much of this process the limit counts. Raises OSError where the system does not tell."""
    return int(_STATM.read_text().split()[5]) * resource.getpagesize()


class FileAllowance:
    """Counts what a file holds, and raises PurgeError once that is out of proportion to its size."""

    def __init__(self, source: BinaryIO) -> None:
        at = source.tell()
        self._size = source.seek(0, os.SEEK_END)
        source.seek(at)
        self._counts = {"bytes": 0, "rows": 0, "values": 0}

    def add_unpacked(self, size_bytes: int) -> None:
        self._add("bytes", size_bytes, UNPACKED_BYTES, UNPACKED_PER_BYTE)

    def add_rows(self, rows: int) -> None:
        """Count rows, or lines."""
        self._add("rows", rows, ROWS, ROWS_PER_BYTE)

    def add_values(self, values: int) -> None:
        """Count values, of all columns."""
        self._add("values", values, VALUES, VALUES_PER_BYTE)

    def _add(self, what: str, amount: int, always: int, per_byte: int) -> None:
        self._counts[what] += amount
        if self._counts[what] > always + per_byte * self._size:
            raise OtherMeansError(
                f"it has {self._size:,} bytes and holds at least {self._counts[what]:,} {what}, which is more than "
                f"{always:,} and {per_byte:,} times its size"
            )
