"""Make the gateway as an ASGI application.

Each request gets an id, one log line and a count; it is authenticated before its body is read, and before anything but
its key is looked up.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from refstore.configuration.settings import S3Settings, Settings
from refstore.core import event_log
from refstore.errors import InvalidSettings, RefstoreError
from refstore.service import s3_secrets
from refstore.service.s3_secrets import SecretCipher
from refstore_http.request_metrics import RequestMetrics
from refstore_http.request_pipeline import HEADER, RequestPipeline, RequestSubject, address_of, name_caller
from refstore_http.service import Service
from refstore_s3.authentication import Authentication, KeyAuthentication
from refstore_s3.s3_errors import S3Error, explain_failure, make_error_body
from refstore_s3.s3_operations import UNKNOWN, S3Operation, find_operation
from refstore_s3.s3_requests import Gateway, S3Request, refuse_headers

ROUTE: Final = "s3:"
"""What the names of operations begin with in the log and the metrics, beside the API's routes."""
_REQUEST: Final = "s3_request"
"""The name of a request's state."""
_OPERATION: Final = "s3_operation"


class S3Application:
    """Answers the requests of S3 clients, behind the pipeline."""

    failures = (S3Error, RefstoreError)

    def __init__(
        self, service: Service, settings: S3Settings, metrics: RequestMetrics, authentication: Authentication
    ) -> None:
        self._gateway = Gateway(service, settings)
        self._authentication = authentication
        self._pipeline = RequestPipeline(self, service, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pipeline(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises S3Error, RefstoreError."""
        request = scope["state"][_REQUEST] = S3Request(scope, receive, self._gateway)
        operation = scope["state"][_OPERATION] = find_operation(request)
        request.proof = await self._authentication.authenticate(request, address_of(scope))
        name_caller(scope, request.principal.key_id, ROUTE + operation.name)
        if operation.handler is None:
            raise S3Error(
                "NotImplemented" if request.method in ("GET", "HEAD", "PUT", "POST", "DELETE") else "MethodNotAllowed",
                "this operation of S3 is not supported; docs/s3.md lists those that are",
            )
        refuse_headers(request)
        response = await operation.handler(request)
        await response(scope, receive, send)

    def make_headers(self, request_id: bytes) -> list[tuple[bytes, bytes]]:
        return [(HEADER, request_id), (b"x-amz-request-id", request_id)]

    def make_failure(self, scope: Scope, error: Exception) -> Response:
        told = explain_failure(error)
        is_bodiless = told.status == 304 or scope["method"] == "HEAD"
        if is_bodiless:
            return Response(b"", told.status, headers=told.headers)
        request = _request_of(scope)
        request_id = str(event_log.context_fields()["request_id"])
        body = make_error_body(told, request.resource if request is not None else "", request_id)
        return Response(body, told.status, headers=told.headers, media_type="application/xml")

    def describe(self, scope: Scope, status: int) -> RequestSubject:
        del status
        request = _request_of(scope)
        operation: S3Operation = scope["state"].get(_OPERATION, UNKNOWN)
        proof = request.proof if request is not None else None
        target = request.target if request is not None else None
        bucket = request.bucket if request is not None else None
        return RequestSubject(
            scope["method"],
            ROUTE + operation.name,
            address_of(scope),
            proof.principal.key_id if proof is not None else None,
            "" if request is None else request.claimed_key,
            bucket.repository if bucket is not None else None,
            (target.ref if target is not None else bucket.branch or None) if bucket is not None else None,
        )


def make_application(settings: Settings, service: Service, metrics: RequestMetrics) -> ASGIApp:
    """Make the gateway over the service that answers the API. Raises InvalidSettings, MissingExtra."""
    cipher = read_server_key(settings)
    lake = service.lake
    authentication = KeyAuthentication(service, partial(s3_secrets.read_secrets, lake.kv, lake.clock, cipher))
    return S3Application(service, settings.s3, metrics, authentication)


def read_server_key(settings: Settings) -> SecretCipher:
    """Return the cipher of S3 secrets. Raises InvalidSettings, MissingExtra."""
    cipher = s3_secrets.read_cipher(settings.s3.secrets_key, settings.data)
    if cipher is None:
        raise InvalidSettings(
            "S3 clients sign with secrets that are encrypted under a server key, and none is set; give all services "
            "and `refstore keys rotate --s3` the same REFSTORE_S3_SECRETS_KEY, made with: openssl rand -hex 32"
        )
    return cipher


def _request_of(scope: Scope) -> S3Request | None:
    """Return the request; None: it was refused before it was parsed."""
    return scope["state"].get(_REQUEST)
