"""How often Python's garbage collector looks for cycles while refstore makes very many small objects."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Final

ALLOCATIONS: Final = 200_000
"""A batch makes tens of thousands of small objects without cycles. With Python's default of 700 allocations the search
for cycles takes a quarter of the time of a reaper's pass.
"""


_lock: Final = Lock()
_thresholds: Final[list[tuple[int, int, int]]] = []
"""The process's own setting, once for each block that runs."""


@contextmanager
def collect_seldom() -> Generator[None, None, None]:
    """Make the collector look for cycles seldom while the block runs, in the whole process.

    Blocks of several threads may overlap: the last one that ends puts the process's own setting back.
    """
    with _lock:
        own = _thresholds[0] if _thresholds else gc.get_threshold()
        _thresholds.append(own)
        gc.set_threshold(ALLOCATIONS, *own[1:])
    try:
        yield
    finally:
        with _lock:
            _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*own)


def end_without_collecting() -> None:
    """Spare Python, which is about to end, the last search for cycles: in all that a command imported it takes up to a
    tenth of a second.
    """
    gc.freeze()
