"""Processes that take a share of the steps that the driver does itself, so that more than one of its cores works.

Spark's own processes would need 60 ms to begin a step, and more than a second the first time. Helpers are started once,
in the background, and wait for work until the session ends. The driver never waits for one to start: until one is
ready, it does everything by itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

from refstore.core import event_log, logs, python_gc
from refstore.core.settings import LogSettings

A = TypeVar("A")
T = TypeVar("T")

HELPERS_MAX: Final = 3
"""The driver's steps take a second or so, so more would not gain much; and each takes some 100 MB."""
_LOOK_SECONDS: Final = 0.01
_STOP_SECONDS: Final = 10.0
_IMPORTED_AHEAD: Final = ("refstore_gc.listing", "refstore_gc.live_in_commits")

_log = event_log.get_logger(__name__)


class Helper:
    """A process that does what it is sent. It ends when its connection does, so it does not outlive this process."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            # no child of `multiprocessing`: that runs the caller's main module again, or forks beside other threads
            self.process = subprocess.Popen(  # noqa: S603  # this Python, with a number
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._connection = ours
        self._is_ready = False
        self.has_ended = False

    def is_ready(self) -> bool:
        """Return whether the process takes work; wait a moment for that."""
        try:
            if not self._is_ready and self._connection.poll(_LOOK_SECONDS):
                self._is_ready = self._connection.recv()
        except (EOFError, OSError):
            self._note_end()
        return self._is_ready and not self.has_ended

    def do(self, work: Callable[[A], Iterable[T]], item: A) -> list[T]:
        """Return what `work` yields there, or raise what it raises; if the process ends, do it here."""
        try:
            self._connection.send((work, item))
            result, error = self._connection.recv()
        except (EOFError, OSError):
            self._note_end()
            return list(work(item))
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        self._connection.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _note_end(self) -> None:
        self.has_ended = True
        _log.warning("a helper process ended too early; the driver does its share of the work", pid=self.process.pid)


class Helpers:
    """The helpers of this process. One step at a time uses them."""

    def __init__(self) -> None:
        self._helpers: list[Helper] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start a helper for each other core, up to `HELPERS_MAX`, unless they run. Returns before they are ready."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with self._lock:
            try:
                while len(self._helpers) < min(HELPERS_MAX, cores - 1):
                    self._helpers.append(Helper())
            except OSError as error:
                _log.warning("no helper process could be started; the driver does all of the work", error=str(error))

    def stop(self) -> None:
        if not self._lock.acquire(timeout=_STOP_SECONDS):
            return  # a step was left open; the helpers end with this process
        try:
            while self._helpers:
                self._helpers.pop().stop()
        finally:
            self._lock.release()

    def share(self, work: Callable[[A], Iterable[T]], items: Sequence[A]) -> Generator[T, None, None]:
        """Yield what `work` yields for each item, in order. This process takes items from the front, helpers from the
        back.

        `work` and the items are pickled. Raises what `work` raises. Close the generator if it is not read to its end.
        """
        if not self._lock.acquire(blocking=False):
            for item in items:
                yield from work(item)
            return
        results: list[Future[list[T]]] = [Future() for _ in items]
        waiting = deque(zip(results, items, strict=True))
        try:
            with ThreadPoolExecutor(HELPERS_MAX, thread_name_prefix="refstore-gc-helper") as threads:
                for helper in self._helpers:
                    threads.submit(_serve, helper, work, waiting)
                try:
                    for result in results:
                        try:
                            own = waiting.popleft()  # what waits is one stretch: this is the result's own item
                        except IndexError:
                            own = None
                        yield from work(own[1]) if own else result.result()
                finally:
                    waiting.clear()
        finally:
            for helper in [each for each in self._helpers if each.has_ended]:
                self._helpers.remove(helper)
                helper.stop()
            self._lock.release()


def _serve(helper: Helper, work: Callable[[A], Iterable[T]], waiting: deque[tuple[Future[list[T]], A]]) -> None:
    """Let a helper take what waits, until nothing does."""
    while waiting and not helper.has_ended:
        if not helper.is_ready():
            continue
        try:
            result, item = waiting.pop()
        except IndexError:
            return
        try:
            result.set_result(helper.do(work, item))
        except BaseException as error:  # noqa: BLE001  # raised where the result is read
            result.set_exception(error)


helpers: Final = Helpers()
"""Of this process, as Spark's session is."""
atexit.register(helpers.stop)


def _help(connection: Connection) -> None:
    """Do what is sent, in the helper's own process, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends this process, too
    logs.configure(LogSettings(), sys.stderr)  # as the driver's by default, without passwords
    for module in _IMPORTED_AHEAD:
        import_module(module)
    with suppress(EOFError, OSError), python_gc.collect_seldom():
        connection.send(True)
        while True:
            work, item = connection.recv()
            answer: tuple[list[Any], Exception | None]
            try:
                answer = list(work(item)), None
            except Exception as error:  # noqa: BLE001  # raised in the driver
                answer = [], error
            connection.send(answer)


if __name__ == "__main__":
    _help(Connection(int(sys.argv[1])))
