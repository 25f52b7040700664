"""A store, what its owner names in it, and runs: all of it changes at random, also while a run goes on. A plain model
says what must be there after each run, and what its report must say.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import refstore_prune
from refstore.core.step_progress import StepProgress
from refstore.errors import Conflict, PruneStopped, RunUnderWay
from refstore.objects.base import ObjectStore, SkippedKeys
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.run_summary import ObjectCount
from refstore_prune import PruneReport
from refstore_prune.checks import CONSENT_WORDS
from refstore_prune.prune_run import PruneOptions, run_prune
from refstore_prune.sources.base import NamePart, NameSource, SourceFacts
from refstore_prune.state import TAKE_OVER_SECONDS
from tests.engines import OneEngine
from tests.kit.clock import FakeClock
from tests.prune.given_names import read_part
from tests.prune.plain_model import Model, ModelRun, Rules, Stored

HOUR = 3_600_000
DAY = 24 * HOUR
FOLDERS = ["", "a/", "a b/", "a/b/", "caf\u00e9/", "tenants/0/warehouse/sales.db/transactions/year=2024/month=01/"]
KEYS = [f"{folder}{name}" for folder in FOLDERS for name in ("1", "2", "3", "_SUCCESS", "kept-x", "\u00fc")]
BEFORE_LISTING, BEHIND_LISTING, WHILE_READING, BEHIND_READING, BEFORE_DELETING = range(5)
"""When something else may come in between."""
STEPS = {
    "listing the store": BEFORE_LISTING,
    "reading the names and comparing": BEHIND_LISTING,
    "deleting what is due": BEFORE_DELETING,
}


class OwnersNames(NameSource):
    """The names that the owner has when they are read, in several batches."""

    text = "owner"
    min_age = timedelta(0)
    never_taken = ("_SUCCESS",)

    def __init__(self, history: History, as_of_ms: int) -> None:
        self._history = history
        self.as_of_ms = as_of_ms
        self.has_begun = False
        self.read: list[str] = []
        self.elsewhere = history.rng.randrange(3)

    def parts(self) -> Iterator[NamePart]:
        """What was named at the beginning is among them, and what is named later may be."""
        history, self.has_begun = self._history, True
        names = [*history.names]
        history.rng.shuffle(names)
        cut = history.rng.randrange(len(names) + 1)
        yield self._batch(names[:cut])
        history.come_in_between(WHILE_READING)
        late = [*names[cut:], *(history.rng.sample(sorted(history.names), len(history.names) // 2))]
        yield self._batch([*late, *(f"s3://elsewhere/{number}" for number in range(self.elsewhere))])

    def _batch(self, names: list[str]) -> NamePart:
        self.read += [name for name in names if "://" not in name]
        rng = self._history.rng
        spelled = [name if "://" in name else self._history.spell(name) for name in names]
        return partial(read_part, spelled) if rng.random() < 0.5 else pa.array(spelled, pa.string())

    def facts(self) -> SourceFacts:
        self._history.come_in_between(BEHIND_READING)
        return SourceFacts(source=self.text, began_ms=self._history.clock.now_ms(), as_of_ms=self.as_of_ms)


class History:
    """`write`: a store that writes the objects with the time of the clock. `state`: where runs have their files."""

    def __init__(self, rng: Random, clock: FakeClock, write: ObjectStore, url: str, state: str | None) -> None:
        self.rng, self.clock, self.write, self.url, self.state = rng, clock, write, url, state
        self.model = Model()
        self.names: set[str] = set()
        self.bodies: dict[str, bytes] = {}
        """What the owner has written, and may read as long as it is named."""
        self.at_risk: set[str] = set()
        """Old garbage that was named for the first time behind the reading of names: the one thing that is unsafe."""
        self.running: ModelRun | None = None
        self.stood: list[tuple[str, int]] = []
        """The id of each run that marked, and as of when."""
        self.between = 0.0
        """How likely it is that something comes in between."""
        self.is_dry = self.lost_lock = False
        self.source = OwnersNames(self, 0)
        self.log: list[str] = []

    def spell(self, name: str) -> str:
        return f"{self.url.partition('?')[0]}/{name}" if self.rng.random() < 0.3 else name

    # ---- what the owner does

    def act(self) -> None:
        acts = [
            self.upload, self.upload, self.upload, self.name, self.unname, self.unname, self.overwrite, self.overwrite,
            self.remove, self.wait,
        ]  # fmt: skip
        self.rng.choice(acts)()

    def put(self, key: str) -> None:
        self.clock.advance(0.001)
        body = self.rng.randbytes(self.rng.choice([3, 3, 5]))
        self.write.put(key, body)
        self.log.append(f"put {key}")
        for page in self.write.list_pages(key, skipped=SkippedKeys()):
            if page.keys[0] == key:
                self.model.objects[key] = Stored(body, page.mtimes_ms[0], page.etags[0])
        self.bodies[key] = body

    def upload(self) -> None:
        """Write an object, and perhaps name it."""
        free = [key for key in KEYS if key not in self.bodies]
        if free:
            key = self.rng.choice(free)
            self.put(key)
            if self.rng.random() < 0.5:
                self.add_name(key)

    def name(self) -> None:
        """Name an object that nothing names: young, or old garbage."""
        unnamed = sorted(self.bodies.keys() - self.names)
        if unnamed:
            self.add_name(self.rng.choice(unnamed))

    def add_name(self, key: str) -> None:
        run, stored = self.running, self.model.objects[key]
        if run is not None and self.source.has_begun and run.listed.get(key) == stored:
            is_young = stored.mtime_ms > self.clock.now_ms() - run.rules.min_age_ms
            self.at_risk |= set() if is_young else {key}
        self.log.append(f"name {key}")
        self.names.add(key)

    def unname(self) -> None:
        if self.names:
            self.names.discard(gone := self.rng.choice(sorted(self.names)))
            self.log.append(f"unname {gone}")
            self.at_risk.discard(gone)

    def unname_many(self) -> None:
        for _ in range(self.rng.randrange(len(self.names) + 1)):
            self.unname()

    def overwrite(self) -> None:
        """Write other content at a key, of the same size or of another one."""
        if self.bodies:
            self.put(self.rng.choice(sorted(self.bodies)))

    def remove(self) -> None:
        """Delete an object oneself."""
        unnamed = sorted(self.bodies.keys() - self.names)
        if unnamed:
            self.delete(self.rng.choice(unnamed))

    def delete(self, key: str) -> None:
        self.write.delete_many([key])
        self.log.append(f"remove {key}")
        del self.bodies[key], self.model.objects[key]

    def disturb(self) -> None:
        """Do something to an object that is marked."""
        keys = sorted(self.model.mark.keys() & self.bodies.keys() - self.names)
        if keys:
            self.rng.choice([self.put, self.delete, self.add_name])(self.rng.choice(keys))

    def wait(self) -> None:
        self.clock.advance(self.rng.choice([1, 3600, 7 * 3600, 3 * 86_400]))
        self.log.append("wait")

    # ---- runs

    def draw_rules(self) -> Rules:
        rng = self.rng
        return Rules(
            grace_ms=rng.choice([0, 0, 0, HOUR, 2 * DAY]),
            min_age_ms=rng.choice([0, 0, HOUR, DAY]),
            protect=rng.choice([(), (), (), (), ("*kept-*",), ("a/*", "*/2")]),
            never_taken=OwnersNames.never_taken,
            consent=rng.choice([CONSENT_WORDS, CONSENT_WORDS, ()]),
            floor_objects=rng.choice([1000, 3]) if self.state else 1000,
        )

    def call(self, rules: Rules, **options: Any) -> PruneReport:
        chosen = PruneOptions(
            grace=timedelta(milliseconds=rules.grace_ms),
            min_age=timedelta(milliseconds=rules.min_age_ms),
            state=self.state,
            protect=rules.protect,
            consent=rules.consent,
            floor_objects=rules.floor_objects,
            **options,
        )
        engines = OneEngine(LocalEngine(shared=SharedWork(0)))
        return run_prune(self.url, [self.source], chosen, engines, self.follow)

    def run(self, *, dry_run: bool = False, take_over: bool = False) -> None:
        """Make a run, and compare what it did and says with the model."""
        self.clock.advance(0.001)
        self.is_dry, self.lost_lock = dry_run, False
        now_ms = self.clock.now_ms()
        as_of_ms = now_ms - self.rng.randrange(2 * DAY) if self.rng.random() < 0.1 else 0
        self.source = OwnersNames(self, as_of_ms)
        run = self.running = ModelRun(self.model, self.draw_rules(), now_ms)
        self.log.append(f"run {run.rules} {dry_run=}")
        report, stopped_by = None, set[str]()
        try:
            report = self.call(run.rules, dry_run=dry_run, take_over=take_over)
        except PruneStopped as stopped:
            stopped_by = {*stopped.words}
        except Conflict:
            assert self.lost_lock
        if stopped_by:
            run.compare(self.source.read, self.clock.now_ms(), as_of_ms)
            assert run.check() == stopped_by
            assert dry_run or not self.lost_lock
        if report is not None:
            assert dry_run or not self.lost_lock
            if dry_run:
                run.compare(self.source.read, self.clock.now_ms(), as_of_ms)
            else:
                assert run.check() == set()
                self.stood.append((report.run_id, run.stood_ms))
            self.check_report(report, run)
        self.running = None
        self.check_store()

    def follow(self, progress: StepProgress) -> None:
        """Come in between the steps of a run."""
        run = self.running
        if run is None or progress.done_items or progress.total_items is not None:
            return
        stage = STEPS[progress.step]
        if stage == BEHIND_LISTING:
            run.list_store(self.clock.now_ms())
        elif stage == BEFORE_DELETING:
            run.compare(self.source.read, self.clock.now_ms(), self.source.as_of_ms)
            run.let_stand()
        self.come_in_between(stage)
        if stage == BEFORE_DELETING and not self.lost_lock:
            run.sweep(self.clock.now_ms())

    def come_in_between(self, stage: int) -> None:
        self.log.append(f"-- {stage}")
        if self.rng.random() < self.between:
            for _ in range(self.rng.randrange(1, 4)):
                self.rng.choice([self.act, self.disturb])()
            if self.rng.random() < 0.15:
                self.let_rival_run()

    def let_rival_run(self) -> None:
        """Another run begins while one is on: it is refused, or takes over."""
        run, source, is_dry, has_lost, between = self.running, self.source, self.is_dry, self.lost_lock, self.between
        assert run is not None
        self.between = 0.0
        self.clock.advance(0.001)
        holds = not is_dry and not has_lost and self.clock.now_ms() - run.began_ms < TAKE_OVER_SECONDS * 1000
        if not holds or self.rng.random() < 0.7:
            self.log.append("rival:")
            self.run(take_over=holds)
            has_lost = True
        else:
            self.running = None
            with pytest.raises(RunUnderWay):
                self.call(Rules())
            with pytest.raises(RunUnderWay):
                refstore_prune.unmark(self.url, "all", state=self.state)
        self.running, self.source, self.is_dry, self.lost_lock, self.between = run, source, is_dry, has_lost, between

    def unmark(self) -> None:
        if not self.stood:
            return
        self.clock.advance(0.001)
        run_id, marked_ms = self.rng.choice(self.stood)
        if self.rng.random() < 0.7:
            refstore_prune.unmark(self.url, run_id, state=self.state)
            self.model.unmark(marked_ms)
        else:
            refstore_prune.unmark(self.url, "all", state=self.state)
            self.model.unmark_all()
        self.log.append(f"unmark {run_id}")

    # ---- what must be true

    def check_report(self, report: PruneReport, run: ModelRun) -> None:
        counts = run.counts
        assert {verdict: report.verdicts.get(verdict, ObjectCount()) for verdict in run.of} == {
            verdict: counts[verdict] for verdict in run.of
        }
        assert report.waiting == counts["waiting"]
        assert report.due == counts["due"]
        assert report.newly_marked == counts["newly marked"]
        assert report.named_again == counts["named again"]
        assert report.outcomes == run.outcomes
        assert (report.names.names, report.names.found) == (run.names, counts["named"].objects)
        assert report.names.outside == self.source.elsewhere
        left = [each.marked_ms for key, each in run.mark.items() if key not in run.due]
        assert report.next_due_ms == (min(left) + run.rules.grace_ms if left else 0)
        assert sum(each.unnamed.objects for each in report.by_age) == counts["unnamed"].objects
        assert sum(each.unnamed.bytes for each in report.by_prefix) == counts["unnamed"].bytes
        if self.is_dry:
            assert report.state == "simulated"
        else:
            assert report.state == ("incomplete" if "failed" in run.outcomes else "done" if run.due else "marked")
            assert refstore_prune.report(self.url, state=self.state) == report

    def check_store(self) -> None:
        """What is named can be read, and the store has what the model says."""
        lost = {name for name in self.names if name not in self.model.objects}
        assert lost <= self.at_risk
        self.names -= lost
        self.at_risk.clear()
        found = {info.key: self.write.read(info.key) for info in self.write.list() if not is_own(info.key)}
        assert found == {key: stored.body for key, stored in self.model.objects.items()}
        self.bodies = {key: body for key, body in self.bodies.items() if key in found}
        assert found == self.bodies


def is_own(key: str) -> bool:
    return key.startswith("_refstore/")
