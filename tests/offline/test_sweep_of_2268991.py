"""The offline job goes on where commit 2268991 stopped: a waiting mark, a run that died, a drained repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.core import keys
from refstore.gc_marks import Marks, RunState
from refstore_gc import deleted_repositories, run
from refstore_gc.run import Options
from tests.lakes_of_2268991 import DAY, OldLake, open_old_lake, read_listing

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.server)])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldLake]:
    with open_old_lake(request.param, tmp_path) as lake:
        yield lake


def test_the_mark_that_waits_is_swept_and_all_else_stays(old: OldLake, engines: Engines) -> None:
    repo = old.lake.repository("sales")
    fifth = next(name for name, commit in repo.log("main") if commit.message == "fifth")
    expired = repo.stat(fifth, "a.csv").address
    before = old.expected["repositories"]["sales"]["listings"]
    old.clock.advance(6 * DAY)
    old.reap()
    swept = run.sweep(repo.context, engines, old.notes["waiting_mark"]).swept
    assert swept is not None
    assert swept.failed == 0
    assert Marks(repo.context).run(old.notes["waiting_mark"]).state is RunState.SWEPT
    assert repo.address(expired).state.value == "gone"
    for ref in before:
        after = list(read_listing(repo, ref))
        assert [line for line in before[ref] if line[2][0] != expired] == [
            line for line in after if line[2][0] != expired
        ]
    assert old.audit("sales").lost == []


def test_a_new_run_takes_over_and_leaves_nothing_over(old: OldLake, engines: Engines) -> None:
    old.clock.advance(6 * DAY)
    for name in ("sales", "stuck"):
        ctx = old.lake.repository(name).context
        old.reap()
        marked = run.mark(ctx, engines, Options())
        old.clock.advance(8 * DAY)
        for each in list(Marks(ctx).runs()):
            if each.state is RunState.MARKED:
                run.sweep(ctx, engines, each.mark_id)
        assert Marks(ctx).run(marked.mark_id).state is RunState.SWEPT
        old.reap()
        found = old.audit(name)
        assert [*found.lost, *found.leaked, *found.unreadable] == []
    stuck = old.lake.repository("stuck")
    assert Marks(stuck.context).run(old.notes["died_mark"]).state is RunState.ABANDONED
    assert stuck.read("side", "copied.csv") == b"pinned by a copy"


def test_a_drained_repository_is_cleared_and_its_namespace_is_free(old: OldLake, engines: Engines) -> None:
    (repo, record), *others = list(deleted_repositories.closed(old.lake))
    assert (repo.partition(".")[0], others) == ("archive", [])
    objects = old.lake.context(old.lake.repository("sales").name, record).objects
    assert list(objects.list())
    cleared = deleted_repositories.clear(old.lake, repo, record, engines, Options())
    assert cleared.forgotten
    assert list(objects.list()) == []
    assert list(old.lake.kv.scan_all(keys.CLOSED_REPOSITORIES)) == []
