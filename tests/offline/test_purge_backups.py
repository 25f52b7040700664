"""Backups of purges: how long they stay, what the nightly job deletes, and what can be restored. Of a file that
something cut off, or made longer, in the store, a purge makes no new content, and no backup that is damaged comes back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refstore.core.ids import Address
from refstore.errors import CorruptObject, KVWentBack, NotFound
from refstore.kv_recovery.manifest_check import check_repository
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_summary import ObjectCount
from refstore_purge import purge_cleanup, restore_backups
from refstore_purge.restore_backups import RestoreScope
from tests.durations import unchecked_lake
from tests.offline.purge_runs import onboard_visits, purge_with, run_nightly
from tests.offline.test_purge_partitions import FORMATS, written
from tests.offline.world import SkippingClock, World
from tests.purge.tracking import guestids
from tests.purging import announce, content_of, content_to_be, intend, publish, rewrite, write
from tests.reaping import release_all
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import Refuse, S3FaultProxy

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

DAY_SECONDS = 86_400
PATH = "visits/x"
OLD, NEW, NEWER = b"old rows", b"new", b"newer"


def document(*, days: int, versions: int, trash: int) -> dict[str, Any]:
    dataset = {"name": "a", "prefix": "a/", "format": "csv", "identifier": "id", "mode": "rewrite"}
    return {
        "whitelist": ["*"],
        "datasets": [dataset],
        "backup": {"days": days, "versions": versions},
        "trash": {"days": trash},
    }


def set_days(world: World, *, days: int = 30, versions: int = 2, trash: int = 7) -> None:
    world.repo.onboard_purge(json.dumps(document(days=days, versions=versions, trash=trash)), by="tests")


def settle(world: World) -> None:
    """Let as much time pass as readers, signed URLs and operations may need."""
    world.clock.sleep(2 * world.ctx.safety.operation_deadline_seconds)


def one_object(world: World, body: bytes = OLD) -> str:
    world.commit(**{"a/x": body})
    release_all(world.repo)
    return world.repo.resolve("main", "a/x").entry.address


class TestTheEndOfBackups:
    def test_days_are_over(self, world: World) -> None:
        set_days(world, days=3)
        identity = one_object(world)
        published = rewrite(world.repo, "main", "a/x", NEW)
        assert purge_cleanup.clean_up(world.ctx).waiting_contents == ObjectCount(1, len(OLD))
        world.clock.sleep(3 * DAY_SECONDS)
        looked = purge_cleanup.clean_up(world.ctx, dry_run=True)
        assert looked.backups == ObjectCount(1, len(OLD))
        assert world.data() == {identity, content_of(published)}
        assert [(each.address, each.is_due) for each in purge_cleanup.scan_backups(world.ctx)] == [(identity, True)]
        done = purge_cleanup.clean_up(world.ctx)
        assert (done.backups, done.waiting_contents, done.failed_objects) == (
            ObjectCount(1, len(OLD)),
            ObjectCount(),
            0,
        )
        assert world.data() == {content_of(published)}
        assert world.repo.read("main", "a/x") == NEW
        assert list(purge_cleanup.scan_backups(world.ctx)) == []
        assert purge_cleanup.clean_up(world.ctx).backups == ObjectCount()

    def test_of_versions_only_the_newest_stay(self, world: World) -> None:
        set_days(world, versions=1)
        identity = one_object(world)
        first = rewrite(world.repo, "main", "a/x", NEW, run="run-1")
        second = rewrite(world.repo, "main", "a/x", NEWER, run="run-2")
        settle(world)
        assert purge_cleanup.clean_up(world.ctx).backups == ObjectCount(1, len(OLD))
        assert world.data() == {content_of(first), content_of(second)}
        assert identity not in world.data()

    def test_readers_and_operations_end_before_a_backup_does(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_days(world, days=0, versions=0)
        one_object(world)
        rewrite(world.repo, "main", "a/x", NEW)
        assert purge_cleanup.clean_up(world.ctx).backups == ObjectCount()
        settle(world)
        with monkeypatch.context() as patch:
            patch.setattr(purge_cleanup, "SIGNED_SECONDS", DAY_SECONDS)
            assert purge_cleanup.clean_up(world.ctx).backups == ObjectCount()
        assert purge_cleanup.clean_up(world.ctx).backups == ObjectCount(1, len(OLD))

    def test_what_an_attempt_left_goes_and_no_attempt_under_way(self, world: World) -> None:
        set_days(world)
        one_object(world)
        announce(world.repo)
        intended = intend(world.repo, "main", "a/x")
        assert intended is not None
        write(world.repo, intended, NEW)
        assert purge_cleanup.clean_up(world.ctx).attempts == ObjectCount()
        settle(world)
        assert purge_cleanup.clean_up(world.ctx).attempts == ObjectCount(1, len(NEW))
        assert content_to_be(intended) not in world.data()
        check_repository(world.ctx)  # that the record is gone, which said nothing any more, is no loss
        assert publish(world.repo, intended, NEW) is None
        assert world.repo.read("main", "a/x") == OLD
        assert purge_cleanup.clean_up(world.ctx).attempts == ObjectCount()  # the record is gone, and was not lost
        check_repository(world.ctx)

    def test_a_kv_that_forgot_the_content_ends_no_backup(self, world: World) -> None:
        from refstore.records import keys

        set_days(world, days=0, versions=0)
        identity = one_object(world)
        first = rewrite(world.repo, "main", "a/x", NEW)
        restore_backups.keep_in_manifest(world.ctx, [first], "a run")
        settle(world)
        world.ctx.kv.delete(keys.location(world.ctx.repo, first.identity))
        rewrite(world.repo, "main", "a/x", NEWER, run="run-2")
        settle(world)
        with pytest.raises(KVWentBack, match="another run has published under its number"):
            purge_cleanup.clean_up(world.ctx)
        assert identity in world.data()

    def test_the_nightly_job_does_it_and_its_report_says_so(self, world: World, engines: Engines) -> None:
        set_days(world, days=0, versions=0)
        identity = one_object(world)
        published = rewrite(world.repo, "main", "a/x", NEW)
        settle(world)
        ran = run_nightly(world.ctx, engines, GcOptions(is_full=True))
        assert ran.latest_summary.purge_cleanup is not None
        assert ran.latest_summary.purge_cleanup.backups == ObjectCount(1, len(OLD))
        assert world.data() == {content_of(published)}
        assert identity not in world.data()


class TestRestore:
    def test_what_a_run_replaced_comes_back_and_goes_to_trash_in_turn(self, world: World) -> None:
        set_days(world, trash=2)
        identity = one_object(world)
        published = rewrite(world.repo, "main", "a/x", NEW, run="run-1")
        looked = restore_backups.restore_backups(world.repo, RestoreScope(run="run-1"), dry_run=True)
        assert (looked.objects, world.repo.read("main", "a/x")) == (1, NEW)
        done = restore_backups.restore_backups(world.repo, RestoreScope(run="run-1"))
        assert (done.objects, done.bytes, done.already_restored) == (1, len(OLD), 0)
        assert world.repo.read("main", "a/x") == OLD
        assert world.repo.stat("main", "a/x").address == identity
        check_repository(world.ctx)
        again = restore_backups.restore_backups(world.repo, RestoreScope(run="run-1"))
        assert (again.objects, again.already_restored) == (0, 1)
        assert [(each.address, each.is_trash) for each in purge_cleanup.scan_backups(world.ctx)] == [
            (content_of(published), True)
        ]
        world.clock.sleep(2 * DAY_SECONDS)
        assert purge_cleanup.clean_up(world.ctx).trash == ObjectCount(1, len(NEW))
        assert world.data() == {identity}
        rewrite(world.repo, "main", "a/x", NEWER, run="run-2")
        assert world.repo.read("main", "a/x") == NEWER

    def test_what_a_later_run_replaced_is_left_unless_a_backup_is_named(self, world: World) -> None:
        set_days(world)
        identity = one_object(world)
        first = rewrite(world.repo, "main", "a/x", NEW, run="run-1")
        rewrite(world.repo, "main", "a/x", NEWER, run="run-2")
        done = restore_backups.restore_backups(world.repo, RestoreScope(run="run-1"))
        assert (done.objects, done.not_restored_count) == (0, 1)
        assert "'run-2' has replaced it since" in done.not_restored[0].reason
        assert restore_backups.restore_backups(world.repo, RestoreScope()).objects == 1  # the last known good
        assert world.repo.read("main", "a/x") == NEW
        assert restore_backups.restore_backups(world.repo, RestoreScope(backup=identity)).objects == 1
        assert world.repo.read("main", "a/x") == OLD
        assert restore_backups.restore_backups(world.repo, RestoreScope(backup=content_of(first))).objects == 1
        assert world.repo.read("main", "a/x") == NEW

    def test_a_part_of_a_run(self, world: World) -> None:
        set_days(world)
        world.commit(**{"a/day=1/x": OLD, "a/day=2/x": OLD + b"!", "other": OLD + b"?"})
        for path in ("a/day=1/x", "a/day=2/x", "other"):
            rewrite(world.repo, "main", path, NEW + path.encode(), run="run-1")
        assert (
            restore_backups.restore_backups(
                world.repo, RestoreScope(run="run-1", dataset="a", partition="day=2")
            ).objects
            == 1
        )
        assert world.repo.read("main", "a/day=2/x") == OLD + b"!"
        assert restore_backups.restore_backups(world.repo, RestoreScope(run="run-1", path="other")).objects == 1
        assert world.repo.read("main", "a/day=1/x") == NEW + b"a/day=1/x"

    @pytest.mark.parametrize(
        ("scope", "told"),
        [
            (RestoreScope(run="no-such"), "has a backup of the run 'no-such'"),
            (RestoreScope(path="a/nothing"), "has a backup to restore"),
            (RestoreScope(dataset="b"), "there is no data set 'b'; the purge document describes: a"),
        ],
    )
    def test_no_candidate_is_an_error(self, world: World, scope: RestoreScope, told: str) -> None:
        set_days(world)
        one_object(world)
        rewrite(world.repo, "main", "a/x", NEW)
        with pytest.raises(NotFound, match=told):
            restore_backups.restore_backups(world.repo, scope)

    def test_past_its_days_nothing_is_restored(self, world: World) -> None:
        set_days(world, days=0, versions=0)
        one_object(world)
        rewrite(world.repo, "main", "a/x", NEW, run="run-1")
        settle(world)
        purge_cleanup.clean_up(world.ctx)
        with pytest.raises(NotFound):
            restore_backups.restore_backups(world.repo, RestoreScope(run="run-1"))
        identity = world.repo.resolve("main", "a/x").entry.address
        with pytest.raises(NotFound):
            world.ctx.locations.restore(identity, identity, "run-2")


@pytest.mark.server
def test_a_bucket_that_refuses_a_whole_bulk_delete_has_failed_and_the_night_goes_on(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    clock = SkippingClock(off_seconds=-DAY_SECONDS)
    with S3FaultProxy(moto_s3_server.endpoint) as proxy:
        url = moto_s3_server.url().replace(moto_s3_server.endpoint, proxy.endpoint)
        with unchecked_lake(f"sqlite://{tmp_path}/kv.sqlite", url, clock=clock) as lake:
            repo = lake.create_repository("sales", grace_seconds=0)
            repo.onboard_purge(json.dumps(document(days=0, versions=0, trash=0)), by="tests")
            repo.upload("main", "a/x", OLD)
            repo.commit("main", "change")
            release_all(repo)
            rewrite(repo, "main", "a/x", NEW)
            clock.off_seconds = 0
            proxy.plan = lambda request: (
                Refuse(status=403, code="AccessDenied")
                if request.is_bulk_delete and any("/data/" in key for key in request.delete_keys)
                else None
            )
            ran = run_nightly(repo.context, engines, GcOptions(grace_days=30, min_age_seconds=0))
            assert ran.failed_objects == 1
            assert ran.mark_summary.purge_cleanup is not None
            (why,) = ran.mark_summary.purge_cleanup.failures
            assert "AccessDenied" in why
            assert "DeleteObject" in why
            proxy.plan = None
            assert purge_cleanup.clean_up(repo.context).pending_deletions == ObjectCount(1, len(OLD))
            assert repo.read("main", "a/x") == NEW


def test_the_trash_of_an_erased_object_leaves_no_address_behind(world: World) -> None:
    """An erased content lies nowhere, so it is dropped from the record and never asked for at the store."""
    from refstore.records.location_records import Content
    from refstore.versioning.locations import WrittenContent

    set_days(world, trash=0)
    identity = one_object(world)
    announce(world.repo)
    intended = intend(world.repo, "main", "a/x")
    assert intended is not None
    world.ctx.locations.publish([WrittenContent(intended, Content(Address(""), 0, "", run="run-1"))], "run-1")
    restore_backups.restore_backups(world.repo, RestoreScope(run="run-1"))
    settle(world)
    assert purge_cleanup.clean_up(world.ctx).trash == ObjectCount()
    (record,) = world.ctx.locations.get_many([intended.identity])
    assert record is not None
    assert (record.backups, record.pending_deletions) == ((), ())
    assert world.data() == {identity}


def stage(world: World, format_: str, mode: str) -> Address:
    onboard_visits(world, format=format_, mode=mode)
    world.commit_files({PATH: written(format_, guest=["ann", "bob", "cid"])})
    return world.repo.stat("main", PATH).address


@pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_run_leaves_an_object_of_another_length_and_says_so(
    world: World, engines: Engines, format_: str, mode: str
) -> None:
    address = stage(world, format_, mode)
    body = world.repo.read("main", PATH)
    for damaged in (body[:-1], body[: body.find(b"\n") + 1], b"", body + body):
        world.ctx.objects.put(address, damaged)
        before = world.data()
        made = purge_with(world, engines, guestids(world.folder, "bob"), share=1)
        assert not made.is_whole
        assert world.repo.stat("main", PATH).address == address
        assert world.data() == before, "nothing was written"
        with pytest.raises(CorruptObject, match=f"{PATH}.* has {len(damaged)} bytes"):
            world.repo.read("main", PATH)
    world.ctx.objects.put(address, body)
    assert purge_with(world, engines, guestids(world.folder, "bob"), share=1).is_whole
    assert b"bob" not in world.repo.read("main", PATH)


def test_a_damaged_backup_is_not_restored(world: World, engines: Engines) -> None:
    address = stage(world, "csv", "rewrite")
    before = world.repo.read("main", PATH)
    made = purge_with(world, engines, guestids(world.folder, "bob"), share=1)
    purged = world.repo.read("main", PATH)
    assert purged != before
    world.ctx.objects.put(address, before[:-1])
    done = restore_backups.restore_backups(world.repo, RestoreScope(run=made.run))
    (failure,) = done.not_restored
    assert failure.reason == (
        f"the backup at {address} is damaged: it has {len(before) - 1} bytes, and had {len(before)}"
    )
    assert world.repo.read("main", PATH) == purged
    world.ctx.objects.put(address, before)
    assert restore_backups.restore_backups(world.repo, RestoreScope(run=made.run)).objects == 1
    assert world.repo.read("main", PATH) == before
