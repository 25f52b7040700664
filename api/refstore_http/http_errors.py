"""Name the errors of HTTP, and say what a caller gets for every error, whichever application answers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from refstore import errors
from refstore.core import event_log
from refstore.core.redaction import redact_text
from refstore.errors import RefstoreError, codes_of
from refstore.service.background_imports import TooManyImports

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
    """No slot became free for an expensive read."""

    code = "busy"


class SlowDown(errors.Unavailable):
    """The requests of a caller hold as much memory as they may."""

    code = "slow_down"


class RequestCrashed(RefstoreError):
    """Something failed that nobody foresaw; the log has it under the request's id."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("the service failed; its log says why, under the request's id")


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


def code_of_status(status: int) -> str:
    """Return the code of an error that HTTP's own library made."""
    return next((kind.code for kind, own in _OWN if own == status), f"http_{status}")


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


def log_fault(error: RefstoreError) -> None:
    """Log the reason of an error that is no fault of the caller's."""
    status = status_of(error)
    if status >= 500 and not isinstance(error, NotSupported | errors.MissingExtra | RequestCrashed):
        log_failure(error, status)


def headers_of(error: RefstoreError, status: int) -> dict[str, str]:
    """Return the headers of an error's answer, which every application sends."""
    if isinstance(error, TooManyWrongSecrets):
        return {"Retry-After": str(error.retry_after_seconds)}
    if (status == 503 and error.retryable) or isinstance(error, (TooManyImports, TooManyRequests)):
        return {"Retry-After": RETRY_AFTER_SECONDS}
    if isinstance(error, RangeNotSatisfiable):
        return {"Content-Range": f"bytes */{error.size_bytes}"}
    return {}


@contextmanager
def hide_faults() -> Generator[None, None, None]:
    """Turn what keeps the service from finding out who asks into ServiceNotReady: a stranger learns nothing about its
    stores. Refusals pass.
    """
    try:
        yield
    except (Unauthenticated, TooManyWrongSecrets):
        raise
    except RefstoreError as error:
        raise ServiceNotReady from error
