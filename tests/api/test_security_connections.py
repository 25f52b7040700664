"""Attacks on memory and connections by whoever reaches the port, without a key: over loopback, with limits that the
tests set.

Clients have different addresses of loopback (127.0.0.2, ...), as a server sees those of different machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import uvicorn

from refstore.configuration.settings import ApiSettings, embedded_urls
from refstore.errors import InvalidSettings
from refstore_http.connection_slots import (
    LOG_EVERY_SECONDS,
    ConnectionSlots,
    ProxyNetworks,
    connection_slots,
    plain_address,
    request_slots,
)
from refstore_http.http_protocol import HEAD_BYTES_MAX, PIPELINED_MAX, make_protocol
from refstore_http.request_bodies import BodyLimits, BodyTimer
from tests.api.conftest import KEY_ID, Running, serving
from tests.api.service import application
from tests.api.test_limits import raw, status, wait_until
from tests.api.test_security_guessing import HERE, WRONG, WRONG_MAX
from tests.kit.logged_events import collecting_events
from tests.kit.short_durations import constants_environment

MIB: Final = 1 << 20
CONNECTIONS_MAX: Final = 24
PER_ADDRESS: Final = CONNECTIONS_MAX // 2
ATTACKER, OTHER = "127.0.0.66", "127.0.0.7"
CHUNKED: Final = (
    "POST /api/v1/auth/login HTTP/1.1\nHost: lake\nContent-Type: application/json\nTransfer-Encoding: chunked\n\n"
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "lake").mkdir()
    environment = constants_environment({"ApiSettings": {"idle_seconds": 1, "connections_max": CONNECTIONS_MAX}})
    with serving(folder, *embedded_urls(folder / "lake"), "--no-reaper", environment=environment) as running:
        yield running


def connect(running: Running, address: str = ATTACKER, *, receive_bytes: int | None = None) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(20)
    connection.bind((address, 0))
    connection.connect((host, int(port)))
    return connection


def answer_of(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            found += chunk
    return found


def is_answered(running: Running, address: str) -> bool:
    with connect(running, address) as connection:
        connection.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: lake\r\nConnection: close\r\n\r\n")
        return status(answer_of(connection)) == 204


def sockets(running: Running) -> int:
    """How many connections the service holds, and what else it has of the kind."""
    found = 0
    for entry in Path(f"/proc/{running.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(entry.readlink()).startswith("socket:")
    return found


def resident_kib(running: Running, field: str) -> int:
    lines = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def sent_until_closed(connection: socket.socket, block: bytes, blocks: int) -> int:
    """How many bytes the other side took, or its kernel."""
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
        for _ in range(blocks):
            connection.sendall(block)
            sent += len(block)
    return sent


# ---- bytes around a body

TRAILER: Final = b"x-trailer: y\r\n"


@pytest.mark.parametrize("block", [TRAILER * (65536 // len(TRAILER)), b"x" * 65536], ids=["many", "one without end"])
def test_trailers_without_end_are_cut_off_and_hold_no_memory(attacked: Running, block: bytes) -> None:
    assert is_answered(attacked, ATTACKER)
    before_kib = resident_kib(attacked, "VmRSS")
    with connect(attacked) as connection:
        connection.sendall(CHUNKED.replace("\n", "\r\n").encode() + b"2\r\n{}\r\n0\r\n")
        sent = sent_until_closed(connection, block, 200 * MIB // len(block))
    assert sent < 32 * MIB
    assert resident_kib(attacked, "VmHWM") - before_kib < 32 << 10
    assert is_answered(attacked, ATTACKER)


def test_chunk_extensions_without_end_are_cut_off(attacked: Running) -> None:
    with connect(attacked) as connection:
        connection.sendall(CHUNKED.replace("\n", "\r\n").encode() + b"2;")
        assert sent_until_closed(connection, b"x" * 65536, 200 * MIB // 65536) < 32 * MIB


@pytest.mark.parametrize(("size", "expected"), [(HEAD_BYTES_MAX // 2, 401), (HEAD_BYTES_MAX + 1, 431)])
def test_trailers_within_the_bound_of_a_head_are_taken(attacked: Running, size: int, expected: int) -> None:
    body = json.dumps({"access_key_id": "AKIANOBODY", "secret_access_key": "x" * 30}).encode()
    count = size // len(TRAILER) if expected == 401 else size // len(TRAILER) + 1
    trailers = TRAILER * count + b"\r\n"
    assert status(raw(attacked, CHUNKED, b"%x\r\n%b\r\n0\r\n" % (len(body), body) + trailers)) == expected


def test_a_trailer_does_not_pass_for_a_header(attacked: Running) -> None:
    """Else it would, in place of what a proxy in between took away or set."""
    head = CHUNKED.replace("/auth/login", "/repositories/alpha/branches/main/objects?path=p").replace("POST", "PUT")
    answer = raw(attacked, head, b"0\r\nx-request-id: from-a-trailer\r\n\r\n")
    assert status(answer) == 401
    assert b"from-a-trailer" not in answer


def test_a_head_that_comes_in_one_piece_is_bounded_too(attacked: Running) -> None:
    with connect(attacked) as connection:
        fields = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(100))
        connection.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: lake\r\n" + fields + b"\r\n")
        assert status(answer_of(connection)) in (431, 0)


def test_requests_behind_one_that_is_not_answered_are_bounded(attacked: Running) -> None:
    """Ten thousand of them fit into what is read at once, and each costs a hundred times its bytes."""
    before_kib = resident_kib(attacked, "VmRSS")
    request = b"GET /healthcheck HTTP/1.1\r\nH: l\r\n\r\n"
    with connect(attacked) as connection:
        for _ in range(8):
            sent_until_closed(connection, request * (PIPELINED_MAX * 2000), 1)
        assert answer_of(connection).count(b"HTTP/1.1 204") <= 4 * PIPELINED_MAX
    assert resident_kib(attacked, "VmHWM") - before_kib < 32 << 10


# ---- connections

UNFINISHED: Final = b"POST /api/v1/repositories HTTP/1.1\r\nHost: lake\r\nContent-Length: 16777216\r\n\r\nx"


def test_a_connection_whose_body_is_unfinished_closes_after_its_answer(attacked: Running) -> None:
    """However often another byte of it comes, which keeps uvicorn's own timer from closing it, and is no idleness."""
    before = sockets(attacked)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(attacked)) for _ in range(PER_ADDRESS)]
        for connection in held:
            connection.sendall(UNFINISHED)
        for connection in held:
            assert status(connection.recv(65536)) == 401

        def are_closed() -> bool:
            for connection in held:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(b"x")
            return sockets(attacked) <= before

        wait_until(are_closed)
        assert is_answered(attacked, ATTACKER)


def test_a_connection_whose_body_ends_after_its_answer_goes_on(attacked: Running) -> None:
    """Many clients send head and body apart, and some answers need no body: closed then, the next request would
    fail.
    """
    with connect(attacked) as connection:
        for _ in range(3):
            connection.sendall(UNFINISHED.replace(b"16777216", b"10"))
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            assert status(answer) == 401
            connection.sendall(b"x" * 9)
        connection.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: lake\r\n\r\n")
        assert status(connection.recv(65536)) == 204


def test_a_client_that_still_sends_a_body_which_nobody_wants_reads_its_answer(attacked: Running) -> None:
    """It is not cut off with a reset, which may take the answer from it."""
    with connect(attacked) as connection:
        connection.sendall(UNFINISHED)
        assert sent_until_closed(connection, b"x" * 65536, 16 * MIB // 65536 - 1) == 16 * MIB - 65536
        assert status(answer_of(connection)) == 401


class Answering:
    """A server of this protocol with very short timers, whose application answers `/slow` when it is let."""

    def __init__(self, *, keep_alive_seconds: int, head_seconds: float) -> None:
        class Protocol(make_protocol(ApiSettings())):
            pass

        Protocol.head_seconds = head_seconds
        self.let = asyncio.Event()
        self.asked = asyncio.Event()
        config = uvicorn.Config(
            self._app,
            http=Protocol,
            interface="asgi3",
            port=0,
            timeout_keep_alive=keep_alive_seconds,
            lifespan="off",
            log_config=None,
        )
        self._server = uvicorn.Server(config)

    async def __aenter__(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._running = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        reader, self._writer = await asyncio.open_connection(host, port)
        return reader, self._writer

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        self._server.should_exit = True
        await self._running

    async def _app(self, scope: Any, _receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            self.asked.set()
            await self.let.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def test_a_request_in_one_segment_with_the_end_of_one_answered_before_is_not_cut_off() -> None:
    async def ask() -> None:
        answering = Answering(keep_alive_seconds=1, head_seconds=30)
        async with answering as (reader, writer):
            writer.write(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nab")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(b"cdGET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
            await answering.asked.wait()
            await asyncio.sleep(1.5)  # longer than an idle connection is kept
            answering.let.set()
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")

    asyncio.run(asyncio.wait_for(ask(), 60))


@pytest.mark.parametrize("stray", [b"\r\n", b"GET /next HT"], ids=["empty line", "part of a head"])
def test_a_request_under_way_is_not_cut_off_by_what_comes_behind_it(stray: bytes) -> None:
    async def ask() -> None:
        answering = Answering(keep_alive_seconds=5, head_seconds=0.1)
        async with answering as (reader, writer):
            writer.write(b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab")
            await answering.asked.wait()
            writer.write(stray)
            await asyncio.sleep(0.5)  # longer than a head may take
            answering.let.set()
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            assert await reader.read() == b""  # what came behind is no whole head in its time

    asyncio.run(asyncio.wait_for(ask(), 60))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"\r\n",
        b"GET /healthcheck HTTP/1.1\r\nHost: lake\r\n\r\n",
        b"GET /healthcheck HTTP/1.1\r\nHost: l\r\n\r\nG",
    ],
    ids=["nothing", "half a head", "an empty line", "one request", "a request and a byte"],
)
def test_an_idle_connection_is_closed(attacked: Running, sent: bytes) -> None:
    before = sockets(attacked)
    with connect(attacked) as connection:
        connection.sendall(sent)
        answer_of(connection)
        wait_until(lambda: sockets(attacked) <= before)


def test_a_client_that_does_not_read_its_answers_is_cut_off(attacked: Running) -> None:
    before = sockets(attacked)
    with connect(attacked, receive_bytes=4096) as connection:
        connection.sendall(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: lake\r\n\r\n" * PIPELINED_MAX)
        poll = select.poll()
        poll.register(connection, select.POLLHUP)
        wait_until(lambda: bool(poll.poll(0)))  # reset: nor does the kernel hold what nobody reads
        wait_until(lambda: sockets(attacked) <= before)


@pytest.mark.parametrize("requests", [1, 3, PIPELINED_MAX])
def test_a_client_that_does_not_read_leaves_no_traceback(attacked: Running, requests: int) -> None:
    """Its answer is written to a connection that the service has cut off; that is no fault of the service."""
    before = sockets(attacked)
    get = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: lake\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(PER_ADDRESS - 1):
            connection = stack.enter_context(connect(attacked, receive_bytes=4096))
            connection.sendall(get * requests)
        wait_until(lambda: sockets(attacked) <= before)
    assert is_answered(attacked, OTHER)
    log = attacked.log.read_text()
    assert "Traceback" not in log
    assert "request_crashed" not in log


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"nonsense\r\n\r\n", "not_http"),
        (b"GET / HTTP/1.1\r\nHost: lake\r\nA b: c\r\n\r\n", "not_http"),
        (b"GET / HTTP/1.1\r\nHost: lake\r\nX: " + b"x" * (2 * HEAD_BYTES_MAX), "too_large"),
    ],
)
def test_the_log_names_whom_the_parser_refuses(attacked: Running, sent: bytes, reason: str) -> None:
    address = f"127.0.0.{100 + len(sent) % 100}"
    with connect(attacked, address) as connection:
        connection.sendall(sent)
        assert status(answer_of(connection)) in (400, 431, 0)
    lines = [json.loads(line) for line in attacked.log.read_text().splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"] == "request_refused" and line["client"] == address]
    assert line["reason"] == reason
    assert "Invalid HTTP request received" not in attacked.log.read_text()


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        ("1.1", [], 400),
        ("1.1", ["Host: lake", "Host: lake"], 400),
        ("1.1", ["Host: lake", "Host: evil.test"], 400),
        ("1.1", ["Host: a, b"], 400),
        ("1.1", ["Host: a/b"], 400),
        ("1.1", ["Host: a@b"], 400),
        ("1.1", ["Host: " + "a" * 300], 400),
        ("1.0", ["Host: a", "Host: b"], 400),
        ("1.0", [], 204),
        ("1.1", ["Host: lake:8000"], 204),
        ("1.1", ["Host: [::1]:8000"], 204),
        ("1.1", ["Host:"], 204),
    ],
)
def test_a_request_has_one_host(attacked: Running, version: str, fields: list[str], expected: int) -> None:
    with connect(attacked) as connection:
        lines = [f"GET /healthcheck HTTP/{version}", *fields, "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        assert status(answer_of(connection)) == expected


@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        ("http://lake:8000/healthcheck", "lake:8000", 204),
        ("HTTP://LAKE/healthcheck?a", "lake", 204),
        ("http://[::1]:8000/healthcheck", "[::1]:8000", 204),
        ("http://evil.test/healthcheck", "lake", 400),
        ("https://evil.test:443/healthcheck", "lake", 400),
        ("http://lake:8001/healthcheck", "lake:8000", 400),
        ("http://lake@evil.test/healthcheck", "lake", 400),
        ("http://evil@lake/healthcheck", "lake", 400),
        ("http://evil.test", "lake", 400),
        ("http://evil.test?/healthcheck", "lake", 400),
        ("http:///healthcheck", "lake", 400),
        ("evil.test:80", "lake", 400),
    ],
)
def test_a_target_names_no_other_host(attacked: Running, target: str, host: str, expected: int) -> None:
    """A program in front may choose by the one, and check the other."""
    with connect(attacked) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert status(answer_of(connection)) == expected


def test_a_target_of_a_request_that_asks_for_an_upgrade_names_no_other_host(attacked: Running) -> None:
    lines = "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with connect(attacked) as connection:
        connection.sendall(f"GET http://evil.test/healthcheck HTTP/1.1\r\nHost: lake\r\n{lines}".encode())
        assert status(connection.recv(65536)) == 400


def test_connections_of_one_address_and_in_all_are_bounded(attacked: Running) -> None:
    wait_until(lambda: is_answered(attacked, ATTACKER))
    lines = refusals(attacked)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(attacked)) for _ in range(3 * PER_ADDRESS)]
        answers = [connection.recv(65536) for connection in held[PER_ADDRESS:]]
        assert {status(answer) for answer in answers} == {503}
        assert is_answered(attacked, OTHER), "others are let in"
        for number in range(2, 4):
            for _ in range(PER_ADDRESS):
                stack.enter_context(connect(attacked, f"127.0.0.{number}"))
    told = refusals(attacked)[len(lines) :]
    assert told or lines
    assert len(told) < PER_ADDRESS, "a line for each would fill the log"
    wait_until(lambda: is_answered(attacked, ATTACKER))


def refusals(running: Running) -> list[dict[str, object]]:
    return [json.loads(line) for line in running.log.read_text().splitlines() if '"too_many_connections"' in line]


# ---- slots


class Monotonic:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_slots_are_bounded_by_site_and_in_all_and_given_back() -> None:
    clock = Monotonic()
    slots = ConnectionSlots("connections", 4, 2, monotonic_seconds=clock)
    with collecting_events() as told:
        assert [slots.take("192.0.2.1") for _ in range(4)] == [True, True, False, False]
        assert [slots.take(f"2001:db8:1:2::{n}") for n in range(3)] == [True, True, False], "one site, one client"
        assert not slots.take("192.0.2.2")
        assert len(told) == 1
        clock.now += LOG_EVERY_SECONDS
        assert not slots.take("192.0.2.2")
    assert [(line["client"], line["bound"], line["refused"]) for line in told] == [
        ("192.0.2.1", "address", 1),
        ("192.0.2.2", "total", 4),
    ]
    for _ in range(2):
        slots.release("192.0.2.1")
        slots.release("2001:db8:1:2::1")
    assert len(slots) == 0
    assert slots.count_sites() == 0, "what is not used is not kept"


def test_an_address_of_many_clients_has_no_bound_but_the_total() -> None:
    slots = ConnectionSlots("connections", 4, 1)
    assert [slots.take("192.0.2.1", shared=True) for _ in range(5)] == [True] * 4 + [False]
    slots.release("192.0.2.1", shared=True)
    assert slots.take("192.0.2.9")


def test_no_more_connections_are_taken_than_files_may_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, _limits: None)
    slots = connection_slots(ApiSettings())
    assert (slots.total_max, slots.site_max) == (128, 64)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 1 << 20))
    assert connection_slots(ApiSettings()).total_max == ApiSettings().connections_max


# ---- proxies


def test_an_address_is_one_however_a_socket_names_it() -> None:
    assert plain_address("::ffff:192.0.2.1") == "192.0.2.1"
    assert plain_address("2001:db8::1") == "2001:db8::1"
    proxies = ProxyNetworks(("10.0.0.0/8", "2001:db8::/32", "192.0.2.7"))
    assert [
        address in proxies for address in ("10.1.2.3", "2001:db8::9", "192.0.2.7", "192.0.2.8", "", "a socket")
    ] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("network", ["10.0.0.1/8", "proxy.example.org", "*", "10.0.0.0/33"])
def test_a_proxy_that_is_no_address_is_refused(network: str) -> None:
    with pytest.raises(InvalidSettings, match="trusted_proxies"):
        ApiSettings(trusted_proxies=(network,))


def proxied(app: object, *, peer: str, forwarded: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    return httpx.AsyncClient(
        transport=transport, base_url="http://lake.test/api/v1", headers={"X-Forwarded-For": forwarded}
    )


@pytest.mark.parametrize(
    ("peer", "forwarded", "held_up"),
    [
        ("10.0.0.1", f"{HERE}", True),
        ("10.0.0.1", f"203.0.113.5, {HERE}", True),
        ("10.0.0.1", f"{HERE}, 10.0.0.2", True),
        ("10.0.0.1", f"{HERE}, 203.0.113.5", False),
        (HERE, "203.0.113.5", True),
        ("203.0.113.5", HERE, False),
    ],
)
def test_only_a_trusted_proxy_names_the_client(peer: str, forwarded: str, held_up: bool) -> None:
    """The last address that is no proxy's: what stands before it, the client wrote itself."""
    with application(ApiSettings(trusted_proxies=("10.0.0.0/8",)), constants={"api.auth.KEY_SECONDS": 0}) as found:

        async def guess() -> int:
            async with proxied(found.app, peer="10.0.0.9", forwarded=HERE) as attacker:
                for _ in range(WRONG_MAX):
                    assert (await attacker.get("/user", auth=(KEY_ID, WRONG))).status_code == 401
            async with proxied(found.app, peer=peer, forwarded=forwarded) as client:
                return (await client.get("/user", auth=(KEY_ID, WRONG))).status_code

        assert found.runner.run(guess()) == (429 if held_up else 401)


def test_a_client_behind_a_proxy_takes_no_more_than_its_share_of_requests() -> None:
    settings = ApiSettings(trusted_proxies=("10.0.0.0/8",), connections_max=4)
    assert request_slots(settings).site_max == 2
    with application(settings, constants={"api.auth.KEY_SECONDS": 0}) as found:
        over = asyncio.Event()
        begun = 0

        async def body() -> object:
            nonlocal begun
            begun += 1
            await over.wait()
            yield b"{}"

        async def attack() -> tuple[list[int], int, list[int]]:
            async with (
                proxied(found.app, peer="10.0.0.9", forwarded=HERE) as client,
                proxied(found.app, peer="10.0.0.9", forwarded="203.0.113.5") as other,
            ):
                held = [asyncio.create_task(client.post("/auth/login", content=body())) for _ in range(2)]
                while begun < 2:
                    await asyncio.sleep(0)
                refused = [(await client.get("/healthcheck")).status_code for _ in range(3)]
                others = (await other.get("/healthcheck")).status_code
                over.set()
                for task in held:
                    await task
                return refused, others, [(await client.get("/healthcheck")).status_code for _ in range(3)]

        assert found.runner.run(attack()) == ([429] * 3, 204, [204] * 3)


# ---- bodies


def test_a_body_that_comes_byte_by_byte_is_given_up() -> None:
    """Each byte comes in time: only that all of them together are too slow ends it."""

    async def drip() -> int:
        patience = BodyTimer(BodyLimits(1 << 20, idle_seconds=0.2, bytes_per_second_min=1 << 30))

        async def byte() -> bytes:
            await asyncio.sleep(0.01)
            return b"x"

        for number in range(10_000):
            try:
                await patience.wait(byte(), len)
            except TimeoutError:
                return number
        return 10_000

    assert 0 < asyncio.run(drip()) < 10_000
