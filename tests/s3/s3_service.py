"""`refstore serve` with an S3 port, in a process of its own, and how clients are told of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore.config import Config

from refstore.configuration.settings import embedded_urls
from refstore.lake import Lake
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from tests.api.conftest import KEY_ID, START_SECONDS, Running, serving
from tests.api.test_tls import Pair

SECRETS_KEY = "the-server-key-of-these-tests-and-of-no-other"
S3_SECRET = "an-s3-secret-that-only-these-tests-know"
REGION = "us-east-1"
SAID = "S3 clients: "
"""What the service says before the address of its S3 port."""


class S3Service(NamedTuple):
    running: Running
    lake: Lake
    """The same lake, past the service."""
    url: str
    certificate: Path | None
    """Of the service, which is its own root; None: it speaks HTTP."""
    key_id: str = KEY_ID
    """The access key that signs, where a test names none."""

    @property
    def is_secure(self) -> bool:
        return self.certificate is not None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.partition("://")[2].rsplit(":", 1)
        return host, int(port)

    @property
    def verify(self) -> str | bool:
        return str(self.certificate) if self.certificate else True

    def environment(self) -> dict[str, str]:
        """For a process that is to reach it; nothing of the machine's own configuration is used."""
        trust = str(self.certificate) if self.certificate else ""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.running.log.parent),
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
            **({"AWS_CA_BUNDLE": trust, "SSL_CERT_FILE": trust} if trust else {}),
        }

    def add_key(
        self, key_id: str, role: Role, repositories: tuple[str, ...] = (), buckets: tuple[str, ...] = ()
    ) -> None:
        """Make an access key whose S3 secret is that of these tests."""
        access_keys.create_key(
            self.lake, role, id=key_id, secret=f"api-{S3_SECRET}", repositories=repositories, buckets=buckets
        )
        self.add_secret(key_id)

    def add_secret(self, key_id: str) -> None:
        cipher = s3_secrets.read_cipher(SECRETS_KEY, None)
        assert cipher is not None
        s3_secrets.make_s3_secret(self.lake, cipher, key_id, overlap_ms=0, secret=S3_SECRET)

    def client(self, key_id: str = "", secret: str = S3_SECRET, **options: Any) -> Any:
        """A boto3 client with the defaults that users have, but for its retries."""
        config = Config(retries={"total_max_attempts": 1}, **{"s3": {"addressing_style": "path"}, **options})
        session = boto3.session.Session(key_id or self.key_id, secret, region_name=REGION)
        return session.client("s3", endpoint_url=self.url, verify=self.verify, config=config)


@contextmanager
def serving_s3(
    folder: Path, *arguments: str, pair: Pair | None = None, environment: dict[str, str] | None = None
) -> Iterator[S3Service]:
    """Serve a new lake in a folder, until the block ends."""
    kv, objects = embedded_urls(folder / "lake")
    (folder / "lake").mkdir()
    own = {"REFSTORE_S3_SECRETS_KEY": SECRETS_KEY, **(environment or {})}
    tls = ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)) if pair else ()
    options = ("--s3-port", "0", "--no-reaper", *tls, *arguments)
    with serving(folder, kv, objects, *options, environment=own) as running, running.open() as lake:
        service = S3Service(running, lake, address_of(running), pair.certificate if pair else None)
        service.add_secret(KEY_ID)
        yield service


def address_of(running: Running) -> str:
    """The URL of the S3 port, which the service says behind that of its API."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        for line in running.log.read_text().splitlines():
            if line.startswith(SAID):
                return line.removeprefix(SAID).split()[0]
        time.sleep(0.02)
    raise RuntimeError(f"the service did not say where S3 is:\n{running.log.read_text()[-3000:]}")
