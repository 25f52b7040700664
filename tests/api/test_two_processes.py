"""Two services over one Redis and one S3, each with its reaper, and clients that talk to both; one is killed in the
middle.

The clients are the soak's, told over HTTP: each operation is in a ledger before it is made and when its answer is
known. Afterwards nothing named is gone, nothing unnamed is left, and on a client's own branch is what it was told.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

import pytest

from refstore.core.clock import SystemClock
from refstore.lake import Lake, open_lake_at
from refstore.repository import Repository
from refstore_reaper.daemon import Reaper
from tests.api.conftest import Running, serving
from tests.api.remote import Remote
from tests.kit import short_durations
from tests.kit.independent_audit import Audit, audit
from tests.kit.short_durations import REAPER, SAFETY
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.soak import ledgers
from tests.soak.client import Client
from tests.soak.ledgers import Told

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("two-processes")]

CLIENTS = 4
OPERATIONS_EACH = 110
KILLED_AFTER = 60
"""Operations of the first client."""
SEED = int(os.environ.get("REFSTORE_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**9)
LATER_SECONDS = 3600
"""More than any grace window, lease, issued address or operation of the run."""
ROUNDS = 4
"""What a pass releases waits for its grace window, what it deletes leaves a token that must grow old, and so on."""


class Later:
    """The system's clock, put forward."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.ahead_seconds = 0

    def now_ms(self) -> int:
        return self._system.now_ms() + self.ahead_seconds * 1000

    def monotonic_seconds(self) -> float:
        return self._system.monotonic_seconds()

    def sleep(self, seconds: float) -> None:
        self._system.sleep(seconds)


class Aftermath(NamedTuple):
    lake: Lake
    repo: Repository
    told: Told
    answers: dict[str, int]
    logs: str

    def audit(self) -> Audit:
        ctx = self.repo.context
        return audit(ctx.kv, ctx.objects, ctx.repo, now_ms=self.lake.clock.now_ms(), grace_seconds=SAFETY.grace_seconds)


class Bounded(Client):
    """A client that stops after so many operations, and kills a service on its way if it is told to."""

    def __init__(self, remote: Remote, name: str, seed: int, ledger: int, victim: Running | None) -> None:
        super().__init__(cast("Repository", remote), name, seed, ledger)
        self.victim = victim

    def told(self, **fields: object) -> None:
        if fields["state"] == "try":
            if self.count > OPERATIONS_EACH:
                raise Enough
            if self.count == KILLED_AFTER and self.victim is not None:
                self.victim.process.kill()
                self.victim.process.wait()
        super().told(**fields)


class Enough(Exception):
    """The client has done what it was to do."""


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory, real_s3: S3Server) -> Iterator[Aftermath]:
    print(f"REFSTORE_CHAOS_SEED={SEED}")
    folder = tmp_path_factory.mktemp("two")
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder / "redis", fsync="no"))
        kv, objects = redis.url, real_s3.url()
        of = short_durations.environment({"kv": kv, "objects": objects})
        with contextlib.ExitStack() as running:
            services = [
                running.enter_context(serving(folder / name, kv, objects, environment=of)) for name in ("a", "b")
            ]
            https = [running.enter_context(service.http()) for service in services]
            https[0].post("/repositories", json={"name": "both", "storage_namespace": ""}).raise_for_status()
            names = [f"c{number}" for number in range(CLIENTS)]
            for name in (*names, "shared"):
                https[0].post("/repositories/both/branches", json={"name": name, "source": "main"}).raise_for_status()

            def work(number: int) -> int:
                remote = Remote(https, "both", SEED + number)
                ledger = os.open(folder / f"{names[number]}.ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    with contextlib.suppress(Enough):
                        Bounded(
                            remote, names[number], SEED + number, ledger, services[1] if number == 0 else None
                        ).run()
                finally:
                    os.close(ledger)
                    remote.pool.shutdown()
                return remote.answers

            with ThreadPoolExecutor(CLIENTS) as clients:
                answers = dict(zip(names, clients.map(work, range(CLIENTS)), strict=True))
        logs = "".join(service.log.read_text() for service in services)
        told = ledgers.read([folder / f"{name}.ledger" for name in names])
        clock = Later()
        with open_lake_at(kv, objects, safety=SAFETY, clock=clock) as lake:
            for _ in range(ROUNDS):
                clock.ahead_seconds += LATER_SECONDS
                with Reaper(lake, REAPER, scrub_now=True, asynchronous=False) as reaper:
                    reaper.run_once(lambda: False)
            yield Aftermath(lake, lake.repository("both"), told, answers, logs)


def test_nothing_named_is_gone_and_nothing_unnamed_is_left(aftermath: Aftermath) -> None:
    found = aftermath.audit()
    assert found.findings() == []
    assert found.objects > 0


def test_what_was_acknowledged_is_there(aftermath: Aftermath) -> None:
    assert ledgers.differences(aftermath.repo, aftermath.told) == []
    assert aftermath.told.corrupt == []


def test_every_client_was_answered_to_its_end_though_a_service_died(aftermath: Aftermath) -> None:
    assert len(aftermath.answers) == CLIENTS
    outcomes = aftermath.told.outcomes
    assert sum(outcomes.values()) == CLIENTS * OPERATIONS_EACH
    assert sum(count for (_, outcome), count in outcomes.items() if outcome == "ok") > CLIENTS * OPERATIONS_EACH / 3
    assert not {outcome for _, outcome in outcomes} & {"internal", "refstore"}
    assert "request_crashed" not in aftermath.logs


def test_a_blob_that_is_taken_away_by_hand_is_found(aftermath: Aftermath) -> None:
    """The audit of this run can fail."""
    repo = aftermath.repo
    taken = next(item.entry.address for branch in repo.branches() for item in branch.list() if item.entry is not None)
    body = b"".join(repo.context.objects.get(taken))
    repo.context.objects.delete_many([taken])
    try:
        assert any(finding.startswith(f"lost: {taken}") for finding in aftermath.audit().findings())
    finally:
        repo.context.objects.put(taken, body)
    assert aftermath.audit().findings() == []
