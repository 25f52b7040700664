"""Requests that no client sends, or that few send: hosts, addresses, bodies in chunks, strangers, redirections."""

from __future__ import annotations

import base64
import hashlib
import http.client
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from defusedxml import ElementTree

from refstore.configuration.settings import S3Settings
from refstore.public_types import stored_entry
from refstore.records.s3_attributes import S3Attributes
from refstore.service.access_keys import Role
from tests.kit.s3_signing import EMPTY, S3Signer
from tests.s3.served_gateway import KEY_ID, REPOSITORY, SECRET, ServedGateway, serve_gateway
from tests.s3.test_gateway_objects import code_of

DOMAIN = "s3.example.org"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return ElementTree.fromstring(self.body).findtext("Code") or ""


class RawClient(NamedTuple):
    """Sends what it is told to, signed."""

    gateway: ServedGateway

    def __call__(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        unsigned: Mapping[str, str] | None = None,
        payload: str = "",
        signed_path: str = "",
    ) -> Answer:
        signer = S3Signer(time.time_ns() // 1_000_000, KEY_ID, SECRET)
        host = urlsplit(self.gateway.url).netloc
        payload = payload or hashlib.sha256(body).hexdigest()
        signed = signer.sign(method, signed_path or path, query, {"host": host, **(headers or {})}, payload)
        return self.send(method, path, query, {**signed, **(unsigned or {})}, body)

    def send(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.gateway.url).netloc, timeout=30)
        try:
            connection.putrequest(method, path + (f"?{query}" if query else ""), skip_host=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if "transfer-encoding" not in headers and "content-length" not in headers:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders()
            if body:
                connection.send(body)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with serve_gateway(S3Settings(domain=DOMAIN, redirect_reads=True)) as served:
        served.repository.upload("main", "a", b"1")
        yield served


@pytest.fixture
def request_raw(gateway: ServedGateway) -> RawClient:
    return RawClient(gateway)


def test_a_stranger_is_refused_before_a_body_is_read(gateway: ServedGateway, request_raw: RawClient) -> None:
    headers = {"host": "x", "content-length": str(1 << 40), "expect": "100-continue"}
    for extra in ({}, {"authorization": "Bearer x"}, {"authorization": "AWS4-HMAC-SHA256 Credential=x"}):
        answer = request_raw.send("PUT", "/lake/main/stranger", "", {**headers, **extra})
        assert answer.status in (400, 403)
        assert answer.headers["connection"] == "close"
    signed = S3Signer(time.time_ns() // 1_000_000, KEY_ID, "another-secret").sign("PUT", "/lake/main/x", "", headers)
    answer = request_raw.send("PUT", "/lake/main/x", "", {**signed, "content-length": str(1 << 40)})
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def test_a_bucket_may_be_in_the_host(request_raw: RawClient) -> None:
    for host in (f"lake.{DOMAIN}", f"LAKE.{DOMAIN}:9000"):
        answer = request_raw("HEAD", "/main/a", headers={"host": host})
        assert (answer.status, answer.headers["content-length"]) == (200, "1")
    assert request_raw("HEAD", "/lake/main/a", headers={"host": DOMAIN}).status == 200


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/lake/main/../a", "InvalidArgument"),
        ("/lake/main/%2E%2E/a", "InvalidArgument"),
        ("/lake/../../etc/passwd", "InvalidArgument"),
        ("/lake/main//a", "InvalidArgument"),
        ("/lake/main/a%00", "InvalidArgument"),
        ("/lake/main/%ff", "InvalidURI"),
        ("/lake/main/" + "x" * 1025, "KeyTooLongError"),
        ("/lake/main", "NoSuchKey"),
        ("/lake/main/", "NoSuchKey"),
        ("/..%2Fother/main/a", "InvalidBucketName"),
    ],
)
def test_tricks_with_paths_reach_nothing(request_raw: RawClient, path: str, code: str) -> None:
    signed = path.replace("%2E", ".")
    assert request_raw("GET", path, signed_path=signed).code == code


@pytest.mark.parametrize("text", ["voil\u00e0", "\u00c5", "x\u00a0"])
def test_text_in_utf_8_is_kept_to_its_last_byte(gateway: ServedGateway, request_raw: RawClient, text: str) -> None:
    sent = text.encode().decode("latin-1")
    assert request_raw("PUT", "/lake/main/text", body=b"1", unsigned={"content-disposition": sent}).status == 200
    kept = stored_entry(gateway.repository.stat("main", "text"))
    assert kept.s3 == S3Attributes(headers={"content-disposition": text})
    assert request_raw("HEAD", "/lake/main/text").headers["content-disposition"] == sent


def test_a_body_needs_a_length(request_raw: RawClient) -> None:
    chunked = {"transfer-encoding": "chunked"}
    answer = request_raw("PUT", "/lake/main/x", unsigned=chunked, payload="UNSIGNED-PAYLOAD", body=b"")
    assert (answer.status, answer.code) == (411, "MissingContentLength")


def test_another_body_than_the_signed_one_is_refused(gateway: ServedGateway, request_raw: RawClient) -> None:
    answer = request_raw("PUT", "/lake/main/changed", body=b"other", payload=EMPTY)
    assert answer.code == "XAmzContentSHA256Mismatch"
    assert not gateway.repository.stat_many("main", ["changed"])


@pytest.mark.parametrize("size", [3, 3 << 20])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_body_in_chunks_counts_when_its_trailer_holds(
    gateway: ServedGateway, request_raw: RawClient, size: int, is_broken: bool
) -> None:
    data = b"123" if size == 3 else b"123" * (1 << 20)
    parts = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (data[:2], data[2:])]
    body = b"".join(parts) + b"0\r\nx-amz-checksum-sha1:%s\r\n\r\n"
    digest = base64.b64encode(hashlib.sha1(data[1:] if is_broken else data, usedforsecurity=False).digest())
    headers = {
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": str(len(data)),
        "x-amz-trailer": "x-amz-checksum-sha1",
    }
    path = f"/lake/main/chunked-{size}-{is_broken}"
    answer = request_raw("PUT", path, headers=headers, body=body % digest, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    stored = gateway.repository.stat_many("main", [path.removeprefix("/lake/main/")])
    if is_broken:
        assert (answer.code, stored) == ("BadDigest", {})
        return
    assert answer.headers["x-amz-checksum-sha1"] == digest.decode()
    (entry,) = stored.values()
    assert (entry.size_bytes, entry.metadata.get("s3:content-encoding")) == (len(data), None)


def test_a_request_that_asks_for_another_protocol_keeps_its_body_out(request_raw: RawClient) -> None:
    upgrade = {"connection": "upgrade", "upgrade": "websocket"}
    answer = request_raw("PUT", "/lake/main/upgraded", body=b"x", unsigned=upgrade)
    assert (answer.status, answer.code) == (400, "InvalidRequest")


def test_hostile_xml_is_refused(request_raw: RawClient) -> None:
    bomb = b'<!DOCTYPE d [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><Delete><Object><Key>&b;</Key></Object></Delete>'
    assert request_raw("POST", "/lake", "delete=", body=bomb).code == "MalformedXML"
    many = b"<Delete>" + b"<Object><Key>main/x</Key></Object>" * 1001 + b"</Delete>"
    assert request_raw("POST", "/lake", "delete=", body=many).code == "MalformedXML"
    long_text = f"<Delete><Object><Key>\U0001f600{'a' * 4096}</Key></Object></Delete>".encode()
    assert request_raw("POST", "/lake", "delete=", body=long_text).code == "MalformedXML"
    large = b"<Delete>" + b" " * (5 << 20) + b"</Delete>"
    assert request_raw("POST", "/lake", "delete=", body=large).code == "MaxMessageLengthExceeded"


def test_methods_and_subresources_that_are_not_there_say_so(request_raw: RawClient) -> None:
    assert request_raw("GET", "/lake", "acl=").code == "NotImplemented"
    assert request_raw("GET", "/lake/main/a", "acl=&tagging=").code == "NotImplemented"
    assert request_raw("PUT", "/lake/main/a", "x-amz-acl=public-read").code == "NotImplemented"
    assert request_raw("OPTIONS", "/lake/main/a").code == "MethodNotAllowed"
    assert request_raw("PUT", "/lake/main/a", "partNumber=1").code == "NotImplemented"


def test_a_part_number_of_a_whole_object(request_raw: RawClient) -> None:
    assert request_raw("HEAD", "/lake/main/a", "partNumber=1").status == 206
    assert request_raw("GET", "/lake/main/a", "partNumber=2").code == "InvalidPart"
    overrides = "response-content-disposition=attachment&response-content-type=text%2Fplain"
    answer = request_raw("HEAD", "/lake/main/a", overrides)
    assert (answer.headers["content-type"], answer.headers["content-disposition"]) == ("text/plain", "attachment")
    assert request_raw("GET", "/lake/main/a", "response-expires=a%0D%0Ab%3A%20c").code == "InvalidArgument"


def test_guesses_are_counted(gateway: ServedGateway) -> None:
    codes: set[str] = set()
    for number in range(12):
        codes.add(code_of(gateway.client("GUESSED", f"wrong-{number}").list_buckets)[0])
    assert codes == {"InvalidAccessKeyId", "SlowDown"}
    assert gateway.client().list_buckets()["Buckets"]


def test_wrong_signatures_do_not_lock_out_a_key_that_was_quiet(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago its signature held; and whoever guesses there still learns nothing after ten wrong ones."""
    gateway.add_key("QUIET", Role.READER)
    gateway.add_key("UNPROVEN", Role.READER)
    assert gateway.client("QUIET").list_buckets()["Buckets"]
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 30 * 24 * 3600)
    monkeypatch.setattr("refstore_s3.authentication.time", later)
    for key_id in ("QUIET", "UNPROVEN"):
        codes = [code_of(gateway.client(key_id, f"wrong-{number}").list_buckets)[0] for number in range(12)]
        assert codes == ["SignatureDoesNotMatch"] * 10 + ["SlowDown"] * 2
    assert gateway.client("QUIET").list_buckets()["Buckets"]
    assert code_of(gateway.client("QUIET", "wrong").list_buckets)[0] == "SlowDown"
    assert code_of(gateway.client("UNPROVEN").list_buckets)[0] == "SlowDown", "else it would tell which guess is right"


def test_a_store_without_urls_of_its_own_is_read_through_the_service(gateway: ServedGateway) -> None:
    signer = gateway.client(signature_version="s3v4")
    url = signer.generate_presigned_url("get_object", Params={"Bucket": REPOSITORY, "Key": "main/a"})
    assert "X-Amz-Signature" in url
    assert httpx.get(url).content == b"1"
