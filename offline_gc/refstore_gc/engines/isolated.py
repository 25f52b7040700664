"""Do work in a process of its own, so that a crash of native code costs that piece of work, and nothing else.

Each process that must go on (this one, a Python worker of Spark) has one such process, which does one piece of work
after the other. A helper of the local engine may end: then this process does its share, in a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from refstore.errors import Unavailable
from refstore_gc.engines.helper_processes import Helper, HelperEndedError

T = TypeVar("T")

TRIES: Final = 2
"""What ended the process may have been the work before, so the second try has a new one."""

_lock: Final = threading.Lock()
_helpers: Final[list[Helper]] = []
"""None, or one."""
_may_end = threading.Event()
"""Set in a process that itself may crash."""


class CrashedError(Exception):
    """The process that did the work ended each time, such as by a crash of native code, or for want of memory."""

    def __init__(self, exit_code: int | None) -> None:
        """`exit_code`: as of `subprocess.Popen`: below 0 a signal's number."""
        super().__init__(exit_code)
        self.exit_code = exit_code


def call(work: Callable[[], T]) -> T:
    """Return what `work` returns in the other process, or raise what it raises. Both are pickled.

    Raises CrashedError; Unavailable if no process can be started.
    """
    if _may_end.is_set():
        return work()
    with _lock:
        exit_code: int | None = None
        for _ in range(TRIES):
            helper = _started()
            try:
                return helper.do(partial(_call, work), None)[0]
            except HelperEndedError:
                exit_code = _end()
        raise CrashedError(exit_code)


def start_ahead(modules: Sequence[str]) -> None:
    """Start the other process, which imports these modules, and go on meanwhile. Raises Unavailable."""
    with _lock:
        if not _helpers and not _may_end.is_set():
            _helpers.append(_launched(modules))


def work_here() -> None:
    """From now on do all work in this process, which may end."""
    _may_end.set()


def stop() -> None:
    """End the other process, if there is one. It also ends with this process."""
    with _lock:
        _end()


def _started() -> Helper:
    """Return the other process; start it, if there is none. Raises Unavailable."""
    if not _helpers:
        _helpers.append(_launched(()))
    try:
        _helpers[0].wait_until_ready()
    except HelperEndedError as error:
        raise Unavailable(f"no process for reading files could be started: it ended with {_end()}") from error
    return _helpers[0]


def _launched(modules: Sequence[str]) -> Helper:
    try:
        return Helper(imported_ahead=modules)
    except OSError as error:
        raise Unavailable(f"no process for reading files could be started: {error}") from error


def _end() -> int | None:
    if not _helpers:
        return None
    helper = _helpers.pop()
    helper.stop()
    return helper.process.returncode


def _call(work: Callable[[], T], _: None) -> list[T]:
    return [work()]
