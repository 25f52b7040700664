"""A night of the offline job, without Spark, on every KV: two marks that share data, a pinned move, an unmark, two
sweeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.errors import Gone
from refstore.gc_marks import Marks, RunState
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.operations.log_and_diff import CommitLifetime
from refstore.records import keys
from tests.kit import collecting
from tests.kit.clock import FakeClock
from tests.kit.independent_audit import audit_repository
from tests.reaping import release_all

LATER_MS = 1_900_000_000_000


@pytest.fixture(params=["sqlite", "redis_url", "valkey_url", "redis_cluster_url", "postgres_url"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    clock = FakeClock(LATER_MS)
    url = f"sqlite:///{tmp_path}/kv.db" if request.param == "sqlite" else request.getfixturevalue(request.param)
    with Lake(open_kv(url, clock=clock), f"file://{tmp_path}/objects", clock=clock) as opened:
        yield opened


def test_a_night(lake: Lake) -> None:
    repo = lake.create_repository("night")
    ctx, marks = repo.context, Marks(repo.context)
    repo.upload("main", "shared", b"1")
    repo.upload("main", "only-first", b"2")
    repo.upload("main", "nowhere-else", b"4")
    first = repo.commit("main", "first").id
    repo.delete_many("main", ["only-first", "nowhere-else"])
    second = repo.commit("main", "second").id
    repo.delete("main", "shared")
    repo.upload("main", "now", b"3")
    repo.commit("main", "third")
    repo.copy(first, "only-first", to_branch="main", to_path="kept")
    release_all(repo)

    monday, of_monday = collecting.mark(ctx, [first])
    own = repo.stat(first, "nowhere-else").address
    assert list(of_monday.data) == [own], "the second commit names one of the others, the copy the other one"
    run = marks.mark_run.begin("", 0, [second], "tuesday")
    moved = repo.move("main", "kept", to_path="moved")
    marks.mark_run.wait(run)
    of_tuesday = collecting.may_go(ctx, run)
    assert [name for name, _ in ctx.kv.scan_all(keys.gc_pins(ctx.repo))] == [f"tuesday/{moved.address}"]
    marks.mark_run.finish(run, {})
    assert [name for name, _ in ctx.kv.scan_all(keys.gc_pins(ctx.repo))] == []
    assert {*of_tuesday.data} == {repo.stat(first, "shared").address, own}

    assert collecting.sweep(ctx, "tuesday", of_tuesday.data).deleted_keys == (), (
        "what Monday marked can still be unmarked"
    )
    assert repo.unmark(first).unmarked_commits == 1
    assert repo.read(first, "shared") == b"1"

    wednesday, of_wednesday = collecting.mark(ctx, [first])
    assert collecting.sweep(ctx, wednesday.mark_id, of_wednesday.data).deleted_keys == tuple(of_tuesday.data)
    collecting.sweep(ctx, monday.mark_id, of_monday.data)
    assert {each.state for each in marks.runs.scan()} == {RunState.SWEPT}
    assert [line.lifetime for line in repo.history("main")] == [
        CommitLifetime.ACTIVE,
        CommitLifetime.SWEPT,
        CommitLifetime.SWEPT,
        CommitLifetime.ACTIVE,
    ]
    with pytest.raises(Gone, match="by mark"):
        repo.read(second, "shared")
    assert repo.read("main", "moved") == b"2"
    found = audit_repository(repo)
    assert found.ok, found.findings()
