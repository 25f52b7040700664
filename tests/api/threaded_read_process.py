"""Run the process for expensive reads in a thread of the test, over the test's lake and clock, so that tests see what
it does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from refstore.configuration.settings import Settings
from refstore.lake import Lake
from refstore_api import create_app
from refstore_api.read_process import ReadProcess, serve_reads


class ThreadedReadProcess:
    """A read process that is a thread, over the test's lake."""

    def __init__(self, processes: ThreadedReadProcesses, process_end: socket.socket) -> None:
        self._processes = processes
        self._process_end = process_end.dup()  # as a process has its own
        self.killed = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(serve_reads(self._process_end, self._app)))
        self._thread.start()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._processes.request_count += 1
        await self._processes.app(scope, receive, send)

    def kill(self) -> None:
        self.killed.set()
        with suppress(OSError):  # it has ended
            self._process_end.shutdown(socket.SHUT_RDWR)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()


class ThreadedReadProcesses:
    app: FastAPI

    def __init__(self) -> None:
        self.request_count = 0
        self.started: list[ThreadedReadProcess] = []
        self.can_start = True

    def read_process(self, lake: Lake, settings: Settings) -> ReadProcess:
        self.app = create_app(settings, lake=lake, is_read_process=True)
        self.process = ReadProcess(self._start)
        return self.process

    def is_ready(self) -> bool:
        return self.process.is_ready()

    def _start(self, process_end: socket.socket) -> ThreadedReadProcess:
        if not self.can_start:
            raise OSError("no memory")
        self.started.append(ThreadedReadProcess(self, process_end))
        return self.started[-1]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come to hold")
