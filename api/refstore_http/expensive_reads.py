"""Run expensive reads in slots and threads of their own, so that they delay neither other keys nor short requests.

A read waits in its key's line; keys take turns, and no key takes more than its share of the slots. It pauses for short
requests, ends when its client disconnects, and releases its slot when it has really stopped.
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
from typing import Final

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from refstore.core import deadline
from refstore.core.clock import Clock
from refstore_http.http_errors import ReadsBusy, TooManyRequests
from refstore_http.json_responses import make_response

WAITING_MAX: Final = 64
"""Reads of one key that may wait."""


class ReadSlots:
    """Count the slots in use, and queue the reads that wait for one. Belongs to the event loop."""

    def __init__(self, total_max: int, key_max: int, waiting_max: int = WAITING_MAX) -> None:
        self.total_max = total_max
        self.key_max = min(key_max, total_max)
        self.waiting_max = waiting_max
        self._in_use: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def count_used(self, key: str | None = None) -> int:
        """Return the slots in use by one key, or in total."""
        return self._in_use.total() if key is None else self._in_use[key]

    def count_waiting(self, key: str) -> int:
        return len(self._waiting.get(key, ()))

    async def take(self, key: str) -> None:
        """Wait for a slot and take it. Raises TooManyRequests."""
        if self.count_waiting(key) >= self.waiting_max:
            raise TooManyRequests(
                f"{self.waiting_max} reads of access key {key!r} are waiting already; run fewer listings, logs and "
                "diffs at a time"
            )
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(grant)
        self._grant_slots()
        try:
            await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled():
                self.release(key)  # the slot was granted just as the wait was cancelled
            else:
                self._stop_waiting(key, grant)
            raise

    def release(self, key: str) -> None:
        self._in_use[key] -= 1
        if not self._in_use[key]:
            del self._in_use[key]
        self._grant_slots()

    def _grant_slots(self) -> None:
        while self.count_used() < self.total_max:
            key = next((key for key in self._waiting if self._in_use[key] < self.key_max), None)
            if key is None:
                return
            grant = self._waiting[key].popleft()
            self._waiting.move_to_end(key)  # other keys come next
            if not self._waiting[key]:
                del self._waiting[key]
            if not grant.done():
                self._in_use[key] += 1
                grant.set_result(None)

    def _stop_waiting(self, key: str, grant: asyncio.Future[None]) -> None:
        line = self._waiting.get(key)
        if line is not None and grant in line:
            line.remove(grant)
            if not line:
                del self._waiting[key]


READ_SECONDS: Final = 30.0
"""How long such a read may wait for its turn, and how long it may take: clients give up then anyway."""
PAUSE_SECONDS_MAX: Final = 0.05
"""The longest pause of a read before it checks again whether its client is still there."""


class ShortRequestPriority:
    """Let short requests go first: a read pauses while one waits for a store, for at most as long as it has worked.

    One Python thread runs at a time, so a read that never pauses makes every short request wait several times.
    """

    def __init__(self) -> None:
        self._others = 0
        self.is_idle = Event()
        self.is_idle.set()

    @contextmanager
    def mark_short_request(self) -> Generator[None, None, None]:
        """Mark a short request as running for the block. Belongs to the event loop."""
        self._others += 1
        self.is_idle.clear()
        try:
            yield
        finally:
            self._others -= 1
            if not self._others:
                self.is_idle.set()

    def make_pause_check(self, abandoned: Event) -> Callable[[], bool]:
        """Return a function that a read calls often: it pauses for short requests, and says whether the read was
        abandoned.
        """
        began = time.monotonic()
        paused = 0.0

        def check() -> bool:
            nonlocal paused
            if not self.is_idle.is_set():
                at = time.monotonic()
                self.is_idle.wait(max(0.0, min(PAUSE_SECONDS_MAX, at - began - 2 * paused)))
                paused += time.monotonic() - at
            return abandoned.is_set()

        return check


class ExpensiveReads:
    def __init__(self, clock: Clock, at_once: int) -> None:
        """`at_once`: slots, of which one access key gets at most half."""
        self.priority = ShortRequestPriority()
        self.slots = ReadSlots(at_once, max(1, at_once // 2))
        self._clock = clock
        self._seconds = READ_SECONDS
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="refstore-read")

    async def run(self, request: Request, key: str, work: Callable[[], BaseModel | Response]) -> Response:
        """Run the read when a slot is free for the key. Raises ClientDisconnect, TooManyRequests, ReadsBusy,
        DeadlineExceeded.
        """
        disconnect = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await self._take_slot(key, disconnect)
            answered, give_up = self._begin_read(key, work)
            try:
                await asyncio.wait((answered, disconnect), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not answered.done():
                    give_up()
                    answered.add_done_callback(_consume_exception)
            if answered.done():
                return answered.result()
            with suppress(Exception):  # no client is left to answer
                await answered
            raise ClientDisconnect
        finally:
            disconnect.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def _take_slot(self, key: str, disconnect: asyncio.Task[None]) -> None:
        acquired = asyncio.create_task(self.slots.take(key))
        try:
            await asyncio.wait((acquired, disconnect), timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._release_slot(key, acquired)
            raise
        if acquired.done():
            acquired.result()
            return
        self._release_slot(key, acquired)
        if disconnect.done():
            raise ClientDisconnect
        raise ReadsBusy(f"no slot became free in {self._seconds:g} s; make the same call again, later")

    def _release_slot(self, key: str, acquired: asyncio.Task[None]) -> None:
        if acquired.done() and not acquired.cancelled() and acquired.exception() is None:
            self.slots.release(key)
        else:
            acquired.cancel()

    def _begin_read(
        self, key: str, work: Callable[[], BaseModel | Response]
    ) -> tuple[asyncio.Future[Response], Callable[[], None]]:
        """Start the read; return its future, and a function that abandons it. The slot is released when the read ends,
        even if nobody waits for it.
        """
        loop = asyncio.get_running_loop()
        abandoned = Event()

        def read() -> Response:
            with deadline.limit_reads(self._clock, self._seconds, self.priority.make_pause_check(abandoned)):
                deadline.check()
                result = work()
                return result if isinstance(result, Response) else make_response(result)

        def release_slot(_future: Future[Response]) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self.slots.release, key)

        try:
            future = self._pool.submit(contextvars.copy_context().run, read)
        except BaseException:
            self.slots.release(key)
            raise
        future.add_done_callback(release_slot)
        return asyncio.wrap_future(future), abandoned.set


def _consume_exception(future: asyncio.Future[Response]) -> None:
    """Fetch the exception, because asyncio warns about exceptions that nobody fetched."""
    if not future.cancelled():
        future.exception()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
