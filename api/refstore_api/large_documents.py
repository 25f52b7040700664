"""Hold few large documents of clients at a time: bodies that are received and parsed as a whole (JSON, XML, forms).

Otherwise the holder of one key could fill the memory with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request

from refstore_api.error_responses import TooManyRequests
from refstore_api.expensive_reads import ReadSlots
from refstore_api.request_bodies import parse_content_length

LARGE_BYTES: Final = 256 << 10
AT_ONCE: Final = 8
"""Documents of a process; of one key half of them. To hold and parse one of the largest takes some 30 MiB."""
WAIT_SECONDS: Final = 30.0
"""How long one waits for its turn."""


class LargeDocuments:
    """The large documents that a process holds. Belongs to the event loop."""

    def __init__(self) -> None:
        self._slots = ReadSlots(AT_ONCE, AT_ONCE // 2)

    @asynccontextmanager
    async def hold(self, request: Request, key_id: str, bytes_max: int) -> AsyncGenerator[None, None]:
        """Receive and parse a document of at most `bytes_max` in the block. Where it may be a large one, keys take
        turns. Raises TooManyRequests.
        """
        declared = parse_content_length(request.headers.get("content-length"))
        may_have = bytes_max if declared is None else declared
        if not LARGE_BYTES < may_have <= bytes_max:  # one that may not be received is refused at once
            yield
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._slots.take(key_id)
        except (TimeoutError, TooManyRequests):
            raise TooManyRequests(
                f"too many documents of more than {LARGE_BYTES} bytes at a time; send fewer, or smaller ones"
            ) from None
        try:
            yield
        finally:
            self._slots.release(key_id)
