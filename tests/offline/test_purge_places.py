"""The places that still have rows of a run's ids: each kind of them, and the dates on which they go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refstore.agreed_durations import AgreedDurations
from refstore.configuration.settings import embedded_urls
from refstore.context import Context
from refstore.core.safety import Safety
from refstore.errors import Conflict
from refstore.operations import transaction
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.mark_records import StoredMark
from refstore_purge import (
    head_publisher,
    purge_cleanup,
    purge_report,
    remaining_places,
    restore_backups,
)
from refstore_purge.purge_report import PurgeReport, RemainingPlace
from refstore_purge.restore_backups import RestoreScope
from tests.durations import set_agreed
from tests.offline.purge_runs import DATASETS, purge_with
from tests.offline.test_purge_summaries import files_of, onboard
from tests.offline.world import DAY_MS, World
from tests.purging import intend, write
from tests.reaping import delete_due, reap_all, release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

DAY_SECONDS = 86_400
GRACE_DAYS = 3
EVENT, VISIT = "events/day=1/x", "visits/x"
BODY = b"guest,at\nann,1\nbob,2\n"
DOCUMENT: dict[str, Any] = {"whitelist": ["*"], "datasets": DATASETS}

Purge = Callable[..., PurgeReport]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, grace_seconds=GRACE_DAYS * DAY_SECONDS)
    set_days(made)
    # each data set has an object, or no run would be final
    commit(made, "events/clean", "visits/clean", body=b"guest,at\nzed,1\n")
    commit(made, "faces/guest=zed/clean.jpg", body=b"a picture")
    yield made
    made.close()


@pytest.fixture
def purge(world: World, engines: Engines) -> Purge:
    def made(*guests: str, **options: Any) -> PurgeReport:
        file = world.folder / "ids.csv"
        file.write_text("id\n" + "".join(f"{guest}\n" for guest in guests or ("bob",)))
        return purge_with(world, engines, file, **{"share": 1, **options})

    return made


def set_days(world: World, *, days: int = 30, versions: int = 2, trash: int = 7) -> None:
    policy = {"backup": {"days": days, "versions": versions}, "trash": {"days": trash}}
    world.repo.onboard_purge(json.dumps(DOCUMENT | policy), by="tests")


def commit(world: World, *paths: str, body: bytes = BODY, branch: str = "main") -> str:
    """Commit an object at each path; return the identity of the last."""
    for path in paths:
        world.repo.upload(branch, path, body)
    world.repo.commit(branch, "data")
    release_all(world.repo)
    return world.repo.resolve(branch, paths[-1]).entry.address


def now_of(world: World, made: PurgeReport) -> list[RemainingPlace]:
    """Return the places of a run as they are now."""
    remaining_places.refresh_places(world.repo, [made])
    return made.places


def kinds(made: list[RemainingPlace]) -> list[tuple[str, str, int]]:
    return [(each.kind, each.dataset, each.objects) for each in made]


def move_to(world: World, at_ms: int) -> None:
    world.clock.sleep((at_ms - world.clock.now_ms()) / 1000)
    while world.clock.now_ms() < at_ms:  # it was rounded
        world.clock.sleep(0.001)


def check_date(world: World, made: PurgeReport, kind: str, end: Callable[[], object]) -> int:
    """Check that a place goes at its date: what ends it leaves it just before, and takes it at the date. Return the
    date.
    """
    (place,) = [each for each in now_of(world, made) if each.kind == kind]
    (address,) = place.addresses
    assert place.deletes_at_ms == place.first_deletes_at_ms > world.clock.now_ms()
    move_to(world, place.deletes_at_ms - 60_000)
    end()
    assert address in world.data()
    assert kind in [each.kind for each in now_of(world, made)]
    move_to(world, place.deletes_at_ms)
    end()
    assert address not in world.data()
    assert kind not in [each.kind for each in now_of(world, made)]
    return place.deletes_at_ms


def wait_ms(world: World) -> int:
    """How long readers, issued addresses and operations may need a content."""
    return purge_cleanup.CleanupSchedule.read(world.ctx).wait_ms


def test_waits_that_grow_while_the_held_objects_are_listed_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = AgreedDurations(world.lake.kv, world.clock, world.ctx.ids, Safety(), explicit={})
    ctx = replace(world.ctx, durations=agreed)
    before = purge_cleanup.CleanupSchedule.read(ctx).wait_ms
    listed = purge_cleanup.find_held_addresses

    def list_slowly(ctx: Context) -> set[str]:
        kv, _ = embedded_urls(world.folder)
        set_agreed(kv, Safety(clock_skew_seconds=Safety().clock_skew_seconds + 60))
        return listed(ctx)

    monkeypatch.setattr(purge_cleanup, "find_held_addresses", list_slowly)
    assert purge_cleanup.CleanupSchedule.read(ctx).wait_ms == before + 2 * 60_000


class TestDates:
    """What ends a place leaves it just before the date, and takes it at the date."""

    @pytest.mark.parametrize(("days", "versions"), [(30, 2), (3, 1), (30, 0), (0, 2), (0, 0)])
    def test_a_backup(self, world: World, purge: Purge, days: int, versions: int) -> None:
        set_days(world, days=days, versions=versions)
        commit(world, EVENT)
        made = purge()
        (kept,) = purge_cleanup.scan_backups(world.ctx)
        goes_ms = check_date(world, made, "backups", lambda: purge_cleanup.clean_up(world.ctx))
        lasts_ms = days * DAY_MS if versions else 0
        assert goes_ms == kept.deletes_at_ms == kept.replaced_ms + max(lasts_ms, wait_ms(world))
        assert made.is_final

    def test_a_backup_that_a_later_run_pushes_out(self, world: World, purge: Purge) -> None:
        set_days(world, versions=1)
        commit(world, EVENT, body=BODY + b"cid,3\n")
        first = purge()
        assert first.places[0].deletes_at_ms > first.ended_ms + 29 * DAY_MS
        world.clock.sleep(DAY_SECONDS)
        second = purge("ann")
        move_to(world, second.ended_ms)
        (place,) = now_of(world, first)
        assert place.deletes_at_ms < world.clock.now_ms()  # with the next cleaning
        assert kinds(second.places) == [("backups", "events", 1), ("backups", "events", 1)]
        purge_cleanup.clean_up(world.ctx)
        assert now_of(world, first) == []
        assert first.is_final
        assert kinds(now_of(world, second)) == [("backups", "events", 1)]
        assert not second.is_final

    def test_the_trash_of_a_restore_has_days_of_its_own(self, world: World, purge: Purge) -> None:
        commit(world, EVENT)
        first = purge("ann")
        restore_backups.restore_backups(world.repo, RestoreScope(run=first.run))
        second = purge("bob")
        assert kinds(second.places) == [("backups", "events", 1), ("trash of restores", "events", 1)]
        goes_ms = check_date(world, second, "trash of restores", lambda: purge_cleanup.clean_up(world.ctx))
        assert abs(goes_ms - (second.began_ms + 7 * DAY_MS)) < 60_000

    def test_an_attempt_of_a_killed_run(self, world: World, purge: Purge) -> None:
        commit(world, EVENT, body=b"guest,at\nann,1\n")
        world.ctx.locations.announce()
        intended = intend(world.repo, "main", EVENT)
        assert intended is not None
        write(world.repo, intended, BODY)
        made = purge()
        assert kinds(made.places) == [("attempts", "events", 1)]
        check_date(world, made, "attempts", lambda: purge_cleanup.clean_up(world.ctx))

    def test_an_attempt_that_a_run_has_put_aside(self, world: World, purge: Purge) -> None:
        commit(world, EVENT)
        world.ctx.locations.announce()
        intended = intend(world.repo, "main", EVENT)
        assert intended is not None
        write(world.repo, intended, b"guest,at\nbob,2\n")
        made = purge()
        assert kinds(made.places) == [("backups", "events", 1), ("retired", "events", 1)]
        purge_cleanup.clean_up(world.ctx)
        assert kinds(now_of(world, made)) == [("backups", "events", 1)]

    def test_the_undo_trash(self, world: World, purge: Purge) -> None:
        world.repo.upload("main", VISIT, BODY)
        world.repo.delete("main", VISIT)
        made = purge()
        goes_ms = check_date(world, made, "undo trash", lambda: delete_due(world.repo))
        assert abs(goes_ms - (made.began_ms + GRACE_DAYS * DAY_MS)) < 60_000
        assert made.is_final

    def test_what_the_reaper_has_yet_to_process_has_no_date(self, world: World, purge: Purge) -> None:
        world.repo.upload("main", VISIT, BODY)
        world.repo.reset("main")
        made = purge()
        (place,) = made.places
        assert (place.kind, place.deletes_at_ms) == ("undo trash", 0)
        assert "begins when the reaper processes it" in place.reason
        assert "1 of them without a date" in made.ending_text
        release_all(world.repo)
        check_date(world, made, "undo trash", lambda: delete_due(world.repo))

    def test_a_backup_goes_with_its_object(self, world: World, purge: Purge) -> None:
        world.repo.upload("main", EVENT, BODY)
        world.repo.delete("main", EVENT)
        made = purge()
        assert [(each.kind, each.restore_command) for each in made.places] == [
            ("backups", f"refstore purge restore sales {made.run}")
        ]
        assert made.places[0].deletes_at_ms < made.ended_ms + (GRACE_DAYS + 1) * DAY_MS
        check_date(world, made, "backups", lambda: reap_all(world.repo))

    def test_an_upload_to_an_issued_address(self, world: World, purge: Purge) -> None:
        issued = world.repo.issue("main", EVENT)
        world.ctx.objects.put(issued.address, BODY)
        made = purge()
        assert kinds(made.places) == [("issued", "events", 1)]
        check_date(world, made, "issued", lambda: delete_due(world.repo))

    def test_a_legal_hold_lifts_the_date(self, world: World, purge: Purge) -> None:
        commit(world, EVENT)
        made = purge()
        world.repo.set_retention(json.dumps({"legal_holds": [{"prefix": "events/", "reason": "a case"}]}))
        (place,) = now_of(world, made)
        assert (place.kind, place.deletes_at_ms) == ("backups", 0)
        assert "legal hold" in place.reason
        (kept,) = purge_cleanup.scan_backups(world.ctx)
        assert (kept.is_on_hold, kept.is_due) == (True, False)
        world.clock.sleep(31 * DAY_SECONDS)
        assert purge_cleanup.clean_up(world.ctx).held_contents == 1
        assert now_of(world, made) == [place]
        world.repo.set_retention(json.dumps({}), remove=["hold:events/"])
        assert now_of(world, made)[0].deletes_at_ms < world.clock.now_ms()
        assert next(purge_cleanup.scan_backups(world.ctx)).is_due


class TestWhatIsLive:
    def test_what_is_restored_is_live_until_the_next_run(self, world: World, purge: Purge) -> None:
        identity = commit(world, EVENT)
        made = purge()
        restore_backups.restore_backups(world.repo, RestoreScope(run=made.run))
        (place,) = now_of(world, made)
        assert (place.kind, place.addresses, place.ending_command) == (
            "branches",
            [identity],
            "refstore purge run sales",
        )
        again = purge()
        assert kinds(again.places) == [("backups", "events", 1)]
        assert kinds(now_of(world, made)) == [("backups", "events", 1), ("branches", "events", 1)]

    def test_what_a_later_run_made_of_what_was_restored_is_not_called_final(self, world: World, purge: Purge) -> None:
        set_days(world, days=0, versions=0, trash=0)
        commit(world, EVENT)
        made = purge("bob")
        restore_backups.restore_backups(world.repo, RestoreScope(run=made.run))
        other = purge("ann")  # bob's rows are in what it writes
        move_to(world, other.ended_ms + 31 * DAY_MS)
        purge_cleanup.clean_up(world.ctx)
        (place,) = now_of(world, made)
        assert (place.kind, place.has_rows) == ("branches", False)
        assert "a later run wrote it" in place.explanation
        assert place.addresses == [world.repo.stat("main", EVENT).address]
        assert now_of(world, other) == []
        assert sum(row.matched_objects for row in purge("bob").rows) == 1

    def test_what_the_undo_trash_gives_back_is_live(self, world: World, purge: Purge) -> None:
        address = world.repo.upload("main", VISIT, BODY).address
        world.repo.delete("main", VISIT)
        made = purge()
        assert kinds(made.places) == [("undo trash", "visits", 1)]
        world.repo.restore(address, to="main")
        assert kinds(now_of(world, made)) == [("branches", "visits", 1)]
        assert not made.is_final

    def test_earlier_commits_and_tags_keep_rows(self, world: World, purge: Purge) -> None:
        commit(world, VISIT)
        commit(world, "visits/y")
        made = purge()
        assert kinds(made.places) == [("earlier commits", "visits", 2)]
        world.repo.create_tag("v1", ref=world.repo.get_commit(made.published_commits[0].commit).parents[0])
        assert kinds(now_of(world, made)) == [("tags and pins", "visits", 2)]
        world.repo.revert(made.published_commits[0].commit, on="main")
        assert kinds(now_of(world, made)) == [("branches", "visits", 2)]

    def test_earlier_commits_that_no_run_looked_at(self, world: World, purge: Purge) -> None:
        commit(world, VISIT)
        commit(world, VISIT, body=b"guest,at\nann,1\n")
        made = purge()
        (place,) = made.places
        assert (place.kind, place.objects, place.has_rows) == ("earlier commits", 1, False)
        assert "not looked into" in place.explanation

    def test_objects_that_are_not_purged(self, world: World, purge: Purge) -> None:
        commit(world, EVENT, "events/day=1/damaged", body=BODY)
        commit(world, "events/day=1/damaged", body=b"guest,at\nbob\n")
        world.repo.copy("main", EVENT, to_branch="main", to_path="elsewhere/x")
        world.repo.upload("main", VISIT, BODY)
        world.repo.upload("main", "events/held/x", BODY)
        world.repo.upload("main", "events/held/y", b"guest,at\nann,1\n")
        world.repo.set_retention(json.dumps({"legal_holds": [{"prefix": "events/held/", "reason": "a case"}]}))
        made = purge()
        told = {each.reason: (each.kind, each.objects, each.has_rows) for each in made.places if each.reason}
        damaged = next(reason for reason, (_, _, has_rows) in told.items() if not has_rows)
        assert told == {
            "a legal hold covers it": ("branches", 1, True),
            "it is also named outside the data sets of this run": ("branches", 1, True),
            "staged": ("branches", 1, True),
            damaged: ("branches", 1, False),
        }

    def test_partitions_that_are_left(self, world: World, purge: Purge) -> None:
        commit(world, "events/day=1/x", "events/day=2/x", "events/day=3/x")
        made = purge(max_partitions=2, datasets=("events",))  # the first one is clean
        assert kinds(made.places) == [("backups", "events", 1), ("partitions left", "events", 2)]
        assert [each.has_rows for each in made.places] == [True, False]
        rest = purge(after=made.watermark, datasets=("events",))
        left = [("backups", "events", 1), ("partitions left", "events", 2)]  # what `--after` leaves is not looked into
        assert kinds(rest.places) == [("backups", "events", 2), *left]
        assert [each.has_rows for each in rest.places] == [True, False, False]
        later = [("branches", "events", 2)]  # what the rest wrote, for which ids the first run cannot know
        assert kinds(now_of(world, made)) == [("backups", "events", 1), ("backups", "events", 2), *later]

    def test_a_run_that_failed_says_so(self, world: World, purge: Purge) -> None:
        commit(world, EVENT)
        with pytest.raises(Conflict):
            purge(share=0.1, floor_rows=0)
        made = purge_report.read_report(world.repo)
        assert kinds(now_of(world, made)) == [("branches", "events", 1), ("run", "", 0)]
        assert not made.is_final

    def test_a_dry_run_lists_no_places(self, world: World, purge: Purge) -> None:
        commit(world, EVENT)
        made = purge(dry_run=True)
        assert (now_of(world, made), made.ending_text, made.is_final) == ([], "", False)

    def test_what_an_earlier_run_keeps_as_its_backup_is_found_by_a_later_one(self, world: World, purge: Purge) -> None:
        """The later run changes nothing: the content of today has no rows of its ids."""
        commit(world, EVENT)
        purge("ann", "bob")
        later = purge("bob")
        assert sum(row.matched_objects for row in later.rows) == 0
        assert kinds(later.places) == [("backups", "events", 1)]

    def test_faces_are_told_by_their_names(self, world: World, purge: Purge) -> None:
        commit(world, "faces/guest=bob/1.jpg", "faces/guest=ann/1.jpg", body=b"a picture")
        assert kinds(purge().places) == [("backups", "faces", 1)]
        assert kinds(purge().places) == [("backups", "faces", 1)]
        assert kinds(purge("eve").places) == []


class TestWhatIsBeingDeleted:
    def test_by_a_cleanup_that_the_store_refused(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_days(world, versions=0)
        commit(world, EVENT)
        made = purge()
        move_to(world, made.places[0].deletes_at_ms)
        with monkeypatch.context() as patched:
            patched.setattr(type(world.ctx.objects), "delete_many", _refusing)
            purge_cleanup.clean_up(world.ctx)
        (place,) = now_of(world, made)
        assert (place.kind, place.restore_command) == ("retired", "")
        purge_cleanup.clean_up(world.ctx)
        assert now_of(world, made) == []

    def test_by_the_reaper(self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch) -> None:
        world.repo.upload("main", VISIT, BODY)
        world.repo.delete("main", VISIT)
        made = purge()
        world.clock.sleep((GRACE_DAYS + 1) * DAY_SECONDS)
        with monkeypatch.context() as patched:
            patched.setattr(type(world.ctx.objects), "delete_many", _refusing)
            delete_due(world.repo)
        again = purge()
        assert kinds(now_of(world, made)) == kinds(again.places) == [("being deleted", "visits", 1)]
        delete_due(world.repo)
        assert (now_of(world, made), now_of(world, again)) == ([], [])

    def test_by_a_sweep(self, world: World, purge: Purge) -> None:
        identity = commit(world, VISIT)
        swept = world.repo.get_branch("main").head
        commit(world, VISIT, body=b"guest,at\nann,1\n")
        now, key = world.clock.now_ms(), keys.mark(world.ctx.repo, swept)
        world.ctx.kv.set(key, encode(StoredMark(now, now, "a-mark", sweeping_ms=now)))
        made = purge()
        (place,) = made.places
        assert (place.kind, place.has_rows, place.addresses) == ("condemned by a sweep", True, [identity])
        world.ctx.objects.delete_many([identity])
        world.ctx.kv.set(key, encode(StoredMark(now, now, "a-mark", sweeping_ms=now, swept_ms=now)))
        assert now_of(world, made) == []

    def test_what_only_a_swept_commit_names_below_a_data_set_goes_with_the_name_that_keeps_it(
        self, world: World, purge: Purge
    ) -> None:
        """It can still be read at the swept commit, until the data set of the other name is purged."""
        commit(world, EVENT)
        swept = world.repo.get_branch("main").head
        world.repo.move("main", EVENT, to_path="elsewhere/x")
        world.repo.commit("main", "moved out of the data set")
        now = world.clock.now_ms()
        mark = StoredMark(now, now, "a-mark", sweeping_ms=now, swept_ms=now)
        world.ctx.kv.set(keys.mark(world.ctx.repo, swept), encode(mark))
        assert purge().is_final
        assert world.repo.read(swept, EVENT) == BODY
        elsewhere = {**DOCUMENT["datasets"][0], "name": "elsewhere", "prefix": "elsewhere/"}
        document = {**DOCUMENT, "datasets": [*DOCUMENT["datasets"], elsewhere]}
        world.repo.onboard_purge(json.dumps(document), by="tests")
        made = purge()
        assert kinds(made.places) == [("backups", "elsewhere", 1)]
        assert world.repo.read(swept, EVENT) == world.repo.read("main", "elsewhere/x") == b"guest,at\nann,1\n"

    def test_a_bucket_that_keeps_versions_is_never_final(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from refstore.objects.base import VersioningStatus

        kept = VersioningStatus(True, "the bucket keeps versions")
        monkeypatch.setattr(type(world.ctx.objects), "versioning_status", lambda _: kept)
        set_days(world, versions=0)
        commit(world, EVENT)
        made = purge()
        assert kinds(made.places) == [("backups", "events", 1), ("versions of the bucket", "", 0)]
        move_to(world, made.places[0].deletes_at_ms)
        purge_cleanup.clean_up(world.ctx)
        assert kinds(now_of(world, made)) == [("versions of the bucket", "", 1)]
        assert kinds(purge("eve").places) == []

    def test_what_nothing_names_is_said_not_to_be_looked_at(self, world: World, purge: Purge) -> None:
        commit(world, EVENT, body=b"guest,at\nann,1\n")
        world.plant("data/2026010101/orphan", BODY)
        made = purge()
        assert made.is_final
        assert made.unexamined == [remaining_places.UNNAMED]


def test_what_a_killed_run_left_on_its_hidden_branch(
    world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(world, VISIT)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "merge_when_clean", killed)
        patched.setattr(head_publisher.BranchPublication, "close", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            purge("ann")
    made = purge()
    assert kinds(made.places) == [("earlier commits", "visits", 1), ("hidden branches", "visits", 1)]
    place = made.places[1]
    assert "is of a run; when its lease has run out" in place.reason
    assert place.ending_command == "refstore reaper"
    world.clock.sleep(DAY_SECONDS - 60)
    release_all(world.repo)
    assert "hidden branches" in [each.kind for each in now_of(world, made)]
    world.clock.sleep(DAY_SECONDS)
    release_all(world.repo)
    assert "hidden branches" not in [each.kind for each in now_of(world, made)]


def test_what_a_transaction_has_staged(world: World, purge: Purge) -> None:
    with world.repo.transaction("main", "late") as tx:
        tx.upload(VISIT, BODY)
        made = purge()
        assert kinds(made.places) == [("hidden branches", "visits", 1)]
        (place,) = made.places
        assert f"{tx.name!r} is of a transaction: wait for its end, and purge again; or, when its lease" in place.reason
        assert (place.ending_command, made.is_final) == ("refstore purge run sales", False)
    assert kinds(now_of(world, made)) == [("branches", "visits", 1)]
    assert "hidden branches" not in [each.kind for each in purge().places]
    assert b"bob" not in world.repo.read("main", VISIT)


def test_what_a_transaction_has_whose_writer_died(world: World, purge: Purge) -> None:
    world.repo.transaction("main", "late").__enter__().upload(VISIT, BODY)
    made = purge()
    assert kinds(made.places) == [("hidden branches", "visits", 1)]
    world.clock.sleep(2 * DAY_SECONDS)
    release_all(world.repo)
    assert kinds(now_of(world, made)) == [("undo trash", "visits", 1)]


def test_what_is_staged_on_another_hidden_branch(world: World, purge: Purge) -> None:
    world.repo.create_branch("mine", source="main", hidden=True)
    world.repo.upload("mine", VISIT, BODY)
    (place,) = purge().places
    assert (place.kind, place.reason, place.ending_command) == (
        "hidden branches",
        "no run looks at 'mine': merge it and purge again, or delete it",
        "refstore branch delete sales mine",
    )


@pytest.mark.parametrize("mode", ["rewrite", "keep-history"])
def test_summary_files_that_have_an_id(world: World, purge: Purge, mode: str) -> None:
    onboard(world, mode)
    for path, body in files_of({"1": ["ann", "bob", "cid"]}, owner="bob").items():
        world.repo.upload("main", path, body)
    world.repo.commit("main", "data")
    found = [(each.kind, each.objects, each.has_rows) for each in purge().places]
    again = [(each.kind, each.objects, each.has_rows) for each in purge().places]
    if mode == "rewrite":
        assert found == again == [("backups", 3, True)]
    else:
        assert found == [("earlier commits", 1, True), ("earlier commits", 2, False)]
        assert again == [("earlier commits", 3, False)]


def _refusing(_: Any, keys: Any) -> Any:
    from refstore.objects.base import DeleteResult

    return DeleteResult((), (), tuple((key, "slow down") for key in keys))
