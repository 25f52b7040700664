"""A server that answers listings with pages that it has in memory: what a client of S3 needs for itself.

python -m bench.prepared_pages FILE     answers the n-th request with the n-th page, and begins again after the last
"""

from __future__ import annotations

import asyncio
import html
import re
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import msgspec

from bench.s3_requests import HOST, S3Call, S3Target, sign

SAID: Final = "prepared pages "
_NEXT: Final = re.compile(rb"<NextContinuationToken>([^<]+)</NextContinuationToken>")


def store_pages(target: S3Target, prefix: str, file: Path) -> None:
    """Store every page of a listing as the server answers it."""
    pages: list[bytes] = []
    query = f"?list-type=2&prefix={quote(prefix, safe='')}"
    connection = HTTPConnection(HOST, target.port, timeout=60)
    token = ""
    while True:
        head = sign(target._replace(prefix=""), S3Call("GET", query + token)).head
        request, *lines = head.strip().split("\r\n")
        connection.request("GET", request.split()[1], headers=dict(line.split(": ", 1) for line in lines))
        answer = connection.getresponse()
        page = answer.read()
        assert answer.status == 200, page
        pages.append(page)
        found = _NEXT.search(page)
        if found is None:
            break
        token = f"&continuation-token={quote(html.unescape(found[1].decode()), safe='')}"
    connection.close()
    file.write_bytes(msgspec.msgpack.encode(pages))


class _Answers(asyncio.Protocol):
    def __init__(self, answers: Iterator[bytes]) -> None:
        self._answers = answers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"\r\n\r\n"):
            self._received = b""
            self._transport.write(next(self._answers))


async def serve(file: Path, started: str) -> None:
    pages = msgspec.msgpack.decode(file.read_bytes(), type=list[bytes])
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n"
    answers = cycle([head.format(len(page)).encode() + page for page in pages])
    server = await asyncio.get_running_loop().create_server(lambda: _Answers(answers), HOST, 0)
    print(f"{SAID}{started}{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    from bench.api_servers import STARTED

    asyncio.run(serve(Path(sys.argv[1]), STARTED))
