"""Around every request: an id, one line in the log, the metrics, bounds on its body. Plain ASGI, so that it costs little.

A body is read only if whoever sends it has shown who they are; handlers look for themselves what that one may do.

The log has the route's template, not the path: signed URLs carry a token there. Neither headers nor bodies are logged. What nobody
foresaw is logged here, under the request's id, and answered with 500.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers import answer
from api.errors import TooLarge, respond
from api.metrics import Metrics
from api.models import Error
from api.naming import keep_apart
from refstore import ids
from refstore.errors import InvalidName, RefstoreError

HEADER: Final = b"x-request-id"
_GIVEN: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_UPLOAD: Final = re.compile(r"/api/v1/repositories/[^/]+/branches/[^/]+/objects")
_SIGNED: Final = "/api/v1/signed/"
_LOGIN: Final = "/api/v1/auth/login"
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
CRASHED: Final = "the service failed; its log says why, under the request's id"
CLIENT_WENT_AWAY: Final = 499
"""In the log and the metrics only: there is nobody left to tell."""
_QUIET: Final = frozenset({"/api/v1/healthcheck", "/healthcheck", "/readiness", "/metrics"})

_log = structlog.stdlib.get_logger(__name__)


class Around:
    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        body_bytes_max: int,
        body_idle_seconds: float,
        admit: Callable[[str | None, str], Awaitable[object]],
    ) -> None:
        """`admit`: looks at an Authorization header, and the address that it comes from. Raises RefstoreError."""
        self._app = app
        self._metrics = metrics
        self._body_bytes_max = body_bytes_max
        self._body_idle_seconds = body_idle_seconds
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        keep_apart(scope)
        request_id = _id_of(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 0
        size_bytes = 0

        async def sending(message: Message) -> None:
            nonlocal status, size_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(HEADER, request_id.encode())]
                given = message.get("headers", ())
                message["headers"] = [*given, *own] if _NOSNIFF in given else [*given, _NOSNIFF, *own]
            else:
                size_bytes += len(message.get("body", b""))
            await send(message)

        try:
            if scope["method"] not in _BODILESS and scope["path"] != _LOGIN and not _is_signed(scope):
                await self._admit(_authorization(scope), address_of(scope))
            await self._app(scope, _bounded(scope, receive, self._body_bytes_max, self._body_idle_seconds), sending)
        except RefstoreError as error:
            await respond(error)(scope, receive, sending)
        except ClientDisconnect:
            status = CLIENT_WENT_AWAY
        except Exception as error:  # noqa: BLE001  # the last one who could answer
            # as text: an application that embeds this one may render exceptions with their local variables, so with secrets
            _log.error("request_crashed", error=repr(error), traceback="".join(traceback.format_exception(error)))
            if not status:  # else the answer is cut off, which the client sees: it is shorter than it said
                await answer(Error(message=CRASHED, code="internal"), 500)(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "") or "(none)"
            self._metrics.answered(scope["method"], route, status or 500, seconds)
            if route not in _QUIET:
                state: dict[str, Any] = scope.get("state") or {}
                parameters: dict[str, Any] = scope.get("path_params") or {}
                _log.info(
                    "request",
                    method=scope["method"],
                    route=route,
                    status=status or 500,
                    ms=round(seconds * 1000, 2),
                    bytes=size_bytes,
                    key=state.get("key_id"),
                    repository=_name(parameters.get("repository")),
                )
            structlog.contextvars.unbind_contextvars("request_id")


def _id_of(scope: Scope) -> str:
    """The caller's, if it is harmless, so that a request can be followed across services; else a new one."""
    for name, value in scope["headers"]:
        if name == HEADER and _GIVEN.fullmatch(value):
            return value.decode()
    return secrets.token_hex(8)


def _name(text: str | None) -> str | None:
    """A repository's name for the log; what is none may hold anything, line breaks too."""
    try:
        return ids.repository_name(text) if text is not None else None
    except InvalidName:
        return None


def _bounded(scope: Scope, receive: Receive, bytes_max: int, idle_seconds: float) -> Receive:
    """Bounds every body but an object's, which `bodies.py` bounds. (Nobody reads the body of a GET or HEAD.)"""
    if scope["method"] in _BODILESS or _is_signed(scope) or (scope["method"] == "POST" and _UPLOAD.fullmatch(scope["path"])):
        return receive
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > bytes_max:
            raise _too_large(bytes_max)
    size_bytes = 0
    whole = False

    async def bounded() -> Message:
        nonlocal size_bytes, whole
        if whole:
            return await receive()  # waits for the client to go away, however long
        # HTTPException: FastAPI takes any other error for a body that cannot be parsed
        try:
            async with asyncio.timeout(idle_seconds):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the request's body sent nothing for {idle_seconds:g} s; send it again, faster") from None
        if message["type"] == "http.request":
            whole = not message.get("more_body", False)
            size_bytes += len(message.get("body", b""))
            if size_bytes > bytes_max:
                raise HTTPException(413, str(_too_large(bytes_max)))
        return message

    return bounded


def _is_signed(scope: Scope) -> bool:
    return scope["method"] == "PUT" and scope["path"].startswith(_SIGNED)


def address_of(scope: Scope) -> str:
    """The connection's other end, which may be a proxy. What a header says of it is anybody's word."""
    client = scope.get("client")
    return client[0] if client else ""


def _authorization(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), None)


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the request's body is larger than {bytes_max} bytes; send less at a time")
