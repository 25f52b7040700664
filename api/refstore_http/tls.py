"""Serve TLS: reload a renewed certificate, and count handshakes as connections.

uvicorn makes the handshake before it knows of the connection, so a client that connects and sends nothing would take no
slot. Here each connection takes its slot first. A handshake uses the certificate that is in force when it begins, and
the connection keeps it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from refstore.configuration.settings import ApiSettings
from refstore.core import event_log
from refstore.errors import InvalidSettings
from refstore_http.http_protocol import BoundedProtocol

HANDSHAKE_SECONDS: Final = 10.0
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""The wait after a connection could not be accepted, as in asyncio."""

_log = event_log.get_logger(__name__)


class Certificate:
    """A certificate chain and its key, in PEM files, which may be one."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises InvalidSettings."""
        self._files = certificate, key
        self.context = self._read()
        """The context for new handshakes."""

    @classmethod
    def from_settings(cls, settings: ApiSettings) -> Certificate | None:
        """Load the settings' certificate; None: the service speaks plain HTTP. Raises InvalidSettings."""
        if not settings.tls_certificate:
            return None
        return cls(Path(settings.tls_certificate[0]), Path(settings.tls_certificate[-1]))

    def reload(self) -> None:
        """Read the files again, and log the outcome. If they hold no valid pair, the certificate in force stays."""
        try:
            self.context = self._read()
        except InvalidSettings as error:
            _log.error("tls_certificate_not_reloaded", error=str(error))
        else:
            _log.info("tls_certificate_reloaded", certificate=str(self._files[0]))

    def _read(self) -> ssl.SSLContext:
        """Make a new context each time. A context in use would be left with half a pair if the second file is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        for path in (certificate, key):
            try:
                path.open("rb").close()
            except OSError as error:
                raise InvalidSettings(
                    f"api.tls_certificate: {path} cannot be read ({error.strerror}); name a PEM file that can be"
                ) from error
        try:
            # an empty password, because OpenSSL would ask a terminal for one
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error) or "they cannot be read"
            raise InvalidSettings(
                f"api.tls_certificate: {certificate} and {key} are not a certificate and its key ({reason});"
                " name the chain, the service's own certificate first, and the key without a password, both in PEM"
            ) from error
        return context


class SecureListener:
    """Accept connections, make the handshakes, and hand the connections to HTTP. uvicorn uses it like a server of
    asyncio.
    """

    def __init__(self, make: Callable[[], BoundedProtocol], certificate: Certificate) -> None:
        self._make = make
        self._certificate = certificate
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._start(self._accept(listening))

    def close(self) -> None:
        """Accept no more connections. HTTP closes those whose handshake is done."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:  # out of file descriptors for the moment, or the client disconnected
                _log.warning("connection_not_accepted", error=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            http = self._make()
            if http.take_slot(str(address[0])):
                self._start(self._shake_hands(http, connection))
            else:
                connection.close()  # an answer would need a handshake
            await asyncio.sleep(0)  # sock_accept() does not yield while more connections wait

    async def _shake_hands(self, http: BoundedProtocol, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        is_done = False
        try:
            context = self._certificate.context
            await loop.connect_accepted_socket(
                lambda: http, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
            is_done = True
        except OSError as error:  # of TLS too; so ends a client that does not trust the certificate
            _log.debug("tls_handshake_failed", error=str(error))
        finally:
            if not is_done:
                http.release_slot()
                connection.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
