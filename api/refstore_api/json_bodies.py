"""Receive the JSON body of a request, or a form, within the bounds of its route.

A route reads its body after it has checked its caller's role. A body may have `ROUTE_BYTES_MAX`, unless the parameter
of the route says more (`BodyBound`). What is larger than `LOOP_BYTES_MAX` is parsed in a thread, so that other requests
go on. The number of values and the depth are counted first: parsing takes time and memory for each value, not for each
byte.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from fastapi import Request
from pydantic import TypeAdapter
from starlette.types import Message

from refstore.errors import Invalid
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


async def parse_body(request: Request, body: bytes, adapter: TypeAdapter[Any], bound: BodyBound) -> Any:
    """Parse a body, in a thread and in turn if it is large. Raises Invalid, ValidationError, TooManyRequests."""
    return await parse_in_turn(request, body, lambda: _parse(body, adapter, bound))


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


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


def replay_request(request: Request, body: bytes) -> Request:
    """Return the request once more, as if its body had not been received."""
    is_sent = False

    async def again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await request.receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, again)


def _parse(body: bytes, adapter: TypeAdapter[Any], bound: BodyBound) -> Any:
    check_shape(body, bound.values_max)
    return adapter.validate_json(body)
