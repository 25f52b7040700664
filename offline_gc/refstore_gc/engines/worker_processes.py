"""Processes that take a share of an engine's work (`local.py`), and do what may crash native code (`call`).

A worker does one piece of work after the other, for whoever takes it; then it waits for the next one, until `stop`. It
may crash: that costs its piece of work, and nothing else. So what is called in a worker is done there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar

from refstore.configuration import logs
from refstore.core import python_gc
from refstore.core.child_processes import NOWHERE, Connection, Pipe, PythonProcess
from refstore.errors import Unavailable

A = TypeVar("A")
T = TypeVar("T")

TRIES: Final = 2
"""What ended the process may have been the work before, so the second try has a new one."""
_LOOK_SECONDS: Final = 0.01
_STOP_SECONDS: Final = 10.0


class WorkerEndedError(Exception):
    """A worker ended before it answered."""


class CrashedError(Exception):
    """The process that did the work ended each time, such as by a crash of native code, or for want of memory."""

    def __init__(self, exit_code: int | None) -> None:
        """`exit_code`: below 0 a signal's number."""
        super().__init__(exit_code)
        self.exit_code = exit_code


class Worker:
    """A process that does what it is sent. It ends when its connection does, so it does not outlive this process."""

    def __init__(self, imported_ahead: Sequence[str] = ()) -> None:
        ours, theirs = Pipe()
        with theirs:
            self.process = PythonProcess(_work, theirs, logs.current_setup(), imported_ahead, stdout=NOWHERE)
        self._connection = ours
        self._is_ready = False
        self._is_working = False
        self.has_ended = False

    def is_ready(self) -> bool:
        """Return whether the process takes work; wait a moment for that."""
        try:
            if not self._is_ready and self._connection.poll(_LOOK_SECONDS):
                self._is_ready = self._connection.recv()
        except (EOFError, OSError):
            self.has_ended = True
        return self._is_ready and not self.has_ended

    def wait_until_ready(self) -> None:
        """Wait until the process takes work. Raises WorkerEndedError."""
        while not self.is_ready():
            if self.has_ended:
                raise WorkerEndedError

    def do(self, work: Callable[[A], Iterable[T]], item: A) -> list[T]:
        """Return what `work` yields there, or raise what it raises. Raises WorkerEndedError."""
        self._is_working = True
        try:
            self._connection.send((work, item))
            results, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            self.has_ended = True
            raise WorkerEndedError from ended
        self._is_working = False
        if error is not None:
            raise error
        return results

    def stop(self) -> int:
        """End the process: at once if it does nothing, else when it has done its work, for which this waits a while.
        Return its exit code.
        """
        if not (self._is_working or self.has_ended):
            self.process.kill()  # it has nothing to lose, and Python takes a tenth of a second to end by itself
        self._connection.close()
        self.process.join(_STOP_SECONDS)
        self.process.kill()
        return self.process.wait()


# ---- the workers of this process

_idle: Final[deque[Worker]] = deque()
"""Those that do no work at the moment."""
_is_worker: Final = threading.Event()
"""Set in a process that is a worker itself."""


def start(modules: Sequence[str]) -> Worker:
    """Start a worker, which imports these modules, and go on meanwhile. Raises Unavailable."""
    try:
        return Worker(modules)
    except OSError as error:
        raise Unavailable(f"no worker process could be started: {error}") from error


def start_ahead(modules: Sequence[str], amount: int = 1) -> None:
    """See that so many workers wait for work, or will when they have imported these modules. Raises Unavailable."""
    while len(_idle) < amount and not _is_worker.is_set():
        _idle.append(start(modules))


def take_idle() -> Worker | None:
    """Take a worker that does nothing, if there is one; it may still be starting."""
    try:
        return _idle.pop()
    except IndexError:
        return None


def idle() -> list[Worker]:
    """Return the workers that do nothing."""
    return list(_idle)


def give_back(worker: Worker) -> None:
    """Let others have a worker that was taken or started; see to one that has ended."""
    if worker.has_ended:
        worker.stop()
    else:
        _idle.append(worker)


def call(work: Callable[[], T]) -> T:
    """Return what `work` returns in a worker, or raise what it raises. Both are pickled.

    Raises CrashedError; Unavailable if no process can be started.
    """
    if _is_worker.is_set():
        return work()
    exit_code: int | None = None
    for number in range(TRIES):
        worker = (take_idle() if number == 0 else None) or start(())
        try:
            worker.wait_until_ready()
        except WorkerEndedError as error:
            raise Unavailable(f"no worker process could be started: it ended with {worker.stop()}") from error
        try:
            result = worker.do(partial(_call, work), None)[0]
        except WorkerEndedError:
            exit_code = worker.stop()
        except Exception:
            give_back(worker)
            raise
        except BaseException:  # its answer is still to come
            worker.stop()
            raise
        else:
            give_back(worker)
            return result
    raise CrashedError(exit_code)


def stop() -> None:
    """End the workers, but for those that do work at the moment. They also end with this process."""
    while worker := take_idle():
        worker.stop()


@contextmanager
def stop_new_after() -> Generator[None, None, None]:
    """End the workers that were started meanwhile, as `stop` does, and leave to others what they had started."""
    before = idle()
    try:
        yield
    finally:
        for worker in idle():
            if worker not in before:
                with suppress(ValueError):  # another thread has taken it
                    _idle.remove(worker)
                    worker.stop()


def become_worker() -> None:
    """From now on do in this process, which may crash, what is called."""
    _is_worker.set()


def _call(work: Callable[[], T], _: None) -> list[T]:
    return [work()]


def _work(connection: Connection, log_setup: logs.LogSetup, imported_ahead: Sequence[str]) -> None:
    """Do what is sent, in the worker's own process, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starter, which ends this process, too
    with suppress(EOFError, OSError), python_gc.collect_seldom():
        # Arrow's own pool takes a gigabyte at once, within which no limit of the process's memory would hold
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        settings, service = log_setup
        logs.configure_logs(settings, sys.stderr, service=service)
        for module in imported_ahead:
            with suppress(ImportError):  # what needs it says so
                import_module(module)
        become_worker()
        connection.send(True)
        while True:
            work, item = connection.recv()
            answer: tuple[list[Any], Exception | None]
            try:
                answer = list(work(item)), None
            except Exception as error:  # noqa: BLE001  # raised by the starter
                answer = [], error
            connection.send(answer)
