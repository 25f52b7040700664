"""Commits that have expired and are complete: nothing of what they name goes, and they stay what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import CommitId
from refstore.errors import Gone, OutcomeUnknown
from refstore.gc_marks import Marks, RunState
from refstore.gc_marks.mark_run import MarkRun
from refstore.operations.log_and_diff import CommitLifetime
from refstore.records import keys
from refstore_gc import gc_run, nothing_to_delete
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from refstore_gc.run_summary import GcSummary
from tests.offline.world import World, marked_in

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

COMPLETE, MARKED, SWEPT, ACTIVE = (
    CommitLifetime.NOTHING_TO_DELETE,
    CommitLifetime.MARKED,
    CommitLifetime.SWEPT,
    CommitLifetime.ACTIVE,
)


def lifetimes(world: World, *commits: CommitId) -> list[CommitLifetime]:
    known = {line.commit.id: line.lifetime for branch in world.repo.branches() for line in branch.history()}
    return [known[commit] for commit in commits]


def ever_marked(world: World) -> set[CommitId]:
    """What any run marked, whatever became of it."""
    marks, kv = Marks(world.ctx), world.lake.kv
    return {
        CommitId(name)
        for each in marks.runs.scan()
        for name, _ in kv.scan_all(keys.gc_marked_commits(world.ctx.repo, each.mark_id))
    }


def two_views(world: World) -> tuple[CommitId, ...]:
    """Branch abc: T1 (APPEND), T2 (APPEND), T3 (SNAPSHOT), T4 (APPEND); xyz forks from it at T2: T5 (APPEND)."""
    repo, made = world.repo, list[CommitId]()
    repo.create_branch("abc", source="main")

    def transaction(branch: str, kind: str, name: str) -> CommitId:
        repo.upload(branch, name, name.encode())
        date = to_datetime(world.clock.now_ms() - (20 - len(made)) * 86_400_000)
        made.append(repo.commit(branch, name, metadata={"refstore.transaction": kind}, date=date).id)
        return made[-1]

    transaction("abc", "APPEND", "t1")
    repo.create_branch("xyz", source=transaction("abc", "APPEND", "t2"))
    repo.delete_many("abc", ["t1", "t2"])
    transaction("abc", "SNAPSHOT", "t3")
    transaction("abc", "APPEND", "t4")
    transaction("xyz", "APPEND", "t5")
    world.settle()
    return tuple(made)


def test_a_policy_on_abc_does_not_mark_what_is_in_the_latest_view_of_xyz(world: World, engines: Engines) -> None:
    first, second, third, fourth, fifth = two_views(world)
    world.set_rules(grace_days=7)
    gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0))
    assert ever_marked(world).isdisjoint((first, second, third, fourth, fifth))
    assert set(lifetimes(world, first, second, third, fourth, fifth)) == {ACTIVE}
    world.repo.delete_branch("xyz")
    world.settle()
    gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0))
    assert ever_marked(world) >= {first, second}
    assert ever_marked(world).isdisjoint((third, fourth))
    assert lifetimes(world, first, second, third, fourth) == [SWEPT, SWEPT, ACTIVE, ACTIVE]


def test_expired_commits_are_complete_while_a_head_names_their_data(world: World, engines: Engines) -> None:
    first, second, third, fourth, fifth = two_views(world)
    world.set_rules(grace_days=7, keep_latest_view=False)
    before = world.data()
    done = gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0)).latest_summary
    assert world.data() == before
    assert lifetimes(world, first, second, third, fourth, fifth) == [COMPLETE, COMPLETE, COMPLETE, ACTIVE, ACTIVE]
    assert (done.commits["nothing_to_delete"], done.commits["commits_marked"]) == (3, 0)
    repo = world.repo
    assert repo.read(first, "t1") == b"t1"
    repo.copy(second, "t2", to_branch="abc", to_path="copied")
    repo.create_branch("at-it", source=first)
    repo.create_tag("v1", ref=second)
    repo.cherry_pick(second, onto="at-it")
    assert repo.read("at-it", "t2") == b"t2"
    for branch in ("xyz", "at-it"):
        repo.delete_branch(branch)
    repo.delete_tag("v1")
    repo.reset("abc")
    world.settle()
    gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0))
    assert lifetimes(world, first, second, third, fourth) == [SWEPT, SWEPT, COMPLETE, ACTIVE]
    assert len(world.data()) == 2


def lines_of(world: World, days: int) -> list[CommitId]:
    """Each day adds a file; the one of the first day is deleted on the last."""
    made = [world.commit(days_ago=30 - day, **{f"day__{day:02d}": b"%d" % day}) for day in range(days)]
    world.settle()
    return made


@pytest.mark.parametrize("rows_here", [0, 1_000_000])
def test_those_of_which_something_goes_stay_marked(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch, rows_here: int
) -> None:
    monkeypatch.setattr(nothing_to_delete, "ROWS_HERE", rows_here)
    world.set_rules(grace_days=7)
    made = lines_of(world, 6)
    made += [world.commit(days_ago=20, day__03=None), world.commit(days_ago=19, last=b"last")]
    world.settle()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert lifetimes(world, *made) == [COMPLETE] * 3 + [MARKED] * 3 + [COMPLETE, ACTIVE]
    assert list(marked_in(world, summary.mark_id)) == [world.address(made[3], "day/03")]
    with pytest.raises(Gone, match="will be deleted from"):
        world.repo.create_branch("late", source=made[4])
    world.repo.create_branch("early", source=made[2])


def test_a_night_with_nothing_to_delete_goes_on_and_reads_none_of_these_commits(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set_rules(grace_days=7)
    made = lines_of(world, 12)
    read: list[str] = []
    reads = nothing_to_delete.read_ranges

    def counted(work: Any, ranges: Any) -> Any:
        read.extend(ranges)
        return reads(work, ranges)

    monkeypatch.setattr(nothing_to_delete, "read_ranges", counted)
    first = gc_run.mark(world.ctx, engines, GcOptions())
    assert first.commits["nothing_to_delete"] == 12
    assert read
    read.clear()
    second = gc_run.mark(world.ctx, engines, GcOptions())
    assert (second.baseline_mark_id, second.commits["nothing_to_delete"], read) == (first.mark_id, 12, [])
    world.repo.create_branch("at-a-complete-one", source=made[3])
    world.commit(days_ago=1, of_today=b"today")
    world.plant("data/2020010100/00000000000000000000000000")
    world.settle()
    third = gc_run.mark(world.ctx, engines, GcOptions())
    assert third.baseline_mark_id == second.mark_id, "a commit that was complete and is a head now ends nothing"
    assert lifetimes(world, *made) == [COMPLETE] * 3 + [ACTIVE] + [COMPLETE] * 8
    world.repo.delete_branch("at-a-complete-one")
    world.commit(day__05=None)
    world.commit(then=b"then")
    world.settle()
    fourth = gc_run.mark(world.ctx, engines, GcOptions())
    assert fourth.baseline_mark_id == third.mark_id
    assert lifetimes(world, *made) == [COMPLETE] * 5 + [MARKED] * 7
    assert world.address(made[5], "day/05") in marked_in(world, fourth.mark_id)
    fifth = gc_run.mark(world.ctx, engines, GcOptions())
    assert (fifth.baseline_mark_id, fifth.commits["commits_marked"]) == (fourth.mark_id, 0)
    assert lifetimes(world, *made) == [COMPLETE] * 5 + [MARKED] * 7


def test_an_incremental_run_marks_a_commit_with_nothing_to_delete_once_its_shared_data_expires(
    world: World, engines: Engines
) -> None:
    world.set_rules(grace_days=7)
    old = world.commit(days_ago=9, a=b"a", b=b"b")
    world.commit(days_ago=8)  # the same tree
    world.settle()
    first = gc_run.mark(world.ctx, engines, GcOptions())
    assert lifetimes(world, old) == [COMPLETE]
    world.commit(days_ago=7, a=None)
    world.settle()
    second = gc_run.mark(world.ctx, engines, GcOptions())
    assert second.baseline_mark_id == first.mark_id
    assert world.address(old, "a") in marked_in(world, second.mark_id)
    assert lifetimes(world, old) == [MARKED]


def test_what_an_older_mark_leaves_is_not_complete(world: World, engines: Engines) -> None:
    world.set_rules(grace_days=7)
    world.commit(days_ago=10, z=b"z")
    world.commit(days_ago=9.5, z=None)
    old = world.commit(days_ago=9, a=b"a")
    world.commit(days_ago=8, a=None)
    world.commit(days_ago=7, b=b"b")
    world.settle()
    older = gc_run.mark(world.ctx, engines, GcOptions())
    assert world.repo.unmark(old).unmarked_commits == 1
    assert world.repo.unmark(old, dry_run=True).expired_commits == [old]
    newer = gc_run.mark(world.ctx, engines, GcOptions())
    assert lifetimes(world, old) == [MARKED]
    assert [mark.mark_id for mark in Marks(world.ctx).commits.read_marks([old]) if mark] == [newer.mark_id]
    assert Marks(world.ctx).runs.get(older.mark_id).state is RunState.MARKED


def test_a_run_that_dies_while_it_unmarks_leaves_everything_active(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set_rules(grace_days=7)
    made = lines_of(world, 4)
    world.commit(day__00=None)
    world.commit(last=b"last")
    world.settle()
    took_off = MarkRun.unmark_nothing_to_delete

    def dies(mark_run: MarkRun, *args: Any) -> int:
        took_off(mark_run, *args)
        raise OutcomeUnknown("planted")

    monkeypatch.setattr(MarkRun, "unmark_nothing_to_delete", dies)
    with pytest.raises(OutcomeUnknown, match="planted"):
        gc_run.mark(world.ctx, engines, GcOptions())
    assert Marks(world.ctx).commits.read_marks(made) == [None] * 4
    monkeypatch.undo()
    assert _states(gc_run.mark(world.ctx, engines, GcOptions())) == (2, 4)
    assert lifetimes(world, *made) == [MARKED] * 4


def _states(summary: GcSummary) -> tuple[int, int]:
    return summary.commits["nothing_to_delete"], summary.commits["commits_marked"]


def test_a_part_of_which_nothing_goes_leaves_its_commit_as_it_is(world: World, engines: Engines) -> None:
    world.set_rules(
        grace_days=7,
        default_retention_days=365,
        rules=[{"filter": {"prefix": "tmp/"}, "expiration": {"noncurrent": {"days": 1}}}],
    )
    kept = world.commit(days_ago=9, tmp__a=b"a", tmp__b=b"b")
    gone = world.commit(days_ago=8, tmp__c=b"c")
    world.commit(days_ago=7, tmp__c=None)
    world.commit(days_ago=6, other=b"o")
    world.settle()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert [bool(mark) for mark in Marks(world.ctx).commits.read_marks([kept, gone])] == [False, True]
    assert lifetimes(world, kept, gone) == [ACTIVE, CommitLifetime.PARTLY_MARKED]
    assert summary.commits["nothing_to_delete"] == 0
    world.repo.copy(kept, "tmp/a", to_branch="main", to_path="copied")


def test_a_simulation_says_how_many_would_be_complete(world: World, engines: Engines) -> None:
    world.set_rules(grace_days=7)
    lines_of(world, 4)
    assert simulate_mark(world.ctx, engines, GcOptions()).commits["nothing_to_delete"] == 4
    assert ever_marked(world) == set()


def two_that_share(world: World) -> tuple[CommitId, CommitId]:
    """A has f1, B has f1 and f2, and the head has neither."""
    first, second = world.commit(days_ago=9, f1=b"f1"), world.commit(days_ago=8, f2=b"f2")
    world.commit(days_ago=7, f1=None, f2=None, c=b"c")
    world.settle()
    return first, second


def sweep_and_read_all(world: World, engines: Engines, mark_id: str, *commits: CommitId) -> None:
    """Sweep a mark, of which everything that these commits name stays. They can be read, copied and branched from."""
    before = world.data()
    gc_run.sweep(world.ctx, engines, mark_id)
    assert world.data() == before
    for commit in commits:
        named = [item.path for item in world.repo.list(commit)]
        assert [world.repo.read(commit, path) for path in named] == [path.encode() for path in named]
        world.repo.create_branch(f"at-{commit}", source=commit)
        for path in named:
            world.repo.copy(commit, path, to_branch="main", to_path=f"copied/{commit}/{path}")
    world.settle()
    gc_run.mark(world.ctx, engines, GcOptions(grace_days=0))
    gc_run.run_nightly(world.ctx, engines, GcOptions(grace_days=0, is_full=True))
    for branch in [each.name for each in world.repo.branches()]:
        for item in world.repo.list(branch):
            assert world.repo.read(branch, item.path) == item.path.rpartition("/")[2].encode()


def test_a_commit_is_not_swept_if_one_that_was_unmarked_keeps_its_data(world: World, engines: Engines) -> None:
    first, second = two_that_share(world)
    marked = gc_run.mark(world.ctx, engines, GcOptions())
    assert marked.marked.objects == 2
    world.repo.unmark(second)
    marks = Marks(world.ctx)
    gc_run.sweep(world.ctx, engines, marked.mark_id)
    assert lifetimes(world, first, second) == [COMPLETE, ACTIVE]
    run = marks.runs.get(marked.mark_id)
    assert run.state is RunState.SWEPT
    assert (run.record.sweep_counts["deleted_objects"], run.record.sweep_counts["excluded"]) == (0, 2)
    counts = marks.statuses.read_counts(run)
    assert (counts["commits_marked"], counts["commits_unmarked"]) == (0, 2)
    sweep_and_read_all(world, engines, marked.mark_id, first, second)


def test_a_commit_is_not_swept_if_a_legal_hold_keeps_all_that_it_would_lose(world: World, engines: Engines) -> None:
    first, second = two_that_share(world)
    marked = gc_run.mark(world.ctx, engines, GcOptions())
    world.set_rules(legal_holds=[{"prefix": "f", "reason": "case 4711"}])
    sweep_and_read_all(world, engines, marked.mark_id, first, second)


def test_a_commit_is_not_swept_if_an_older_mark_that_waits_keeps_its_data(world: World, engines: Engines) -> None:
    """The older mark holds `own`. Its commit names `f1` as well, which the newer mark holds."""
    first = world.commit(days_ago=9, f1=b"f1", own=b"own")
    second = world.commit(days_ago=6, own=None)
    world.commit(days_ago=3, f1=None, c=b"c")
    world.settle()
    world.set_rules(default_retention_days=5)
    older = gc_run.mark(world.ctx, engines, GcOptions(grace_days=7))
    world.set_rules()
    newer = gc_run.mark(world.ctx, engines, GcOptions())
    assert lifetimes(world, first, second) == [MARKED, MARKED]
    assert list(marked_in(world, newer.mark_id)) == [world.address(first, "f1")]
    gc_run.sweep(world.ctx, engines, newer.mark_id)
    assert lifetimes(world, first, second) == [MARKED, COMPLETE]
    world.clock.sleep(8 * 86_400)
    gc_run.sweep(world.ctx, engines, older.mark_id)
    assert lifetimes(world, first, second) == [SWEPT, COMPLETE]
    assert world.repo.read(second, "f1") == b"f1"


def test_a_commit_that_loses_a_part_is_swept_and_the_others_are_not(world: World, engines: Engines) -> None:
    first, second = two_that_share(world)
    marked = gc_run.mark(world.ctx, engines, GcOptions())
    world.repo.unmark(first)
    gone = world.address(second, "f2")
    gc_run.sweep(world.ctx, engines, marked.mark_id)
    assert lifetimes(world, first, second) == [ACTIVE, SWEPT]
    assert gone not in world.data()
    counts = Marks(world.ctx).statuses.read_counts(Marks(world.ctx).runs.get(marked.mark_id))
    assert (counts["commits_marked"], counts["commits_unmarked"], counts["objects"]) == (1, 1, 2)


@pytest.mark.parametrize("full", [False, True])
def test_commits_that_no_reaper_has_processed_wait(world: World, engines: Engines, full: bool) -> None:
    """Their references keep what they added. They are called active, not complete, and are marked after one pass."""
    old = world.commit(days_ago=9, a=b"a")
    world.commit(days_ago=8, a=None)
    world.commit(days_ago=7, b=b"b")
    world.age()
    options = GcOptions(is_full=full)
    first = gc_run.mark(world.ctx, engines, options)
    # what is complete is the first commit of the repository, which is empty
    assert (first.commits["commits_waiting"], first.commits["nothing_to_delete"], first.marked.objects) == (2, 1, 0)
    assert lifetimes(world, old) == [ACTIVE]
    world.settle()
    second = gc_run.mark(world.ctx, engines, options)
    assert (second.commits["commits_waiting"], second.drift) == (0, {})
    assert second.by_reason == {"expired": second.marked}
    assert second.marked.objects == 1
    assert second.baseline_mark_id == ("" if full else first.mark_id)
    assert lifetimes(world, old) == [MARKED]
    gc_run.sweep(world.ctx, engines, second.mark_id)
    gc_run.mark(world.ctx, engines, options)
    assert lifetimes(world, old) == [SWEPT]


@pytest.mark.parametrize("full", [False, True])
def test_what_was_staged_and_only_an_expired_commit_names_is_no_orphan(
    world: World, engines: Engines, full: bool
) -> None:
    """A night found that the commit loses nothing, because a branch had the object staged."""
    old = world.commit(days_ago=9, a=b"a")
    world.commit(days_ago=8, a=None)
    world.commit(days_ago=7, b=b"b")
    world.settle()
    world.repo.copy(old, "a", to_branch="main", to_path="copied")
    options = GcOptions(is_full=full)
    first = gc_run.mark(world.ctx, engines, options)
    assert lifetimes(world, old) == [COMPLETE]
    world.repo.reset("main")
    world.settle()
    second = gc_run.mark(world.ctx, engines, options)
    assert second.baseline_mark_id == ("" if full else first.mark_id)
    assert (second.marked.objects, second.drift) == (1, {})
    assert lifetimes(world, old) == [MARKED]
