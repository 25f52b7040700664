"""What the Redis driver sends: bounded calls, one round trip, and nothing that looks through the keyspace."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest
import redis

from refstore.core.clock import SystemClock
from refstore.kv.base import ABSENT, Delete, Exchange, Get, Key, Op, Set, SetIf
from refstore.kv.redis import RedisKV, open_redis
from refstore.kv.redis.commands import CALL_BYTES, CALL_OPS, Command, Reply, group_calls, partition_key
from refstore.kv.redis.servers import ConnectionPool, RedisCluster, RedisConnection, RedisServers, SingleServer
from refstore.kv.redis.url import ServerAddress, parse_redis_url


@pytest.fixture
def part() -> str:
    return f"calls/{uuid.uuid4().hex}"


class Trace:
    """What passed over the connections, in order: ("send", node) and ("read", node)."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.commands = 0

    @property
    def round_trips(self) -> int:
        """How often a send followed a read: what waited for an answer before it was sent."""
        kinds = [kind for kind, _ in self.steps]
        return sum(kind == "send" and (not index or kinds[index - 1] == "read") for index, kind in enumerate(kinds))


class TracedPool:
    def __init__(self, pool: ConnectionPool, trace: Trace) -> None:
        self._pool = pool
        self._trace = trace

    def get_connection(self) -> RedisConnection:
        return TracedConnection(self._pool.get_connection(), self._trace, id(self._pool))

    def release(self, connection: Any) -> None:
        self._pool.release(connection.inner)

    def disconnect(self) -> None:
        self._pool.disconnect()


class TracedConnection:
    def __init__(self, inner: RedisConnection, trace: Trace, node: int) -> None:
        self.inner = inner
        self._trace = trace
        self._node = node

    def disconnect(self) -> None:
        self.inner.disconnect()

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]:
        some = list(commands)
        self._trace.commands += len(some)
        return self.inner.pack_commands(some)

    def send_packed_command(self, command: Iterable[bytes]) -> None:
        self._trace.steps.append(("send", self._node))
        self.inner.send_packed_command(command)

    def read_response(self) -> Reply:
        self._trace.steps.append(("read", self._node))
        return self.inner.read_response()


class TracedServers:
    def __init__(self, servers: RedisServers, trace: Trace) -> None:
        self._servers = servers
        self._trace = trace
        self._pools: dict[int, TracedPool] = {}
        self.is_ordered = servers.is_ordered

    def pool_of(self, key: bytes) -> ConnectionPool:
        pool = self._servers.pool_of(key)
        return self._pools.setdefault(id(pool), TracedPool(pool, self._trace))

    def pool_at(self, address: ServerAddress) -> ConnectionPool:
        return self._servers.pool_at(address)

    def forget_slot_map(self) -> None:
        self._servers.forget_slot_map()

    def close(self) -> None:
        self._servers.close()


@pytest.fixture
def trace() -> Trace:
    return Trace()


@pytest.fixture
def traced(redis_url: str, trace: Trace) -> Iterator[RedisKV]:
    at = parse_redis_url(redis_url)
    pool = redis.ConnectionPool(host=at.addresses[0].host, port=at.addresses[0].port, protocol=2)
    kv = RedisKV(cast("RedisServers", TracedServers(SingleServer(pool), trace)), at, SystemClock())
    yield kv
    kv.close()


# ---- round trips


@pytest.mark.server
def test_a_mixed_batch_is_one_round_trip(traced: RedisKV, trace: Trace, part: str) -> None:
    entry, branch = Key(f"{part}/staging", "a.parquet"), Key(f"{part}/branches", "main")
    assert traced.execute([Exchange(entry, b"1"), Get(branch)]) == [ABSENT, ABSENT]
    assert (trace.round_trips, trace.commands) == (1, 2)


@pytest.mark.server
def test_a_large_batch_is_one_round_trip(traced: RedisKV, trace: Trace, part: str) -> None:
    """10,000 references over 64 partitions, with reads before and behind: sent at once, performed in order."""
    references = [Key(f"{part}/references/{i % 64:02x}", f"data/{i:05d}") for i in range(10_000)]
    ops: list[Op] = [Get(references[0]), *(SetIf(key, ABSENT, b"r" * 60) for key in references), Get(references[0])]
    assert traced.execute(ops) == [ABSENT, *[True] * 10_000, b"r" * 60]
    assert (trace.round_trips, trace.commands) == (1, 64 + 2)


@pytest.mark.server
def test_a_second_kind_of_write_waits_for_the_first(traced: RedisKV, trace: Trace, part: str) -> None:
    """A server that refuses the first may accept the second, which must not happen before the first has."""
    references = [Key(f"{part}/references/{i % 64:02x}", f"data/{i:05d}") for i in range(10_000)]
    entries = [Key(f"{part}/staging", f"{i:05d}") for i in range(10_000)]
    ops: list[Op] = [SetIf(key, ABSENT, b"r" * 60) for key in references]
    ops += [Exchange(key, b"e" * 100) for key in entries]
    ops += [Get(references[-1]), Delete(references[0]), Get(references[0])]
    results = traced.execute(ops)
    assert results == [True] * 10_000 + [ABSENT] * 10_000 + [b"r" * 60, None, ABSENT]
    assert trace.round_trips == 3
    assert trace.commands == 64 + 20 + 3


@pytest.mark.server
def test_a_cluster_asks_its_nodes_at_once_and_waits_where_the_kind_changes(
    redis_cluster_url: str, trace: Trace, part: str
) -> None:
    settings = parse_redis_url(redis_cluster_url)
    servers = RedisCluster(settings.addresses, lambda at: redis.ConnectionPool(host=at.host, port=at.port, protocol=2))
    with contextlib.closing(RedisKV(TracedServers(servers, trace), settings, SystemClock())) as kv:
        keys = [Key(f"{part}/{i}", "k") for i in range(60)]
        kv.set_many([(key, b"1") for key in keys])
        assert len({node for _, node in trace.steps}) == 3
        assert trace.round_trips == 1
        trace.steps.clear()
        results = kv.execute(
            [*(SetIf(key, b"1", b"2") for key in keys), *(Get(key) for key in keys), Set(keys[0], b"3")]
        )
        assert results == [True] * 60 + [b"2"] * 60 + [None]
        assert trace.round_trips == 3


# ---- bounds


@pytest.mark.parametrize("kind", ["get", "set", "create", "swap", "remove", "absent", "exchange", "delete"])
@pytest.mark.parametrize("value_bytes", [10, 5000, 2 << 20])
def test_calls_are_bounded(kind: str, value_bytes: int) -> None:
    """By number and by bytes; what is too large by itself goes alone. Every op is in exactly one call, with its
    place.
    """
    value = b"v" * value_bytes
    make = {
        "get": Get,
        "set": lambda key: Set(key, value),
        "create": lambda key: SetIf(key, ABSENT, value),
        "swap": lambda key: SetIf(key, value, value),
        "remove": lambda key: SetIf(key, value, ABSENT),
        "absent": lambda key: SetIf(key, ABSENT, ABSENT),
        "exchange": lambda key: Exchange(key, value),
        "delete": Delete,
    }[kind]
    ops: list[Op] = [make(Key(f"p{i % 3}", f"name{i:05d}")) for i in range(1600)]
    (run,) = group_calls(ops, "refstore")
    assert sorted(place for call in run for place in call.places) == list(range(1600))
    for call in run:
        argument_bytes = sum(len(argument) for argument in call.command[3:] if isinstance(argument, bytes))
        assert len(call.places) <= CALL_OPS
        assert len(call.places) == 1 or argument_bytes <= CALL_BYTES * 1.05
        assert {ops[place].key.partition for place in call.places} == {call.key.decode()[len("refstore:{") : -1]}
        assert call.writes == (kind != "get")


@pytest.mark.parametrize("key", [Key("p", "a\0b"), Key("p\0q", "a"), Key("p", ""), Key("", "a")])
def test_what_would_break_the_encoding_is_refused(key: Key) -> None:
    from refstore.errors import InvalidName

    for op in (Get(key), Set(key, b""), SetIf(key, ABSENT, b""), Exchange(key, b""), Delete(key)):
        with pytest.raises(InvalidName, match="NUL"):
            group_calls([op], "refstore")


@pytest.mark.server
def test_the_partition_decides_the_slot(redis_cluster_url: str, part: str) -> None:
    at = parse_redis_url(redis_cluster_url).addresses[0]
    with contextlib.closing(redis.Redis(host=at.host, port=at.port, protocol=2)) as client:
        for partition in (part, "repo.01jv/references/3f", "a:b/c d"):
            slots = {
                client.execute_command("CLUSTER", "KEYSLOT", key)
                for key in (partition_key("refstore", partition), partition_key("other", partition))
            }
            assert slots == {client.execute_command("CLUSTER", "KEYSLOT", partition)}


# ---- costs


@contextlib.contextmanager
def both(url: str) -> Iterator[tuple[redis.Redis, RedisKV]]:
    """A plain client and a KV of the same server."""
    at = parse_redis_url(url).addresses[0]
    with (
        contextlib.closing(redis.Redis(host=at.host, port=at.port, protocol=2)) as client,
        contextlib.closing(open_redis(url, SystemClock())) as kv,
    ):
        yield client, kv


@pytest.mark.server
def test_nothing_looks_through_the_keyspace(redis_url: str, part: str) -> None:
    """The commands that the server counted: each of them finds its place in the one sorted set it is about."""
    with both(redis_url) as (client, kv):
        client.config_resetstat()
        keys = [Key(part, f"{i:04d}") for i in range(2000)]
        kv.set_many([(key, b"v") for key in keys])
        kv.execute([Exchange(key, b"w") for key in keys])
        kv.set_if_many([SetIf(key, b"w", b"x") for key in keys])
        kv.get_many(keys)
        list(kv.scan_all(part, prefix="1"))
        kv.count(part, limit=10)
        kv.delete_range(part, "0000", "0999")
        kv.delete_many(keys)
        used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    assert used - {"info", "config|get", "config|resetstat", "hello", "select", "client|setinfo", "client|setname"} == {
        "eval", "zadd", "zcard", "zlexcount", "zrangebylex", "zrem", "zscore",
    }  # fmt: skip


@pytest.mark.server
@pytest.mark.parametrize("server", ["redis_url", "valkey_url"])
def test_a_record_takes_less_than_twice_the_memory_of_a_plain_key(
    server: str, request: pytest.FixtureRequest, part: str
) -> None:
    """A staged entry and a reference of usual sizes, against SET of the same two strings."""
    url = request.getfixturevalue(server)
    count = 20_000
    with both(url) as (client, kv):

        def used_bytes() -> int:
            return int(client.info("memory")["used_memory_dataset"]) + int(
                client.info("memory")["used_memory_overhead"]
            )

        for name, value in (("dir/part-{:08d}.parquet", b"e" * 150), ("data/2026112107/01jv{:022d}", b"r" * 90)):
            start = used_bytes()
            kv.set_many([(Key(part + name[:3], name.format(i)), value) for i in range(count)])
            ours = used_bytes() - start
            pipeline = client.pipeline(transaction=False)
            for i in range(count):
                pipeline.set(name.format(i), value)
            start = used_bytes()
            pipeline.execute()
            plain = used_bytes() - start
            print(
                f"{server} {name}: {ours / count:.0f} bytes a record, plain key {plain / count:.0f}: "
                f"{ours / plain:.2f}x"
            )
            assert ours < 2 * plain
            client.delete(*(name.format(i) for i in range(count)))
            kv.delete_range(part + name[:3], "a", "z")
