"""Threads that switch where a test wants it: what is not atomic is caught at its weak step, not by luck."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")

PAUSES_MAX: Final = 400
"""A call of so few steps is paused at each of them."""
PAUSES_OF_LONG_CALLS: Final = 100
"""A longer call is paused at so many of its lines, evenly spread. It waits for a server or a disk somewhere; whoever
checks in one request and writes in another leaves room for many of these pauses in between.
"""
BLOCKED_SECONDS: Final = 0.005
"""A rival that has not come back by then waits for what the paused call holds, so the call goes on."""


@contextmanager
def switching_often() -> Generator[None]:
    """Switch threads between any two steps. At Python's own pace, a whole operation is over before another thread has
    its turn, lock or no lock.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Interleaving(Generic[A, B]):
    """Runs a call again and again, each time paused at another of its steps while a rival runs in a second thread.

    A step is a bytecode instruction of a short call, and a line of a long one. Only Python code has steps: what C code
    does is tested by many threads at once.
    """

    def __init__(self, call: Callable[[int], A], rival: Callable[[int], B]) -> None:
        """Both are given the number of the round, so that each round has a key of its own."""
        self._call = call
        self._rival = rival

    def rounds(self) -> Iterator[tuple[int, A, B]]:
        """Yield the number of each round, and what the call and its rival returned. Raises what they raise."""
        self._call(0)  # connections and caches are made once
        with ThreadPoolExecutor(1) as rivals:
            for number, (pause, kind) in enumerate(self._pauses(), start=2):
                result, answer = self._round(number, pause, kind, rivals)
                yield number, result, answer.result()

    def _pauses(self) -> Iterator[tuple[int, str]]:
        """Yield (how many steps to let pass, the kind of step)."""
        counted = {"opcode": 0, "line": 0}

        def count(kind: str) -> bool:
            counted[kind] += 1
            return True

        _trace_call(count, lambda: self._call(1))
        kind = "opcode" if counted["opcode"] <= PAUSES_MAX else "line"
        stride = 1 if counted[kind] <= PAUSES_MAX else -(-counted[kind] // PAUSES_OF_LONG_CALLS)
        return ((pause, kind) for pause in range(0, counted[kind], stride))

    def _round(self, number: int, pause: int, kind: str, rivals: ThreadPoolExecutor) -> tuple[A, Future[B]]:
        left = pause
        answer: Future[B] | None = None

        def step(of: str) -> bool:
            nonlocal left, answer
            if of != kind:
                return True
            if left:
                left -= 1
                return True
            answer = rivals.submit(self._rival, number)
            with suppress(NotYet):
                answer.exception(BLOCKED_SECONDS)
            return False

        result = _trace_call(step, lambda: self._call(number), opcodes=kind == "opcode")
        return result, answer or rivals.submit(self._rival, number)


def _trace_call(step: Callable[[str], bool], call: Callable[[], A], *, opcodes: bool = True) -> A:
    """Return `call()`; before each of its steps call `step` with its kind, until that returns False."""
    going_on = True

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal going_on
        if not going_on:
            return None
        frame.f_trace_opcodes = opcodes
        if event in ("opcode", "line"):
            going_on = step(event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)
