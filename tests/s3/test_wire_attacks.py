"""Attacks on a running gateway, as bytes over a connection: none changes the branch, and none is answered with 2xx."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from refstore.repository import Repository
from refstore.service.access_keys import Role
from tests.api.test_limits import wait_until
from tests.kit.short_durations import constants_environment
from tests.s3.s3_service import S3Service, serving_s3
from tests.s3.wire import WireAnswer, WireRequest, connect, read_answer, send, sign

MIB: Final = 1 << 20
GROWTH_MIB_MAX: Final = 96
"""Of the service's memory, while it is sent documents that would take gigabytes."""
IDLE_SECONDS: Final = 2
CONNECTIONS_MAX: Final = 24
ATTACKER: Final = "127.0.0.66"


@pytest.fixture(scope="module")
def http_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """One of its own, with small limits, which still runs when all attacks are over."""
    idle = {"idle_seconds": IDLE_SECONDS, "upload_idle_seconds": IDLE_SECONDS}
    environment = constants_environment({"ApiSettings": {**idle, "connections_max": CONNECTIONS_MAX}})
    with serving_s3(tmp_path_factory.mktemp("attacked"), environment=environment) as service:
        yield service
        assert service.running.process.poll() is None
        log = service.running.log.read_text()
        assert "request_crashed" not in log
        assert "Traceback" not in log


@pytest.fixture(scope="module")
def attacked(http_s3: S3Service) -> Repository:
    """A repository whose objects the attacks are after."""
    repo = http_s3.lake.create_repository("t-" + secrets.token_hex(6))
    repo.upload("main", "precious", b"precious")
    repo.upload("main", "other", b"other")
    return repo


def state(repo: Repository) -> dict[str, object]:
    return {item.path: item.entry for item in repo.list("main")}


def put(service: S3Service, bucket: str, body: bytes = b"body", **options: Any) -> WireRequest:
    return sign(service, "PUT", f"/{bucket}/main/precious", body, **options)


def resigned_at(service: S3Service, bucket: str, shift: timedelta) -> WireRequest:
    """As it was signed at another time."""
    import botocore.auth

    class Shifted(datetime):
        @classmethod
        def now(cls, _tz: object = None) -> datetime:
            return datetime.now(UTC) + shift

    when = datetime.now(UTC) + shift
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: when.replace(tzinfo=None), raising=True)
        return put(service, bucket)


def flip(request: WireRequest) -> WireRequest:
    authorization = request.headers["Authorization"]
    last = "0" if authorization[-1] != "0" else "1"
    return request.change(Authorization=authorization[:-1] + last)


def unsign(request: WireRequest, name: str) -> WireRequest:
    """Claim that a header was not signed."""
    return request.change(Authorization=re.sub(rf"{name};|;{name}\b", "", request.headers["Authorization"]))


def presign(service: S3Service, bucket: str, seconds: int = 300) -> str:
    return service.client(signature_version="s3v4").generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": "main/precious"}, ExpiresIn=seconds
    )


def by_url(url: str, method: str = "GET", *, body: bytes = b"") -> bytes:
    split = urlsplit(url)
    return WireRequest(
        method, f"{split.path}?{split.query}", {"Host": split.netloc, "Content-Length": str(len(body))}, body
    ).encode()


def change_query(url: str, **fields: str) -> str:
    split = urlsplit(url)
    query = {**dict(parse_qsl(split.query)), **{k.replace("_", "-"): v for k, v in fields.items()}}
    return split._replace(query=urlencode(query)).geturl()


class Attack(NamedTuple):
    make: Callable[[S3Service, str], bytes]
    """Its bytes, against a bucket of a service."""
    answers: frozenset[str]
    """Codes of S3's error, or the status where it is none."""


def attack(make: Callable[[S3Service, str], bytes], *answers: str) -> Attack:
    return Attack(make, frozenset(answers))


SIGNATURES: Final = {
    "another secret": attack(lambda s, b: put(s, b, secret="x" * 40).encode(), "SignatureDoesNotMatch"),
    "an unknown key": attack(lambda s, b: put(s, b, key_id="AKIANOBODY").encode(), "InvalidAccessKeyId"),
    "a key that is a path": attack(
        lambda s, b: put(s, b, key_id="../AKIATESTS").encode(),
        "InvalidAccessKeyId", "AuthorizationHeaderMalformed", "InvalidArgument",
    ),
    "a flipped bit": attack(lambda s, b: flip(put(s, b)).encode(), "SignatureDoesNotMatch"),
    "no signature": attack(
        lambda s, b: put(s, b)._replace(headers={"Host": "x", "Content-Length": "4"}).encode(), "AccessDenied"
    ),
    "another method": attack(
        lambda s, b: sign(s, "GET", f"/{b}/main/precious")._replace(method="DELETE").encode(), "SignatureDoesNotMatch"
    ),
    "another key": attack(
        lambda s, b: put(s, b)._replace(target=f"/{b}/main/other").encode(), "SignatureDoesNotMatch"
    ),
    "a further slash": attack(
        lambda s, b: put(s, b)._replace(target=f"//{b}/main/precious").encode(), "SignatureDoesNotMatch"
    ),
    "another host in the target": attack(
        lambda s, b: put(s, b)._replace(target=f"http://evil.test/{b}/main/precious").encode(), "InvalidRequest"
    ),
    "a query that was not signed": attack(
        lambda s, b: sign(s, "DELETE", f"/{b}/main/none")._replace(target=f"/{b}/main/none?uploadId=x").encode(),
        "SignatureDoesNotMatch",
    ),
    "another body": attack(
        lambda s, b: put(s, b)._replace(body=b"evil").encode(), "XAmzContentSHA256Mismatch", "SignatureDoesNotMatch"
    ),
    "a longer body": attack(
        lambda s, b: put(s, b)._replace(body=b"bodybody").change(Content_Length="8").encode(),
        "XAmzContentSHA256Mismatch", "SignatureDoesNotMatch",
    ),
    "the host is not signed": attack(
        lambda s, b: unsign(put(s, b), "host").encode(),
        "SignatureDoesNotMatch", "AuthorizationHeaderMalformed", "AccessDenied",
    ),
    "a copy's source that is not signed": attack(
        lambda s, b: put(s, b, b"").encode(f"x-amz-copy-source: /{b}/main/other"),
        "AccessDenied", "SignatureDoesNotMatch",
    ),
    "metadata that is not signed": attack(
        lambda s, b: put(s, b).encode("x-amz-meta-evil: 1"), "AccessDenied", "SignatureDoesNotMatch"
    ),
    "a second Authorization": attack(
        lambda s, b: put(s, b).encode("Authorization: " + put(s, b).headers["Authorization"]),
        "InvalidRequest",
    ),
    "a header and a URL that sign": attack(
        lambda s, b: put(s, b)._replace(
            target="{0.path}?{0.query}".format(urlsplit(presign(s, b)))
        ).encode(),
        "SignatureDoesNotMatch", "InvalidArgument",
    ),
    "20 minutes ago": attack(lambda s, b: resigned_at(s, b, timedelta(minutes=-20)).encode(), "RequestTimeTooSkewed"),
    "in 20 minutes": attack(lambda s, b: resigned_at(s, b, timedelta(minutes=20)).encode(), "RequestTimeTooSkewed"),
    "another date than the scope's": attack(
        lambda s, b: put(s, b).change(X_Amz_Date="20000101T000000Z").encode(),
        "SignatureDoesNotMatch", "AuthorizationHeaderMalformed", "RequestTimeTooSkewed", "AccessDenied",
    ),
    "a session token": attack(
        lambda s, b: put(s, b, headers={"x-amz-security-token": "x"}).encode(), "InvalidToken"
    ),
    "a signed GET's URL for DELETE": attack(lambda s, b: by_url(presign(s, b), "DELETE"), "SignatureDoesNotMatch"),
    "a URL for longer than it was signed": attack(
        lambda s, b: by_url(change_query(presign(s, b), X_Amz_Expires="9000")), "SignatureDoesNotMatch"
    ),
    "a URL for longer than a week": attack(
        lambda s, b: by_url(change_query(presign(s, b), X_Amz_Expires="700000")), "AuthorizationQueryParametersError"
    ),
    "a URL of yesterday": attack(
        lambda s, b: by_url(change_query(presign(s, b), X_Amz_Date="20200101T000000Z")),
        "AccessDenied", "SignatureDoesNotMatch", "AuthorizationQueryParametersError",
    ),
    "a URL with a header that is not signed": attack(
        lambda s, b: by_url(presign(s, b)).replace(b"Host:", b"x-amz-meta-evil: 1\r\nHost:"),
        "AccessDenied", "SignatureDoesNotMatch",
    ),
}  # fmt: skip


def aws_chunked(
    service: S3Service, bucket: str, body: bytes, *, length: int = 4, trailer: str = "x-amz-checksum-crc32"
) -> bytes:
    """An upload in chunks that are not signed, with a body as it is given."""
    return put(
        service,
        bucket,
        body,
        payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        headers={
            "content-encoding": "aws-chunked",
            "x-amz-decoded-content-length": str(length),
            "x-amz-trailer": trailer,
        },
    ).encode()


def signed_chunk(service: S3Service, bucket: str) -> bytes:
    """A signed request whose chunk has a signature of somebody else."""
    body = b"4;chunk-signature=" + b"0" * 64 + b"\r\nbody\r\n0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n"
    return put(
        service,
        bucket,
        body,
        payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        headers={"content-encoding": "aws-chunked", "x-amz-decoded-content-length": "4"},
    ).encode()


CRC32: Final = b"x-amz-checksum-crc32:" + base64.b64encode(bytes.fromhex("6dd28e9b"))
BAD_CHUNKS: Final = ("IncompleteBody", "InvalidRequest", "MalformedTrailerError", "InvalidChunkSizeError", "400")
CHUNKS: Final = {
    "a signature of nobody": attack(signed_chunk, "SignatureDoesNotMatch"),
    "a size that overflows": attack(
        lambda s, b: aws_chunked(s, b, b"f" * 17 + b"\r\nbody\r\n0\r\n" + CRC32 + b"\r\n\r\n"), *BAD_CHUNKS
    ),
    "a negative size": attack(
        lambda s, b: aws_chunked(s, b, b"-4\r\nbody\r\n0\r\n" + CRC32 + b"\r\n\r\n"), *BAD_CHUNKS
    ),
    "a size with a blank": attack(
        lambda s, b: aws_chunked(s, b, b" 4\r\nbody\r\n0\r\n" + CRC32 + b"\r\n\r\n"), *BAD_CHUNKS
    ),
    "a size line without end": attack(lambda s, b: aws_chunked(s, b, b"4" * MIB), *BAD_CHUNKS),
    "no last chunk": attack(lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n"), *BAD_CHUNKS),
    "less than was said": attack(
        lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n0\r\n" + CRC32 + b"\r\n\r\n", length=5), *BAD_CHUNKS
    ),
    "more than was said": attack(
        lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n0\r\n" + CRC32 + b"\r\n\r\n", length=3), *BAD_CHUNKS
    ),
    "bytes behind the end": attack(
        lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n0\r\n" + CRC32 + b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"), *BAD_CHUNKS
    ),
    "another checksum": attack(
        lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), "BadDigest"
    ),
    "no trailer": attack(lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n0\r\n\r\n"), *BAD_CHUNKS),
    "another trailer": attack(
        lambda s, b: aws_chunked(s, b, b"4\r\nbody\r\n0\r\nx-amz-meta-evil:1\r\n\r\n"), *BAD_CHUNKS
    ),
    "LF only": attack(lambda s, b: aws_chunked(s, b, b"4\nbody\n0\n" + CRC32 + b"\n\n"), *BAD_CHUNKS),
}

PATHS: Final = {
    name: attack(
        lambda s, b, path=path: sign(s, "PUT", "/x", b"evil")._replace(target=path.format(b=b)).encode(),
        "SignatureDoesNotMatch", "InvalidArgument", "InvalidURI", "NoSuchBucket", "InvalidBucketName", "400",
    )
    for name, path in {
        "parents": "/{b}/main/../../precious",
        "encoded parents": "/{b}/main/%2e%2e/precious",
        "a NUL": "/{b}/main/%00",
        "no UTF-8": "/{b}/main/%ff%fe",
        "backslashes": "/{b}\\main\\precious",
        "half a percent": "/{b}/main/%",
    }.items()
}  # fmt: skip


@pytest.fixture
def owner(http_s3: S3Service, attacked: Repository) -> S3Service:
    """A key of this test's own, whose owner has signed a request: no earlier guess at it counts."""
    key_id = "AKIA" + secrets.token_hex(8).upper()
    http_s3.add_key(key_id, Role.WRITER)
    service = http_s3._replace(key_id=key_id)
    assert send(service, sign(service, "HEAD", f"/{attacked.name}").encode()).status == 200
    return service


@pytest.mark.parametrize(
    ("attack"),
    [
        pytest.param(attack, id=f"{kind}: {name}")
        for kind, attacks in {"signature": SIGNATURES, "chunks": CHUNKS, "path": PATHS}.items()
        for name, attack in attacks.items()
    ],
)
def test_a_forged_request_changes_nothing(owner: S3Service, attacked: Repository, attack: Attack) -> None:
    before = state(attacked)
    answer = send(owner, attack.make(owner, attacked.name))
    assert {answer.code, str(answer.status)} & attack.answers, answer.text
    assert state(attacked) == before


def signed_path(service: S3Service, path: str) -> WireAnswer:
    return send(service, sign(service, "PUT", path, b"evil").encode())


@pytest.mark.parametrize("path", ["main/../precious", "main/./precious", "main//../x", "main/a/..", "main/a\0b"])
def test_no_key_leaves_its_branch_even_if_it_is_signed(http_s3: S3Service, attacked: Repository, path: str) -> None:
    before = state(attacked)
    answer = signed_path(http_s3, f"/{attacked.name}/{path}")
    assert answer.status in (400, 403), answer.text
    assert state(attacked) == before


SMUGGLED: Final = {
    "length and chunked": ("Transfer-Encoding: chunked",),
    "two lengths": ("Content-Length: 0",),
    "chunked twice": ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "a blank before the colon": ("Transfer-Encoding : chunked",),
    "a folded header": ("X-Folded: a", " Transfer-Encoding: chunked"),
    "an upgrade to h2c": ("Connection: Upgrade", "Upgrade: h2c"),
    "an upgrade with settings": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
    "a websocket": ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
}


@pytest.mark.parametrize("lines", [pytest.param(lines, id=name) for name, lines in SMUGGLED.items()])
@pytest.mark.parametrize("method", ["GET", "PUT", "CONNECT"])
def test_nothing_in_a_body_is_a_request(
    http_s3: S3Service, attacked: Repository, method: str, lines: tuple[str, ...]
) -> None:
    """A stranger's body holds a signed deletion, as a proxy that shares its connection would pass it on."""
    before = state(attacked)
    deletion = sign(http_s3, "DELETE", f"/{attacked.name}/main/precious").encode()
    head = WireRequest(
        method, f"/{attacked.name}/main/x", {"Host": "lake", "Content-Length": str(len(deletion))}, deletion
    )
    with connect(http_s3) as connection:
        connection.sendall(head.encode(*lines))
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionResetError):
            pass
    assert len(re.findall(rb"HTTP/1\.1 [2-5]\d\d", received)) == 1, received
    assert read_answer(received).status >= 400
    assert state(attacked) == before


def memory_mib(service: S3Service) -> int:
    status = Path(f"/proc/{service.running.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) >> 10


LAUGHS: Final = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
DOCUMENTS: Final = {
    "a billion laughs": f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><ROOT><Object><Key>&l9;</Key></Object></ROOT>',
    "a quadratic blowup": f'<!DOCTYPE x [<!ENTITY a "{"a" * 50_000}">]><ROOT><Key>{"&a;" * 20_000}</Key></ROOT>',
    "a file of the server": '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><ROOT><Key>&f;</Key></ROOT>',
    "a remote document type": '<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd"><ROOT/>',
    "a deep tree": "<ROOT>" + "<a>" * 200_000 + "</a>" * 200_000 + "</ROOT>",
    "many attributes": "<ROOT " + " ".join(f'a{n}="1"' for n in range(20_000)) + "/>",
    "no XML": "PK\x03\x04" * 1000,
    "half a document": "<ROOT><Object>",
    "nothing": "",
    "far too many": "<ROOT>" + "<Object><Key>main/precious-not</Key></Object>" * 1001 + "</ROOT>",
    "far too many parts": "<ROOT>"
    + "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>x</ETag></Part>" for n in range(1, 10_002))
    + "</ROOT>",
}
OPERATIONS: Final = {
    "Delete": ("POST", "/{b}", "delete"),
    "Tagging": ("PUT", "/{b}/main/precious", "tagging"),
    "CompleteMultipartUpload": ("POST", "/{b}/main/precious", "uploadId=none"),
}


@pytest.mark.parametrize("document", [pytest.param(text, id=name) for name, text in DOCUMENTS.items()])
@pytest.mark.parametrize("root", OPERATIONS)
def test_a_hostile_document_is_refused_in_bounded_memory(
    http_s3: S3Service, attacked: Repository, root: str, document: str
) -> None:
    before, memory = state(attacked), memory_mib(http_s3)
    method, path, query = OPERATIONS[root]
    body = document.replace("ROOT", root).encode()
    md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    request = sign(http_s3, method, path.format(b=attacked.name), body, query=query, headers={"Content-MD5": md5})
    answer = send(http_s3, request.encode())
    assert 400 <= answer.status < 500, answer.text
    assert "root:" not in answer.text
    assert state(attacked) == before
    assert memory_mib(http_s3) - memory < GROWTH_MIB_MAX


def test_a_document_that_is_too_long_is_refused_unread(http_s3: S3Service, attacked: Repository) -> None:
    length = 1 << 30
    request = sign(
        http_s3, "POST", f"/{attacked.name}", query="delete", headers={"Content-Length": str(length)},
        payload="UNSIGNED-PAYLOAD",
    )  # fmt: skip
    assert 400 <= send(http_s3, request.encode()).status < 500, "before a byte of the body was sent"


def test_a_strangers_body_is_not_read(owner: S3Service, attacked: Repository) -> None:
    request = sign(
        owner, "PUT", f"/{attacked.name}/main/large", headers={"Content-Length": str(1 << 40)}, secret="x" * 40,
        payload="UNSIGNED-PAYLOAD",
    )  # fmt: skip
    assert send(owner, request.encode()).code == "SignatureDoesNotMatch"


def test_a_body_that_stops_ends_and_leaves_nothing(http_s3: S3Service, attacked: Repository) -> None:
    before = state(attacked)
    request = sign(
        http_s3, "PUT", f"/{attacked.name}/main/slow", headers={"Content-Length": str(64 * MIB)},
        payload="UNSIGNED-PAYLOAD",
    )  # fmt: skip
    with connect(http_s3) as connection:
        connection.sendall(request.encode() + b"x" * (9 * MIB))
        received = connection.recv(65536)  # the service ends it, not this test's own time
    assert read_answer(received).status in (0, 400, 408)
    assert state(attacked) == before


def test_held_connections_leave_room_for_others(http_s3: S3Service, attacked: Repository) -> None:
    """Both ports count together, so holding one does not take the other."""
    held: list[socket.socket] = []
    try:
        for _ in range(2 * CONNECTIONS_MAX):
            held.append(connect(http_s3, ATTACKER))
            held[-1].sendall(f"PUT /{attacked.name}/main/x HTTP/1.1\r\nHost: lake\r\n".encode())
        assert b"".join(http_s3.client().get_object(Bucket=attacked.name, Key="main/precious")["Body"]) == b"precious"
        with http_s3.running.http() as http:
            assert http.get("/user").status_code == 200
    finally:
        for connection in held:
            connection.close()


def test_heads_that_never_end_are_ended(http_s3: S3Service) -> None:
    assert send(http_s3, b"GET / HTTP/1.1\r\n", source=ATTACKER).status in (0, 400, 408)


def test_guesses_are_slowed(http_s3: S3Service, attacked: Repository) -> None:
    """A stranger who guesses secrets waits, and the key's owner does not."""

    def guess() -> WireAnswer:
        return send(http_s3, put(http_s3, attacked.name, secret=secrets.token_hex(20)).encode(), source="127.0.0.77")

    wait_until(lambda: guess().status in (429, 503))
    assert http_s3.client().head_object(Bucket=attacked.name, Key="main/precious")["ContentLength"] == 8
