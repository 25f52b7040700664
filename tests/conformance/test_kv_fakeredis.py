"""The Redis driver on fakeredis: the scripts and the plumbing, in milliseconds. Real servers: `test_kv_redis.py`."""

from __future__ import annotations

import fakeredis
import pytest
import redis

from refstore.conformance.kv_suite import KVSuite
from refstore.core.clock import SystemClock
from refstore.kv.base import KV
from refstore.kv.redis import RedisKV, Single
from refstore.kv.redis_url import parse
from refstore.kv.retrying import Retrying


@pytest.fixture(scope="module")
def kv() -> KV:
    pool = redis.ConnectionPool(
        connection_class=fakeredis.FakeRedisConnection, server=fakeredis.FakeServer(), protocol=2
    )
    return Retrying(RedisKV(Single(pool), parse("redis://fake"), SystemClock()), attempts=1)


class TestFakeRedis(KVSuite):
    pass
