"""A TCP proxy that passes on no more than so many MiB a second each way, as a network to a real store does.

python -m bench.limited_proxy SERVER_PORT MIB_PER_SECOND
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Final

HOST: Final = "127.0.0.1"
PIECE_BYTES: Final = 64 << 10
BURST_SECONDS: Final = 0.02
LISTENS: Final = "limited proxy serves http://127.0.0.1:"


class Limit:
    """Lets bytes pass at a rate; for one direction of all connections together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def take(self, amount: int) -> None:
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_SECONDS) + amount / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


async def serve(server_port: int, mib_per_second: float) -> None:
    there, back = Limit(mib_per_second * (1 << 20)), Limit(mib_per_second * (1 << 20))

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: Limit) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(PIECE_BYTES):
                await limit.take(len(piece))
                writer.write(piece)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, server_port)
        await asyncio.gather(pass_on(reader, server_writer, there), pass_on(server_reader, writer, back))
        for each in (writer, server_writer):
            each.close()

    listening = await asyncio.start_server(connect, HOST, 0)
    print(f"{LISTENS}{listening.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
