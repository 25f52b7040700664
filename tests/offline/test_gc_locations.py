"""The offline job keeps what the records of purged objects name (rule 22), in full and in incremental runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from refstore.core import ids
from refstore.errors import Gone, ObjectNotFound
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_summary import PurgedObjects, read_manifest
from tests.offline.world import World
from tests.purging import announce, content_of, content_to_be, intend, rewrite, write
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def in_the_night(world: World, engines: Engines, *, full: bool) -> gc_run.NightlyResult:
    world.age()
    return gc_run.run_nightly(world.ctx, engines, GcOptions(is_full=full))


@pytest.mark.parametrize("full", [True, False])
def test_content_stays_whose_identity_has_no_object_of_its_own(world: World, engines: Engines, full: bool) -> None:
    world.commit(a=b"all rows", b=b"untouched")
    release_all(world.repo)
    assert in_the_night(world, engines, full=full).mark_summary.marked.objects == 0
    identity = world.address("main", "a")
    published = rewrite(world.repo, "main", "a", b"fewer rows")
    world.ctx.objects.delete_many([identity])  # its backup has ended
    orphan = world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    for _ in range(2):
        in_the_night(world, engines, full=full)
    assert world.data() == {content_of(published), world.address("main", "b")}
    with pytest.raises(ObjectNotFound):
        world.ctx.objects.head(orphan)


def test_what_an_attempt_writes_and_its_backups_stay(world: World, engines: Engines) -> None:
    world.commit(a=b"all rows")
    release_all(world.repo)
    identity = world.address("main", "a")
    published = rewrite(world.repo, "main", "a", b"fewer rows")
    intended = intend(world.repo, "main", "a", "run-2")
    assert intended is not None
    write(world.repo, intended, b"even fewer")
    in_the_night(world, engines, full=True)
    assert world.data() == {identity, content_of(published), content_to_be(intended)}


def test_a_purge_between_mark_and_sweep_loses_nothing(world: World, engines: Engines) -> None:
    """Also not of a commit that is unmarked in between."""
    world.commit(days_ago=9, a=b"old rows")
    expired = world.repo.get_branch("main").head
    world.commit(days_ago=8, a=b"new rows")
    release_all(world.repo)
    world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))  # so the mark stands when nothing else is in it
    world.age()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert summary.marked.objects == 2
    identity = world.address(expired, "a")
    published = rewrite(world.repo, expired, "a", b"fewer old rows")
    world.ctx.objects.delete_many([identity])
    world.repo.unmark(expired)
    gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert content_of(published) in world.data()
    assert world.repo.read(expired, "a") == b"fewer old rows"


def test_nothing_is_read_of_locations_where_nothing_was_purged(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(a=b"rows")

    def fail(*_: object) -> None:
        raise AssertionError("the partitions of the locations were read")

    monkeypatch.setattr("refstore.versioning.locations.Locations.scan_addresses", fail)
    in_the_night(world, engines, full=True)
    announce(world.repo)
    with pytest.raises(AssertionError, match="partitions of the locations"):
        in_the_night(world, engines, full=True)


class TestWhatNobodyNames:
    """A purged object that no commit names goes with all that its record names."""

    @pytest.mark.parametrize("backup_ended", [False, True])
    def test_its_contents_go_in_a_complete_run(self, world: World, engines: Engines, backup_ended: bool) -> None:
        world.commit(days_ago=9, a=b"old rows")
        old = world.repo.get_branch("main").head
        world.commit(days_ago=8, a=b"new rows")
        release_all(world.repo)
        identity = world.address(old, "a")
        published = rewrite(world.repo, old, "a", b"fewer old rows")
        intended = intend(world.repo, old, "a", "run-2")
        assert intended is not None
        write(world.repo, intended, b"even fewer")
        if backup_ended:
            world.ctx.objects.delete_many([identity])
        assert len(world.data()) == 4 - backup_ended
        ran = in_the_night(world, engines, full=True)
        assert content_of(published) not in world.data()
        assert world.data() == {world.address("main", "a")}
        assert world.ctx.locations.get_many([ids.own_address(identity)]) == [None]
        assert ran.latest_summary.sweep is not None
        assert ran.latest_summary.sweep.purged_objects == PurgedObjects(objects=1, contents=2)
        with pytest.raises(Gone):
            world.repo.read(old, "a")

    def test_what_is_unmarked_before_the_sweep_keeps_them(self, world: World, engines: Engines) -> None:
        world.commit(days_ago=9, a=b"old rows")
        old = world.repo.get_branch("main").head
        world.commit(days_ago=8, a=b"new rows")
        release_all(world.repo)
        identity = world.address(old, "a")
        published = rewrite(world.repo, old, "a", b"fewer old rows")
        world.ctx.objects.delete_many([identity])
        world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))  # the mark stands without the commit
        world.age()
        summary = gc_run.mark(world.ctx, engines, GcOptions(is_full=True))
        assert read_manifest(world.ctx.objects, summary.mark_id).dead_identities
        world.repo.unmark(old)
        swept = gc_run.sweep(world.ctx, engines, summary.mark_id)
        assert swept.sweep is not None
        assert swept.sweep.purged_objects.objects == 0
        assert world.repo.read(old, "a") == b"fewer old rows"
        assert content_of(published) in world.data()

    def test_a_content_that_the_store_does_not_delete_is_tried_again(
        self, world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit(days_ago=9, a=b"old rows")
        old = world.repo.get_branch("main").head
        world.commit(days_ago=8, a=b"new rows")
        release_all(world.repo)
        content = content_of(rewrite(world.repo, old, "a", b"fewer old rows"))
        world.age()
        summary = gc_run.mark(world.ctx, engines, GcOptions(is_full=True))
        real = type(world.ctx.objects).delete_many

        def refusing(self: Any, keys: Any) -> Any:
            done = real(self, [key for key in keys if key != content])
            return done._replace(failed_keys=((content, "slow down"),) if content in keys else ())

        monkeypatch.setattr(type(world.ctx.objects), "delete_many", refusing)
        swept = gc_run.sweep(world.ctx, engines, summary.mark_id)
        assert swept.sweep is not None
        assert (swept.sweep.failed_objects, swept.sweep.purged_objects.objects) == (1, 0)
        monkeypatch.undo()
        again = gc_run.sweep(world.ctx, engines, summary.mark_id)
        assert again.sweep is not None
        assert (again.sweep.failed_objects, again.sweep.purged_objects.objects) == (0, 1)
        assert world.data() == {world.address("main", "a")}
