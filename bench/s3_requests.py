"""Requests of S3 clients, signed beforehand, so that what is measured is the server, and a worker that sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

REGION: Final = "us-east-1"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
HOST: Final = "127.0.0.1"


class S3Target(NamedTuple):
    """A server that S3 clients write to."""

    port: int
    key_id: str
    secret: str
    bucket: str
    prefix: str = ""
    """What keys begin with."""


class S3Call(NamedTuple):
    method: str
    key: str
    body_bytes: int = 0


class SentRequest(NamedTuple):
    """A request as it goes over the wire, but for its body: so many bytes of data."""

    head: str
    body_bytes: int
    answers: int


class UnsignedPayloadAuth(S3SigV4Auth):
    """Signs all but the body, over plain HTTP as well."""

    def payload(self, request: AWSRequest) -> str:  # noqa: ARG002  # botocore calls it
        return UNSIGNED


def sign(target: S3Target, call: S3Call) -> SentRequest:
    """Sign a request whose payload is not signed, as Arrow's object_store does over TLS."""
    path = f"/{target.bucket}/{target.prefix}{call.key}"
    headers = {"Host": f"{HOST}:{target.port}", "X-Amz-Content-SHA256": UNSIGNED}
    request = AWSRequest(call.method, f"http://{HOST}:{target.port}{path}", headers=headers)
    signer = UnsignedPayloadAuth(Credentials(target.key_id, target.secret), "s3", REGION)
    signer.add_auth(request)
    fields = {**dict(request.headers.items()), "X-Amz-Content-SHA256": UNSIGNED}
    if call.body_bytes:
        fields["Content-Length"] = str(call.body_bytes)
    return SentRequest(_head(call.method, path, fields), call.body_bytes, 200)


def plain(method: str, path: str, body_bytes: int = 0, answers: int = 200, **fields: str) -> SentRequest:
    """Make a request that is not signed."""
    length = {"Content-Length": str(body_bytes)} if body_bytes else {}
    return SentRequest(_head(method, path, {"Host": HOST, **length, **fields}), body_bytes, answers)


def write_requests(file: Path, requests: Sequence[SentRequest]) -> Path:
    file.write_text("\n".join(json.dumps(request) for request in requests))
    return file


def read_requests(file: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each request's bytes and the status of its answer."""
    requests = [SentRequest(*json.loads(line)) for line in file.read_text().splitlines()]
    data = bytes(range(256)) * (max(request.body_bytes for request in requests) // 256 + 1)
    for request in requests:
        yield request.head.encode() + data[: request.body_bytes], request.answers


def _head(method: str, path: str, fields: dict[str, str]) -> str:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""])
