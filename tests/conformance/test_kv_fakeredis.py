"""The Redis driver on fakeredis: the scripts and the plumbing, in milliseconds. Real servers: `test_kv_redis.py`."""

from __future__ import annotations

import fakeredis
import pytest
import redis

from refstore.conformance.kv_suite import KVSuite
from refstore.core.clock import SystemClock
from refstore.errors import StoreMisconfigured
from refstore.kv.base import KV
from refstore.kv.redis import RedisKV
from refstore.kv.redis.servers import SingleServer
from refstore.kv.redis.url import parse_redis_url
from refstore.kv.retries import RetryingKV


@pytest.fixture(scope="module")
def kv() -> KV:
    server = fakeredis.FakeServer()
    # fakeredis makes a database without a lock when it is first used: threads that come first together get one each.
    fakeredis.FakeRedis(server=server).ping()
    pool = redis.ConnectionPool(connection_class=fakeredis.FakeRedisConnection, server=server, protocol=2)
    return RetryingKV(RedisKV(SingleServer(pool), parse_redis_url("redis://fake"), SystemClock()), attempts=1)


class TestFakeRedis(KVSuite):
    def test_each_server_stores_the_partition_that_it_is_named_with(self, kv: KV) -> None:
        """fakeredis knows no INFO. The driver does not guess an identity: it would stay the same after a loss."""
        with pytest.raises(StoreMisconfigured, match="info"):
            kv.servers()

    def test_servers_are_the_same_while_nothing_happens_to_them(self) -> None:  # type: ignore[override]  # without a KV
        """It has none to compare; see above."""
