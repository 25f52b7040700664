"""The machine on the stores that matter; `make soak` runs it for long."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from refstore.kv import open_kv
from refstore.kv.base import KV
from refstore.kv.memory import MemoryKV
from refstore.objects.base import ObjectStore
from refstore.objects.memory import MemoryObjects
from tests.properties.gateway_machine import GatewayMachine
from tests.properties.machine import Machine
from tests.servers.postgres_servers import PostgresServer
from tests.servers.redis_servers import RedisServer

SMALL = settings(
    max_examples=int(os.environ.get("REFSTORE_MACHINE_EXAMPLES", "15")),
    stateful_step_count=int(os.environ.get("REFSTORE_MACHINE_STEPS", "40")),
    deadline=None,
    print_blob=True,
    derandomize="REFSTORE_MACHINE_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


class MemoryMachine(Machine):
    def open_kv(self) -> KV:
        return MemoryKV()

    def open_objects(self, url: str) -> ObjectStore:
        return MemoryObjects(name=url)


class SqliteMachine(MemoryMachine):
    def open_kv(self) -> KV:
        self.folder = Path(tempfile.mkdtemp(prefix="refstore-machine-"))
        return open_kv(f"sqlite:///{self.folder}/kv.sqlite?fsync=0")

    def finish(self) -> None:
        shutil.rmtree(self.folder)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = SMALL
TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = SMALL
TestGatewayMachine = GatewayMachine.TestCase
TestGatewayMachine.settings = SMALL


class RedisMachine(MemoryMachine):
    """On a real Redis, which the whole class shares; each run has it to itself."""

    server: RedisServer

    def open_kv(self) -> KV:
        with closing(self.server.client()) as client:
            client.flushdb()
        return open_kv(self.server.url)


class PostgresMachine(MemoryMachine):
    """On a real PostgreSQL, which the whole class shares; each run has it to itself."""

    server: PostgresServer

    def open_kv(self) -> KV:
        self.server.run("DROP SCHEMA IF EXISTS refstore CASCADE")
        return open_kv(self.server.url)


@pytest.mark.server
def test_on_postgres() -> None:
    with PostgresServer(options=("fsync=off",)) as server:
        PostgresMachine.server = server
        run_state_machine_as_test(PostgresMachine, settings=SMALL)


@pytest.mark.server
def test_on_redis(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", fsync="everysec") as server:
        RedisMachine.server = server
        run_state_machine_as_test(RedisMachine, settings=SMALL)
