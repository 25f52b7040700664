"""The offline job, two reapers and clients at once, as processes over real servers; a collector is killed in the
middle; then the audit.

All commits but heads expire at once, so whatever a client reads from history may be marked or swept under its hands.
The collector runs again and again, and is killed in a step that the seed chooses; another one, whose Spark is warm,
takes over. In the end nobody is left but a last reaper and the second collector: then nothing named is gone, and
nothing unnamed is left, in the store or in the KV.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

from refstore.core.clock import SystemClock
from refstore.gc_marks import Marks, RunState
from refstore.lake import open_lake_at
from refstore.repository import Repository
from refstore_reaper.daemon import Reaper
from tests.durations import COLLECTOR
from tests.kit.independent_audit import Audit, audit_repository
from tests.kit.short_durations import REAPER, environment
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.servers.s3_base import environment as s3_environment
from tests.soak import ledgers
from tests.soak.result import SECONDS, SEED, Result
from tests.soak.storm import Processes

CLIENTS = 3
REAPERS = 2
STEPS = ("waiting", "listing", "reading", "comparing", "sweeping")
START_SECONDS = 120
AGAIN_SECONDS = 400
"""Two runs of a collector and the beginning of a third, on a machine that has much else to do."""
LATER_SECONDS = 3600
ROUNDS = 4
"""What a pass releases waits for its grace window, what it deletes leaves a token that must grow old, and so on."""
COMMITTED_AT_ONCE = json.dumps({"default_retention_days": 0, "grace_days": 0})


class Later:
    """The system's clock, put forward."""

    def __init__(self) -> None:
        self.ahead_seconds = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_seconds * 1000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class Collector:
    """One that is told when to run."""

    process: subprocess.Popen[bytes]
    told: Queue[dict[str, Any]] = field(default_factory=Queue)
    step: str = ""
    """The one it is in."""

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{") and line.endswith(b"\n"):
                said = json.loads(line)
                self.step = said.get("step", "")
                if "state" in said:
                    self.told.put(said)
        self.told.put({"state": "ended"})

    def start(self, how: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how}\n".encode())
        self.process.stdin.flush()


@contextlib.contextmanager
def telling(folder: Path, name: str, env: dict[str, str], *arguments: str) -> Iterator[Collector]:
    """A process group of its own: with what runs there its Java and its workers go, too."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, cwd=Path.cwd(), start_new_session=True,
        )  # fmt: skip
    found = Collector(process)
    listener = threading.Thread(target=found.listen, name=f"listen-{name}", daemon=True)
    listener.start()
    try:
        yield found
    finally:
        killed_whole(process)
        listener.join(30)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def killed_whole(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def run(server: S3Server, seconds: float = SECONDS, *, blind: bool = False) -> Result:
    """`blind`: with a fault in the collectors, for the test that the audit can fail."""
    rng = random.Random(SEED)
    result = Result()
    counts, findings, runs = result.counts, result.findings, result.runs
    clock = Later()
    with tempfile.TemporaryDirectory(prefix="refstore-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        redis = stack.enter_context(RedisServer(folder / "redis", fsync="no"))
        kv, objects = redis.url, server.url()
        env = environment({"kv": kv, "objects": objects}, COLLECTOR) | s3_environment()
        processes = Processes(folder, env)
        stack.callback(processes.end)
        clients = [f"c{number}" for number in range(CLIENTS)]
        with open_lake_at(kv, objects, safety=COLLECTOR) as lake:
            repo = lake.create_repository("soak")
            repo.set_retention(COMMITTED_AT_ONCE)
            for client in (*clients, "shared"):
                repo.create_branch(client, source="main")
        collect = ("tests.soak.collector", "collect", kv, objects, "soak", *(("blind",) if blind else ()))
        first, second = (stack.enter_context(telling(folder, f"gc{number}", env, *collect)) for number in (1, 2))
        for number, collector in enumerate((first, second), start=1):
            if collector.told.get(timeout=START_SECONDS)["state"] != "ready":
                findings.append(processes.describe_end(f"gc{number}"))
                return result
        print(f"seed {SEED}: {CLIENTS} clients, {REAPERS} reapers, the offline job, {seconds:.0f} s")

        def start_client(client: str) -> None:
            ledger = str(folder / f"{client}.ledger")
            arguments = (kv, objects, "soak", client, str(rng.randrange(10**6)), ledger)
            processes.start(client, "-m", "tests.soak.collector", "client", *arguments)

        for client in clients:
            start_client(client)
        for number in range(REAPERS):
            processes.start(f"reaper{number}", "-m", "refstore", "reaper")

        kill_in = rng.choice(STEPS)
        kill_after = rng.randrange(1, 3)
        """Runs of the first collector that end; the next one does not."""
        end = time.monotonic() + seconds
        killed_client = False
        collector = first
        collector.start("run")
        while time.monotonic() < end or collector is first:
            if collector is first and len(runs) >= kill_after and first.step.startswith(kill_in):
                killed_whole(first.process)
                counts[f"collectors killed while {kill_in}"] += 1
                collector = second
                collector.start("run")
            if not killed_client and time.monotonic() > end - seconds / 2:
                killed_client = True
                processes.kill(clients[0])
                counts["clients killed (SIGKILL)"] += 1
                start_client(clients[0])
            if not collector.told.empty():
                said = collector.told.get()
                if said["state"] == "ended":
                    findings.append(processes.describe_end("gc1" if collector is first else "gc2"))
                    break
                runs.append(said)
                collector.start("run")
            if time.monotonic() > end + AGAIN_SECONDS:
                findings.append(f"the collector never came to {kill_in!r} again")
                break
            time.sleep(0.02)
        findings += processes.end()
        if not findings:
            runs.append(collector.told.get(timeout=START_SECONDS))
            findings += check_end(kv, objects, clock, collector, runs)
        told = ledgers.read([folder / f"{client}.ledger" for client in clients])
        result.outcomes = told.outcomes
        with open_lake_at(kv, objects, safety=COLLECTOR, clock=clock) as lake:
            repo = lake.repository("soak")
            findings += told.corrupt
            if not check_repository(repo, result).lost:
                findings += ledgers.differences(repo, told)
        result.count_outcomes()
        counts["refused: what they read was marked (410)"] = result.count_of("gone")
        counts["objects swept"] = sum(each.get("deleted", 0) for each in runs)
        if not blind and not sum(each.get("deleted", 0) for each in runs[:-1]):
            findings.append("nothing was swept while clients were at work: this run proved nothing")
    return result


def check_repository(repo: Repository, result: Result) -> Audit:
    """Find what is named and gone, and what is left that nothing names, or expired commits alone."""
    seen = audit_repository(repo, grace_seconds=COLLECTOR.grace_seconds)
    result.findings += seen.findings()
    if seen.offline:
        result.findings.append(f"{seen.offline} objects are left that only expired commits name")
    result.counts["commits"] = seen.commits
    result.counts["objects named, and left"] = seen.objects
    return seen


def check_end(kv: str, objects: str, clock: Later, collector: Collector, runs: list[dict[str, Any]]) -> list[str]:
    """A last reaper, then the offline job, until the store's clock, which may count whole seconds, lets it see
    everything.
    """
    findings: list[str] = []
    with open_lake_at(kv, objects, safety=COLLECTOR, clock=clock) as lake:
        store = lake.repository("soak").context.objects
        for _ in range(ROUNDS):
            clock.ahead_seconds += LATER_SECONDS
            with Reaper(lake, REAPER, scrub_now=True) as reaper:
                done = reaper.run_once(lambda: False)
            findings += [f"the last reaper: {error}" for error in done.errors]
        store.put("_refstore/gc/now", b"")
        written = store.head("_refstore/gc/now").mtime_ms
        while store.head("_refstore/gc/now").mtime_ms <= written:
            store.put("_refstore/gc/now", b"")
    collector.start("alone")
    last = collector.told.get(timeout=START_SECONDS)
    runs.append(last)
    if last["state"] != RunState.SWEPT.value:
        findings.append(f"the last run of the offline job came to {last}")
    with open_lake_at(kv, objects, safety=COLLECTOR) as lake:
        states = Counter(each.state for each in Marks(lake.repository("soak").context).runs.scan())
        if states.keys() - {RunState.SWEPT, RunState.ABANDONED}:
            findings.append(f"marks are left open: {states}")
    return findings
