"""Marks: a run that dies, or whose KV loses requests and replies, ends where one ends that never did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from refstore.core.ids import CommitId
from refstore.core.safety import Safety
from refstore.errors import KVUnavailable
from refstore.gc_marks import Marks, RunState
from refstore.kv import open_kv
from refstore.kv.base import KV, SCAN_LIMIT, Op, Result, Server
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.records import keys
from refstore.repository import Repository
from tests.kit import collecting
from tests.kit.clock import FakeClock
from tests.kit.faults import Faults, FaultyKV
from tests.reaping import release_all

LATER_MS = 1_900_000_000_000
"""Later than any file's time, so that nothing is too young to go."""
QUICK = Safety(
    operation_deadline_seconds=20,
    io_timeout_seconds=5,
    clock_skew_seconds=5,
    recheck_after_seconds=5,
)
"""A run that waits for less than a minute does not beat."""


class TestCrashes:
    """A run dies before any one of its writes; the next one ends where a run ends that never died."""

    def test_at_every_write_of_a_mark_and_of_a_sweep(self, tmp_path: Path) -> None:
        died = 0
        wanted = self.lived(tmp_path / "whole", dies_at=None)
        while True:
            found = self.lived(tmp_path / str(died), dies_at=died)
            if found is None:
                break
            assert found == wanted, died
            died += 1
        assert died >= 10

    def lived(self, path: Path, *, dies_at: int | None) -> object:
        """What stands at the end; None if there are fewer writes than that."""
        clock = FakeClock(LATER_MS)
        dying = DyingKV(open_kv("memory:", clock=clock))
        with Lake(dying, f"file://{path}", clock=clock, safety=QUICK) as lake:
            repo = lake.create_repository("dying")
            repo.upload("main", "p", b"1")
            old = repo.commit("main", "first").id
            repo.upload("main", "p", b"2")
            repo.commit("main", "second")
            release_all(repo)
            dying.left = dies_at
            try:
                self.again(repo, old)
            except KVUnavailable:
                dying.left = None
                self.again(repo, old)
            else:
                if dies_at is not None:
                    return None
            ctx = repo.context
            return (
                [type(line.lifetime).__name__ + line.lifetime for line in repo.history("main")],
                sum(1 for _ in ctx.objects.list("data/")),
                [name for name, _ in ctx.kv.scan_all(f"{ctx.repo}/gc")],
                [name for name, _ in ctx.kv.scan_all(keys.gc_pins(ctx.repo))],
                len(list(repo.marks())),
            )

    def again(self, repo: Repository, old: CommitId) -> None:
        """What the job does the next night: it marks what is not marked, and sweeps what is due."""
        ctx = repo.context
        _, found = collecting.mark(ctx, [old])
        for run in list(Marks(ctx).runs.scan()):
            if run.state in (RunState.MARKED, RunState.SWEEPING):
                collecting.sweep(ctx, run.mark_id, found.data)

    def test_lost_requests_and_replies(self, tmp_path: Path) -> None:
        injected = 0
        for seed in range(30):
            clock = FakeClock(LATER_MS)
            whole = open_kv("memory:", clock=clock)
            Lake(whole, f"file://{tmp_path}/{seed}", clock=clock).create_repository("lossy")
            kv = FaultyKV(
                whole,
                Faults(request_lost=0.05, reply_lost=0.1),
                Random(seed),  # faults, not secrets
                clock,
            )
            with Lake(
                RetryingKV(kv, attempts=20, clock=clock), f"file://{tmp_path}/{seed}", clock=clock, safety=QUICK
            ) as lake:
                marks = Marks(lake.repository("lossy").context)
                commits = [CommitId(f"{number:064x}") for number in range(5)]
                run = marks.mark_run.begin("", 0, commits, "m-1")
                assert run.record.mark_counts["commits_marked"] == 5
                marks.mark_run.wait(run)
                list(marks.mark_run.scan_live(run))
                marks.mark_run.finish(run, {})
                marks.sweeps.begin("m-1")
                assert list(marks.sweeps.excluded_commits(marks.runs.get("m-1"))) == []
                marks.sweeps.finish("m-1", {})
                assert [bool(mark and mark.swept_ms) for mark in marks.commits.read_marks(commits)] == [True] * 5
            injected += kv.injected
        assert injected > 30


class DyingKV(KV):
    """Goes down for good after some writes: each run of writes counts, and the one it dies at is not performed."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self.left: int | None = None

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if any(type(op).__name__ != "Get" for op in ops):
            self._count()
        return self._kv.execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        return self._kv.scan(partition, prefix=prefix, after=after, limit=limit)

    def servers(self) -> list[Server]:
        return self._kv.servers()

    def close(self) -> None:
        self._kv.close()

    def _count(self) -> None:
        if self.left is not None:
            if self.left <= 0:
                raise KVUnavailable("it is down")
            self.left -= 1
