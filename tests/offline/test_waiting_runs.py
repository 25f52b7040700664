"""What is said while a run waits: how long still, and that nothing is scheduled for deletion yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from refstore.cli import gc_job
from refstore.cli.gc_tables import run_row
from refstore.cli.rows import logged_row
from refstore.core.ids import CommitId
from refstore.core.step_progress import StepProgress
from refstore.deletion_history import explain
from refstore.errors import Gone
from refstore.gc_marks import Marks, MarkStatus, new_mark_id
from refstore.operations.refs import check_mark
from refstore.records import keys
from refstore.records.encoding import encode
from refstore_api.commit_responses import commit_model
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from tests.api.pages import pages_of
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

LATER = GcOptions(grace_days=7, min_age_seconds=0)

Looking = Callable[[Callable[[StepProgress], None]], None]


@pytest.fixture
def expired(world: World) -> CommitId:
    """The commit that has expired, and of which an object goes."""
    first = world.commit(days_ago=9, a=b"old")
    world.commit(days_ago=8, a=b"new")
    world.settle()
    return first


@pytest.fixture
def looking(world: World, engines: Engines) -> Looking:
    """Make a mark, and call a function each time that it reports its wait."""

    def mark(look: Callable[[StepProgress], None]) -> None:
        gc_run.mark(world.ctx, engines, LATER, lambda now: look(now) if now.wait is not None else None)

    return mark


def test_a_wait_counts_down_to_its_end(
    world: World,
    expired: CommitId,
    looking: Looking,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left: list[float] = []
    page = ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    with gc_job.show_progress() as terminal:

        def look(now: StepProgress) -> None:
            nonlocal page
            assert now.wait is not None
            left.append(now.wait.total_seconds())
            terminal(now)
            if len(left) == 100:
                (page,) = pages_of(world.lake, "/repositories/sales/runs")

        looking(look)
    assert left == sorted(left, reverse=True)
    assert left[0] > 3600 > left[-1] == 0
    shown = r"operations that began before the mark: (\d):(\d\d):(\d\d) left, until 20"
    told = re.search(shown, page)
    assert told is not None, page
    hours, minutes, seconds = map(int, told.groups())
    assert abs(hours * 3600 + minutes * 60 + seconds - left[99]) < 60
    err = capsys.readouterr().err
    assert re.search(shown, err), err
    assert "the wait is over" in err


def test_nothing_is_scheduled_for_deletion_before_its_mark_stands(
    world: World, expired: CommitId, looking: Looking
) -> None:
    """It may turn out complete, or the run may be stopped."""
    commit = f"/repositories/sales/commits/{expired}"
    seen: list[tuple[str, ...]] = []

    def states() -> tuple[str, ...]:
        (line,) = [line for line in world.repo.history("main") if line.commit.id == expired]
        (page,) = pages_of(world.lake, commit)
        last = run_row(Marks(world.ctx), list(Marks(world.ctx).runs.scan())[-1])
        naming = explain.explain_address(world.ctx, world.address(expired, "a"), commits=True).naming
        assert naming is not None
        return (
            line.lifetime.value,
            str(logged_row(line)["deletes_at"] is not None),
            str(last["sweep_from"] is not None),
            str("scheduled for deletion" in page),
            str(any(each.mark for each in naming.commits)),
            str(commit_model(world.repo, line.commit).deletes_at is not None),
        )

    def look(_now: StepProgress) -> None:
        if not seen:
            seen.append(states())
            with pytest.raises(Gone, match="has yet to find whether anything of it goes"):
                check_mark(world.ctx, expired)

    looking(look)
    assert seen == [("being examined", *["False"] * 5)]
    assert states() == ("marked", *["True"] * 5)


def test_a_run_that_was_abandoned_schedules_nothing(world: World, expired: CommitId) -> None:
    marks = Marks(world.ctx)
    begun = marks.mark_run.begin("", 0, [expired], new_mark_id(world.ctx))
    (before,) = marks.statuses.read([expired])
    assert before == MarkStatus(examining_run=begun.mark_id)
    (mark,) = marks.commits.read_marks([expired])
    assert mark is not None
    marks.mark_run.abandon(begun)
    world.lake.kv.set(keys.mark(world.ctx.repo, expired), encode(mark))  # it was marked late, after a take-over
    assert marks.statuses.read([expired]) == [MarkStatus()]


def test_the_end_of_a_wait_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with gc_job.show_progress() as tell:
        for seconds in (1, 0):
            tell(StepProgress("sales", "waiting", wait=timedelta(seconds=seconds)))
    assert capsys.readouterr().err.count("the wait is over") == 1
