"""What stands in the query of a presigned URL counts as the header that it is; and headers say what was signed."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit
from zlib import crc32

import httpx
import pytest

from tests.kit.s3_signing import S3Signer
from tests.s3.served_gateway import KEY_ID, REPOSITORY, SECRET, ServedGateway
from tests.s3.test_gateway_requests import Answer, RawClient

BODY: Final = b"what the URL was made for"
SHA256: Final = quote(base64.b64encode(hashlib.sha256(BODY).digest()), safe="")
CRC32: Final = quote(base64.b64encode(crc32(BODY).to_bytes(4, "big")), safe="")
OF_NOTHING: Final = "x-amz-checksum-crc32=AAAAAA%3D%3D"


def use(
    gateway: ServedGateway,
    method: str,
    key: str,
    pairs: Sequence[str],
    body: bytes = b"",
    payload: str = "UNSIGNED-PAYLOAD",
) -> Answer:
    """Sign a URL with these encoded pairs in its query, and use it as somebody without a key."""
    path = f"/{REPOSITORY}/main/{key}"
    query = S3Signer(time.time_ns() // 1_000_000, KEY_ID, SECRET).presign(method, path, pairs, payload=payload)
    return RawClient(gateway).send(method, path, query, {"host": "s3.example.org"}, body)


def is_there(gateway: ServedGateway, path: str) -> bool:
    return bool(gateway.repository.stat_many("main", [path]))


RECORDED: Final = {
    "JavaScript, GetObject": (
        "GET", ["X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", "x-amz-checksum-mode=ENABLED", "x-id=GetObject"]
    ),
    "JavaScript, PutObject": (
        "PUT",
        ["X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", OF_NOTHING, "x-amz-sdk-checksum-algorithm=CRC32", "x-id=PutObject"],
    ),
    "JavaScript, PutObject before 3.729": (
        "PUT", ["X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", "x-amz-sdk-checksum-algorithm=SHA256", "x-id=PutObject"]
    ),
    "JavaScript, PutObject with its checksum": ("PUT", [f"x-amz-checksum-sha256={SHA256}", "x-id=PutObject"]),
    "Go, GetObject": ("GET", ["X-Amz-Checksum-Mode=ENABLED", "x-id=GetObject"]),
    "Go, PutObject": ("PUT", ["x-id=PutObject"]),
    "Go, PutObject with a hint": (
        "PUT", ["X-Amz-Sdk-Checksum-Algorithm=CRC32", "X-Amz-Checksum-Crc32=AAAAAA%3D%3D", "x-id=PutObject"]
    ),
    "Go, PutObject with its checksum": (
        "PUT", ["X-Amz-Sdk-Checksum-Algorithm=SHA256", f"X-Amz-Checksum-Sha256={SHA256}", "x-id=PutObject"]
    ),
    "Go, DeleteObject": ("DELETE", ["x-id=DeleteObject"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_the_urls_of_the_sdks_work(gateway: ServedGateway, name: str) -> None:
    method, pairs = RECORDED[name]
    gateway.client().put_object(Bucket=REPOSITORY, Key="main/sdk", Body=BODY, ChecksumAlgorithm="SHA256")
    answer = use(gateway, method, "sdk", pairs, BODY if method == "PUT" else b"")
    assert answer.status in (200, 204), answer.body
    if method == "GET":
        assert (answer.body, answer.headers["x-amz-checksum-sha256"]) == (
            BODY, base64.b64encode(hashlib.sha256(BODY).digest()).decode()
        )  # fmt: skip
    assert is_there(gateway, "sdk") == (method != "DELETE")


@pytest.mark.parametrize("operation", ["get_object", "put_object"])
def test_the_urls_of_boto3_work(gateway: ServedGateway, operation: str) -> None:
    gateway.repository.upload("main", "boto3", BODY)
    params = {"Bucket": REPOSITORY, "Key": "main/boto3"} | (
        {"ChecksumMode": "ENABLED"} if operation == "get_object" else {}
    )
    url = gateway.client(signature_version="s3v4").generate_presigned_url(operation, Params=params)
    signed = urlsplit(url).query.partition("X-Amz-SignedHeaders=")[2].partition("&")[0].split("%3B")
    headers = {"x-amz-checksum-mode": "ENABLED"} if "x-amz-checksum-mode" in signed else {}
    answer = httpx.request(
        "GET" if operation == "get_object" else "PUT",
        url,
        headers=headers,
        content=b"" if operation == "get_object" else BODY,
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("pairs", "payload", "code"),
    [
        ([f"x-amz-checksum-sha256={SHA256}"], "", "BadDigest"),
        ([f"X-Amz-Checksum-Sha256={SHA256}"], "", "BadDigest"),
        ([f"x-amz-checksum-crc32={CRC32}", "x-amz-sdk-checksum-algorithm=CRC32"], "", "BadDigest"),
        ([OF_NOTHING], "", "BadDigest"),
        ([OF_NOTHING, "x-amz-sdk-checksum-algorithm=SHA256"], "", "InvalidRequest"),
        ([f"X-Amz-Content-Sha256={hashlib.sha256(BODY).hexdigest()}"], "hash", "XAmzContentSHA256Mismatch"),
        ([f"x-amz-content-sha256={hashlib.sha256(BODY).hexdigest()}"], "hash", "XAmzContentSHA256Mismatch"),
    ],
)
def test_a_url_pinned_by_a_checksum_takes_no_other_bytes(
    gateway: ServedGateway, pairs: list[str], payload: str, code: str
) -> None:
    payload = hashlib.sha256(BODY).hexdigest() if payload else "UNSIGNED-PAYLOAD"
    assert use(gateway, "PUT", "pinned", pairs, b"other bytes", payload).code == code
    assert not is_there(gateway, "pinned")
    if "AAAAAA" not in pairs[0]:
        assert use(gateway, "PUT", "pinned", pairs, BODY, payload).status == 200
        gateway.repository.delete("main", "pinned")


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        ("x-amz-acl=public-read", "NotImplemented"),
        ("X-Amz-Server-Side-Encryption=AES256", "NotImplemented"),
        ("x-amz-storage-class=GLACIER", "NotImplemented"),
        ("X-Amz-Security-Token=a", "InvalidToken"),
        ("x-amz-security-token=a", "InvalidToken"),
        ("x-amz-meta-a=1&X-Amz-Meta-A=2", "InvalidArgument"),
        ("x-amz-meta-a=1%0D%0Ax-evil%3A%202", "InvalidArgument"),
        ("x-amz-meta-a=%00", "InvalidArgument"),
        ("x-amz-tagging=a%3D1%26a%3D2", "InvalidTag"),
        ("x-amz-copy-source=lake%2Fmain%2Fnothing-is-here", "NoSuchKey"),
        ("x-amz-copy-source=%2F", "InvalidArgument"),
    ],
)
def test_a_field_of_the_query_is_refused_as_the_header_is(gateway: ServedGateway, pair: str, code: str) -> None:
    assert use(gateway, "PUT", "refused", pair.split("&"), BODY).code == code
    assert not is_there(gateway, "refused")


def test_a_field_of_the_query_is_read_as_the_header_is(gateway: ServedGateway) -> None:
    pairs = ["X-Amz-Meta-Who=Zo%C3%AB%20%20B", "x-amz-tagging=a%3D1%262%3D", "x-amz-acl=private"]
    assert use(gateway, "PUT", "described", pairs, BODY).status == 200
    found = gateway.client().head_object(Bucket=REPOSITORY, Key="main/described")
    assert gateway.repository.stat("main", "described").metadata == {"who": "Zoë  B"}
    assert found["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"] == "2"
    source = [f"x-amz-copy-source={REPOSITORY}%2Fmain%2Fdescribed"]
    changed = "x-amz-copy-source-if-none-match=" + quote(found["ETag"])
    assert use(gateway, "PUT", "copied", [*source, changed]).code == "PreconditionFailed"
    assert use(gateway, "PUT", "copied", source).status == 200
    assert gateway.repository.read("main", "copied") == BODY


def test_a_header_and_a_field_of_the_query_say_the_same(request_raw: RawClient) -> None:
    for value, status in (("1", 200), ("2", 400)):
        answer = request_raw("PUT", "/lake/main/twice", "x-amz-meta-a=1", headers={"x-amz-meta-a": value})
        assert answer.status == status, answer.body


@pytest.fixture
def request_raw(gateway: ServedGateway) -> RawClient:
    return RawClient(gateway)


@pytest.mark.parametrize(
    ("name", "signed", "sent"),
    [
        ("x-amz-copy-source", "/lake/main/a b", "/lake/main/a  b"),
        ("x-amz-copy-source", "/lake/main/a b", "/lake/main/a\tb"),
        ("x-amz-copy-source-if-match", '"a b"', '"a  b"'),
        ("if-match", '"a b"', '"a  b"'),
        ("if-none-match", '"a", "b"', '"a",   "b"'),
    ],
)
def test_white_space_that_may_be_changed_chooses_nothing(
    request_raw: RawClient, gateway: ServedGateway, name: str, signed: str, sent: str
) -> None:
    """A signature holds for any run of blanks; so whoever passes a request on could choose another object by it."""
    gateway.repository.upload("main", "a b", b"one blank")
    gateway.repository.upload("main", "a  b", b"two blanks")
    headers = {"x-amz-copy-source": "/lake/main/a%20b", name: signed}
    answer = request_raw("PUT", "/lake/main/chosen", headers=headers, unsigned={name: sent})
    assert answer.code == "InvalidArgument", answer.body
    assert not is_there(gateway, "chosen")


def test_user_metadata_is_read_as_it_was_signed(request_raw: RawClient, gateway: ServedGateway) -> None:
    signed = {"x-amz-meta-a": "one two", "content-disposition": 'attachment; filename="a b"'}
    sent = {"x-amz-meta-a": "one  \ttwo", "content-disposition": 'attachment;   filename="a  b"'}
    assert request_raw("PUT", "/lake/main/noted", headers=signed, unsigned=sent).status == 200
    found = gateway.client().head_object(Bucket=REPOSITORY, Key="main/noted")
    assert found["Metadata"] == {"a": "one two"}
    assert found["ContentDisposition"] == 'attachment; filename="a b"'
