"""Receive the JSON body of a request, or a form, within the bounds of its route.

A route reads its body after it has checked its caller's role. A body may have `ROUTE_BYTES_MAX`, unless the parameter
of the route says more (`BodyBound`). What is larger than `LOOP_BYTES_MAX` is parsed in a thread, so that other requests
go on. The number of values and the depth are counted first: parsing takes time and memory for each value, not for each
byte. FastAPI alone would read a body of any size before it asks who sends it, and parse it on the event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from fastapi import Request
from starlette.responses import Response

from refstore.errors import Invalid
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_http.request_bodies import document_limits, parse_in_turn, receive_document
from refstore_http.service import Service

OPEN_BYTES_MAX: Final = 16 << 10
"""The largest body of a route that needs no key."""
ROUTE_BYTES_MAX: Final = 64 << 10
VALUES_MAX: Final = 4_000
DEPTH_MAX: Final = 64
JSON: Final = "application/json"

_BRACKETS: Final = re.compile(rb"[\[{\]}]")


class BodyBound(NamedTuple):
    """The bounds of a route's body; to be given with the parameter: `body: Annotated[Model, BodyBound(...)]`."""

    bytes_max: int = ROUTE_BYTES_MAX
    values_max: int = VALUES_MAX
    """How many members and items its objects and lists may have together."""


async def receive_body(request: Request, bytes_max: int) -> bytes:
    """Receive the whole body. Raises BodyTooLarge, BodyTooSlow, Invalid, SlowDown, ClientDisconnect."""
    service: Service = request.app.state.service
    return await receive_document(request, document_limits(service.settings, bytes_max))


class BoundedBodyRoute(EncodedNameRoute):
    """A route that takes its JSON body within its bound, after the role; for `APIRouter(route_class=...)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        general = super().get_route_handler()
        if self.body_field is None:
            return general
        bound = _bound_of(self.endpoint)
        dependencies: list[Any] = [each.call for each in self.dependant.dependencies]

        async def handle(request: Request) -> Response:
            for check in dependencies:  # FastAPI asks them again, when it has the body
                await check(request)
            body = await receive_body(request, bound.bytes_max)
            if body and not _is_json(request.headers.get("content-type", "")):
                raise Invalid(f"the body was not sent as {JSON}; say so in the Content-Type")
            parsed = await parse_in_turn(request, body, partial(_parse, body, bound.values_max))
            return await general(_ParsedRequest(request, body, parsed))

        return handle


class _ParsedRequest(Request):
    """A request whose body has been received and parsed already."""

    def __init__(self, request: Request, body: bytes, parsed: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._received = body
        self._parsed = parsed

    async def body(self) -> bytes:
        return self._received

    async def json(self) -> Any:
        """Raises ValueError."""
        if isinstance(self._parsed, ValueError):
            raise self._parsed
        return self._parsed


def check_shape(body: bytes, values_max: int) -> None:
    """Check how many values a JSON text has, and how deep it is; it may be no JSON. Raises Invalid."""
    # mostly this is enough, and strings need not be told from the rest
    if body.count(b",") < values_max and body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return
    # every call reads the text once, in C, and none makes more pieces than JSON of so many values has
    most = 4 * values_max + 2 * DEPTH_MAX
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', most)
    outside = b"".join(pieces[::2])
    brackets = sum(outside.count(bracket) for bracket in (b"[", b"]", b"{", b"}"))
    if outside.count(b",") >= values_max or len(pieces) > most or brackets > most:
        raise Invalid(f"the JSON has more than {values_max} values; send less at a time")
    depth = 0
    for bracket in _BRACKETS.findall(outside):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH_MAX:
            raise Invalid(f"the JSON has more than {DEPTH_MAX} levels; send what /docs describes")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


def _parse(body: bytes, values_max: int) -> Any:
    """Return what the body says, or the ValueError of one that is not JSON. Raises Invalid."""
    check_shape(body, values_max)
    try:
        return json.loads(body)
    except ValueError as error:
        return error


def _bound_of(endpoint: Callable[..., Any]) -> BodyBound:
    for hint in get_type_hints(endpoint, include_extras=True).values():
        for mark in get_args(hint)[1:]:
            if isinstance(mark, BodyBound):
                return mark
    return BodyBound()
