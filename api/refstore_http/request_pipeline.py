"""Surround every request with an id, one log line, a count, and the checks that come before all others. Plain ASGI, so
that it costs little.

The API and the S3 gateway are its users: each says what its answers look like (`RequestAnswers`), and answers what
passed. The client's address is what a trusted proxy says. Neither headers nor bodies are logged. An unexpected error is
logged here under the request's id, and answered as RequestCrashed.
"""

from __future__ import annotations

import re
import secrets
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refstore.audit import Actor, set_actor
from refstore.core import event_log
from refstore.errors import RefstoreError
from refstore_http.connection_slots import request_slots, take_slot
from refstore_http.http_errors import RequestCrashed, SlowDown, log_failure
from refstore_http.memory_budget import UNCOUNTED_BYTES, HeldBytes
from refstore_http.request_bodies import check_dropped_body
from refstore_http.request_metrics import RequestMetrics
from refstore_http.request_origin import TrustedProxies, check_host, drop_basic_challenge, is_browser
from refstore_http.service import Service

HEADER: Final = b"x-request-id"
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_NAME: Final = re.compile(r"[A-Za-z0-9_./~^@{}:-]{1,255}")
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
CLIENT_WENT_AWAY: Final = 499
"""A status for the log and the metrics only: no client is left to read it."""

_log = event_log.get_logger(__name__)


class RequestSubject(NamedTuple):
    """Who asked, and for what."""

    method: str
    route: str
    """The route's template, because a path may contain a signed URL's token."""
    client: str
    key: str | None
    """The access key that was proven to be the caller's."""
    claimed_key: str = ""
    """The access key that the request names, where nobody proved it."""
    repository: str | None = None
    branch: str | None = None
    is_quiet: bool = False
    """Whether only the metrics count it: probes come every few seconds."""


class SentAnswer:
    """Sends an answer with the headers that every answer has, and remembers what the log says of it.

    A large piece is counted until the client has taken it. Where that is too much for its caller, an answer that has
    not begun becomes an error, and another one is cut off.
    """

    def __init__(
        self,
        scope: Scope,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        held: HeldBytes,
        refuse: Callable[[SlowDown], Response],
    ) -> None:
        """`refuse` makes the answer that takes the place of one that is too large."""
        self._send = send
        self._held = held
        self._make_refusal = refuse
        self._start: Message | None = None
        """The answer's head. It waits for the first piece of the body, because that may be refused."""
        self._piece_bytes_max = 0
        self._is_refused = False
        self._headers = headers
        self._scope = scope
        self.status = 0
        """0: nothing was sent yet."""
        self.size_bytes = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._is_refused:
            return
        size_bytes = len(message.get("body", b""))
        try:
            self._hold(size_bytes)
        except SlowDown as error:
            if self._start is None:
                raise
            response = self._make_refusal(error)
            self._start = {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
            message = {"type": "http.response.body", "body": response.body}
            size_bytes = len(response.body)
            self._is_refused = True
        await self._send_start()
        self.size_bytes += size_bytes
        if size_bytes <= UNCOUNTED_BYTES:
            await self._send(message)
            return
        has_more = message.get("more_body", False)
        # as a view, because the server would copy what the client does not take at once
        await self._send({"type": "http.response.body", "body": memoryview(message["body"]), "more_body": True})
        # the server waits, before it takes a further piece, until the client has taken the one before
        await self._send({"type": "http.response.body", "body": b"", "more_body": has_more})

    def _hold(self, size_bytes: int) -> None:
        """Count a piece, and until the answer's end the largest one. Raises SlowDown."""
        if size_bytes > self._piece_bytes_max:
            self._held.set(size_bytes)
            self._piece_bytes_max = size_bytes

    async def _send_start(self) -> None:
        if self._start is None:
            return
        start, self._start = self._start, None
        self.status = start["status"]
        headers = start.get("headers", ())
        if self.status == 401 and is_browser(self._scope):
            headers = drop_basic_challenge(headers)
        nosniff = () if _NOSNIFF in headers else (_NOSNIFF,)
        start["headers"] = [*headers, *nosniff, *self._headers]
        await self._send(start)


def record_request(metrics: RequestMetrics, subject: RequestSubject, sent: SentAnswer, seconds: float) -> None:
    """Count the answer, and log it."""
    metrics.count_request(subject.method, subject.route, sent.status or 500, seconds)
    if subject.is_quiet:
        return
    _log.info(
        "request",
        method=subject.method,
        route=subject.route,
        status=sent.status or 500,
        ms=round(seconds * 1000, 2),
        bytes=sent.size_bytes,
        client=subject.client,
        key=subject.key,
        **({} if subject.key else {"claimed_key": subject.claimed_key}),
        repository=_loggable_name(subject.repository),
        branch=_loggable_name(subject.branch),
    )


def request_id_of(scope: Scope) -> str:
    """Return the caller's request id if it is harmless, so that a request can be followed across services; otherwise a
    new one.
    """
    for name, value in scope["headers"]:
        if name == HEADER and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return secrets.token_hex(8)


def _loggable_name(text: str | None) -> str | None:
    """Return a name for the log; None if it has other characters than names have, such as line breaks."""
    return text if text is not None and _NAME.fullmatch(text) else None


def address_of(scope: Scope) -> str:
    """Return the client's address: the connection's other end, or what a trusted proxy says. Other proxies' headers are
    not believed.
    """
    client = scope.get("client")
    return client[0] if client else ""


def header_of(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for field, value in scope["headers"] if field == name), None)


_log = event_log.get_logger(__name__)


class RequestAnswers(Protocol):
    """An application behind the pipeline."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Return what `make_failure` explains; everything else is a crash."""
        ...

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that passed the first checks."""
        ...

    def make_headers(self, request_id: bytes) -> list[tuple[bytes, bytes]]:
        """Return the headers that every answer has."""
        ...

    def make_failure(self, scope: Scope, error: Exception) -> Response:
        """Return the answer to a failure, and log one that is no fault of the caller's."""
        ...

    def describe(self, scope: Scope, status: int) -> RequestSubject:
        """Return what the log says of the request: never a path, which may hold what a user wrote."""
        ...


class RequestPipeline:
    def __init__(self, answers: RequestAnswers, service: Service, metrics: RequestMetrics) -> None:
        self._answers = answers
        self._service = service
        self._metrics = metrics
        networks = service.settings.trusted_proxies
        self._slots = request_slots(service.settings) if networks else None
        self._entrance: ASGIApp = TrustedProxies(self._bind_id, networks) if networks else self._bind_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._entrance(scope, receive, send)

    async def _bind_id(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope)
        with event_log.bind_fields(request_id=request_id):
            await self._answer(scope, receive, send, request_id.encode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        began = time.perf_counter()
        body = _AwaitedBody(scope, receive)
        held = self._service.memory.open(scope)
        respond = partial(self._answers.make_failure, scope)
        sent = SentAnswer(scope, body.close_if_unread(send), self._answers.make_headers(request_id), held, respond)
        client = address_of(scope)
        has_slot = False
        try:
            has_slot = take_slot(self._slots, client)
            check_host(scope)
            check_dropped_body(scope)
            await self._answers.answer(scope, body.receive, sent)
        except ClientDisconnect:
            sent.status = sent.status or CLIENT_WENT_AWAY
        except self._answers.failures as error:
            if not sent.status:
                await respond(error)(scope, receive, sent)
            elif isinstance(error, RefstoreError):  # the answer is cut off, which its length shows the client
                log_failure(error, 500)
        except Exception as error:  # noqa: BLE001  # nothing above could still answer
            # as text, because an embedding application may log exceptions with local variables, and so with secrets
            _log.error("request_crashed", error=repr(error), traceback="".join(traceback.format_exception(error)))
            if not sent.status:
                await respond(RequestCrashed())(scope, receive, sent)
        finally:
            held.set(0)
            if self._slots is not None and has_slot:
                self._slots.release(client)
            subject = self._answers.describe(scope, sent.status)
            record_request(self._metrics, subject, sent, time.perf_counter() - began)


class _AwaitedBody:
    """Close the connection after an answer to which the client sends no body any more (`Expect: 100-continue`).

    Some clients send their next request at once then, and some their body: the two cannot be told apart.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._is_awaited = any(name == b"expect" for name, _ in scope["headers"])
        self.receive: Receive = self._receive_body if self._is_awaited else receive

    async def _receive_body(self) -> Message:
        self._is_awaited = False
        return await self._receive()

    def close_if_unread(self, send: Send) -> Send:
        if not self._is_awaited:
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_awaited:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        return sending


def name_caller(scope: Scope, key_id: str, operation: str) -> None:
    """Name the caller, who was proven, to the logs."""
    scope.setdefault("state", {})["key_id"] = key_id
    set_actor(Actor("http", key_id, address_of(scope), f"{scope['method']} {operation}"))
