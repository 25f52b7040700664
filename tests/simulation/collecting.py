"""The offline job for the scenarios: the product's marks, and the plain collection of `tests.kit` around them.

A run waits at its barrier by sleeping; here that is a step that takes place while no operation that has begun is under
way. What a run carries from the mark to the sweep is what it wrote down, so these are two stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from refstore.context import Context
from refstore.core.clock import Clock
from refstore.core.ids import CommitId
from refstore.gc_marks import Marks
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.gc_marks.offline_runs import OfflineRuns
from refstore.records.mark_records import StoredMark
from tests.kit import collecting
from tests.kit.domain import Tools
from tests.kit.replay import Stage, Stores, Then
from tests.simulation.calls import Call

Part = tuple[CommitId, tuple[str, ...]]


@dataclass(slots=True)
class BarrierClock:
    """Goes on only while it sleeps, and then by as much as no operation outlives."""

    stores: Stores
    clock: Clock
    slept_seconds: float = 0.0

    def now_ms(self) -> int:
        return self.clock.now_ms() + int(self.slept_seconds * 1000 + 0.999)

    def monotonic_seconds(self) -> float:
        return self.slept_seconds

    def sleep(self, seconds: float) -> None:
        self.stores.wait_for_others()
        self.slept_seconds += seconds


def collect(*expired: CommitId) -> Call:
    """Mark, and sweep at once."""
    return Call((Stage("mark", _mark, (expired, True)),), unbounded=True)


def collect_part(commit: CommitId, *prefixes: str) -> Call:
    """Of one commit what it names at paths that start so."""
    return Call((Stage("mark a part", _mark, ((), True, ((commit, prefixes),))),), unbounded=True)


def mark(*expired: CommitId) -> Call:
    """Mark only."""
    return Call((Stage("mark only", _mark, (expired, False)),), unbounded=True)


def go_on(mark_id: str) -> Call:
    """A run that began before the scenario goes on from behind its marks."""
    return Call((Stage(f"go on with {mark_id}", _go_on, (mark_id,)),), unbounded=True)


def mark_late(mark_id: str, commit: CommitId) -> Call:
    """A run that began before the scenario writes one more mark, whatever became of it."""
    return Call((Stage(f"mark late by {mark_id}", _mark_late, (mark_id, commit)),), unbounded=True)


def drop_late_pins() -> Call:
    """What a run does when it begins, by one that began before the scenario and was slow."""
    return Call((Stage("drop late pins", lambda tools: OfflineRuns(tools.ctx).drop_late_pins()),), unbounded=True)


def collect_given_up() -> Call:
    """Of commits that never landed."""
    return Call((Stage("mark what was given up", _mark_given_up),), unbounded=True)


def sweep(mark_id: str, *candidates: str) -> Call:
    """Of what was marked before the scenario."""
    return Call((Stage(f"sweep {mark_id}", _sweep, (mark_id, candidates)),), unbounded=True)


def unmark_untouched_and_sweep(mark_id: str, *candidates: str) -> Call:
    """The same, with what a sweep does before it begins."""
    return Call((Stage(f"unmark and sweep {mark_id}", _unmark_untouched, (mark_id, candidates)),), unbounded=True)


def _unmark_untouched(tools: Tools, mark_id: str, candidates: tuple[str, ...]) -> Then:
    collecting.unmark_untouched(_waiting(tools), mark_id, candidates)
    return Then((Stage("sweep", _sweep, (mark_id, candidates)),))


def _mark(
    tools: Tools, expired: tuple[CommitId, ...], sweeps: bool, partly: tuple[Part, ...] = ()
) -> Then:  # arguments are positional
    run, found = collecting.mark(_waiting(tools), expired, partly=partly, folders=(collecting.DATA,))
    return Then((Stage("sweep", _sweep, (run.mark_id, tuple(sorted(found.data)))),) if sweeps else ())


def _go_on(tools: Tools, mark_id: str) -> Then:
    ctx = _waiting(tools)
    marks = Marks(ctx)
    run = marks.runs.get(mark_id)
    marks.mark_run.wait(run)
    found = collecting.may_go(ctx, run, folders=(collecting.DATA,))
    marks.mark_run.unmark_nothing_to_delete(run, collecting.complete(ctx, run, found.data))
    marks.mark_run.finish(run, {})
    return Then((Stage("sweep", _sweep, (mark_id, tuple(sorted(found.data)))),))


def _mark_late(tools: Tools, mark_id: str, commit: CommitId) -> None:
    CommitMarks(tools.ctx).mark_commits(
        {commit: StoredMark(tools.ctx.clock.now_ms(), tools.ctx.clock.now_ms(), mark_id)}
    )


def _mark_given_up(tools: Tools) -> Then:
    def given_up() -> Iterator[CommitId]:
        yield from Marks(tools.ctx).commits.given_up()

    return _mark(tools, tuple(given_up()), True)


def _sweep(tools: Tools, mark_id: str, candidates: tuple[str, ...]) -> None:
    collecting.sweep(_waiting(tools), mark_id, candidates)


def _waiting(tools: Tools) -> Context:
    return replace(tools.ctx, clock=BarrierClock(tools.stores, tools.stores.clock))
