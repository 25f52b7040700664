"""KVs that lose acknowledged writes on request, and switch without losing any: SQLite, Redis, Sentinel, Cluster,
PostgreSQL.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import Any

import apsw
import redis

from tests.servers.postgres_servers import PostgresServer
from tests.servers.redis_servers import RedisCluster, RedisSentinels, RedisServer, until

WRONG_PASSWORD = "none"  # a replica that offers it to a master without one cannot connect


SENTINELS_AGREE_SECONDS = 3.5
"""Longer than their `failover-timeout`."""


class LosingKV(ABC):
    """What is written between `mark` and `lose` is lost. The lake is closed during `lose` and `switch`."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def mark(self) -> None:
        """From here on writes are lost by the next `lose`."""

    @abstractmethod
    def lose(self) -> None: ...

    @abstractmethod
    def switch(self) -> None:
        """Let another server or file answer, with everything that was written."""

    def close(self) -> None:
        return


def copy_sqlite(file: Path, copy: Path) -> None:
    """Copy a file that may be in use, as an operator does."""
    with (
        contextlib.closing(apsw.Connection(str(file))) as source,
        contextlib.closing(apsw.Connection(str(copy))) as target,
        target.backup("main", source, "main") as backup,
    ):
        backup.step()


class LosingSqlite(LosingKV):
    """An older copy of the file is moved over it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "kv.sqlite"
        self._copy = folder / "copy.sqlite"

    @property
    def url(self) -> str:
        return f"sqlite://{self._file}?fsync=0"

    def mark(self) -> None:
        copy_sqlite(self._file, self._copy)

    def lose(self) -> None:
        for name in ("kv.sqlite-wal", "kv.sqlite-shm"):
            (self._file.parent / name).unlink(missing_ok=True)
        self._copy.replace(self._file)

    def switch(self) -> None:
        self.mark()
        self.lose()


class LosingRedis(LosingKV):
    """The files of a server are put back as they were."""

    def __init__(self, folder: Path) -> None:
        self._server = RedisServer(folder / "server").start()
        self._copy = folder / "copy"

    @property
    def url(self) -> str:
        return self._server.url

    def mark(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._server.directory, self._copy)

    def lose(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.directory)
        self._copy.rename(self._server.directory)
        self._server.start()

    def switch(self) -> None:
        self._server.restart()

    def close(self) -> None:
        self._server.kill()


class LosingPostgresStandby(LosingKV):
    """A standby is stopped when the writes begin that it is to lose, and promoted in place of its server."""

    def __init__(self) -> None:
        self._server = PostgresServer().start()
        self._other = PostgresServer()
        """The port of the standby; its folder is made anew each time."""
        self._make_standby()

    @property
    def url(self) -> str:
        ports = sorted((self._server.port, self._other.port))
        return f"postgresql://postgres@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/postgres"

    def mark(self) -> None:
        self._catch_up()
        self._other.stop()

    def lose(self) -> None:
        self._server.kill()
        self._other.start()
        self._promote()

    def switch(self) -> None:
        self._catch_up()
        self._server.kill()
        self._promote()

    def close(self) -> None:
        self._server.remove()
        self._other.remove()

    def _make_standby(self) -> None:
        self._other.copy_from(self._server)
        self._other.start()

    def _catch_up(self) -> None:
        ((wanted,),) = self._server.run("SELECT pg_current_wal_flush_lsn()::text")
        until(lambda: self._other.run(f"SELECT pg_last_wal_replay_lsn() >= '{wanted}'::pg_lsn")[0][0], "the standby")

    def _promote(self) -> None:
        assert self._other.run("SELECT pg_promote()")[0][0]
        self._server, self._other = self._other, self._server
        self._make_standby()


class LosingPostgresDump(LosingKV):
    """The rows of a dump replace those of the same tables, so that the server's identity stays as it was."""

    def __init__(self) -> None:
        self._server = PostgresServer().start()
        self._dump = self._server.folder / "dump.sql"

    @property
    def url(self) -> str:
        return self._server.url

    def mark(self) -> None:
        self._server.call("pg_dump", "--schema=refstore", "--data-only", f"--file={self._dump}")

    def lose(self) -> None:
        self._server.run("TRUNCATE refstore.kv, refstore.kv_schema")
        self._server.call("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={self._dump}")

    def switch(self) -> None:
        self._server.restart()

    def close(self) -> None:
        self._server.remove()


class LosingSentinels(LosingKV):
    """The replica is cut off from its master, then promoted."""

    def __init__(self, folder: Path) -> None:
        self._sentinels = RedisSentinels(folder).start()

    @property
    def url(self) -> str:
        return self._sentinels.url

    def mark(self) -> None:
        master = self._sentinels.master()
        _cut(master, next(server for server in self._sentinels.servers if server is not master))

    def lose(self) -> None:
        self._fail_over()

    def switch(self) -> None:
        master = self._sentinels.master()
        _catch_up(master, next(server for server in self._sentinels.servers if server is not master))
        self._fail_over()

    def _fail_over(self) -> None:
        old = self._sentinels.master()
        replica = next(server for server in self._sentinels.servers if server is not old)
        old.kill()
        until(lambda: self._all_name(replica), "the failover")
        time.sleep(SENTINELS_AGREE_SECONDS)  # a second Sentinel's failover would promote the old master again
        until(lambda: self._all_name(replica), "the failover")
        with contextlib.closing(replica.client()) as client:
            until(lambda: client.info("replication")["role"] == "master", "the promotion")
            client.config_set("masterauth", "")
        old.start()
        with contextlib.closing(old.client()) as client:
            client.replicaof("127.0.0.1", replica.port)  # the Sentinels would, later
            until(lambda: client.info("replication").get("master_link_status") == "up", "the old master")
        until(self._sentinels.settled, "the Sentinels")

    def _all_name(self, server: RedisServer) -> bool:
        """Return whether every Sentinel names the server as the master."""
        for sentinel in self._sentinels.sentinels:
            with contextlib.closing(sentinel.client()) as client:
                _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._sentinels.NAME)
            if int(port) != server.port:
                return False
        return True

    def close(self) -> None:
        self._sentinels.stop()


class LosingCluster(LosingKV):
    """One shard's replica is cut off from its master, then promoted; the others lose nothing."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._random = random
        self._cluster = RedisCluster(
            folder, replicas=1, options=("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
        ).start()
        self._master: RedisServer | None = None

    @property
    def url(self) -> str:
        return self._cluster.url

    def mark(self) -> None:
        self._master = self._any_master()
        _cut(self._master, self._replica_of(self._master))

    def lose(self) -> None:
        assert self._master is not None, "mark first"
        self._fail_over(self._master)

    def switch(self) -> None:
        master = self._any_master()
        _catch_up(master, self._replica_of(master))
        self._fail_over(master)

    def _any_master(self) -> RedisServer:
        return self._random.choice([node for node in self._cluster.nodes if _replication(node)["role"] == "master"])

    def _replica_of(self, master: RedisServer) -> RedisServer:
        return next(
            node
            for node in self._cluster.nodes
            if _replication(node)["role"] == "slave" and int(_replication(node)["master_port"]) == master.port
        )

    def _fail_over(self, old: RedisServer) -> None:
        replica = self._replica_of(old)
        old.kill()
        until(lambda: _replication(replica)["role"] == "master", "the failover")
        with contextlib.closing(replica.client()) as client:
            client.config_set("masterauth", "")
        old.start()
        until(lambda: _replication(old).get("master_link_status") == "up", "the old master")
        until(self._cluster.settled, "the cluster")

    def close(self) -> None:
        self._cluster.stop()


def _cut(master: RedisServer, replica: RedisServer) -> None:
    """Keep the replica from its master, with all that was written so far: it offers a password where none is
    wanted.
    """
    _catch_up(master, replica)
    with contextlib.closing(replica.client()) as client:
        client.config_set("masterauth", WRONG_PASSWORD)
    with contextlib.closing(master.client()) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "REPLICA")
        until(lambda: client.info("replication")["connected_slaves"] == 0, "the cut")


def _catch_up(master: RedisServer, replica: RedisServer) -> None:
    """Wait until the replica has what the master acknowledged, which Redis does not."""
    wanted = _replication(master)["master_repl_offset"]
    until(lambda: _replication(replica).get("slave_repl_offset", -1) >= wanted, "the replica")


def _replication(server: RedisServer) -> dict[str, Any]:
    with contextlib.closing(server.client()) as client:
        try:
            return client.info("replication")
        except redis.ConnectionError:
            return {"role": "down"}
