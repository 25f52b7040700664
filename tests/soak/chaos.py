"""Client and reaper processes killed at random, over servers that are killed and that fail; then the audit.

    python -m tests.soak.chaos --seconds 900 --arrangement redis+rgw --seed 7

Everything that can be decided beforehand is decided by the seed, which is printed. When the time is over, the clients
are killed, the servers are left in peace, and the reapers get the time that their rules ask for. Then: nothing named is
gone, nothing unnamed is left (the audit, written apart from the product's reading), and what was acknowledged on each
client's own branch is there to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.short_durations import REAPER, SAFETY, environment
from refstore.configuration.settings import embedded_urls
from refstore.lake import Lake
from refstore.repository import Repository
from refstore_reaper.backlog import measure
from tests.kit.independent_audit import audit
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.servers.s3_base import environment as s3_environment
from tests.servers.s3_proxy import RandomFaults, S3FaultProxy
from tests.servers.s3_servers import CephRgw, RcloneS3
from tests.soak import ledgers

ARRANGEMENTS = ("redis+rgw", "redis+rclone", "sqlite+file")
CLIENTS = 3
REAPERS = 2
SETTLE_SECONDS = (
    SAFETY.scrub_after_seconds + SAFETY.grace_seconds + SAFETY.issue_seconds / 2 + REAPER.scrub_every_seconds
)

PROCESSED_SECONDS = 90.0
"""How long that may take; the audit says what is left then."""


@dataclass
class Result:
    seed: int
    findings: list[str]
    counts: Counter[str]
    outcomes: Counter[tuple[str, str]]
    seconds: float

    def table(self) -> str:
        lines = [f"{name:44s} {count:8d}" for name, count in self.counts.items()]
        by_op: dict[str, Counter[str]] = {}
        for (op, outcome), count in sorted(self.outcomes.items()):
            by_op.setdefault(op, Counter())[outcome] += count
        lines += [
            f"{op:24s} {', '.join(f'{outcome} {count}' for outcome, count in found.items())}"
            for op, found in by_op.items()
        ]
        return "\n".join([f"seed {self.seed}, {self.seconds:.0f} s", *lines])


@dataclass
class Stores:
    kv: str
    objects: str
    redis: RedisServer | None = None
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

    def ended_by_itself(self, name: str) -> int | None:
        return self.running[name].poll() if name in self.running else None

    def end(self) -> None:
        for name in list(self.running):
            self.kill(name)


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
        yield Stores(redis.url, server.url(endpoint=proxy.endpoint), redis, proxy, faults)


def run(
    arrangement: str,
    seconds: float,
    seed: int,
    *,
    say: Callable[[str], None] = print,
    break_it: Callable[[Lake], None] | None = None,
) -> Result:
    """`break_it`: plants a fault when all has settled, for the test that the audit can fail."""
    began = time.monotonic()
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="refstore-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        found = stack.enter_context(stores(arrangement, folder, seed))
        env = environment({"kv": found.kv, "objects": found.objects}) | s3_environment()
        processes = Processes(folder, env)
        stack.callback(processes.end)
        with Lake.open(found.kv, found.objects, safety=SAFETY) as lake:
            repo = lake.create_repository("soak")
            clients = [f"c{number}" for number in range(CLIENTS)]
            for client in (*clients, "shared"):
                repo.create_branch(client, "main")

        grown: dict[str, int] = {}

        def size(client: str) -> int:
            ledger = folder / f"{client}.ledger"
            return ledger.stat().st_size if ledger.exists() else 0

        def at_work(client: str) -> bool:
            """Whether it has told something since it was started: one that is killed before it begins proves
            nothing.
            """
            return size(client) > grown[client] and client not in stopped

        def start_client(client: str) -> None:
            grown[client] = size(client)
            ledger = str(folder / f"{client}.ledger")
            processes.start(
                client,
                "-m",
                "tests.soak.client",
                found.kv,
                found.objects,
                "soak",
                client,
                str(rng.randrange(10**6)),
                ledger,
            )

        def start_reaper(reaper: str) -> None:
            processes.start(reaper, "-m", "refstore", "reaper")

        stopped: dict[str, float] = {}
        reapers = [f"reaper{number}" for number in range(REAPERS)]
        for client in clients:
            start_client(client)
        for reaper in reapers:
            start_reaper(reaper)
        if found.proxy is not None:
            found.proxy.plan = found.faults
        say(f"{arrangement}: {CLIENTS} clients, {REAPERS} reapers, {seconds:.0f} s, seed {seed}")
        deadline = time.monotonic() + 60
        while not all(size(client) for client in clients) and time.monotonic() < deadline:
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.3, 1.2))
            what = rng.choice(["client", "client", "reaper", "redis", "stop"])
            victim = rng.choice(clients)
            if what == "client" and at_work(victim):
                processes.kill(victim)
                counts["clients killed (SIGKILL)"] += 1
                start_client(victim)
            elif what == "reaper":
                victim = rng.choice(reapers)
                processes.kill(victim)
                counts["reapers killed (SIGKILL)"] += 1
                start_reaper(victim)
            elif what == "redis" and found.redis is not None:
                found.redis.restart(kill=True)
                counts["Redis killed and started"] += 1
            elif what == "stop" and at_work(victim):
                processes.running[victim].send_signal(signal.SIGSTOP)
                stopped[victim] = time.monotonic()
                counts["clients stopped (SIGSTOP)"] += 1
            for victim, since in list(stopped.items()):
                # some for longer than anything may take: what they go on with is stale
                if time.monotonic() - since > rng.choice([1.0, SAFETY.scrub_after_seconds + 5]):
                    processes.running[victim].send_signal(signal.SIGCONT)
                    del stopped[victim]
            for each in (*clients, *reapers):
                code = processes.ended_by_itself(each)
                if code is not None:
                    words = (folder / f"{each}.log").read_text(errors="replace")[-1500:]
                    return Result(
                        seed,
                        [f"{each} ended by itself with {code}:\n{words}"],
                        counts,
                        Counter(),
                        time.monotonic() - began,
                    )
        for client in clients:
            processes.kill(client)
        if found.proxy is not None:
            counts["S3 requests that were failed"] = sum(fault is not None for _, fault in found.proxy.log)
            found.proxy.plan = None
        say(f"the reapers get {SETTLE_SECONDS:.0f} s behind the last token that they process")
        with Lake.open(found.kv, found.objects, safety=SAFETY) as lake:
            wait_until_processed(lake.repository("soak"))
        time.sleep(SETTLE_SECONDS)
        for reaper in reapers:
            processes.kill(reaper, signal.SIGTERM)
        last = subprocess.run(
            [sys.executable, "-m", "refstore", "reaper", "--once", "--scrub"],
            env=processes.environment,
            capture_output=True,
            check=False,
        )
        findings = (
            []
            if last.returncode == 0
            else [f"the last reaper ended with {last.returncode}: {last.stderr.decode()[-1500:]}"]
        )
        with Lake.open(found.kv, found.objects, safety=SAFETY) as lake:
            if break_it is not None:
                break_it(lake)
            repo = lake.repository("soak")
            told = ledgers.read([folder / f"{client}.ledger" for client in clients])
            seen = audit(
                lake.kv,
                repo.context.objects,
                repo.context.repo,
                now_ms=lake.clock.now_ms(),
                grace_seconds=SAFETY.grace_seconds,
            )
            findings += seen.findings()
            findings += told.corrupt
            if not seen.lost:
                findings += ledgers.differences(repo, told)
            if not any(outcome == "ok" for _, outcome in told.outcomes):
                findings.append("no operation was acknowledged: this run proved nothing")
            counts["operations told"] = sum(told.outcomes.values())
            counts["of them acknowledged"] = sum(
                count for (_, outcome), count in told.outcomes.items() if outcome == "ok"
            )
            counts["blobs named"] = len(
                {item.entry.address for b, _ in repo.branches() for item in repo.list(b) if item.entry is not None}
            )
            counts["blobs in the store"] = sum(1 for _ in repo.context.objects.list("data/"))
        return Result(seed, findings, counts, told.outcomes, time.monotonic() - began)


def wait_until_processed(repo: Repository) -> None:
    """On a busy machine the reapers, killed as they were, may still be starting; what they process then is young for as
    long again.
    """
    end = time.monotonic() + PROCESSED_SECONDS
    while time.monotonic() < end:
        retired = any(branch.retired_tokens for _, branch in repo.branches())
        if not retired and not measure(repo.context, limit=1).tokens:
            return
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--arrangement", choices=[*ARRANGEMENTS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    asked = parser.parse_args()
    chosen = ARRANGEMENTS if asked.arrangement == "all" else (asked.arrangement,)
    failed = False
    for arrangement in chosen:
        result = run(arrangement, asked.seconds / len(chosen), asked.seed)
        print(result.table())
        print(
            "\n".join(result.findings)
            or "nothing named is gone, nothing unnamed is left, and what was acknowledged is there"
        )
        failed |= bool(result.findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
