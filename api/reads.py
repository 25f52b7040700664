"""Expensive reads: they have slots and threads of their own, so that they hold up neither each other's keys nor anything else.

A read waits for its turn in its key's line; keys take turns, and none has more than its share of the slots. It ends when its client has
gone, wherever it is, and gives its slot back when its thread has really stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from api.errors import Busy, TooManyRequests
from refstore import deadline
from refstore.clock import Clock
from refstore.settings import ApiSettings

T = TypeVar("T")

WAITING_MAX: Final = 64
"""Reads of one key that may wait for their turn."""
PAUSE_SECONDS_MAX: Final = 0.05
"""For which a read gives way before it looks whether its client is still there."""


class Turns:
    """Slots in use, and who waits for one. Belongs to the event loop."""

    def __init__(self, total_max: int, key_max: int, waiting_max: int = WAITING_MAX) -> None:
        self.total_max = total_max
        self.key_max = min(key_max, total_max)
        self.waiting_max = waiting_max
        self._in_use: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def in_use(self, key: str | None = None) -> int:
        """By one key, or in all."""
        return self._in_use.total() if key is None else self._in_use[key]

    def waiting(self, key: str) -> int:
        return len(self._waiting.get(key, ()))

    async def take(self, key: str) -> None:
        """Wait for a slot and take it. Raises TooManyRequests."""
        if self.waiting(key) >= self.waiting_max:
            raise TooManyRequests(
                f"{self.waiting_max} reads of access key {key!r} wait for their turn; make fewer listings, logs and differences at a time"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(key)  # it was this one's turn in the very moment in which it gave up
            else:
                self._leave(key, turn)
            raise

    def release(self, key: str) -> None:
        self._in_use[key] -= 1
        if not self._in_use[key]:
            del self._in_use[key]
        self._let_in()

    def _let_in(self) -> None:
        while self.in_use() < self.total_max:
            key = next((key for key in self._waiting if self._in_use[key] < self.key_max), None)
            if key is None:
                return
            turn = self._waiting[key].popleft()
            self._waiting.move_to_end(key)  # the others' turn
            if not self._waiting[key]:
                del self._waiting[key]
            if not turn.done():
                self._in_use[key] += 1
                turn.set_result(None)

    def _leave(self, key: str, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(key)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._waiting[key]


class Way:
    """Lets others go first: a read that looks up while another request waits for a store pauses, for at most as long as it has worked.

    (One Python thread runs at a time: a read that goes on would have every short request wait for it several times.)
    """

    def __init__(self) -> None:
        self._others = 0
        self.is_free = Event()
        self.is_free.set()

    @contextmanager
    def taken(self) -> Generator[None, None, None]:
        """While another request is at work; on the event loop."""
        self._others += 1
        self.is_free.clear()
        try:
            yield
        finally:
            self._others -= 1
            if not self._others:
                self.is_free.set()

    def looking_up(self, abandoned: Event) -> Callable[[], bool]:
        """What a read calls every now and then: gives way, and tells whether the read was abandoned."""
        began = time.monotonic()
        paused = 0.0

        def look_up() -> bool:
            nonlocal paused
            if not self.is_free.is_set():
                at = time.monotonic()
                self.is_free.wait(max(0.0, min(PAUSE_SECONDS_MAX, at - began - 2 * paused)))
                paused += time.monotonic() - at
            return abandoned.is_set()

        return look_up


class Reads:
    def __init__(self, clock: Clock, settings: ApiSettings) -> None:
        self.way = Way()
        self.turns = Turns(settings.reads_at_once, settings.reads_per_key or max(1, settings.reads_at_once // 2))
        self._clock = clock
        self._seconds = settings.read_seconds
        self._pool = ThreadPoolExecutor(settings.reads_at_once, thread_name_prefix="refstore-read")

    async def make(self, request: Request, key: str, work: Callable[[], T]) -> T:
        """Do it in a thread when it is this key's turn. Raises ClientDisconnect, TooManyRequests, Busy, DeadlineExceeded."""
        gone = asyncio.create_task(_wait_until_gone(request))
        try:
            await self._take_turn(key, gone)
            abandoned = Event()
            made = self._start(key, work, abandoned)
            try:
                await asyncio.wait((made, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not made.done():
                    abandoned.set()
                    made.add_done_callback(_hear)
            if made.done():
                return made.result()
            with suppress(Exception):  # nobody is left to hear of it
                await made
            raise ClientDisconnect
        finally:
            gone.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def _take_turn(self, key: str, gone: asyncio.Task[None]) -> None:
        turn = asyncio.create_task(self.turns.take(key))
        try:
            await asyncio.wait((turn, gone), timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._give_up(key, turn)
            raise
        if turn.done():
            turn.result()
            return
        self._give_up(key, turn)
        if gone.done():
            raise ClientDisconnect
        raise Busy(f"others' reads took more than {self._seconds:g} s (api.read_seconds); make the same call again, later")

    def _give_up(self, key: str, turn: asyncio.Task[None]) -> None:
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.turns.release(key)
        else:
            turn.cancel()

    def _start(self, key: str, work: Callable[[], T], abandoned: Event) -> asyncio.Future[T]:
        """The slot goes back when the thread is done, even where nobody waits for it."""
        loop = asyncio.get_running_loop()

        def read() -> T:
            with deadline.reading(self._clock, self._seconds, self.way.looking_up(abandoned)):
                deadline.check()
                return work()

        def released(_future: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and the slots with it
                loop.call_soon_threadsafe(self.turns.release, key)

        try:
            future = self._pool.submit(contextvars.copy_context().run, read)
        except BaseException:
            self.turns.release(key)
            raise
        future.add_done_callback(released)
        return asyncio.wrap_future(future)


def _hear(made: asyncio.Future[T]) -> None:
    """Else asyncio tells that nobody asked what became of it."""
    if not made.cancelled():
        made.exception()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
