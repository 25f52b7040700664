"""Request bodies on their way to a store, never whole in memory: raw, or the `content` part of a form, as lakeFS's clients send them.

A body that ends within `SMALL_BYTES` is given as the pieces that it came in, which are never put together where they are written one by
one; a longer one as blocks, read from the network while the one before is written. A client that sends nothing for `idle_seconds`, or too
little for long, is given up (`Patience`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from api.errors import TooLarge, TooSlow
from refstore.errors import Invalid
from refstore.settings import ApiSettings

SMALL_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 64 << 10
"""What comes in less is put together: a client that sends byte by byte must not fill the memory with objects, or the store with calls."""
BLOCK_BYTES: Final = 1 << 20
"""At least so much is handed over at a time: a thread is woken for each."""
FIELD: Final = "content"
_HEADER_BYTES_MAX: Final = 16 << 10
_LENGTH: Final = re.compile(r"[0-9]{1,19}")
"""Far more bytes than there are; int() refuses to read thousands of digits."""

T = TypeVar("T")


class Received(NamedTuple):
    body: list[bytes] | Iterator[bytes]
    """A list is the whole body, in memory. An iterator is for a thread, once; it raises what goes wrong on the network."""
    content_type: str


class Limits(NamedTuple):
    bytes_max: int
    idle_seconds: float
    bytes_per_second_min: int = 0
    """On average. 0: however slow."""


def limits_of(settings: ApiSettings) -> Limits:
    """Those of an object."""
    return Limits(settings.upload_bytes_max, settings.upload_idle_seconds, settings.upload_bytes_per_second_min)


class Patience:
    """How long a body is waited for: `idle_seconds` for each piece, and in all a second more for each `bytes_per_second_min` that came.

    Only the client's time counts: while a store is busy with what came, nobody waits for more."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size_bytes = 0
        self._waited_seconds = 0.0

    async def wait(self, coming: Awaitable[T], size_of: Callable[[T], int]) -> T:
        """Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(self._left_seconds()):
            piece = await coming
        self._waited_seconds += loop.time() - began
        self._size_bytes += size_of(piece)
        return piece

    def _left_seconds(self) -> float:
        idle_seconds, rate = self._limits.idle_seconds, self._limits.bytes_per_second_min
        return min(idle_seconds, idle_seconds + self._size_bytes / rate - self._waited_seconds) if rate else idle_seconds

    def __str__(self) -> str:
        """What happened when it ended, and what to do."""
        least = f", or less than {self._limits.bytes_per_second_min} bytes a second" if self._limits.bytes_per_second_min else ""
        return f"the request's body sent nothing for {self._limits.idle_seconds:g} s{least}; send it again, faster"


def declared_bytes(value: str | None) -> int | None:
    """What a Content-Length says; None: there is none. Raises Invalid."""
    if not value:
        return None
    if not _LENGTH.fullmatch(value):
        raise Invalid("the Content-Length is not a number of bytes with at most 19 digits; send the body's length")
    return int(value)


def is_small(request: Request) -> bool:
    """Whether the body is said to end within SMALL_BYTES. Raises Invalid."""
    declared = declared_bytes(request.headers.get("content-length"))
    return declared is not None and declared <= SMALL_BYTES


async def receive(request: Request, limits: Limits, *, forms: bool = True) -> Received:
    """`forms`: whether a form is taken apart, or is the object. Raises Invalid, TooLarge, TooSlow, ClientDisconnect."""
    sent = request.headers.get("content-type", "")
    kind, options = parse_options_header(sent)
    chunks = _bounded(request, limits)
    if forms and kind == b"multipart/form-data":
        form = _Form(options.get(b"boundary", b""))
        chunks = form.content_of(chunks)
    else:
        form = None
    pieces = _gathered(chunks, PIECE_BYTES)
    held: list[bytes] = []
    size_bytes = 0
    async for piece in pieces:
        held.append(piece)
        size_bytes += len(piece)
        if size_bytes > SMALL_BYTES:
            break
    content_type = form.content_type if form is not None else sent
    if size_bytes <= SMALL_BYTES:
        return Received(held, content_type)
    return Received(_in_thread(_gathered(pieces, BLOCK_BYTES), held), content_type)


async def _bounded(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """The body as it comes, cut off where it is too long or too slow."""
    declared = declared_bytes(request.headers.get("content-length"))
    if declared is not None and declared > limits.bytes_max:
        raise _too_large(limits.bytes_max)
    size_bytes = 0
    patience = Patience(limits)
    stream = request.stream()
    while True:
        try:
            chunk = await patience.wait(anext(stream, b""), len)
        except TimeoutError:
            raise TooSlow(str(patience)) from None
        if not chunk:
            return  # request.stream() ends with an empty chunk
        size_bytes += len(chunk)
        if size_bytes > limits.bytes_max:
            raise _too_large(limits.bytes_max)
        yield chunk


async def _gathered(chunks: AsyncIterator[bytes], bytes_min: int) -> AsyncIterator[bytes]:
    """The same bytes, none of it in less than `bytes_min` at a time but the last."""
    held: list[bytes] = []
    size_bytes = 0
    async for chunk in chunks:
        held.append(chunk)
        size_bytes += len(chunk)
        if size_bytes >= bytes_min:
            yield b"".join(held)  # of one chunk: that very one
            held, size_bytes = [], 0
    if held:
        yield b"".join(held)


def _in_thread(blocks: AsyncIterator[bytes], first: list[bytes]) -> Iterator[bytes]:
    """`first`, then the blocks, for a thread: one is fetched on the event loop while the one before is written."""
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


class _Form:
    """The one part of a form that matters, as its bytes come by; nothing is spooled."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise Invalid("the form names no boundary; send multipart/form-data with one, or the object as the raw body")
        self.content_type = ""
        self._content: list[bytes] = []
        self._headers: dict[str, str] = {}
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
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # its table of callbacks is a TypedDict
        except FormParserError as error:
            raise Invalid(f"the form's boundary is not valid ({error}); send the object as the raw body") from error

    async def content_of(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise Invalid(f"the form cannot be read ({error}); send it again, or the object as the raw body") from error
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

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._name = self._grown(self._name, data[start:end])

    def _text(self, data: bytes, start: int, end: int) -> None:
        self._value = self._grown(self._value, data[start:end])

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

    def _grown(self, so_far: bytes, more: bytes) -> bytes:
        if len(so_far) + len(more) > _HEADER_BYTES_MAX:
            raise Invalid("a header of the form is too long; send the object as the raw body")
        return so_far + more


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the request's body is larger than {bytes_max} bytes; send less, or raise api.upload_bytes_max or api.body_bytes_max")


__all__ = ["ClientDisconnect", "Limits", "Patience", "Received", "declared_bytes", "is_small", "limits_of", "receive"]
