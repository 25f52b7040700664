"""Give memory back to the system when a large block is freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache
from typing import Final

MAPPED_BYTES: Final = 1 << 20
"""Blocks that are as large are mapped one by one."""
_M_MMAP_THRESHOLD: Final = -3
"""Of glibc's `mallopt`."""


@lru_cache(maxsize=1)
def return_when_freed() -> None:
    """Let glibc return each large block of this process as it is freed. By itself it raises the limit with the blocks
    that it sees, and keeps what the largest ones leave between smaller ones. Another libc stays as it is.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
