"""Old references of a current token are released if their entry does not name the address, though nobody commits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refstore.core.ids import Address, BranchName, object_path
from refstore.errors import CorruptRecord, Gone, KVUnavailable
from refstore.gc_marks import Marks, new_mark_id
from refstore.kv.base import Exchange, Get, Key, Op, SetIf
from refstore.operations.address_info import ReferenceState
from refstore.public_types import Entry
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.reference_records import Emptied, Issued, Listed
from refstore.records.staging_records import StoredEntry
from refstore_reaper.scrub import SCRUBBED_CAUSE, release_unnamed
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, Crash, World
from tests.reaping import scrub_all

MAIN = BranchName("main")
A = object_path("a")


def is_entry(op: Op) -> bool:
    return isinstance(op, Exchange | SetIf) and "/staging/main:" in op.key.partition


def die(world: World, at: Callable[[Op], bool], act: Callable[[], object], *, behind: bool = False) -> None:
    """Run an operation of a client that dies before, or behind, its first step that matches."""
    world.kv.crash_at(at, behind=behind)
    with pytest.raises(Crash):
        act()


def scrub(world: World) -> int:
    """Let what was written grow old, and scrub. Return how many references were dropped."""
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    return world.run_once(scrub_now=True).scrubbed


def record_of(world: World, address: Address) -> object:
    (record,) = world.repo.context.references.get_many([address])
    return record


class TestWhatDiedIsFound:
    def test_an_upload_between_its_reference_and_its_entry(self, world: World) -> None:
        kept = world.upload("main", "kept")[0]
        die(world, is_entry, lambda: world.repo.upload("main", "a", b"x"))
        (left,) = world.stored() - {kept.address}
        assert scrub(world) == 1
        record = record_of(world, left)
        assert isinstance(record, Emptied)
        assert record.cause == SCRUBBED_CAUSE
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        assert world.stored() == {kept.address}

    @pytest.mark.parametrize(
        "act",
        [
            pytest.param(lambda repo: repo.upload("main", "a", b"y"), id="overwrite"),
            pytest.param(lambda repo: repo.upload("main", "a", b"y", if_entry=repo.stat("main", "a")), id="if_entry"),
            pytest.param(lambda repo: repo.delete("main", "a"), id="delete"),
            pytest.param(lambda repo: repo.copy("main", "b", to_branch="main", to_path="a"), id="copy over it"),
            pytest.param(lambda repo: repo.move("main", "b", to_path="a"), id="move over it"),
            pytest.param(lambda repo: repo.reset("main", path="a"), id="reset of the path"),
            pytest.param(lambda repo: repo.delete_many("main", ["a", "c"]), id="batch"),
        ],
    )
    def test_an_operation_between_the_new_entry_and_the_release_of_the_old_one(
        self, world: World, act: Callable[[object], object]
    ) -> None:
        entry, *_ = world.upload("main", "a", "b", "c")

        def is_entry_of_a(op: Op) -> bool:
            return is_entry(op) and op.key.name == "a"

        die(world, is_entry_of_a, lambda: act(world.repo), behind=True)
        assert scrub(world) >= 1
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        assert entry.address not in world.stored()
        for listed in world.repo.list("main"):
            assert world.repo.read("main", listed.path)

    def test_a_restore_between_its_reference_and_its_entry(self, world: World) -> None:
        entry = world.upload("main", "a")[0]
        world.repo.delete("main", "a")
        die(world, is_entry, lambda: world.repo.restore(entry.address, to="main"))
        assert isinstance(record_of(world, entry.address), Listed)
        assert scrub(world) == 1
        assert [item.address for item in world.repo.list_trash()] == [entry.address]
        world.repo.restore(entry.address, to="main", path="b")
        assert scrub(world) == 0
        assert world.repo.read("main", "b") == b"x"

    def test_a_link_between_its_reference_and_its_entry(self, world: World) -> None:
        issued = world.repo.issue("main", "a")
        world.objects.put(issued.address, b"x")
        die(world, is_entry, lambda: world.repo.link("main", "a", issued.token))
        assert scrub(world) == 1
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        assert not world.stored()


class TestWhatStays:
    def test_a_reference_of_an_operation_that_may_be_under_way(self, world: World) -> None:
        die(world, is_entry, lambda: world.repo.upload("main", "a", b"x"))
        world.clock.advance(SCRUB_AFTER_SECONDS - 1)
        assert world.run_once(scrub_now=True).scrubbed == 0

    def test_what_an_upload_at_its_deadline_needs_for_its_last_write(self, world: World) -> None:
        """By the clock of a reaper that is as far ahead as clocks may be."""
        safety = world.repo.context.safety
        die(world, is_entry, lambda: world.repo.upload("main", "a", b"x"))
        world.clock.advance(safety.operation_deadline_seconds + safety.io_timeout_seconds + safety.clock_skew_seconds)
        assert world.run_once(scrub_now=True).scrubbed == 0

    def test_what_a_sealed_token_has(self, world: World) -> None:
        entry = world.upload("main", "a")[0]
        die(world, is_entry, lambda: world.repo.upload("main", "a", b"y"), behind=True)
        ctx = world.repo.context
        ctx.branches.seal(MAIN, lambda: ctx.staging.new_token(MAIN, ctx.ids, ctx.clock))
        assert scrub(world) == 0
        assert isinstance(record_of(world, entry.address), Listed)

    def test_a_token_that_is_sealed_while_the_entries_are_read(self, world: World) -> None:
        """The commit has read the old entry, and a late writer replaces it before the scrubber looks."""
        entry = world.upload("main", "a")[0]
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        ctx = world.repo.context
        token = ctx.branches.read_open(MAIN).record.token

        def seal(op: Op) -> None:
            if isinstance(op, Get) and "/staging/main:" in op.key.partition:
                world.kv.before = None
                ctx.branches.seal(MAIN, lambda: ctx.staging.new_token(MAIN, ctx.ids, ctx.clock))
                world.kv.delete(keys.entry(ctx.repo, token, object_path(op.key.name)))

        world.kv.before = seal
        for shard in range(keys.SHARDS):
            assert release_unnamed(ctx, shard, check_servers=lambda: None).references == 0
        assert isinstance(record_of(world, entry.address), Listed)

    def test_an_issued_address_and_an_open_upload(self, world: World) -> None:
        issued = world.repo.issue("main", "a")
        scrub_all(world.repo)
        assert isinstance(record_of(world, issued.address), Issued)

    def test_what_an_unreadable_entry_may_name(self, world: World) -> None:
        entry = world.upload("main", "a")[0]
        ctx = world.repo.context
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        world.corrupt(keys.entry(ctx.repo, ctx.branches.read_open(MAIN).record.token, A))
        reported: list[str] = []

        def report(name: str, error: CorruptRecord) -> None:
            reported.append(f"{name}: {error}")

        released = [
            release_unnamed(ctx, shard, check_servers=lambda: None, on_corrupt=report).references
            for shard in range(keys.SHARDS)
        ]
        assert (sum(released), len(reported)) == (0, 1)
        assert isinstance(record_of(world, entry.address), Listed)


class TestRaces:
    def test_a_list_that_changes_all_the_time_loses_its_old_reference(self, world: World) -> None:
        """One time of change for all references of a list would keep the old one for ever."""
        entry = world.upload("main", "a")[0]
        world.repo.copy("main", "a", to_branch="main", to_path="b")
        die(world, is_entry, lambda: world.repo.upload("main", "a", b"y"), behind=True)
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        world.repo.copy("main", "b", to_branch="main", to_path="c")
        assert world.run_once(scrub_now=True).scrubbed == 1
        record = record_of(world, entry.address)
        assert isinstance(record, Listed)
        assert [ref.path for ref in record.references] == ["b", "c"]

    def test_a_list_that_others_change_meanwhile_is_read_again(self, world: World) -> None:
        entry = world.upload("main", "a")[0]
        world.repo.copy("main", "a", to_branch="main", to_path="b")
        die(world, is_entry, lambda: world.repo.upload("main", "a", b"y"), behind=True)
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        copies = iter(range(3))

        def copy_again() -> None:
            number = next(copies, None)
            if number is not None:
                world.repo.copy("main", "b", to_branch="main", to_path=f"copy-{number}")

        released = [
            release_unnamed(world.repo.context, shard, check_servers=copy_again).references
            for shard in range(keys.SHARDS)
        ]
        assert sum(released) == 1
        record = record_of(world, entry.address)
        assert isinstance(record, Listed)
        assert [ref.path for ref in record.references] == ["b", "copy-0", "copy-1", "copy-2"]

    def test_a_restore_between_the_look_and_the_release_is_kept(self, world: World) -> None:
        entry = world.upload("main", "a")[0]
        die(world, is_entry, lambda: world.repo.delete("main", "a"), behind=True)
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)
        restored: list[object] = []

        def restore() -> None:
            if not restored:
                restored.append(world.repo.restore(entry.address, to="main", path="b"))

        for shard in range(keys.SHARDS):
            release_unnamed(world.repo.context, shard, check_servers=restore)
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        assert world.repo.read("main", "b") == b"x"

    def test_nothing_is_released_where_other_servers_answer(self, world: World) -> None:
        entry = world.upload("main", "a")[0]
        die(world, is_entry, lambda: world.repo.delete("main", "a"), behind=True)
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)

        def others_answer() -> None:
            raise KVUnavailable("planted: other servers answer")

        shard = keys.shard_of(entry.address)
        with pytest.raises(KVUnavailable):
            release_unnamed(world.repo.context, shard, check_servers=others_answer)
        assert isinstance(record_of(world, entry.address), Listed)


class TestUndo:
    """What a copy from a marked commit replaced is put back, though its reference was released meanwhile."""

    def copy_late(self, world: World, meanwhile: Callable[[], None]) -> Entry:
        """Copy over a staged object from a commit that is marked behind the entry. Return the staged one's entry."""
        world.upload("main", "committed")
        commit = world.repo.commit("main", "c1").id
        world.upload("main", "other")
        world.repo.commit("main", "c2")
        staged = world.repo.upload("main", "a", b"staged")
        world.clock.advance(SCRUB_AFTER_SECONDS + 1)

        def mark(op: Op) -> None:
            if is_entry(op):
                world.kv.behind = None
                Marks(world.repo.context).mark_run.begin("", 0, [commit], new_mark_id(world.repo.context))
                meanwhile()

        world.kv.behind = mark
        with pytest.raises(Gone):
            world.repo.copy(commit, "committed", to_branch="main", to_path="a")
        return staged

    def test_under_a_new_reference(self, world: World) -> None:
        staged = self.copy_late(world, lambda: scrub_all(world.repo))
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        assert world.repo.read("main", "a") == b"staged"
        value = world.kv.get(self.key_of_a(world))
        assert isinstance(value, bytes)
        entry = decode(value, StoredEntry)
        assert entry.address == staged.address
        record = record_of(world, staged.address)
        assert isinstance(record, Listed)
        assert {ref.id for ref in record.references} == {entry.reference_id}

    def test_unless_it_is_being_deleted(self, world: World) -> None:
        def delete() -> None:
            scrub_all(world.repo)
            world.clock.advance(GRACE_SECONDS + 1)
            world.run_pass()

        staged = self.copy_late(world, delete)
        assert staged.address not in world.stored()
        assert world.repo.list("main")
        assert "a" not in [item.path for item in world.repo.list("main")]

    def key_of_a(self, world: World) -> Key:
        ctx = world.repo.context
        return keys.entry(ctx.repo, ctx.branches.read_open(MAIN).record.token, A)


def test_why_says_that_no_entry_names_it(world: World) -> None:
    die(world, is_entry, lambda: world.repo.upload("main", "a", b"x"))
    (left,) = world.stored()
    view = world.repo.why(left).info
    assert "no entry names it" in world.repo.why(left).meaning
    assert [named.state for named in view.references] == [ReferenceState.UNNAMED]
    assert view.reference_state is ReferenceState.UNNAMED
