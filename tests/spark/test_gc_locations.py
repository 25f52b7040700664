"""The offline job keeps what the records of purged objects name (rule 22), in complete and in incremental runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.errors import ObjectNotFound
from refstore_gc import run
from refstore_gc.run import Options
from tests.purging import announce, content_of, content_to_be, intend, rewrite, write
from tests.reaping import release_all
from tests.spark.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_the_night(world: World, spark: SparkSession, *, full: bool) -> run.Ran:
    world.age()
    return run.run(world.ctx, spark, Options(full=full))


@pytest.mark.parametrize("full", [True, False])
def test_content_stays_whose_identity_has_no_object_of_its_own(world: World, spark: SparkSession, full: bool) -> None:
    world.commit(a=b"all rows", b=b"untouched")
    release_all(world.repo)
    assert in_the_night(world, spark, full=full).marked.marked.objects == 0
    identity = world.address("main", "a")
    published = rewrite(world.repo, "main", "a", b"fewer rows")
    world.ctx.objects.delete_many([identity])  # its backup has ended
    orphan = world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    for _ in range(2):
        in_the_night(world, spark, full=full)
    assert world.data() == {content_of(published), world.address("main", "b")}
    with pytest.raises(ObjectNotFound):
        world.ctx.objects.head(orphan)


def test_what_an_attempt_writes_and_its_backups_stay(world: World, spark: SparkSession) -> None:
    world.commit(a=b"all rows")
    release_all(world.repo)
    identity = world.address("main", "a")
    published = rewrite(world.repo, "main", "a", b"fewer rows")
    intended = intend(world.repo, "main", "a", "run-2")
    assert intended is not None
    write(world.repo, intended, b"even fewer")
    in_the_night(world, spark, full=True)
    assert world.data() == {identity, content_of(published), content_to_be(intended)}


def test_a_purge_between_mark_and_sweep_loses_nothing(world: World, spark: SparkSession) -> None:
    """Also not of a commit that is unmarked in between."""
    world.commit(days_ago=9, a=b"old rows")
    expired = world.repo.get_branch("main").head
    world.commit(days_ago=8, a=b"new rows")
    release_all(world.repo)
    world.age()
    summary = run.mark(world.ctx, spark, Options())
    assert summary.marked.objects == 1
    identity = world.address(expired, "a")
    published = rewrite(world.repo, expired, "a", b"fewer old rows")
    world.ctx.objects.delete_many([identity])
    world.repo.unmark(expired)
    run.sweep(world.ctx, spark, summary.mark_id)
    in_the_night(world, spark, full=True)
    assert content_of(published) in world.data()


def test_nothing_is_read_of_locations_where_nothing_was_purged(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(a=b"rows")

    def fail(*_: object) -> None:
        raise AssertionError("the partitions of the locations were read")

    monkeypatch.setattr("refstore.versioning.locations.Locations.scan", fail)
    in_the_night(world, spark, full=True)
    announce(world.repo)
    with pytest.raises(AssertionError, match="partitions of the locations"):
        in_the_night(world, spark, full=True)
