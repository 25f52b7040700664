"""What all S3 servers of the tests have in common. Usable without pytest: the demo, the soak and the bench start them
too.
"""

from __future__ import annotations

import socket
import uuid
from functools import cache
from typing import Self

import boto3.session
from botocore.config import Config

from tests.servers.starting import START_ATTEMPTS, ServerEndedError

ACCESS_KEY = "AKIDTEST"
SECRET_KEY = "secretsecretsecret"
BUCKET = "refstore-test"


def free_port() -> int:
    """Return a port that is free now; by the time that a server binds it, another program may have it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> dict[str, str]:
    """For a process that is to reach one of these servers; nothing of the machine's own AWS configuration is used."""
    return {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class S3Server:
    """Base of the servers: `start` starts the processes and makes the bucket, `url` names a new namespace in it."""

    options: str = ""
    """What the server needs in a store's URL besides its endpoint, "&name=value"."""

    def __init__(self, port: int | None = None) -> None:
        """Without a port, `start` may move on to another free one; `port` and `endpoint` stand once it has returned."""
        self.port = port or free_port()
        self._port_is_given = port is not None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, on another port if a process of it ended, and make the bucket. Raises RuntimeError."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._launch()
                break
            except ServerEndedError:
                self.stop()
                if self._port_is_given or attempt == START_ATTEMPTS:
                    raise
                self.port = free_port()
            except BaseException:
                self.stop()
                raise
        self._port_is_given = True  # a restart is found where the server was
        with self.client() as client:
            client.create_bucket(Bucket=BUCKET)

    def _launch(self) -> None:
        """Start the processes and wait until they answer. Raises ServerEndedError when one ends first."""

    def stop(self) -> None:
        """Ends the server and all it left on disk. Calling it twice is fine."""

    def url(self, prefix: str | None = None, *, endpoint: str | None = None) -> str:
        """A store's URL; without a prefix, of a namespace that nobody else has. `endpoint`: that of a proxy before
        it.
        """
        query = f"endpoint={endpoint or self.endpoint}{self.options}"
        return f"s3://{BUCKET}/{prefix or uuid.uuid4().hex}?{query}"

    def pending_uploads(self, prefix: str = "") -> list[str]:
        """Return the keys of the multipart uploads that are open."""
        with self.client() as client:
            try:
                pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET, Prefix=prefix)
                found = [upload["Key"] for page in pages for upload in page.get("Uploads", ())]
            except client.exceptions.NoSuchUpload:  # rclone, when there are none
                return []
        return [key for key in found if key.startswith(prefix)]

    def client(self) -> _Client:
        return _Client(self.endpoint)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@cache
def _session() -> boto3.session.Session:
    """One: each holds the parsed description of the API, which takes longer to read than a test to run."""
    return boto3.session.Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")


class _Client:
    """A bare boto3 client, closed when its block ends: what tests look at a server with, apart from the product's own
    code.
    """

    def __init__(self, endpoint: str) -> None:
        config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
        self._client = _session().client("s3", endpoint_url=endpoint, config=config)

    def __enter__(self):
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
