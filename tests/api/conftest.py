"""A running `refstore serve`: a process of its own, on the embedded default and on real Redis + real S3, one of each
for a session.

Tests keep apart by repositories of their own. `client` is lakeFS's high-level client on it, `sdk` the generated one,
`fs` the fsspec file system; `asgi` is the application in this process, on a clock that stands still, for what needs no
network.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import lakefs
import pytest
from lakefs.client import Client
from lakefs_sdk.client import LakeFSClient
from lakefs_spec import LakeFSFileSystem

import refstore
from refstore.configuration.settings import embedded_urls
from refstore.kv.base import KV
from refstore.lake import Lake
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.servers.s3_base import environment as s3_environment

if TYPE_CHECKING:
    from tests.api.service import Application

KEY_ID = "AKIATESTS"
SECRET = "a-secret-that-only-these-tests-know"
START_SECONDS = 60.0
SERVICES = {"embedded": "embedded_service", "redis+s3": "redis_s3_service"}
"""The fixtures behind `service`."""


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send all tests of one service to one worker: each worker that has one of them starts the service again."""
    of_modules = ("limited", "attacked", "secure")
    for item in items:
        if "tests/api/" not in item.nodeid or not isinstance(item, pytest.Function):
            continue
        params: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
        names = [SERVICES[str(params["service"])]] if "service" in params else []
        names += [f"imports_{params['where']}_service"] if "where" in params else []
        names += [name for name in (*SERVICES.values(), *of_modules) if name in item.fixturenames]
        if names and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(names[0]))


class Running(NamedTuple):
    """A service, and what stands behind it."""

    url: str
    kv: str
    objects: str
    log: Path
    process: subprocess.Popen[bytes]

    def open(self) -> Lake:
        """The same lake, past the service."""
        return refstore.open(kv=self.kv, objects=self.objects)

    def http(self, key_id: str = KEY_ID, secret: str = SECRET) -> httpx.Client:
        return httpx.Client(base_url=f"{self.url}/api/v1", auth=(key_id, secret), timeout=60)


@contextmanager
def serving(
    folder: Path, kv: str, objects: str, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[Running]:
    """`refstore serve` until the block ends. It must end in order when it is asked to, and not before, unless the test
    kills it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "serve.log"
    own = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "REFSTORE_KV": kv,
        "REFSTORE_REAPER_RESERVE": "0",
        "REFSTORE_OBJECTS": objects,
        "REFSTORE_ACCESS_KEY_ID": KEY_ID,
        "REFSTORE_SECRET_ACCESS_KEY": SECRET,
        **s3_environment(),
        **(environment or {}),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "refstore", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=own, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:
        yield Running(_address(process, log), kv, objects, log, process)
        if process.poll() == -signal.SIGKILL:
            return
        assert process.poll() is None, f"the service ended by itself:\n{log.read_text()[-3000:]}"
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert process.returncode == 0, f"the service ended with {process.returncode}:\n{log.read_text()[-3000:]}"


@pytest.fixture(scope="session")
def embedded_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "lake").mkdir()
    with serving(folder, *embedded_urls(folder / "lake")) as running:
        yield running


@pytest.fixture(scope="session")
def redis_s3_service(tmp_path_factory: pytest.TempPathFactory, real_s3: S3Server) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve")
    with RedisServer(folder / "redis", fsync="no") as redis, serving(folder, redis.url, real_s3.url()) as running:
        yield running


@pytest.fixture(
    scope="session", params=["embedded", pytest.param("redis+s3", marks=[pytest.mark.server, pytest.mark.slow])]
)
def service(request: pytest.FixtureRequest) -> Running:
    found: Running = request.getfixturevalue(SERVICES[request.param])
    return found


@pytest.fixture
def client(service: Running) -> Client:
    return client_of(service)


def client_of(service: Running, key_id: str = KEY_ID, secret: str = SECRET) -> Client:
    return Client(host=service.url, username=key_id, password=secret)


@pytest.fixture
def sdk(client: Client) -> LakeFSClient:
    """The generated client, for routes that the high-level one has no word for."""
    return client.sdk_client


@pytest.fixture
def repo(client: Client) -> lakefs.Repository:
    """A repository of the test's own."""
    name = "t-" + secrets.token_hex(8)
    return lakefs.Repository(name, client).create(f"{client.storage_config.default_namespace_prefix}/{name}")


@pytest.fixture
def main(repo: lakefs.Repository) -> lakefs.Branch:
    return repo.branch("main")


@pytest.fixture
def fs(service: Running) -> LakeFSFileSystem:
    return LakeFSFileSystem(host=service.url, username=KEY_ID, password=SECRET, skip_instance_cache=True)


@pytest.fixture
def asgi() -> Iterator[Application]:
    """The application in this process, with no network between."""
    from tests.api.service import application

    with application() as made:
        yield made


@pytest.fixture
def steady(kv: KV) -> Iterator[Application]:
    """The same on the module's KV. Who was looked up is known for as long as the test takes."""
    from tests.api.service import application

    with application(constants={"api.auth.KEY_SECONDS": 3600}, kv=kv) as made:
        yield made


@pytest.fixture
def alpha() -> Iterator[Application]:
    """The same with a repository `alpha`."""
    from tests.api.service import application

    with application() as made:
        made.lake.create_repository("alpha")
        yield made


def upload_all(branch: lakefs.Branch, paths: list[str], body: Callable[[str], str] = str) -> None:
    for path in paths:
        branch.object(path).upload(body(path))


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        for line in log.read_text().splitlines():
            if line.startswith("refstore serves "):
                return line.split()[2]
        if process.poll() is not None:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    raise RuntimeError(f"the service did not start:\n{log.read_text()[-3000:]}")
