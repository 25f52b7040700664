"""A run that goes on from the one before marks what a full one would, and reads only what changed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from refstore.core import ids
from refstore.core.ids import CommitId
from refstore.core.step_progress import ignore_progress
from refstore.errors import Corrupt, CorruptRange, NothingToCommit, RefstoreError
from refstore.gc_marks import Marks, RunState
from refstore.kv.base import ABSENT, Key
from refstore.objects.base import OWN_FILES
from refstore.public_types import stored_commit
from refstore.records import keys
from refstore.records.staging_records import StoredEntry
from refstore.retention.path_rules import KeepLevel
from refstore_gc import anti_join, gc_run
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.engines.worker_processes import Worker
from refstore_gc.incremental import baseline_files
from refstore_gc.live_in_commits import CommitReads, FilterPart, LiveCommits, TreeFilter
from refstore_gc.mark import simulate_mark
from refstore_gc.run_context import GcOptions, RunContext
from refstore_gc.run_layout import ObjectKind, kind_of, make_layout
from refstore_gc.run_progress import RunSteps
from refstore_gc.run_summary import GcSummary
from tests.engines import OneEngine
from tests.offline.test_mark_oracle import obviously
from tests.offline.world import World, marked_in
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

DAY = 86_400.0
RULES = {"default_retention_days": 6, "branches": [{"branch_id": "main", "retention_days": 12}], "grace_days": 4}


def live_for_a_day(world: World, rng: random.Random, day: int) -> None:
    """Uploads, deletions, copies out of history, branches, merges, reverts; some is committed, some thrown away, some
    stays.
    """
    repo = world.repo
    branches = [each.name for each in repo.branches()]
    for branch in rng.sample(branches, min(2, len(branches))):
        for _ in range(rng.randrange(1, 12)):
            path = f"{rng.choice('abc')}/{rng.randrange(9)}"
            if rng.random() < 0.25:
                repo.delete(branch, path)
            else:
                repo.upload(branch, path, rng.randbytes(rng.randrange(1, 40)))
        commits = [commit.id for commit in repo.log(branch)]
        source = rng.choice(commits[:8])
        with suppress(RefstoreError):  # what is marked is not copied from
            listed = [each.path for each in repo.list(source)]
            if listed:
                repo.copy(source, rng.choice(listed), to_branch=branch, to_path=f"copied/{rng.randrange(5)}")
        if rng.random() < 0.8:
            with suppress(NothingToCommit):
                repo.commit(branch, f"day {day}")
        elif rng.random() < 0.3:
            repo.reset(branch)
    if rng.random() < 0.3:
        repo.create_branch(f"branch-{day}", source=rng.choice(branches))
    if rng.random() < 0.3 and len(branches) > 1:
        with suppress(RefstoreError):
            repo.merge(rng.choice([each for each in branches if each != "main"]), into="main", strategy="source-wins")
    if rng.random() < 0.15 and len(branches) > 2:
        repo.delete_branch(rng.choice([each for each in branches if each != "main"]))
    if rng.random() < 0.1:
        repo.create_tag(f"tag-{day}", ref="main")
    if rng.random() < 0.4:
        world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    if rng.random() < 0.7:
        release_all(repo)


def counted(summary: GcSummary) -> GcSummary:
    """Return what two engines must agree on."""
    return msgspec.structs.replace(summary, mark_id="", engine="", began_ms=0, deletes_at_ms=0, seconds={})


def sweep_due(world: World, engines: Engines) -> None:
    for each in list(Marks(world.ctx).runs.scan()):
        if each.state is RunState.MARKED and each.record.deletes_at_ms <= world.clock.now_ms():
            gc_run.sweep(world.ctx, engines, each.mark_id)


def a_world_of_a_few_days(folder: Path, engines: Engines) -> tuple[World, GcSummary]:
    """Marked completely, and two days on."""
    world = World(folder, rules=json.dumps(RULES))
    for day in range(16):
        world.commit(kept=b"kept", **{f"file__{day}": b"%d" % day, "over__it": b"%d" % day})
        world.stamp()
        world.clock.sleep(DAY)
    first = gc_run.mark(world.ctx, engines, GcOptions())
    assert first.baseline_mark_id == ""
    for day in range(16, 18):
        world.commit(over__it=b"%d" % day)
        world.stamp()
        world.clock.sleep(DAY)
    return world, first


def a_run(world: World, engines: Engines, full_days: float = 7.0) -> RunContext:
    options, layout, engine = (
        GcOptions(full_days=full_days),
        make_layout(world.ctx, "mark-1", 1),
        engines.for_objects(0),
    )
    return RunContext(
        repository=world.ctx,
        engine=engine,
        options=options,
        steps=RunSteps(world.ctx.name, engine, ignore_progress),
        layout=layout,
    )


def forget_references(world: World) -> None:
    """As a reaper would that loses what it was to delete."""
    ctx = world.ctx
    for shard in range(keys.SHARDS):
        for name, _ in list(ctx.kv.scan_all(keys.references(ctx.repo, shard))):
            ctx.kv.delete(Key(keys.references(ctx.repo, shard), name))


def in_earlier_marks(world: World, but: str) -> set[str]:
    standing = [
        each.mark_id for each in Marks(world.ctx).runs.scan() if each.state is RunState.MARKED and each.mark_id != but
    ]
    return {address for mark_id in standing for address in marked_in(world, mark_id)}


def old_enough(world: World) -> set[str]:
    cutoff = world.clock.now_ms() / 1000 - DAY
    return {key for key in world.data() if (world.blobs / key).stat().st_mtime <= cutoff}


def complete_and_others(world: World, summary: GcSummary, going: set[str]) -> tuple[int, int]:
    """How many commits the run unmarked as complete, and how many it did not; each as what it names says."""
    marks = Marks(world.ctx)
    listed = [
        CommitId(name) for name, _ in world.lake.kv.scan_all(keys.gc_marked_commits(world.ctx.repo, summary.mark_id))
    ]
    counts = [0, 0]
    for commit, mark, complete in zip(
        listed, marks.commits.read_marks(listed), marks.commits.read_nothing_to_delete(listed), strict=True
    ):
        if world.lake.kv.get(keys.landed_mark(world.ctx.repo, commit)) is ABSENT:
            assert complete is None
            assert mark is not None
            continue
        meets = not going.isdisjoint(entry.address for _, entry in all_of(world, commit))
        assert (complete is None, mark is not None) == (meets, meets), f"{commit}: {mark}, {complete}"
        counts[meets] += 1
    return counts[0], counts[1]


def all_of(world: World, commit: CommitId) -> list[tuple[str, StoredEntry]]:
    return list(world.ctx.trees.scan(stored_commit(world.repo.get_commit(commit)).metarange))


@pytest.mark.parametrize(("seed", "bucket_rows"), [(1, anti_join.BUCKET_ROWS), (2, 1)])
def test_it_marks_what_a_plain_walk_finds_and_what_a_complete_run_would(
    tmp_path: Path,
    engines: Engines,
    spark_engines: Engines,
    seed: int,
    bucket_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With many small buckets, several share a task, and each has its own record for the next run. A run may go on from
    one of the other engine.
    """
    monkeypatch.setattr(anti_join, "BUCKET_ROWS", bucket_rows)
    world, rng = World(tmp_path, rules=json.dumps(RULES)), random.Random(seed)
    went_on = marked = were_complete = were_not = 0
    for day in range(21):
        live_for_a_day(world, rng, day)
        world.stamp()
        world.clock.sleep(DAY)
        if day % 3 != 2:
            continue
        sweep_due(world, spark_engines if day % 2 else engines)
        whole = simulate_mark(world.ctx, spark_engines, GcOptions())
        assert counted(simulate_mark(world.ctx, engines, GcOptions())) == counted(whole)
        summary = gc_run.mark(world.ctx, rng.choice((engines, spark_engines)), GcOptions(full_days=11))
        found = {each for each in marked_in(world, summary.mark_id) if each.startswith("data/")}
        assert found == (obviously(world) & old_enough(world)) - in_earlier_marks(world, summary.mark_id), f"day {day}"
        assert summary.by_prefix == whole.by_prefix, f"day {day}"
        complete, others = complete_and_others(world, summary, in_earlier_marks(world, ""))
        counts = summary.commits["nothing_to_delete"], whole.commits["nothing_to_delete"]
        assert counts == (complete, complete), f"day {day}"
        were_complete += complete
        were_not += others
        went_on += summary.baseline_mark_id != ""
        marked += len(found)
    assert went_on >= 3, "most runs go on from the one before"
    assert marked >= 20
    assert were_complete >= 10
    assert were_not >= 5
    Marks(world.ctx).decisions.unmark(summary.mark_id)
    again = gc_run.mark(world.ctx, engines, GcOptions(is_full=True))
    assert marked_in(world, again.mark_id) == marked_in(world, summary.mark_id)
    world.close()


def test_it_lists_and_reads_only_what_changed(tmp_path: Path, engines: Engines) -> None:
    world, first = a_world_of_a_few_days(tmp_path, engines)
    release_all(world.repo)
    second = gc_run.mark(world.ctx, engines, GcOptions())
    assert second.baseline_mark_id == first.mark_id
    assert second.marked.objects >= 2, "what was overwritten days ago, and what commits wrote of their own"
    of_commits = sum(kind_of(info.key) is not ObjectKind.OURS for info in world.ctx.objects.list(OWN_FILES))
    blobs = second.listed.objects + second.young.objects - of_commits
    assert blobs < (first.listed.objects - of_commits) / 2
    third = gc_run.mark(world.ctx, engines, GcOptions())
    assert third.baseline_mark_id == second.mark_id
    assert (third.marked.objects, third.sources) == (0, {"trees": 0, "listings": 0, "ranges": 0})
    world.close()


class StoppedBeforeItsFlag(ids.RandomIds):
    """The ids of a process that made its mark's id three days before it went on."""

    def __init__(self) -> None:
        self._went_on = False

    def new_id(self, at_ms: int) -> str:
        begun_ms, self._went_on = at_ms if self._went_on else at_ms - int(3 * DAY * 1000), True
        return super().new_id(begun_ms)


def test_it_goes_on_from_the_run_that_finished_last_and_not_from_the_last_id(tmp_path: Path, engines: Engines) -> None:
    world, first = a_world_of_a_few_days(tmp_path, engines)
    second = gc_run.mark(replace(world.ctx, ids=StoppedBeforeItsFlag()), engines, GcOptions())
    assert (second.mark_id < first.mark_id, second.baseline_mark_id) == (True, first.mark_id)
    third = gc_run.mark(world.ctx, engines, GcOptions())
    assert third.baseline_mark_id == second.mark_id
    Marks(world.ctx).decisions.unmark(second.mark_id)
    assert gc_run.mark(world.ctx, engines, GcOptions()).full_reason == f"mark {second.mark_id} was unmarked"
    world.close()


def test_it_begins_anew_where_a_commit_keeps_again_what_it_did_not(tmp_path: Path, engines: Engines) -> None:
    world, _ = a_world_of_a_few_days(tmp_path, engines)
    release_all(world.repo)
    first = gc_run.mark(world.ctx, engines, GcOptions())
    marks = Marks(world.ctx)
    marks.decisions.unmark(next(iter(marks.commits.scan_marked(first.mark_id))))
    world.repo.set_retention(json.dumps({**RULES, "default_retention_days": 600, "branches": []}))
    second = gc_run.mark(world.ctx, engines, GcOptions())
    assert (second.baseline_mark_id, second.full_reason) == ("", "a commit keeps what it names again")
    found = {each for each in marked_in(world, second.mark_id) if each.startswith("data/")}
    assert found == (obviously(world) & old_enough(world)) - in_earlier_marks(world, second.mark_id)
    world.close()


def test_what_it_does_not_go_on_from(tmp_path: Path, engines: Engines) -> None:
    world, first = a_world_of_a_few_days(tmp_path, engines)
    marks, context = Marks(world.ctx), a_run(world, engines)
    usable, why = baseline_files.usable(context)
    assert usable is not None, why
    assert "was given up" in usable.find_mismatch(LiveCommits(), LiveCommits().read_names(), usable.cutoff_ms)
    nothing = msgspec.structs.replace(usable, commit_reads=CommitReads(set(), set(), set(), set()))
    assert nothing.find_mismatch(LiveCommits(), LiveCommits().read_names(), usable.cutoff_ms) == ""
    assert "reaches further back than that of the last run" in nothing.find_mismatch(
        LiveCommits(), LiveCommits().read_names(), usable.cutoff_ms - 1
    )
    wanted = LiveCommits()
    head = world.repo.get_commit("main")
    wanted.add(
        head.id, stored_commit(head), TreeFilter((FilterPart("", KeepLevel.ALL), FilterPart("a/", KeepLevel.NOTHING)))
    )
    assert "keep only a part" in nothing.find_mismatch(wanted, wanted.read_names(), usable.cutoff_ms)
    assert "days ago" in baseline_files.usable(a_run(world, engines, full_days=2))[1]
    file = world.blobs / "_refstore" / "gc" / first.mark_id / baseline_files.FILE
    body = file.read_bytes()
    file.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    assert "its hash is another one" in baseline_files.usable(context)[1]
    file.unlink()
    assert baseline_files.usable(context) == (None, "the last run recorded nothing")
    file.write_bytes(body)
    marks.decisions.unmark(first.mark_id)
    assert "was unmarked" in baseline_files.usable(context)[1]
    world.close()


def test_damage_that_only_the_tasks_see_ends_the_run_and_the_next_one_begins_anew(
    tmp_path: Path, both_engines: Engines
) -> None:
    world, first = a_world_of_a_few_days(tmp_path, both_engines)
    damaged = next((world.blobs / "_refstore" / "gc" / first.mark_id / "carried").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-8])
    before = world.data()
    with pytest.raises(Corrupt, match="mark again"):
        gc_run.mark(world.ctx, both_engines, GcOptions())
    again = gc_run.mark(world.ctx, both_engines, GcOptions())
    assert again.baseline_mark_id == ""
    assert world.data() == before
    world.close()


def test_what_the_kv_let_go_of_and_nobody_deleted_is_found_where_it_is_still_there(
    tmp_path: Path, both_engines: Engines
) -> None:
    world = World(tmp_path, rules=json.dumps(RULES))
    world.commit(kept=b"kept")
    gone = world.repo.upload("main", "gone", b"1").address
    left = world.repo.upload("main", "left", b"2").address
    world.stamp()
    world.clock.sleep(3 * DAY)
    first = gc_run.mark(world.ctx, both_engines, GcOptions())
    world.repo.reset("main")
    release_all(world.repo)
    forget_references(world)
    (world.blobs / gone).unlink()
    second = gc_run.mark(world.ctx, both_engines, GcOptions())
    assert second.baseline_mark_id == first.mark_id
    assert marked_in(world, second.mark_id) == {left: "orphan blob"}
    world.close()


def test_what_a_commit_named_and_no_run_listed_is_not_marked(tmp_path: Path, engines: Engines) -> None:
    """The store lost the object before the first run, so there is nothing to delete, and no size to count."""
    world = World(tmp_path, rules=json.dumps(RULES))
    old = world.commit(lost=b"old", there=b"old")
    lost, there = (entry.address for _, entry in all_of(world, old))
    world.clock.sleep(DAY)
    world.commit(lost=b"new", there=b"new")
    release_all(world.repo)
    world.stamp()
    (world.blobs / lost).unlink()
    world.clock.sleep(11 * DAY)
    first = gc_run.mark(world.ctx, engines, GcOptions())
    assert first.marked.objects == 0
    world.clock.sleep(3 * DAY)
    whole = simulate_mark(world.ctx, engines, GcOptions())
    second = gc_run.mark(world.ctx, engines, GcOptions())
    assert second.baseline_mark_id == first.mark_id
    assert second.by_prefix == whole.by_prefix
    assert [each for each in marked_in(world, second.mark_id) if each.startswith("data/")] == [there]
    world.close()


def test_a_bucket_in_which_nothing_changed_is_carried_on(
    tmp_path: Path, both_engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blobs are a bucket of their own. The second run lists none of them, reads no range, and the KV names none."""
    monkeypatch.setattr(anti_join, "BUCKET_ROWS", 1)
    world = World(tmp_path, rules=json.dumps(RULES))
    world.commit(kept=b"kept")
    release_all(world.repo)
    lost = world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    world.stamp()
    world.clock.sleep(3 * DAY)
    first = gc_run.mark(world.ctx, both_engines, GcOptions())
    second = gc_run.mark(world.ctx, both_engines, GcOptions())
    assert second.baseline_mark_id == first.mark_id
    assert (marked_in(world, first.mark_id), marked_in(world, second.mark_id)) == ({lost: "orphan blob"}, {})
    third = gc_run.mark(world.ctx, both_engines, GcOptions(is_full=True))
    assert third.marked == second.marked
    world.close()


class EverythingInAWorker(SharedWork):
    """Lets a worker do every item, and notes what it did."""

    def __init__(self) -> None:
        super().__init__(1)
        self.worker = Worker()
        self.seen: set[str] = set()

    def map(
        self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any], *, is_long: bool = False
    ) -> Generator[Any, None, None]:
        while not self.worker.is_ready():
            assert not self.worker.has_ended
        for item in items:
            self.seen.update(re.findall(r"<function (\w+)", repr(work)))
            yield from self.worker.do(work, item)

    def stop(self) -> None:
        self.worker.stop()


def test_what_worker_processes_do_is_what_this_process_would_do(tmp_path: Path, engines: Engines) -> None:
    world, first = a_world_of_a_few_days(tmp_path, engines)
    release_all(world.repo)
    whole = simulate_mark(world.ctx, engines, GcOptions())
    shared = EverythingInAWorker()
    helped = OneEngine(LocalEngine(shared=shared))
    second = gc_run.mark(world.ctx, helped, GcOptions())
    assert second.baseline_mark_id == first.mark_id
    assert shared.seen >= {"list_interval", "read_files", "read_ranges", "open_trees", "join_bucket"}
    assert second.by_prefix == whole.by_prefix
    assert second.marked.objects >= 2
    world.clock.sleep(2 * DAY)
    for damaged in (world.blobs / "_refstore" / "ranges").iterdir():
        damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(CorruptRange, match="hash"):
        gc_run.mark(world.ctx, helped, GcOptions())
    shared.stop()
    world.close()
