"""Around every request: an id, one line in the log, the metrics, a bound on its body. Plain ASGI, so that it costs little.

The log has the route's template, not the path: signed URLs carry a token there. Neither headers nor bodies are logged.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers import answer
from api.errors import TooLarge
from api.metrics import Metrics
from api.models import Error

HEADER: Final = b"x-request-id"
_GIVEN: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_QUIET: Final = frozenset({"/api/v1/healthcheck", "/healthcheck", "/readiness", "/metrics"})

_log = structlog.stdlib.get_logger(__name__)


class Around:
    def __init__(self, app: ASGIApp, metrics: Metrics, body_bytes_max: int, *, log_requests: bool = True) -> None:
        self._app = app
        self._metrics = metrics
        self._body_bytes_max = body_bytes_max
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _id_of(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 500
        size_bytes = 0

        async def sending(message: Message) -> None:
            nonlocal status, size_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
            else:
                size_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, _bounded(scope, receive, self._body_bytes_max), sending)
        except TooLarge as error:
            await answer(Error(message=str(error), code=error.code), 413)(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "") or "(none)"
            self._metrics.answered(scope["method"], route, status, seconds)
            if self._log_requests and route not in _QUIET:
                state: dict[str, Any] = scope.get("state") or {}
                parameters: dict[str, Any] = scope.get("path_params") or {}
                _log.info(
                    "request",
                    method=scope["method"],
                    route=route,
                    status=status,
                    ms=round(seconds * 1000, 2),
                    bytes=size_bytes,
                    key=state.get("key_id"),
                    repository=parameters.get("repository"),
                )
            structlog.contextvars.unbind_contextvars("request_id")


def _id_of(scope: Scope) -> str:
    """The caller's, if it is harmless, so that a request can be followed across services; else a new one."""
    for name, value in scope["headers"]:
        if name == HEADER and _GIVEN.fullmatch(value):
            return value.decode()
    return secrets.token_hex(8)


def _bounded(scope: Scope, receive: Receive, bytes_max: int) -> Receive:
    """Bounds every body but an object's, which `bodies.py` bounds."""
    if scope["method"] in ("GET", "HEAD", "DELETE", "OPTIONS") or _is_upload(scope):
        return receive
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > bytes_max:
            raise _too_large(bytes_max)
    size_bytes = 0

    async def bounded() -> Message:
        nonlocal size_bytes
        message = await receive()
        if message["type"] == "http.request":
            size_bytes += len(message.get("body", b""))
            if size_bytes > bytes_max:
                raise HTTPException(413, str(_too_large(bytes_max)))  # FastAPI takes any other error for a body that cannot be parsed
        return message

    return bounded


def _is_upload(scope: Scope) -> bool:
    path: str = scope["path"]
    return (scope["method"] == "POST" and path.endswith("/objects")) or (scope["method"] == "PUT" and path.startswith("/api/v1/signed/"))


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the request's body is larger than {bytes_max} bytes; send less at a time")
