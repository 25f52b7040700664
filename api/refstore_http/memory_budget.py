"""Bound the bytes that a process holds for its clients: bodies that are received whole, documents that are parsed, and
answers that their clients have not taken yet.

A process has one `MemoryBudget`, and each request one `HeldBytes`, which says what the request holds at present. A key
may hold as much as is still free: one key gets half of the budget, two get a third each, and a further one always finds
room. Callers without a key share one account. Past that a request is refused (`SlowDown`), and holds nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Scope

from refstore_http.expensive_reads import ReadSlots
from refstore_http.http_errors import SlowDown, TooManyRequests

BUDGET_BYTES: Final = 192 << 20
UNCOUNTED_BYTES: Final = 64 << 10
"""What a request may hold without being counted. So short requests are never refused; the number of connections bounds
what they hold.
"""
DOCUMENT_FACTOR: Final = 2
"""A document is held as it came, and as what was parsed of it."""
PARSED_AT_ONCE: Final = 2
"""Large documents that are parsed at a time, one of each key: one of the largest takes some 30 MiB meanwhile."""
PARSE_WAIT_SECONDS: Final = 30.0
"""How long a document that has come waits for its turn."""
LARGE_BYTES: Final = 256 << 10
_HELD: Final = "held_bytes"
"""The name of a request's state."""
_KEY: Final = "key_id"
"""Likewise: the access key that was proven to be the caller's."""


class MemoryBudget:
    """What the requests of a process hold. Belongs to the event loop."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._left_bytes = budget_bytes
        self._held: Counter[str] = Counter()
        self._parse_slots = ReadSlots(PARSED_AT_ONCE, PARSED_AT_ONCE // 2)

    def count_held(self, key_id: str | None = None) -> int:
        """Return the bytes that one key holds, or all."""
        return self._held.total() if key_id is None else self._held[key_id]

    def open(self, scope: Scope) -> HeldBytes:
        """Return what the request holds, which is nothing yet; `held_of` finds it."""
        held = HeldBytes(self, scope)
        scope.setdefault("state", {})[_HELD] = held
        return held

    def take(self, key_id: str, size_bytes: int) -> None:
        """Take more for the key. Raises SlowDown."""
        left_bytes = self._left_bytes - size_bytes
        if self._held[key_id] + size_bytes > left_bytes:
            raise SlowDown(
                "the requests of this caller hold as much of the service's memory as they may; send fewer at a time, "
                "read their answers, and make this one again"
            )
        self._left_bytes = left_bytes
        self._held[key_id] += size_bytes

    def release(self, key_id: str, size_bytes: int) -> None:
        self._left_bytes += size_bytes
        self._held[key_id] -= size_bytes
        if not self._held[key_id]:
            del self._held[key_id]

    @asynccontextmanager
    async def parse_in_turn(self, key_id: str, size_bytes: int) -> AsyncGenerator[None, None]:
        """Wait until a document that has come may be parsed, in the block: the large ones of all keys take turns.
        Raises TooManyRequests.
        """
        if size_bytes <= LARGE_BYTES:
            yield
            return
        try:
            async with asyncio.timeout(PARSE_WAIT_SECONDS):
                await self._parse_slots.take(key_id)
        except (TimeoutError, TooManyRequests):
            raise TooManyRequests(
                f"too many documents of more than {LARGE_BYTES} bytes at a time; send fewer, or smaller ones"
            ) from None
        try:
            yield
        finally:
            self._parse_slots.release(key_id)


class HeldBytes:
    """What one request holds."""

    def __init__(self, budget: MemoryBudget, scope: Scope) -> None:
        self.budget = budget
        self._scope = scope
        self._key_id = ""
        self._size_bytes = 0

    def set(self, size_bytes: int) -> None:
        """Hold so many bytes from now on, instead of what was held before. Raises SlowDown."""
        counted = size_bytes if size_bytes > UNCOUNTED_BYTES else 0
        if not self._size_bytes:
            self._key_id = key_of(self._scope)
        if counted > self._size_bytes:
            self.budget.take(self._key_id, counted - self._size_bytes)
        elif counted < self._size_bytes:
            self.budget.release(self._key_id, self._size_bytes - counted)
        self._size_bytes = counted


def held_of(request: Request) -> HeldBytes:
    """Return what the request holds."""
    held: HeldBytes = request.scope["state"][_HELD]
    return held


def key_of(scope: Scope) -> str:
    """Return the key that was proven to be the caller's; '': nobody's yet."""
    state: dict[str, Any] = scope.get("state") or {}
    return state.get(_KEY) or ""
