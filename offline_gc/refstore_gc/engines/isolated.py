"""Do work in a process of its own, so that a crash of native code costs that piece of work, and nothing else.

Each process that must go on (this one, a Python worker of Spark) has one such process for each thread that calls at the
same time; it does one piece of work after the other. A helper of the local engine may end: then this process does its
share, in a process of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

from refstore.errors import Unavailable
from refstore_gc.engines.helper_processes import Helper, HelperEndedError

T = TypeVar("T")

TRIES: Final = 2
"""What ended the process may have been the work before, so the second try has a new one."""

_idle: Final[deque[Helper]] = deque()
"""What does no work at the moment."""
_may_end = threading.Event()
"""Set in a process that itself may crash."""


class CrashedError(Exception):
    """The process that did the work ended each time, such as by a crash of native code, or for want of memory."""

    def __init__(self, exit_code: int | None) -> None:
        """`exit_code`: as of `subprocess.Popen`: below 0 a signal's number."""
        super().__init__(exit_code)
        self.exit_code = exit_code


def call(work: Callable[[], T]) -> T:
    """Return what `work` returns in another process, or raise what it raises. Both are pickled.

    Raises CrashedError; Unavailable if no process can be started.
    """
    if _may_end.is_set():
        return work()
    exit_code: int | None = None
    for number in range(TRIES):
        helper = _ready(is_new=number > 0)
        try:
            result = helper.do(partial(_call, work), None)[0]
        except HelperEndedError:
            exit_code = _end(helper)
        except Exception:
            _idle.append(helper)
            raise
        except BaseException:  # its answer is still to come
            _end(helper)
            raise
        else:
            _idle.append(helper)
            return result
    raise CrashedError(exit_code)


def start_ahead(modules: Sequence[str]) -> None:
    """Start another process, which imports these modules, and go on meanwhile. Raises Unavailable."""
    if not _idle and not _may_end.is_set():
        _idle.append(_launched(modules))


def work_here() -> None:
    """From now on do all work in this process, which may end."""
    _may_end.set()


def stop() -> None:
    """End the other processes, but for those that do work at the moment. They also end with this process."""
    with suppress(IndexError):
        while True:
            _end(_idle.pop())


@contextmanager
def stop_new_after() -> Generator[None, None, None]:
    """End the processes that were started meanwhile, as `stop` does, and leave to others what they had started."""
    before = _idle.copy()
    try:
        yield
    finally:
        for helper in _idle.copy():
            if helper not in before:
                with suppress(ValueError):  # another thread has taken it
                    _idle.remove(helper)
                    _end(helper)


def _ready(*, is_new: bool) -> Helper:
    """Return another process that does nothing; start one, if there is none or `is_new`. Raises Unavailable."""
    helper = None
    if not is_new:
        with suppress(IndexError):
            helper = _idle.pop()
    helper = helper or _launched(())
    try:
        helper.wait_until_ready()
    except HelperEndedError as error:
        raise Unavailable(f"no process for reading files could be started: it ended with {_end(helper)}") from error
    return helper


def _launched(modules: Sequence[str]) -> Helper:
    try:
        return Helper(imported_ahead=modules)
    except OSError as error:
        raise Unavailable(f"no process for reading files could be started: {error}") from error


def _end(helper: Helper) -> int:
    helper.stop()
    return helper.process.returncode


def _call(work: Callable[[], T], _: None) -> list[T]:
    return [work()]
