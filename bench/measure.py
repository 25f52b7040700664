"""Series, rows and bars: what was measured, what it is compared with, and what is judged.

A series holds one number for each turn. A row's ratio is ours over the other side's, turn by turn, and its median is
judged: what slows the machine for a while slows both sides of a turn. Where a row compares what has no turns (memory,
counts), a series holds one number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

WORKER_SECONDS_MAX: Final = 1200.0


@dataclass(frozen=True, slots=True)
class Series:
    values: tuple[float, ...]
    unit: str

    @property
    def middle(self) -> float:
        return median(self.values)


@dataclass(frozen=True, slots=True)
class Bar:
    kind: Literal["at least", "at most"]
    limit: float

    def holds(self, ratio: float) -> bool:
        return ratio >= self.limit if self.kind == "at least" else ratio <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    ours: Series
    other: Series | None = None
    other_name: str = ""
    """The floor or peer."""
    bar: Bar | None = None
    """On the ratio; on our own number, where there is nothing to compare with."""
    note: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours over the other's, turn by turn."""
        if self.other is None:
            return ()
        if len(self.ours.values) == len(self.other.values):
            return tuple(ours / other for ours, other in zip(self.ours.values, self.other.values, strict=True))
        return (self.ours.middle / self.other.middle,)

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def judged(self) -> float:
        return self.ours.middle if self.ratio is None else self.ratio

    @property
    def passed(self) -> bool | None:
        """None: there is no bar."""
        return None if self.bar is None else self.bar.holds(self.judged)


def at_least(limit: float) -> Bar:
    return Bar("at least", limit)


def at_most(limit: float) -> Bar:
    return Bar("at most", limit)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(turns: int, *sides: Callable[[int], float]) -> list[tuple[float, ...]]:
    """What each side measured in each turn: A B A B ..., as (a, a, ...), (b, b, ...). A side is told which turn it
    is.
    """
    measured = [[side(turn) for side in sides] for turn in range(turns)]
    return [tuple(column) for column in zip(*measured, strict=True)]


def rates(count: int, seconds: Sequence[float], unit: str) -> Series:
    return Series(tuple(count / each for each in seconds), unit)


@contextmanager
def on_processor(which: int | None) -> Generator[None, None, None]:
    """What is started in the block runs on that one of the processors that may be used, -1 for the last; None: on
    any.
    """
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usable if which is None else {sorted(usable)[which]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@contextmanager
def on_processors(count: int) -> Generator[None, None, None]:
    """What is started in the block shares so many processors, fewer where there are not so many."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def in_fresh_process(worker: str, **arguments: object) -> dict[str, Any]:
    """What a worker of `bench/workers.py` measured, in a process that did nothing else before."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.workers", worker, json.dumps(arguments)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WORKER_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the worker {worker} ended with {done.returncode}: {done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_mib() -> float:
    """The largest resident set so far of this process, and of each of its children that still runs what it shares with
    nobody.

    A child runs the same Python, whose pages are in memory once. Not `ru_maxrss`: a process begins that with its
    parent's.
    """
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            children += (task / "children").read_text().split()
    return _kib("self", "status", "VmHWM:") / 1024 + sum(_unshared_kib(pid) for pid in children) / 1024


def resident_mib() -> float:
    """The resident set of this process."""
    return _kib("self", "status", "VmRSS:") / 1024


def forget_peak() -> None:
    """Let `peak_mib` know nothing of what this process has had so far; of its children's it still does."""
    Path("/proc/self/clear_refs").write_text("5")


def _unshared_kib(pid: str) -> int:
    return (
        _kib(pid, "status", "VmHWM:")
        - _kib(pid, "smaps_rollup", "Shared_Clean:")
        - _kib(pid, "smaps_rollup", "Shared_Dirty:")
    )


def _kib(pid: str, file: str, field: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError("this system does not say how much memory a process took; the benchmarks need Linux")
