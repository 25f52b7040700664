"""The Redis driver when things go wrong, on real servers where a real server can be made to: killed, stalled, failed
over, full, evicting, forbidding, moving slots. What a real server does not do on demand, a stub says.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.core.clock import SystemClock
from refstore.errors import KVRefused, KVUnavailable, OutcomeUnknown, RefstoreError, StoreMisconfigured
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, Delete, Exchange, Get, Key, Op, Set, SetIf
from refstore.kv.redis import CHECK_SECONDS, RedisKV, open_redis
from refstore.kv.redis.commands import partition_key
from tests.kit.clock import FakeClock
from tests.kit.logged_events import collecting_events
from tests.servers.redis_servers import RedisCluster, RedisSentinels, RedisServer, until, valkey_binary
from tests.servers.tcp import DeafStub, LossyProxy, RedisStub

pytestmark = pytest.mark.server

REQUEST_BYTES = 30_000


@pytest.fixture
def part() -> str:
    return f"failures/{uuid.uuid4().hex}"


@pytest.fixture
def key(part: str) -> Key:
    return Key(part, "k")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be maltreated."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


def driver(url: str) -> contextlib.closing[RedisKV]:
    """The driver alone, without retries."""
    return contextlib.closing(open_redis(url, SystemClock()))


# ---- restarts


@pytest.mark.parametrize("binary", [None, "valkey"])
def test_a_killed_server_keeps_what_it_acknowledged(tmp_path: Path, part: str, binary: str | None) -> None:
    """With appendfsync always. Writers go on through two kills and restarts; what may have been created gets a new
    name.
    """
    with RedisServer(tmp_path / "redis", binary=valkey_binary() if binary else None) as server:
        acknowledged: list[list[str]] = [[] for _ in range(4)]
        stop = threading.Event()
        failures: list[BaseException] = []

        def write(writer: int) -> None:
            kv = open_kv(server.url, attempts=20)
            number = 0
            try:
                while not stop.is_set():
                    names = [f"{writer}/{number + i:06d}" for i in range(10)]
                    number += 10
                    with contextlib.suppress(OutcomeUnknown):
                        assert all(kv.set_if_many([SetIf(Key(part, name), ABSENT, name.encode()) for name in names]))
                        acknowledged[writer] += names
            except BaseException as error:  # noqa: BLE001  # raised by the test
                failures.append(error)
            finally:
                kv.close()

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for round_ in (1, 2):
            until(
                lambda round_=round_: failures or all(len(done) >= 200 * round_ for done in acknowledged), "the writers"
            )
            server.restart(kill=True)
        until(lambda: failures or all(len(done) >= 600 for done in acknowledged), "the writers")
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        with driver(server.url) as kv:
            there = dict(kv.scan_all(part))
        assert all(there[name] == name.encode() for done in acknowledged for name in done)


def test_scripts_need_not_be_there(server: RedisServer, part: str) -> None:
    """After SCRIPT FLUSH and after a restart the server knows no script, and nothing is missing."""
    a, b = Key(part, "a"), Key(part, "b")
    ops: list[Op] = [Exchange(a, b"1"), SetIf(b, ABSENT, b"2"), Set(a, b"3"), Get(a), Delete(b), Get(b)]
    with contextlib.closing(open_kv(server.url)) as kv, contextlib.closing(server.client()) as client:
        for disturb in (client.script_flush, client.script_flush, server.restart):
            assert kv.execute(ops)[1:] == [True, None, b"3", None, ABSENT]
            disturb()
            kv.count(part, limit=1)  # a connection is there again
        assert kv.execute(ops)[1:] == [True, None, b"3", None, ABSENT]


def test_a_server_that_is_not_there(key: Key) -> None:
    for url in (
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1,127.0.0.1:2",
        "redis+sentinel://127.0.0.1:1/main",
        "redis://no.such.host.invalid",
    ):
        with driver(url + "?timeout=2s") as kv, pytest.raises(KVUnavailable) as caught:
            kv.set(key, b"1")
        assert caught.value.nothing_done


# ---- replies that do not come


def test_a_stalled_server_is_given_up_and_what_it_was_told_is_recognised(server: RedisServer, part: str) -> None:
    """It takes the first request when it wakes up, and the retry behind it."""
    a, b = Key(part, "a"), Key(part, "b")
    with driver(server.url + "?timeout=1s") as kv:
        kv.set_many([(a, b"0"), (b, b"0")])
        server.pause()
        with pytest.raises(KVUnavailable, match="may have been performed") as caught:
            kv.set_if(a, b"0", b"1")
        assert not caught.value.nothing_done
        with pytest.raises(KVUnavailable):
            kv.scan(part)
        server.resume()
        until(lambda: kv.get(a) == b"1", "the first request")
    server.pause()
    threading.Timer(2.5, server.resume).start()
    with contextlib.closing(open_kv(server.url + "?timeout=1s", attempts=20)) as kv:
        assert kv.set_if(b, b"0", b"1") is True
        assert kv.get(b) == b"1"


def test_lost_replies(redis_url: str, part: str) -> None:
    """Each kind of write lands, its reply is lost; the retry says what the first would have said."""
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with LossyProxy(port) as proxy, contextlib.closing(open_kv(f"redis://127.0.0.1:{proxy.port}/0")) as kv:
        keys = [Key(f"{part}/{i % 3}", f"{i:04d}") for i in range(900)]

        def losing_one() -> None:
            kv.count(part, limit=1)
            proxy.armed = True

        losing_one()
        kv.set_many([(key, b"0") for key in keys])
        losing_one()
        assert kv.set_if_many([SetIf(key, b"0", b"1") for key in keys]) == [True] * 900
        losing_one()
        assert kv.set_if_many([SetIf(key, b"0", b"2") for key in keys]) == [False] * 900
        losing_one()
        assert kv.set_if_many([SetIf(key, b"1", ABSENT) for key in keys[:450]]) == [True] * 450
        losing_one()
        assert kv.execute([SetIf(keys[0], ABSENT, b"9"), Get(keys[0]), Delete(keys[899]), Get(keys[899])]) == [
            True,
            b"9",
            None,
            ABSENT,
        ]
        losing_one()
        with pytest.raises(OutcomeUnknown):
            kv.exchange(keys[1], b"x")
        losing_one()
        kv.delete_range(f"{part}/0", "0000", "9999")
        assert proxy.lost == 7
        assert kv.count(f"{part}/0", limit=1000) == 0


def test_what_was_not_sent_when_we_gave_up_is_never_sent() -> None:
    """The system takes a request off our hands and delivers it when it can, perhaps after the retry: unless the
    connection is reset.

    A server that does not read stands for a network that does not deliver.
    """
    with DeafStub(lambda command: b":0\r\n" if command[0] == b"ZCARD" else b"-ERR unknown\r\n", last=b"ZCARD") as stub:
        with driver(f"redis://127.0.0.1:{stub.port}?timeout=1s") as kv:
            kv.count("p", limit=1)
            with pytest.raises(KVUnavailable):
                kv.set(Key("p", "k"), b"v" * REQUEST_BYTES)
        stub.listen.set()
        until(lambda: stub.ended, "the end of the connection")
        assert stub.came_late_bytes < REQUEST_BYTES / 2


@pytest.mark.parametrize(
    ("reply", "kind", "advice"),
    [
        ("LOADING Redis is loading the dataset in memory", KVUnavailable, "did not answer"),
        ("BUSY Redis is busy running a script", KVUnavailable, "SCRIPT KILL"),
        ("MISCONF Errors writing to the AOF file: No space left on device", KVUnavailable, "disk"),
        ("NOREPLICAS Not enough good replicas to write.", KVUnavailable, "min-replicas-to-write"),
        ("CLUSTERDOWN The cluster is down", KVUnavailable, "failover"),
        ("MASTERDOWN Link with MASTER is down", KVUnavailable, "failover"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", KVUnavailable, "same call again"),
        ("READONLY You can't write against a read only replica.", KVUnavailable, "replica"),
        ("OOM command not allowed when used memory > 'maxmemory'.", KVUnavailable, "maxmemory"),
        ("NOAUTH Authentication required.", KVRefused, "password in the URL"),
        ("NOPERM this user has no permissions to run the 'zcard' command", KVRefused, r"\+@read"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", StoreMisconfigured, "prefix"),
        ("ERR unknown command 'ZCARD'", StoreMisconfigured, "Redis 7.0 or Valkey"),
        ("MOVED 3999 127.0.0.1:6381", StoreMisconfigured, r"redis\+cluster://"),
    ],
)
def test_error_replies_are_typed_and_say_what_to_do(reply: str, kind: type[RefstoreError], advice: str) -> None:
    def answer(command: list[bytes]) -> bytes:
        return b"-ERR unknown\r\n" if command[0] in (b"INFO", b"CONFIG", b"CLIENT") else b"-" + reply.encode() + b"\r\n"

    with RedisStub(answer) as stub, driver(f"redis://127.0.0.1:{stub.port}") as kv, pytest.raises(kind, match=advice):
        kv.count("p", limit=1)


# ---- who may do what


def test_users_and_passwords(tmp_path: Path, key: Key) -> None:
    with RedisServer(tmp_path / "redis", options=("--requirepass", "top s@cret")) as server:
        at = f"127.0.0.1:{server.port}"
        with driver(f"redis://:top%20s%40cret@{at}") as kv:
            kv.set(key, b"1")
        for url in (f"redis://{at}", f"redis://:wrong@{at}", f"redis://nobody:top%20s%40cret@{at}"):
            with driver(url) as kv, pytest.raises(KVRefused, match="password in the URL") as caught:
                kv.get(key)
            assert "cret" not in str(caught.value)
            assert "wrong" not in str(caught.value)


def test_the_permissions_that_the_advice_names_are_enough(server: RedisServer, part: str) -> None:
    with contextlib.closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~refstore:*", "+@read")
        with (
            driver(f"redis://app:pw@127.0.0.1:{server.port}") as kv,
            pytest.raises(KVRefused, match="may not do that") as caught,
        ):
            kv.set(Key(part, "k"), b"1")
        advice = str(caught.value).rpartition("give it: ")[2].split()
        client.execute_command("ACL", "SETUSER", "app", "resetkeys", "-@all", *advice)
        with driver(f"redis://app:pw@127.0.0.1:{server.port}") as kv:
            kv.execute(
                [
                    Set(Key(part, "a"), b"1"),
                    SetIf(Key(part, "a"), b"1", b"2"),
                    Exchange(Key(part, "b"), b"3"),
                    Delete(Key(part, "b")),
                ]
            )
            assert kv.get_many([Key(part, "a"), Key(part, "b")]) == [b"2", ABSENT]
            assert kv.scan(part) == [("a", b"2")]
            kv.delete_range(part, "a", "z")
            assert kv.count(part, limit=1) == 0


def test_tls(tmp_path: Path, key: Key) -> None:
    """With a certificate of our own: verified, refused when unknown, refused for another host's name."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    cert, key_file = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, "-keyout", key_file, "-out", cert]
    made = subprocess.run(["openssl", *words], check=False, capture_output=True)
    assert made.returncode == 0, made.stderr
    tls_port = RedisServer(tmp_path).port
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "cert.pem").read_bytes() + (tmp_path / "key.pem").read_bytes())
    files = ("--tls-cert-file", cert, "--tls-key-file", key_file, "--tls-ca-cert-file", cert)
    with RedisServer(tmp_path / "redis", options=("--tls-port", str(tls_port), "--tls-auth-clients", "no", *files)):
        with driver(f"rediss://localhost:{tls_port}?certificates={cert}") as kv:
            kv.set(key, b"1")
            assert kv.get(key) == b"1"
        with driver(f"rediss://localhost:{tls_port}") as kv, pytest.raises(KVUnavailable, match="certificate"):
            kv.get(key)
        with (
            driver(f"rediss://127.0.0.1:{tls_port}?certificates={cert}") as kv,
            pytest.raises(KVUnavailable, match=r"certificate|address"),
        ):
            kv.get(key)
    with RedisServer(tmp_path / "mutual", options=("--tls-port", str(tls_port), "--tls-auth-clients", "yes", *files)):
        with driver(f"rediss://localhost:{tls_port}?certificates={cert}") as kv, pytest.raises(KVUnavailable):
            kv.get(key)
        with driver(f"rediss://localhost:{tls_port}?certificates={both}") as kv:
            kv.set(key, b"2")
            assert kv.get(key) == b"2"


# ---- servers that would lose data


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_evicts_is_refused_each_time(server: RedisServer, key: Key, policy: str) -> None:
    with contextlib.closing(server.client()) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", policy)
        with driver(server.url) as kv:
            for _ in range(3):
                with pytest.raises(StoreMisconfigured, match="noeviction"):
                    kv.set(key, b"1")
            assert client.exists(partition_key("refstore", key.partition).decode()) == 0
            client.config_set("maxmemory-policy", "volatile-lru")
            kv.set(key, b"1")


def test_a_server_that_is_set_to_evict_while_it_runs_is_refused_and_taken_up_again(
    server: RedisServer, key: Key
) -> None:
    """By connections that are open, too; with one error in the log, not one for each call."""
    clock = FakeClock()
    with (
        contextlib.closing(server.client()) as client,
        contextlib.closing(open_redis(server.url, clock)) as kv,
        collecting_events() as logs,
    ):
        kv.set(key, b"1")
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        clock.advance(CHECK_SECONDS)
        for _ in range(3):
            with pytest.raises(StoreMisconfigured, match="noeviction"):
                kv.set(key, b"2")
        client.config_set("maxmemory-policy", "noeviction")
        assert kv.get(key) == b"1"
    assert [(log["event"], log["level"]) for log in logs] == [
        ("kv_may_evict", "error"),
        ("kv_evicts_no_more", "info"),
    ]


@pytest.mark.parametrize(
    ("options", "aof", "expected"),
    [
        ((), True, []),
        (("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"), True, []),
        (("--maxmemory-policy", "allkeys-lru"), True, [("kv_would_evict", "noeviction")]),
        ((), False, [("kv_not_durable", "a restart loses everything")]),
        (("--save", "3600 1"), False, [("kv_not_durable", "since the last snapshot|after the last snapshot")]),
    ],
)
def test_what_may_lose_data_is_warned_about_once(
    tmp_path: Path, key: Key, options: tuple[str, ...], aof: bool, expected: list[tuple[str, str]]
) -> None:
    with (
        RedisServer(tmp_path / "redis", aof=aof, options=options) as server,
        collecting_events() as logs,
        driver(server.url) as kv,
        contextlib.closing(server.client()) as client,
    ):
        kv.set(key, b"1")
        client.client_kill_filter(_type="normal", skipme=True)  # a second connection is not a second warning
        with contextlib.suppress(KVUnavailable):
            kv.get(key)
        kv.get(key)
        risks = kv.risks()  # what `refstore doctor` shows: of persistence alone, and asked now
        client.config_set("appendfsync", "everysec")
        risks_of_fsync = kv.risks()
    assert [log["event"] for log in logs] == [event for event, _ in expected]
    assert list(risks) == [log["what"] for log in logs if log["event"] == "kv_not_durable"]
    assert ("appendfsync is not always" in "".join(risks_of_fsync)) == aof
    for log, (_, what) in zip(logs, expected, strict=True):
        assert log["level"] == "warning"
        assert any(option in log["what"] for option in what.split("|"))


def test_what_the_server_does_not_tell_is_warned_about() -> None:
    with (
        RedisStub(lambda command: b":0\r\n" if command[0] == b"ZCARD" else b"-NOPERM no\r\n") as stub,
        collecting_events() as logs,
    ):
        with driver(f"redis://127.0.0.1:{stub.port}") as kv:
            assert kv.count("p", limit=5) == 0
        assert [log["event"] for log in logs] == ["kv_eviction_unknown"]


def test_out_of_memory_refuses_whole_calls_and_still_lets_go(server: RedisServer, part: str) -> None:
    """Nothing is half written, nothing is evicted; what frees memory works."""
    keys = [Key(part, f"{i:05d}") for i in range(400)]
    with driver(server.url) as kv, contextlib.closing(server.client()) as client:
        kv.set_many([(key, b"v" * 1000) for key in keys[:200]])
        client.config_set("maxmemory", "1mb")
        with pytest.raises(KVUnavailable, match="raise maxmemory"):
            kv.set_if_many([SetIf(key, ABSENT, b"v" * 1000) for key in keys[200:]])
        with pytest.raises(KVUnavailable, match="raise maxmemory"):
            kv.set_many([(key, b"v" * 1000) for key in keys[200:]])
        assert kv.count(part, limit=1000) == 200
        assert kv.set_if_many([SetIf(key, b"v" * 1000, b"deleting") for key in keys[:200]]) == [True] * 200
        assert kv.set_if_many([SetIf(key, b"deleting", ABSENT) for key in keys[:100]]) == [True] * 100
        kv.delete_many(keys[100:150])
        kv.delete_range(part, "00150", "00189")
        assert [name for name, _ in kv.scan(part)] == [f"{i:05d}" for i in range(190, 200)]


def test_what_comes_after_a_refused_write_is_not_performed(server: RedisServer, part: str) -> None:
    """The copy is refused for want of memory; the original, which could be removed, must still be there."""
    with driver(server.url) as kv, contextlib.closing(server.client()) as client:
        kv.set(Key(part, "original"), b"v")
        client.config_set("maxmemory", "1mb")
        with pytest.raises(KVUnavailable, match="raise maxmemory") as caught:
            kv.execute([Set(Key(part, "copy"), b"v" * 1000), Delete(Key(part, "original"))])
        assert caught.value.nothing_done
        assert kv.scan(part) == [("original", b"v")]


@pytest.mark.parametrize("ops", [[Exchange, Get], [Get, Exchange], [SetIf, Get]])
def test_a_refused_write_among_reads_is_known_to_have_done_nothing(
    server: RedisServer, part: str, ops: list[type[Op]]
) -> None:
    """The server answers the reads, so its refusal is no lost reply: the same batch may be sent again."""
    key = Key(part, "k")
    batch = [
        Get(key) if kind is Get else kind(key, b"1") if kind is Exchange else SetIf(key, ABSENT, b"1") for kind in ops
    ]
    with driver(server.url) as kv, contextlib.closing(server.client()) as client:
        client.config_set("min-replicas-to-write", "1")
        with pytest.raises(KVUnavailable, match="min-replicas-to-write") as caught:
            kv.execute(batch)
        assert caught.value.nothing_done
        assert kv.get(key) is ABSENT
        client.config_set("min-replicas-to-write", "0")
        kv.execute(batch)
        assert kv.get(key) == b"1"


def test_a_key_that_is_not_ours(server: RedisServer, part: str) -> None:
    with driver(server.url) as kv, contextlib.closing(server.client()) as client:
        client.set(partition_key("refstore", part).decode(), "theirs")
        with pytest.raises(StoreMisconfigured, match="prefix"):
            kv.set(Key(part, "k"), b"1")
        with driver(server.url + "?prefix=ours") as other:
            other.set(Key(part, "k"), b"1")
            assert other.scan(part) == [("k", b"1")]


# ---- replicas


def test_wait_counts_replicas(tmp_path: Path, key: Key) -> None:
    with RedisServer(tmp_path / "master", options=("--repl-diskless-sync-delay", "0")) as master:
        with driver(master.url + "?wait=1&timeout=400ms") as kv:
            with pytest.raises(KVUnavailable, match="only 0 of 1 replicas"):
                kv.set(key, b"1")
            assert kv.get(key) == b"1"  # reads do not wait; and it was written: the outcome was unknown
        replica = RedisServer(tmp_path / "replica", options=("--replicaof", "127.0.0.1", str(master.port)))
        with replica, contextlib.closing(replica.client()) as client:
            until(lambda: client.info("replication")["master_link_status"] == "up", "the replica")
            with driver(master.url + "?wait=1&timeout=8s") as kv:
                kv.set(key, b"2")
                assert kv.execute([Exchange(key, b"3"), Get(key)]) == [b"2", b"3"]
                assert client.zrangebylex(partition_key("refstore", key.partition), "-", "+") == ["k\0003"]
            for query in ("", "?wait=1"):
                with driver(replica.url + query) as kv, pytest.raises(KVUnavailable, match="replica") as caught:
                    kv.set(key, b"4")
                assert caught.value.nothing_done


@pytest.mark.slow
def test_a_sentinel_failover(tmp_path: Path, part: str) -> None:
    """The master is killed amid writes; a retrying client goes on by itself, and with wait=1 nothing acknowledged is
    lost.
    """
    with RedisSentinels(tmp_path, password="pw") as sentinels:
        acknowledged = 0
        with driver(sentinels.url + "?wait=1&timeout=4s") as kv:
            kv.set_many([(Key(part, f"{i:04d}"), b"before") for i in range(500)])
            killed = sentinels.master()
            killer = threading.Thread(target=killed.kill)
            with contextlib.suppress(KVUnavailable):  # then a single server is left, with none to confirm
                while True:
                    assert kv.set_if(Key(part, f"x{acknowledged:06d}"), ABSENT, b"amid")
                    acknowledged += 1
                    if acknowledged == 50:
                        killer.start()
            killer.join()
        assert acknowledged >= 50
        with contextlib.closing(open_kv(sentinels.url + "?timeout=3s", attempts=40)) as kv:
            kv.set(Key(part, "after"), b"1")
            there = dict(kv.scan_all(part))
        assert sentinels.master() is not killed
        assert all(there[f"{i:04d}"] == b"before" for i in range(500))
        assert all(there[f"x{i:06d}"] == b"amid" for i in range(acknowledged))


@pytest.mark.slow
def test_a_master_that_is_demoted_amid_writes(tmp_path: Path, key: Key) -> None:
    """With wait=1 what it still takes is not acknowledged, and is done again on the new master."""
    with (
        RedisSentinels(tmp_path) as sentinels,
        contextlib.closing(open_kv(sentinels.url + "?wait=1&timeout=1s", attempts=40)) as kv,
    ):
        kv.set(key, b"0")
        old = sentinels.master()
        with contextlib.closing(sentinels.sentinels[0].client()) as client:
            client.execute_command("SENTINEL", "FAILOVER", sentinels.NAME)
        number = 0
        while number < 50 or sentinels.master() is old:
            number += 1
            kv.set(key, str(number).encode())
        assert kv.get(key) == str(number).encode()
        with contextlib.closing(sentinels.master().client()) as client:
            until(lambda: client.info("replication")["role"] == "master", "the promotion")
            assert client.zrangebylex(partition_key("refstore", key.partition), "-", "+") == [f"k\0{number}"]


# ---- clusters


def epoch_of(node: RedisServer) -> str:
    with contextlib.closing(node.client()) as client:
        info = str(client.execute_command("CLUSTER", "INFO"))
    return info.partition("cluster_current_epoch:")[2].partition("cluster_my_epoch")[0]


def test_slots_that_move(tmp_path: Path, part: str) -> None:
    """While a slot is on its way (ASK) and after it arrived (MOVED), every kind of operation goes on."""
    with RedisCluster(tmp_path) as cluster, driver(cluster.url) as kv:
        keys = [Key(f"{part}/{i}", "k") for i in range(30)]
        kv.set_many([(key, b"0") for key in keys])
        for moving in keys[:6]:
            raw = partition_key("refstore", moving.partition)
            source = cluster.owner_of(raw)
            target = next(node for node in cluster.nodes if node is not source)
            # a target that has not heard of the last move's epoch takes the slot under an older one, and loses it again
            until(lambda: len({epoch_of(node) for node in cluster.nodes}) == 1, "the nodes to agree on an epoch")
            with contextlib.closing(source.client()) as a, contextlib.closing(target.client()) as b:
                slot = a.execute_command("CLUSTER", "KEYSLOT", raw)
                ids = [client.execute_command("CLUSTER", "MYID") for client in (a, b)]
                b.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
                a.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
                assert kv.execute([Get(moving), SetIf(moving, b"0", b"1")]) == [b"0", True]
                assert kv.execute([Exchange(moving, b"2"), Set(moving, b"still here"), Get(moving)]) == [
                    b"1",
                    None,
                    b"still here",
                ]
                a.execute_command("MIGRATE", "127.0.0.1", target.port, raw, 0, 5000)
                assert kv.execute([Get(moving), Exchange(moving, b"asked")]) == [b"still here", b"still here"]
                assert kv.scan(moving.partition) == [("k", b"asked")]
                for client in (b, a):
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
                assert (
                    kv.set_if_many(
                        [SetIf(key, b"asked", b"0") if key == moving else SetIf(key, b"0", b"0") for key in keys]
                    )
                    == [True] * 30
                )
        assert kv.get_many(keys) == [b"0"] * 30


@pytest.mark.slow
def test_a_cluster_without_one_of_its_masters(tmp_path: Path, part: str) -> None:
    """Its slots are unavailable, then the cluster says so itself; with the node back, everything is there."""
    with RedisCluster(tmp_path) as cluster, driver(cluster.url + "?timeout=2s") as kv:
        keys = [Key(f"{part}/{i}", "k") for i in range(30)]
        kv.set_many([(key, b"1") for key in keys])
        down = cluster.owner_of(partition_key("refstore", keys[0].partition))
        down.kill()
        with pytest.raises(KVUnavailable):
            kv.get(keys[0])
        with pytest.raises(KVUnavailable):
            kv.get_many(keys)
        down.start()
        until(cluster.settled, "the cluster")
        with contextlib.closing(open_kv(cluster.url, attempts=20)) as retrying:
            assert retrying.get_many(keys) == [b"1"] * 30


@pytest.mark.slow
def test_a_cluster_failover(tmp_path: Path, part: str) -> None:
    """A master is killed; its replica takes over, and a retrying client goes on by itself."""
    with RedisCluster(tmp_path, replicas=1) as cluster:
        keys = [Key(f"{part}/{i}", "k") for i in range(30)]
        with driver(cluster.url + "?wait=1&timeout=4s") as kv:
            kv.set_many([(key, b"1") for key in keys])
        with contextlib.closing(open_kv(cluster.url + "?timeout=2s", attempts=40)) as kv:
            assert kv.get_many(keys) == [b"1"] * 30
            cluster.owner_of(partition_key("refstore", keys[0].partition)).kill()
            assert kv.set_if_many([SetIf(key, b"1", b"2") for key in keys]) == [True] * 30
            assert kv.get_many(keys) == [b"2"] * 30


def test_a_node_that_was_demoted_points_to_its_successor_with_wait_too(key: Key) -> None:
    """It answers MOVED to the write, and to the WAIT behind it that a replica takes none."""
    with RedisStub(lambda command: performed.get(command[0], b"-ERR unknown\r\n")) as master:
        performed = {b"EVAL": b"$1\r\n1\r\n", b"WAIT": b":1\r\n"}
        with RedisStub(lambda command: refused.get(command[0], b"-ERR unknown\r\n")) as demoted:
            refused = {
                b"CLUSTER": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % demoted.port,
                b"EVAL": b"-MOVED 3999 127.0.0.1:%d\r\n" % master.port,
                b"WAIT": b"-ERR WAIT cannot be used with replica instances.\r\n",
            }
            with driver(f"redis+cluster://127.0.0.1:{demoted.port}?wait=1") as kv:
                assert kv.set_if(key, b"0", b"1")
        assert [command[0] for command in master.commands][-2:] == [b"EVAL", b"WAIT"]


def test_a_single_server_is_no_cluster(server: RedisServer, key: Key) -> None:
    with driver(f"redis+cluster://127.0.0.1:{server.port}") as kv, pytest.raises(StoreMisconfigured, match="redis://"):
        kv.get(key)


def test_a_node_of_a_cluster_is_no_single_server(redis_cluster_url: str, part: str) -> None:
    first = redis_cluster_url.replace("+cluster", "").partition(",")[0]
    with driver(first) as kv, pytest.raises(StoreMisconfigured, match=r"redis\+cluster://"):
        kv.get_many([Key(f"{part}/{i}", "k") for i in range(30)])


# ---- forks


def test_a_forked_child_has_connections_of_its_own(redis_url: str, part: str) -> None:
    with driver(redis_url) as kv:
        kv.set(Key(part, "parent"), b"1")
        child = os.fork()
        if child == 0:
            try:
                ok = all(
                    kv.exchange(Key(part, "c"), str(i).encode()) in (ABSENT, str(i - 1).encode()) for i in range(100)
                )
            except BaseException:  # noqa: BLE001  # the exit code tells
                ok = False
            os._exit(0 if ok else 1)
        for i in range(100):
            assert kv.exchange(Key(part, "p"), str(i).encode()) in (ABSENT, str(i - 1).encode())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
