"""Keep what the log and the metrics say of a request, whichever application of the service answers it."""

from __future__ import annotations

import re
import secrets
from typing import Final, NamedTuple

from starlette.types import Message, Scope, Send

from refstore.core import event_log
from refstore_api.cross_site import drop_basic_challenge, is_browser
from refstore_api.request_metrics import RequestMetrics

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


class SentAnswer:
    """Sends an answer with the headers that every answer has, and remembers what the log says of it."""

    def __init__(self, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._scope = scope
        self.status = 0
        """0: nothing was sent yet."""
        self.size_bytes = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.get("headers", ())
            if self.status == 401 and is_browser(self._scope):
                headers = drop_basic_challenge(headers)
            nosniff = () if _NOSNIFF in headers else (_NOSNIFF,)
            message["headers"] = [*headers, *nosniff, *self._headers]
        else:
            self.size_bytes += len(message.get("body", b""))
        await self._send(message)


def record_request(
    metrics: RequestMetrics, subject: RequestSubject, sent: SentAnswer, seconds: float, *, quiet: bool = False
) -> None:
    """Count the answer, and log it, unless it is `quiet`."""
    metrics.count_request(subject.method, subject.route, sent.status or 500, seconds)
    if quiet:
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
