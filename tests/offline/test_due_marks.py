"""A mark that may be swept from the moment on in which its sweep is asked for."""

from __future__ import annotations

from refstore.context import Context
from refstore.gc_marks import Marks, OfflineRun, RunState, new_mark_id
from refstore.gc_marks.offline_runs import OfflineRuns
from refstore_gc import sweep
from refstore_gc.live_in_commits import LiveCommits
from tests.offline.world import World

HELD = '{"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "case/", "reason": "a case"}]}'


class ConfirmedMeanwhile(OfflineRuns):
    """An operator says yes between the sweep's first look at the mark and its second."""

    def __init__(self, marks: Marks, ctx: Context) -> None:
        super().__init__(ctx)
        self._marks = marks

    def get(self, mark_id: str) -> OfflineRun:
        found = super().get(mark_id)
        if found.state is RunState.NEEDS_CONFIRMATION:
            self._marks.decisions.confirm(mark_id, "an operator")
        return found


def test_what_was_held_since_stays_though_the_mark_was_confirmed_a_moment_ago(world: World) -> None:
    old = world.commit(case__file=b"evidence", days_ago=3)
    world.commit(case__file=None)
    marks = Marks(world.ctx)
    run = marks.mark_run.begin("digest", 0, [old], new_mark_id(world.ctx))
    marks.mark_run.finish(run, {}, question="so much?")
    world.repo.set_retention(HELD)
    marks.runs = ConfirmedMeanwhile(marks, world.ctx)
    begun = sweep.begin_sweep(world.ctx, marks, run.mark_id)
    assert begun.run.state is RunState.SWEEPING
    wanted = LiveCommits()
    for commit, record in marks.sweeps.excluded_commits(begun.run):
        wanted.add(commit, record, None)
    sweep.exclude_kept_commits(marks, begun, wanted)
    assert old in set(wanted.commits()), "a legal hold keeps what it names"
