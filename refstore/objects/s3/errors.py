"""Translate the errors of an S3 server into refstore's errors, which say what to do next.

Pure functions over the error's code and HTTP status. Servers other than AWS often send one without the other (a HEAD
has no body, Ceph's 400s have none).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from refstore.errors import InvalidPath, ObjectNotFound, ObjectsRefused, ObjectsUnavailable, RefstoreError

MISSING: Final = frozenset({"NoSuchKey", "NotFound", "404"})
PRECONDITION: Final = frozenset({"PreconditionFailed", "412"})
CONFLICT: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
UNSATISFIABLE: Final = frozenset({"InvalidRange", "416"})

_ADVICE: Final = {
    "NoSuchBucket": "the bucket does not exist there; create it, or correct the URL",
    "InvalidBucketName": "that is not a valid bucket name; correct the URL",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION, or the profile's region",
    "IllegalLocationConstraintException": "the bucket is in another region; set AWS_REGION, or the profile's region",
    "AuthorizationHeaderMalformed": "the server expects another region; set AWS_REGION, or the profile's region",
    "RequestTimeTooSkewed": "the clocks of this machine and the server are too far apart; set this machine's clock",
    "InvalidAccessKeyId": "the server does not know the access key; check AWS_ACCESS_KEY_ID or the profile",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY or the profile",
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token is not valid; renew the credentials",
    "NotImplemented": "the server does not have this operation; use a server that does",
    "MethodNotAllowed": "the server does not allow this operation; check that the endpoint is its S3 API",
}
USUAL_RIGHTS: Final = (
    "s3:GetObject, PutObject, DeleteObject, ListBucket, AbortMultipartUpload and ListBucketMultipartUploads"
)
TAGGING_RIGHTS: Final = "s3:PutObjectTagging and s3:DeleteObjectTagging"
LIFECYCLE_RIGHTS: Final = "s3:GetLifecycleConfiguration and s3:PutLifecycleConfiguration"
_BUSY: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "InternalError",
        "RequestTimeout",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
    }
)
_CHANGED: Final = frozenset({"BadDigest", "XAmzContentSHA256Mismatch"})
_FULL: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"})


class ServerError(NamedTuple):
    """The error in one answer of the server."""

    code: str
    status: int
    message: str

    def __str__(self) -> str:
        return f"{self.code} ({self.message})" if self.message and self.message != self.code else self.code


def translate_server_error(server_error: ServerError, doing: str, needs: str = USUAL_RIGHTS) -> RefstoreError:
    """Return refstore's error for a server's error. `doing` says what was tried and starts the message. `needs`: the
    permissions that it takes.
    """
    what = f"{doing} failed: {server_error}"
    if server_error.code in MISSING:
        return ObjectNotFound(f"{what}; name something else")
    if server_error.code in _FULL:
        return ObjectsUnavailable(f"{what}; make room or raise the quota, then try again")
    if server_error.code in _CHANGED:
        return ObjectsUnavailable(f"{what}; the body was changed on its way to the server, try again")
    if server_error.code in _ADVICE:
        return ObjectsRefused(f"{what}; {_ADVICE[server_error.code]}")
    if server_error.code == "KeyTooLongError":
        return InvalidPath(f"{what}; use a shorter key or a shorter prefix in the store's URL")
    if is_transient(server_error):
        return ObjectsUnavailable(f"{what}; the server is overloaded or failing, try again later")
    if server_error.status in (401, 403):
        return ObjectsRefused(f"{what}; allow these credentials {needs} on the bucket and all below the prefix")
    return ObjectsRefused(f"{what}; the server refuses this request, check that the endpoint is an S3 API")


def is_transient(server_error: ServerError) -> bool:
    """Return whether the same request may succeed later."""
    return (
        server_error.code in _BUSY
        or server_error.code in CONFLICT
        or server_error.status >= 500
        or server_error.status in (0, 408, 429)
    )


class KeyRefusal(NamedTuple):
    reason: str
    is_retryable: bool
    """Whether another round may succeed."""
    is_missing: bool = False
    """Whether the key did not exist."""
    is_changed: bool = False
    """Whether the key has another ETag than the request named."""
    cause: RefstoreError | None = None
    """The error of the whole request, if the whole request failed."""


def refusal_of(error: RefstoreError) -> KeyRefusal:
    """Return the refusal of a key whose whole request failed: boto has repeated it already."""
    return KeyRefusal(str(error), is_retryable=False, cause=error)
