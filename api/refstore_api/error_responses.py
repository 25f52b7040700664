"""Map every error to an HTTP status and body: lakeFS's `{"message": ...}`, with refstore's stable code beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from refstore import errors
from refstore.core import event_log
from refstore.core.redaction import redact_text
from refstore.errors import MergeConflict, RefstoreError, codes_of
from refstore.service.background_imports import TooManyImports
from refstore_api.json_responses import make_response
from refstore_api.models import Error, MergeConflictResult

RETRY_AFTER_SECONDS: Final = "1"

STATUS: Final[tuple[tuple[type[RefstoreError], int], ...]] = (
    (errors.NothingToCommit, 400),  # lakeFS's: its clients look for a bad request
    (errors.DirtyBranch, 400),  # likewise
    (errors.DurationsDiffer, 500),  # no request can help it: an operator must act
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
"""The first matching class decides."""

STORE_FAULTS: Final[tuple[tuple[type[RefstoreError], str], ...]] = (
    (errors.KVUnavailable, "the key-value store cannot be used now"),
    (errors.ObjectsUnavailable, "the object store cannot be used now"),
    (errors.AuditUnavailable, "the audit log cannot be written, so nothing was changed"),
    (errors.StoreMisconfigured, "a store is not set up as it must be"),
    (errors.DurationsDiffer, "the durations of this service are not those of the lake"),
    (errors.Corrupt, "stored data cannot be trusted"),
)
"""Faults of the operator's stores. Their messages name hosts, files and users, so only the log has them."""
ASK: Final = "ask an operator: the service's log has the reason, under this answer's X-Request-Id"

LAKEFS_WORDS: Final[tuple[tuple[type[RefstoreError], str], ...]] = (
    (errors.NothingToCommit, "no changes"),
    (errors.DirtyBranch, "dirty branch"),
)
"""lakeFS's words. Programs look for them in the message, because the status alone does not tell these two errors apart.
"""

_log = event_log.get_logger(__name__)


class PreconditionFailed(errors.Conflict):
    """The object exists already, or is not the version that the client expects (`If-None-Match`, `If-Match`)."""

    code = "precondition_failed"


class Unauthenticated(RefstoreError):
    code = "unauthenticated"


class ServiceNotReady(errors.Unavailable):
    """The service cannot find out who asks, or the stores fail. Who has no key learns nothing else."""

    def __init__(self) -> None:
        super().__init__("not ready; make the same call again later")


class TooManyWrongSecrets(RefstoreError):
    """Too many wrong secrets came; the error says when the caller may try again."""

    code = "too_many_guesses"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class TooManyRequests(RefstoreError):
    """A client has too many requests running, or waiting."""

    code = "too_many_requests"
    retryable = True


class Forbidden(RefstoreError):
    code = "forbidden"


class NotSupported(RefstoreError):
    code = "not_supported"


class BranchContention(errors.Contention):
    """Other writers kept winning the race for a branch. lakeFS's clients take every 409 for a merge conflict."""


class ReadsBusy(errors.Unavailable):
    """No slot became free for an expensive read, or the process that made it has ended."""

    code = "busy"


class SlowDown(errors.Unavailable):
    """The requests of a caller hold as much memory as they may."""

    code = "slow_down"


class BodyTooLarge(errors.Invalid):
    code = "too_large"


class BodyTooSlow(errors.Invalid):
    code = "too_slow"


class RangeNotSatisfiable(errors.Invalid):
    """A range beyond the object's end; carries the object's size."""

    code = "out_of_range"

    def __init__(self, message: str, size_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


_OWN: Final[tuple[tuple[type[RefstoreError], int], ...]] = (
    (PreconditionFailed, 412),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (TooManyWrongSecrets, 429),
    (TooManyImports, 429),
    (TooManyRequests, 429),
    (NotSupported, 501),
    (BranchContention, 503),
    (BodyTooLarge, 413),
    (BodyTooSlow, 408),
    (RangeNotSatisfiable, 416),
)


def status_of(error: RefstoreError) -> int:
    return next((status for kind, status in (*_OWN, *STATUS) if isinstance(error, kind)), 500)


def make_error_response(error: RefstoreError) -> Response:
    status = status_of(error)
    message = message_of(error)
    if status >= 500 and not isinstance(error, NotSupported | errors.MissingExtra):
        log_failure(error, status)
    if isinstance(error, MergeConflict):
        return make_response(MergeConflictResult(message=message, code=error.code, paths=list(error.paths)), status)
    return make_response(Error(message=message, code=error.code), status, headers=_headers(error, status))


def message_of(error: RefstoreError) -> str:
    """Return what the caller is told."""
    if isinstance(error, errors.ManifestBehind):
        return f"{error.happened}; {ASK}"
    return message_of_stored(error.code, str(error))


def message_of_stored(code: str, message: str) -> str:
    """Return what a caller is told of an error that was written down."""
    fault = next((words for kind, words in STORE_FAULTS if code in codes_of(kind)), "")
    if fault:
        return f"{fault}; make the same call again later, or {ASK}"
    words = next((f"{words}: " for kind, words in LAKEFS_WORDS if kind.code == code), "")
    return words + redact_text(message)


def log_failure(error: RefstoreError, status: int) -> None:
    """Log the whole reason, for operators."""
    reason = (
        error.__cause__ if isinstance(error, ServiceNotReady) and isinstance(error.__cause__, RefstoreError) else error
    )
    _log.error("request_failed", status=status, code=reason.code, error=redact_text(str(reason)))


def install_error_handlers(app: FastAPI) -> None:
    async def handle_refstore_error(_request: Request, error: Any) -> Response:
        return make_error_response(error)

    async def handle_invalid_request(_request: Request, error: Any) -> Response:
        return make_response(Error(message=_explain_validation(error), code="invalid"), 400)

    async def handle_http_exception(_request: Request, error: Any) -> Response:
        detail = (
            str(error.detail) if error.status_code != 404 else "the service has no such route; see /docs for its routes"
        )
        code = next((kind.code for kind, status in _OWN if status == error.status_code), f"http_{error.status_code}")
        return make_response(Error(message=detail, code=code), error.status_code, headers=error.headers)

    app.add_exception_handler(RefstoreError, handle_refstore_error)
    app.add_exception_handler(RequestValidationError, handle_invalid_request)
    app.add_exception_handler(HTTPException, handle_http_exception)


def _headers(error: RefstoreError, status: int) -> Mapping[str, str] | None:
    if status == 401:
        return {"WWW-Authenticate": 'Basic realm="refstore"'}
    if (status == 503 and error.retryable) or isinstance(error, (TooManyImports, TooManyRequests)):
        return {"Retry-After": RETRY_AFTER_SECONDS}
    if isinstance(error, TooManyWrongSecrets):
        return {"Retry-After": str(error.retry_after_seconds)}
    if isinstance(error, RangeNotSatisfiable):
        return {"Content-Range": f"bytes */{error.size_bytes}"}
    return None


def _explain_validation(error: RequestValidationError) -> str:
    """Say which field is wrong and what is expected; never show the value, which may be a secret."""
    parts = [f"{'.'.join(str(place) for place in item['loc'])}: {item['msg']}" for item in error.errors()[:5]]
    return f"the request is not valid ({'; '.join(parts)}); see /docs"
