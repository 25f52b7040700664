"""A running `refstore serve` with its S3 gateway, as clients meet it, over HTTP and over TLS: one of each a session.

Tests keep apart by repositories of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from refstore.configuration.settings import S3Settings
from refstore.repository import Repository
from tests.api.test_tls import Pair
from tests.s3.plain_bucket import PlainBucket
from tests.s3.s3_service import S3Service, serving_s3
from tests.s3.served_gateway import ServedGateway, serve_gateway


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send all tests of one service to one worker: each worker that has one of them starts the service again."""
    for item in items:
        if "tests/s3/" not in item.nodeid or not isinstance(item, pytest.Function):
            continue
        names = [name for name in item.fixturenames if name in ("http_s3", "tls_s3")]
        params: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
        names += [f"{params['s3']}_s3"] if "s3" in params else []
        if names and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(f"s3 {names[0]}"))


@pytest.fixture(scope="session")
def http_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    with serving_s3(tmp_path_factory.mktemp("s3")) as service:
        yield service


@pytest.fixture(scope="session")
def tls_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    folder = tmp_path_factory.mktemp("s3tls")
    pair = Pair(folder / "chain.pem", folder / "key.pem")
    pair.renew()
    with serving_s3(folder, pair=pair) as service:
        yield service


@pytest.fixture(scope="session", params=["http", "tls"])
def s3(request: pytest.FixtureRequest) -> S3Service:
    found: S3Service = request.getfixturevalue(f"{request.param}_s3")
    return found


@pytest.fixture
def repo(s3: S3Service) -> Repository:
    """A bucket of the test's own, looked at past the service."""
    return s3.lake.create_repository(f"bucket-{secrets.token_hex(6)}")


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    """The gateway in this process, with the settings that it has by default."""
    with serve_gateway() as served:
        yield served


@pytest.fixture(scope="module")
def bucket_gateway() -> Iterator[ServedGateway]:
    """The gateway in this process, whose clients may make buckets."""
    with serve_gateway(S3Settings(create_buckets=True)) as served:
        yield served


@pytest.fixture
def bucket(bucket_gateway: ServedGateway) -> PlainBucket:
    """A new bucket."""
    client, name = bucket_gateway.client(), f"plain-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=name)
    return PlainBucket(bucket_gateway, client, name)
