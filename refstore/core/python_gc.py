"""How often Python's garbage collector looks for cycles, in processes that are refstore's own."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

ALLOCATIONS: Final = 200_000
"""A batch makes tens of thousands of small objects without cycles. With Python's default of 700 allocations the search
for cycles takes a quarter of the time of a reaper's pass.
"""


@contextmanager
def collect_seldom() -> Generator[None, None, None]:
    """Make the collector look for cycles seldom while the block runs.

    The setting is the process's, so this is not for an embedded SDK.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def end_without_collecting() -> None:
    """Spare Python, which is about to end, the last search for cycles: in all that a command imported it takes up to a
    tenth of a second.
    """
    gc.freeze()
