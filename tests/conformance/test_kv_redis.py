"""The Redis driver on real servers: the suite on each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore.conformance.kv_suite import KVSuite
from refstore.kv import open_kv
from refstore.kv.base import KV

pytestmark = pytest.mark.server


@pytest.fixture(
    scope="module",
    params=[
        "redis_url",
        "valkey_url",
        # started once, in one worker: six nodes, and two with three sentinels
        pytest.param("redis_cluster_url", marks=pytest.mark.xdist_group("redis cluster")),
        pytest.param("redis_sentinel_url", marks=pytest.mark.xdist_group("redis sentinel")),
    ],
)
def kv(request: pytest.FixtureRequest) -> Iterator[KV]:
    kv = open_kv(request.getfixturevalue(request.param), attempts=1)
    yield kv
    kv.close()


class TestRedis(KVSuite):
    pass
