"""Failovers and restored copies on real servers: nothing named is deleted, no witnessed loss is missed, and a planned
switch stops nothing for good.

The steps of each round go by its seed (`REFSTORE_FAILOVER_SEED`, and the next ones), and some of them may be lost. How
each round ends goes by the first seed: one loses a commit, one switches, the others lose something or switch.
`make test-all` runs 10 rounds of each arrangement, `make soak` 250, and that of `make test-release` 5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core.clock import SystemClock
from refstore.core.ids import Address
from refstore.core.safety import Safety, WitnessMode
from refstore.errors import Invalid, KVSettling, KVWentBack, RefstoreError
from refstore.kv_recovery import reconciliation
from refstore.kv_recovery.fence import WITNESSES_FOLDER
from refstore.kv_recovery.kv_verification import KvFindingKind, verify_kv
from refstore.lake import Lake
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.repository import Repository
from refstore.service import access_keys
from refstore.versioning.manifest import WAITING_FOLDER
from refstore_reaper.daemon import Reaper
from tests.durations import unchecked_lake
from tests.servers.losing_kvs import (
    LosingCluster,
    LosingKV,
    LosingPostgresDump,
    LosingPostgresStandby,
    LosingRedis,
    LosingSentinels,
    LosingSqlite,
)

SEED = int(os.environ.get("REFSTORE_FAILOVER_SEED", "1"))
ROUNDS = int(os.environ.get("REFSTORE_FAILOVER_ROUNDS", "10"))
SAFETY = Safety(grace_seconds=0)
SETTINGS = ReaperSettings(pause_seconds=0.01, breaker_share=1.0, breaker_per_hour=0)
PATHS = ("a", "b", "c", "d")
STEPS = ("upload", "upload", "upload", "copy", "delete", "commit", "commit", "reset", "reap", "branch", "restore")
WITNESSED_STEPS = ("upload", "link", "link", "link", "delete", "commit", "reset", "reap", "branch", "restore lost")
"""With `safety.witness = "always"`. An address gets no second name: see `docs/decisions/0131`."""


End = Literal["switch", "loss", "loss of a commit"]
"""How a round ends. Whether a plain loss takes anything that is witnessed depends on which shard it strikes."""


class ShiftedClock(SystemClock):
    """The system's clock, some time ahead: so nobody waits for hours."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_seconds = 0

    def advance(self, seconds: float) -> None:
        self._ahead_seconds += int(seconds) + 1

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_seconds * 1000

    def monotonic_seconds(self) -> float:
        return super().monotonic_seconds() + self._ahead_seconds


class Rounds:
    """One lake on a KV that loses writes, and what was acknowledged."""

    def __init__(self, kv: LosingKV, folder: Path, *, one_server: bool, witness: WitnessMode = "commits") -> None:
        self._kv = kv
        self._safety = replace(SAFETY, witness=witness)
        self._step_names = STEPS if witness == "commits" else WITNESSED_STEPS
        self._url = f"file://{folder}/objects?fsync=0"
        self._one_server = one_server
        self._clock = ShiftedClock()
        self._committed: dict[str, set[Address]] = {}
        """What each acknowledged commit names."""
        self._addresses: list[Address] = []
        self._missing: set[str] = set()
        """What the KV may name again after a witnessed loss, and was deleted before."""
        self.noticed = 0
        with self._lake() as lake:
            lake.create_repository("sales", grace_seconds=0)

    def round(self, seed: int, end: End) -> None:
        random = Random(seed)  # a repeatable test, no secret
        self._steps(random, 10)
        if end == "switch":
            self._kv.switch()
            must_notice = may_notice = False
        else:
            self._kv.mark()
            before = self._witnessed()
            self._steps(random, random.randrange(8))
            if end == "loss of a commit":
                self._commit_a_change(random)
            after = self._witnessed()
            self._kv.lose()
            must_notice = after[0] != before[0] or (self._one_server and bool(after[1] - before[1]))
            may_notice = must_notice or bool(after[1] - before[1])
            if after[0] != before[0]:
                self._missing |= set(self._addresses) - self._stored()
        stored = self._stored()
        missing = self._live() - stored - self._missing
        assert not missing, f"seed {seed}: named and gone, and nobody can notice: {missing}"
        codes = self._reap()
        if KVSettling.code in codes:
            self._clock.advance(SAFETY.scrub_after_seconds)
            codes = self._reap()
        assert KVSettling.code not in codes, f"seed {seed}"
        if must_notice:
            assert KVWentBack.code in codes, f"seed {seed}: a witnessed loss was not noticed"
        if not may_notice:
            assert KVWentBack.code not in codes, f"seed {seed}: a false alarm"
        if KVWentBack.code in codes:
            self.noticed += 1
            assert self._stored() == stored, f"seed {seed}: deleted although the KV went back"
            self._accept()
        self._clock.advance(SAFETY.scrub_after_seconds)
        assert not self._reap(), f"seed {seed}: the reaper does not go on"
        there = self._stored() | self._missing
        for commit, addresses in self._committed.items():
            assert addresses <= there, f"seed {seed}: commit {commit} lost {addresses - there}"
        assert self._live() <= there, f"seed {seed}: {self._live() - there}"

    def _steps(self, random: Random, count: int) -> None:
        with self._lake() as lake:
            repo = lake.repository("sales")
            for _ in range(count):
                try:
                    self._step(lake, repo, random)
                except (KVWentBack, Invalid):
                    raise
                except RefstoreError:
                    continue  # nothing to commit, no such path or branch

    def _commit_a_change(self, random: Random) -> None:
        with self._lake() as lake:
            repo = lake.repository("sales")
            self._addresses.append(repo.upload("main", "a", random.randbytes(8)).address)
            self._commit(repo, "main")

    def _commit(self, repo: Repository, branch: str) -> None:
        commit = repo.commit(branch, "one more").id
        self._committed[commit] = {entry.address for _, entry in repo.list(commit)}

    def _step(self, lake: Lake, repo: Repository, random: Random) -> None:
        branch, path = random.choice(("main", "dev")), random.choice(PATHS)
        match random.choice(self._step_names):
            case "upload":
                self._addresses.append(repo.upload(branch, path, random.randbytes(8)).address)
            case "copy":
                source = random.choice(("main", "dev")), random.choice(PATHS)
                if source != (branch, path):
                    repo.copy(*source, to_branch=branch, to_path=path)
            case "delete":
                repo.delete(branch, path)
            case "commit":
                self._commit(repo, branch)
            case "reset":
                repo.reset(branch)
            case "branch":
                repo.create_branch("dev", source="main")
            case "link":
                issued = repo.issue(branch, path)
                repo.context.objects.put(issued.address, random.randbytes(8))
                self._addresses.append(repo.link(branch, path, issued.token).address)
            case "restore lost" if lost := sorted(self._stored_in(repo) - self._live_in(repo)):
                repo.restore(random.choice(lost), to=branch, path=path, force=True)
            case "restore" if self._addresses:
                repo.restore(random.choice(self._addresses), to=branch, path=path, force=True)
            case _:
                self._reap_in(lake)

    def _reap(self) -> set[str]:
        with self._lake() as lake:
            return self._reap_in(lake)

    def _reap_in(self, lake: Lake) -> set[str]:
        """Run a reaper until nothing is due, and return the codes of its errors."""
        with Reaper(lake, SETTINGS, scrub_now=True, asynchronous=False) as reaper:
            done = reaper.run_once(lambda: False)
        return {error.code for error in done.errors}

    def _accept(self) -> None:
        """Do what an operator does: `refstore kv reconcile`, then with `--accept`. No acknowledged commit is lost."""
        with self._lake() as lake:
            reconciliation.restore_lost_records(lake)
            reconciliation.settle_lake(lake, accept=True, clients_stopped=True)
            for commit in self._committed:
                lake.repository("sales").get_commit(commit)

    def _witnessed(self) -> tuple[set[bytes], set[str]]:
        """Return what a loss must not take unnoticed: the witnesses, and the entries of what was made."""
        with self._lake() as lake:
            store = lake.own_store
            witnesses = {store.read(info.key) for info in store.list(WITNESSES_FOLDER)}
            waiting = {info.key for info in lake.repository("sales").context.objects.list(WAITING_FOLDER)}
        return witnesses, {key for key in waiting if "-deleted" not in key and "-removed" not in key}

    def _live(self) -> set[str]:
        """Return what the entries of live tokens name."""
        with self._lake() as lake:
            return self._live_in(lake.repository("sales"))

    def _live_in(self, repo: Repository) -> set[str]:
        ctx = repo.context
        values = [
            value
            for _, branch in ctx.branches.scan_open()
            for token in branch.live_tokens
            for _, value in ctx.kv.scan_all(f"{ctx.repo}/staging/{token}")
        ]
        return {record.address for record in decode_staged_many(values) if isinstance(record, StoredEntry)}

    def _stored(self) -> set[str]:
        with self._lake() as lake:
            return self._stored_in(lake.repository("sales"))

    def _stored_in(self, repo: Repository) -> set[str]:
        return {info.key for info in repo.context.objects.list("data/")}

    @contextmanager
    def _lake(self) -> Iterator[Lake]:
        lake = unchecked_lake(self._kv.url, self._url, safety=self._safety, clock=self._clock)
        try:
            yield lake
        finally:
            lake.close()


ARRANGEMENTS: dict[str, Callable[[Path, Random], LosingKV]] = {
    "sqlite": lambda folder, _: LosingSqlite(folder),
    "redis": lambda folder, _: LosingRedis(folder),
    "sentinel": lambda folder, _: LosingSentinels(folder),
    "cluster": LosingCluster,
    "postgres standby": lambda _folder, _: LosingPostgresStandby(),
    "postgres dump": lambda _folder, _: LosingPostgresDump(),
}


@pytest.mark.parametrize(
    ("arrangement", "witness"),
    [*((name, "commits") for name in ARRANGEMENTS), ("sqlite", "always"), ("redis", "always")],
)
def test_rounds_of_losses_and_switches(arrangement: str, witness: WitnessMode, tmp_path: Path) -> None:
    random = Random(SEED)  # a repeatable test, no secret
    ends: list[End] = ["loss of a commit", "switch"]
    ends += random.choices(("loss", "switch"), weights=(7, 3), k=ROUNDS - len(ends))
    random.shuffle(ends)
    kv = ARRANGEMENTS[arrangement](tmp_path / "kv", random)
    try:
        rounds = Rounds(kv, tmp_path, one_server=arrangement != "cluster", witness=witness)
        for seed, end in enumerate(ends, SEED):
            rounds.round(seed, end)
    finally:
        kv.close()
    assert rounds.noticed > 0


@pytest.mark.parametrize("arrangement", ["sqlite", "redis"])
def test_a_failover_brings_no_revoked_key_back(arrangement: str, tmp_path: Path) -> None:
    """A copy of the KV is put back; the reaper's first pass revokes, and `reconcile` puts the hold back."""
    kv = ARRANGEMENTS[arrangement](tmp_path / "kv", Random(SEED))  # a repeatable test, no secret
    clock = ShiftedClock()

    def open_lake() -> Lake:
        return unchecked_lake(kv.url, f"file://{tmp_path}/objects?fsync=0", safety=SAFETY, clock=clock)

    def reap(lake: Lake) -> set[str]:
        with Reaper(lake, SETTINGS, asynchronous=False) as reaper:
            return {error.code for error in reaper.run_once(lambda: False).errors}

    try:
        with open_lake() as lake:
            lake.create_repository("sales", grace_seconds=0)
            reap(lake)
            access_keys.create_key(lake, access_keys.Role.OPERATOR, id="key")
        kv.mark()
        with open_lake() as lake:
            access_keys.revoke_key(lake, "key")
            lake.repository("sales").set_retention('{"legal_holds": [{"prefix": "a/"}]}')
        kv.lose()
        with open_lake() as lake:
            assert access_keys.find_key(lake.kv, "key") is not None
            assert reap(lake) == {KVSettling.code}
            assert access_keys.find_key(lake.kv, "key") is None
            older = verify_kv(lake).of_kind(KvFindingKind.SUPERSEDED)
            assert [item.name.split(" sales")[0] for item in older] == ["retention rules"]
            reconciliation.restore_lost_records(lake)
            reconciliation.settle_lake(lake, accept=False, clients_stopped=True)
            own = lake.repository("sales").retention()
            assert own is not None
            assert [hold.prefix for hold in own.rules.legal_holds] == ["a/"]
            assert not verify_kv(lake).has_losses
            assert reap(lake) == set()
    finally:
        kv.close()
