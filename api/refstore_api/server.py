"""Run the application with uvicorn, in one process or several on one port. SIGTERM stops it after the running
requests.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from refstore.configuration.settings import Settings
from refstore.core import large_blocks
from refstore.errors import InvalidSettings
from refstore_api.app import create_app
from refstore_http.http_protocol import BoundedProtocol, make_protocol
from refstore_http.request_metrics import RequestMetrics
from refstore_http.service import Service
from refstore_http.tls import Certificate, SecureListener

GRACE_SECONDS = 30
SWITCH_SECONDS = 0.0005
"""How long a computing thread may run while another one waits. Python's own 5 ms add up, because each request changes
threads.
"""


class GatewayApplication(NamedTuple):
    """The S3 gateway, which answers on a socket of its own, beside the API and over the same service."""

    listening: socket.socket
    make: Callable[[Service, RequestMetrics], ASGIApp]


def bind_socket(host: str, port: int, option: str = "--port") -> socket.socket:
    """Bind a listening socket before anything starts, so that the command fails if the port is taken. Raises
    InvalidSettings.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise InvalidSettings(
            f"the service cannot listen on {host}:{port} ({error}); choose another --host or {option}"
        ) from error
    listening.set_inheritable(True)
    return listening


def serve_requests(
    settings: Settings,
    listening: socket.socket,
    on_started: Callable[[], None] | None = None,
    reaper_metrics: Path | None = None,
    gateway: GatewayApplication | None = None,
) -> None:
    """Answer requests on the socket, in this process, until SIGTERM or SIGINT; and those of the gateway on its own.
    `reaper_metrics`: as in `create_app`.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    large_blocks.return_when_freed()
    app = create_app(settings, reaper_metrics=reaper_metrics)
    answering: ASGIApp = app
    sockets = [listening]
    if gateway is not None:
        answering = _choose_by_address(app, gateway.make(app.state.service, app.state.metrics), gateway.listening)
        sockets.append(gateway.listening)
    config = uvicorn.Config(
        answering,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_SECONDS,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # the pipeline reads them, from proxies that are trusted
        http=make_protocol(settings.api),  # one class, whose connections share the slots of this process
        ws="none",
    )
    ApiServer(config, on_started, Certificate.from_settings(settings.api)).run(sockets=sockets)


def _choose_by_address(api: ASGIApp, gateway: ASGIApp, listening: socket.socket) -> ASGIApp:
    """Return the application that lets the gateway answer what came to its socket, and the API the rest."""
    host, port = listening.getsockname()[:2]
    is_any_host = ip_address(host).is_unspecified

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        own = scope.get("server")
        is_gateways = own is not None and own[1] == port and (is_any_host or own[0] == host)
        await (gateway if is_gateways else api)(scope, receive, send)

    return answer


class ApiServer(uvicorn.Server):
    """Serves TLS with a certificate that is read again on SIGHUP, and leaves the process to end by itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None] | None,
        certificate: Certificate | None,
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._certificate = certificate

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals as uvicorn does, but do not raise them again: that would end the process before its reaper has
        stopped.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        if self._certificate is not None:
            before[signal.SIGHUP] = self._reload_on_hangup(self._certificate)
            self._certificate.reload()  # a SIGHUP that came after the first read and before the handler had no effect
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _reload_on_hangup(self, certificate: Certificate) -> Any:
        """Reload the certificate on SIGHUP; return the handler before."""
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
        # freeze what exists now, because a full collection that scans it again delays every request by 80 ms
        gc.collect()
        gc.freeze()
        if self.started and self._on_started is not None:
            self._on_started()

    def _protocol(self) -> BoundedProtocol:
        """Make the protocol of a connection, as uvicorn does."""
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
