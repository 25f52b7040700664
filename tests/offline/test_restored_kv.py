"""A KV that was restored from an older copy, under a store that went on: what it names stays, and what is dead is told
and cleaned up.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refstore.core import ids
from refstore.core.ids import Address, BranchName, Token
from refstore.errors import CorruptObject, KVWentBack
from refstore.gc_marks import Marks
from refstore.kv.base import ABSENT, Exchange
from refstore.kv_recovery.fence import WITNESSES_FOLDER
from refstore.records import keys
from refstore.records.branch_records import TokenRecord
from refstore.records.encoding import encode
from refstore.records.reference_records import Reference
from refstore.records.staging_records import StoredEntry
from refstore.versioning.manifest import WAITING_FOLDER
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_reaper import scrub
from tests.kit.independent_audit import Audit, audit
from tests.offline.world import World
from tests.reaping import reap_all, scrub_all
from tests.servers.losing_kvs import copy_sqlite

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

NOW = GcOptions(grace_days=0, min_age_seconds=0)


def back_up(world: World) -> Path:
    """A copy of the KV while it is in use, as an operator makes it."""
    copy = world.folder / "backup.sqlite"
    copy_sqlite(world.folder / "kv.sqlite", copy)
    return copy


def restore(world: World, copy: Path) -> None:
    """Put the copy in the KV's place; nobody has it open."""
    clock, safety, open_store, url = world.lake.clock, world.lake.safety, world.lake.open_store, world.lake.objects_url
    world.lake.close()
    for file in world.folder.glob("kv.sqlite*"):
        file.unlink()
    shutil.copy(copy, world.folder / "kv.sqlite")
    from refstore.configuration.settings import embedded_urls
    from tests.durations import unchecked_lake

    world.lake = unchecked_lake(embedded_urls(world.folder)[0], url, safety=safety, clock=clock)
    world.lake.open_store = open_store
    world.repo = world.lake.repository("sales")


def found(world: World) -> Audit:
    return audit(world.lake.kv, world.ctx.objects, world.ctx.repo, now_ms=world.clock.now_ms())


def later(world: World) -> None:
    """Every operation that was under way is over, and the reaper has been round."""
    for _ in range(3):
        world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
        scrub_all(world.repo)
        reap_all(world.repo)


def live(world: World, branch: str) -> tuple[Token, ...]:
    return world.ctx.branches.read_open(BranchName(branch)).record.live_tokens


@pytest.fixture
def restored(world: World) -> tuple[World, dict[str, Any]]:
    """Backed up with a history, a branch and staged data; then changed in every way; then restored."""
    repo = world.repo
    world.commit(days_ago=9, a=b"a1", b=b"b1")
    world.commit(days_ago=8, a=b"a2")
    repo.create_branch("dev", source="main")
    repo.upload("dev", "staged", b"staged on dev")
    repo.upload("dev", "reset", b"reset behind the backup")
    repo.copy("main~1", "a", to_branch="dev", to_path="copied from history")
    reap_all(repo)
    copy = back_up(world)
    known: dict[str, Any] = {
        "named": {path: repo.read("dev", path) for path in ("a", "b", "staged", "copied from history")},
        "reset": repo.stat("dev", "reset").address,
        "blobs": world.data(),
    }
    repo.reset("dev", path="reset")
    world.commit(days_ago=2, a=b"a3", c=b"c1")
    repo.upload("main", "d", b"staged behind the backup")
    repo.commit("dev", "behind the backup")
    known["token"] = live(world, "dev")[0]
    reap_all(repo)
    assert known["reset"] not in world.data()
    restore(world, copy)
    world.age()
    return world, known


def accept(world: World) -> None:
    """Do what an operator does who accepts the loss: the manifest and the witnesses say nothing of it any more."""
    for store, folder in ((world.ctx.objects, WAITING_FOLDER), (world.lake.own_store, WITNESSES_FOLDER)):
        store.delete_many([info.key for info in store.list(folder)])


class TestTheOfflineJob:
    def test_deletes_nothing_until_an_operator_accepts_the_loss(
        self, restored: tuple[World, dict[str, Any]], engines: Engines
    ) -> None:
        world, _ = restored
        before = world.data()
        with pytest.raises(KVWentBack, match="does not know what repository 'sales' acknowledged"):
            gc_run.run_nightly(world.ctx, engines, NOW)
        assert world.data() == before
        assert [*Marks(world.ctx).runs.scan()] == []

    def test_deletes_nothing_that_the_restored_kv_names(
        self, restored: tuple[World, dict[str, Any]], engines: Engines
    ) -> None:
        world, known = restored
        accept(world)
        before = found(world)
        assert [item.what for item in before.lost] == [known["reset"]], (
            "deleted behind the backup: no job brings that back"
        )
        gc_run.run_nightly(world.ctx, engines, NOW)
        assert {path: world.repo.read("dev", path) for path in known["named"]} == known["named"]
        assert found(world).lost == before.lost

    def test_tells_what_came_behind_the_backup_as_drift_and_deletes_it(
        self, restored: tuple[World, dict[str, Any]], engines: Engines
    ) -> None:
        world, known = restored
        accept(world)
        summary = gc_run.run_nightly(world.ctx, engines, NOW).latest_summary
        assert summary.drift["orphan blob"].objects == 3, "a3, c1, and what was staged"
        assert summary.drift["orphan range"].objects > 0
        assert world.data() == known["blobs"] - {known["reset"]}
        assert found(world).leaked == []

    def test_leaves_it_alone_while_it_is_young(self, restored: tuple[World, dict[str, Any]], engines: Engines) -> None:
        """So that an operator has the time to copy it out."""
        world, _ = restored
        accept(world)
        before = world.data()
        world.age(days=0.5)
        summary = gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0)).latest_summary
        assert summary.marked.objects == 0
        assert world.data() == before

    def test_keeps_what_a_live_token_names_that_lost_its_registration(self, world: World, engines: Engines) -> None:
        """A cluster may forget the one and keep the other; and an entry copied from history has no reference to be
        found by.
        """
        world.commit(days_ago=9, a=b"a1")
        world.repo.create_branch("dev", source="main")
        world.commit(days_ago=8, a=b"a2")
        world.commit(days_ago=7, a=b"a3")
        world.repo.delete("dev", "a")
        world.repo.copy("main~2", "a", to_branch="dev", to_path="copied")
        world.repo.create_branch("other", source="main")
        for token in live(world, "dev"):
            world.lake.kv.delete(keys.token(world.ctx.repo, token))
        world.repo.copy("dev", "copied", to_branch="other", to_path="copied")
        for token in live(world, "other"):
            world.lake.kv.delete(keys.token(world.ctx.repo, token))
        world.repo.delete_branch("dev")
        reap_all(world.repo)
        world.age()
        gc_run.run_nightly(world.ctx, engines, NOW)
        assert world.repo.read("other", "copied") == b"a1"


class TestTheReaper:
    def test_forgets_what_was_written_under_a_token_the_restored_kv_does_not_know(
        self, restored: tuple[World, dict[str, Any]]
    ) -> None:
        """A client that nobody stopped goes on with the token that it had read, looks again, and writes a second
        time.
        """
        world, known = restored
        accept(world)
        ctx, token, now = world.ctx, known["token"], world.clock.now_ms()
        assert token not in live(world, "dev")
        assert ctx.kv.get(keys.token(ctx.repo, token)) is ABSENT
        path = ids.object_path("late")
        late = ids.new_address(ctx.ids, now)
        ctx.references.create([(late, Reference(token, path))])
        ctx.objects.put(late, b"late")
        ctx.kv.execute([Exchange(keys.entry(ctx.repo, token, path), encode(StoredEntry(late, 4, "", now)))])
        later(world)
        assert ctx.kv.scan(keys.staging(ctx.repo, token)) == [], (
            "it is reached by the registry alone, which did not know it"
        )
        assert late not in world.data()
        assert found(world).garbage == []
        assert world.repo.read("dev", "staged") == b"staged on dev"

    def test_never_takes_a_token_that_a_branch_has(self, restored: tuple[World, dict[str, Any]]) -> None:
        """Not even where its registration was lost, and everything of it is old."""
        world, known = restored
        accept(world)
        tokens = live(world, "dev")
        for token in tokens:
            world.lake.kv.delete(keys.token(world.ctx.repo, token))
        later(world)
        assert live(world, "dev") == tokens
        assert scrub.dead_tokens(world.ctx, tokens) == set()
        assert {path: world.repo.read("dev", path) for path in known["named"]} == known["named"]

    def test_removes_a_staging_area_that_never_became_a_branchs(self, restored: tuple[World, dict[str, Any]]) -> None:
        """Backed up between a commit's first step and its second."""
        world, _ = restored
        accept(world)
        ctx = world.ctx
        token = ids.new_token(ctx.ids, BranchName("main"), world.clock.now_ms())
        ctx.kv.set(keys.token(ctx.repo, token), encode(TokenRecord(created_ms=world.clock.now_ms())))
        entry = StoredEntry(Address("s3://elsewhere/x"), 1, "", world.clock.now_ms())
        ctx.kv.execute([Exchange(keys.entry(ctx.repo, token, ids.object_path("x")), encode(entry))])
        later(world)
        assert ctx.kv.get(keys.token(ctx.repo, token)) is ABSENT
        assert ctx.kv.scan(keys.staging(ctx.repo, token)) == []

    def test_cleans_up_a_reference_whose_blob_is_gone_once_nobody_names_it(
        self, restored: tuple[World, dict[str, Any]], engines: Engines
    ) -> None:
        """While it is named it stays, and says what it is: a name without data, which an operator has to see."""
        world, known = restored
        accept(world)
        with pytest.raises(CorruptObject, match="which is gone"):
            world.repo.read("dev", "reset")
        gc_run.run_nightly(world.ctx, engines, NOW)
        later(world)
        assert world.repo.stat("dev", "reset").address == known["reset"]
        world.repo.delete("dev", "reset")
        later(world)
        assert world.ctx.kv.get(keys.reference(world.ctx.repo, known["reset"])) is ABSENT
        seen = found(world)
        assert (seen.lost, seen.garbage) == ([], [])
