"""Locations of purged objects that a KV has lost (rules 21 and 22): told, put back, rebuilt, or given up."""

from __future__ import annotations

import pytest

from refstore.errors import KVWentBack
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery import reconciliation
from refstore.kv_recovery.manifest_check import check_repository
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.versioning.locations import LocatedIdentity
from refstore.versioning.manifest import CONFIRMED_FOLDER, LocationsPublished, ManifestLocation
from tests.purging import content_of, rewrite
from tests.reaper_world import World
from tests.unit.test_kv_losses import Losing, losing

__all__ = ["losing"]


def purge(losing: Losing, body: bytes, run: str = "run-1") -> LocatedIdentity:
    """Rewrite the object at `a` and write that to the manifest, as a run does."""
    repo = losing.world.repo
    published = rewrite(repo, "main", "a", body, run)
    item = ManifestLocation(published.identity, encode(published.location))
    repo.context.manifest.add(LocationsPublished(f"batch-{run}", (item,)))
    return published


def committed(losing: Losing) -> World:
    world = losing.world
    world.repo.upload("main", "a", b"all rows")
    world.repo.commit("main", "a")
    return world


def reconcile(world: World, *, accept: bool = False) -> list[str]:
    done = reconciliation.restore_lost_records(world.lake)
    reconciliation.settle_lake(world.lake, accept=accept, clients_stopped=True)
    return [f"{item.kind}: {item.outcome}" for item in done]


def test_what_was_purged_is_put_back(losing: Losing) -> None:
    world = committed(losing)
    kept = losing.copy()
    published = purge(losing, b"fewer rows")
    losing.put_back(kept)
    assert world.repo.read("main", "a") == b"all rows"
    assert world.run_once().corrupt
    assert reconcile(world) == ["content: put back"]
    assert world.repo.read("main", "a") == b"fewer rows"
    assert world.repo.stat("main", "a").address == content_of(published)
    assert not world.run_once().corrupt


def test_the_newest_of_two_purges_is_put_back(losing: Losing) -> None:
    world = committed(losing)
    purge(losing, b"fewer rows", "run-1")
    kept = losing.copy()
    second = purge(losing, b"even fewer", "run-2")
    losing.put_back(kept)
    assert reconcile(world) == ["content: put back"]
    assert world.repo.stat("main", "a").address == content_of(second)
    check_repository(world.repo.context)


def test_another_content_under_the_same_number_stays_and_the_lost_one_is_given_up(losing: Losing) -> None:
    world = committed(losing)
    kept = losing.copy()
    purge(losing, b"without ann", "run-1")
    losing.put_back(kept)
    other = purge(losing, b"without bob", "run-2")
    with pytest.raises(KVWentBack, match="run the earlier purge again"):
        check_repository(world.repo.context)
    (told,) = reconcile(world)
    assert told.startswith("content: left: another run has published since")
    with pytest.raises(KVWentBack):
        check_repository(world.repo.context)
    reconcile(world, accept=True)
    check_repository(world.repo.context)
    assert world.repo.stat("main", "a").address == content_of(other)


def test_one_lost_content_of_many_is_given_up_alone(losing: Losing) -> None:
    world = losing.world
    for path in ("a", "b"):
        world.repo.upload("main", path, path.encode())
    world.repo.commit("main", "two")
    ctx = world.repo.context
    each = [rewrite(world.repo, "main", path, b"less of " + path.encode()) for path in ("a", "b")]
    ctx.manifest.add(
        LocationsPublished("batch", tuple(ManifestLocation(one.identity, encode(one.location)) for one in each))
    )
    ctx.kv.delete(keys.location(ctx.repo, each[0].identity))
    ctx.objects.delete_many([content_of(each[0])])
    assert reconcile(world, accept=True)[0].startswith("content: left: ")
    check_repository(ctx)
    assert world.repo.read("main", "b") == b"less of b"
    ctx.kv.delete(keys.location(ctx.repo, each[1].identity))
    with pytest.raises(KVWentBack):
        check_repository(ctx)


def test_an_identity_that_was_deleted_is_not_lost(losing: Losing) -> None:
    world = committed(losing)
    published = purge(losing, b"fewer rows")
    ctx = world.repo.context
    ctx.objects.delete_many([published.identity, content_of(published)])
    ctx.kv.delete(keys.location(ctx.repo, published.identity))
    check_repository(ctx)


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_new_kv_knows_where_content_lies(losing: Losing, confirmed: bool) -> None:
    world = committed(losing)
    purge(losing, b"fewer rows")
    if confirmed:
        world.run_once()
        assert any(b'"locations"' in world.objects.inner.read(key) for key in losing.manifest(CONFIRMED_FOLDER))
    world.repo.context.objects.delete_many([world.repo.resolve("main", "a").entry.address])  # the backup has ended
    losing.put_back(MemoryKV())
    reconciliation.rebuild_kv(world.lake)
    repo = world.lake.repository("lake")
    assert repo.read("main", "a") == b"fewer rows"
    assert not world.run_once().corrupt
