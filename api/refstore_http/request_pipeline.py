"""Surround every request with an id, one log line, a count, and the checks that come before all others. Plain ASGI, so
that it costs little.

The API and the S3 gateway are its users: each says what its answers look like (`RequestAnswers`), and answers what
passed. The client's address is what a trusted proxy says. Neither headers nor bodies are logged. An unexpected error is
logged here under the request's id, and answered as RequestCrashed.
"""

from __future__ import annotations

import time
import traceback
from functools import partial
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refstore.audit import Actor, set_actor
from refstore.core import event_log
from refstore.errors import RefstoreError
from refstore_http.connection_slots import request_slots, take_slot
from refstore_http.host_header import check_host
from refstore_http.http_errors import RequestCrashed, log_failure
from refstore_http.request_bodies import check_dropped_body
from refstore_http.request_metrics import RequestMetrics
from refstore_http.request_records import (
    CLIENT_WENT_AWAY,
    RequestSubject,
    SentAnswer,
    address_of,
    record_request,
    request_id_of,
)
from refstore_http.service import Service
from refstore_http.trusted_proxies import TrustedProxies

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
