"""Processes that take a share of a local engine's work, so that more than one core of this machine works.

They are started once, when the work has shown that it takes longer than starting them, and wait for more until the
engine is closed. This process never waits for one to start: until one is ready, it does everything by itself. So a
small lake needs one process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, Queue
from typing import Any, Final, Generic, TypeVar

from refstore.core import event_log, logs, python_gc

A = TypeVar("A")
T = TypeVar("T")

START_AFTER_SECONDS: Final = 1.0
"""Starting a helper takes half a second of processor time."""
RESULTS_MAX: Final = 4
"""How many results of helpers wait for this process, at most: some MB each."""
_LOOK_SECONDS: Final = 0.01
_STOP_SECONDS: Final = 10.0
_IMPORTED_AHEAD: Final = ("refstore_gc.listing", "refstore_gc.live_in_commits")

_log = event_log.get_logger(__name__)


class HelperEndedError(Exception):
    """A helper ended before it answered."""


class Helper:
    """A process that does what it is sent. It ends when its connection does, so it does not outlive this process."""

    def __init__(self, *, imported_ahead: Sequence[str] = _IMPORTED_AHEAD, may_crash: bool = False) -> None:
        """`may_crash`: what crashes native code may do so there (`isolated.py`)."""
        ours, theirs = Pipe()
        with theirs:
            # no child of `multiprocessing`: that runs the caller's main module again, or forks beside other threads
            self.process = subprocess.Popen(  # noqa: S603  # this Python, with a number
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # Spark's has its files, too
            )
        ours.send((logs.set_up(), imported_ahead, may_crash))
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
        """Wait until the process takes work. Raises HelperEndedError."""
        while not self.is_ready():
            if self.has_ended:
                raise HelperEndedError

    def do(self, work: Callable[[A], Iterable[T]], item: A) -> list[T]:
        """Return what `work` yields there, or raise what it raises. Raises HelperEndedError."""
        self._is_working = True
        try:
            self._connection.send((work, item))
            results, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            self.has_ended = True
            raise HelperEndedError from ended
        self._is_working = False
        if error is not None:
            raise error
        return results

    def stop(self) -> None:
        """End the process: at once if it does nothing, else when it has done its work, for which this waits a while."""
        if not (self._is_working or self.has_ended):
            self.process.kill()  # it has nothing to lose, and Python takes a tenth of a second to end by itself
        self._connection.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Helpers:
    """The helpers of one engine. One call of `map` at a time uses them."""

    def __init__(self, amount: int, *, start_after_seconds: float = START_AFTER_SECONDS) -> None:
        """`start_after_seconds`: how long this process works alone before it starts helpers."""
        self.amount = amount
        self._start_after_seconds = start_after_seconds
        self._worked_seconds = 0.0
        self._helpers: dict[int, Helper] = {}
        self._lock = threading.Lock()

    def stop(self) -> None:
        if not self._lock.acquire(timeout=_STOP_SECONDS):
            return  # a call of `map` was left open; the helpers end with this process
        try:
            while self._helpers:
                self._helpers.popitem()[1].stop()
        finally:
            self._lock.release()

    def start_ahead(self, modules: Sequence[str], items: int) -> None:
        """Start the helpers that so many items take, and go on while they import these modules."""
        if self._lock.acquire(blocking=False):
            try:
                for number in range(min(self.amount, items - 1)):
                    if number not in self._helpers:
                        self._start(number, modules)
            finally:
                self._lock.release()

    def map(
        self, work: Callable[[A], Iterable[T]], items: Sequence[A], *, is_long: bool = False
    ) -> Generator[T, None, None]:
        """Yield what `work` yields for each item, in any order. This process takes items from the front, helpers from
        the back, and the memory for their results is bounded. `is_long`: helpers start at once.

        `work` and the items are pickled. Raises what `work` raises. Close the generator if it is not read to its end.
        """
        if not self._lock.acquire(blocking=False):
            for item in items:
                yield from work(item)
            return
        began = time.monotonic()
        self._worked_seconds += self._start_after_seconds * is_long
        shared: _Shared[A, T] = _Shared(work, items)
        serving = [
            threading.Thread(target=self._serve, args=(number, shared), name="refstore-gc-helper", daemon=True)
            for number in range(min(self.amount, len(items) - 1))
        ]
        for thread in serving:
            thread.start()
        try:
            yield from shared.results(len(serving))
        finally:
            shared.close()
            for thread in serving:
                thread.join()
            self._worked_seconds += time.monotonic() - began
            for number in [number for number, helper in self._helpers.items() if helper.has_ended]:
                self._helpers.pop(number).stop()
            self._lock.release()

    def _serve(self, number: int, shared: _Shared[Any, Any]) -> None:
        """Let a helper take items until none waits."""
        try:
            helper = self._helper(number, shared.nothing_waits)
            if helper is not None:
                shared.serve(helper)
                if helper.has_ended:
                    _log.warning(
                        "a helper process ended too early; this process does its share of the work",
                        pid=helper.process.pid,
                    )
        finally:
            shared.arrivals.put(None)

    def _helper(self, number: int, nothing_waits: threading.Event) -> Helper | None:
        """Return a helper, once the work has taken long enough; None: it has ended before, or none can be started."""
        if number not in self._helpers:
            if nothing_waits.wait(max(0.0, self._start_after_seconds - self._worked_seconds)):
                return None
            self._start(number, _IMPORTED_AHEAD)
        return self._helpers.get(number)

    def _start(self, number: int, modules: Sequence[str]) -> None:
        try:
            self._helpers[number] = Helper(imported_ahead=modules, may_crash=True)
        except OSError as error:
            _log.warning("no helper process could be started; this process does all of the work", error=str(error))


class _Shared(Generic[A, T]):
    """The items of one call of `map`, and the results that helpers have sent."""

    def __init__(self, work: Callable[[A], Iterable[T]], items: Sequence[A]) -> None:
        self._work = work
        self._waiting = deque(items)
        self._serving = 0
        self.nothing_waits = threading.Event()
        self.arrivals: Queue[list[T] | Exception | None] = Queue(RESULTS_MAX)
        """Results of one item, or its error. None: a thread serves no helper any more."""

    def results(self, serving: int) -> Generator[T, None, None]:
        """Do items, and yield what came of them and of the items of helpers. `serving`: the number of threads."""
        self._serving = serving
        while True:
            try:
                item = self._waiting.popleft()
            except IndexError:
                if not self._serving:
                    return
                self.nothing_waits.set()
                yield from self._received(self.arrivals.get())
                continue
            yield from self._work(item)
            with suppress(Empty):
                while True:
                    yield from self._received(self.arrivals.get_nowait())

    def serve(self, helper: Helper) -> None:
        """Let a helper take items until none waits. An item of a helper that ends waits again, for this process."""
        while self._waiting and not helper.has_ended:
            if not helper.is_ready():
                continue
            try:
                item = self._waiting.pop()
            except IndexError:
                return
            answer: list[T] | Exception
            try:
                answer = helper.do(self._work, item)
            except HelperEndedError:
                self._waiting.append(item)
                return
            except Exception as error:  # noqa: BLE001  # raised where the results are read
                answer = error
            self.arrivals.put(answer)

    def close(self) -> None:
        """Give up what waits, and wait until the threads have ended."""
        self._waiting.clear()
        self.nothing_waits.set()
        while self._serving:
            self._serving -= self.arrivals.get() is None

    def _received(self, answer: list[T] | Exception | None) -> list[T]:
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self._serving -= 1
            return []
        return answer


def _help(connection: Connection) -> None:
    """Do what is sent, in the helper's own process, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starter, which ends this process, too
    with suppress(EOFError, OSError), python_gc.collect_seldom():
        (settings, service), imported_ahead, may_crash = connection.recv()
        logs.configure(settings, sys.stderr, service=service)
        for module in imported_ahead:
            with suppress(ImportError):  # what needs it says so
                import_module(module)
        if may_crash:
            import_module("refstore_gc.engines.isolated").work_here()
        connection.send(True)
        while True:
            work, item = connection.recv()
            answer: tuple[list[Any], Exception | None]
            try:
                answer = list(work(item)), None
            except Exception as error:  # noqa: BLE001  # raised by the starter
                answer = [], error
            connection.send(answer)


if __name__ == "__main__":
    _help(Connection(int(sys.argv[1])))
