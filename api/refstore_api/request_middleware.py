"""Surround every request with an id, one log line, and the metrics. Plain ASGI, so that it costs little.

A body is read only after its sender was authenticated; handlers check what that caller may do.

The log says which key asked for what, and from where. A key that was not proven to be the caller's appears as
`claimed_key`. The log has the route's template instead of the path, because the paths of signed URLs contain a token.
Neither headers nor bodies are logged. An unexpected error is logged here under the request's id, and answered with 500.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from refstore.core import event_log
from refstore.errors import RefstoreError
from refstore_api.connection_slots import ConnectionSlots, take_slot
from refstore_api.cross_site import SAFE_METHODS, check_site
from refstore_api.encoded_slashes import check_encoding, keep_encoded_slashes
from refstore_api.error_responses import make_error_response
from refstore_api.host_header import check_host
from refstore_api.json_responses import make_response
from refstore_api.memory_budget import MemoryBudget
from refstore_api.models import Error
from refstore_api.request_bodies import check_dropped_body
from refstore_api.request_metrics import RequestMetrics
from refstore_api.request_records import (
    CLIENT_WENT_AWAY,
    HEADER,
    RequestSubject,
    SentAnswer,
    address_of,
    header_of,
    record_request,
    request_id_of,
)

_SIGNED: Final = "/api/v1/signed/"
_LOGIN: Final = "/api/v1/auth/login"
_PAGES: Final = "/ui/"
_BODILESS: Final = SAFE_METHODS
_REFUSED: Final = frozenset({401, 403, 429})
_BRANCHES: Final = ("branch", "destination_branch", "ref", "source_ref", "left_ref")
"""The path parameters that name a part of a repository; the first one present counts."""
NO_ROUTE: Final = "(none)"
PRINCIPAL: Final = "principal"
"""The name of a request's state: who sent it, where that was proven before its body was read."""
_TRANSPORT_SECURITY: Final = ((b"strict-transport-security", b"max-age=31536000"),)
"""For the public host only: on loopback a browser would ask other services of this machine by TLS, too."""
CRASHED: Final = "the service failed; its log says why, under the request's id"
_QUIET: Final = frozenset({"/api/v1/healthcheck", "/healthcheck", "/readiness", "/metrics"})

_log = event_log.get_logger(__name__)


class MatchedRoute(NamedTuple):
    route: str
    """The route's template, because a path may contain a signed URL's token."""
    parameters: Mapping[str, str]


class RequestMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        metrics: RequestMetrics,
        memory: MemoryBudget,
        admit: Callable[[str | None, str], Awaitable[object]],
        claimed: Callable[[str | None], str],
        locate: Callable[[Scope], MatchedRoute],
        public_url: str = "",
        slots: ConnectionSlots | None = None,
    ) -> None:
        """`admit` authenticates an Authorization header from an address. It raises RefstoreError.
        `claimed` returns the access key that an Authorization header names, proven or not.
        `locate` finds the route of a request that was refused before routing.
        `slots` bounds the requests of each client that connects through a proxy."""
        self._app = app
        self._metrics = metrics
        self._memory = memory
        self._admit = admit
        self._claimed = claimed
        self._locate = locate
        self._public_url = public_url
        self._transport_security = _TRANSPORT_SECURITY if public_url.startswith("https://") else ()
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        with event_log.bind_fields(request_id=request_id):
            await self._answer(scope, receive, send, request_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        began = time.perf_counter()
        keep_encoded_slashes(scope)
        held = self._memory.open(scope)
        headers = [(HEADER, request_id.encode()), *self._transport_security]
        sent = SentAnswer(scope, send, headers, held, make_error_response)
        client = address_of(scope)
        has_slot = False
        try:
            has_slot = take_slot(self._slots, client)
            await self._check(scope, client)
            await self._app(scope, receive, sent)
        except RefstoreError as error:
            await make_error_response(error)(scope, receive, sent)
        except ClientDisconnect:
            sent.status = CLIENT_WENT_AWAY
        except Exception as error:  # noqa: BLE001  # nothing above could still answer
            response = respond_to_crash(error)
            if not sent.status:  # otherwise the answer is cut off, which its length shows the client
                await response(scope, receive, sent)
        finally:
            held.set(0)
            if self._slots is not None and has_slot:
                self._slots.release(client)
            self._record(scope, sent, client, time.perf_counter() - began)

    async def _check(self, scope: Scope, client: str) -> None:
        """Check what can be checked before the body is read, and who sends it. Raises RefstoreError."""
        check_host(scope)
        check_dropped_body(scope)
        check_site(scope, self._public_url)
        check_encoding(scope)
        if (
            scope["method"] not in _BODILESS
            and scope["path"] != _LOGIN
            and not scope["path"].startswith(_PAGES)  # they authenticate by a cookie, before they read a body
            and not _is_signed(scope)
        ):
            scope.setdefault("state", {})[PRINCIPAL] = await self._admit(header_of(scope, b"authorization"), client)

    def _record(self, scope: Scope, sent: SentAnswer, client: str, seconds: float) -> None:
        """Count the answer, and log it."""
        route, parameters = self._matched_route(scope, refused=sent.status in _REFUSED)
        state: dict[str, Any] = scope.get("state") or {}
        key = state.get("key_id")
        claimed = "" if key else state.get("claimed_key") or self._claimed(header_of(scope, b"authorization"))
        subject = RequestSubject(
            scope["method"],
            route,
            client,
            key,
            claimed,
            parameters.get("repository"),
            next((branch for name in _BRANCHES if (branch := parameters.get(name))), None),
        )
        quiet = route in _QUIET and sent.status not in _REFUSED
        record_request(self._metrics, subject, sent, seconds, quiet=quiet)

    def _matched_route(self, scope: Scope, *, refused: bool) -> MatchedRoute:
        """Return the route of the request. A request that was refused before routing is matched now."""
        route = getattr(scope.get("route"), "path", "")
        if route:
            return MatchedRoute(route, scope.get("path_params") or {})
        return self._locate(scope) if refused else MatchedRoute(NO_ROUTE, {})


def respond_to_crash(error: Exception) -> Response:
    """Log an unexpected error, and return the answer to it."""
    # as text, because an embedding application may log exceptions with local variables, and so with secrets
    _log.error("request_crashed", error=repr(error), traceback="".join(traceback.format_exception(error)))
    return make_response(Error(message=CRASHED, code="internal"), 500)


def _is_signed(scope: Scope) -> bool:
    return scope["method"] == "PUT" and scope["path"].startswith(_SIGNED)
