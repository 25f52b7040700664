"""The local engine: this process and its workers, in bounded memory, without Java.

The work is shared with worker processes, so that more than one core of this machine works. They are started once the
work has shown that it takes longer than starting them. This process never waits for one to start: until one is ready,
it does everything by itself. So a small lake needs one process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final, Generic, Literal, TypeVar

from refstore.core import event_log
from refstore.errors import Unavailable
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.engines import worker_processes
from refstore_gc.engines.base import BatchStep, BatchStream, SharedFolder
from refstore_gc.engines.spill import FOLDER_PREFIX, BatchSpill, WaitingBatch, load_batches, translate_disk_errors
from refstore_gc.engines.worker_processes import Worker, WorkerEndedError
from refstore_gc.private_folder import make_private_folder

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


WORKERS_MAX: Final = 15
"""Each takes 100 MB, and up to 350 in a large lake."""
MEMORY_BYTES: Final = 64 * 1024 * 1024
"""How many bytes of batches wait in memory for their bucket: the keys of eight million addresses."""


class CancelledError(Exception):
    """The work was cancelled. `RunSteps` says why."""


class LocalEngine:
    """Implements `base.Engine`."""

    name: Literal["local"] = "local"
    is_on_one_machine = True

    def __init__(
        self,
        spill_folder: Path | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES,
        shared: SharedWork | None = None,
    ) -> None:
        """`spill_folder`: where batches lie that exceed `memory_bytes`. `shared`: None: for one worker a core."""
        self._spill_folder = spill_folder
        self._memory_bytes = memory_bytes
        self._shared = shared or SharedWork(min(WORKERS_MAX, _cores() - 1))
        self.parallelism = max(2, self._shared.workers + 1)
        self._tasks_done = self._tasks = 0
        self._is_cancelled = False

    def start_ahead(self, modules: Sequence[str], items: int) -> None:
        worker_processes.start_ahead(modules, min(self._shared.workers + 1, items))

    def map(
        self, work: Callable[[A], Iterable[T]], items: Sequence[A], *, is_long: bool = False
    ) -> Generator[T, None, None]:
        self._begin_call()
        yield from self._map(work, items, is_long=is_long)

    def join(
        self,
        flows: Sequence[BatchStream],
        buckets: int,  # noqa: ARG002  # it has no tasks to cut
        work: Callable[[list[Batch]], Iterable[T]],
    ) -> Iterator[T]:
        self._begin_call()
        spill = BatchSpill(self._spill_folder, self._memory_bytes)
        try:
            for flow in flows:
                self._spill_flow(flow, spill)
            yield from self._map(partial(_join_bucket, work), spill.buckets())
        finally:
            spill.close()

    @contextmanager
    def scratch_folder(self) -> Generator[Path, None, None]:
        with ExitStack() as stack:
            with translate_disk_errors(self._spill_folder):
                folder = stack.enter_context(make_private_folder(FOLDER_PREFIX, self._spill_folder))
            yield folder

    def share_folder(self, folder: Path) -> SharedFolder:
        return SharedFolder(str(folder))

    def remove_shared(self, shared: SharedFolder) -> None:
        """Leave the folder to the caller, whose own it is."""

    def count_tasks(self) -> tuple[int, int]:
        return self._tasks_done, self._tasks

    def cancel(self) -> None:
        self._is_cancelled = True

    def close(self) -> None:
        worker_processes.stop()

    def _begin_call(self) -> None:
        self._tasks_done = self._tasks = 0
        self._is_cancelled = False

    def _spill_flow(self, flow: BatchStream, spill: BatchSpill) -> None:
        if flow.step is None:
            for batch in flow.batches:
                spill.add(batch)
            return
        to_read: dict[int, list[Batch]] = {}
        for batch in self._map(partial(_apply_step, flow.step), [[each] for each in flow.batches]):
            if flow.second_step is not None and batch.kind is BatchKind.TO_READ:
                to_read.setdefault(batch.bucket, []).append(batch)
            else:
                spill.add(batch)
        if flow.second_step is not None:
            for batch in self._map(partial(_apply_step, flow.second_step), list(to_read.values())):
                spill.add(batch)

    def _map(
        self, work: Callable[[A], Iterable[T]], items: Sequence[A], *, is_long: bool = False
    ) -> Generator[T, None, None]:
        self._tasks += len(items)
        for result in self._shared.map(partial(_append_end, work), items, is_long=is_long):
            if self._is_cancelled:
                raise CancelledError
            if isinstance(result, _ItemEnd):
                self._tasks_done += 1
            else:
                yield result


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _ItemEnd:
    """Comes behind the results of an item."""


def _append_end(work: Callable[[A], Iterable[T]], item: A) -> Iterator[T | _ItemEnd]:
    yield from work(item)
    yield _ItemEnd()


def _apply_step(step: BatchStep, batches: list[Batch]) -> Iterator[Batch]:
    return step(batches)


def _join_bucket(work: Callable[[list[Batch]], Iterable[T]], batches: list[WaitingBatch]) -> Iterable[T]:
    return work(load_batches(batches))
