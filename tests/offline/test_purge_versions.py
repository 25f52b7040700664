"""The purge of every version (modes `rewrite` and `erase`): identities and commits stay, contents change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from refstore.errors import Gone
from refstore.public_types import stored_entry
from refstore_purge import location_publisher, purge_tasks, verify
from refstore_purge.purge_tasks import ObjectResult
from tests.offline.purge_runs import Purge, purge_with
from tests.offline.world import World
from tests.purge.tracking import (
    DOCUMENT,
    PATH,
    PREFIX,
    events,
    guestids,
    guests_at,
    onboard,
)
from tests.purging import rewrite as rewrite_at
from tests.reaping import reap_all
from tests.unit.test_marks import aborted

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def md5_of(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def test_rows_leave_every_version_and_the_history_stays(world: World, purge: Purge) -> None:
    first = world.commit_files({PATH: events("ann", "bob")})
    world.repo.create_tag("v1", ref=first)
    second = world.commit_files({PATH: events("ann", "bob", "cid")})
    world.repo.create_branch("dev", source=first)
    world.repo.upload("dev", PATH, events("bob", "dan"))  # staged
    onboard(world.repo, mode="rewrite")
    identities = {ref: stored_entry(world.repo.resolve(ref, PATH).entry) for ref in (first, second, "dev")}
    made = purge("bob")

    assert made.is_whole, made
    assert [(row.objects, row.matched_objects, row.rewritten_objects, row.rows_changed) for row in made.rows] == [
        (3, 3, 3, 3)
    ]
    assert made.published_commits == []
    assert [(each.kind, each.objects) for each in made.places] == [("backups", 3)]
    assert made.ended_ms - 60_000 < made.places[0].first_deletes_at_ms - 30 * 86_400_000 <= made.ended_ms
    assert not made.is_final
    assert guests_at(world.repo, first) == guests_at(world.repo, "v1") == ["ann"]
    assert guests_at(world.repo, second) == guests_at(world.repo, "main") == ["ann", "cid"]
    assert guests_at(world.repo, "dev") == ["dan"]
    assert world.repo.get_branch("main").head == second
    assert {ref: stored_entry(world.repo.resolve(ref, PATH).entry) for ref in identities} == identities
    shown = stored_entry(world.repo.stat(first, PATH))
    assert shown.address != identities[first].address
    body = world.repo.read(first, PATH)
    assert shown.size_bytes == len(body)
    assert (shown.checksum, shown.md5) == (hashlib.sha256(body).hexdigest(), md5_of(body))
    assert verify(world.repo, guestids(world.folder, "bob")).findings == []
    assert len(list(verify(world.repo, guestids(world.folder, "ann")).findings)) >= 2
    again = purge("bob")
    assert [(row.matched_objects, row.rewritten_objects) for row in again.rows] == [(0, 0)]
    purge("ann")
    assert guests_at(world.repo, first) == []
    assert guests_at(world.repo, "main") == ["cid"]


def test_the_kv_that_forgets_a_purge_is_found_out(world: World, purge: Purge) -> None:
    from refstore.kv_recovery.manifest_check import find_lost_entries
    from refstore.records import keys

    world.commit_files({PATH: events("ann", "bob")})
    onboard(world.repo, mode="rewrite")
    identity = world.repo.resolve("main", PATH).entry.address
    purge("bob")
    waiting = world.ctx.manifest.read_waiting()
    assert find_lost_entries(world.ctx, waiting) == []
    key = keys.location(world.ctx.repo, identity)
    record = world.ctx.kv.get(key)
    world.ctx.kv.delete(key)
    (lost,) = find_lost_entries(world.ctx, waiting)
    assert (lost.entry.kind, lost.reason) == ("locations", "it is not there")
    assert isinstance(record, bytes)


def test_what_matches_nothing_changes_nothing(world: World, purge: Purge) -> None:
    world.commit_files({PATH: events("ann", "bob")})
    onboard(world.repo, mode="rewrite")
    assert purge("eve").is_whole
    assert not world.ctx.locations.are_announced()
    assert [(row.matched_objects, row.matched_rows) for row in purge("bob", dry_run=True).rows] == [(1, 1)]
    assert not world.ctx.locations.are_announced()
    assert guests_at(world.repo, "main") == ["ann", "bob"]


def change_rewrites(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[ObjectResult]], list[ObjectResult]]
) -> None:
    """Let the runs of this test get what `change` makes of the results of each rewrite."""
    real = purge_tasks.run_tasks

    def run_tasks(engines: Any, task_settings: Any, object_tasks: Any) -> list[ObjectResult]:
        done = real(engines, task_settings, object_tasks)
        return change(done) if object_tasks[0].target_address else done

    monkeypatch.setattr(purge_tasks, "run_tasks", run_tasks)


class TestWhatIsLeft:
    def test_an_object_with_a_name_elsewhere_in_any_version(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("ann", "bob")})
        world.repo.copy("main", PATH, to_branch="main", to_path="elsewhere/copy")
        old = world.repo.commit("main", "copied").id
        world.repo.delete("main", "elsewhere/copy")
        world.repo.commit("main", "deleted again")
        onboard(world.repo, mode="rewrite")
        made = purge("bob")
        (left,) = made.skipped_objects
        assert "also named outside the data sets of this run ('elsewhere/copy'" in left.reason
        assert guests_at(world.repo, "main") == ["ann", "bob"]
        assert purge("bob", includes_copies=True).is_whole
        assert guests_at(world.repo, old, "elsewhere/copy") == ["ann"]

    def test_what_a_legal_hold_covers_under_any_name(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("ann", "bob"), f"{PREFIX}other": events("bob")})
        world.repo.copy("main", PATH, to_branch="main", to_path=f"{PREFIX}held/copy")
        world.repo.commit("main", "copied")
        world.repo.set_retention(json.dumps({"legal_holds": [{"prefix": f"{PREFIX}held/", "reason": "a case"}]}))
        onboard(world.repo, mode="rewrite")
        made = purge("bob")
        assert [(left.path, left.reason) for left in made.skipped_objects] == [
            (f"{PREFIX}held/copy", "a legal hold covers it")
        ]
        assert guests_at(world.repo, "main") == ["ann", "bob"]
        assert guests_at(world.repo, "main", f"{PREFIX}other") == []

    def test_what_another_run_replaces_meanwhile_is_purged_in_the_next_attempt(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit_files({PATH: events("ann", "bob", "cid")})
        onboard(world.repo, mode="rewrite")
        others: list[object] = []

        def replace_once(done: list[ObjectResult]) -> list[ObjectResult]:
            if not others:
                others.append(rewrite_at(world.repo, "main", PATH, events("bob", "cid"), run="other"))
            return done

        change_rewrites(monkeypatch, replace_once)
        made = purge("bob")
        assert made.is_whole, made
        assert guests_at(world.repo, "main") == ["cid"]
        record = world.ctx.locations.get_many([world.repo.resolve("main", PATH).entry.address])[0]
        assert record is not None
        assert record.replacement_count == 2
        assert world.data() >= {each.content.address for each in record.backups}

    def test_what_another_run_replaces_before_the_look_is_purged_in_the_next_attempt(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And its old content is deleted: the look takes longer than backups are kept."""
        world.commit_files({PATH: events("ann", "bob", "cid")})
        onboard(world.repo, mode="rewrite")
        planned = world.repo.resolve("main", PATH).entry.address
        real = purge_tasks.run_tasks
        others: list[object] = []

        def meanwhile(engines: Any, task_settings: Any, object_tasks: Any) -> Any:
            if not others:
                others.append(rewrite_at(world.repo, "main", PATH, events("bob", "cid"), run="other"))
                world.ctx.objects.delete_many([planned])
            return real(engines, task_settings, object_tasks)

        monkeypatch.setattr(purge_tasks, "run_tasks", meanwhile)
        made = purge("bob")
        assert made.is_whole, made
        assert [(row.objects, row.rewritten_objects, row.rows_changed) for row in made.rows] == [(1, 1, 1)]
        assert guests_at(world.repo, "main") == ["cid"]

    def test_a_named_object_that_is_not_there_is_left(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("ann", "bob")})
        onboard(world.repo, mode="rewrite")
        world.ctx.objects.delete_many([world.repo.resolve("main", PATH).entry.address])
        made = purge("bob")
        assert [(row.objects, row.failed_objects) for row in made.rows] == [(0, 1)]
        assert [(left.path, left.reason) for left in made.skipped_objects] == [(PATH, location_publisher.BUSY)]

    def test_what_only_a_commit_that_never_landed_names_is_not_missed(self, world: World, purge: Purge) -> None:
        """The reaper deletes it as soon as no staging area names it any more; the commit's record stays for a while."""
        world.commit_files({PATH: events("ann", "bob")})
        world.repo.upload("main", PATH, events("bob", "cid"))
        aborted(world.repo)
        world.repo.reset("main")
        world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
        reap_all(world.repo)
        onboard(world.repo, mode="rewrite")
        assert verify(world.repo, guestids(world.folder, "zed")).findings == []
        made = purge("bob")
        assert made.is_whole, made
        assert [(row.objects, row.failed_objects) for row in made.rows] == [(1, 0)]
        assert verify(world.repo, guestids(world.folder, "bob")).findings == []

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [({"is_gone": True}, location_publisher.BUSY), ({"matched_rows": 0}, location_publisher.DISAGREED)],
    )
    def test_what_the_search_found_and_no_task_rewrites_is_left(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
    ) -> None:
        world.commit_files({PATH: events("ann", "bob")})
        onboard(world.repo, mode="rewrite")
        change_rewrites(monkeypatch, lambda done: [msgspec.structs.replace(each, **changes) for each in done])
        made = purge("bob")
        assert [(row.rewritten_objects, row.failed_objects) for row in made.rows] == [(0, 1)]
        assert [(left.path, left.reason) for left in made.skipped_objects] == [(PATH, reason)]
        assert guests_at(world.repo, "main") == ["ann", "bob"]

    def test_what_takes_longer_than_an_operation_is_left(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit_files({PATH: events("ann", "bob")})
        onboard(world.repo, mode="rewrite")

        def wait(done: list[ObjectResult]) -> list[ObjectResult]:
            world.clock.sleep(world.ctx.safety.operation_deadline_seconds + 1)
            return done

        change_rewrites(monkeypatch, wait)
        made = purge("bob")
        assert [row.failed_objects for row in made.rows] == [1]
        assert "within its deadline" in made.skipped_objects[0].reason
        assert guests_at(world.repo, "main") == ["ann", "bob"]

    def test_a_batch_that_takes_longer_than_an_operation_is_done_in_halves(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit_files({PATH.replace("part-0", f"part-{number}"): events("ann", "bob") for number in range(7)})
        onboard(world.repo, mode="rewrite")
        sizes: list[int] = []

        def wait(done: list[ObjectResult]) -> list[ObjectResult]:
            sizes.append(len(done))
            world.clock.sleep(len(done) * (world.ctx.safety.operation_deadline_seconds / 2 - 1))
            return done

        change_rewrites(monkeypatch, wait)
        made = purge("bob")
        assert made.is_whole, made
        assert [(row.rewritten_objects, row.rows_changed, row.failed_objects) for row in made.rows] == [(7, 7, 0)]
        assert sizes == [7, 4, 2, 2, 3, 2, 1]
        assert verify(world.repo, guestids(world.folder, "bob")).findings == []


class TestErase:
    @pytest.mark.parametrize(
        ("description", "path", "metadata"),
        [
            ({}, "faces/guestid=bob/1.jpg", {}),
            ({}, "faces/1.jpg", {"guestid": "bob"}),
            ({"path": "**/{guestid}-*.jpg"}, "faces/a/b/bob-1.jpg", {}),
        ],
    )
    def test_objects_go_and_their_paths_stay(
        self, world: World, purge: Purge, description: dict[str, str], path: str, metadata: dict[str, str]
    ) -> None:
        world.repo.upload("main", path, b"a picture", metadata=metadata)
        world.repo.upload("main", "faces/guestid=ann/x-1.jpg", b"of another guest")
        first = world.repo.commit("main", "pictures").id
        world.repo.delete("main", path)
        world.repo.commit("main", "deleted")
        faces = {"name": "faces", "prefix": "faces/", "identifier": "guestid", "mode": "erase", **description}
        world.repo.onboard_purge(json.dumps({**DOCUMENT, "whitelist": ["faces"], "datasets": [faces]}), by="tests")
        assert [left.path for left in verify(world.repo, guestids(world.folder, "bob")).findings] == [path]
        made = purge("bob")
        assert made.is_whole, made
        assert sum(row.erased_objects for row in made.rows) == 1
        shown = world.repo.stat(first, path)
        assert (shown.address, shown.size_bytes) == ("", 0)
        with pytest.raises(Gone, match=f"was erased by the purge {made.run}"):
            world.repo.read(first, path)
        assert path in {name for name, _ in world.repo.list(first)}
        assert world.repo.read("main", "faces/guestid=ann/x-1.jpg") == b"of another guest"
        assert verify(world.repo, guestids(world.folder, "bob")).findings == []
        assert sum(row.erased_objects for row in purge("bob").rows) == 0

    @pytest.mark.parametrize("number", [7, -7, 2**63 + 1])
    def test_ids_may_be_integers_and_paths_may_have_none(self, world: World, engines: Engines, number: int) -> None:
        for guest in (number, "nobody", "__HIVE_DEFAULT_PARTITION__"):
            world.repo.upload("main", f"faces/guest={guest}/1.jpg", b"a picture")
        world.repo.commit("main", "pictures")
        faces = {"name": "faces", "prefix": "faces/", "identifier": "guest", "mode": "erase"}
        world.repo.onboard_purge(json.dumps({"whitelist": ["faces"], "datasets": [faces]}), by="tests")
        file = world.folder / "ids.csv"
        file.write_text(f"id\n{number}\n")
        made = purge_with(world, engines, file, id_type="integer")
        assert made.is_whole, made
        erased = [path for path, entry in world.repo.list("main") if entry is not None and not entry.address]
        assert erased == [f"faces/guest={number}/1.jpg"]
