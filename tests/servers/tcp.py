"""Small TCP servers that fail on purpose: a proxy that loses replies, a stub that answers what it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

import hiredis

RECEIVE_BYTES = 1 << 16


class _Listener:
    """Accepts on a free loopback port and handles each connection in a thread, until it is closed."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """End every connection now."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open[-1].shutdown(socket.SHUT_RDWR)
            self._open.pop().close()

    def handle(self, client: socket.socket) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(client)
            self._spawn(self._run, client)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.handle(client)


class LossyProxy(_Listener):
    """Passes everything on to a port, until it is armed: then the next reply is lost, and the connection with it."""

    def __init__(self, to_port: int) -> None:
        super().__init__()
        self.to_port = to_port
        self.armed = False
        self.lost = 0
        self.passes: int | None = None
        """How many bytes of the next reply pass before the rest of it is lost, if this is set."""

    def handle(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self.to_port))
        self._open.append(server)
        self._spawn(self._pass_replies, server, client)
        while data := client.recv(RECEIVE_BYTES):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    def _pass_replies(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(RECEIVE_BYTES):
                if self.passes is not None:
                    client.sendall(data[: self.passes])
                    self.passes, self.armed = None, True
                if self.armed:
                    self.armed = False
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    server.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


class RedisStub(_Listener):
    """Speaks just enough RESP to answer each command with the bytes that `answer(command)` gives; None: says
    nothing.
    """

    def __init__(self, answer: Callable[[list[bytes]], bytes | None]) -> None:
        super().__init__()
        self._answer = answer
        self.commands: list[list[bytes]] = []
        self.ended: list[str] = []
        """How each connection ended: `closed` or `reset`."""

    def handle(self, client: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while data := client.recv(RECEIVE_BYTES):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    self.commands.append(command)
                    if (reply := self._answer(command)) is not None:
                        client.sendall(reply)
        except ConnectionResetError:
            self.ended.append("reset")
        else:
            self.ended.append("closed")


class DeafStub(RedisStub):
    """Answers until it has answered `last`; then it reads nothing more until `listen` is set, and counts what comes
    then.
    """

    def __init__(self, answer: Callable[[list[bytes]], bytes | None], last: bytes) -> None:
        super().__init__(answer)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._last = last
        self.listen = threading.Event()
        self.came_late_bytes = 0

    def handle(self, client: socket.socket) -> None:
        reader = hiredis.Reader()
        while not (self.commands and self.commands[-1][0] == self._last):
            reader.feed(client.recv(RECEIVE_BYTES))
            while (command := reader.gets()) is not False:
                self.commands.append(command)
                client.sendall(self._answer(command) or b"")
        self.listen.wait(30)
        try:
            while data := client.recv(RECEIVE_BYTES):
                self.came_late_bytes += len(data)
        finally:
            self.ended.append("ended")
