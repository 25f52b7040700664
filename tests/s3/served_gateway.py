"""The gateway on a port of this process, over a lake in memory that the test holds."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import boto3
import uvicorn
from botocore.config import Config

from refstore.configuration.settings import ApiSettings, S3Settings
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.repository import Repository
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore.service.s3_secrets import S3Caller
from refstore_api.server import bind_socket
from refstore_http.http_protocol import make_protocol
from refstore_http.request_metrics import RequestMetrics
from refstore_http.service import Service
from refstore_s3.authentication import KeyAuthentication
from refstore_s3.s3_application import S3Application

KEY_ID = "AKIAGATEWAYTESTS"
SECRET = "an-s3-secret-that-only-these-tests-know"
REPOSITORY = "lake"


class ServedGateway(NamedTuple):
    url: str
    lake: Lake
    service: Service
    metrics: RequestMetrics
    secrets: dict[str, str]
    """S3 secrets by access key."""

    @property
    def repository(self) -> Repository:
        return self.lake.repository(REPOSITORY)

    def add_key(self, name: str, role: Role, repositories: tuple[str, ...] = ()) -> None:
        access_keys.create_key(self.lake, role, id=name, secret=f"api-{SECRET}", repositories=repositories)
        self.secrets[name] = SECRET

    def client(self, key_id: str = KEY_ID, secret: str = SECRET, **options: Any) -> Any:
        config = Config(retries={"total_max_attempts": 1}, **{"s3": {"addressing_style": "path"}, **options})
        return boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=key_id,
            aws_secret_access_key=secret, config=config,
        )  # fmt: skip


@contextmanager
def serve_gateway(
    settings: S3Settings | None = None, *, api: ApiSettings | None = None, objects: str = ""
) -> Iterator[ServedGateway]:
    objects = objects or f"memory://{secrets.token_hex(8)}"
    api = api or ApiSettings()
    s3_secrets: dict[str, str] = {}
    with Lake(MemoryKV(), objects) as lake:

        def read_secrets(key_id: str) -> S3Caller | None:
            record = access_keys.find_key(lake.kv, key_id)
            return S3Caller(record, (s3_secrets[key_id],)) if record is not None else None

        service = Service(lake, api)
        metrics = RequestMetrics()
        app = S3Application(service, settings or S3Settings(), metrics, KeyAuthentication(service, read_secrets))
        listening = bind_socket("127.0.0.1", 0)
        with running_application(app, api, listening):
            host, port = listening.getsockname()
            served = ServedGateway(f"http://{host}:{port}", lake, service, metrics, s3_secrets)
            served.add_key(KEY_ID, Role.OPERATOR)
            lake.create_repository(REPOSITORY)
            yield served
        service.close()


@contextmanager
def running_application(app: S3Application, api: ApiSettings, listening: socket.socket) -> Iterator[None]:
    config = uvicorn.Config(app, log_config=None, lifespan="off", http=make_protocol(api), ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.002)
        yield
    finally:
        server.should_exit = True
        thread.join()
