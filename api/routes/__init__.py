"""The routes, one module for each class of lakeFS's clients, and one for what is refstore's own."""

from __future__ import annotations

from typing import Any, Final

from api.models import Error

SAID: Final = {
    400: "The request is not valid, or there is nothing to do.",
    401: "No credentials, or not good ones.",
    403: "The access key may not do this.",
    404: "What is named is not there.",
    408: "The body came too slowly.",
    409: "The state does not allow it.",
    410: "It was there, and is not any more, or is on its way out.",
    412: "The condition does not hold.",
    413: "The body is too large.",
    416: "The object does not have this range.",
    429: "Too many wrong secrets came for this access key; after Retry-After the next may.",
    501: "This is not supported here.",
    503: "A store did not answer; try again later.",
    500: "The service failed; its log says why.",
}


def failures(*more: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route: those that every route has, and more."""
    return {status: {"model": Error, "description": SAID[status]} for status in sorted({400, 401, 403, 404, 429, 500, 503, *more})}
