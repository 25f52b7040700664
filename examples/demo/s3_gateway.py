"""The demo's S3 gateway on loopback, and the access key of the client that works through it."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from examples.demo.processes import Processes
from refstore import Lake
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role

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
def start_gateway(lake: Lake, repository: str, processes: Processes) -> Generator[Gateway, None, None]:
    """Start `refstore serve` with an S3 port. During the block a key opens it for this repository."""
    server_key = secrets.token_hex(32)
    cipher = s3_secrets.SecretCipher(server_key.encode())
    key_id = access_keys.create_key(lake, Role.WRITER, repositories=(repository,), description="the demo's").key.id
    try:
        secret = s3_secrets.make_s3_secret(lake, cipher, key_id, overlap_ms=0).secret
        options = ("--host", "127.0.0.1", "--port", "0", "--s3-port", "0", "--no-reaper")
        processes.start(GATEWAY, "refstore", "serve", *options, more={"REFSTORE_S3_SECRETS_KEY": server_key})
        yield Gateway(processes, key_id, secret)
    finally:
        access_keys.revoke_key(lake, key_id)


class Gateway:
    def __init__(self, processes: Processes, key_id: str, secret: str) -> None:
        self._processes = processes
        self._key_id = key_id
        self._secret = secret

    def tell(self, folder: Path) -> None:
        """Wait until it answers, and write down for the client what it needs."""
        url = self._processes.wait_for_line(GATEWAY, _SAID).split()[0]
        access = GatewayAccess(url, self._key_id, self._secret)
        (folder / _FILE).write_bytes(msgspec.json.encode(access))


def read_access(folder: Path) -> GatewayAccess:
    return msgspec.json.decode((folder / _FILE).read_bytes(), type=GatewayAccess)
