"""A repository of a small lakeFS over a folder, and the key of its server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.objects import make_objects, open_objects
from refstore_prune.sources import open_source
from refstore_prune.sources.base import NameSource, SourceOptions
from tests.prune.lakefs.lakefs_server import ACCESS_KEY, DAY, SECRET_KEY, Lakefs, Repository, serve


@pytest.fixture(autouse=True)
def _access_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.delenv("LAKECTL_CONFIG_FILE", raising=False)
    monkeypatch.delenv("LAKECTL_SERVER_ENDPOINT_URL", raising=False)


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """The folder below which lakeFS keeps all repositories."""
    folder = tmp_path / "block store"
    folder.mkdir()
    url = f"file://{str(folder).replace(' ', '%20')}"
    make_objects(url)
    return url


@pytest.fixture
def sales(store_url: str) -> Repository:
    began = int(time.time()) - 61 * DAY
    return Repository("sales", open_objects(store_url), "local://sales", "sales/", now=began)


@pytest.fixture
def lakefs(sales: Repository) -> Iterator[Lakefs]:
    server = Lakefs(sales)
    with serve(server):
        yield server


@pytest.fixture
def source(lakefs: Lakefs) -> NameSource:
    return open_source("lakefs:sales", SourceOptions(endpoint=lakefs.url))
