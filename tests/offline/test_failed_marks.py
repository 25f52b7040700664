"""Marks whose run failed at its end, or whose files are gone; who clears a namespace beside another; and what a
simulation says of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from refstore.errors import Conflict, Corrupt, Unavailable
from refstore.gc_marks import Marks, RunState, new_mark_id
from refstore.gc_marks.offline_runs import OfflineRuns
from refstore.operations import refs
from refstore.records.keys import NAMESPACES
from refstore.versioning.commits import object_names
from refstore_gc import deleted_repositories, gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from refstore_gc.run_summary import SweepManifest, read_summaries, write_manifest
from tests.offline.test_deleted_repositories import delete_and_drain
from tests.offline.world import World, marked_in
from tests.reaping import reap_all
from tests.unit.test_marks import aborted

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def test_two_who_clear_one_namespace_leave_its_next_repository_its_claim(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(a=b"one")
    namespace = world.repo.record.namespace
    delete_and_drain(world)
    world.age()
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    real = deleted_repositories.summarize_sweep

    def slowly(*args: Any, **options: Any) -> Any:
        """The other one, which began at the same time, is through by then; and somebody makes a repository there."""
        monkeypatch.setattr(deleted_repositories, "summarize_sweep", real)
        assert deleted_repositories.clear_repository(
            world.lake, repo, record, engines, GcOptions(grace_days=0)
        ).is_forgotten
        world.lake.create_repository("again", namespace=namespace)
        return real(*args, **options)

    monkeypatch.setattr(deleted_repositories, "summarize_sweep", slowly)
    with pytest.raises(Conflict, match="has the namespace"):
        deleted_repositories.clear_repository(world.lake, repo, record, engines, GcOptions(grace_days=0))
    assert [value for _, value in world.lake.kv.scan_all(NAMESPACES)] == [
        world.lake.repository("again").context.repo.encode()
    ]
    assert (world.blobs / "_refstore" / "namespace").exists()


def test_a_mark_whose_last_reply_was_lost_can_be_swept_or_taken_back(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The KV wrote that the mark stands, and did not answer any more."""
    world.commit(a=b"one", days_ago=3)
    world.commit(a=None, b=b"two")
    world.age()
    change, give_up = OfflineRuns.change, OfflineRuns.abandon

    def lost(runs: OfflineRuns, of: Any, **changes: Any) -> Any:
        done = change(runs, of, **changes)
        if "finished_ms" in changes:

            def down(*_: Any, **__: Any) -> Any:
                raise Unavailable("the KV does not answer")

            monkeypatch.setattr(OfflineRuns, "abandon", down)
            raise Unavailable("the KV does not answer")
        return done

    monkeypatch.setattr(OfflineRuns, "change", lost)
    with pytest.raises(Unavailable):
        gc_run.mark(world.ctx, engines, GcOptions(grace_days=0, min_age_seconds=0))
    monkeypatch.setattr(OfflineRuns, "change", change)
    monkeypatch.setattr(OfflineRuns, "abandon", give_up)
    assert [each.state for each in Marks(world.ctx).runs.scan()] == [RunState.MARKED]
    ran = gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0, min_age_seconds=0))
    assert not ran.waiting_marks


def lose(world: World, mark_id: str, what: str) -> None:
    gone = [info.key for info in world.ctx.objects.list(f"_refstore/gc/{mark_id}/{what}")]
    assert gone
    world.ctx.objects.delete_many(gone)


@pytest.mark.parametrize("lost", ["mark.json", "mark/"])
def test_a_mark_that_lost_its_files_can_be_unmarked_after_its_sweep_failed(
    world: World, engines: Engines, lost: str
) -> None:
    old = world.commit(a=b"one", days_ago=3)
    world.commit(a=None, b=b"two")
    world.settle()
    marked = gc_run.mark(world.ctx, engines, GcOptions(grace_days=0, min_age_seconds=0))
    lose(world, marked.mark_id, lost)
    with pytest.raises(Corrupt, match="unmark it"):
        gc_run.sweep(world.ctx, engines, marked.mark_id)
    world.repo.unmark(marked.mark_id)
    assert world.repo.read(old, "a") == b"one"


def test_simulate_says_of_what_was_given_up_what_mark_does(world: World, engines: Engines) -> None:
    world.commit(a=b"one")
    world.age()
    before = simulate_mark(world.ctx, engines, GcOptions()).marked.objects
    assert before == 0
    given_up = aborted(world.repo)
    world.repo.reset("main")
    world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
    reap_all(world.repo)
    world.age()
    would = simulate_mark(world.ctx, engines, GcOptions()).by_prefix
    does = gc_run.mark(world.ctx, engines, GcOptions()).by_prefix
    assert given_up in dict(Marks(world.ctx).commits.scan())
    assert would == does


def test_simulate_says_of_a_commit_of_which_a_part_is_marked_what_mark_does(world: World, engines: Engines) -> None:
    old = world.commit(tmp__a=b"one", b=b"two", days_ago=3)
    world.commit(tmp__a=None, b=None)
    world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
    reap_all(world.repo)
    world.age()
    marks = Marks(world.ctx)
    part = marks.mark_run.begin("digest", 10**9, [], new_mark_id(world.ctx), partly=[(old, ("tmp/",))])
    marks.mark_run.finish(part, {})
    write_manifest(world.ctx.objects, SweepManifest(part.mark_id, 1, "delete", [], {}))
    would = simulate_mark(world.ctx, engines, GcOptions()).marked
    does = gc_run.mark(world.ctx, engines, GcOptions())
    assert would == does.marked


@pytest.mark.parametrize("lost", ["mark.json", "mark/"])
def test_a_damaged_mark_stops_no_other_sweep_and_loses_none_of_its_own_objects(
    world: World, engines: Engines, lost: str
) -> None:
    old = world.commit(a=b"first", both=b"named by two", days_ago=9)
    world.commit(a=b"second", days_ago=8)
    world.settle()
    at_once = GcOptions(grace_days=0, min_age_seconds=0)
    broken = gc_run.mark(world.ctx, engines, at_once).mark_id
    lose(world, broken, lost)
    second = world.address("main", "a")
    world.commit(a=b"third", both=None, days_ago=7)
    world.settle()
    good = gc_run.mark(world.ctx, engines, at_once).mark_id
    with pytest.raises(Corrupt, match=broken):
        gc_run.run_nightly(world.ctx, engines, at_once)
    told: list[tuple[str, str]] = []
    ran = gc_run.run_nightly(
        world.ctx, engines, at_once, on_sweep_error=lambda mark_id, error: told.append((mark_id, error.code))
    )
    assert told == [(broken, Corrupt.code)], "once, though it is looked for twice"
    states = {each.mark_id: each.state for each in Marks(world.ctx).runs.scan()}
    assert (states[broken], states[good]) == (RunState.MARKED, RunState.SWEPT)
    assert good in {each.mark_id for each in ran.sweep_summaries}
    assert second not in world.data()
    world.repo.unmark(broken)
    assert (world.repo.read(old, "a"), world.repo.read(old, "both")) == (b"first", b"named by two")


def test_a_sweep_leaves_the_tree_of_a_commit_that_never_landed_and_that_a_damaged_mark_has(
    world: World, engines: Engines
) -> None:
    world.commit(a=b"one")
    never = aborted(world.repo)
    world.repo.reset("main")
    world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
    reap_all(world.repo)
    world.age()
    at_once = GcOptions(grace_days=0, min_age_seconds=0)
    broken = gc_run.mark(world.ctx, engines, at_once).mark_id
    lose(world, broken, "mark/")
    good = gc_run.mark(world.ctx, engines, at_once).mark_id
    record = refs.get_commit(world.ctx, never)
    tree = {
        object_names.key(object_names.METARANGES, record.metarange),
        object_names.key(object_names.ADDED_ADDRESSES, record.added_addresses_id),
    }
    assert tree <= marked_in(world, good).keys()
    gc_run.sweep(world.ctx, engines, good)
    assert all(world.ctx.objects.is_stored(key) for key in tree)
    assert dict(Marks(world.ctx).commits.scan())[never].mark_id == broken


def test_a_report_that_cannot_be_read_any_more_stops_no_later_job(world: World, engines: Engines) -> None:
    world.commit(a=b"first", days_ago=9)
    world.commit(a=b"second", days_ago=8)
    world.settle()
    at_once = GcOptions(grace_days=0, min_age_seconds=0)
    swept = gc_run.run_nightly(world.ctx, engines, at_once).mark_summary.mark_id
    world.ctx.objects.put(f"_refstore/gc/{swept}/summary.json", b'{"mark_id": 7}')
    later = gc_run.run_nightly(world.ctx, engines, at_once)
    assert later.latest_summary.state == "swept"
    with pytest.raises(Corrupt, match=swept):
        read_summaries(world.ctx.objects, Marks(world.ctx).runs.scan())
