"""Bound what uvicorn's HTTP protocol does not: the bytes around a body, the time without progress, the connections.

Without these bounds a client could hold memory or a connection for ever, before anything authenticates it. It would
only have to never end its headers or trailers, or to read no answer. The bounds cost two timers per connection, and
none per request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from refstore.configuration.settings import ApiSettings
from refstore.core import event_log
from refstore_http.connection_slots import ConnectionSlots, ProxyNetworks, connection_slots, plain_address
from refstore_http.request_bodies import DROPPED_BODY, has_body
from refstore_http.request_origin import TARGET_HOST, host_of_target

HEAD_BYTES_MAX: Final = 64 << 10
"""The largest head, and the largest trailers of a body. A path takes 1 KiB, user metadata 8, a token less than 4."""
HEAD_SECONDS: Final = 30.0
PIPELINED_MAX: Final = 16
"""Requests that may wait on one connection for earlier answers; each may cost a hundred times its bytes."""
LINGER_SECONDS: Final = 5.0
"""How long a client may take to end a request that was answered already. The rest is discarded, so that the client can
read the answer (RFC 9112, 9.6). If the request ends in time, the connection stays open: a body often arrives just after
an answer that did not need it.
"""
IDLE_CHECKS: Final = 4
"""How often a connection is checked within `idle_seconds`."""
_FIELD_BYTES: Final = 4
"""Counted for each header line, in addition to its name and value."""
_RESET: Final = struct.pack("ii", 1, 0)
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
)

_log = event_log.get_logger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """Speak HTTP on one connection, within bounds; `make_protocol` makes the class that a server uses."""

    slots: ConnectionSlots
    proxies: ProxyNetworks
    idle_seconds: float
    head_seconds: float = HEAD_SECONDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._field_bytes = 0
        """Bytes parsed of the request's head, or of its trailers."""
        self._unread_bytes = 0
        """Bytes since the last piece of a body, or since the end of a head or a request: what the parser may hold."""
        self._in_body = False
        self._is_upgrade = False
        """Whether the last request asked for another protocol. httptools does not parse the body of such a request: it
        would take the body for the next request.
        """
        self._linger_timer: asyncio.TimerHandle | None = None
        """Runs while a request that was answered has not ended."""
        self._answered_cycle: RequestResponseCycle | None = None
        """The request whose answer is under way, or was last."""
        self._slot: str | None = None
        """The address that this connection's slot is counted for."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._state: tuple[int, int] = (0, 0)
        self._last_progress_at = 0.0

    def take_slot(self, address: str) -> bool:
        """Take a slot for the connection, before its TLS handshake; return False if there is none."""
        address = plain_address(address)
        if not self.slots.take(address, shared=address in self.proxies):
            return False
        self._slot = address
        return True

    def release_slot(self) -> None:
        if self._slot is not None:
            self.slots.release(self._slot, shared=self._slot in self.proxies)
            self._slot = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        if self._slot is None and not self.take_slot(str(peer[0]) if peer else ""):
            self.transport = transport
            transport.write(_TOO_MANY)
            transport.close()
            return
        super().connection_made(transport)
        if self.client is not None and self._slot is not None:
            self.client = self._slot, self.client[1]
        self._last_progress_at = self.loop.time()
        self._schedule_idle_check()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnect_answer()
        self._head_complete()
        self._stop_lingering()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.release_slot()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._is_upgrade:
            return
        self._unread_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread_bytes > HEAD_BYTES_MAX:
            self._refuse()
        elif self._unread_bytes and not self._in_body and self._head_timer is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        self._field_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_bytes(len(name) + len(value) + _FIELD_BYTES)
        if not self._in_body:  # otherwise it is a trailer, which nobody needs and which would pass for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _RequestRefused
        self._head_complete()
        self._unset_keepalive_if_required()  # the segment may have begun with the end of a request answered before
        self._field_bytes = 0
        self._in_body = True
        parser: Any = self.parser
        self._is_upgrade = parser.should_upgrade()
        if self._is_upgrade:
            self.app = self._answer_last_request
        named = host_of_target(self.url)
        if named is not None:
            self.scope["extensions"] = {TARGET_HOST: {"host": named}}
        super().on_headers_complete()
        if self._is_upgrade:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        self._in_body = self._is_upgrade  # until the connection closes, because nobody finds the end of the body
        super().on_message_complete()
        if self._linger_timer is not None:
            self._stop_lingering()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # uvicorn's own timer stops with the next byte, and no other starts
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refuses, and log whom; uvicorn calls it for our own refusals, too."""
        if self._field_bytes > HEAD_BYTES_MAX or len(self.pipeline) >= PIPELINED_MAX:
            self._refuse()
        else:
            self._log_refusal("not_http")
            super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing more than the request's own line: an upgrade is optional, and many clients offer one."""

    async def _answer_last_request(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application for a request that asks for an upgrade, and tell it whether a body was dropped.

        The upgrade is ignored, as RFC 9110, 7.8 allows. The answer says that the connection closes. uvicorn would close
        it with the answer's last byte, and a client that still sends might lose the answer; the linger timer closes it.
        """

        application: Any = self.config.loaded_app  # type: ignore[misc]  # uvicorn's annotation is incomplete

        async def sending(message: Any) -> None:
            await send(message)
            self.cycle.keep_alive = True  # the head of the answer has said "close"

        if has_body(scope["headers"]):
            scope["extensions"] = {**scope.get("extensions", {}), DROPPED_BODY: {}}
        await application(scope, receive, sending)

    def _count_bytes(self, size_bytes: int) -> None:
        self._field_bytes += size_bytes
        if self._field_bytes > HEAD_BYTES_MAX:
            raise _RequestRefused

    def _log_refusal(self, reason: str) -> None:
        _log.info("request_refused", client=self._slot, reason=reason)

    def _refuse(self) -> None:
        self._log_refusal("too_large")
        if not self._is_under_way() or not self.cycle.response_started:
            self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _is_under_way(self) -> bool:
        """Return whether a request is waiting for the end of its answer."""
        return bool(self.pipeline) or (bool(self.cycle) and not self.cycle.response_complete)

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._close_unused)

    def _head_complete(self) -> None:
        self._unread_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_lingering(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def _close_unused(self) -> None:
        """Close the connection, unless an earlier request on it still waits for its answer."""
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._is_under_way():
            self._wait_for_head()
        else:
            self.transport.close()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = self.loop.call_later(self.idle_seconds / IDLE_CHECKS, self._check_idle)

    def _check_idle(self) -> None:
        """Abort the connection when nothing has moved for `idle_seconds`, unless the service is at work.

        A closed transport waits for its client to read what is left, however long.
        """
        waiting_bytes = self.transport.get_write_buffer_size()
        state = self._received_bytes, waiting_bytes
        now = self.loop.time()
        if state != self._state or (self._is_under_way() and not waiting_bytes):
            self._state, self._last_progress_at = state, now
        elif now - self._last_progress_at >= self.idle_seconds * (IDLE_CHECKS - 1) / IDLE_CHECKS:
            self._abort()
            return
        self._schedule_idle_check()

    def _abort(self) -> None:
        """Drop the connection, together with the unread bytes in the kernel's memory."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._disconnect_answer()  # the transport says so later, and to write to it until then is an error
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def _disconnect_answer(self) -> None:
        """Let the answer that is under way learn that its client is gone. Of pipelined requests it is not that of
        `cycle`, which is the last one.
        """
        if self._answered_cycle is not None and not self._answered_cycle.response_complete:
            self._answered_cycle.disconnected = True
            self._answered_cycle.message_event.set()


def _is_not_parser_warning(record: logging.LogRecord) -> bool:
    """Return whether to log a record of uvicorn: its line about what the parser refuses names no address."""
    return record.msg != "Invalid HTTP request received."


class _RequestRefused(Exception):
    """Raised in a callback of the parser, to stop it there."""


def make_protocol(settings: ApiSettings) -> type[BoundedProtocol]:
    """Make the protocol class of one process, whose connections share its slots."""
    logging.getLogger("uvicorn.error").addFilter(_is_not_parser_warning)

    class Protocol(BoundedProtocol):
        slots = connection_slots(settings)
        proxies = ProxyNetworks(settings.trusted_proxies)
        idle_seconds = settings.idle_seconds

    return Protocol
