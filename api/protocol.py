"""uvicorn's HTTP protocol with bounds on a request's head, which it has none for: neither on its size nor on the time it takes.

Without them a client that never ends its headers holds memory or a connection for ever, before anything asks who it is. What a
well-behaved client pays is one timer for each connection.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 64 << 10
"""Counted as they are read, some KiB at a time. A path has 1 KiB, user metadata 8, a token less than 4."""
HEAD_SECONDS: Final = 30.0
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    head_seconds: float = HEAD_SECONDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._in_body = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_body:
            self._head_bytes = 0
        elif self._head_bytes > HEAD_BYTES_MAX:
            if not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()
        elif self._head_bytes and self._head_timer is None and not self.transport.is_closing():
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._in_body = False
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _head_is_there(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
