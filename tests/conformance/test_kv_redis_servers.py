"""How the Redis driver tells a server from one that answers in its place: after a restart, a promotion, a failover.

A server that lost writes must never pass for the one that acknowledged them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis.crc

from refstore.errors import KVUnavailable, StoreMisconfigured
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, POSITIONS, Key, Server
from refstore.kv.redis.commands import partition_key
from tests.conformance.test_kv_redis_failures import driver
from tests.servers.redis_servers import RedisCluster, RedisSentinels, RedisServer, until, valkey_binary
from tests.servers.tcp import RedisStub

pytestmark = pytest.mark.server

KEY = Key("servers", "k")


def changed(before: Sequence[Server], after: Sequence[Server]) -> list[str]:
    """Return the partitions of the servers that are others than before. All partitions must be the same."""
    assert [server.partition for server in before] == [server.partition for server in after]
    return [was.partition for was, now in zip(before, after, strict=True) if was.identity != now.identity]


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("binary", [None, "valkey"])
def test_a_restarted_server_is_another(tmp_path: Path, binary: str | None, *, kill: bool) -> None:
    with (
        RedisServer(tmp_path / "redis", binary=valkey_binary() if binary else None) as server,
        contextlib.closing(open_kv(server.url)) as kv,
    ):
        before = kv.servers()
        assert [server.partition for server in before] == [POSITIONS]
        assert before[0].identity
        assert kv.servers() == before
        server.restart(kill=kill)
        assert changed(before, kv.servers()) == [POSITIONS]


def test_a_server_that_does_not_answer_is_not_identified(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server, driver(server.url + "?timeout=1s") as kv:
        before = kv.servers()
        server.pause()
        with pytest.raises(KVUnavailable):
            kv.servers()
        server.resume()
        assert kv.servers() == before
        server.kill()
        with pytest.raises(KVUnavailable):
            kv.servers()


def test_a_master_that_was_a_replica_for_a_while_is_another(tmp_path: Path) -> None:
    """It lost its data to the other master, in one process: its run_id is the same."""
    with (
        RedisServer(tmp_path / "redis") as server,
        RedisServer(tmp_path / "other") as other,
        contextlib.closing(server.client()) as client,
        driver(server.url) as kv,
    ):
        kv.set(KEY, b"1")
        before = kv.servers()
        run_id = client.info("server")["run_id"]
        client.replicaof("127.0.0.1", other.port)
        until(lambda: client.info("replication")["master_link_status"] == "up", "the replica's link")
        with pytest.raises(KVUnavailable, match="replica"):
            kv.servers()
        client.replicaof("NO", "ONE")
        until(lambda: client.info("replication")["role"] == "master", "the promotion")
        assert client.info("server")["run_id"] == run_id
        assert kv.get(KEY) is ABSENT
        assert changed(before, kv.servers()) == [POSITIONS]


@pytest.mark.parametrize("hidden", [b"run_id", b"master_replid", b"role"])
def test_a_server_that_hides_who_it_is_is_refused(hidden: bytes) -> None:
    shown = {b"server": [b"run_id:1"], b"replication": [b"role:master", b"master_replid:2"]}

    def answer(command: list[bytes]) -> bytes:
        if command[0] != b"INFO" or command[1] not in shown:
            return b"-ERR unknown\r\n"
        text = b"\r\n".join(line for line in shown[command[1]] if not line.startswith(hidden + b":"))
        return b"$%d\r\n%s\r\n" % (len(text), text)

    with (
        RedisStub(answer) as stub,
        driver(f"redis://127.0.0.1:{stub.port}") as kv,
        pytest.raises(StoreMisconfigured, match=f"does not show '{hidden.decode()}'"),
    ):
        kv.servers()


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_sentinel_failover_gives_another_server(tmp_path: Path, *, comes_back: bool) -> None:
    """Also while the old master, which was only stopped, says on open connections that it still is the master."""
    with (
        RedisSentinels(tmp_path, password="pw") as sentinels,
        contextlib.closing(open_kv(sentinels.url + "?timeout=3s", attempts=40)) as kv,
    ):
        kv.set(KEY, b"1")
        before = kv.servers()
        assert kv.servers() == before
        old = sentinels.master()
        old.pause() if comes_back else old.kill()
        until(lambda: sentinels.master() is not old, "the failover")
        if comes_back:
            old.resume()
        after = kv.servers()
        assert changed(before, after) == [POSITIONS]
        with contextlib.closing(sentinels.master().client(password="pw")) as client:
            assert after[0].identity.startswith(client.info("server")["run_id"])
        kv.set(Key(after[0].partition, "k"), b"1")
        with contextlib.closing(sentinels.master().client(password="pw")) as client:
            assert client.zcard(partition_key("refstore", after[0].partition).decode()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_cluster_failover_gives_one_other_server(tmp_path: Path, *, comes_back: bool) -> None:
    """Also while the old master, which was only stopped, may say that it still is a master."""
    with (
        RedisCluster(tmp_path, replicas=1) as cluster,
        contextlib.closing(open_kv(cluster.url + "?timeout=2s", attempts=40)) as kv,
    ):
        before = kv.servers()
        partitions = [server.partition for server in before]
        assert len(partitions) == 3
        assert kv.servers() == before
        owners = owners_of(cluster, partitions)
        lost = next(partition for partition, owner in owners.items() if owner is not cluster.nodes[0])
        owners[lost].pause() if comes_back else owners[lost].kill()
        until(lambda: cluster.owner_of(partition_key("refstore", lost)) is not owners[lost], "the failover")
        if comes_back:
            owners[lost].resume()
        after = kv.servers()
        assert changed(before, after) == [lost]
        kv.set_many([(Key(partition, "k"), b"1") for partition in partitions])
        now = owners_of(cluster, partitions)
        assert now[lost] is not owners[lost]
        for server in after:
            with contextlib.closing(now[server.partition].client()) as client:
                assert client.zcard(partition_key("refstore", server.partition).decode()) == 1
                assert server.identity.startswith(client.info("server")["run_id"])


def owners_of(cluster: RedisCluster, partitions: Sequence[str]) -> dict[str, RedisServer]:
    """Return the master of each partition. All are different."""
    owners = {partition: cluster.owner_of(partition_key("refstore", partition)) for partition in partitions}
    assert len({owner.port for owner in owners.values()}) == len(partitions)
    return owners


def test_a_cluster_without_one_of_its_masters_is_not_identified(tmp_path: Path) -> None:
    """Each master is asked, and the map of slots is read each time: the driver's own may be out of date."""
    with RedisCluster(tmp_path) as cluster, driver(cluster.url + "?timeout=1s") as kv:
        before = kv.servers()
        cluster.nodes[1].pause()
        with pytest.raises(KVUnavailable):
            kv.servers()
        cluster.nodes[1].resume()
        until(cluster.settled, "the cluster")
        with contextlib.closing(open_kv(cluster.url, attempts=20)) as retrying:
            assert retrying.servers() == before
            cluster.nodes[1].restart()
            until(cluster.settled, "the cluster")
            assert len(changed(before, retrying.servers())) == 1


def test_masters_that_disagree_on_their_slots_are_not_identified() -> None:
    """One was cut off from the others, or does not know yet what they know."""
    ranges: dict[str, bytes] = {}

    def slots(*owned: tuple[int, int, RedisStub]) -> bytes:
        parts = [
            b"*3\r\n:%d\r\n:%d\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$5\r\n%05d\r\n" % (*bounds, stub.port, stub.port)
            for *bounds, stub in owned
        ]
        return b"*%d\r\n" % len(parts) + b"".join(parts)

    def answer(me: str, command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return ranges[me]
        text = {b"server": b"run_id:%s" % me.encode(), b"replication": b"role:master\r\nmaster_replid:2"}
        shown = text.get(command[1], b"") if command[0] == b"INFO" else b""
        return b"$%d\r\n%s\r\n" % (len(shown), shown)

    with RedisStub(lambda command: answer("a", command)) as a, RedisStub(lambda command: answer("b", command)) as b:
        agreed = slots((0, 8191, a), (8192, 16383, b))
        ranges |= {"a": agreed, "b": agreed}
        with driver(f"redis+cluster://127.0.0.1:{a.port}") as kv:
            assert [server.identity for server in kv.servers()] == ["b/2", "a/2"]
            ranges["b"] = slots((0, 4095, a), (4096, 16383, b))
            for _ in range(2):  # whichever is asked first
                with pytest.raises(KVUnavailable, match="disagree"):
                    kv.servers()
            ranges["a"] = ranges["b"]
            assert {server.identity for server in kv.servers()} == {"a/2", "b/2"}
            ranges |= dict.fromkeys("ab", slots((0, 8190, a), (8191, 8191, b), (8192, 16383, a)))
            (of_a, of_b) = sorted(kv.servers(), key=lambda server: server.identity)
            assert of_a.partition != of_b.partition, "a master with a single slot has a partition, too"
            assert redis.crc.key_slot(partition_key("refstore", of_b.partition)) == 8191
            ranges |= dict.fromkeys("ab", slots((0, 8191, a), (8193, 16383, b)))
            with pytest.raises(KVUnavailable, match="no node of the cluster holds slot 8192"):
                kv.servers()
