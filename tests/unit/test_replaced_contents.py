"""What asks whether an object is there asks for its content, wherever a purge has put it (rule 22)."""

from __future__ import annotations

from refstore.core import ids
from refstore.kv_recovery import kv_verification
from refstore.operations.address_info import AddressState, address_info
from tests.purging import rewrite
from tests.reaper_world import World


def staged_and_purged(world: World) -> str:
    """Stage an object, purge it, and let its backup end; return its identity."""
    repo = world.repo
    repo.upload("main", "a", b"all rows")
    identity = repo.stat("main", "a").address
    rewrite(repo, "main", "a", b"fewer rows")
    repo.context.objects.delete_many([identity])
    return identity


def test_what_is_in_its_grace_window_is_restored_with_its_content() -> None:
    world = World()
    identity = staged_and_purged(world)
    world.repo.reset("main")
    world.run_once()
    world.repo.restore(identity, to="main", path="a")
    assert world.repo.read("main", "a") == b"fewer rows"
    assert world.repo.stat("main", "a").size_bytes == len(b"fewer rows")


def test_a_staged_object_does_not_count_as_missing() -> None:
    world = World()
    identity = staged_and_purged(world)
    assert not kv_verification.verify_kv(world.lake).findings
    content = world.repo.stat("main", "a").address
    world.repo.context.objects.delete_many([content])
    assert [item.reason for item in kv_verification.verify_kv(world.lake).findings] == [identity]


def test_a_committed_object_does_not_count_as_gone() -> None:
    world = World()
    identity = staged_and_purged(world)
    world.repo.commit("main", "a")
    world.run_once()
    assert address_info(world.repo.context, ids.own_address(identity)).state is AddressState.COMMITTED
