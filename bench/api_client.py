"""An HTTP client that costs little, so that what is measured is the server: keep-alive connections, requests made
beforehand.

Each connection has one request under way. At full speed it sends the next one as soon as an answer is there; at a given
pace every request has its time, and an answer's latency counts from then, so a server that stalls is not forgiven those
that had to wait.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast

import uvloop

HOST: Final = "127.0.0.1"
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_SAID_BYTES: Final = 2000


class Call(NamedTuple):
    method: str
    target: str
    body: str = ""
    """JSON, where there is one."""
    body_bytes: int = 0
    """Instead: so many bytes of data."""
    answers: int = 200


@dataclass(slots=True)
class Load:
    latencies: list[float] = field(default_factory=list[float])
    statuses: Counter[int] = field(default_factory=Counter[int])
    received_bytes: int = 0


class Pace(NamedTuple):
    per_second: float
    until: Path
    """The file whose being there ends it."""


def write_calls(file: Path, calls: Sequence[Call]) -> Path:
    """A worker's arguments do not hold so much."""
    file.write_text("\n".join(json.dumps(call) for call in calls))
    return file


def read_calls(file: Path) -> list[Call]:
    return [Call(*json.loads(line)) for line in file.read_text().splitlines()]


def encode(call: Call, authorization: str, data: bytes) -> bytes:
    """The request as it goes over the wire."""
    body = call.body.encode() or data[: call.body_bytes]
    kind = (
        f"content-type: application/{'json' if call.body else 'octet-stream'}\r\ncontent-length: {len(body)}\r\n"
        if body
        else ""
    )
    return (
        f"{call.method} {call.target} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: {authorization}\r\n{kind}\r\n".encode()
        + body
    )


def drive(
    port: int, calls: Sequence[Call], authorization: str, *, clients: int, pace: Pace | None = None
) -> tuple[Load, float]:
    """(what was answered, seconds). Without a pace each call is made once; with one they are made in turn, over and
    over.
    """
    data = bytes(range(256)) * (max((call.body_bytes for call in calls), default=0) // 256 + 1)
    requests = [(encode(call, authorization, data), call.answers) for call in calls]
    return uvloop.run(_drive(port, requests, clients, pace))


def drive_requests(port: int, requests: list[tuple[bytes, int]], *, clients: int) -> tuple[Load, float]:
    """The same with requests as they go over the wire, each with the status of its answer."""
    return uvloop.run(_drive(port, requests, clients, None))


async def _drive(port: int, requests: list[tuple[bytes, int]], clients: int, pace: Pace | None) -> tuple[Load, float]:
    load = Load()
    loop = asyncio.get_running_loop()
    connections: list[_Connection] = []
    for _ in range(clients):
        _, connection = await loop.create_connection(lambda: _Connection(load), HOST, port)
        connections.append(connection)
    began = time.perf_counter()
    if pace is None:
        waiting = iter(requests)
        await asyncio.gather(*(connection.work(waiting) for connection in connections))
    else:
        await asyncio.gather(
            *(connection.keep_pace(requests, pace, number, clients) for number, connection in enumerate(connections))
        )
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return load, seconds


class _Connection(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._held = b""
        self._said = b""
        """The beginning of the answer, for when it is not the one that was hoped for."""
        self._missing: int | None = None
        """Bytes of the answer's body that are still to come; None: its head is."""
        self._status = 0
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own, which is one in all but name

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(
                exc or ConnectionError("the server closed a connection before it had answered")
            )

    def close(self) -> None:
        self._transport.close()

    async def work(self, waiting: Iterator[tuple[bytes, int]]) -> None:
        for request, answers in waiting:
            began = time.perf_counter()
            await self._ask(request, answers)
            self._load.latencies.append(time.perf_counter() - began)

    async def keep_pace(self, requests: Sequence[tuple[bytes, int]], pace: Pace, number: int, clients: int) -> None:
        """Every `clients`-th request of a pace that all connections keep together."""
        began = time.perf_counter()
        turn = number
        while not pace.until.exists():
            due = began + turn / pace.per_second
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
                due = time.perf_counter()  # the timer's own lateness is not the server's
            await self._ask(*requests[turn % len(requests)])
            self._load.latencies.append(time.perf_counter() - due)
            turn += clients

    async def _ask(self, request: bytes, answers: int) -> None:
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        status = await self._answered
        self._load.statuses[status] += 1
        if status != answers:
            raise RuntimeError(f"the server answered {status}, not {answers}: {self._said!r}")

    def data_received(self, data: bytes) -> None:
        self._load.received_bytes += len(data)
        if self._missing is None:
            self._held += data
            end = self._held.find(_END)
            if end < 0:
                return
            head = self._held[:end].lower() + b"\r\n"
            self._status = int(head[9:12])
            at = head.find(_LENGTH)
            length = int(head[at + len(_LENGTH) : head.index(b"\r\n", at + 2)]) if at >= 0 else 0
            if at < 0 and self._status not in (204, 304):
                raise RuntimeError(f"an answer of status {self._status} does not say how long it is")
            self._missing = length - (len(self._held) - end - len(_END))
            self._said, self._held = self._held[:_SAID_BYTES], b""
        else:
            self._missing -= len(data)
        if self._missing <= 0:
            self._missing = None
            if self._answered is not None and not self._answered.done():
                self._answered.set_result(self._status)
