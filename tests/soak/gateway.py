"""The S3 gateway of a storm: `refstore serve` on a port that stays, so that clients find it after each start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import boto3.session
import msgspec
from botocore.config import Config

from examples.demo.s3_gateway import GatewayAccess
from refstore.lake import Lake
from refstore.repository import Repository
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from tests.servers.s3_base import S3Server, free_port

GATEWAY: Final = "gateway"
"""The name of its process."""
SERVER_KEY: Final = "the-server-key-of-the-storms-and-of-no-other"
_FILE: Final = "gateway.json"
_SAID: Final = b"S3 clients: "
"""What the service says before the gateway's URL."""
START_SECONDS: Final = 60
ANSWER_SECONDS: Final = 60
"""Longer than any operation may take, so that none goes on behind its caller's back."""


class Gateway:
    def __init__(self, folder: Path, lake: Lake, repository: str) -> None:
        self._folder = folder
        self._log = folder / f"{GATEWAY}.log"
        self._log_bytes = 0
        self._port = free_port()
        key_id = access_keys.create_key(lake, Role.WRITER, repositories=(repository,)).key.id
        cipher = s3_secrets.SecretCipher(SERVER_KEY.encode())
        secret = s3_secrets.make_s3_secret(lake, cipher, key_id, overlap_ms=0).secret
        self.access = GatewayAccess(f"http://127.0.0.1:{self._port}", key_id, secret)
        (folder / _FILE).write_bytes(msgspec.json.encode(self.access))

    def arguments(self) -> tuple[str, ...]:
        """Return what starts it once more."""
        self._log_bytes = self._log.stat().st_size if self._log.exists() else 0
        ports = ("--host", "127.0.0.1", "--port", "0", "--s3-port", str(self._port))
        return ("-m", "refstore", "serve", *ports, "--no-reaper")

    def is_serving(self) -> bool:
        """Return whether it has answered since it was started last."""
        return self._log.exists() and _SAID in self._log.read_bytes()[self._log_bytes :]


def read_access(ledger: Path) -> GatewayAccess:
    """Return what the gateway's client needs whose ledger this is."""
    return msgspec.json.decode((ledger.parent / _FILE).read_bytes(), type=GatewayAccess)


def make_s3_client(access: GatewayAccess):
    """Make a boto3 client that asks once: what it would send again, the ledger would not know."""
    config = Config(
        s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=ANSWER_SECONDS, proxies={}
    )
    session = boto3.session.Session(access.key_id, access.secret, region_name="us-east-1")
    return session.client("s3", endpoint_url=access.url, config=config)


def compare_reads(repo: Repository, gateway: Gateway) -> list[str]:
    """Read all that branches name through the gateway, and return what is not what the SDK reads."""
    deadline = time.monotonic() + START_SECONDS
    while not gateway.is_serving() and time.monotonic() < deadline:
        time.sleep(0.1)
    s3 = make_s3_client(gateway.access)
    found: list[str] = []
    for branch in [each.name for each in repo.branches()]:
        for item in repo.list(branch):
            key = f"{branch}/{item.path}"
            body = s3.get_object(Bucket=str(repo.name), Key=key)["Body"].read()
            if body != repo.read(branch, item.path):
                found.append(f"{key}: the gateway reads other {len(body)} bytes than the SDK")
    return found


def find_uploads(repo: Repository, server: S3Server | None) -> list[str]:
    """Return the multipart uploads that are registered, or pending in the store: all are over by now."""
    found = [
        f"leaked: the upload of {item.name.path!r} on {item.name.branch!r}" for item in repo.context.uploads.scan()
    ]
    return found + [f"leaked: the pending upload of {key}" for key in (server.pending_uploads() if server else [])]
