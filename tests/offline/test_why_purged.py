"""`refstore why` of each address of a purged object, in each state until it is deleted, and afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from refstore.core.clock import to_ms
from refstore.core.ids import Address, new_address, own_address
from refstore.deletion_history.explain import AddressReport
from refstore.operations.address_info import AddressState
from refstore.operations.purge_roles import HIDDEN_BRANCHES, AddressRole
from refstore.records.location_records import Content
from refstore.versioning.locations import WrittenContent
from refstore_gc import deletion_index_writer, gc_run
from refstore_gc.gc_run import GcOptions
from refstore_purge import purge_cleanup
from tests.offline.test_purge_backups import DAY_SECONDS, NEW, NEWER, OLD, one_object, set_days, settle
from tests.offline.world import World
from tests.purging import announce, content_of, content_to_be, intend, rewrite, write
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


class State(NamedTuple):
    """What `why` says of an address."""

    state: AddressState
    role: AddressRole | None
    run: str
    words: Sequence[str]
    """What stands in the meaning."""


def check(world: World, address: str, expected: State) -> AddressReport:
    why = world.repo.why(address)
    assert why.info.state is expected.state
    assert (why.purge_role.role if why.purge_role is not None else None) is expected.role
    if why.purge_role is not None:
        assert why.purge_role.run == expected.run
    assert [word for word in expected.words if word not in why.meaning] == [], why.meaning
    return why


def check_deleted(world: World, address: str, *, by: str, cause: str, rule: str, run: str = "") -> None:
    """The address is gone, and one deletion says by whom, why and when."""
    why = world.repo.why(address)
    assert why.info.state is AddressState.GONE
    (deletion,) = why.deletions
    assert (deletion.by, deletion.outcome) == (by, "deleted")
    assert deletion.cause.startswith(cause)
    assert rule in deletion.rule
    assert "issued" not in deletion.rule
    assert deletion.run == run if run else deletion.run.startswith("purge-")
    assert 0 < to_ms(deletion.at) <= world.clock.now_ms()


class TestWhileItIsThere:
    def test_the_identity_its_content_and_its_backup(self, world: World) -> None:
        identity = one_object(world)
        assert world.repo.why(identity).purge_role is None
        first = content_of(rewrite(world.repo, "main", "a/x", NEW, run="run-1"))
        why = check(
            world, identity, State(AddressState.COMMITTED, AddressRole.IDENTITY, "run-1", ["commits keep it", first])
        )
        assert "what was uploaded still lies here, as a backup" in why.meaning
        assert why.naming is not None
        assert why.naming.branches == (("main", "a/x"),)
        check(world, first, State(AddressState.CONTENT, AddressRole.CONTENT, "run-1", [identity, "stays as long as"]))
        second = content_of(rewrite(world.repo, "main", "a/x", NEWER, run="run-2"))
        check(world, first, State(AddressState.BACKUP, AddressRole.BACKUP, "run-2", [identity, "run-2", "until when"]))
        check(world, second, State(AddressState.CONTENT, AddressRole.CONTENT, "run-2", [identity]))
        (version,) = world.repo.why_path("main", "a/x").versions
        assert version.why is not None
        assert version.why.meaning == world.repo.why(identity).meaning

    def test_what_a_restore_put_back_and_what_it_replaced(self, world: World) -> None:
        identity = one_object(world)
        content = content_of(rewrite(world.repo, "main", "a/x", NEW))
        world.ctx.locations.restore(own_address(identity), own_address(identity), "restore-9")
        check(world, identity, State(AddressState.COMMITTED, AddressRole.IDENTITY, "", ["a restore has put back"]))
        check(
            world, content, State(AddressState.TRASH, AddressRole.TRASH, "restore-9", [identity, "restore-9", "trash"])
        )

    def test_an_erased_object(self, world: World) -> None:
        identity = one_object(world)
        announce(world.repo)
        intended = intend(world.repo, "main", "a/x", "run-e")
        assert intended is not None
        erased = Content(Address(""), 0, "", "", "run-e", world.clock.now_ms())
        world.ctx.locations.publish([WrittenContent(intended, erased)], "run-e")
        words = ["commits keep it", "the run run-e has erased its content", "as a backup"]
        check(world, identity, State(AddressState.COMMITTED, AddressRole.IDENTITY, "run-e", words))

    def test_an_attempt_under_way_and_one_of_a_run_that_was_killed(self, world: World) -> None:
        identity = one_object(world)
        announce(world.repo)
        intended = intend(world.repo, "main", "a/x", "run-1")
        assert intended is not None
        attempt = content_to_be(intended)
        check(world, attempt, State(AddressState.GONE, AddressRole.ATTEMPT, "run-1", ["is about to write", identity]))
        write(world.repo, intended, NEW)
        check(world, attempt, State(AddressState.ATTEMPT, AddressRole.ATTEMPT, "run-1", ["not published", identity]))
        check(world, identity, State(AddressState.COMMITTED, AddressRole.IDENTITY, "", ["run-1 is about to replace"]))
        settle(world)
        check(world, attempt, State(AddressState.ATTEMPT, AddressRole.ATTEMPT, "run-1", ["killed", "next cleaning"]))
        check(world, identity, State(AddressState.COMMITTED, AddressRole.IDENTITY, "", ["killed", "run-1"]))
        again = intend(world.repo, "main", "a/x", "run-2")
        assert again is not None
        check(
            world,
            attempt,
            State(AddressState.PURGE_LEFTOVER, AddressRole.LEFTOVER, "", ["next cleaning deletes it", identity]),
        )

    def test_an_identity_that_is_staged_or_reset(self, world: World) -> None:
        world.repo.upload("main", "a/x", OLD)
        identity = world.address("main", "a/x")
        rewrite(world.repo, "main", "a/x", NEW, run="run-1")
        check(world, identity, State(AddressState.REFERENCED, AddressRole.IDENTITY, "run-1", ["it is staged", "run-1"]))
        world.repo.reset("main")
        why = check(
            world, identity, State(AddressState.REFERENCED, AddressRole.IDENTITY, "run-1", ["nothing names it"])
        )
        assert "commits" not in why.meaning
        release_all(world.repo)
        why = check(world, identity, State(AddressState.IN_GRACE, AddressRole.IDENTITY, "run-1", ["run-1"]))
        assert "commits" not in why.meaning

    def test_what_a_run_has_staged_on_a_hidden_branch(self, world: World) -> None:
        branch = f"{HIDDEN_BRANCHES}run-1-0-0"
        world.repo.create_branch(branch, source="main", hidden=True)
        world.repo.upload(branch, "a/x", NEW)
        why = check(
            world,
            world.address(branch, "a/x"),
            State(AddressState.REFERENCED, None, "", ["run of the purge", "hidden"]),
        )
        assert "nothing deletes it" not in why.meaning

    def test_a_true_orphan_is_one_beside_purged_objects(self, world: World) -> None:
        one_object(world)
        rewrite(world.repo, "main", "a/x", NEW)
        orphan = world.plant(new_address(world.ctx.ids, world.clock.now_ms()))
        check(world, orphan, State(AddressState.ORPHAN, None, "", []))


class TestWhatWasCleaned:
    def test_a_backup_trash_and_an_attempt_name_the_cleanup(self, world: World) -> None:
        set_days(world, days=3, versions=9, trash=1)
        identity = one_object(world)
        backup = content_of(rewrite(world.repo, "main", "a/x", NEW, run="run-1"))
        trash = content_of(rewrite(world.repo, "main", "a/x", NEWER, run="run-2"))
        world.ctx.locations.restore(own_address(identity), own_address(identity), "restore-9")
        intended = intend(world.repo, "main", "a/x", "run-3")
        assert intended is not None
        write(world.repo, intended, NEW)
        attempt = content_to_be(intended)
        world.clock.sleep(9 * DAY_SECONDS)
        cleaned = purge_cleanup.clean_up(world.ctx)
        assert (cleaned.backups.objects, cleaned.trash.objects, cleaned.attempts.objects) == (1, 1, 1)

        def look() -> None:
            of = f"of the purged object {identity}"
            check_deleted(world, backup, by="cleaning", cause=f"a backup {of}", rule="days or versions")
            check_deleted(world, trash, by="cleaning", cause=f"trash of a restore {of}", rule="days of trash")
            check_deleted(world, attempt, by="cleaning", cause=f"an attempt of a purge {of}", rule="published")

        look()
        world.clock.sleep(DAY_SECONDS)
        deletion_index_writer.index_missing(world.ctx)
        look()

    def test_the_uploaded_content_is_a_backup_at_the_identity_which_stays(self, world: World) -> None:
        set_days(world, days=3)
        identity = one_object(world)
        content = content_of(rewrite(world.repo, "main", "a/x", NEW, run="run-1"))
        world.clock.sleep(9 * DAY_SECONDS)
        purge_cleanup.clean_up(world.ctx)
        why = check(world, identity, State(AddressState.COMMITTED, AddressRole.IDENTITY, "run-1", [content]))
        assert "as a backup" not in why.meaning
        (deletion,) = why.deletions
        assert (deletion.by, deletion.outcome) == ("cleaning", "deleted")
        assert deletion.size_bytes > 0
        assert "only the content that was uploaded went" in deletion.rule
        assert "the object stays" in deletion.rule


class TestWhatWentWithItsObject:
    def test_the_nightly_job_names_its_mark(self, world: World, engines: Engines) -> None:
        world.commit(days_ago=9, a=b"old rows")
        old = world.repo.get_branch("main").head
        world.commit(days_ago=8, a=b"new rows")
        release_all(world.repo)
        identity = world.address(old, "a")
        backup = content_of(rewrite(world.repo, old, "a", b"fewer old rows"))
        content = content_of(rewrite(world.repo, old, "a", b"old rows"))
        intended = intend(world.repo, old, "a", "run-3")
        assert intended is not None
        write(world.repo, intended, b"few")
        world.age()
        mark_id = gc_run.run_nightly(world.ctx, engines, GcOptions(is_full=True)).mark_summary.mark_id
        for address in (backup, content, content_to_be(intended)):
            check_deleted(
                world,
                address,
                by="sweep",
                cause=f"content of the deleted object {identity}",
                rule="it went with its object",
                run=mark_id,
            )
        why = world.repo.why(identity)
        assert (why.info.state, why.purge_role) == (AddressState.GONE, None)
        assert {(deletion.by, deletion.run) for deletion in why.deletions} == {("sweep", mark_id)}
        assert [deletion.cause for deletion in why.deletions if deletion.outcome == "deleted"] == ["expired"]
        assert not any("issued" in deletion.rule for deletion in why.deletions)

    def test_an_identity_whose_own_blob_had_gone_before(self, world: World, engines: Engines) -> None:
        world.commit(days_ago=9, a=b"old rows")
        old = world.repo.get_branch("main").head
        world.commit(days_ago=8, a=b"new rows")
        release_all(world.repo)
        identity = world.address(old, "a")
        rewrite(world.repo, old, "a", b"fewer old rows")
        world.ctx.objects.delete_many([identity])
        world.age()
        mark_id = gc_run.run_nightly(world.ctx, engines, GcOptions(is_full=True)).mark_summary.mark_id
        (deletion,) = world.repo.why(identity).deletions
        assert (deletion.by, deletion.run, deletion.outcome) == ("sweep", mark_id, "missing")
        assert "no commit and no branch named it" in deletion.rule
