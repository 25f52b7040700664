"""The demo's S3 gateway on loopback, and the access key of the client that works through it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from examples.demo.processes import Processes

GATEWAY: Final = "gateway"
"""The name of its process."""
S3_CLIENT: Final = "landing"
"""The client that works through it (`s3_client.py`)."""
_SAID: Final = "S3 clients: "
"""What the service says before the gateway's URL."""
_FILE: Final = "gateway.json"


class GatewayAccess(msgspec.Struct, frozen=True):
    """What an S3 client needs."""

    url: str
    key_id: str
    secret: str


@contextmanager
def start_gateway(repository: str, processes: Processes) -> Generator[Gateway, None, None]:
    """Start `refstore serve` with an S3 port. During the block a key opens it for this repository."""
    server_key = {"REFSTORE_S3_SECRETS_KEY": secrets.token_hex(32)}

    def run_keys(*words: str) -> dict[str, str]:
        return json.loads(processes.run("refstore", "keys", *words, "--json", more=server_key))

    about = ("--role", "writer", "--repository", repository, "--description", "the demo's")
    key_id = run_keys("create", *about)["access_key_id"]
    try:
        secret = run_keys("rotate", key_id, "--s3")["s3_secret_access_key"]
        options = ("--host", "127.0.0.1", "--port", "0", "--s3-port", "0", "--no-reaper")
        processes.start(GATEWAY, "refstore", "serve", *options, more=server_key)
        yield Gateway(processes, key_id, secret)
    finally:
        run_keys("revoke", key_id, "--yes")


class Gateway:
    def __init__(self, processes: Processes, key_id: str, secret: str) -> None:
        self._processes = processes
        self._key_id = key_id
        self._secret = secret

    def wait_for_access(self) -> GatewayAccess:
        """Wait until it answers."""
        url = self._processes.wait_for_line(GATEWAY, _SAID).split()[0]
        return GatewayAccess(url, self._key_id, self._secret)

    def end(self) -> None:
        """Ask it to end (SIGTERM), and wait. Raises ProcessFailed if it does not end well."""
        self._processes.terminate((GATEWAY,))

    def tell(self, folder: Path) -> None:
        """Wait until it answers, and write down for the client what it needs."""
        (folder / _FILE).write_bytes(msgspec.json.encode(self.wait_for_access()))


def read_access(folder: Path) -> GatewayAccess:
    return msgspec.json.decode((folder / _FILE).read_bytes(), type=GatewayAccess)
