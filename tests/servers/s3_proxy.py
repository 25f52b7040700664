"""A proxy before an S3 server that makes things go wrong, by plan: exactly once in a test, at random (seeded) in a
soak.

    with S3FaultProxy(server.endpoint, RandomFaults(seed=7, unavailable=0.05, delete_key=0.003)) as proxy:
        store = open_objects(server.url(endpoint=proxy.endpoint))

What is not touched passes through as it was signed. A bulk delete that some keys are taken out of is signed anew, so
that those keys are really still there.
"""

from __future__ import annotations

# ruff: noqa: S314  # what is parsed comes from our own client and servers
import http.client
import random
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.servers.s3_base import ACCESS_KEY, SECRET_KEY

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class ProxiedRequest(NamedTuple):
    method: str
    target: str
    """Path and query, as sent."""
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def is_bulk_delete(self) -> bool:
        return self.method == "POST" and "delete" in self.query

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and "list-type" in self.query

    @property
    def is_get_object(self) -> bool:
        return self.method == "GET" and not self.query

    @property
    def is_put_object(self) -> bool:
        return self.method == "PUT" and not self.query

    @property
    def is_complete(self) -> bool:
        return self.method == "POST" and "uploadId" in self.query

    @property
    def delete_keys(self) -> list[str]:
        """The keys of a bulk delete, with the server's own prefix."""
        return (
            [key.text or "" for key in ElementTree.fromstring(self.body).iter(f"{{{_NAMESPACE}}}Key")]
            if self.is_bulk_delete
            else []
        )


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an error instead of asking the server."""

    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True, slots=True)
class FailKeys:
    """Of a bulk delete: these keys are not deleted, and reported so."""

    keys: frozenset[str]
    code: str = "InternalError"


@dataclass(frozen=True, slots=True)
class CutBody:
    """Break the connection after so many bytes of the answer's body."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class DropReply:
    """Let the server do it, and break the connection without a word."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Change the answer's body."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class ChangeBody:
    """Change the request's body on its way to the server."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer with this document instead of asking the server."""

    body: bytes


@dataclass(frozen=True, slots=True)
class WithoutRange:
    """Ask for the whole object although a part was asked for (as a careless proxy does; moto only, it breaks the
    signature).
    """


Fault = Refuse | FailKeys | CutBody | DropReply | Rewrite | ChangeBody | Reply | WithoutRange
Plan = Callable[[ProxiedRequest], Fault | None]


class RandomFaults:
    """A plan for a soak: each request rolls the dice. Rates are probabilities."""

    def __init__(
        self, *, seed: int, unavailable: float = 0.0, delete_key: float = 0.0, cut_get: float = 0.0,
        cut_list: float = 0.0,
        drop_reply: float = 0.0,
    ) -> None:  # fmt: skip
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._unavailable = unavailable
        self._delete_key = delete_key
        self._cut_get = cut_get
        self._cut_list = cut_list
        self._drop_reply = drop_reply

    def __call__(self, request: ProxiedRequest) -> Fault | None:
        with self._lock:
            roll = self._rng.random
            if roll() < self._unavailable:
                return Refuse()
            if roll() < self._drop_reply:
                return DropReply()
            if (request.is_get_object and roll() < self._cut_get) or (request.is_list and roll() < self._cut_list):
                return CutBody(self._rng.randrange(4096))
            if self._delete_key and request.is_bulk_delete:
                failing = frozenset(key for key in request.delete_keys if roll() < self._delete_key)
                return FailKeys(failing) if failing else None
            return None


class S3FaultProxy:
    def __init__(self, upstream: str, plan: Plan | None = None) -> None:
        """`upstream` is the server's endpoint; `plan` decides for each request what goes wrong, and may be set
        later.
        """
        self.plan = plan
        self.log: deque[tuple[ProxiedRequest, Fault | None]] = deque(maxlen=10_000)
        """The last requests and what was done to them."""
        self._upstream = upstream
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="s3-fault-proxy"
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def decide(self, request: ProxiedRequest) -> Fault | None:
        fault = self.plan(request) if self.plan else None
        self.log.append((request, fault))
        return fault

    def ask(self, request: ProxiedRequest) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(urlsplit(self._upstream).netloc, timeout=120)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in ("connection", "expect", "content-length", "transfer-encoding"):
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def without(self, request: ProxiedRequest, keys: frozenset[str]) -> ProxiedRequest | None:
        """The same bulk delete without some keys, signed anew; None if there is nothing left to delete."""
        ElementTree.register_namespace("", _NAMESPACE)
        document = ElementTree.fromstring(request.body)
        for entry in document.findall(f"{{{_NAMESPACE}}}Object"):
            if entry.findtext(f"{{{_NAMESPACE}}}Key") in keys:
                document.remove(entry)
        if document.find(f"{{{_NAMESPACE}}}Object") is None:
            return None
        body = ElementTree.tostring(document)
        headers = {
            "Content-MD5": b64encode(md5(body, usedforsecurity=False).digest()).decode(),
            "Content-Type": "application/xml",
        }
        signed = AWSRequest("POST", self._upstream + request.target, headers=headers, data=body)
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(signed)
        headers = {name: str(value) for name, value in signed.headers.items()}
        return ProxiedRequest("POST", request.target, headers | {"Host": urlsplit(self._upstream).netloc}, body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: S3FaultProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = ProxiedRequest(self.command, self.path, dict(self.headers.items()), body)
        fault = self.server.proxy.decide(request)
        if isinstance(fault, Refuse):
            self._refuse(fault)
        elif isinstance(fault, Reply):
            self._answer(200, {"Content-Type": "application/xml"}, fault.body)
        elif isinstance(fault, FailKeys):
            self._fail_keys(request, fault)
        else:
            self._pass(request, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815  # the names that http.server looks for

    def _refuse(self, fault: Refuse) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>by plan</Message></Error>"
        self._answer(fault.status, {"Content-Type": "application/xml"}, text.encode())

    def _fail_keys(self, request: ProxiedRequest, fault: FailKeys) -> None:
        failing = fault.keys.intersection(request.delete_keys)
        rest = self.server.proxy.without(request, failing)
        document = ElementTree.Element(f"{{{_NAMESPACE}}}DeleteResult")
        if rest is not None:
            connection, response = self.server.proxy.ask(rest)
            answer = response.read()
            connection.close()
            if response.status != 200:
                self._answer(response.status, dict(response.getheaders()), answer)
                return
            document = ElementTree.fromstring(answer)
        namespace = document.tag.partition("}")[0] + "}" if document.tag.startswith("{") else ""
        for key in sorted(failing):
            entry = ElementTree.SubElement(document, f"{namespace}Error")
            for name, value in (("Key", key), ("Code", fault.code), ("Message", "by plan")):
                ElementTree.SubElement(entry, f"{namespace}{name}").text = value
        self._answer(200, {"Content-Type": "application/xml"}, ElementTree.tostring(document))

    def _pass(self, request: ProxiedRequest, fault: Fault | None) -> None:
        if isinstance(fault, WithoutRange):
            request = request._replace(
                headers={name: value for name, value in request.headers.items() if name.lower() != "range"}
            )
        elif isinstance(fault, ChangeBody):
            request = request._replace(body=fault.change(request.body))
        connection, response = self.server.proxy.ask(request)
        try:
            if isinstance(fault, DropReply):
                response.read()
                self.close_connection = True
                return
            length = response.getheader("Content-Length")
            if isinstance(fault, Rewrite):
                self._answer(response.status, dict(response.getheaders()), fault.change(response.read()))
            elif request.method == "HEAD" or (length is not None and not isinstance(fault, CutBody)):
                self._head(response.status, dict(response.getheaders()), int(length or 0))
                for chunk in _chunks(response):
                    self.wfile.write(chunk)
            else:
                whole = response.read()
                self._head(response.status, dict(response.getheaders()), len(whole))
                self.wfile.write(whole[: fault.after_bytes] if isinstance(fault, CutBody) else whole)
                self.close_connection = self.close_connection or isinstance(fault, CutBody)
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._head(status, headers, len(body))
        if self.command != "HEAD":  # a body there would be taken for the begin of the next answer
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that http.server gives it
        """The proxy keeps its own log."""


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while chunk := response.read(1 << 16):
        yield chunk
