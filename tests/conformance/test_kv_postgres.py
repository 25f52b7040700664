"""The PostgreSQL driver on a real server: the suite, directly and behind PgBouncer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore.conformance.kv_suite import KVSuite
from refstore.kv import open_kv
from refstore.kv.base import KV
from tests.servers.postgres_servers import PgBouncer

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=["directly", "pgbouncer"])
def kv(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[KV]:
    if request.param == "directly":
        kv = open_kv(postgres_url, attempts=1)
        yield kv
        kv.close()
        return
    with PgBouncer(postgres_url) as pooler:
        kv = open_kv(pooler.url, attempts=1)
        yield kv
        kv.close()


class TestPostgres(KVSuite):
    pass
