"""The processes of a storm, the stores beneath them, and what kills them at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from refstore.configuration.settings import embedded_urls
from tests.kit.short_durations import SAFETY
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.servers.s3_base import environment as s3_environment
from tests.servers.s3_proxy import RandomFaults, S3FaultProxy
from tests.servers.s3_servers import CephRgw, RcloneS3
from tests.soak.gateway import GATEWAY, Gateway

ARRANGEMENTS = ("redis+rgw", "redis+rclone", "sqlite+file")
REPOSITORY = "soak"
STRIKES = ("client", "client", "reaper", "redis", "stop", "gateway", "stop gateway")
STOPPED_SECONDS = (1.0, 1.0, 1.0, SAFETY.scrub_after_seconds + 5)
"""Some for longer than anything may take: what they go on with is stale."""


@dataclass
class Stores:
    kv: str
    objects: str
    redis: RedisServer | None = None
    server: S3Server | None = None
    proxy: S3FaultProxy | None = None
    faults: RandomFaults | None = None


@dataclass
class Processes:
    folder: Path
    environment: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=Path.cwd(),
            )

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
        process.wait(60)

    def describe_end(self, name: str) -> str:
        return f"{name} ended by itself:\n{(self.folder / f'{name}.log').read_text(errors='replace')[-1500:]}"

    def ended_by_themselves(self) -> list[str]:
        """Return which are over, with their last words."""
        return [self.describe_end(name) for name, process in self.running.items() if process.poll() is not None]

    def end(self) -> list[str]:
        """Kill all of them. Return which were over before, with their last words."""
        ended = self.ended_by_themselves()
        for name in list(self.running):
            self.kill(name)
        return ended


@contextlib.contextmanager
def stores(arrangement: str, folder: Path, seed: int) -> Iterator[Stores]:
    with contextlib.ExitStack() as stack:
        if arrangement == "sqlite+file":
            (folder / "lake").mkdir()
            kv, objects = embedded_urls(folder / "lake")
            yield Stores(kv, objects)
            return
        os.environ.update(s3_environment())
        redis = stack.enter_context(RedisServer(folder / "redis", fsync="always"))
        server: S3Server = CephRgw(folder / "s3") if arrangement == "redis+rgw" else RcloneS3(folder / "s3")
        server.start()
        stack.callback(server.stop)
        faults = RandomFaults(seed=seed, unavailable=0.02, delete_key=0.01, cut_get=0.01, drop_reply=0.005)
        proxy = stack.enter_context(S3FaultProxy(server.endpoint))
        yield Stores(redis.url, server.url(endpoint=proxy.endpoint), redis, server, proxy, faults)


@dataclass
class Storm:
    """The processes that are killed, and what kills them."""

    stores: Stores
    processes: Processes
    rng: random.Random
    clients: list[str]
    reapers: list[str]
    gateway: Gateway | None
    counts: Counter[str] = field(default_factory=Counter)
    _stopped: dict[str, float] = field(default_factory=dict)
    """Until when."""
    _sizes: dict[str, int] = field(default_factory=dict)
    """Of the ledgers, when their clients were started."""

    def ledger(self, client: str) -> Path:
        return self.processes.folder / f"{client}.ledger"

    def start_all(self) -> None:
        if self.gateway is not None:
            self.processes.start(GATEWAY, *self.gateway.arguments())
        for client in self.clients:
            self._start_client(client)
        for reaper in self.reapers:
            self._start_reaper(reaper)
        if self.stores.proxy is not None:
            self.stores.proxy.plan = self.stores.faults
        deadline = time.monotonic() + 60
        while not all(self._size(client) for client in self.clients) and time.monotonic() < deadline:
            time.sleep(0.1)

    def rage(self, seconds: float) -> str:
        """Kill and stop processes. Return which ended by itself, and its last words; '': none did."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self.rng.uniform(0.3, 1.2))
            self._strike(self.rng.choice(STRIKES))
            self._continue_stopped()
            for ended in self.processes.ended_by_themselves():
                return ended
        return ""

    def calm(self) -> None:
        """Kill all but the reapers, and leave the servers in peace."""
        for client in self.clients:
            self.processes.kill(client)
        if self.gateway is not None:
            self.processes.kill(GATEWAY)
        if self.stores.proxy is not None:
            self.counts["S3 requests that were failed"] = sum(fault is not None for _, fault in self.stores.proxy.log)
            self.stores.proxy.plan = None

    def _strike(self, what: str) -> None:
        client, reaper = self.rng.choice(self.clients), self.rng.choice(self.reapers)
        if what == "client" and self._at_work(client):
            self.processes.kill(client)
            self.counts["clients killed (SIGKILL)"] += 1
            self._start_client(client)
        elif what == "reaper":
            self.processes.kill(reaper)
            self.counts["reapers killed (SIGKILL)"] += 1
            self._start_reaper(reaper)
        elif what == "redis" and self.stores.redis is not None:
            self.stores.redis.restart(kill=True)
            self.counts["Redis killed and started"] += 1
        elif what == "stop" and self._at_work(client):
            self._stop(client)
            self.counts["clients stopped (SIGSTOP)"] += 1
        elif what == "stop gateway" and self._is_serving():
            self._stop(GATEWAY)
            self.counts["gateways stopped (SIGSTOP)"] += 1
        elif what == "gateway" and self.gateway is not None and self._is_serving():
            self.processes.kill(GATEWAY)
            self.counts["gateways killed (SIGKILL)"] += 1
            self.processes.start(GATEWAY, *self.gateway.arguments())

    def _stop(self, name: str) -> None:
        self.processes.running[name].send_signal(signal.SIGSTOP)
        self._stopped[name] = time.monotonic() + self.rng.choice(STOPPED_SECONDS)

    def _continue_stopped(self) -> None:
        for name, until in list(self._stopped.items()):
            if time.monotonic() > until:
                self.processes.running[name].send_signal(signal.SIGCONT)
                del self._stopped[name]

    def _is_serving(self) -> bool:
        return self.gateway is not None and self.gateway.is_serving() and GATEWAY not in self._stopped

    def _at_work(self, client: str) -> bool:
        """Whether it has told something since it was started: one that is killed before it begins proves nothing."""
        return self._size(client) > self._sizes[client] and client not in self._stopped

    def _size(self, client: str) -> int:
        return self.ledger(client).stat().st_size if self.ledger(client).exists() else 0

    def _start_client(self, client: str) -> None:
        self._sizes[client] = self._size(client)
        module = "tests.soak.client" if self.gateway is None else "tests.soak.s3_client"
        seed, ledger = str(self.rng.randrange(10**6)), str(self.ledger(client))
        self.processes.start(
            client, "-m", module, self.stores.kv, self.stores.objects, REPOSITORY, client, seed, ledger
        )

    def _start_reaper(self, reaper: str) -> None:
        self.processes.start(reaper, "-m", "refstore", "reaper")
