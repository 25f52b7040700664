"""Give every handler the lake, threads in which to wait for its stores, and calls that share their round trips.

Handlers run on the event loop and never touch a store there; `run` does that in a thread. Requests for one branch that
come together become one bulk call (`RequestBatcher`), so a busy service does less work for each.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from refstore.configuration.settings import ApiSettings
from refstore.context import Context
from refstore.core import event_log, ids
from refstore.core.redaction import redact_text
from refstore.errors import Conflict, Gone, Invalid, NotFound, ObjectNotFound, RefstoreError
from refstore.lake import Lake
from refstore.operations.upload import Link, Upload
from refstore.public_types import Entry, stored_entry
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore.service.background_imports import BackgroundImports
from refstore_http.expensive_reads import ExpensiveReads
from refstore_http.memory_budget import MemoryBudget

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
A = TypeVar("A")
R = TypeVar("R")

THREADS: Final = 32
"""Requests that may wait for a store at the same time: more would wait in a store that small services use."""
IMPORTS_AT_ONCE: Final = 2
"""Imports that run at the same time. A third is told to come later: each lists for minutes, and fills memory."""
READINESS_SECONDS: Final = 1.0
BATCH_MAX: Final = 200
BATCHES_AT_ONCE: Final = 8
"""Bulk calls that may run for one branch."""
BATCH_DELAY_SECONDS: Final = 0.02
"""How long a call waits for the running one before it starts beside it, so that one slow call does not delay all. While
calls are fast, running one at a time does the least work. A call that may start waits as long at most for requests that
keep coming.
"""
QUIET_PASSES: Final = 3
"""How many passes of the event loop must bring no request before a call starts. What a client sent is read in one pass,
and has become a request when the third begins.
"""


_log = event_log.get_logger(__name__)


class BatchKey(NamedTuple):
    repository: str
    ref: str


class EntryInContext(NamedTuple):
    context: Context
    entry: StoredEntry


class LinkRequest(NamedTuple):
    """A request to link an address."""

    path: str
    if_absent: bool
    item: Callable[[Context], Link]
    """Makes the link once the repository is open: to open it earlier would cost one more round trip."""


class Service:
    def __init__(
        self,
        lake: Lake,
        settings: ApiSettings,
        reaper_metrics: Path | None = None,
    ) -> None:
        """`reaper_metrics`: the folder to which the reaper beside the service writes its metrics; None: there is
        none.
        """
        self.lake = lake
        self.settings = settings
        self.reaper_metrics = reaper_metrics
        self.imports = BackgroundImports(at_once=IMPORTS_AT_ONCE)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="refstore-api")
        self._bodies = ThreadPoolExecutor(THREADS, thread_name_prefix="refstore-body")
        """Threads of their own, because an upload holds its thread as long as its client takes."""
        self.reads = ExpensiveReads(lake.clock, settings.reads_at_once)
        self.memory = MemoryBudget()
        self._readiness_lock = asyncio.Lock()
        self._readiness: tuple[float, bool] | None = None
        """When the stores were probed last, and whether they answered."""
        self._stats: RequestBatcher[BatchKey, str, EntryInContext | None] = RequestBatcher(self.run, self._stat_many)
        self._links: RequestBatcher[BatchKey, LinkRequest, EntryInContext] = RequestBatcher(
            self.run, self._link_many, key=lambda item: item.path, retry_alone=(Invalid, NotFound)
        )
        self._uploads: RequestBatcher[BatchKey, Upload, EntryInContext] = RequestBatcher(
            self.run, self._upload_many, key=lambda item: item.path, retry_alone=(Invalid, NotFound)
        )

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work in a thread, in this request's context."""
        with self.reads.priority.mark_short_request():
            return await asyncio.get_running_loop().run_in_executor(self._pool, contextvars.copy_context().run, work)

    async def run_body(self, work: Callable[[], T]) -> T:
        """Run work that reads a request's body, which may take long, in a thread of its own pool."""
        return await asyncio.get_running_loop().run_in_executor(self._bodies, contextvars.copy_context().run, work)

    async def is_ready(self, probe: Callable[[Lake], Sequence[RefstoreError]]) -> bool:
        """Return whether the stores answer, probed at most once in READINESS_SECONDS for all callers. The log says when
        this changes, and why.
        """
        async with self._readiness_lock:
            now = self.lake.clock.monotonic_seconds()
            if self._readiness is None or now >= self._readiness[0] + READINESS_SECONDS:
                was_ready = self._readiness is None or self._readiness[1]
                faults = await self.run(lambda: probe(self.lake))
                self._readiness = now, not faults
                for fault in faults if was_ready else ():
                    _log.error("not_ready", code=fault.code, error=redact_text(str(fault)))
                if not was_ready and not faults:
                    _log.info("ready_again")
            return self._readiness[1]

    async def repository(self, name: str, work: Callable[[Repository], T]) -> T:
        return await self.run(lambda: work(self.lake.repository(name)))

    async def read(
        self, request: Request, key: str, name: str, work: Callable[[Repository], BaseModel | Response]
    ) -> Response:
        """Answer a read that may take long: in a slot of the access key, and only while its client is connected."""
        return await self.reads.run(request, key, lambda: work(self.lake.repository(name)))

    async def stat(self, repository: str, ref: str, path: str) -> EntryInContext:
        """Return the entry at a path. Raises ObjectNotFound."""
        ids.object_path(path)  # checked here, so that an invalid path does not fail other requests
        located = await self._stats.submit(BatchKey(repository, ref), path)
        if located is None:
            raise ObjectNotFound(f"{path!r} is not on {ref!r}")
        return located

    async def link(self, repository: str, branch: str, item: LinkRequest) -> EntryInContext:
        if item.if_absent:  # never batched: a repeated call would find its own entry
            return _single_result(await self.run(lambda: self._link_many(BatchKey(repository, branch), [item])))
        return await self._links.submit(BatchKey(repository, branch), item)

    async def upload(self, repository: str, branch: str, item: Upload) -> EntryInContext:
        """Upload an object whose body is in memory."""
        if item.if_absent or item.if_entry is not None:  # never batched, too
            return _single_result(await self.run(lambda: self._upload_many(BatchKey(repository, branch), [item])))
        return await self._uploads.submit(BatchKey(repository, branch), item)

    async def upload_long(self, repository: str, branch: str, item: Upload) -> EntryInContext:
        """Upload an object whose body is still arriving."""
        return _single_result(await self.run_body(lambda: self._upload_many(BatchKey(repository, branch), [item])))

    def run_later(self, work: Callable[[], object]) -> None:
        """Run the work in a thread without waiting for it."""
        with suppress(RuntimeError):  # the service is closing, and closes what is open
            self._pool.submit(work)

    def close(self) -> None:
        self.imports.close()
        self.reads.close()
        self._pool.shutdown(cancel_futures=True)
        self._bodies.shutdown(cancel_futures=True)

    def _stat_many(self, ref_key: BatchKey, paths: Sequence[str]) -> Sequence[EntryInContext | None]:
        repo = self.lake.repository(ref_key.repository)
        entries = repo.stat_many(ref_key.ref, list(dict.fromkeys(paths)))
        return [
            EntryInContext(repo.context, stored_entry(entry)) if (entry := entries.get(path)) is not None else None
            for path in paths
        ]

    def _link_many(self, ref_key: BatchKey, items: Sequence[LinkRequest]) -> Sequence[EntryInContext | RefstoreError]:
        repo = self.lake.repository(ref_key.repository)
        return _attach_context(repo, repo.link_each(ref_key.ref, [item.item(repo.context) for item in items]))

    def _upload_many(self, ref_key: BatchKey, items: Sequence[Upload]) -> Sequence[EntryInContext | RefstoreError]:
        repo = self.lake.repository(ref_key.repository)
        return _attach_context(repo, repo.upload_each(ref_key.ref, items))


def _attach_context(repo: Repository, results: Iterable[Entry | RefstoreError]) -> list[EntryInContext | RefstoreError]:
    return [
        each if isinstance(each, RefstoreError) else EntryInContext(repo.context, stored_entry(each))
        for each in results
    ]


def _single_result(results: Sequence[EntryInContext | RefstoreError]) -> EntryInContext:
    (result,) = results
    if isinstance(result, RefstoreError):
        raise result
    return result


class _BatchQueue(Generic[A, R]):
    """The waiting requests of one key, and its running calls."""

    __slots__ = ("running", "start_scheduled", "started", "timer", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[A, asyncio.Future[R]]] = []
        self.running = 0
        self.started = 0.0
        """When the last call started."""
        self.timer: asyncio.TimerHandle | None = None
        self.start_scheduled = False
        """Whether a call will start after the callbacks that are ready now."""


class RequestBatcher(Generic[K, A, R]):
    """Join requests for one key that arrive while others run into one bulk call.

    A call starts when the event loop has read what clients sent (QUIET_PASSES), which takes microseconds where only one
    asks. Requests that arrive while it runs go with the next call, which may start when the first has been answered, or
    after BATCH_DELAY_SECONDS. (Answered clients often ask again at once, and join. Starting earlier would split them
    into two alternating groups, with twice the calls.)

    A bulk call that fails because of one request is repeated for each request alone, so that each caller learns of its
    own mistake only. A failing store fails all of them. A result that is an error goes to its caller.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], Sequence[R | RefstoreError]]], Awaitable[Sequence[R | RefstoreError]]],
        call: Callable[[K, Sequence[A]], Sequence[R | RefstoreError]],
        *,
        key: Callable[[A], Hashable] | None = None,
        retry_alone: tuple[type[RefstoreError], ...] = (Invalid, NotFound, Gone, Conflict),
    ) -> None:
        """`key`: two requests with the same value never share a call. `retry_alone`: errors after which each request is
        repeated alone.
        """
        self._run = run
        self._call = call
        self._key = key
        self._retry_alone = retry_alone
        self._queues: dict[K, _BatchQueue[A, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return how many keys have requests that wait or run."""
        return len(self._queues)

    async def submit(self, key: K, item: A) -> R:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        state = self._queues.get(key)
        if state is None:
            state = self._queues[key] = _BatchQueue()
        state.waiting.append((item, future))
        if not state.running:
            self._start_soon(key, state)
        elif state.timer is None and state.running < BATCHES_AT_ONCE:
            state.timer = loop.call_at(state.started + BATCH_DELAY_SECONDS, self._start_without_waiting, key, state)
        return await future

    def _start_soon(self, key: K, state: _BatchQueue[A, R]) -> None:
        if not state.start_scheduled:
            state.start_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._start_when_quiet, key, state, len(state.waiting), 1, loop.time() + BATCH_DELAY_SECONDS)

    def _start_when_quiet(self, key: K, state: _BatchQueue[A, R], seen: int, quiet_passes: int, latest: float) -> None:
        """Start a call if QUIET_PASSES passes of the event loop have brought no request, or at `latest`; otherwise look
        again in the next pass.

        `seen`: how many requests waited in the pass before this one. `quiet_passes`: how many passes in a row have
        brought none, if this one has brought none, too. `latest`: in seconds of the loop's clock.
        """
        loop = asyncio.get_running_loop()
        waiting = len(state.waiting)
        if waiting > seen:
            quiet_passes = 0
        if quiet_passes < QUIET_PASSES and loop.time() < latest:
            loop.call_soon(self._start_when_quiet, key, state, waiting, quiet_passes + 1, latest)
            return
        state.start_scheduled = False
        self._start(key, state)
        self._drop_queue(key, state)

    def _start(self, key: K, state: _BatchQueue[A, R]) -> None:
        # with that many calls running, the next one starts when one of them has ended
        batch = self._take_batch(state) if state.running < BATCHES_AT_ONCE else []
        if not batch:
            return
        state.running += 1
        state.started = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._run_batch(key, state, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_without_waiting(self, key: K, state: _BatchQueue[A, R]) -> None:
        state.timer = None
        if state.waiting:
            self._start(key, state)

    def _take_batch(self, state: _BatchQueue[A, R]) -> list[tuple[A, asyncio.Future[R]]]:
        waiting, state.waiting = state.waiting, []
        if self._key is None and len(waiting) <= BATCH_MAX:
            return [request for request in waiting if not request[1].done()]  # a future that is done was cancelled
        batch: list[tuple[A, asyncio.Future[R]]] = []
        keys_in_batch: set[Hashable] = set()
        for item, future in waiting:
            if future.done():
                continue
            name = self._key(item) if self._key is not None else None
            if len(batch) >= BATCH_MAX or (name is not None and name in keys_in_batch):
                state.waiting.append((item, future))
            else:
                batch.append((item, future))
                keys_in_batch.add(name)
        return batch

    async def _run_batch(self, key: K, state: _BatchQueue[A, R], batch: list[tuple[A, asyncio.Future[R]]]) -> None:
        try:
            try:
                results = await self._run(lambda: self._call(key, [item for item, _ in batch]))
            except self._retry_alone as error:
                if len(batch) == 1:
                    _set_error(batch[0][1], error)
                else:
                    for one in batch:
                        await self._run_alone(key, one)
            except BaseException as error:  # noqa: BLE001  # the callers must get it
                for _, future in batch:
                    _set_error(future, error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    _set_result(future, result)
        finally:
            state.running -= 1
            if state.waiting:
                self._start_soon(key, state)
            self._drop_queue(key, state)

    def _drop_queue(self, key: K, state: _BatchQueue[A, R]) -> None:
        """Drop the key's queue, unless requests wait or calls run."""
        if state.running or state.start_scheduled:
            return
        if state.timer is not None:
            state.timer.cancel()
        self._queues.pop(key, None)

    async def _run_alone(self, key: K, one: tuple[A, asyncio.Future[R]]) -> None:
        item, future = one
        try:
            (result,) = await self._run(lambda: self._call(key, [item]))
        except BaseException as error:  # noqa: BLE001  # likewise
            _set_error(future, error)
        else:
            _set_result(future, result)


def _set_result(future: asyncio.Future[R], result: R | RefstoreError) -> None:
    if isinstance(result, RefstoreError):
        _set_error(future, result)
    elif not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
