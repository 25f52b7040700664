"""`refstore_gc.collect`, `status` and `confirm`: what an application calls, and what it is told."""

from __future__ import annotations

import json
import os
from datetime import UTC, timedelta
from typing import TYPE_CHECKING

import pytest

import refstore_gc
from refstore import StepProgress
from refstore.configuration.settings import embedded_urls
from refstore.errors import (
    Conflict,
    Corrupt,
    Invalid,
    InvalidRules,
    InvalidSettings,
    NotFound,
    ObjectsUnavailable,
    RunStopped,
)
from refstore.gc_marks import barrier_seconds
from refstore.objects.base import ObjectStore
from refstore.repository import Repository
from refstore_gc import CleanupSummary, ObjectCount, collect, confirm, gc_run, status
from refstore_gc.run_context import BreakerLimits, GcOptions
from refstore_reaper import reap
from tests.durations import unchecked_lake
from tests.offline.world import World, folder_of

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

AT_ONCE = timedelta(0)
WEEK = timedelta(days=7)


def test_what_a_dry_run_says_is_what_the_run_deletes_and_the_store_confirms(world: World) -> None:
    world.let_one_expire()
    before = world.data()
    planned = collect(world.repo, dry_run=True)
    assert world.data() == before
    assert list(status(world.repo)) == []
    assert planned.mark is not None
    assert {reason: count.objects for reason, count in planned.mark.by_reason.items()} == {"expired": 1}
    assert (planned.reclaimable.objects, planned.deleted_count, planned.is_dry_run) == (1, ObjectCount(), True)
    done = collect(world.repo)
    assert len(before - world.data()) == 1
    assert done.deleted_count == planned.reclaimable == ObjectCount(1, 3)
    assert (done.reclaimable, done.waiting, done.errors, done.failed_objects) == (ObjectCount(), [], [], 0)
    assert str(planned) == "sales: would mark 1 objects, 3 bytes"
    assert str(done) == "sales: deleted 1 objects, 3 bytes; marked 1 objects, 3 bytes"
    assert done.began.tzinfo is UTC
    assert done.duration >= timedelta(hours=1)  # that it waited, as the clock goes that skips
    (shown,) = status(world.repo)
    assert (shown.state, shown.deleted_objects, shown.marked) == ("swept", 1, ObjectCount(1, 3))


def test_only_the_mark_then_only_the_sweep_when_it_is_due(world: World) -> None:
    world.let_one_expire()
    before = world.data()
    marked = collect(world.repo, only="mark", grace=WEEK)
    (waiting,) = marked.waiting
    assert marked.mark is not None
    assert marked.mark.mark_id == waiting.mark_id
    assert marked.mark.due == waiting.due == waiting.began + WEEK
    assert marked.reclaimable == ObjectCount(1, 3)
    assert collect(world.repo, only="sweep").sweeps == []
    with pytest.raises(Conflict):
        collect(world.repo, only="sweep", mark_id=waiting.mark_id)
    assert world.data() == before
    world.clock.sleep(WEEK.total_seconds() + 1)
    assert collect(world.repo, only="sweep", dry_run=True).reclaimable == ObjectCount(1, 3)
    assert world.data() == before
    (swept,) = collect(world.repo, only="sweep", mark_id=waiting.mark_id[:12]).sweeps
    assert (swept.mark_id, swept.deleted, swept.failures) == (waiting.mark_id, ObjectCount(1, 3), ())
    assert len(before - world.data()) == 1


def test_a_large_mark_waits_until_it_is_confirmed(world: World, engines: Engines) -> None:
    """One of fewer than 10,000 objects never waits, so the mark itself is made with a lower floor."""
    world.let_one_expire()
    before = world.data()
    limits = BreakerLimits(share_max=0.0, floor_objects=0)
    asking = gc_run.mark(world.ctx, engines, GcOptions(limits=limits)).mark_id
    waiting = collect(world.repo, only="sweep")
    assert (waiting.needs_confirmation, waiting.sweeps, world.data()) == (True, [], before)
    assert (
        str(waiting) == "sales: deleted 0 objects, 0 bytes; 1 objects, 3 bytes wait for their sweep; a mark needs "
        "confirmation"
    )
    confirmed = confirm(world.repo, asking[:12], by="ann")
    assert (confirmed.mark_id, confirmed.state, confirmed.confirmed_by) == (asking, "marked", "ann")
    with pytest.raises(Conflict, match="only one that needs confirmation"):
        confirm(world.repo, asking, by="ann")
    assert collect(world.repo, only="sweep", share_max=0.0).deleted_count == ObjectCount(1, 3)


def test_a_dry_run_takes_other_rules(world: World) -> None:
    world.let_one_expire()
    mild = json.dumps({"default_retention_days": 900})
    assert collect(world.repo, dry_run=True, rules=mild).reclaimable == ObjectCount()


def test_a_lake_has_a_report_for_each_repository_and_a_broken_one_stops_no_other(world: World) -> None:
    world.lake.create_repository("archive", grace_seconds=0)
    world.let_one_expire()
    steps: list[StepProgress] = []
    told: list[Repository] = []

    def clean_up(repo: Repository) -> CleanupSummary:
        told.append(repo)
        if repo.name == "archive":
            raise Corrupt("it cannot be read")
        return CleanupSummary(backups=ObjectCount(2, 20))

    archive, sales = collect(world.lake, clean_up=clean_up, report_progress=steps.append)
    assert [repo.name for repo in told] == ["archive", "sales"]
    assert [(each.step, type(each.error)) for each in archive.errors] == [("purge", Corrupt)]
    assert "purge failed: it cannot be read" in str(archive)
    assert sales.cleanup == CleanupSummary(backups=ObjectCount(2, 20))
    assert sales.deleted_count == ObjectCount(1, 3)
    assert {each.repository for each in steps} == {"archive", "sales"}
    waits = [each.remaining for each in steps if each.wait is not None and each.remaining is not None]
    assert waits
    assert max(waits) <= timedelta(seconds=barrier_seconds(world.lake.durations.waits))


def test_what_deleted_repositories_left_has_a_report_of_its_own(world: World) -> None:
    archive = world.lake.create_repository("archive", grace_seconds=0)
    archive.upload("main", "a", b"committed")
    archive.commit("main", "first")
    repo = archive.record.id
    world.lake.delete_repository("archive")
    for _ in range(3):
        reap(world.lake, grace=AT_ONCE, scrub=True)
        world.clock.sleep(86_400)
    for file in folder_of(archive).rglob("*"):
        os.utime(file, (0, 0))
    _, left = collect(world.lake, grace=AT_ONCE)
    assert (left.repository, left.is_deleted_repository, left.errors) == (repo, True, [])
    assert left.deleted_count.objects >= 1


def test_what_stops_a_repository_is_raised_for_one_and_told_for_a_lake(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.let_one_expire()

    def broken(*_: object, **__: object) -> None:
        raise ObjectsUnavailable("the store does not answer")

    monkeypatch.setattr(world.ctx.objects, "put", broken)
    with pytest.raises(ObjectsUnavailable):
        collect(world.repo)
    (report,) = collect(world.lake)
    assert [(each.step, type(each.error)) for each in report.errors] == [("run", ObjectsUnavailable)]
    assert (report.mark, report.deleted_count) == (None, ObjectCount())


def test_a_sweep_that_an_operator_stops_is_followed_by_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def stopped(_: object, __: object, mark_id: str, *___: object, **____: object) -> None:
        begun.append(mark_id)
        raise RunStopped("somebody stopped this run")

    for _ in range(2):
        world.let_one_expire()
        collect(world.repo, only="mark", grace=WEEK)
    world.clock.sleep(WEEK.total_seconds() + 1)
    monkeypatch.setattr(gc_run, "sweep", stopped)
    due = [mark.mark_id for mark in status(world.repo)]
    with pytest.raises(RunStopped):
        collect(world.repo, only="sweep")
    assert (len(due), len(begun)) == (2, 1)


def test_a_store_that_cannot_be_opened_stops_no_other_repository(world: World) -> None:
    world.let_one_expire()
    archive = world.lake.create_repository("archive", grace_seconds=0)
    real = world.lake.open_store

    def opened(url: str) -> ObjectStore:
        if url == world.lake.namespace_url(archive.record):
            raise Corrupt("the disk is not there")
        return real(url)

    kv, objects = embedded_urls(world.folder)
    with unchecked_lake(kv, f"{objects}?fsync=0", clock=world.clock) as lake:
        lake.open_store = opened
        broken, sales = collect(lake)
    assert [(each.step, type(each.error)) for each in broken.errors] == [("run", Corrupt)]
    assert (broken.repository, broken.waiting, sales.deleted_count) == ("archive", [], ObjectCount(1, 3))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"only": "delete"}, Invalid),
        ({"mark_id": "01m7z3zav9bbbjvdydt7m95zqf"}, Invalid),
        ({"rules": '{"default_retention_days": 3}'}, Invalid),
        ({"rules": "{", "dry_run": True}, InvalidRules),
        ({"mode": "shred"}, InvalidSettings),
        ({"engine": "hadoop"}, InvalidSettings),
        ({"grace": timedelta(-1)}, InvalidSettings),
        ({"share_max": 2}, InvalidSettings),
        ({"only": "sweep", "mark_id": "nothing"}, NotFound),
    ],
)
def test_what_makes_no_sense_deletes_nothing(world: World, options: dict[str, object], error: type[Exception]) -> None:
    world.let_one_expire()
    before = world.data()
    with pytest.raises(error):
        collect(world.repo, **options)  # type: ignore[call-overload]
    assert world.data() == before


def test_the_package_offers_what_it_names() -> None:
    for name in refstore_gc.__all__:
        assert getattr(refstore_gc, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = refstore_gc.Nonsense
