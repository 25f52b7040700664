"""Attacks on the memory and on the event loop of a running service, each bounded in count and time: the memory
above idle, and how long other callers waited meanwhile. `make soak ARGS='-k memory_attack'` runs them alone.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from refstore.core.child_processes import PythonProcess
from refstore.operations.upload import Upload
from refstore.service.access_keys import Role
from tests.api.conftest import KEY_ID, SECRET
from tests.s3.s3_service import S3_SECRET, S3Service, serving_s3
from tests.s3.wire import WireRequest, sign

SECONDS: Final = float(os.environ.get("REFSTORE_ATTACK_SECONDS", "15"))
MIB: Final = 1 << 20
BUCKET: Final = "attacked"
ATTACKERS: Final = ("AKIAATTACKER0001", "AKIAATTACKER0002")
ATTACKS_FROM: Final = ("127.0.0.2", "127.0.0.3")
WAIT_SECONDS: Final = 30.0
WARM_ANSWERS: Final = 20
"""How many answers the others have heard when an attack begins."""


class Figures(NamedTuple):
    name: str
    idle_mib: int
    peak_mib: int
    waits_ms: list[float]
    failures: int

    @property
    def growth_mib(self) -> int:
        return self.peak_mib - self.idle_mib

    def __str__(self) -> str:
        waits = sorted(self.waits_ms) or [0.0]
        p99 = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
        return (
            f"{self.name:22} {self.growth_mib:5} MiB above idle ({self.idle_mib}); others: "
            f"{len(waits)} requests, p50 {waits[len(waits) // 2]:.0f} ms, p99 {p99:.0f} ms, "
            f"longest {waits[-1]:.0f} ms, {self.failures} failed"
        )


def memory_mib(service: S3Service) -> int:
    """Return the resident memory of the service and of all that it started."""
    pids = [service.running.process.pid]
    for pid in pids:  # it grows meanwhile
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                pids += [int(child) for child in tasks.read_text().split()]
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])
    return total >> 10


def open_connections(stack: ExitStack, address: tuple[str, int], count: int) -> Iterator[socket.socket]:
    """Open connections whose answers nobody reads, from several addresses, because each may have only so many."""
    for number in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT_SECONDS)
        connection.bind((ATTACKS_FROM[number % len(ATTACKS_FROM)], 0))
        connection.connect(address)
        yield stack.enter_context(connection)


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send as much as the service takes."""
    with suppress(OSError):
        connection.sendall(data)


def nothing(_service: S3Service, _stack: ExitStack, ended: threading.Event) -> None:
    """Attack nobody: what the others wait on this machine anyway."""
    ended.wait(SECONDS)


def unread_pages(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Ask for pages of 17 MiB on 120 connections, and read none of them."""
    host, port = urlsplit(service.running.url).netloc.split(":")
    credentials = base64.b64encode(f"{ATTACKERS[0]}:api-{S3_SECRET}".encode()).decode()
    path = f"/api/v1/repositories/{BUCKET}/refs/main/objects/ls?amount=1000"
    head = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Basic {credentials}\r\n\r\n".encode()
    for connection in open_connections(stack, (host, int(port)), 120):
        send_all(connection, head)
    ended.wait(SECONDS)


def unread_s3_pages(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """The same of the gateway."""
    head = sign(service, "GET", f"/{BUCKET}", query="list-type=2&prefix=main%2F", key_id=ATTACKERS[0]).encode()
    for connection in open_connections(stack, service.address, 120):
        send_all(connection, head)
    ended.wait(SECONDS)


def unread_objects(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Ask for a large object on 900 connections, and read nothing of it."""
    head = sign(service, "GET", f"/{BUCKET}/main/large", key_id=ATTACKERS[0]).encode()
    for connection in open_connections(stack, service.address, 900):
        send_all(connection, head)
    ended.wait(SECONDS)


def held_bodies(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Send all but a byte of 1 MiB on 900 connections, by one signed URL."""
    _send_bodies(service, stack, ended, MIB)


def long_bodies(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Send the beginning of 64 MiB on 900 connections, by one signed URL."""
    _send_bodies(service, stack, ended, 64 * MIB)


def _send_bodies(service: S3Service, stack: ExitStack, ended: threading.Event, length: int) -> None:
    client = service.client(ATTACKERS[0], signature_version="s3v4")
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": "main/x"}))
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {length}\r\n\r\n".encode()
    body = bytes(MIB - 1)
    for connection in open_connections(stack, service.address, 900):
        connection.settimeout(0.05)  # one that is not read from waits
        send_all(connection, head + body)
        if ended.is_set():
            return
    ended.wait(SECONDS)


def slow_documents(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Send half of 4 MiB on 8 connections of two writers, and then a byte a second."""
    connections: list[socket.socket] = []
    for number, connection in enumerate(open_connections(stack, service.address, 8)):
        length = {"Content-Length": str(4 * MIB), "Content-MD5": base64.b64encode(bytes(16)).decode()}
        request = sign(
            service, "POST", f"/{BUCKET}", query="delete", headers=length, payload="UNSIGNED-PAYLOAD",
            key_id=ATTACKERS[number % 2],
        )  # fmt: skip
        send_all(connection, request.encode() + b"<Delete>".ljust(2 * MIB))
        connections.append(connection)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not ended.wait(1):
        for connection in connections:
            send_all(connection, b" ")


def many_attributes(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Send documents of one tag with 400,000 attributes, on 8 connections of two writers, again and again."""
    tag = b"<Delete " + b" ".join(b"a%x=''" % number for number in range(400_000)) + b"/>"
    _send_documents(service, stack, ended, tag)


def many_elements(service: S3Service, stack: ExitStack, ended: threading.Event) -> None:
    """Send documents of 99,000 elements likewise, which are read."""
    _send_documents(service, stack, ended, b"<Delete>" + b"<a>&lt;</a>" * 99_000 + b"</Delete>")


def _send_documents(service: S3Service, stack: ExitStack, ended: threading.Event, body: bytes) -> None:
    assert len(body) <= 4 * MIB, len(body)
    md5 = {"Content-MD5": base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()}
    until = time.monotonic() + SECONDS
    requests = {
        key_id: sign(service, "POST", f"/{BUCKET}", body, query="delete", headers=md5, key_id=key_id).encode()
        for key_id in ATTACKERS
    }

    def send(key_id: str, connection: socket.socket) -> None:
        while time.monotonic() < until and not ended.is_set():
            try:
                connection.sendall(requests[key_id])
                if not connection.recv(65536):
                    return
            except OSError:
                return

    connections = list(open_connections(stack, service.address, 8))
    threads = [
        threading.Thread(target=send, args=(ATTACKERS[number % 2], connection))
        for number, connection in enumerate(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: Final[dict[str, Callable[[S3Service, ExitStack, threading.Event], None]]] = {
    each.__name__: each
    for each in (
        nothing,
        unread_pages,
        unread_s3_pages,
        unread_objects,
        held_bodies,
        long_bodies,
        slow_documents,
        many_attributes,
        many_elements,
    )
}


class Asked(NamedTuple):
    """What the other callers ask with, in a process of their own."""

    api: str
    s3: tuple[str, int]
    put: WireRequest
    answers: Path
    """Gets a line for each request: its milliseconds, and what went wrong."""
    over: Path
    """They end when it exists."""


def ask_as_others(asked: Asked) -> None:
    """Make an operator's commits, which are sent without their length, and another key's small objects, one by one."""
    credentials = "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()
    headers = {"Authorization": credentials, "Content-Type": "application/json"}
    commit = json.dumps({"message": "of 40 bytes", "force": False, "allow_empty": True}).encode()
    path = "/api/v1/repositories/others/branches/main/commits"
    api = http.client.HTTPConnection(asked.api, timeout=2 * WAIT_SECONDS)
    s3 = http.client.HTTPConnection(*asked.s3, timeout=2 * WAIT_SECONDS)
    with asked.answers.open("w", buffering=1) as answers:
        while not asked.over.exists():
            for connection in (api, s3):
                began = time.perf_counter()
                fault = ""
                try:
                    if connection is api:
                        api.request("POST", path, iter([commit]), headers, encode_chunked=True)
                    else:
                        s3.request("PUT", asked.put.target, asked.put.body, dict(asked.put.headers))
                    answer = connection.getresponse()
                    answer.read()
                    fault = "" if answer.status < 300 else str(answer.status)
                except (OSError, http.client.HTTPException) as error:
                    fault = repr(error)
                    connection.close()
                answers.write(f"{1000 * (time.perf_counter() - began):.1f} {fault}\n")
                time.sleep(0.02)


@contextmanager
def others(service: S3Service, folder: Path) -> Iterator[Path]:
    """Let other callers ask during the block; return the file with what they heard."""
    put = sign(service, "PUT", "/others/main/small", b"small")
    asked = Asked(urlsplit(service.running.url).netloc, service.address, put, folder / "answers", folder / "over")
    process = PythonProcess(ask_as_others, asked)
    try:
        yield asked.answers
    finally:
        asked.over.touch()
        process.join(3 * WAIT_SECONDS)


def measure(name: str) -> Figures:
    """Attack a service of its own."""
    with tempfile.TemporaryDirectory() as folder, serving_s3(Path(folder)) as service:
        repo = service.lake.create_repository(BUCKET)
        service.lake.create_repository("others")
        repo.upload_many("main", _objects())
        for key_id in ATTACKERS:
            service.add_key(key_id, Role.WRITER)
        service.client().list_objects_v2(Bucket=BUCKET, MaxKeys=1)
        ended = threading.Event()
        with others(service, Path(folder)) as answers:
            while not answers.exists() or (before := len(answers.read_text().splitlines())) < WARM_ANSWERS:
                time.sleep(0.1)
            idle_mib = peak_mib = memory_mib(service)
            with ExitStack() as stack:
                thread = threading.Thread(target=ATTACKS[name], args=(service, stack, ended))
                thread.start()
                until = time.monotonic() + 4 * SECONDS
                while thread.is_alive():
                    peak_mib = max(peak_mib, memory_mib(service))
                    if time.monotonic() > until:
                        ended.set()
                    time.sleep(0.1)
        lines = [line.split(" ", 1) for line in answers.read_text().splitlines()[before:]]
        faults = [fault for _, fault in lines if fault]
        for fault in sorted(set(faults)):
            print("   ", fault, faults.count(fault))
        return Figures(name, idle_mib, peak_mib, [float(waited_ms) for waited_ms, _ in lines], len(faults))


def _objects() -> Iterator[Upload]:
    """Return a large object, and a thousand with texts that take several times their bytes in JSON and in XML."""
    yield Upload("large", bytes(64 * MIB))
    for number in range(1000):
        yield Upload(f"page/{number:04}{'&' * 900}", b"", metadata={"text": "\u202e" * 2600})
