"""What a deleted repository leaves in its namespace, and in the KV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest

from refstore.errors import Conflict
from refstore.kv.base import Key
from refstore.namespaces import NAMESPACE_OBJECT, folder_url
from refstore.objects.base import DeleteResult
from refstore.records.keys import NAMESPACES
from refstore_gc import deleted_repositories
from refstore_gc.gc_run import GcOptions
from refstore_reaper import repository_removal
from tests.offline.world import World
from tests.reaping import reap_all, scrub_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def delete_and_drain(world: World) -> None:
    """Delete the repository, and let the reaper do all that it does."""
    world.lake.delete_repository("sales")
    ((_, record),) = world.lake.all_repositories()
    for _ in range(3):
        world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
        scrub_all(world.repo)
        reap_all(world.repo)
    assert repository_removal.is_drained(world.ctx, record)
    assert repository_removal.remove(world.ctx, record)


def test_everything_that_refstore_wrote_goes_and_the_namespace_is_free(world: World, engines: Engines) -> None:
    world.commit(a=b"one", b=b"two")
    world.plant("notes.txt")
    namespace = world.repo.record.namespace
    delete_and_drain(world)
    world.age()
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    waiting = deleted_repositories.clear_repository(world.lake, repo, record, engines, GcOptions())
    assert waiting.sweep is None, "its grace is not over"
    cleared = deleted_repositories.clear_repository(world.lake, repo, record, engines, GcOptions(grace_days=0))
    assert cleared.is_forgotten
    assert cleared.sweep is not None
    assert cleared.sweep.outcomes["deleted"].objects == 5, "two blobs, a range, a metarange and a listing"
    assert [str(file.relative_to(world.blobs)) for file in world.blobs.rglob("*") if file.is_file()] == ["notes.txt"]
    assert list(deleted_repositories.closed_repositories(world.lake)) == []
    (world.blobs / "notes.txt").unlink()
    world.lake.create_repository("again", namespace=namespace)


def test_a_namespace_that_says_it_is_somebody_elses_is_left_alone(world: World, engines: Engines) -> None:
    world.commit(a=b"one")
    delete_and_drain(world)
    world.age()
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    (world.blobs / NAMESPACE_OBJECT).write_text("returns.0123456789abcdefghjkmnpqrs")
    before = world.data()
    with pytest.raises(Conflict, match="belongs to"):
        deleted_repositories.clear_repository(world.lake, repo, record, engines, GcOptions(grace_days=0))
    assert world.data() == before


def test_a_clearing_that_died_last_leaves_the_namespaces_next_repository_alone(world: World) -> None:
    """All that was left to do is to forget the record of the deleted one."""
    namespace = world.repo.record.namespace
    delete_and_drain(world)
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    world.ctx.objects.delete_many([NAMESPACE_OBJECT])
    world.lake.kv.delete(Key(NAMESPACES, folder_url(namespace)))
    world.lake.create_repository("again", namespace=namespace)
    before = world.data()
    cleared = deleted_repositories.clear_repository(
        world.lake, repo, record, cast("Engines", None), GcOptions(grace_days=0)
    )
    assert cleared.is_forgotten
    assert list(deleted_repositories.closed_repositories(world.lake)) == []
    assert world.data() == before
    assert (world.blobs / NAMESPACE_OBJECT).read_text() == world.lake.repository("again").context.repo


@pytest.mark.parametrize("stays", [NAMESPACE_OBJECT, "_refstore/gc/"])
def test_a_namespace_is_free_only_when_the_store_has_deleted_all_that_is_refstores(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch, stays: str
) -> None:
    namespace = world.repo.record.namespace
    delete_and_drain(world)
    world.age()
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    store = world.lake.context(world.repo.context.name, record).objects
    delete_many = store.delete_many

    def all_but_one(keys: Sequence[str]) -> DeleteResult:
        kept = [key for key in keys if key.startswith(stays)][:1]
        done = delete_many([key for key in keys if key not in kept])
        return done._replace(failed_keys=(*done.failed_keys, *((key, "the store said no") for key in kept)))

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete_many", all_but_one)
        cleared = deleted_repositories.clear_repository(
            world.lake, repo, record, engines, GcOptions(grace_days=0, min_age_seconds=0)
        )
    assert (cleared.is_forgotten, cleared.failed_objects) == (False, 1)
    assert (world.blobs / NAMESPACE_OBJECT).read_text() == repo, "what says whose it is goes last"
    assert deleted_repositories.clear_repository(
        world.lake, repo, record, engines, GcOptions(grace_days=0)
    ).is_forgotten
    world.lake.create_repository("again", namespace=namespace)
