"""Receive request bodies for a store, never whole in memory: raw, or the `content` part of a form, as lakeFS's clients
send them.

A body within `SMALL_BYTES` is returned as a list of the pieces that came. A longer one is returned as an iterator of
blocks, and each block is fetched while the one before it is written. A client that sends nothing for `idle_seconds`, or
too little for long, is refused (`BodyTimer`). What is held meanwhile is counted for the caller (`memory_budget.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.types import Scope

from refstore.configuration.settings import ApiSettings
from refstore.errors import Invalid
from refstore_http.http_errors import BodyTooLarge, BodyTooSlow
from refstore_http.memory_budget import DOCUMENT_FACTOR, held_of, key_of

SMALL_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 64 << 10
"""Smaller pieces are joined. Otherwise a client that sends single bytes could fill the memory with objects, or the
store with calls.
"""
BLOCK_BYTES: Final = 1 << 20
"""The smallest block, because each block wakes a thread."""
BYTES_PER_SECOND_MIN: Final = 1024
"""An upload below this average rate is aborted: it would hold its thread for ever."""
LONG_BODY_BYTES: Final = 3 << 20
"""What a longer body holds: the block that is written, the one that comes, and a signed chunk or what came first."""
HELD_BYTES_PER_SECOND_MIN: Final = 16 << 10
"""The same for a body that is held whole, because what came of it holds memory."""
DOCUMENT_IDLE_SECONDS: Final = 10.0
"""How long a document may send nothing, at most: it is short, and held whole."""
LOOP_BYTES_MAX: Final = 64 << 10
"""The largest body that is parsed on the event loop: most take less than a millisecond, and the worst ten."""
FORM_PARTS_MAX: Final = 16
BOUNDARY_BYTES_MAX: Final = 70
"""Of RFC 2046, 5.1.1."""
FIELD: Final = "content"
DROPPED_BODY: Final = "refstore.dropped_body"
"""The extension of a request's scope that says that the server dropped the body; it looks empty."""
_HEADER_BYTES_MAX: Final = 16 << 10
_LENGTH: Final = re.compile(r"[0-9]{1,19}")
"""More digits than any length has; int() refuses thousands of digits."""

T = TypeVar("T")


class RequestBody(NamedTuple):
    body: list[bytes] | Iterator[bytes]
    """A list is the whole body, in memory. An iterator is for one thread, once; it raises what fails on the network."""
    content_type: str


class BodyLimits(NamedTuple):
    bytes_max: int
    idle_seconds: float
    bytes_per_second_min: int = BYTES_PER_SECOND_MIN
    """On average."""


def limits_of(settings: ApiSettings) -> BodyLimits:
    """Return the limits of an object's body."""
    return BodyLimits(settings.upload_bytes_max, settings.upload_idle_seconds)


def document_limits(settings: ApiSettings, bytes_max: int) -> BodyLimits:
    """Return the limits of a body that is received and parsed as a whole."""
    idle_seconds = min(settings.upload_idle_seconds, DOCUMENT_IDLE_SECONDS)
    return BodyLimits(bytes_max, idle_seconds, HELD_BYTES_PER_SECOND_MIN)


class BodyTimer:
    """Bound the wait for a body: `idle_seconds` for each piece, and in total one second more per `bytes_per_second_min`
    received.

    Only the client's time counts, not the time in which a store writes.
    """

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._size_bytes = 0
        self._waited_seconds = 0.0

    async def wait(self, coming: Awaitable[T], size_of: Callable[[T], int]) -> T:
        """Await the next piece, and count its time and size. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(self._left_seconds()):
            piece = await coming
        self._waited_seconds += loop.time() - began
        self._size_bytes += size_of(piece)
        return piece

    def _left_seconds(self) -> float:
        idle_seconds, rate = self._limits.idle_seconds, self._limits.bytes_per_second_min
        return min(idle_seconds, idle_seconds + self._size_bytes / rate - self._waited_seconds)

    def __str__(self) -> str:
        """Say what happened when the time was over, and what to do."""
        return (
            f"the request's body sent nothing for {self._limits.idle_seconds:g} s, or less than "
            f"{self._limits.bytes_per_second_min} bytes a second; send it again, faster"
        )


def parse_content_length(value: str | None) -> int | None:
    """Parse a Content-Length; None: there is none. Raises Invalid."""
    if not value:
        return None
    if not _LENGTH.fullmatch(value):
        raise Invalid("the Content-Length is not a number of bytes with at most 19 digits; send the body's length")
    return int(value)


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the headers, which the parser took, announce a body that is not empty."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0) for name, value in headers
    )


def check_dropped_body(scope: Scope) -> None:
    """Raise Invalid if the server dropped the body. Otherwise an upload would store an empty object."""
    if DROPPED_BODY in scope.get("extensions", ()):
        raise Invalid(
            "the request has a body and asks to change the protocol (Connection: Upgrade); the body was not read: send "
            "it by HTTP/1.1 without the header Upgrade"
        )


def is_small(request: Request) -> bool:
    """Return whether the declared length is within SMALL_BYTES. Raises Invalid."""
    declared = parse_content_length(request.headers.get("content-length"))
    return declared is not None and declared <= SMALL_BYTES


async def receive_object(request: Request, limits: BodyLimits, *, forms: bool = True) -> RequestBody:
    """Receive the body. `forms`: whether to take the object out of a form. Raises Invalid, BodyTooLarge, BodyTooSlow,
    SlowDown, ClientDisconnect.
    """
    held = held_of(request)
    if is_small(request):
        limits = limits._replace(bytes_per_second_min=HELD_BYTES_PER_SECOND_MIN)
        collected_bytes_max = SMALL_BYTES
    else:  # what is known to be long waits for its thread at its client, but for the first piece
        is_known = "content-length" in request.headers
        collected_bytes_max = 0 if is_known else SMALL_BYTES
    content_type_header = request.headers.get("content-type", "")
    kind, options = parse_options_header(content_type_header)
    chunks = limit_body(request, limits)
    if forms and kind == b"multipart/form-data":
        form = _FormParser(options.get(b"boundary", b""))
        chunks = form.read_content(chunks)
    else:
        form = None
    pieces = _join_chunks(chunks, PIECE_BYTES)
    collected: list[bytes] = []
    size_bytes = 0
    async for piece in pieces:
        collected.append(piece)
        size_bytes += len(piece)
        if size_bytes > collected_bytes_max:
            break
        held.set(size_bytes)
    content_type = form.content_type if form is not None else content_type_header
    if size_bytes <= collected_bytes_max:
        return RequestBody(collected, content_type)
    held.set(LONG_BODY_BYTES)
    return RequestBody(_blocks_in_thread(_join_chunks(pieces, BLOCK_BYTES), collected), content_type)


async def receive_document(request: Request, limits: BodyLimits) -> bytes:
    """Receive the whole body, to parse it. Raises BodyTooLarge, BodyTooSlow, Invalid, SlowDown, ClientDisconnect."""
    held = held_of(request)
    body = bytearray()  # not a list: pieces may be of one byte each
    async for chunk in limit_body(request, limits):
        body += chunk
        held.set(DOCUMENT_FACTOR * len(body))
    return bytes(body)


async def parse_in_turn(request: Request, body: bytes, parse: Callable[[], T]) -> T:
    """Parse what has come as a document; in a thread and in turn if it is large. Raises TooManyRequests."""
    if len(body) <= LOOP_BYTES_MAX:
        return parse()
    async with held_of(request).budget.parse_in_turn(key_of(request.scope), len(body)):
        return await asyncio.to_thread(parse)


async def limit_body(request: Request, limits: BodyLimits) -> AsyncIterator[bytes]:
    """Yield the body as it comes; raise when it is too long or too slow."""
    declared = parse_content_length(request.headers.get("content-length"))
    if declared is not None and declared > limits.bytes_max:
        raise _too_large_error(limits.bytes_max)
    size_bytes = 0
    patience = BodyTimer(limits)
    stream = request.stream()
    while True:
        try:
            chunk = await patience.wait(anext(stream, b""), len)
        except TimeoutError:
            raise BodyTooSlow(str(patience)) from None
        if not chunk:
            return  # request.stream() ends with an empty chunk
        size_bytes += len(chunk)
        if size_bytes > limits.bytes_max:
            raise _too_large_error(limits.bytes_max)
        yield chunk


async def _join_chunks(chunks: AsyncIterator[bytes], bytes_min: int) -> AsyncIterator[bytes]:
    """Join the chunks, so that each one but the last has at least `bytes_min`."""
    pending: list[bytes] = []
    size_bytes = 0
    async for chunk in chunks:
        pending.append(chunk)
        size_bytes += len(chunk)
        if size_bytes >= bytes_min:
            yield b"".join(pending)  # of one chunk: that very one
            pending, size_bytes = [], 0
    if pending:
        yield b"".join(pending)


def _blocks_in_thread(blocks: AsyncIterator[bytes], first: list[bytes]) -> Iterator[bytes]:
    """Yield `first`, then the blocks, in a thread. The event loop fetches a block while the one before is written."""
    loop = asyncio.get_running_loop()

    async def fetch() -> bytes:
        return await anext(blocks, b"")

    def read() -> Iterator[bytes]:
        coming = asyncio.run_coroutine_threadsafe(fetch(), loop)
        try:
            while first:
                yield first.pop(0)  # nothing is held once it was handed on
            while block := coming.result():
                coming = asyncio.run_coroutine_threadsafe(fetch(), loop)
                yield block
        finally:
            coming.cancel()

    return read()


class _FormParser:
    """Extract the form's one part that matters, while its bytes pass; nothing is spooled."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise Invalid(
                "the form names no boundary; send multipart/form-data with one, or the object as the raw body"
            )
        self.content_type = ""
        self._content: list[bytes] = []
        self._headers: dict[str, str] = {}
        self._parts = 0
        self._name = b""
        self._value = b""
        self._inside = False
        self._found = False
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._text,
            "on_header_end": self._header,
            "on_headers_finished": self._headers_done,
            "on_part_data": self._data,
            "on_part_end": self._end,
        }
        if len(boundary) > BOUNDARY_BYTES_MAX:
            raise Invalid(
                f"the form's boundary has more than {BOUNDARY_BYTES_MAX} bytes; send the object as the raw body"
            )
        try:
            # its table of callbacks is a TypedDict
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise Invalid(f"the form's boundary is not valid ({error}); send the object as the raw body") from error

    async def read_content(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise Invalid(
                    f"the form cannot be read ({error}); send it again, or the object as the raw body"
                ) from error
            content, self._content = self._content, []
            for piece in content:
                if piece:
                    yield piece
        try:
            self._parser.finalize()
        except FormParserError as error:
            raise Invalid(f"the form ended early ({error}); send it again") from error
        if self._inside or not self._found:
            raise Invalid(f"the form has no whole part named {FIELD!r}; send the object in one")

    def _begin(self) -> None:
        self._headers = {}
        self._parts += 1
        if self._parts > FORM_PARTS_MAX:  # each takes time on the event loop
            raise Invalid(f"the form has more than {FORM_PARTS_MAX} parts; send the object as the raw body")

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._name = self._append_limited(self._name, data[start:end])

    def _text(self, data: bytes, start: int, end: int) -> None:
        self._value = self._append_limited(self._value, data[start:end])

    def _header(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._name = self._value = b""

    def _headers_done(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", ""))
        if options.get(b"name") == FIELD.encode():
            if self._found:
                raise Invalid(f"the form has two parts named {FIELD!r}; send one object at a time")
            self._found = self._inside = True
            self.content_type = self._headers.get("content-type", "")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            self._content.append(data[start:end])

    def _end(self) -> None:
        self._inside = False

    def _append_limited(self, so_far: bytes, more: bytes) -> bytes:
        if len(so_far) + len(more) > _HEADER_BYTES_MAX:
            raise Invalid("a header of the form is too long; send the object as the raw body")
        return so_far + more


def _too_large_error(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request's body is larger than {bytes_max} bytes; send less")
