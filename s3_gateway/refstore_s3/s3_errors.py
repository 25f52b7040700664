"""Make the errors that S3 clients look for: a code, a status and an XML body; and map refstore's errors to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refstore import errors
from refstore.errors import RefstoreError
from refstore_http import http_errors
from refstore_s3.xml_documents import NOT_IN_XML, make_document

STATUS: Final[Mapping[str, int]] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyExists": 409,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "ConditionalRequestConflict": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidObjectState": 403,
    "InvalidPart": 400,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidTag": 400,
    "InvalidToken": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MaxMessageLengthExceeded": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "OperationAborted": 409,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}
"""The status of each code that the gateway answers with, as S3 has them."""

CODES: Final[tuple[tuple[type[RefstoreError], str], ...]] = (
    (http_errors.PreconditionFailed, "PreconditionFailed"),
    (http_errors.Unauthenticated, "InvalidAccessKeyId"),
    (http_errors.Forbidden, "AccessDenied"),
    (http_errors.TooManyWrongSecrets, "SlowDown"),
    (http_errors.TooManyRequests, "SlowDown"),
    (http_errors.SlowDown, "SlowDown"),
    (http_errors.NotSupported, "NotImplemented"),
    (http_errors.BodyTooLarge, "EntityTooLarge"),
    (http_errors.BodyTooSlow, "RequestTimeout"),
    (http_errors.RangeNotSatisfiable, "InvalidRange"),
    (errors.RepositoryNotFound, "NoSuchBucket"),
    (errors.UploadNotFound, "NoSuchUpload"),
    (errors.NotFound, "NoSuchKey"),
    (errors.Gone, "InvalidObjectState"),
    (errors.PathChanged, "PreconditionFailed"),
    (errors.Contention, "SlowDown"),
    (errors.Conflict, "OperationAborted"),
    (errors.Unavailable, "ServiceUnavailable"),
    (errors.ForeignNotAllowed, "AccessDenied"),
    (errors.MissingExtra, "NotImplemented"),
    (errors.DurationsDiffer, "InternalError"),
    (errors.InvalidPath, "InvalidArgument"),
    (errors.InvalidParts, "InvalidPart"),
    (errors.Invalid, "InvalidRequest"),
)
"""The first matching class decides; every other error is an `InternalError`."""


class S3Error(Exception):
    """What the client is told: a code of S3's, a message that says what to do next, and fields of the XML body."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """`status`: only where it is not the code's own. `fields`: further elements of the body, such as
        `ArgumentName`.
        """
        super().__init__(message)
        self.code = code
        self.status = STATUS[code] if status is None else status
        self.message = message
        self.headers = dict(headers or {})
        self.fields = dict(fields or {})


def to_s3_error(error: RefstoreError) -> S3Error:
    """Return what the client is told of an error of refstore's; the reasons of the operator's stores are not told."""
    code = next((code for kind, code in CODES if isinstance(error, kind)), "InternalError")
    return S3Error(code, http_errors.message_of(error), headers=http_errors.headers_of(error, STATUS[code]))


def explain_failure(error: Exception) -> S3Error:
    """Return what the client is told of an error, and log one that is no fault of the client's."""
    if isinstance(error, S3Error):
        return error
    assert isinstance(error, RefstoreError)  # noqa: S101  # the gateway's failures are of these two kinds
    http_errors.log_fault(error)
    return to_s3_error(error)


def make_error_body(error: S3Error, resource: str, request_id: str) -> bytes:
    """Make the XML of an error, for the request with this id about this resource. Every parser can read it, also where
    a key has characters that XML does not have.
    """
    fields = [("Code", error.code), ("Message", error.message), *error.fields.items(), ("Resource", resource)]
    readable = [(name, NOT_IN_XML.sub("\ufffd", value)) for name, value in fields]
    return make_document("Error", [*readable, ("RequestId", request_id)], namespace="")
