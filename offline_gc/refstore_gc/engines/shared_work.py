"""The work of a local engine, shared with worker processes, so that more than one core of this machine works.

Workers are started once the work has shown that it takes longer than starting them. This process never waits for one to
start: until one is ready, it does everything by itself. So a small lake needs one process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, Final, Generic, TypeVar

from refstore.core import event_log
from refstore.errors import Unavailable
from refstore_gc.engines import worker_processes
from refstore_gc.engines.worker_processes import Worker, WorkerEndedError

A = TypeVar("A")
T = TypeVar("T")

START_AFTER_SECONDS: Final = 1.0
"""Starting a worker takes half a second of processor time."""
RESULTS_MAX: Final = 4
"""How many results of workers wait for this process, at most: some MB each."""
_IMPORTED_AHEAD: Final = ("refstore_gc.list_objects", "refstore_gc.live_in_commits")

_log = event_log.get_logger(__name__)


class SharedWork:
    """Shares the items of one call of `map` at a time with workers."""

    def __init__(self, workers: int, *, start_after_seconds: float = START_AFTER_SECONDS) -> None:
        """`workers`: how many at most. `start_after_seconds`: how long this process works alone first."""
        self.workers = workers
        self._start_after_seconds = start_after_seconds
        self._worked_seconds = 0.0
        self._lock = threading.Lock()

    def map(
        self, work: Callable[[A], Iterable[T]], items: Sequence[A], *, is_long: bool = False
    ) -> Generator[T, None, None]:
        """Yield what `work` yields for each item, in any order. This process takes items from the front, workers from
        the back, and the memory for their results is bounded. `is_long`: workers start at once.

        `work` and the items are pickled. Raises what `work` raises. Close the generator if it is not read to its end.
        """
        if not self._lock.acquire(blocking=False):
            for item in items:
                yield from work(item)
            return
        began = time.monotonic()
        self._worked_seconds += self._start_after_seconds * is_long
        shared: _Items[A, T] = _Items(work, items)
        serving = [
            threading.Thread(target=self._serve, args=(shared,), name="refstore-gc-worker", daemon=True)
            for _ in range(min(self.workers, len(items) - 1))
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
            self._lock.release()

    def _serve(self, shared: _Items[Any, Any]) -> None:
        """Let a worker take items until none waits."""
        try:
            worker = self._worker(shared.nothing_waits)
            if worker is not None:
                shared.serve(worker)
                if worker.has_ended:
                    _log.warning(
                        "a worker process ended too early; this process does its share of the work",
                        pid=worker.process.pid,
                    )
                worker_processes.give_back(worker)
        finally:
            shared.arrivals.put(None)

    def _worker(self, nothing_waits: threading.Event) -> Worker | None:
        """Return an idle worker, or a new one once the work has taken long enough. None: no item waits any more, or no
        worker can be started.
        """
        worker = worker_processes.take_idle()
        if worker is None and not nothing_waits.wait(max(0.0, self._start_after_seconds - self._worked_seconds)):
            try:
                worker = worker_processes.start(_IMPORTED_AHEAD)
            except Unavailable as error:
                _log.warning("this process does all of the work", error=str(error))
        return worker


class _Items(Generic[A, T]):
    """The items of one call of `map`, and the results that workers have sent."""

    def __init__(self, work: Callable[[A], Iterable[T]], items: Sequence[A]) -> None:
        self._work = work
        self._waiting = deque(items)
        self._serving = 0
        self.nothing_waits = threading.Event()
        self.arrivals: Queue[list[T] | Exception | None] = Queue(RESULTS_MAX)
        """Results of one item, or its error. None: a thread serves no worker any more."""

    def results(self, serving: int) -> Generator[T, None, None]:
        """Do items, and yield what came of them and of the items of workers. `serving`: the number of threads."""
        self._serving = serving
        while True:
            try:
                item = self._waiting.popleft()
            except IndexError:
                if not self._serving:
                    return
                self.nothing_waits.set()
                yield from self._take_answer(self.arrivals.get())
                continue
            yield from self._work(item)
            with suppress(Empty):
                while True:
                    yield from self._take_answer(self.arrivals.get_nowait())

    def serve(self, worker: Worker) -> None:
        """Let a worker take items until none waits. An item of a worker that ends waits again, for this process."""
        while self._waiting and not worker.has_ended:
            if not worker.is_ready():
                continue
            try:
                item = self._waiting.pop()
            except IndexError:
                return
            answer: list[T] | Exception
            try:
                answer = worker.do(self._work, item)
            except WorkerEndedError:
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

    def _take_answer(self, answer: list[T] | Exception | None) -> list[T]:
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self._serving -= 1
            return []
        return answer
