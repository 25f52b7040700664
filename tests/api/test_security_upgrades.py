"""Requests that ask for another protocol (`Connection: Upgrade`, CONNECT, the preface of HTTP/2).

httptools does not parse the body of such a request, and goes on with what comes next as a request of its own. Through a
proxy that keeps its connection, a caller without a key could so put the beginning of a request before an operator's
headers. These tests send bytes to a running service, and one sends them through a real nginx.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import socket
from typing import Final, NamedTuple

import pytest

from tests.api.conftest import Running
from tests.api.test_limits import authorization, status
from tests.api.test_security_connections import connect, sent_until_closed
from tests.servers.nginx import NGINX, Nginx

ANSWER_SECONDS: Final = 60
REPOSITORY: Final = "upgrades"
UPGRADES: Final = {
    "h2c": ("Connection: Upgrade", "Upgrade: h2c"),
    "h2c with settings": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    "websocket": (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "list of protocols": ("Connection: keep-alive, Upgrade", "Upgrade: h2c, websocket, TLS/1.0"),
    "two lines of protocols": ("Upgrade: websocket", "Upgrade: h2c", "Connection: upgrade"),
    "two lines of options": ("Connection: keep-alive", "Connection: Upgrade", "Upgrade: websocket"),
    "another option last": ("Connection: Upgrade", "Connection: keep-alive", "Upgrade: h2c"),
    "capitals without spaces": ("CONNECTION:keep-alive,UPGRADE", "uPGRADE:H2C"),
    "close": ("Connection: Upgrade, close", "Upgrade: h2c"),
}
NO_UPGRADES: Final = {
    "protocol only": ("Upgrade: h2c",),
    "option only": ("Connection: keep-alive, Upgrade",),
    "empty protocol": ("Connection: Upgrade", "Upgrade:"),
    "longer option": ("Connection: upgrades", "Upgrade: h2c"),
}


class Case(NamedTuple):
    """What one connection sends, and the statuses that the service must answer before it closes the connection."""

    head: bytes
    rest: bytes
    is_one_segment: bool
    """Otherwise `rest` follows, in two parts, when an answer has begun."""
    statuses: list[int]


def head(method: str, path: str, *fields: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: lake", *fields, "", ""]).encode()


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def length_of(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


CHUNKED: Final = "Transfer-Encoding: chunked"
HEALTH: Final = "/api/v1/healthcheck"
DELETION: Final = head("DELETE", f"/api/v1/repositories/{REPOSITORY}", f"Authorization: {authorization()}")


def upgrade_cases() -> dict[str, Case]:
    bodies = {
        "no body": ((), DELETION, 204),
        "empty body": (("Content-Length: 0",), DELETION, 204),
        "length": ((length_of(DELETION),), DELETION, 400),
        "length, next request": ((length_of(DELETION),), DELETION * 2, 400),
        "chunked": ((CHUNKED,), chunked(DELETION) + DELETION, 400),
    }
    cases = {
        f"{upgrade}; {body}; one segment: {is_one_segment}": Case(
            head("GET", HEALTH, *fields, *UPGRADES[upgrade]), rest, is_one_segment, [expected]
        )
        for upgrade, (body, (fields, rest, expected)), is_one_segment in itertools.product(
            UPGRADES, bodies.items(), (True, False)
        )
    }
    last = head("POST", "/api/v1/auth/login", length_of(DELETION), *UPGRADES["h2c"])
    return {
        **cases,
        "HTTP/1.0": Case(
            head("GET", HEALTH, length_of(DELETION), *UPGRADES["h2c"], version="1.0"), DELETION, False, [400]
        ),
        "100-continue": Case(
            head("GET", HEALTH, length_of(DELETION), "Expect: 100-continue", *UPGRADES["h2c"]), DELETION, False, [400]
        ),
        "requests before it": Case(
            head("GET", "/api/v1/repositories") * 3 + last, DELETION * 9, False, [401, 401, 401, 400]
        ),
        "a body that an answer needs": Case(
            head("POST", "/api/v1/auth/login", *UPGRADES["h2c"]), DELETION, False, [400]
        ),
    }


def other_cases() -> dict[str, Case]:
    """The other requests behind which httptools stops parsing."""
    length = length_of(DELETION)
    heads = {
        "authority": (head("CONNECT", "lake:80"), 400),
        "authority and body": (head("CONNECT", "lake:80", length), 400),
        "authority and chunked body": (head("CONNECT", "lake:80", CHUNKED), 400),
        "authority and upgrade": (head("CONNECT", "lake:80", length, *UPGRADES["h2c"]), 400),
        "path": (head("CONNECT", HEALTH), 401),
        "path and body": (head("CONNECT", HEALTH, length), 400),
        "path and chunked body": (head("CONNECT", HEALTH, CHUNKED), 400),
        "URL and body": (head("CONNECT", f"http://lake{HEALTH}", length), 400),
        "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    }
    return {
        f"{name}; one segment: {is_one_segment}": Case(first, DELETION * 2, is_one_segment, [expected])
        for (name, (first, expected)), is_one_segment in itertools.product(heads.items(), (True, False))
    }


def ordinary_cases() -> dict[str, Case]:
    """Requests that do not ask for an upgrade, each with a request behind its body."""
    behind = head("GET", HEALTH, "Connection: close")
    bodies = ((length_of(DELETION), DELETION), (CHUNKED, chunked(DELETION)))
    cases = {
        f"{name}; {field}; one segment: {is_one_segment}": Case(
            head("GET", HEALTH, field, *fields), body + behind, is_one_segment, [204, 204]
        )
        for (name, fields), (field, body), is_one_segment in itertools.product(
            NO_UPGRADES.items(), bodies, (True, False)
        )
    }
    trailer = b"0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    return {**cases, "trailers": Case(head("GET", HEALTH, CHUNKED), trailer + behind, False, [204, 204])}


CASES: Final = {"upgrade": upgrade_cases(), "other": other_cases(), "ordinary": ordinary_cases()}


async def answers_of(running: Running, case: Case) -> bytes:
    """Send the bytes of a case, and return what comes until the service closes the connection."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = b""
    with contextlib.closing(writer), contextlib.suppress(ConnectionResetError):
        if case.is_one_segment:
            writer.write(case.head + case.rest)
        else:
            writer.write(case.head)
            received = await reader.readuntil(b"\r\n\r\n")
            half = len(case.rest) // 2
            for part in (case.rest[:half], case.rest[half:]):
                writer.write(part)
                await writer.drain()
        received += await reader.read()
    return received


@pytest.fixture(scope="module")
def answers(embedded_service: Running) -> dict[str, dict[str, bytes]]:
    """What the service answers to each case. All are sent at once, because each connection lingers for some seconds."""
    with embedded_service.open() as lake:
        lake.create_repository(REPOSITORY)

    async def ask() -> dict[str, dict[str, bytes]]:
        async with asyncio.timeout(ANSWER_SECONDS):
            every = [case for cases in CASES.values() for case in cases.values()]
            received = iter(await asyncio.gather(*(answers_of(embedded_service, case) for case in every)))
            return {kind: {name: next(received) for name in cases} for kind, cases in CASES.items()}

    return asyncio.run(ask())


@pytest.mark.parametrize("kind", CASES)
def test_nothing_behind_a_request_that_asks_for_an_upgrade_is_a_request(
    embedded_service: Running, answers: dict[str, dict[str, bytes]], kind: str
) -> None:
    """Neither its body nor what comes behind it: the request is answered, and the connection closes."""
    statuses = {
        name: [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
        for name, answer in answers[kind].items()
    }
    wrong = {name: found for name, found in statuses.items() if found != CASES[kind][name].statuses}
    assert not wrong, f"{len(wrong)} of {len(statuses)} cases"
    assert not [name for name, answer in answers[kind].items() if b"\r\nconnection: close\r\n" not in answer]
    with embedded_service.http() as http:
        assert http.get(f"/repositories/{REPOSITORY}").status_code == 200


def test_an_upload_that_asks_for_an_upgrade_is_refused_and_stores_nothing(embedded_service: Running) -> None:
    """As Java's HttpClient sends it; its body is not read, and an empty object must not take its place."""
    repository = "upgrades-" + secrets.token_hex(4)
    with embedded_service.open() as lake:
        lake.create_repository(repository)
    upload = f"/repositories/{repository}/branches/main/objects"
    fields = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    with embedded_service.http() as http:
        for content in (b"x" * 3000, iter([b"x" * 1000] * 3)):
            answered = http.post(upload, params={"path": "p"}, content=content, headers=fields)
            assert (answered.status_code, answered.json()["code"]) == (400, "invalid")
            assert "without the header Upgrade" in answered.json()["message"]
        assert http.get(f"/repositories/{repository}/refs/main/objects/stat", params={"path": "p"}).status_code == 404
        assert http.post(upload, params={"path": "p"}, content=b"x").status_code == 201


def test_a_client_that_still_sends_a_body_reads_why_it_is_refused(embedded_service: Running) -> None:
    """The service does not cut it off with a reset, which may take the answer from it."""
    block, blocks = b"x" * 65536, 256
    with connect(embedded_service, "127.0.0.1") as connection:
        connection.sendall(head("PUT", "/api/v1/repositories", f"Content-Length: {16 << 20}", *UPGRADES["h2c"]))
        assert sent_until_closed(connection, block, blocks) == len(block) * blocks
        assert status(connection.recv(65536)) == 400


@pytest.mark.root
def test_no_caller_smuggles_a_request_through_nginx(
    embedded_service: Running, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The beginning of a deletion, at the end of a stranger's body, must not take an operator's headers for its own."""
    if NGINX is None:
        pytest.skip("nginx is not installed: make setup-system")
    repository = "upgrades-" + secrets.token_hex(4)
    with embedded_service.open() as lake:
        lake.create_repository(repository)
    smuggled = f"DELETE /api/v1/repositories/{repository} HTTP/1.1\r\nHost: lake\r\nX-Ignored: ".encode()
    body = smuggled.rjust(65536, b"\n")  # the service reads it in several pieces, and a parser skips empty lines
    attack = head("GET", HEALTH, length_of(body), *UPGRADES["h2c"]) + body
    port = int(embedded_service.url.rpartition(":")[2])
    with Nginx(tmp_path_factory.mktemp("nginx"), port) as nginx:
        with socket.create_connection(("127.0.0.1", nginx.port), timeout=20) as stranger:
            stranger.sendall(attack)
            answer = stranger.recv(65536)
        with embedded_service._replace(url=nginx.url).http() as http:
            assert http.get("/user").status_code == 200
            assert http.get(f"/repositories/{repository}").json()["id"] == repository
            assert http.get("/healthcheck", headers={"Connection": "Upgrade", "Upgrade": "h2c"}).status_code == 204
    assert status(answer) == 400
