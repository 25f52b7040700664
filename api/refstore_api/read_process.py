"""Run expensive reads in a process of their own. As threads they would hold Python's lock, and every other request
would wait.

When a slot is free for a request's key, the service forwards the request unchanged and passes on the answer. The
process runs the same application, without the middleware around every request. It starts with the first expensive read,
is replaced when it ends, and ends with the service. `refstore serve` supplies the function that starts it, because only
that command may import the reaper's priority code.

Each message is its length and msgpack, over a socket pair that nothing else uses.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from refstore.core import event_log
from refstore_api.encoded_slashes import SLASHES_ENCODED
from refstore_api.error_responses import ReadsBusy
from refstore_api.request_middleware import respond_to_crash
from refstore_api.request_records import CLIENT_WENT_AWAY

RESTART_SECONDS: Final = 5.0
"""The wait before an ended process is replaced: the cause may need a moment to pass."""
LENGTH_BYTES: Final = 4
FORWARDED: Final = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
    SLASHES_ENCODED,
)
"""What is forwarded of a request's scope."""
_FAILED: Final = (
    500,
    [(b"content-type", b"application/json")],
    b'{"message": "the read failed; the log of the service may say why", "code": "internal"}',
)
"""Status, headers and body of the answer to a request whose own answer could not be made."""

_log = event_log.get_logger(__name__)


class ReadRequest(msgspec.Struct, frozen=True, tag=True):
    """A request to forward, unchanged. The service has verified its key, and the process verifies it again."""

    number: int
    scope: dict[str, Any]
    request_id: str


class ReadCancellation(msgspec.Struct, frozen=True, tag=True):
    """The client of a request has disconnected. The process still answers it, when the read has stopped."""

    number: int


class ReadyMessage(msgspec.Struct, frozen=True, tag=True):
    """The process's first message: it can take requests."""


class ReadResponse(msgspec.Struct, frozen=True, tag=True):
    number: int
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_to_process: Final = msgspec.msgpack.Decoder(ReadRequest | ReadCancellation)
_from_process: Final = msgspec.msgpack.Decoder(ReadyMessage | ReadResponse)


class RunningProcess(Protocol):
    """A process that runs, such as one of `multiprocessing`."""

    def kill(self) -> None: ...
    def join(self) -> None: ...


class ReadProcess:
    """Forward reads to the process, and keep one running. Belongs to the event loop."""

    def __init__(self, start: Callable[[socket.socket], RunningProcess]) -> None:
        """`start` starts the process with its end of the socket pair. It is called in a thread, and may raise
        OSError.
        """
        self._start = start
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Response]] = {}
        self._writer: asyncio.StreamWriter | None = None
        """None unless the process is ready."""
        self._running: asyncio.Task[None] | None = None
        self._process: RunningProcess | None = None
        self._closed = False

    def is_ready(self) -> bool:
        """Return whether the process takes requests now; start it if it does not run."""
        if not self._closed and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._run())
        return self._writer is not None

    def send(self, request: Request) -> tuple[asyncio.Future[Response], Callable[[], None]]:
        """Forward a request; return the future of its answer, and a function to call when its client has gone. The
        answer comes when the read has ended or stopped.
        """
        number = next(self._numbers)
        answered = self._pending[number] = asyncio.get_running_loop().create_future()
        scope = {name: request.scope[name] for name in FORWARDED if name in request.scope}
        self._send(ReadRequest(number, scope, str(event_log.context_fields().get("request_id", ""))))
        return answered, lambda: self._send(ReadCancellation(number))

    def close(self) -> None:
        """End the process at once; it only reads, so nothing is lost."""
        self._closed = True
        if self._running is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._running.cancel()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _send(self, message: ReadRequest | ReadCancellation) -> None:
        if self._writer is not None:  # otherwise the process has ended, and every waiting request fails
            _write(self._writer, message)

    async def _run(self) -> None:
        """Start the process, and read its answers until it ends."""
        try:
            await self._receive_answers()
        except (OSError, RuntimeError) as error:  # out of memory, processes or threads for the moment
            _log.error("reads_process_not_started", error=repr(error), restart_seconds=RESTART_SECONDS)
        finally:
            self._writer = None
            lost, self._pending = self._pending, {}
            for answered in lost.values():
                if not answered.done():
                    answered.set_exception(ReadsBusy("the process for expensive reads ended; make the same call again"))
        await asyncio.sleep(RESTART_SECONDS)

    async def _receive_answers(self) -> None:
        loop = asyncio.get_running_loop()
        service_end, process_end = socket.socketpair()
        try:
            process = await loop.run_in_executor(None, self._start, process_end)
        except BaseException:
            service_end.close()
            raise
        finally:
            process_end.close()
        self._process = process
        reader, writer = await asyncio.open_unix_connection(sock=service_end)
        try:
            while (data := await _read(reader)) is not None:
                message = _from_process.decode(data)
                if isinstance(message, ReadyMessage):
                    self._writer = writer
                else:
                    self._answer(message)
        finally:
            self._writer = None  # threads take the reads until the next process is ready
            writer.close()
        _log.error("reads_process_ended", restart_seconds=RESTART_SECONDS)
        process.kill()
        await loop.run_in_executor(None, process.join)
        self._process = None

    def _answer(self, message: ReadResponse) -> None:
        answered = self._pending.pop(message.number, None)
        if answered is not None and not answered.done():
            response = Response(message.body, message.status)
            response.raw_headers = list(message.headers)
            answered.set_result(response)


async def serve_reads(process_end: socket.socket, app: ASGIApp) -> None:
    """Answer the service's requests with the application, until the service's end of the socket closes. Runs in the
    process.
    """
    reader, writer = await asyncio.open_unix_connection(sock=process_end)
    under_way: dict[int, asyncio.Event] = {}
    tasks: set[asyncio.Task[None]] = set()

    async def work(request: ReadRequest, cancelled: asyncio.Event) -> None:
        try:
            with event_log.bind_fields(request_id=request.request_id):
                _write(writer, await _answer_request(app, request, cancelled))
        except Exception:  # noqa: BLE001  # such as no memory for the answer, or no room for the log
            _write(writer, ReadResponse(request.number, *_FAILED))  # else its slot would be in use for ever
            with suppress(Exception):  # what failed may be the log itself
                _log.exception("read_answer_failed", request_id=request.request_id)
        finally:
            del under_way[request.number]

    _write(writer, ReadyMessage())
    try:
        while (data := await _read(reader)) is not None:
            message = _to_process.decode(data)
            if isinstance(message, ReadRequest):
                cancelled = under_way[message.number] = asyncio.Event()
                task = asyncio.create_task(work(message, cancelled))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            elif message.number in under_way:
                under_way[message.number].set()
    finally:
        for cancelled in under_way.values():
            cancelled.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def _answer_request(app: ASGIApp, request: ReadRequest, cancelled: asyncio.Event) -> ReadResponse:
    scope: dict[str, Any] = {**request.scope, "state": {}}
    answer = ReadResponse(request.number, CLIENT_WENT_AWAY, [], b"")
    body: list[bytes] = []
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await cancelled.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal answer
        if message["type"] == "http.response.start":
            answer = ReadResponse(request.number, message["status"], list(message.get("headers", ())), b"")
            body.clear()
        else:
            body.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except ClientDisconnect:
        return ReadResponse(request.number, CLIENT_WENT_AWAY, [], b"")
    except Exception as error:  # noqa: BLE001  # nothing above could still answer
        await respond_to_crash(error)(scope, receive, send)
    return msgspec.structs.replace(answer, body=b"".join(body))


def _write(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    data = _encoder.encode(message)
    writer.write(len(data).to_bytes(LENGTH_BYTES, "big"))
    writer.write(data)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message; None: the other end has closed."""
    try:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
