"""Whatever stands in a header, a field of a query or a field of a form, the answer is an answer: nobody makes the
service fail.

The names are those that the source has: one that is read tomorrow is tried, too.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, quote_from_bytes, urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import refstore_api
import refstore_s3
from refstore.configuration.settings import ApiSettings, S3Settings
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore.service.s3_secrets import S3Caller
from refstore_api.ui.page_routers import ROUTERS
from refstore_http.request_metrics import RequestMetrics
from refstore_http.service import Service
from refstore_s3.authentication import KeyAuthentication
from refstore_s3.s3_application import S3Application
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.api.test_security_sessions import HERE, Browser
from tests.kit.clock import FakeClock
from tests.kit.logged_events import collecting_events
from tests.kit.s3_signing import S3Signer

EXAMPLES: Final = 250
Pairs = Sequence[tuple[str, bytes]]

HOSTILE: Final = (
    *(text.encode() for text in (
        "", " ", "-1", "0", "1", "1" * 20, "9" * 30, "9" * 5000, "-" + "9" * 30, "1e999", "NaN", "٣", "0x10", "1_0",
        "true", "Fri, 31 Dec 9999 23:59:59 -0100", "Sat, 01 Jan 0001 00:00:00 +0100", "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59", "Fri, 24 May 2013 00:00:00 +99999999999", "2013", "20130524T000000Z",
        "9" * 8 + "T000000Z", "//[", "http://[", "http://[::1", "//[]/ui", "http://a:b", "///", "/ui//[", "\\", "%",
        "%zz", "%ff", "é", "\U0001f600", "*", '"', '"a", *', "W/", ",", ";", "=", "a=b", "a=1&a=2", "bytes=",
        "bytes=5-1", "bytes=0-" + "9" * 19, "bytes=-0", "Basic", "Basic =", "Basic " + "A" * 9, "Basic Og==",
        "Bearer", "Bearer .", "Bearer a.b.c", "Bearer e30.e30.e30", "AWS4-HMAC-SHA256", "AWS a:b", "null", "[]",
        "{}", "<a", "main", "main~" + "9" * 30, "main~1^9", "..", "../..", "a/b", "/lake/main/a", "lake", "lake/",
        "/", "?", "lake/main/a?versionId=null", "COPY", "REPLACE", "ENABLED", "CRC32", "AAAAAA==",
        "text/html; charset=nope", "multipart/form-data", "multipart/form-data; boundary=", "application/json",
        "application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-16", "chunked", "gzip",
        "100-continue", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "UNSIGNED-PAYLOAD", "127.0.0.1", "fe80::1%a", "\x01",
        "a\tb", "a  b",
    )),
    b"\xff", b"\xe9", b"\x80\x81", b"a\x00b",
)  # fmt: skip


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(app: Any, method: str, path: str, query: bytes, headers: Pairs, body: bytes) -> Answered:
    """Give a request to an application past all that a client or a parser would refuse."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": quote(path).encode(), "query_string": query, "root_path": "",
        "headers": [(name.encode(), value) for name, value in headers], "client": ("192.0.2.1", 1), "server": ("a", 80),
    }  # fmt: skip
    said: list[Any] = []
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    is_over = asyncio.Event()

    async def receive() -> Any:
        if not pieces:
            await is_over.wait()  # the client waits for its answer
            return {"type": "http.disconnect"}
        return pieces.pop()

    async def send(message: Any) -> None:
        said.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            is_over.set()

    await app(scope, receive, send)
    return Answered(
        said[0]["status"],
        {name.decode("latin-1"): value.decode("latin-1") for name, value in said[0]["headers"]},
        b"".join(message.get("body", b"") for message in said[1:]),
    )


def texts_in(package: Any) -> Iterator[str]:
    """All texts of a package's source that could be a name."""
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if isinstance(text, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_-]{1,60}", text):
                yield text


def is_header(text: str) -> bool:
    """Headers of HTTP and of S3 have a hyphen, or are few."""
    return text == text.lower() and (
        "-" in text or text in {"authorization", "date", "range", "cookie", "origin", "expect"}
    )


STANDARD: Final = ("accept", "accept-encoding", "accept-language", "connection", "referer", "user-agent", "te", "via")
HEADERS: Final = sorted({*filter(is_header, [*texts_in(refstore_api), *texts_in(refstore_s3)]), *STANDARD})
S3_FIELDS: Final = sorted(set(texts_in(refstore_s3)))
VALUES: Final = st.one_of(
    st.sampled_from(HOSTILE), st.binary(max_size=24), st.text(max_size=12).map(lambda text: text.encode())
)


def pairs(names: Sequence[str]) -> st.SearchStrategy[list[tuple[str, bytes]]]:
    return st.lists(st.tuples(st.sampled_from(list(names)), VALUES), max_size=6, unique_by=lambda pair: pair[0])


def sendable(headers: Pairs) -> Pairs:
    """Without what ends a header: the parser takes it for the next one."""
    return [(name, re.sub(rb"[\x00\r\n]", b"", value)) for name, value in headers]


def encode(fields: Pairs) -> str:
    return "&".join(f"{quote(name, safe='')}={quote_from_bytes(value, safe='')}" for name, value in sorted(fields))


def check_answered(answered: Answered, events: Sequence[Mapping[str, object]], asked: object) -> None:
    assert answered.status != 500, (asked, events)
    assert "request_crashed" not in {event["event"] for event in events}, (asked, events)


def test_the_names_are_found() -> None:
    assert {"x-amz-copy-source", "if-modified-since", "date", "sec-fetch-site", "x-lakefs-meta-"} & set(HEADERS)
    assert {"uploadId", "partNumber", "continuation-token", "X-Amz-Expires", "response-expires"} <= set(S3_FIELDS)


# ---- S3


class Gateway(NamedTuple):
    app: S3Application
    clock: FakeClock
    runner: asyncio.Runner


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    clock = FakeClock()
    with Lake(MemoryKV(), "memory://hostile-s3", clock=clock) as lake, asyncio.Runner() as runner:
        access_keys.create_key(lake, Role.OPERATOR, id=KEY_ID, secret=SECRET)
        lake.create_repository("lake").upload("main", "a", b"1")
        service = Service(lake, ApiSettings())

        def read_secrets(key_id: str) -> S3Caller | None:
            record = access_keys.find_key(lake.kv, key_id)
            return S3Caller(record, (SECRET,)) if record is not None else None

        authentication = KeyAuthentication(service, read_secrets)
        settings = S3Settings(create_buckets=True)
        yield Gateway(S3Application(service, settings, RequestMetrics(), authentication), clock, runner)
        service.close()


METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")
PATHS: Final = (
    "/",
    "/lake",
    "/other",
    "/lake/main/a",
    "/lake/main/b",
    "/lake/main/",
    "/lake/none/a",
    "/lake/\u0001",
    "/LAKE/a",
)
BODIES: Final = (b"", b"x", b"<", b"<Delete/>", b"\xff", b"<a>" * 200)


def signed_headers(gateway: Gateway, method: str, path: str, query: str, headers: Pairs) -> Pairs:
    """The headers with a signature, so that the request comes as far as it can."""
    signer = S3Signer(gateway.clock.now_ms(), KEY_ID, SECRET)
    own = {name: b" ".join(value.split()).decode("latin-1") for name, value in headers}
    own = {
        name: value
        for name, value in own.items()
        if name not in ("x-amz-date", "x-amz-content-sha256", "authorization")
    }
    signed = signer.sign(method, quote(path), query, {"host": "a", **own}, "UNSIGNED-PAYLOAD")
    return [(name, value.encode("latin-1")) for name, value in signed.items()]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(METHODS), path=st.sampled_from(PATHS), fields=pairs(S3_FIELDS), headers=pairs(HEADERS),
    body=st.sampled_from(BODIES), way=st.sampled_from(["signed", "presigned", "unsigned"]),
)  # fmt: skip
@example("GET", "/", [], [("date", b"Fri, 31 Dec 9999 23:59:59 -0100")], b"", "dated")
@example("GET", "/", [], [("date", b"1" * 20)], b"", "dated")
def test_nobody_makes_the_gateway_fail(
    gateway: Gateway, method: str, path: str, fields: Pairs, headers: Pairs, body: bytes, way: str
) -> None:
    headers = sendable(headers)
    query = encode(fields)
    if way == "signed":
        sent = signed_headers(gateway, method, path, query, headers)
    elif way == "presigned":
        signer = S3Signer(gateway.clock.now_ms(), KEY_ID, SECRET)
        query = signer.presign(method, quote(path), [pair for pair in query.split("&") if pair])
        sent = [("host", b"s3.example.org"), *headers]
    elif way == "dated":
        fields_ = (
            f"Credential={KEY_ID}/20130524/us-east-1/s3/aws4_request, SignedHeaders=date;host, Signature={'0' * 64}"
        )
        own = [
            ("authorization", f"AWS4-HMAC-SHA256 {fields_}".encode()),
            ("x-amz-content-sha256", hashlib.sha256().hexdigest().encode()),
        ]
        sent = [("host", b"a"), *own, *headers]
    else:
        sent = [("host", b"a"), *headers]
    with collecting_events() as events:
        answered = gateway.runner.run(ask(gateway.app, method, path, query.encode(), sent, body))
    check_answered(answered, events, (method, path, query, sent, body))


# ---- the API and the pages


@pytest.fixture(scope="module")
def service() -> Iterator[Application]:
    with application() as found:
        repo = found.lake.create_repository("lake")
        repo.upload("main", "a", b"1")
        repo.commit("main", "first")
        yield found


class SignedIn(NamedTuple):
    cookie: bytes
    form_token: bytes


@pytest.fixture(scope="module")
def signed_in(service: Application) -> SignedIn:
    browser = Browser(service)
    assert browser.sign_in().status_code == 303
    cookie = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    return SignedIn(cookie.encode(), browser.form_token("/ui").encode())


PAGES: Final = sorted(
    {(method, route.path) for router in ROUTERS for route in router.routes for method in route.methods}
)
PAGE_FIELDS: Final = sorted(
    {field.alias for router in ROUTERS for route in router.routes for field in route.dependant.query_params}
    | {text for text in texts_in(refstore_api) if text == text.lower()}
)
API_PATHS: Final = tuple(
    f"/api/v1/{path}"
    for path in (
        "repositories", "repositories/lake", "repositories/lake/branches", "repositories/lake/refs/main/objects",
        "repositories/lake/refs/main/objects/ls", "repositories/lake/refs/main/objects/stat", "user", "auth/login",
        "repositories/lake/refs/main/commits", "repositories/lake/branches/main/objects",
        "repositories/lake/refs/main/diff/main", "repositories/lake/branches/main/commits",
        "repositories/lake/branches/main/staging/backing", "healthcheck", "none",
    )
)  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    asked=st.sampled_from(PAGES), name=st.sampled_from(["lake", "none", "0", "9" * 30, "a\u0001b", "é", "main", ".."]),
    fields=pairs(PAGE_FIELDS), headers=pairs(HEADERS), form=pairs(PAGE_FIELDS),
)  # fmt: skip
@example(("GET", "/ui/sign-in"), "", [("next", b"//[")], [], [])
@example(
    ("POST", "/ui/sign-in"),
    "",
    [],
    [],
    [("next", b"//["), ("access_key_id", KEY_ID.encode()), ("secret_access_key", SECRET.encode())],
)
def test_nobody_makes_a_page_fail(
    service: Application,
    signed_in: SignedIn,
    asked: tuple[str, str],
    name: str,
    fields: Pairs,
    headers: Pairs,
    form: Pairs,
) -> None:
    method, template = asked
    path = re.sub(r"\{\w+\}", lambda found: "lake" if found[0] == "{repository}" else name, template)
    own = {"host": urlsplit(HERE).netloc.encode(), "origin": HERE.encode(), "cookie": signed_in.cookie}
    own |= {"content-type": b"application/x-www-form-urlencoded"} if method == "POST" else {}
    sent = [*own.items(), *((n, value) for n, value in sendable(headers) if n not in own)]
    token = signed_in.form_token
    if path == "/ui/sign-in" and method == "POST":
        shown = service.runner.run(ask(service.app, "GET", path, b"", list(own.items())[:3], b""))
        cookie = shown.headers["set-cookie"].partition(";")[0]
        token = re.search(rb'name="form_token" value="([0-9a-f]+)"', shown.body)[1]  # type: ignore[index]
        sent = [(n, value + b"; " + cookie.encode() if n == "cookie" else value) for n, value in sent]
    body = encode([(n, value) for n, value in form if n != "form_token"] + [("form_token", token)]).encode()
    if path.endswith("sign-out"):
        return
    with collecting_events() as events:
        answered = service.runner.run(
            ask(service.app, method, path, encode(fields).encode(), sent, body if method == "POST" else b"")
        )
    check_answered(answered, events, (method, path, fields, sent, body))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from([*METHODS, "PATCH"]), path=st.sampled_from(API_PATHS), fields=pairs(PAGE_FIELDS),
    headers=pairs(HEADERS), body=st.sampled_from((*BODIES, b"{}", b"[", b'{"a":' * 200, b"null", b"1" * 5000)),
    is_known=st.booleans(),
)  # fmt: skip
def test_nobody_makes_the_api_fail(
    service: Application, method: str, path: str, fields: Pairs, headers: Pairs, body: bytes, is_known: bool
) -> None:
    known = {"host": b"lake.test"}
    if is_known:
        known["authorization"] = b"Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode())
    sent = [*known.items(), *((n, value) for n, value in sendable(headers) if n not in known)]
    with collecting_events() as events:
        answered = service.runner.run(ask(service.app, method, path, encode(fields).encode(), sent, body))
    check_answered(answered, events, (method, path, fields, sent, body))
