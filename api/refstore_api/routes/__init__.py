"""Define the routes: one module for each class of lakeFS's clients, and one for refstore's own.

A query or a body may have fields that nothing here reads, such as lakeFS's `force`: nothing here is read-only.
"""

from __future__ import annotations

from typing import Any, Final

from refstore_api.models import Error

STATUS_DESCRIPTIONS: Final = {
    400: "The request is not valid, or there is nothing to do.",
    401: "The credentials are missing or not valid.",
    403: "The access key may not do this.",
    404: "The repository, branch, path or other name does not exist.",
    408: "The body came too slowly.",
    409: "The state does not allow it.",
    410: "It existed and was deleted, or is being deleted.",
    412: "The condition does not hold.",
    413: "The body is too large.",
    416: "The object does not have this range.",
    429: "Too many wrong secrets, requests or imports; try again after Retry-After.",
    501: "This is not supported here.",
    503: "A store did not answer; try again later.",
    500: "The service failed; its log says why.",
}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document error answers, beside `COMMON`."""
    return {status: {"model": Error, "description": STATUS_DESCRIPTIONS[status]} for status in statuses}


COMMON: Final = failures(400, 401, 403, 404, 429, 500, 503)
"""The error answers of every route that needs a key; for its router."""
