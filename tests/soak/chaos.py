"""Client and reaper processes killed at random, over servers that are killed and that fail; then the audit.

When the time is over, the clients are killed, the servers are left in peace, and the reapers get the time that their
rules ask for. Then: nothing named is gone, nothing unnamed is left, on branches that nobody ever commits either (the
audit, written apart from the product's reading), and what was acknowledged on each client's own branch is there to the
byte.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from refstore.lake import Lake, open_lake_at
from refstore.repository import Repository
from refstore_reaper.backlog import measure
from tests.kit.independent_audit import audit_repository
from tests.kit.short_durations import REAPER, SAFETY, environment
from tests.servers.s3_base import environment as s3_environment
from tests.soak import ledgers
from tests.soak.gateway import GATEWAY, SERVER_KEY, Gateway, compare_reads, find_uploads
from tests.soak.result import SECONDS, SEED, Result
from tests.soak.storm import REPOSITORY, Processes, Storm, stores

CLIENTS = 3
REAPERS = 2
SETTLE_SECONDS = (
    SAFETY.scrub_after_seconds + SAFETY.grace_seconds + SAFETY.issue_seconds / 2 + REAPER.scrub_every_seconds
)

PROCESSED_SECONDS = 90.0
"""How long that may take; the audit says what is left then."""


def run(
    arrangement: str,
    seconds: float = SECONDS,
    *,
    through_gateway: bool = False,
    break_it: Callable[[Lake], None] | None = None,
) -> Result:
    """`break_it`: plants a fault when all has settled, for the test that the audit can fail."""
    clients = [f"c{number}" for number in range(CLIENTS)]
    with tempfile.TemporaryDirectory(prefix="refstore-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        found = stack.enter_context(stores(arrangement, folder, SEED))
        env = environment({"kv": found.kv, "objects": found.objects}) | s3_environment()
        processes = Processes(folder, env | {"REFSTORE_S3_SECRETS_KEY": SERVER_KEY})
        stack.callback(processes.end)
        with open_lake_at(found.kv, found.objects, safety=SAFETY) as lake:
            repo = lake.create_repository(REPOSITORY)
            for branch in (*clients, "shared", ledgers.COUNTED):
                repo.create_branch(branch, source="main")
            gateway = Gateway(folder, lake, REPOSITORY) if through_gateway else None
        reapers = [f"reaper{number}" for number in range(REAPERS)]
        storm = Storm(found, processes, random.Random(SEED), clients, reapers, gateway)
        through = " through the S3 gateway" if through_gateway else ""
        print(f"{arrangement}: {CLIENTS} clients{through}, {REAPERS} reapers, {seconds:.0f} s, seed {SEED}")
        storm.start_all()
        ended = storm.rage(seconds)
        if ended:
            return Result([ended], storm.counts)
        storm.calm()
        findings = settle(storm)
        told = ledgers.read([storm.ledger(client) for client in clients])
        with open_lake_at(found.kv, found.objects, safety=SAFETY) as lake:
            if break_it is not None:
                break_it(lake)
            result = Result(findings + find_faults(storm, lake, told), storm.counts, told.outcomes)
        result.count_outcomes()
        return result


def settle(storm: Storm) -> list[str]:
    """Give the reapers the time that their rules ask for, and end them. Return what went wrong with the last one."""
    print(f"the reapers get {SETTLE_SECONDS:.0f} s behind the last token that they process")
    with open_lake_at(storm.stores.kv, storm.stores.objects, safety=SAFETY) as lake:
        repo = lake.repository(REPOSITORY)
        wait_until(lambda: are_tokens_processed(repo))
        time.sleep(SETTLE_SECONDS)
        wait_until(lambda: not any(repo.context.uploads.scan()))
    for reaper in storm.reapers:
        storm.processes.kill(reaper, signal.SIGTERM)
    last = subprocess.run(
        [sys.executable, "-m", "refstore", "reaper", "--once", "--scrub"],
        env=storm.processes.environment,
        capture_output=True,
        check=False,
    )
    if last.returncode == 0:
        return []
    return [f"the last reaper ended with {last.returncode}: {last.stderr.decode()[-1500:]}"]


def find_faults(storm: Storm, lake: Lake, told: ledgers.Told) -> list[str]:
    """Compare what is left with what is named, and with what the clients were told."""
    repo = lake.repository(REPOSITORY)
    seen = audit_repository(repo, grace_seconds=SAFETY.grace_seconds)
    findings = [*seen.findings(), *told.corrupt]
    findings += [f"left on a live branch: {key.name}: {why}" for key, why in seen.unnamed]
    if not seen.lost:
        findings += ledgers.differences(repo, told)
        findings += ledgers.find_lost_increments(repo, told)
    if storm.gateway is not None:
        findings += find_uploads(repo, storm.stores.server)
        if not seen.lost:
            storm.processes.start(GATEWAY, *storm.gateway.arguments())
            findings += compare_reads(repo, storm.gateway)
    counts = storm.counts
    counts["blobs named"] = len(
        {item.entry.address for branch in repo.branches() for item in branch.list() if item.entry is not None}
    )
    counts["blobs in the store"] = sum(1 for _ in repo.context.objects.list("data/"))
    return findings


def wait_until(is_done: Callable[[], bool]) -> None:
    """On a busy machine the reapers, killed as they were, may still be starting; what they process then is young for as
    long again.
    """
    end = time.monotonic() + PROCESSED_SECONDS
    while not is_done() and time.monotonic() < end:
        time.sleep(0.5)


def are_tokens_processed(repo: Repository) -> bool:
    retired = any(branch.retired_tokens for _, branch in repo.context.branches.scan_open())
    return not retired and not measure(repo.context, limit=1).tokens
