"""`refstore_reaper.reap`: what an application calls, and what it is told."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from datetime import UTC, timedelta

import pytest

import refstore_reaper
from refstore import StepProgress
from refstore.core import python_gc
from refstore.errors import Invalid, InvalidSettings, KVUnavailable, RepositoryNotFound
from refstore_reaper import reap
from tests.reaper_world import GRACE_SECONDS, World

AT_ONCE = timedelta(0)


@pytest.fixture
def world() -> World:
    world = World()
    world.upload("main", "kept", "a", "b")
    world.repo.delete_many("main", ["a", "b"])
    return world


def test_a_dry_run_says_what_the_run_then_deletes_and_counts(world: World) -> None:
    before = world.kv.dump(), world.objects.dump()
    planned = reap(world.lake, grace=AT_ONCE, dry_run=True)
    assert (world.kv.dump(), world.objects.dump()) == before
    assert planned.is_dry_run
    assert sorted((each.repository, each.path, each.cause) for each in planned.would_delete) == [
        (world.repo.name, "a", "deleted"),
        (world.repo.name, "b", "deleted"),
    ]
    there = world.stored()
    done = reap(world.lake, grace=AT_ONCE)
    assert there - world.stored() == {each.address for each in planned.would_delete}
    assert (done.deleted, done.bytes) == (planned.deleted, planned.bytes) == (2, sum_of_sizes(planned))
    assert (done.is_done, done.is_dry_run, done.would_delete) == (True, False, ())
    assert str(planned).startswith("would delete 2 objects, ")
    assert str(done).startswith("deleted 2 objects, ")


def sum_of_sizes(report: refstore_reaper.ReapReport) -> int:
    return sum(each.size_bytes or 0 for each in report.would_delete)


def test_the_grace_windows_are_the_repositories_own_unless_one_is_given(world: World) -> None:
    assert reap(world.lake).deleted == 0
    world.clock.advance(GRACE_SECONDS + 1)
    done = reap(world.lake)
    assert done.deleted == 2
    assert done.began.tzinfo is UTC
    assert done.began.timestamp() * 1000 == world.clock.now_ms()
    assert done.duration == timedelta(0)


def test_it_tells_how_far_it_is(world: World) -> None:
    for dry_run in (True, False):
        told: list[StepProgress] = []
        done = reap(world.lake, grace=AT_ONCE, dry_run=dry_run, report_progress=told.append)
        assert {each.repository for each in told} == {world.repo.name}
        assert (told[-1].done_items, told[-1].done_bytes) == (done.deleted, done.bytes) == (2, done.bytes)


def test_only_the_repositories_that_are_named(world: World) -> None:
    other = world.lake.create_repository("other")
    other.upload("main", "c", b"c")
    other.reset("main")
    assert reap(world.lake, repositories=["other"], grace=AT_ONCE).deleted == 1
    assert reap(world.lake, grace=AT_ONCE).deleted == 2


def test_what_the_store_does_not_delete_is_counted_and_said(world: World) -> None:
    world.objects.refuses = {*world.stored()}
    done = reap(world.lake, grace=AT_ONCE)
    assert (done.deleted, done.failed, done.is_done) == (0, 2, False)
    assert "2 were not deleted by the store" in str(done)
    world.objects.refuses = set()
    world.objects.down = True
    done = reap(world.lake, grace=AT_ONCE)
    assert [(each.repository, each.retryable) for each in done.errors] == [("lake", True)]
    assert not done.is_done


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"repositories": ["nobody"]}, RepositoryNotFound, "'nobody' does not exist"),
        ({"repositories": "lake"}, Invalid, r"give \[repositories\]"),
        ({"grace": timedelta(-1)}, Invalid, "cannot be negative"),
        ({"share_max": 2}, InvalidSettings, "share"),
    ],
)
def test_what_makes_no_sense_deletes_nothing(
    world: World, options: dict[str, object], error: type[Exception], said: str
) -> None:
    before = world.stored()
    with pytest.raises(error, match=said):
        reap(world.lake, **{"grace": AT_ONCE} | options)  # type: ignore[arg-type]
    assert world.stored() == before


def test_a_kv_that_does_not_answer_raises(world: World) -> None:
    world.kv.down = True
    with pytest.raises(KVUnavailable):
        reap(world.lake)


def test_the_package_offers_what_it_names() -> None:
    for name in refstore_reaper.__all__:
        assert getattr(refstore_reaper, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = refstore_reaper.Nonsense


def test_runs_that_overlap_put_the_collectors_setting_back() -> None:
    before = gc.get_threshold()
    first, second = ExitStack(), ExitStack()
    first.enter_context(python_gc.collect_seldom())
    second.enter_context(python_gc.collect_seldom())
    first.close()
    assert gc.get_threshold()[0] == python_gc.ALLOCATIONS
    second.close()
    assert gc.get_threshold() == before
