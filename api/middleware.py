"""Around every request: an id, one line in the log, the metrics, bounds on its body. Plain ASGI, so that it costs little.

A body is read only if whoever sends it has shown who they are; handlers look for themselves what that one may do.

The log says who asked for what, from where; a key is `claimed_key` there until it was proven to be the caller's. It has the route's
template, not the path: signed URLs carry a token there. Neither headers nor bodies are logged. What nobody
foresaw is logged here, under the request's id, and answered with 500.
"""

from __future__ import annotations

import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers import answer
from api.bodies import Limits, Patience, declared_bytes
from api.browsers import SAFE, check_site, is_browser, without_basic
from api.connections import Slots
from api.errors import TooLarge, TooManyRequests, respond
from api.metrics import Metrics
from api.models import Error
from api.naming import check_encoding, keep_apart
from refstore.errors import RefstoreError

HEADER: Final = b"x-request-id"
_GIVEN: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_UPLOAD: Final = re.compile(r"/api/v1/repositories/[^/]+/branches/[^/]+/objects")
_SIGNED: Final = "/api/v1/signed/"
_LOGIN: Final = "/api/v1/auth/login"
_BODILESS: Final = SAFE
_REFUSED: Final = frozenset({401, 403, 429})
_BRANCHES: Final = ("branch", "destination_branch", "ref", "source_ref", "left_ref")
"""The parameters that say what part of a repository was asked for, in the order in which they do."""
_NAME: Final = re.compile(r"[A-Za-z0-9_./~^@{}:-]{1,255}")
NO_ROUTE: Final = "(none)"
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
CRASHED: Final = "the service failed; its log says why, under the request's id"
CLIENT_WENT_AWAY: Final = 499
"""In the log and the metrics only: there is nobody left to tell."""
_QUIET: Final = frozenset({"/api/v1/healthcheck", "/healthcheck", "/readiness", "/metrics"})

_log = structlog.stdlib.get_logger(__name__)


class Located(NamedTuple):
    route: str
    """Its template: a path may hold a signed URL's token."""
    parameters: Mapping[str, str]


class Around:
    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        limits: Limits,
        admit: Callable[[str | None, str], Awaitable[object]],
        claimed: Callable[[str | None], str],
        locate: Callable[[Scope], Located],
        public_url: str = "",
        slots: Slots | None = None,
    ) -> None:
        """`admit`: looks at an Authorization header, and the address that it comes from. Raises RefstoreError.
        `claimed`: the access key that an Authorization header names, whether or not it is that key's.
        `locate`: the route of a request that has not come to the routes.
        `slots`: for the requests of each client, where proxies connect for many."""
        self._app = app
        self._metrics = metrics
        self._limits = limits
        self._admit = admit
        self._claimed = claimed
        self._locate = locate
        self._public_url = public_url
        self._slots = slots

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
        client = address_of(scope)
        has_slot = False

        async def sending(message: Message) -> None:
            nonlocal status, size_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(HEADER, request_id.encode())]
                given = message.get("headers", ())
                if status == 401 and is_browser(scope):
                    given = without_basic(given)
                message["headers"] = [*given, *own] if _NOSNIFF in given else [*given, _NOSNIFF, *own]
            else:
                size_bytes += len(message.get("body", b""))
            await send(message)

        try:
            if self._slots is not None:
                has_slot = self._slots.take(client)
                if not has_slot:
                    raise TooManyRequests("too many requests from this client's address are under way; make fewer at a time")
            check_site(scope, self._public_url)
            check_encoding(scope)
            if scope["method"] not in _BODILESS and scope["path"] != _LOGIN and not _is_signed(scope):
                await self._admit(_header(scope, b"authorization"), client)
            await self._app(scope, _bounded(scope, receive, self._limits), sending)
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
            if self._slots is not None and has_slot:
                self._slots.release(client)
            seconds = time.perf_counter() - began
            route, parameters = self._located(scope, refused=status in _REFUSED)
            self._metrics.answered(scope["method"], route, status or 500, seconds)
            if route not in _QUIET or status in _REFUSED:
                state: dict[str, Any] = scope.get("state") or {}
                key = state.get("key_id")
                _log.info(
                    "request",
                    method=scope["method"],
                    route=route,
                    status=status or 500,
                    ms=round(seconds * 1000, 2),
                    bytes=size_bytes,
                    client=client,
                    key=key,
                    **({} if key else {"claimed_key": state.get("claimed_key") or self._claimed(_header(scope, b"authorization"))}),
                    repository=_shown(parameters.get("repository")),
                    branch=_shown(next((found for name in _BRANCHES if (found := parameters.get(name))), None)),
                )
            structlog.contextvars.unbind_contextvars("request_id")

    def _located(self, scope: Scope, *, refused: bool) -> Located:
        """What was asked for. (Who was refused at the door did not come to the routes.)"""
        route = getattr(scope.get("route"), "path", "")
        if route:
            return Located(route, scope.get("path_params") or {})
        return self._locate(scope) if refused else Located(NO_ROUTE, {})


def _id_of(scope: Scope) -> str:
    """The caller's, if it is harmless, so that a request can be followed across services; else a new one."""
    for name, value in scope["headers"]:
        if name == HEADER and _GIVEN.fullmatch(value):
            return value.decode()
    return secrets.token_hex(8)


def _shown(text: str | None) -> str | None:
    """A name for the log; what is none may hold anything, line breaks too."""
    return text if text is not None and _NAME.fullmatch(text) else None


def _bounded(scope: Scope, receive: Receive, limits: Limits) -> Receive:
    """Bounds every body but an object's, which `bodies.py` bounds. (Nobody reads the body of a GET or HEAD.) Raises Invalid, TooLarge."""
    if scope["method"] in _BODILESS or _is_signed(scope) or (scope["method"] == "POST" and _UPLOAD.fullmatch(scope["path"])):
        return receive
    declared = declared_bytes(_header(scope, b"content-length"))
    if declared is not None and declared > limits.bytes_max:
        raise _too_large(limits.bytes_max)
    size_bytes = 0
    whole = False
    patience = Patience(limits)

    async def bounded() -> Message:
        nonlocal size_bytes, whole
        if whole:
            return await receive()  # waits for the client to go away, however long
        # HTTPException: FastAPI takes any other error for a body that cannot be parsed
        try:
            message = await patience.wait(receive(), _size_of)
        except TimeoutError:
            raise HTTPException(408, str(patience)) from None
        if message["type"] == "http.request":
            whole = not message.get("more_body", False)
            size_bytes += _size_of(message)
            if size_bytes > limits.bytes_max:
                raise HTTPException(413, str(_too_large(limits.bytes_max)))
        return message

    return bounded


def _size_of(message: Message) -> int:
    return len(message.get("body", b""))


def _is_signed(scope: Scope) -> bool:
    return scope["method"] == "PUT" and scope["path"].startswith(_SIGNED)


def address_of(scope: Scope) -> str:
    """The connection's other end, or the client that a trusted proxy names there. What others' headers say of it is anybody's word."""
    client = scope.get("client")
    return client[0] if client else ""


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == name), None)


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the request's body is larger than {bytes_max} bytes; send less at a time")
