"""Running the application: uvicorn, one process or several over one port, stopped by SIGTERM when what is under way is answered."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from api.app import create_app
from api.protocol import BoundedProtocol
from api.service import Operations
from refstore.errors import InvalidSettings
from refstore.settings import Settings

GRACE_SECONDS = 30


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
    app = create_app(settings, operations_=operations)
    options: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": True,
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "proxy_headers": False,
        "lifespan": "on",
        "http": BoundedProtocol,
        "ws": "none",
    }
    server = _Server(uvicorn.Config(app, **options), on_started)
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn does, but a signal that was answered is not raised again: it would end the process before its reaper has stopped."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # what is there now stays: a full collection that goes through all of it again holds up every request for 80 ms
        gc.collect()
        gc.freeze()
        if self.started and self._on_started is not None:
            self._on_started()
