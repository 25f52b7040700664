"""The offline job over an S3 whose listings are as of an earlier time, and which answers 503 in the middle of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.gc_marks import Marks, RunState
from refstore.repository import Repository
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from tests.kit.independent_audit import Lost, audit
from tests.offline.test_s3 import NOW, data_of, lake_with_history, let_a_second_pass
from tests.offline.world import World
from tests.servers.s3_proxy import Fault, ProxiedRequest, Refuse, Reply, Rewrite, S3FaultProxy
from tests.servers.s3_servers import RcloneS3

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


class Stale:
    """A plan: writes down every page of a listing, then answers with these. The first time that each is asked for,
    503.
    """

    def __init__(self) -> None:
        self.writing = True
        self.pages: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()

    def __call__(self, request: ProxiedRequest) -> Fault | None:
        if not request.is_list:
            return None
        if self.writing:
            return Rewrite(lambda body: self.pages.setdefault(request.target, body))
        if request.target not in self.pages:
            return None
        self.asked[request.target] += 1
        return Refuse() if self.asked[request.target] == 1 else Reply(self.pages[request.target])


def lost(repo: Repository) -> list[Lost]:
    """By the audit's own reading."""
    ctx = repo.context
    found = audit(ctx.kv, ctx.objects, ctx.repo, now_ms=ctx.clock.now_ms())
    assert found.committed > 0
    return found.lost


@pytest.mark.server
def test_pages_of_an_earlier_time_lose_nothing_that_is_named(
    rclone_s3_server: RcloneS3, tmp_path: Path, engines: Engines
) -> None:
    stale = Stale()
    with (
        S3FaultProxy(rclone_s3_server.endpoint, stale) as proxy,
        lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, gone),
    ):
        store = repo.context.objects
        deleted_since, new_since = (ids.new_address(ids.RandomIds(), 1_700_000_000_000 + number) for number in range(2))
        store.put(deleted_since, b"only the old pages have it")
        let_a_second_pass(repo, deleted_since)
        assert simulate_mark(repo.context, engines, NOW).marked.objects == 2
        stale.writing = False
        store.delete_many([deleted_since])
        store.put(new_since, b"only the new pages have it")
        let_a_second_pass(repo, new_since)
        ran = gc_run.run_nightly(repo.context, engines, NOW)
        assert sum(count > 1 for count in stale.asked.values()) > 3, (
            "pages were refused once, and then of an earlier time"
        )
        assert {reason: count.objects for reason, count in ran.mark_summary.by_reason.items()} == {
            "expired": 1,
            "orphan blob": 1,
        }
        stale.pages.clear()
        assert gone not in data_of(repo)
        assert new_since in data_of(repo), "it was in no page, and goes when it is"
        assert lost(repo) == []
        gc_run.run_nightly(
            repo.context, engines, replace(NOW, is_full=True)
        )  # its address is of years ago: only a full run lists so far back
        assert new_since not in data_of(repo)
        assert lost(repo) == []
        assert {each.state for each in Marks(repo.context).runs.scan()} == {RunState.SWEPT}


def test_what_is_gone_when_the_sweep_comes_counts_as_already_gone(world: World, engines: Engines) -> None:
    """A store that can tell (S3 cannot, and says deleted)."""
    world.commit(days_ago=9, a=b"old", b=b"older")
    gone = world.address("main", "a")
    world.commit(days_ago=8, a=b"new", b=b"newer")
    world.commit(days_ago=7, c=b"x")
    world.settle()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    (world.blobs / gone).unlink()
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id).sweep
    assert swept is not None
    assert {name: count.objects for name, count in swept.outcomes.items()} == {"deleted": 1, "already gone": 1}
    assert swept.failed_objects == 0
    assert world.data() == {world.address("main", path) for path in "abc"}
