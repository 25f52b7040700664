"""The one table from the error tree to HTTP, and every error's body: lakeFS's `{"message": ...}`, with our stable code beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.answers import answer
from api.models import Error, MergeConflictResult
from refstore import errors
from refstore.errors import MergeConflict, RefstoreError
from refstore.imports import TooManyImports
from refstore.redaction import redact_text

RETRY_AFTER_SECONDS: Final = "1"

STATUS: Final[tuple[tuple[type[RefstoreError], int], ...]] = (
    (errors.NothingToCommit, 400),  # lakeFS's: its clients look for a bad request
    (errors.DirtyBranch, 400),  # likewise
    (errors.Invalid, 400),
    (errors.NotFound, 404),
    (errors.Gone, 410),
    (errors.Conflict, 409),
    (errors.Unavailable, 503),
    (errors.StoreMisconfigured, 500),
    (errors.ForeignNotAllowed, 403),
    (errors.MissingExtra, 501),
    (errors.Corrupt, 500),
)
"""The first that fits."""

WORDS: Final[tuple[tuple[type[RefstoreError], str], ...]] = ((errors.NothingToCommit, "no changes"), (errors.DirtyBranch, "dirty branch"))
"""How lakeFS says it: programs look for these words in the message, because the status alone does not tell the two apart."""

_log = structlog.stdlib.get_logger(__name__)


class PreconditionFailed(errors.Conflict):
    """The object is there already, or is not what the caller thinks (`If-None-Match`, `If-Match`)."""

    code = "precondition_failed"


class Unauthenticated(RefstoreError):
    code = "unauthenticated"


class TooManyGuesses(RefstoreError):
    """Wrong secrets kept coming; carries when the next may."""

    code = "too_many_guesses"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class TooManyRequests(RefstoreError):
    """A client that a trusted proxy names has too many requests under way."""

    code = "too_many_requests"
    retryable = True


class Forbidden(RefstoreError):
    code = "forbidden"


class NotSupported(RefstoreError):
    code = "not_supported"


class Busy(errors.Contention):
    """Others kept winning the race for a branch, where lakeFS's clients call every 409 a conflict of what is merged."""


class TooLarge(errors.Invalid):
    code = "too_large"


class TooSlow(errors.Invalid):
    code = "too_slow"


class OutOfRange(errors.Invalid):
    """A range that the object does not have; carries the object's size."""

    code = "out_of_range"

    def __init__(self, message: str, size_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


_OWN: Final[tuple[tuple[type[RefstoreError], int], ...]] = (
    (PreconditionFailed, 412),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (TooManyGuesses, 429),
    (TooManyImports, 429),
    (TooManyRequests, 429),
    (NotSupported, 501),
    (Busy, 503),
    (TooLarge, 413),
    (TooSlow, 408),
    (OutOfRange, 416),
)


def status_of(error: RefstoreError) -> int:
    return next((status for kind, status in (*_OWN, *STATUS) if isinstance(error, kind)), 500)


def respond(error: RefstoreError) -> Response:
    status = status_of(error)
    words = next((f"{words}: " for kind, words in WORDS if isinstance(error, kind)), "")
    message = words + redact_text(str(error))
    if status >= 500 and not isinstance(error, NotSupported | errors.MissingExtra):
        _log.error("request_failed", status=status, code=error.code, error=message)
    if isinstance(error, MergeConflict):
        return answer(MergeConflictResult(message=message, code=error.code, paths=list(error.paths)), status)
    return answer(Error(message=message, code=error.code), status, headers=_headers(error, status))


def install(app: FastAPI) -> None:
    async def ours(_request: Request, error: Any) -> Response:
        return respond(error)

    async def invalid(_request: Request, error: Any) -> Response:
        return answer(Error(message=_explain(error), code="invalid"), 400)

    async def http(_request: Request, error: Any) -> Response:
        detail = str(error.detail) if error.status_code != 404 else "the service has no such route; /docs lists those it has"
        code = next((kind.code for kind, status in _OWN if status == error.status_code), f"http_{error.status_code}")
        return answer(Error(message=detail, code=code), error.status_code, headers=error.headers)

    app.add_exception_handler(RefstoreError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _headers(error: RefstoreError, status: int) -> Mapping[str, str] | None:
    if status == 401:
        return {"WWW-Authenticate": 'Basic realm="refstore"'}
    if status == 503 or isinstance(error, (TooManyImports, TooManyRequests)):
        return {"Retry-After": RETRY_AFTER_SECONDS}
    if isinstance(error, TooManyGuesses):
        return {"Retry-After": str(error.retry_after_seconds)}
    if isinstance(error, OutOfRange):
        return {"Content-Range": f"bytes */{error.size_bytes}"}
    return None


def _explain(error: RequestValidationError) -> str:
    """Where it is wrong and what is expected; never the value, which may be a secret."""
    parts = [f"{'.'.join(str(place) for place in item['loc'])}: {item['msg']}" for item in error.errors()[:5]]
    return f"the request is not valid ({'; '.join(parts)}); see /docs"
