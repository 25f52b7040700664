"""The reaper deletes an identity with every object that a purge has written for it (rule 22)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from refstore.deletion_history import deletion_journal
from refstore.versioning.locations import LocatedIdentity, RewriteIntent
from tests.purging import announce, content_of, content_to_be, intend, publish, rewrite, write
from tests.reaper_world import World


def locations(world: World) -> list[LocatedIdentity]:
    return list(world.repo.context.locations.scan())


def test_content_backups_and_record_go_with_the_identity() -> None:
    world = World()
    (entry,) = world.upload("main", "a")
    rewrite(world.repo, "main", "a", b"without one row")
    published = rewrite(world.repo, "main", "a", b"without two rows", "run-2")
    assert len(world.stored()) == 3
    world.repo.reset("main")
    world.run_past_grace()
    assert not world.stored()
    assert not locations(world)
    assert not world.references()
    found = list(deletion_journal.find(world.objects, content_of(published), after=""))
    assert [event.outcome for event in found] == ["deleted"]
    assert found[0].path == "a"
    assert entry.address not in world.stored()


def test_what_is_named_still_keeps_all_of_it() -> None:
    world = World()
    world.upload("main", "a", "b")
    published = rewrite(world.repo, "main", "a", b"fewer")
    world.repo.commit("main", "both")
    world.repo.delete("main", "b")
    world.run_past_grace()
    assert content_of(published) in world.stored()
    assert locations(world) == [published]


def test_an_identity_goes_though_its_own_object_is_gone_already() -> None:
    """Its backup has ended."""
    world = World()
    (entry,) = world.upload("main", "a")
    rewrite(world.repo, "main", "a", b"fewer")
    world.objects.inner.delete_many([entry.address])
    world.repo.reset("main")
    world.run_past_grace()
    assert not world.stored()
    assert not locations(world)
    assert not world.references()


def test_what_the_store_does_not_delete_keeps_identity_and_record_for_the_next_pass() -> None:
    world = World()
    world.upload("main", "a")
    content = content_of(rewrite(world.repo, "main", "a", b"fewer"))
    world.repo.reset("main")
    world.objects.refuses.add(content)
    world.run_past_grace()
    assert world.stored() == {content}
    (left,) = locations(world)
    assert left.location.current is None
    assert world.references() == 1
    assert world.hints() == 1
    world.objects.refuses.clear()
    assert world.run_once().deleted == 1
    assert not world.stored()
    assert not locations(world)
    assert not world.references()


def test_a_pass_that_died_between_the_object_and_its_contents_is_finished() -> None:
    world = World()
    (entry,) = world.upload("main", "a")
    rewrite(world.repo, "main", "a", b"fewer")
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(100_000)

    def die(doomed: Sequence[str]) -> None:
        if entry.address not in doomed:
            raise KeyboardInterrupt

    world.objects.before_delete = die
    with suppress(KeyboardInterrupt):
        world.run_once()
    assert len(world.stored()) == 1
    world.objects.before_delete = None
    world.clock.advance(100_000)
    world.run_once()
    assert not world.stored()
    assert not locations(world)


def test_an_attempt_under_way_publishes_nothing_and_cleans_up() -> None:
    world = World()
    world.upload("main", "a")
    announce(world.repo)
    intended = intend(world.repo, "main", "a")
    assert intended is not None
    world.repo.reset("main")
    world.run_past_grace()
    write(world.repo, intended, b"late")
    assert publish(world.repo, intended, b"late") is None
    address = content_to_be(intended)
    assert world.repo.context.locations.find_unpublished([(intended.identity, address)]) == [address]


def test_an_intent_that_comes_while_the_object_goes_is_found_behind_it() -> None:
    """The reaper reads the records behind the deletion: before it there was none."""
    world = World()
    world.upload("main", "a")
    announce(world.repo)
    ctx = world.repo.context
    late = intend(world.repo, "main", "a")
    assert late is not None
    original, address = late.location.current, content_to_be(late)
    assert original is not None
    ctx.locations.withdraw([late])
    world.repo.reset("main")
    world.run_once()
    world.clock.advance(100_000)

    def an_attempt_begins(_: Sequence[str]) -> None:
        world.objects.before_delete = None
        (again,) = ctx.locations.intend([RewriteIntent(late.identity, original, address)], "run-1")
        assert again is not None
        world.objects.put(address, b"fewer")

    world.objects.before_delete = an_attempt_begins
    world.run_once()
    assert not world.stored()
    assert not locations(world)


def test_a_deleted_repository_leaves_no_locations() -> None:
    world = World()
    world.upload("main", "a")
    world.repo.commit("main", "one")
    rewrite(world.repo, "main", "a", b"fewer")
    repo = world.repo.context.repo
    world.lake.delete_repository("lake")
    for _ in range(4):
        world.clock.advance(100_000)
        world.run_once()
    left = [key for key in world.kv.dump() if key.partition.startswith(f"{repo}/")]
    assert not left


def test_a_repository_without_a_purge_is_asked_once_a_batch() -> None:
    world = World()
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    asked: list[str] = []

    def note(op: object) -> None:
        partition = getattr(getattr(op, "key", None), "partition", "")
        if partition.endswith("/purge") or "/locations/" in partition:
            asked.append(partition)

    world.kv.before = note
    world.run_past_grace()
    assert len(asked) == len([size for size in world.objects.batches if size])
    assert not any("/locations/" in partition for partition in asked)


def test_a_record_says_all_addresses_that_it_names_once() -> None:
    world = World()
    (entry,) = world.upload("main", "a")
    published = rewrite(world.repo, "main", "a", b"fewer")
    intended = intend(world.repo, "main", "a", "run-2")
    assert intended is not None
    named = intended.location.addresses()
    assert named == (content_of(published), entry.address, content_to_be(intended))
