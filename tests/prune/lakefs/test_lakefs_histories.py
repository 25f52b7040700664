"""Random histories of a lakeFS repository: uploads, commits, merges, branches, links, restores, between runs and while
a run reads names. What is named stays, and what is garbage goes when it is due.
"""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random

import pytest

import refstore_prune
from refstore.objects import open_objects
from refstore.objects.base import SkippedKeys
from refstore_prune import PruneReport
from refstore_prune.state import last_mark, read_unit
from tests.kit.clock import FakeClock
from tests.prune.clocks import FolderInTime, moving_clock
from tests.prune.folders import stored_keys
from tests.prune.lakefs.lakefs_server import DAY, Answer, Entry, Lakefs, Repository, serve
from tests.prune.plain_model import Marked, Model, ModelRun, Rules, Stored

HISTORIES = int(os.environ.get("REFSTORE_PRUNE_HISTORIES", "0"))
FIRST_SEED = int(os.environ.get("REFSTORE_PRUNE_SEED", "0"))
PATHS = [f"{folder}/{name}" for folder in "abc" for name in range(4)]
NAMESPACE = "sales/"
DAY_MS = DAY * 1000
numbers = count()


class LakefsHistory:
    def __init__(self, rng: Random, clock: FakeClock, folder: Path) -> None:
        self.rng, self.clock, self.folder = rng, clock, folder
        self.url, self.state = f"file://{folder}", f"memory://lakefs-state-{next(numbers)}"
        self.store = FolderInTime(folder, clock)
        self.repo = Repository("sales", self.store, "local://sales", NAMESPACE, now=clock.now_ms() // 1000)
        self.server = Lakefs(self.repo)
        self.server.change = self.answer
        self.model = Model()
        self.loose: list[str] = []
        """Addresses that are given out, and perhaps named."""
        self.between = 0.0
        self.is_reading = self.has_acted = False
        self.always: set[str] = set()
        self.ever: set[str] = set()
        self.at_risk: set[str] = set()
        self.gone_before: set[str] = set()
        """What runs deleted when it was garbage; longer rules may bring back the commits that named it."""

    # ---- what users do

    def act(self) -> None:
        acts = [
            self.upload, self.upload, self.upload, self.give_out, self.link, self.remove, self.commit, self.commit,
            self.branch, self.drop_branch, self.merge, self.restore, self.tag, self.wait,
        ]  # fmt: skip
        self.clock.advance(1)
        self.repo.now = self.clock.now_ms() // 1000
        self.rng.choice(acts)()
        if self.is_reading:
            self.has_acted = True
            self.look()

    def any_branch(self) -> str:
        return self.rng.choice(sorted(self.repo.branches))

    def upload(self) -> None:
        self.repo.upload(self.rng.choice(PATHS), self.rng.randbytes(3), branch=self.any_branch())

    def give_out(self) -> None:
        self.loose.append(self.repo.write_object(self.rng.randbytes(5)))

    def link(self) -> None:
        stored = stored_keys(self.folder)
        there = [address for address in self.loose if f"{NAMESPACE}{address}" in stored]
        if there:
            self.repo.stage(self.rng.choice(PATHS), Entry(self.rng.choice(there), size=5), branch=self.any_branch())

    def remove(self) -> None:
        self.repo.remove(self.rng.choice(PATHS), branch=self.any_branch())

    def commit(self) -> None:
        self.repo.commit(self.any_branch())

    def branch(self) -> None:
        self.repo.create_branch(f"b{self.rng.randrange(4)}x{len(self.repo.commits)}", self.any_branch())

    def drop_branch(self) -> None:
        others = sorted(self.repo.branches.keys() - {"main"})
        if others:
            self.repo.delete_branch(self.rng.choice(others))

    def merge(self) -> None:
        self.repo.merge(self.any_branch(), self.any_branch())

    def restore(self) -> None:
        """Make a branch at a commit whose objects are still there."""
        commits = [each for each in self.repo.commits if self.keys({each}) <= stored_keys(self.folder)]
        self.repo.create_branch(f"back{len(self.repo.branches)}", self.rng.choice(commits))

    def tag(self) -> None:
        self.repo.tags[f"t{self.rng.randrange(3)}"] = self.repo.branches[self.any_branch()].head

    def wait(self) -> None:
        if not self.is_reading:
            self.clock.advance(self.rng.choice([3600, DAY, 3 * DAY]))

    # ---- what is true

    def keys(self, commits: set[str]) -> set[str]:
        entries = (entry for commit in commits for entry in self.repo.commits[commit].entries.values())
        return {f"{NAMESPACE}{entry.address}" for entry in entries}

    def named(self) -> set[str]:
        repo = self.repo
        kept = None if repo.rules is None else repo.active_commits() | {*repo.tags.values()}
        return {f"{NAMESPACE}{address}" for address in repo.named(kept)}

    def list_data(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for page in self.store.list_pages(f"{NAMESPACE}data/", skipped=SkippedKeys()):
            found |= {key: Stored(self.store.read(key), at) for key, _, at, _ in zip(*page, strict=True)}
        return found

    def look(self) -> None:
        """See what is named now, while a run reads."""
        named = self.named()
        old = {key for key in named - self.ever if self.run_now.listed.get(key, None) is not None}
        self.at_risk |= {key for key in old if self.run_now.listed[key].mtime_ms <= self.clock.now_ms() - DAY_MS}
        self.always &= named
        self.ever |= named

    # ---- runs

    def answer(self, request: str, answer: Answer) -> Answer:
        """Go on while a run reads names: the requests that name something are behind the listing."""
        if request.startswith("POST") and not self.is_reading:
            self.is_reading = True
            self.run_now.list_store(self.clock.now_ms())
            self.always, self.ever = self.named(), self.named()
        if self.is_reading and self.rng.random() < self.between:
            for _ in range(self.rng.randrange(1, 4)):
                self.act()
        return answer

    def run(self) -> None:
        self.clock.advance(1)
        self.repo.now = self.clock.now_ms() // 1000
        self.model.objects = self.list_data()
        grace_ms = self.rng.choice([0, 0, 2 * DAY_MS])
        run = self.run_now = ModelRun(self.model, Rules(grace_ms=grace_ms, min_age_ms=DAY_MS), self.clock.now_ms())
        self.is_reading = self.has_acted = False
        report = refstore_prune.prune(
            self.url,
            ["lakefs:sales"],
            endpoint=self.server.url,
            engine="local",
            state=self.state,
            grace=timedelta(milliseconds=grace_ms),
            consent=["few-found", "fewer-names"],
        )
        self.is_reading = False
        left, now = stored_keys(self.folder), self.named()
        lost = now - left - self.gone_before
        assert lost <= self.at_risk
        assert not lost or self.has_acted
        self.check(run, report, {key for key in left if key.startswith(f"{NAMESPACE}data/")})
        for branch in self.repo.branches.values():
            branch.staged = {
                path: each for path, each in branch.staged.items() if each and f"{NAMESPACE}{each.address}" not in lost
            }
        self.at_risk.clear()

    def check(self, run: ModelRun, report: PruneReport, left: set[str]) -> None:
        """What was named all the time stays; what was named at no time goes when it is due."""
        gone = run.listed.keys() - left
        self.gone_before |= gone
        run.compare(self.ever, self.clock.now_ms())
        least, marked_least = {*run.due}, run.mark
        if not self.has_acted:
            assert report.verdicts["named"] == run.counts["named"]
            assert report.verdicts["unnamed"] == run.counts["unnamed"]
            assert (report.waiting, report.due) == (run.counts["waiting"], run.counts["due"])
            assert (report.newly_marked, report.named_again) == (run.counts["newly marked"], run.counts["named again"])
            assert report.outcomes == ({"deleted": run.counts["due"]} if run.due else {})
        run.compare(self.always, self.clock.now_ms())
        assert least <= gone <= {*run.due}
        assert sum(of.objects for of in report.outcomes.values()) == len(gone)
        files = open_objects(self.state)
        last = last_mark(files, self.url)
        assert last is not None
        times = last.manifest.marked_ms, last.manifest.stood_ms
        rows = [row for unit in last.manifest.units for row in read_unit(files, unit, times).to_pylist()]
        mark = {row["key"]: Marked(run.listed[row["key"]], row["marked_ms"]) for row in rows}
        assert marked_least.items() <= mark.items() <= run.mark.items()
        self.model.mark = mark


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 6 + HISTORIES))
def test_histories(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    folder = tmp_path / "blocks"
    folder.mkdir()
    with moving_clock() as clock:
        history = LakefsHistory(rng, clock, folder)
        history.repo.page_names = rng.choice([2, 1000])
        with serve(history.server):
            for _ in range(8):
                history.upload()
            history.between = rng.choice([0.0, 0.4])
            for _ in range(7):
                if rng.random() < 0.3:
                    history.repo.set_rules(rng.choice([1, 5]), main=rng.choice([1, 10]))
                for _ in range(rng.randrange(3, 14)):
                    history.act()
                history.run()
