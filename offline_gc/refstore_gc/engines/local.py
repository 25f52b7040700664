"""The local engine: this process and its workers, in bounded memory, without Java."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.engines import worker_processes
from refstore_gc.engines.base import BatchStep, Flow, SharedFolder
from refstore_gc.engines.shared_work import SharedWork
from refstore_gc.engines.spill import FOLDER_PREFIX, BatchSpill, WaitingBatch, load_batches, translate_disk_errors
from refstore_gc.private_folder import make_private_folder

A = TypeVar("A")
T = TypeVar("T")

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

    def join(self, flows: Sequence[Flow], buckets: int, work: Callable[[list[Batch]], Iterable[T]]) -> Iterator[T]:  # noqa: ARG002  # it has no tasks to cut
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

    def _spill_flow(self, flow: Flow, spill: BatchSpill) -> None:
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
