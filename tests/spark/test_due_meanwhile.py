"""A mark that may be swept from the moment on in which its sweep is asked for."""

from __future__ import annotations

from offline_gc import rechecking
from offline_gc.committed import Wanted
from refstore.marks import Marks, Run, State, new_mark_id
from tests.spark.world import World

HELD = '{"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "case/", "reason": "a case"}]}'


class ConfirmedMeanwhile(Marks):
    """An operator says yes between the sweep's first look at the mark and its second."""

    def run(self, mark_id: str) -> Run:
        found = super().run(mark_id)
        if found.state is State.ASKING:
            self.confirm(mark_id, "an operator")
        return found


def test_what_was_held_since_stays_though_the_mark_was_confirmed_a_moment_ago(world: World) -> None:
    old = world.commit(case__file=b"evidence", days_ago=3)
    world.commit(case__file=None)
    marks = Marks(world.ctx)
    run = marks.begin("digest", 0, [old], new_mark_id(world.ctx))
    marks.finish_marking(run, {}, question="so much?")
    world.repo.set_retention(HELD)
    marks = ConfirmedMeanwhile(world.ctx)
    begun = rechecking.begin(world.ctx, marks, run.mark_id)
    assert begun.run.state is State.SWEEPING
    wanted = Wanted()
    for commit, record in marks.dropped_out(begun.run):
        wanted.add(commit, record, None)
    rechecking.keep(marks, begun, wanted)
    assert old in set(wanted.commits()), "a legal hold keeps what it names"
