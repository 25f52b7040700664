"""Running the application: uvicorn, one process or several over one port, stopped by SIGTERM when what is under way is answered."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from api.app import create_app
from api.protocol import BoundedProtocol, protocol_of
from api.service import Operations
from api.tls import Certificate, SecureListener
from refstore.errors import InvalidSettings
from refstore.settings import Settings

GRACE_SECONDS = 30
SWITCH_SECONDS = 0.0005
"""After which a thread that computes lets another one go on that has come to: Python's own 5 ms add up, as each request changes threads."""


def bind(settings: Settings) -> socket.socket:
    """The listening socket, bound before anything starts: a port that is taken is an error of the command. Raises InvalidSettings."""
    where = settings.api
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((where.host, where.port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise InvalidSettings(
            f"the service cannot listen on {where.host}:{where.port} ({error}); choose another --host or --port"
        ) from error
    listening.set_inheritable(True)
    return listening


def answer(
    settings: Settings, listening: socket.socket, operations: Operations | None, on_started: Callable[[], None] | None = None
) -> None:
    """Answer requests on the socket, in this process, until SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings, operations_=operations)
    certificate = Certificate.of(settings.api)
    options: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": True,
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "proxy_headers": False,  # `create_app` reads them, from proxies that are trusted
        "lifespan": "on",
        "http": protocol_of(settings.api),
        "ws": "none",
    }
    server = _Server(uvicorn.Config(app, **options), on_started, certificate)
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None] | None, certificate: Certificate | None) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._certificate = certificate

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn does, but a signal that was answered is not raised again: it would end the process before its reaper has stopped."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        if self._certificate is not None:
            before[signal.SIGHUP] = self._reload_on_hangup(self._certificate)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _reload_on_hangup(self, certificate: Certificate) -> Any:
        """What SIGHUP did before."""
        loop = asyncio.get_running_loop()

        def reload(_number: int, _frame: object) -> None:
            loop.call_soon_threadsafe(certificate.reload)

        return signal.signal(signal.SIGHUP, reload)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets if self._certificate is None else [])
        if self._certificate is not None:
            listener = SecureListener(self._protocol, self._certificate)
            for listening in sockets or ():
                listener.listen(listening)
            self.servers = [listener]  # type: ignore[list-item]  # uvicorn asks a server for close() and wait_closed()
        # what is there now stays: a full collection that goes through all of it again holds up every request for 80 ms
        gc.collect()
        gc.freeze()
        if self.started and self._on_started is not None:
            self._on_started()

    def _protocol(self) -> BoundedProtocol:
        """For a connection, as uvicorn makes it."""
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
