"""Make the gateway as an ASGI application.

Each request gets an id, one log line and a count; it is authenticated before its body is read, and before anything but
its key is looked up.
"""

from __future__ import annotations

import time
import traceback
from functools import partial
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refstore.audit import Actor, set_actor
from refstore.configuration.settings import S3Settings, Settings
from refstore.core import event_log
from refstore.errors import InvalidSettings, RefstoreError
from refstore.service import s3_secrets
from refstore.service.s3_secrets import SecretCipher
from refstore_api.connection_slots import request_slots, take_slot
from refstore_api.error_responses import log_failure
from refstore_api.host_header import check_host
from refstore_api.request_bodies import check_dropped_body
from refstore_api.request_metrics import RequestMetrics
from refstore_api.request_middleware import CRASHED
from refstore_api.request_records import (
    CLIENT_WENT_AWAY,
    HEADER,
    RequestSubject,
    SentAnswer,
    address_of,
    record_request,
    request_id_of,
)
from refstore_api.service import Service
from refstore_api.trusted_proxies import TrustedProxies
from refstore_s3.authentication import Authentication, KeyAuthentication
from refstore_s3.gateway import Gateway
from refstore_s3.refused_headers import refuse_headers
from refstore_s3.s3_errors import S3Error, explain_failure, make_error_body
from refstore_s3.s3_operations import UNKNOWN, S3Operation, find_operation
from refstore_s3.s3_requests import S3Request

ROUTE: Final = "s3:"
"""What the names of operations begin with in the log and the metrics, beside the API's routes."""

_log = event_log.get_logger(__name__)


class S3Application:
    def __init__(
        self, service: Service, settings: S3Settings, metrics: RequestMetrics, authentication: Authentication
    ) -> None:
        self._gateway = Gateway(service, settings)
        self._metrics = metrics
        self._authentication = authentication
        self._slots = request_slots(service.settings) if service.settings.trusted_proxies else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = request_id_of(scope)
        with event_log.bind_fields(request_id=request_id):
            await self._answer(scope, receive, send, request_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        began = time.perf_counter()
        encoded_id = request_id.encode()
        body = _AwaitedBody(scope, receive)
        held = self._gateway.service.memory.open(scope)
        request: S3Request | None = None

        def respond_to_error(error: S3Error | RefstoreError) -> Response:
            return _make_error_response(error, request, request_id)

        headers = [(HEADER, encoded_id), (b"x-amz-request-id", encoded_id)]
        sent = SentAnswer(scope, body.close_if_unread(send), headers, held, respond_to_error)
        client = address_of(scope)
        operation = UNKNOWN
        has_slot = False
        response: Response | None = None
        try:
            has_slot = take_slot(self._slots, client)
            check_host(scope)
            check_dropped_body(scope)
            request = S3Request(scope, body.receive, self._gateway)
            operation = find_operation(request)
            response = await self._handle(request, operation, client)
            await response(scope, receive, sent)
        except (S3Error, RefstoreError) as error:
            if not sent.status:
                await respond_to_error(error)(scope, receive, sent)
            elif isinstance(error, RefstoreError):  # the answer is cut off, which its length shows the client
                log_failure(error, 500)
        except ClientDisconnect:
            sent.status = sent.status or CLIENT_WENT_AWAY
        except Exception as error:  # noqa: BLE001  # nothing above could still answer
            _log.error("request_crashed", error=repr(error), traceback="".join(traceback.format_exception(error)))
            if not sent.status:
                crash = S3Error("InternalError", CRASHED)
                await respond_to_error(crash)(scope, receive, sent)
        finally:
            held.set(0)
            if self._slots is not None and has_slot:
                self._slots.release(client)
            subject = _subject_of(scope, request, operation, client)
            record_request(self._metrics, subject, sent, time.perf_counter() - began)

    async def _handle(self, request: S3Request, operation: S3Operation, client: str) -> Response:
        """Authenticate the request, and let its operation answer. Raises S3Error, RefstoreError."""
        request.proof = await self._authentication.authenticate(request, client)
        key_id = request.scope["state"]["key_id"] = request.proof.principal.key_id
        set_actor(Actor("http", key_id, client, f"{request.method} {ROUTE}{operation.name}"))
        if operation.handler is None:
            raise S3Error(
                "NotImplemented" if request.method in ("GET", "HEAD", "PUT", "POST", "DELETE") else "MethodNotAllowed",
                "this operation of S3 is not supported; docs/s3.md lists those that are",
            )
        refuse_headers(request)
        return await operation.handler(request)


class _AwaitedBody:
    """Close the connection after an answer to which the client sends no body any more (`Expect: 100-continue`).

    Some clients send their next request at once then, and some their body: the two cannot be told apart.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._is_awaited = any(name == b"expect" for name, _ in scope["headers"])

    async def receive(self) -> Message:
        self._is_awaited = False
        return await self._receive()

    def close_if_unread(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_awaited:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        return sending


def make_application(settings: Settings, service: Service, metrics: RequestMetrics) -> ASGIApp:
    """Make the gateway over the service that answers the API. Raises InvalidSettings, MissingExtra."""
    cipher = read_server_key(settings)
    lake = service.lake
    authentication = KeyAuthentication(service, partial(s3_secrets.read_secrets, lake.kv, lake.clock, cipher))
    application = S3Application(service, settings.s3, metrics, authentication)
    networks = service.settings.trusted_proxies
    return TrustedProxies(application, networks) if networks else application


def read_server_key(settings: Settings) -> SecretCipher:
    """Return the cipher of S3 secrets. Raises InvalidSettings, MissingExtra."""
    cipher = s3_secrets.read_cipher(settings.s3.secrets_key, settings.data)
    if cipher is None:
        raise InvalidSettings(
            "S3 clients sign with secrets that are encrypted under a server key, and none is set; give all services "
            "and `refstore keys s3-secret` the same REFSTORE_S3_SECRETS_KEY, made with: openssl rand -hex 32"
        )
    return cipher


def _make_error_response(error: S3Error | RefstoreError, request: S3Request | None, request_id: str) -> Response:
    told = explain_failure(error)
    is_bodiless = told.status == 304 or (request is not None and request.method == "HEAD")
    resource = request.resource if request is not None else ""
    body = b"" if is_bodiless else make_error_body(told, resource, request_id)
    return Response(body, told.status, headers=told.headers, media_type=None if is_bodiless else "application/xml")


def _subject_of(scope: Scope, request: S3Request | None, operation: S3Operation, client: str) -> RequestSubject:
    """Return what the log says of the request: never a path, which may hold what a user wrote."""
    proof = request.proof if request is not None else None
    target = request.target if request is not None else None
    bucket = request.bucket if request is not None else None
    return RequestSubject(
        scope["method"],
        ROUTE + operation.name,
        client,
        proof.principal.key_id if proof is not None else None,
        "" if request is None else request.claimed_key,
        bucket.repository if bucket is not None else None,
        (target.ref if target is not None else bucket.branch or None) if bucket is not None else None,
    )
