"""The purge of what lies in the undo trash (modes `rewrite` and `erase`): what `restore` brings back has no rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refstore.context import Context
from refstore.core import ids
from refstore.core.ids import Address, BranchName, Token
from refstore.errors import Gone
from refstore.operations.referenced_entries import referenced_entries
from refstore.operations.stage_entries import Placement, place
from refstore.public_types import stored_entry
from refstore.records.reference_records import Reference
from refstore_purge import purge_cleanup, purge_plan, restore_backups
from refstore_purge.purge_report import PurgeReport
from refstore_purge.restore_backups import RestoreScope
from tests.offline.purge_runs import DATASETS, purge_with
from tests.offline.world import World
from tests.reaping import reap_all, release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

DAY_SECONDS = 86_400
EVENTS, PICTURE = "events/day=1/x", "faces/guest=bob/1.jpg"
BODY, CLEAN = b"guest,at\nann,1\nbob,2\n", b"guest,at\nann,1\n"
DOCUMENT: dict[str, Any] = {"whitelist": ["*"], "datasets": DATASETS[:2]}

Purge = Callable[..., PurgeReport]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, grace_seconds=30 * DAY_SECONDS)
    made.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    yield made
    made.close()


@pytest.fixture
def purge(world: World, engines: Engines) -> Purge:
    file = world.folder / "ids.csv"
    file.write_text("id\nbob\n")

    def made(**options: Any) -> PurgeReport:
        return purge_with(world, engines, file, share=1, **options)

    return made


def stage(world: World, branch: str = "main", path: str = EVENTS, body: bytes = BODY) -> str:
    """Upload an object, and return its identity."""
    return world.repo.upload(branch, path, body).address


def reset(world: World) -> str:
    identity = stage(world)
    world.repo.reset("main")
    return identity


def overwritten(world: World) -> str:
    identity = stage(world)
    stage(world, body=CLEAN)
    return identity


def deleted(world: World) -> str:
    identity = stage(world)
    world.repo.delete("main", EVENTS)
    return identity


def on_a_deleted_branch(world: World) -> str:
    world.repo.create_branch("dev", source="main")
    identity = stage(world, "dev")
    world.repo.delete_branch("dev")
    return identity


def overwritten_before_a_commit_took_the_token(world: World) -> str:
    """A listing of the trash shows it when the reaper has processed the token; a restore by address finds it before."""
    identity = stage(world)
    ctx, branch = world.ctx, BranchName("main")
    ctx.branches.seal(branch, lambda: ctx.staging.new_token(branch, ctx.ids, ctx.clock))  # by a commit that died
    stage(world, body=CLEAN)
    world.repo.commit("main", "took both tokens")
    return identity


LOST = [reset, overwritten, deleted, on_a_deleted_branch, overwritten_before_a_commit_took_the_token]


@pytest.mark.parametrize("is_released", [False, True], ids=["before the reaper", "in its grace window"])
@pytest.mark.parametrize("lose", LOST)
def test_what_a_restore_brings_back_has_no_rows(
    world: World, purge: Purge, lose: Callable[[World], str], is_released: bool
) -> None:
    identity = lose(world)
    if is_released:
        release_all(world.repo)
    made = purge()
    assert made.is_whole, made
    assert sum(row.rewritten_objects for row in made.rows) == 1
    world.repo.restore(identity, to="main", path="events/restored", force=True)
    assert world.repo.read("main", "events/restored") == CLEAN
    assert world.repo.stat("main", "events/restored").size_bytes == len(CLEAN)
    assert [row.matched_objects for row in purge().rows if row.matched_objects] == []


def test_it_is_restored_when_its_backup_is_gone(world: World, purge: Purge) -> None:
    identity = reset(world)
    release_all(world.repo)
    purge()
    world.clock.sleep(2 * world.ctx.safety.operation_deadline_seconds)
    world.repo.onboard_purge(json.dumps({**DOCUMENT, "backup": {"days": 0, "versions": 0}}), by="tests")
    assert purge_cleanup.clean_up(world.ctx).backups.objects == 1
    assert identity not in world.data()
    (restored,) = world.repo.restore_many("main")
    assert restored.error is None
    assert world.repo.read("main", EVENTS) == CLEAN


def test_what_was_erased_is_restored_as_erased(world: World, purge: Purge) -> None:
    stage(world, path=PICTURE)
    world.repo.upload("main", "faces/guest=ann/1.jpg", b"of another guest")
    world.repo.reset("main")
    made = purge()
    assert made.is_whole, made
    assert sum(row.erased_objects for row in made.rows) == 1
    assert {item.path for item in world.repo.restore_many("main")} == {PICTURE, "faces/guest=ann/1.jpg"}
    assert {path: entry.size_bytes for path, entry in world.repo.list("main") if entry is not None} == {
        PICTURE: 0,
        "faces/guest=ann/1.jpg": len(b"of another guest"),
    }
    with pytest.raises(Gone, match=f"was erased by the purge {made.run}"):
        world.repo.read("main", PICTURE)


def test_the_user_metadata_of_what_is_lost_says_whose_it_is(world: World, purge: Purge) -> None:
    world.repo.upload("main", "faces/1.jpg", b"a picture", metadata={"guest": "bob"})
    world.repo.reset("main")
    assert sum(row.erased_objects for row in purge().rows) == 1
    assert sum(row.erased_objects for row in purge().rows) == 0


@pytest.mark.parametrize("path", [EVENTS, PICTURE])
def test_the_reaper_deletes_what_was_purged_at_the_end_of_its_grace_window(
    world: World, purge: Purge, path: str
) -> None:
    identity = stage(world, path=path)
    world.repo.reset("main")
    release_all(world.repo)
    purge()
    assert identity in world.data()  # as the backup
    assert len(list(purge_cleanup.scan_backups(world.ctx))) == 1
    world.clock.sleep(31 * DAY_SECONDS)
    reap_all(world.repo)
    assert world.data() == set()
    assert world.ctx.locations.get_many([Address(identity)]) == [None]
    assert list(purge_cleanup.scan_backups(world.ctx)) == []


def test_an_object_with_a_name_and_a_lost_one_is_purged_once(world: World, purge: Purge) -> None:
    stage(world)
    world.repo.copy("main", EVENTS, to_branch="main", to_path="events/day=1/y")
    world.repo.create_branch("dev", source="main")
    world.repo.copy("main", EVENTS, to_branch="dev", to_path=EVENTS)
    world.repo.delete_branch("dev")
    world.repo.commit("main", "committed")
    made = purge()
    assert [(row.objects, row.matched_objects, row.rewritten_objects) for row in made.rows] == [(1, 1, 1)]


def test_a_lost_name_outside_the_data_sets_is_a_copy(world: World, purge: Purge) -> None:
    identity = stage(world)
    world.repo.create_branch("dev", source="main")
    world.repo.copy("main", EVENTS, to_branch="dev", to_path="elsewhere/copy")
    world.repo.commit("main", "committed")
    world.repo.delete_branch("dev")
    (left,) = purge().skipped_objects
    assert "outside the data sets of this run ('elsewhere/copy' in 'trash of dev')" in left.reason
    assert purge(includes_copies=True).is_whole
    world.repo.restore(identity, to="main", path="elsewhere/restored")
    assert world.repo.read("main", "elsewhere/restored") == CLEAN


def test_a_legal_hold_keeps_what_is_lost_below_it(world: World, purge: Purge) -> None:
    identity = reset(world)
    hold = {"prefix": "events/day=1/", "reason": "a case"}
    world.repo.set_retention(json.dumps({"legal_holds": [hold]}))
    made = purge()
    assert [(left.branch, left.path, left.reason) for left in made.skipped_objects] == [
        ("trash of main", EVENTS, "a legal hold covers it")
    ]
    world.repo.restore(identity, to="main")
    assert world.repo.read("main", EVENTS) == BODY


def test_a_legal_hold_keeps_the_backup_of_what_is_lost_below_it(world: World, purge: Purge) -> None:
    reset(world)
    purge()
    world.repo.set_retention(json.dumps({"legal_holds": [{"prefix": "events/", "reason": "a case"}]}))
    world.clock.sleep(60 * DAY_SECONDS)
    assert purge_cleanup.clean_up(world.ctx).held_contents == 1


@pytest.mark.parametrize(
    "scope",
    [RestoreScope(dataset="events"), RestoreScope(dataset="events", partition="day=1"), RestoreScope(path=EVENTS)],
)
def test_the_content_of_what_is_lost_is_restored_by_its_path(world: World, purge: Purge, scope: RestoreScope) -> None:
    identity = reset(world)
    made = purge()
    assert restore_backups.restore_backups(world.repo, scope._replace(run="" if scope.path else made.run)).objects == 1
    world.repo.restore(identity, to="main")
    assert world.repo.read("main", EVENTS) == BODY


def test_an_upload_that_died_before_its_entry_is_purged(world: World, purge: Purge) -> None:
    ctx = world.ctx
    address = ids.new_address(ctx.ids, ctx.clock.now_ms())
    token: Token = ctx.branches.read_open(BranchName("main")).record.token
    ctx.references.create([(address, Reference(token, ids.object_path(EVENTS)))])
    ctx.objects.put(address, BODY)
    (shown,) = referenced_entries(ctx, ["events/"])
    assert (shown.ref, shown.path, shown.entry.size_bytes, shown.is_described) == ("main", EVENTS, len(BODY), False)
    assert sum(row.rewritten_objects for row in purge().rows) == 1
    world.repo.restore(address, to="main")
    assert world.repo.read("main", EVENTS) == CLEAN


def test_what_is_being_deleted_or_was_never_linked_is_not_looked_at(world: World) -> None:
    world.repo.issue("main", EVENTS)
    assert list(referenced_entries(world.ctx, ["events/"])) == []
    reset(world)
    release_all(world.repo)
    assert [(each.ref, each.path) for each in referenced_entries(world.ctx, ["events/"])] == [("trash of main", EVENTS)]
    assert list(referenced_entries(world.ctx, ["faces/"])) == []
    assert list(referenced_entries(world.ctx, [])) == []


@pytest.fixture
def meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something when the plan has read references, staging areas and commits."""
    real = purge_plan.scan_versions

    def set_act(act: Callable[[], object]) -> None:
        todo = [act]

        def listing(ctx: Context, *, prefixes: Sequence[str] = ("",)) -> Iterator[Any]:
            yield from real(ctx, prefixes=prefixes)
            if todo and DOCUMENT["datasets"][-1]["prefix"] in prefixes:
                todo.pop()()

        monkeypatch.setattr(purge_plan, "scan_versions", listing)

    return set_act


class TestWhatMovesWhileTheRunLists:
    def test_from_the_trash_to_a_commit(
        self, world: World, purge: Purge, meanwhile: Callable[[Callable[[], object]], None]
    ) -> None:
        identity = reset(world)
        release_all(world.repo)

        def restore_and_commit() -> None:
            world.repo.restore(identity, to="main")
            world.repo.commit("main", "restored")
            release_all(world.repo)

        meanwhile(restore_and_commit)
        assert purge().is_whole
        assert world.repo.read("main", EVENTS) == CLEAN

    def test_by_a_restore_that_has_not_come_to_its_entry(
        self, world: World, purge: Purge, meanwhile: Callable[[Callable[[], object]], None]
    ) -> None:
        """Only the user metadata of its entry say that it is to be erased."""
        path, branch = ids.object_path("faces/1.jpg"), BranchName("main")
        world.repo.upload(branch, path, b"a picture", metadata={"guest": "bob"})
        world.repo.delete(branch, path)
        (lost,) = world.repo.list_trash()
        ctx = world.ctx
        assert lost.entry is not None
        entry = stored_entry(lost.entry)
        token = ctx.branches.read_open(branch).record.token
        ctx.references.add([(lost.address, Reference(token, path, entry.reference_id))], on_empty=True)
        meanwhile(lambda: place(ctx, branch, token, [Placement(path, entry=entry, is_referenced=True)], on_empty=True))
        assert sum(row.erased_objects for row in purge().rows) == 1
        assert world.repo.stat("main", path).size_bytes == 0
