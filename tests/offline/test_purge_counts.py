"""The counts of a purge's report, against what commits and location records say that it changed.

Others write, purge, stage and delete branches while a run goes on, and the run is killed at each of its steps. Each
count of the report has what was done, once: no attempts, and no intentions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from refstore.core.clock import to_datetime
from refstore.errors import RefstoreError
from refstore.monitoring.run_control import DEAD_MS
from refstore.operations import transaction
from refstore.public_types import stored_commit
from refstore.versioning.locations import Locations
from refstore_gc import run_progress
from refstore_gc.run_summary import ObjectCount
from refstore_purge import (
    location_publisher,
    purge_account,
    purge_cleanup,
    purge_report,
    purge_run,
    purge_tasks,
    restore_backups,
)
from refstore_purge.head_publisher import BranchPublication, HeadPublisher
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_report import PURGE_NOTE, PurgeReport
from refstore_purge.restore_backups import RestoreScope
from tests.offline.purge_runs import purge_with
from tests.offline.world import World
from tests.purging import rewrite as rewrite_at

if TYPE_CHECKING:
    from pathlib import Path

    from refstore_gc.engines.choice import Engines

IDS = ("bob", "eve")
GUESTS = (*IDS, "ann", "cid", "dan")
HEADS, VERSIONS, FACES = "heads/", "versions/", "faces/"
DOCUMENT = {
    "whitelist": ["*"],
    "datasets": [
        {"name": "heads", "prefix": HEADS, "format": "csv", "identifier": "guest", "mode": "keep-history"},
        {"name": "versions", "prefix": VERSIONS, "format": "csv", "identifier": "guest", "mode": "rewrite"},
        {"name": "faces", "prefix": FACES, "identifier": "guest", "mode": "erase"},
    ],
}


class Killed(BaseException):
    """The process ends here."""


class Changes(NamedTuple):
    """What a run did to a data set."""

    rewritten_objects: int = 0
    erased_objects: int = 0
    rows_changed: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def csv_of(*guests: str) -> bytes:
    return b"guest,at\n" + b"".join(f"{guest},{number}\n".encode() for number, guest in enumerate(guests))


def rows_of(body: bytes) -> int:
    return body.count(b"\n") - 1


def fill(world: World, rng: random.Random, files: int = 3) -> None:
    """Bring rows to two branches, which share objects, and to several versions."""
    world.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    for round_ in range(2):
        for number in range(files):
            for prefix in (HEADS, VERSIONS):
                guests = rng.choices(GUESTS, k=rng.randrange(1, 6))
                world.repo.upload("main", f"{prefix}day={number}/x", csv_of(*guests))
        world.repo.upload("main", f"{FACES}guest=bob/{round_}", b"a picture of bob")
        world.repo.commit("main", "change")
    world.repo.create_branch("dev", source="main")
    world.repo.copy("dev", f"{HEADS}day=0/x", to_branch="dev", to_path=f"{HEADS}day=9/copied")
    world.repo.upload("dev", f"{HEADS}day=1/only-dev", csv_of("bob", "ann"))
    world.repo.commit("dev", "copied")


def onboard(world: World, *names: str) -> None:
    world.repo.onboard_purge(json.dumps({**DOCUMENT, "whitelist": names}), by="tests")


def ids_of(world: World) -> Path:
    file = world.folder / "ids.csv"
    file.write_text("id\n" + "".join(f"{each}\n" for each in IDS))
    return file


def purged(world: World, engines: Engines, **options: Any) -> PurgeReport:
    return purge_with(world, engines, ids_of(world), share=1, **options)


# ---- what was changed


def changes_of(world: World, run_id: str) -> dict[str, Changes]:
    return {
        "heads": _by_commits(world, run_id),
        "versions": _by_records(world, run_id, is_erased=False),
        "faces": _by_records(world, run_id, is_erased=True),
    }


def _by_commits(world: World, run_id: str) -> Changes:
    replaced: dict[str, tuple[bytes, bytes]] = {}
    for commit, _ in landed(world, run_id):
        parent = world.repo.get_commit(commit).parents[0]
        for change in world.repo.diff(parent, to=commit):
            old, new = world.repo.read(parent, change.path), world.repo.read(commit, change.path)
            replaced.setdefault(world.address(parent, change.path), (old, new))
    return _sum([*replaced.values()])


def landed(world: World, run_id: str) -> list[tuple[str, int]]:
    """Return the commits of a run that branches have, and how many paths each has changed."""
    found: list[tuple[str, int]] = []
    for branch, record in world.repo.context.branches.scan_open():
        if record.is_hidden:
            continue
        for commit in world.repo.log(branch, first_parent=True):
            if stored_commit(commit).notes.get(PURGE_NOTE) == run_id:
                changed = len(list(world.repo.diff(commit.parents[0], to=commit.id)))
                found.append((commit.id, changed))
    return found


def _by_records(world: World, run_id: str, *, is_erased: bool) -> Changes:
    replaced: dict[str, tuple[bytes, bytes]] = {}
    erased = size = 0
    if not world.ctx.locations.are_announced():
        return Changes()
    for _, record in world.ctx.locations.scan():
        assert record.current is not None
        contents = [*(backup.content for backup in record.backups), record.current]
        for backup, after in zip(record.backups, contents[1:], strict=True):
            if backup.replaced_by != run_id or after.is_erased != is_erased:
                continue
            if is_erased:
                erased, size = erased + 1, size + backup.content.size_bytes
                continue
            old = world.ctx.objects.read(backup.content.address)
            replaced[backup.content.address] = (old, world.ctx.objects.read(after.address))
    return Changes(erased_objects=erased, bytes_before=size) if is_erased else _sum([*replaced.values()])


def _sum(replaced: list[tuple[bytes, bytes]]) -> Changes:
    return Changes(
        len(replaced),
        0,
        sum(rows_of(old) - rows_of(new) for old, new in replaced),
        sum(rows_of(new) for _, new in replaced),
        sum(len(old) for old, _ in replaced),
        sum(len(new) for _, new in replaced),
    )


def counted(made: PurgeReport) -> dict[str, Changes]:
    return {
        name: Changes(*(sum(getattr(row, field) for row in made.rows if row.dataset == name) for field in fields))
        for name in ("heads", "versions", "faces")
        for fields in [Changes._fields]
    }


def check(world: World, made: PurgeReport) -> None:
    """Compare every count of what was done."""
    assert counted(made) == changes_of(world, made.run)
    assert sorted((each.commit, each.paths) for each in made.published_commits) == sorted(landed(world, made.run))
    for row in made.rows:
        assert row.objects == row.by_partition + row.by_index + row.by_statistics + row.by_column or (
            row.dataset == "faces" or row.failed_objects
        )
        assert row.matched_objects <= row.objects
        assert row.rows_before == row.rows_changed + row.rows_after
        assert row.rows_changed <= row.matched_rows
        assert row.rewritten_objects + row.erased_objects <= row.matched_objects
    failed = sum(row.failed_objects for row in made.rows)
    assert len(made.skipped_objects) == made.skipped_count >= failed


# ---- others


def interfere(world: World, rng: random.Random, number: int) -> None:
    """Do what others do while a run goes on."""
    branch = rng.choice([each.name for each in world.repo.branches() if not each.is_hidden])
    what = rng.choice(["new", "replace", "stage", "other", "delete", "purge", "nothing"])
    day = rng.randrange(3)
    try:
        if what == "purge":
            rewrite_at(
                world.repo, "main", f"{VERSIONS}day={day}/x", csv_of("bob", f"other-{number}"), f"other-{number}"
            )
            return
        prefix = rng.choice([HEADS, VERSIONS])
        path = {
            "new": f"{prefix}day={day}/late-{number}",
            "replace": f"{prefix}day={day}/x",
            "stage": f"{prefix}day={day}/x",
            "other": f"elsewhere/{number}",
            "delete": f"{prefix}day={day}/x",
        }.get(what)
        if path is None:
            return
        if what == "delete":
            world.repo.delete(branch, path)
        else:
            world.repo.upload(branch, path, csv_of("bob", "ann", f"x{number}"))
        if what != "stage":
            world.repo.commit(branch, what)
    except RefstoreError:
        pass  # the path is gone already, or there is nothing to commit


def disturbed(monkeypatch: pytest.MonkeyPatch, world: World, rng: random.Random, most: int) -> None:
    """Let others act before and behind the steps of a run."""
    left = [most]

    def around(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            if left[0] and rng.random() < 0.4:
                left[0] -= 1
                interfere(world, rng, left[0])
            return real(*args, **more)

        monkeypatch.setattr(owner, name, call)

    around(purge_tasks, "run_tasks")
    around(HeadPublisher, "find_outside_names")
    around(BranchPublication, "publish")
    around(transaction, "merge_when_clean")
    around(location_publisher, "replace_contents")
    around(Locations, "publish")


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_what_was_done_however_others_disturb(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    fill(world, rng)
    with monkeypatch.context() as patched:
        disturbed(patched, world, rng, most=1 + seed % 6)
        made = purged(world, engines)
    check(world, made)
    assert purge_report.read_report(world.repo) == made
    for branch in ("main", "dev"):
        world.repo.commit(branch, "what others staged", allow_empty=True)
    again = purged(world, engines)
    check(world, again)
    assert again.is_whole, again.skipped_objects
    assert sum(row.matched_objects for row in purged(world, engines).rows) == 0


def test_what_was_looked_at_is_counted_once_for_each_content(world: World, engines: Engines) -> None:
    fill(world, random.Random(5))
    expected: dict[str, set[tuple[str, bytes]]] = {name: set() for name in ("heads", "versions", "faces")}
    for name, refs in (("heads", ["main", "dev"]), ("versions", None), ("faces", None)):
        for ref in refs or [commit.id for commit in world.repo.log("dev")]:
            for path, entry in world.repo.list(ref, prefix=f"{name}/"):
                assert entry is not None
                expected[name].add((entry.address, world.repo.read(ref, path)))
    made = purged(world, engines)
    rows = {name: [row for row in made.rows if row.dataset == name] for name in expected}
    for name, contents in expected.items():
        assert sum(row.objects for row in rows[name]) == len(contents)
    for name in ("heads", "versions"):
        counts = [sum(body.count(f"\n{each},".encode()) for each in IDS) for _, body in expected[name]]
        assert sum(row.matched_objects for row in rows[name]) == sum(map(bool, counts))
        assert sum(row.matched_rows for row in rows[name]) == sum(counts) == counted(made)[name].rows_changed
        assert sum(row.rewritten_objects for row in rows[name]) == sum(map(bool, counts))
    assert counted(made)["faces"].erased_objects == len(expected["faces"])
    check(world, made)
    assert [(each.dataset, each.objects, each.untouched_reason) for each in made.datasets] == [
        (name, len(expected[name]), "") for name in ("faces", "heads", "versions")
    ]


def test_a_branch_that_is_refused_twice_counts_once(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case that was seen: 14 rows found, and 34 changed."""
    onboard(world, "heads")
    world.commit_files({f"{HEADS}day=1/x": csv_of("bob", "ann"), f"{HEADS}day=2/x": csv_of("bob", "bob", "cid")})
    real, moves = BranchPublication.publish, [0]

    def moved(self: BranchPublication, *args: Any) -> Any:
        moves[0] += 1
        if moves[0] < 3:  # the same path, so that the merge conflicts
            world.commit_files({f"{HEADS}day=3/x": csv_of("eve", str(moves[0]))})
            world.commit_files({f"{HEADS}day=2/x": csv_of("bob", "bob", "cid", str(moves[0]))})
        return real(self, *args)

    monkeypatch.setattr(BranchPublication, "publish", moved)
    made = purged(world, engines)
    check(world, made)
    assert moves == [3]
    assert (counted(made)["heads"].rewritten_objects, counted(made)["heads"].rows_changed) == (3, 4)
    assert made.is_whole


def test_an_object_of_two_branches_counts_once_although_one_is_refused(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    onboard(world, "heads")
    world.commit_files({f"{HEADS}day=1/x": csv_of("bob", "ann")})
    world.repo.create_branch("dev", source="main")
    world.repo.upload("main", "elsewhere", b"staged until the last attempt")
    real, calls = BranchPublication.publish, [0]

    def committed(self: BranchPublication, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            world.repo.commit("main", "what was staged")
        return real(self, *args)

    monkeypatch.setattr(BranchPublication, "publish", committed)
    made = purged(world, engines)
    check(world, made)
    assert [each.branch for each in made.published_commits] == ["dev", "main"]
    assert (made.rows[0].matched_objects, made.rows[0].rewritten_objects, made.rows[0].rows_changed) == (1, 1, 1)
    assert made.is_whole, made.skipped_objects


def test_what_was_staged_and_is_purged_by_the_end_is_not_listed(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    onboard(world, "heads")
    world.commit_files({f"{HEADS}day=1/x": csv_of("bob", "ann")})
    world.repo.upload("main", f"{HEADS}day=2/x", csv_of("eve"))
    real = HeadPublisher.find_outside_names

    def committed(*args: Any) -> Any:
        monkeypatch.setattr(HeadPublisher, "find_outside_names", real)
        world.repo.commit("main", "what was staged")
        return real(*args)

    monkeypatch.setattr(HeadPublisher, "find_outside_names", committed)
    made = purged(world, engines)
    check(world, made)
    assert (made.is_whole, made.skipped_objects) == (True, [])
    assert counted(made)["heads"].rewritten_objects == 2


def test_an_object_of_two_data_sets_is_looked_at_for_each(world: World, engines: Engines) -> None:
    """By other columns: what one of them says is nothing that the other may go by."""
    by_client = {"name": "versions", "prefix": VERSIONS, "format": "csv", "identifier": "at", "mode": "rewrite"}
    document = {"whitelist": ["*"], "datasets": [DOCUMENT["datasets"][0], by_client]}
    world.repo.onboard_purge(json.dumps(document), by="tests")
    world.commit_files({f"{HEADS}x": b"guest,at\nann,bob\ncid,dan\n"})
    world.repo.copy("main", f"{HEADS}x", to_branch="main", to_path=f"{VERSIONS}x")
    world.repo.commit("main", "copied")
    assert "named outside" in purged(world, engines).skipped_objects[0].reason
    assert purged(world, engines, includes_copies=True).is_whole
    assert world.repo.read("main", f"{VERSIONS}x") == b"guest,at\ncid,dan\n"


# ---- kills


def kill(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, call: int, before: bool) -> None:
    """End the process at a call: from then on it writes no report, gives no sign of life, and clears nothing away."""
    real, calls = getattr(owner, name), [0]

    def killed(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] != call:
            return real(*args, **more)
        if not before:
            real(*args, **more)
        for where in (purge_report, purge_account):
            monkeypatch.setattr(where, "write_report", _write_nothing)
        monkeypatch.setattr(run_progress.RunSteps, "close", _nothing)
        monkeypatch.setattr(BranchPublication, "close", _nothing)
        monkeypatch.setattr("refstore_purge.content_replacement.keep_in_manifest", _nothing)
        monkeypatch.setattr("refstore_purge.content_replacement.delete_unpublished", _nothing)
        raise Killed

    monkeypatch.setattr(owner, name, killed)


def _nothing(*_: Any) -> None: ...


def _write_nothing(*_: Any) -> int:
    return 0


STEPS: list[tuple[Any, str]] = [
    (purge_run, "plan_heads"),
    (purge_run, "plan_versions"),
    (HeadPublisher, "find_outside_names"),
    (purge_tasks, "run_tasks"),
    (BranchPublication, "issue"),
    (BranchPublication, "stage"),
    (BranchPublication, "publish"),
    (transaction, "merge_when_clean"),
    (HeadPublisher, "count_published"),
    (Locations, "intend"),
    (Locations, "publish"),
    (PurgeRun, "announce"),
    (purge_account.PurgeAccount, "record"),
    (PurgeRun, "end_publishing"),
    (location_publisher, "plan_versions"),
]


@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_a_run_that_was_killed_says_what_it_had_done(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: bool
) -> None:
    fill(world, random.Random(7))
    kills = 0
    for call in (1, 2):
        with monkeypatch.context() as patched:
            kill(patched, owner, name, call=call, before=before)
            try:
                purged(world, engines)
            except Killed:
                kills += 1
                assert purge_report.read_report(world.repo).state == "running"
                world.clock.sleep(3 * DEAD_MS / 1000)
                made = purge_report.read_report(world.repo)
                assert (made.state, made.is_whole, made.ended_ms) == ("killed", False, 0)
                check(world, made)
        assert [each.state for each in purge_report.scan_reports(world.repo)].count("running") == 0
    assert kills
    last = purged(world, engines)
    check(world, last)
    assert last.is_whole, last
    assert sum(row.matched_objects for row in purged(world, engines).rows) == 0
    states = [each.state for each in purge_report.scan_reports(world.repo)]
    assert states[:2] == ["done", "done"]


def test_a_commit_of_a_killed_run_is_found_below_one_with_an_old_date(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, random.Random(7))
    with monkeypatch.context() as patched:
        kill(patched, transaction, "merge_when_clean", call=1, before=False)
        with pytest.raises(Killed):
            purged(world, engines)
    told = purge_report.read_report(world.repo)
    branch = told.pending_replacements[0].branches[0]
    world.repo.upload(branch, "other", b"1")
    world.repo.commit(branch, "from another system", date=to_datetime(1))
    world.clock.sleep(3 * DEAD_MS / 1000)
    (published,) = purge_report.read_report(world.repo).published_commits
    assert world.repo.get_commit(branch).parents == (published.commit,)


def test_a_run_that_lasts_is_running_and_one_that_failed_counts_what_it_did(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, random.Random(3))
    states: list[str] = []

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            states.append(purge_report.read_report(world.repo).state)
            real(*args)
            raise OSError("the disk is full")

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Locations, "publish", failing(Locations.publish))
        with pytest.raises(OSError, match="full"):
            purged(world, engines, max_partitions=8)
    assert states == ["running"]
    made = purge_report.read_report(world.repo)
    assert (made.state, made.failure, made.is_whole) == ("failed", "OSError", False)
    assert (made.watermark, made.partitions_left) == ("", 0)  # nobody may go on from where it did not come to
    check(world, made)  # what was published when the reply was lost counts
    assert counted(made)["versions"].rewritten_objects + counted(made)["faces"].erased_objects > 0


# ---- what attempts leave


class TestWhatAttemptsLeave:
    def test_its_size_is_asked_for_and_no_earlier_cleanup_is_blamed(
        self, world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        onboard(world, "versions")
        world.commit_files({f"{VERSIONS}day=1/x": csv_of("bob", "ann")})
        for _ in range(2):  # the second attempt takes the place of the first one's intent
            with monkeypatch.context() as patched:
                kill(patched, Locations, "publish", call=1, before=True)
                with pytest.raises(Killed):
                    purged(world, engines)
        world.clock.sleep(2 * world.ctx.safety.operation_deadline_seconds)
        left = ObjectCount(2, 2 * len(csv_of("ann")))
        before = len(world.data())
        for dry_run in (True, False):
            cleaned = purge_cleanup.clean_up(world.ctx, dry_run=dry_run)
            assert (cleaned.attempts, cleaned.pending_deletions, cleaned.failed_objects) == (left, ObjectCount(), 0)
        assert len(world.data()) == before - 2
        assert purge_cleanup.clean_up(world.ctx).attempts == ObjectCount()

    def test_what_was_never_written_does_not_count(
        self, world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        onboard(world, "versions")
        world.commit_files({f"{VERSIONS}day=1/x": csv_of("bob", "ann")})
        with monkeypatch.context() as patched:
            kill(patched, Locations, "intend", call=1, before=False)
            with pytest.raises(Killed):
                purged(world, engines)
        world.clock.sleep(2 * world.ctx.safety.operation_deadline_seconds)
        assert purge_cleanup.clean_up(world.ctx, dry_run=True).attempts == ObjectCount()
        assert purge_cleanup.clean_up(world.ctx).attempts == ObjectCount()
        assert list(world.ctx.locations.scan_changing()) == []


class TestRestores:
    def test_what_was_purged_again_is_not_restored_already(self, world: World, engines: Engines) -> None:
        onboard(world, "versions")
        world.commit_files({f"{VERSIONS}day=1/x": csv_of("bob", "ann")})
        first = purged(world, engines)
        assert restore_backups.restore_backups(world.repo, RestoreScope(run=first.run)).objects == 1
        assert restore_backups.restore_backups(world.repo, RestoreScope(run=first.run)).already_restored == 1
        second = purged(world, engines)
        check(world, second)
        done = restore_backups.restore_backups(world.repo, RestoreScope(run=first.run))
        assert (done.objects, done.already_restored, done.not_restored_count) == (0, 0, 1)
        assert f"{second.run!r} has replaced it since" in done.not_restored[0].reason
