"""S3 requests as bytes, signed by botocore and then sent by hand, so that a test can change what no client would."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.s3.s3_service import REGION, S3_SECRET, S3Service

ANSWER_SECONDS = 30.0


class WireAnswer(NamedTuple):
    status: int
    """0: the connection was closed without an answer."""
    code: str
    """Of S3's error."""
    text: str
    """All that came until the connection closed, or until nothing came for a while."""


class WireRequest(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    def encode(self, *more: str) -> bytes:
        """The request's bytes, with further lines of the head as they are."""
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{k}: {v}" for k, v in self.headers.items()), *more]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body

    def change(self, **headers: str) -> WireRequest:
        """The same with other headers, after it was signed; `_` in names stands for a hyphen."""
        return self._replace(headers={**self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}})


def sign(
    service: S3Service,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    payload: str | None = None,
    key_id: str = "",
    secret: str = S3_SECRET,
) -> WireRequest:
    """Sign a request as AWS's own clients do. `payload`: what it says of its body instead of the body's hash."""
    host, port = service.address
    target = quote(path, safe="/~") + (f"?{query}" if query else "")
    given = {
        "Host": f"{host}:{port}",
        "Content-Length": str(len(body)),
        "X-Amz-Content-SHA256": payload or sha256(body).hexdigest(),
        **(headers or {}),
    }
    request = AWSRequest(method, f"{service.url}{target}", headers=given, data=body)
    auth = S3SigV4Auth(Credentials(key_id or service.key_id, secret), "s3", REGION)
    auth.payload = lambda _request: given["X-Amz-Content-SHA256"]
    auth.add_auth(request)
    return WireRequest(method, target, {**dict(request.headers.items())}, body)


def connect(service: S3Service, source: str = "127.0.0.1") -> socket.socket:
    plain = socket.create_connection(service.address, timeout=ANSWER_SECONDS, source_address=(source, 0))
    if service.certificate is None:
        return plain
    return ssl.create_default_context(cafile=str(service.certificate)).wrap_socket(plain, server_hostname="127.0.0.1")


def send(service: S3Service, *parts: bytes, source: str = "127.0.0.1") -> WireAnswer:
    """Send bytes on a connection of their own, and read until it closes, or the first answer is whole."""
    received = b""
    with connect(service, source) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
                if _is_whole(received):
                    break
    return read_answer(received)


def read_answer(received: bytes) -> WireAnswer:
    status = re.match(rb"HTTP/1\.1 (\d{3})", received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"))
    code = re.search(rb"<Code>(\w+)</Code>", received)
    return WireAnswer(
        int(status[1]) if status else 0, code[1].decode() if code else "", received.decode(errors="replace")
    )


def _is_whole(received: bytes) -> bool:
    head, found, body = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
    return bool(found) and length is not None and len(body) >= int(length[1])
