"""Put the application of the routes behind the pipeline, with the checks that only the API makes.

A body is read only after its sender was authenticated; handlers check what that caller may do. The log says which key
asked for what, and from where. A key that was not proven to be the caller's appears as `claimed_key`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from refstore.errors import RefstoreError
from refstore_api.encoded_slashes import check_encoding, keep_encoded_slashes
from refstore_api.error_responses import make_error_response
from refstore_http.request_metrics import RequestMetrics
from refstore_http.request_origin import SAFE_METHODS, check_site
from refstore_http.request_pipeline import HEADER, RequestPipeline, RequestSubject, address_of, header_of
from refstore_http.service import Service

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
_QUIET: Final = frozenset({"/api/v1/healthcheck", "/healthcheck", "/readiness", "/metrics"})


class MatchedRoute(NamedTuple):
    route: str
    """The route's template, because a path may contain a signed URL's token."""
    parameters: Mapping[str, str]


class RequestMiddleware:
    failures = (RefstoreError,)

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        metrics: RequestMetrics,
        admit: Callable[[str | None, str], Awaitable[object]],
        claimed: Callable[[str | None], str],
        locate: Callable[[Scope], MatchedRoute],
    ) -> None:
        """`admit` authenticates an Authorization header from an address. It raises RefstoreError.
        `claimed` returns the access key that an Authorization header names, proven or not.
        `locate` finds the route of a request that was refused before routing."""
        self._app = app
        self._admit = admit
        self._claimed = claimed
        self._locate = locate
        self._public_url = service.settings.public_url
        self._transport_security = _TRANSPORT_SECURITY if self._public_url.startswith("https://") else ()
        self._pipeline = RequestPipeline(self, service, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        keep_encoded_slashes(scope)
        await self._pipeline(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check what can be checked before the body is read, and who sends it; then let the routes answer. Raises
        RefstoreError.
        """
        check_site(scope, self._public_url)
        check_encoding(scope)
        if (
            scope["method"] not in _BODILESS
            and scope["path"] != _LOGIN
            and not scope["path"].startswith(_PAGES)  # they authenticate by a cookie, before they read a body
            and not _is_signed(scope)
        ):
            admitted = await self._admit(header_of(scope, b"authorization"), address_of(scope))
            scope.setdefault("state", {})[PRINCIPAL] = admitted
        await self._app(scope, receive, send)

    def make_headers(self, request_id: bytes) -> list[tuple[bytes, bytes]]:
        return [(HEADER, request_id), *self._transport_security]

    def make_failure(self, scope: Scope, error: Exception) -> Response:
        del scope
        assert isinstance(error, RefstoreError)  # noqa: S101  # `failures` says so
        return make_error_response(error)

    def describe(self, scope: Scope, status: int) -> RequestSubject:
        route, parameters = self._matched_route(scope, refused=status in _REFUSED)
        state: dict[str, Any] = scope.get("state") or {}
        key = state.get("key_id")
        claimed = "" if key else state.get("claimed_key") or self._claimed(header_of(scope, b"authorization"))
        return RequestSubject(
            scope["method"],
            route,
            address_of(scope),
            key,
            claimed,
            parameters.get("repository"),
            next((branch for name in _BRANCHES if (branch := parameters.get(name))), None),
            is_quiet=route in _QUIET and status not in _REFUSED,
        )

    def _matched_route(self, scope: Scope, *, refused: bool) -> MatchedRoute:
        """Return the route of the request. A request that was refused before routing is matched now."""
        route = getattr(scope.get("route"), "path", "")
        if route:
            return MatchedRoute(route, scope.get("path_params") or {})
        return self._locate(scope) if refused else MatchedRoute(NO_ROUTE, {})


def _is_signed(scope: Scope) -> bool:
    return scope["method"] == "PUT" and scope["path"].startswith(_SIGNED)
