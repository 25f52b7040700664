"""Count what runs at the same time, in total and for each key, and let keys take turns."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Final

from refstore_http.http_errors import TooManyRequests

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
