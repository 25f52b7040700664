"""What every handler has at hand: the lake, threads to wait for its stores in, and calls that share their round trips.

Handlers run on the event loop and never touch a store there: `run` does it in a thread. Requests that come together for one
branch are made as one bulk call (`Together`), so that a busy service does less work for each, not more.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Final, Generic, NamedTuple, Protocol, TypeVar

from fastapi import Depends, Request

from api.errors import NotSupported
from api.foreign import Foreign
from api.reads import Reads
from refstore import ids
from refstore.context import Context
from refstore.errors import Conflict, Gone, Invalid, NotFound, ObjectNotFound, RefstoreError
from refstore.flows.uploading import Link, Upload
from refstore.flows.viewing import AddressView
from refstore.imports import Imports
from refstore.lake import Lake
from refstore.records import Entry
from refstore.repository import Repository
from refstore.settings import ApiSettings

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
A = TypeVar("A")
R = TypeVar("R")

READINESS_SECONDS: Final = 1.0
TOGETHER_MAX: Final = 200
AT_ONCE: Final = 8
"""Bulk calls for one branch that may be under way."""
PATIENCE_SECONDS: Final = 0.02
"""How long a call waits for the one that is under way before it is made beside it: a slow one does not hold up all others. While
none is slow, one at a time does the least work for each."""


class Operations(Protocol):
    """What the reaper knows, passed in by whoever starts the service: the applications do not know each other."""

    def reaper_status(self, lake: Lake, repository: str | None) -> dict[str, object]:
        """As JSON has it."""
        ...

    def why(self, repository: Repository, address: str) -> tuple[AddressView, Sequence[WhyEvent]]: ...

    def reaper_metrics(self) -> bytes:
        """What the reaper beside the service counted, as Prometheus reads it; b'' where there is none."""
        ...

    def resume(self, ctx: Context, seconds: float | None, objects: int | None) -> str:
        """Let hard deletion go on; what its state is then, in words."""
        ...


class WhyEvent(Protocol):
    """A deletion of an address (`refstore.deletions.explain.Deletion`)."""

    @property
    def at_ms(self) -> int: ...
    @property
    def by(self) -> str: ...
    @property
    def run(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def reason(self) -> str: ...


class Place(NamedTuple):
    repository: str
    ref: str


class Found(NamedTuple):
    context: Context
    entry: Entry


class Linking(NamedTuple):
    """A link that is asked for."""

    path: str
    if_absent: bool
    item: Callable[[Context], Link]
    """Made where the repository is at hand: to look it up before would be one more wait for a store."""


class Service:
    def __init__(self, lake: Lake, settings: ApiSettings, operations: Operations | None = None) -> None:
        self.lake = lake
        self.settings = settings
        self._operations = operations
        self.foreign = Foreign(lake, settings)
        self.imports = Imports(self.foreign.stores, self.foreign.allowed, at_once=settings.imports_at_once)
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="refstore-api")
        self._bodies = ThreadPoolExecutor(settings.threads, thread_name_prefix="refstore-body")
        """Apart: an upload holds its thread for as long as its client takes."""
        self.reads = Reads(lake.clock, settings)
        self._looking = asyncio.Lock()
        self._readiness: tuple[float, dict[str, str]] | None = None
        """When the last look at the stores began, and what it found."""
        self._stats: Together[Place, str, Found | None] = Together(self.run, self._stat_many)
        self._links: Together[Place, Linking, Found] = Together(
            self.run, self._link_many, key=lambda item: item.path, again=(Invalid, NotFound)
        )
        self._uploads: Together[Place, Upload, Found] = Together(
            self.run, self._upload_many, key=lambda item: item.path, again=(Invalid, NotFound)
        )

    def reaper_metrics(self) -> bytes:
        """What the reaper beside the service counted; b'' where there is none."""
        return self._operations.reaper_metrics() if self._operations is not None else b""

    @property
    def operations(self) -> Operations:
        """Raises NotSupported."""
        if self._operations is None:
            raise NotSupported("this service was started without the reaper's room; ask where `refstore serve` runs")
        return self._operations

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in a thread, in this request's context."""
        with self.reads.way.taken():
            return await asyncio.get_running_loop().run_in_executor(self._pool, contextvars.copy_context().run, work)

    async def run_body(self, work: Callable[[], T]) -> T:
        """The same for what reads a request's body, which may take long."""
        return await asyncio.get_running_loop().run_in_executor(self._bodies, contextvars.copy_context().run, work)

    async def readiness(self, look: Callable[[Lake], dict[str, str]]) -> dict[str, str]:
        """What a look at the stores found, made at most once in READINESS_SECONDS, however many ask."""
        async with self._looking:
            now = self.lake.clock.monotonic_seconds()
            if self._readiness is None or now >= self._readiness[0] + READINESS_SECONDS:
                self._readiness = now, await self.run(lambda: look(self.lake))
            return self._readiness[1]

    async def repository(self, name: str, work: Callable[[Repository], T]) -> T:
        return await self.run(lambda: work(self.lake.repository(name)))

    async def read(self, request: Request, key: str, name: str, work: Callable[[Repository], T]) -> T:
        """`repository` for reads that may take long, by an access key: in slots of their own, and no longer than the client is there."""
        return await self.reads.make(request, key, lambda: work(self.lake.repository(name)))

    async def stat(self, repository: str, ref: str, path: str) -> Found:
        """Raises ObjectNotFound."""
        ids.object_path(path)  # here, so that one that is not valid fails nobody else's
        found = await self._stats.ask(Place(repository, ref), path)
        if found is None:
            raise ObjectNotFound(f"{path!r} is not on {ref!r}")
        return found

    async def link(self, repository: str, branch: str, item: Linking) -> Found:
        if item.if_absent:  # alone: made again it would find what it made itself
            return _one(await self.run(lambda: self._link_many(Place(repository, branch), [item])))
        return await self._links.ask(Place(repository, branch), item)

    async def upload(self, repository: str, branch: str, item: Upload) -> Found:
        """For bodies that are in memory."""
        if item.if_absent:  # likewise
            return _one(await self.run(lambda: self._upload_many(Place(repository, branch), [item])))
        return await self._uploads.ask(Place(repository, branch), item)

    async def upload_long(self, repository: str, branch: str, item: Upload) -> Found:
        """For one that is still on its way."""
        return _one(await self.run_body(lambda: self._upload_many(Place(repository, branch), [item])))

    def later(self, work: Callable[[], object]) -> None:
        """Do it in a thread, and do not wait for it."""
        with suppress(RuntimeError):  # the service is closing, and what is open closes with it
            self._pool.submit(work)

    def close(self) -> None:
        self.imports.close()
        self.foreign.stores.close()
        self.reads.close()
        self._pool.shutdown(cancel_futures=True)
        self._bodies.shutdown(cancel_futures=True)

    def _stat_many(self, place: Place, paths: Sequence[str]) -> Sequence[Found | None]:
        repo = self.lake.repository(place.repository)
        found = repo.stat_many(place.ref, list(dict.fromkeys(paths)))
        return [Found(repo.context, entry) if (entry := found.get(path)) is not None else None for path in paths]

    def _link_many(self, place: Place, items: Sequence[Linking]) -> Sequence[Found | RefstoreError]:
        repo = self.lake.repository(place.repository)
        linked = repo.link_each(place.ref, [item.item(repo.context) for item in items])
        return [entry if isinstance(entry, RefstoreError) else Found(repo.context, entry) for entry in linked]

    def _upload_many(self, place: Place, items: Sequence[Upload]) -> Sequence[Found | RefstoreError]:
        repo = self.lake.repository(place.repository)
        uploaded = repo.upload_each(place.ref, items)
        return [entry if isinstance(entry, RefstoreError) else Found(repo.context, entry) for entry in uploaded]


def _one(results: Sequence[Found | RefstoreError]) -> Found:
    (found,) = results
    if isinstance(found, RefstoreError):
        raise found
    return found


class _Place(Generic[A, R]):
    """What waits and what is under way for one key."""

    __slots__ = ("soon", "started", "timer", "under_way", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[A, asyncio.Future[R]]] = []
        self.under_way = 0
        self.started = 0.0
        """When the last call was."""
        self.timer: asyncio.TimerHandle | None = None
        self.soon = False
        """Whether a call will be begun when the event loop has seen to what is ready now."""


class Together(Generic[K, A, R]):
    """Calls for one key that are asked for while others are under way are made as one.

    Nobody waits for company: a call begins when the event loop has seen to what is ready now, and what comes meanwhile goes with the next,
    which begins when the first has ended and been answered, or has had its PATIENCE_SECONDS. (Who is answered often asks again at once, and
    goes along; begun before that there would be two groups by turns, and twice the calls.)

    A bulk call that fails by what one caller asked is made again one by one, so that each hears of its own mistake only; where a store
    fails, it fails for all of them. A result that is an error is its caller's.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], Sequence[R | RefstoreError]]], Awaitable[Sequence[R | RefstoreError]]],
        call: Callable[[K, Sequence[A]], Sequence[R | RefstoreError]],
        *,
        key: Callable[[A], Hashable] | None = None,
        again: tuple[type[RefstoreError], ...] = (Invalid, NotFound, Gone, Conflict),
    ) -> None:
        """`key`: what may stand in one call only once. `again`: the errors after which the call may be made again, one by one."""
        self._run = run
        self._call = call
        self._key = key
        self._again = again
        self._places: dict[K, _Place[A, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, place: K, item: A) -> R:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        state = self._places.get(place)
        if state is None:
            state = self._places[place] = _Place()
        state.waiting.append((item, future))
        if not state.under_way:
            self._start_soon(place, state)
        elif state.timer is None and state.under_way < AT_ONCE:
            state.timer = loop.call_at(state.started + PATIENCE_SECONDS, self._lose_patience, place, state)
        return await future

    def _start_soon(self, place: K, state: _Place[A, R]) -> None:
        if not state.soon:
            state.soon = True
            asyncio.get_running_loop().call_soon(self._start_now, place, state)

    def _start_now(self, place: K, state: _Place[A, R]) -> None:
        state.soon = False
        self._start(place, state)
        self._forget(place, state)

    def _start(self, place: K, state: _Place[A, R]) -> None:
        batch = self._take(state) if state.under_way < AT_ONCE else []  # else: when one of them has ended
        if not batch:
            return
        state.under_way += 1
        state.started = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._make(place, state, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lose_patience(self, place: K, state: _Place[A, R]) -> None:
        state.timer = None
        if state.waiting:
            self._start(place, state)

    def _take(self, state: _Place[A, R]) -> list[tuple[A, asyncio.Future[R]]]:
        waiting, state.waiting = state.waiting, []
        if self._key is None and len(waiting) <= TOGETHER_MAX:
            return [one for one in waiting if not one[1].done()]  # who is done has gone
        taken: list[tuple[A, asyncio.Future[R]]] = []
        seen: set[Hashable] = set()
        for item, future in waiting:
            if future.done():
                continue
            name = self._key(item) if self._key is not None else None
            if len(taken) >= TOGETHER_MAX or (name is not None and name in seen):
                state.waiting.append((item, future))
            else:
                taken.append((item, future))
                seen.add(name)
        return taken

    async def _make(self, place: K, state: _Place[A, R], batch: list[tuple[A, asyncio.Future[R]]]) -> None:
        try:
            try:
                results = await self._run(lambda: self._call(place, [item for item, _ in batch]))
            except self._again as error:
                if len(batch) == 1:
                    _fail(batch[0][1], error)
                else:
                    for one in batch:
                        await self._make_alone(place, one)
            except BaseException as error:  # noqa: BLE001  # its callers are who must hear of it
                for _, future in batch:
                    _fail(future, error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    _settle(future, result)
        finally:
            state.under_way -= 1
            if state.waiting:
                self._start_soon(place, state)
            self._forget(place, state)

    def _forget(self, place: K, state: _Place[A, R]) -> None:
        """Unless somebody waits, or is waited for."""
        if state.under_way or state.soon:
            return
        if state.timer is not None:
            state.timer.cancel()
        self._places.pop(place, None)

    async def _make_alone(self, place: K, one: tuple[A, asyncio.Future[R]]) -> None:
        item, future = one
        try:
            (result,) = await self._run(lambda: self._call(place, [item]))
        except BaseException as error:  # noqa: BLE001  # likewise
            _fail(future, error)
        else:
            _settle(future, result)


def _settle(future: asyncio.Future[R], result: R | RefstoreError) -> None:
    if isinstance(result, RefstoreError):
        _fail(future, result)
    elif not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


async def service_of(request: Request) -> Service:  # not a plain function: FastAPI would call that in a thread, for each request
    found: Service = request.app.state.service
    return found


ServiceOf = Annotated[Service, Depends(service_of)]
