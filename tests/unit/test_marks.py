"""Marks: what they forbid, what takes them back, and what a sweep may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import BranchName, CommitId
from refstore.errors import AlreadyExists, Conflict, CorruptObject, CorruptRecord, Gone, InvalidName, NotFound
from refstore.gc_marks import TAKE_OVER_MS, LiveBatch, LiveSource, Marks, OfflineRun, RunState, barrier_seconds
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, Key
from refstore.lake import Lake
from refstore.operations.copy import Copy
from refstore.operations.log_and_diff import CommitLifetime
from refstore.public_types import stored_commit
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.mark_records import GcFlag, StoredMark
from refstore.repository import Repository
from refstore.versioning.manifest import CommitLanded, waiting_key
from tests.kit import collecting
from tests.kit.clock import FakeClock
from tests.kit.counting_kv import CountingKV
from tests.purging import rewrite
from tests.reaping import release_all

DAY_MS = 86_400_000
LATER_MS = 1_900_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    """Later than any file's time, so that nothing is too young to go."""
    return FakeClock(LATER_MS)


@pytest.fixture
def lake(tmp_path: Path, clock: FakeClock) -> Iterator[Lake]:
    with Lake(open_kv("memory:", clock=clock), f"file://{tmp_path}/objects", clock=clock) as opened:
        yield opened


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("marked")


@pytest.fixture
def marks(repo: Repository) -> Marks:
    return Marks(repo.context)


@pytest.fixture
def old(repo: Repository) -> CommitId:
    """A commit of `p` and `q`, on which another one without them follows on main."""
    repo.upload("main", "p", b"1")
    repo.upload("main", "q", b"2")
    first = repo.commit("main", "first").id
    repo.delete_many("main", ["p", "q"])
    repo.upload("main", "r", b"3")
    repo.commit("main", "second")
    release_all(repo)
    return first


def marked(repo: Repository, *commits: CommitId, grace_ms: int = 7 * DAY_MS) -> OfflineRun:
    return collecting.mark(repo.context, commits, grace_ms=grace_ms)[0]


def swept(repo: Repository, *commits: CommitId) -> OfflineRun:
    run, found = collecting.mark(repo.context, commits)
    collecting.sweep(repo.context, run.mark_id, found.data)
    return Marks(repo.context).runs.get(run.mark_id)


def waited(marks: Marks, *commits: CommitId) -> OfflineRun:
    run = marks.mark_run.begin("", 0, commits, "m-waited")
    marks.mark_run.wait(run)
    return run


def sources(look: Iterator[LiveBatch]) -> list[LiveSource]:
    return [*dict.fromkeys(batch.source for batch in look)]


def staged_in(look: Iterator[LiveBatch]) -> list[str]:
    return [address for batch in look if batch.source is LiveSource.STAGED for address in batch.addresses]


class TestWhatAMarkForbids:
    @pytest.mark.parametrize(
        "attempt",
        [
            lambda repo, commit: repo.copy(commit, "p", to_branch="main", to_path="z"),
            lambda repo, commit: repo.create_branch("late", source=commit),
            lambda repo, commit: repo.create_tag("v1", ref=commit),
            lambda repo, commit: repo.merge(commit, into="other"),
            lambda repo, commit: repo.cherry_pick(commit, onto="other"),
            lambda repo, _: repo.revert("main@", on="main"),
        ],
        ids=["copy", "branch", "tag", "merge", "cherry-pick", "revert of what came behind"],
    )
    def test_everything_that_would_name_its_data_again(
        self, repo: Repository, old: CommitId, attempt: Callable[[Repository, CommitId], object]
    ) -> None:
        repo.create_branch("other", source=f"{old}~1")
        repo.upload("other", "own", b"4")
        repo.commit("other", "own")
        marked(repo, old)
        with pytest.raises(
            Gone, match=r"expired .*will be deleted from 2030-03-24T.*until it is swept an operator can unmark it"
        ):
            attempt(repo, old)

    def test_reading_goes_on(self, repo: Repository, old: CommitId) -> None:
        marked(repo, old)
        assert repo.read(old, "p") == b"1"

    def test_heads_of_branches_and_tags_are_not_marked(self, repo: Repository, old: CommitId) -> None:
        repo.create_tag("v1", ref=old)
        head = repo.get_branch("main").head
        run = marked(repo, old, head)
        assert run.record.mark_counts["heads_left_out"] == 2
        assert list(repo.marks()) == []
        repo.copy(old, "p", to_branch="main", to_path="z")

    def test_a_part_of_it_only_where_it_has_expired(self, repo: Repository, old: CommitId) -> None:
        collecting.mark(repo.context, (), grace_ms=DAY_MS, partly=[(old, ("p",))])
        repo.copy(old, "q", to_branch="main", to_path="z")
        with pytest.raises(Gone, match=r"paths p\*"):
            repo.copy(old, "p", to_branch="main", to_path="y")
        with pytest.raises(Gone):
            repo.create_branch("late", source=old)
        with pytest.raises(Gone):
            repo.copy_many(old, [Copy("q", "1"), Copy("p", "2")], to_branch="main")


class TestTheRun:
    def test_a_mark_id_is_for_one_run(self, marks: Marks) -> None:
        marks.mark_run.finish(waited(marks), {})
        with pytest.raises(AlreadyExists):
            marks.mark_run.begin("", 0, (), "m-waited")

    @pytest.mark.parametrize("mark_id", ["", "m", "M-1", "a/b", "a" * 64])
    def test_mark_ids_are_names(self, marks: Marks, mark_id: str) -> None:
        with pytest.raises(InvalidName):
            marks.mark_run.begin("", 0, (), mark_id)

    def test_the_barrier_is_as_long_as_an_operation_and_more(
        self, marks: Marks, repo: Repository, clock: FakeClock
    ) -> None:
        run = marks.mark_run.begin("", 0, (), "m-1")
        assert marks.mark_run.barrier_over_at(run) - clock.now_ms() >= 1000 * (
            repo.context.safety.operation_deadline_seconds
            + repo.context.safety.io_timeout_seconds
            + repo.context.safety.clock_skew_seconds
        )
        marks.mark_run.wait(run)
        assert clock.now_ms() >= marks.mark_run.barrier_over_at(run)

    def test_a_wall_clock_that_is_set_forward_does_not_shorten_the_wait(
        self, marks: Marks, repo: Repository, clock: FakeClock
    ) -> None:
        run = marks.mark_run.begin("", 0, (), "m-1")
        before = clock.monotonic_seconds()
        clock.jump(1_000_000)
        marks.mark_run.wait(run)
        assert clock.monotonic_seconds() - before >= barrier_seconds(repo.context.safety)

    def test_no_look_before_the_barrier_is_over(self, marks: Marks) -> None:
        with pytest.raises(Conflict, match="has to wait"):
            list(marks.mark_run.scan_live(marks.mark_run.begin("", 0, (), "m-1")))

    def test_a_live_run_is_not_disturbed(self, marks: Marks, clock: FakeClock) -> None:
        marks.mark_run.begin("", 0, (), "m-1", owner="host:1")
        clock.advance(TAKE_OVER_MS / 1000 - 1)
        with pytest.raises(Conflict, match="mark m-1 is being made by host:1"):
            marks.mark_run.begin("", 0, (), "m-2")

    def test_a_run_that_waits_beats(self, marks: Marks, clock: FakeClock) -> None:
        marks.mark_run.wait(marks.mark_run.begin("", 0, (), "m-1"))
        with pytest.raises(Conflict, match="is being made"):
            marks.mark_run.begin("", 0, (), "m-2")
        assert clock.monotonic_seconds() > TAKE_OVER_MS / 1000

    def test_a_dead_run_is_taken_over_and_leaves_nothing(
        self, repo: Repository, marks: Marks, old: CommitId, clock: FakeClock
    ) -> None:
        marks.mark_run.begin("", 0, [old], "m-1")
        clock.advance(TAKE_OVER_MS / 1000)
        marks.mark_run.begin("", 0, (), "m-2")
        assert list(marks.commits.scan()) == []
        assert marks.runs.get("m-1").state is RunState.ABANDONED
        assert marks.runs.get("m-1").record.end_reason == "taken over by m-2"
        repo.copy(old, "p", to_branch="main", to_path="z")

    def test_who_was_taken_over_marks_nothing(self, marks: Marks, old: CommitId) -> None:
        run = waited(marks, old)
        look = marks.mark_run.scan_live(run)
        next(look)
        marks.mark_run.begin("", 0, (), "m-2", take_over=True)
        with pytest.raises(Conflict, match="taken over"):
            list(look)
        with pytest.raises(Conflict, match="taken over"):
            marks.mark_run.finish(run, {})
        with pytest.raises(Conflict):
            marks.mark_run.beat(run)

    def test_a_run_that_only_took_the_flag_never_begins(self, marks: Marks, repo: Repository) -> None:
        ctx = repo.context
        ctx.kv.set(keys.gc_flag(ctx.repo), encode(GcFlag("m-1", 0, 0)))
        marks.mark_run.begin("", 0, (), "m-2")
        assert marks.runs.get("m-1").state is RunState.ABANDONED

    def test_a_mark_that_a_dead_run_wrote_late_goes_with_the_next_run(
        self, marks: Marks, repo: Repository, old: CommitId
    ) -> None:
        ctx = repo.context
        marks.mark_run.begin("", 0, [old], "m-1")
        left = ctx.kv.get(keys.mark(ctx.repo, old))
        assert left is not ABSENT
        marks.mark_run.finish(_taken_over(marks, "m-2"), {})
        ctx.kv.set(keys.mark(ctx.repo, old), left)
        marks.mark_run.begin("", 0, (), "m-3")
        assert marks.commits.read_marks([old]) == [None]

    def test_abandoning_makes_everything_active_again(self, marks: Marks, old: CommitId) -> None:
        run = marks.mark_run.begin("", 0, [old], "m-1")
        marks.mark_run.abandon(run, "the listing ended early")
        assert marks.commits.read_marks([old]) == [None]
        assert marks.runs.read_flag() is None
        assert marks.runs.get("m-1").record.end_reason == "the listing ended early"

    def test_more_commits_than_a_page(self, marks: Marks) -> None:
        commits = [CommitId(f"{number:064x}") for number in range(2300)]
        run = marks.mark_run.begin("", 0, iter(commits), "m-1")
        assert run.record.mark_counts["commits_marked"] == len(commits)
        assert list(marks.commits.scan_marked("m-1")) == commits
        marks.decisions.unmark(commits[5])
        assert list(marks.commits.scan_marked("m-1")) == commits
        assert [mark is None for mark in marks.commits.read_marks(commits[4:7])] == [False, True, False]

    def test_the_same_commit_twice_is_marked_once(self, marks: Marks, old: CommitId) -> None:
        assert marks.mark_run.begin("", 0, [old, old], "m-1").record.mark_counts["commits_marked"] == 1


class TestTheLook:
    def test_reads_in_the_order_of_rule_13(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        run = waited(marks, old)
        ctx = repo.context
        ctx.kv.set(keys.gc_pin(ctx.repo, run.mark_id, repo.stat(old, "p").address), b"")
        repo.upload("main", "staged", b"5")
        rewrite(repo, "main", "staged", b"fewer")
        order = [
            LiveSource.REFERENCE,
            LiveSource.STAGED,
            LiveSource.HEAD,
            LiveSource.COMMIT,
            LiveSource.HISTORY,
            LiveSource.PIN,
            LiveSource.LOCATION,
        ]
        assert sources(marks.mark_run.scan_live(run)) == order

    def test_names_everything_but_what_only_marked_commits_name(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        gone = {repo.stat(old, path).address for path in ("p", "q")}
        repo.upload("main", "staged", b"5")
        release_all(repo)
        run, found = collecting.mark(repo.context, [old])
        assert set(found.data) == gone
        assert found.metadata == {}
        assert run.record.mark_counts["objects"] == 2

    def test_a_commit_that_is_marked_keeps_its_metadata(self, repo: Repository, old: CommitId) -> None:
        """So that merges find their base and the log can be compared, long after."""
        release_all(repo)
        swept(repo, old)
        assert [change.path for change in repo.diff(old, to="main")] == ["p", "q", "r"]
        repo.create_branch("side", source="main")
        repo.upload("side", "s", b"6")
        repo.commit("side", "on the side")
        assert repo.merge_base("side", other="main") == repo.get_branch("main").head

    def test_a_part_is_left_out_by_its_paths(self, repo: Repository, old: CommitId) -> None:
        release_all(repo)
        address = repo.stat(old, "p").address
        _, found = collecting.mark(repo.context, (), partly=[(old, ("p",))])
        assert set(found.data) == {address}

    def test_reads_an_area_whose_token_was_registered_behind_the_scan(self, repo: Repository, marks: Marks) -> None:
        repo.upload("main", "staged", b"5")
        look = marks.mark_run.scan_live(waited(marks))
        while next(look).source is not LiveSource.STAGED:
            pass
        repo.create_branch("behind", source="main")
        address = repo.upload("behind", "late", b"6").address
        assert address in staged_in(look)

    def test_reads_an_area_whose_token_is_registered_no_more(self, repo: Repository, marks: Marks) -> None:
        """By a KV that lost a write, and kept the branch."""
        address = repo.upload("main", "staged", b"5").address
        ctx = repo.context
        ctx.kv.delete(keys.token(ctx.repo, repo.context.branches.read_open(BranchName("main")).record.token))
        assert address in staged_in(marks.mark_run.scan_live(waited(marks)))

    def test_reads_each_area_once(self, repo: Repository, marks: Marks) -> None:
        address = repo.upload("main", "staged", b"5").address
        repo.create_branch("other", source="main")
        assert staged_in(marks.mark_run.scan_live(waited(marks))).count(address) == 1

    def test_gets_no_more_keys_where_there_are_more_branches(self, tmp_path: Path, clock: FakeClock) -> None:
        kv = CountingKV()
        asked: list[int] = []
        with Lake(kv, f"file://{tmp_path}/objects", clock=clock) as lake:
            for count in (1, 9):
                repo = lake.create_repository(f"of-{count}")
                for number in range(count):
                    repo.create_branch(f"branch-{number}", source="main")
                run = waited(Marks(repo.context))
                before = kv.calls
                list(Marks(repo.context).mark_run.scan_live(run))
                asked.append(kv.calls - before)
        assert asked[0] == asked[1]

    def test_what_cannot_be_read_ends_it(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        run = waited(marks)
        ctx = repo.context
        ctx.kv.set(Key(keys.references(ctx.repo, 0), "../../etc"), b"")
        with pytest.raises(CorruptRecord):
            list(marks.mark_run.scan_live(run))
        ctx.kv.delete(Key(keys.references(ctx.repo, 0), "../../etc"))
        ctx.kv.set(keys.commit(ctx.repo, old), b"\xc1")
        with pytest.raises(CorruptRecord):
            list(marks.mark_run.scan_live(run))


class TestPins:
    @pytest.fixture
    def staged(self, repo: Repository, old: CommitId) -> CommitId:
        """`z` on main is a copy of what only the old commit names."""
        release_all(repo)
        repo.copy(old, "p", to_branch="main", to_path="z")
        return old

    def pins(self, repo: Repository) -> list[str]:
        return [name for name, _ in repo.context.kv.scan_all(keys.gc_pins(repo.context.repo))]

    def test_a_move_of_what_has_no_reference_pins_while_a_run_is_on(
        self, repo: Repository, marks: Marks, staged: CommitId
    ) -> None:
        run = marks.mark_run.begin("", 0, [staged], "m-1")
        entry = repo.move("main", "z", to_path="y")
        assert self.pins(repo) == [f"m-1/{entry.address}"]
        marks.mark_run.wait(run)
        assert LiveSource.PIN in sources(marks.mark_run.scan_live(run))

    def test_and_not_otherwise(self, repo: Repository, staged: CommitId) -> None:
        del staged
        repo.move("main", "z", to_path="y")
        assert self.pins(repo) == []

    def test_they_go_with_the_run(self, repo: Repository, marks: Marks, staged: CommitId) -> None:
        run = waited(marks, staged)
        repo.move("main", "z", to_path="y")
        list(marks.mark_run.scan_live(run))
        marks.mark_run.finish(run, {})
        assert self.pins(repo) == []
        assert marks.runs.read_flag() is None

    def test_late_ones_go_with_the_next_run_and_its_own_stay(
        self, repo: Repository, marks: Marks, staged: CommitId
    ) -> None:
        marks.mark_run.finish(waited(marks, staged), {})
        ctx = repo.context
        address = repo.stat("main", "z").address
        ctx.kv.set(keys.gc_pin(ctx.repo, "m-waited", address), b"")
        ctx.kv.set(keys.gc_pin(ctx.repo, "m-unknown", address), b"")
        marks.mark_run.begin("", 0, (), "m-2")
        assert self.pins(repo) == [f"m-unknown/{address}"]


class TestUnmark:
    def test_a_commit(self, repo: Repository, old: CommitId) -> None:
        marked(repo, old)
        assert repo.unmark("main~1").unmarked_commits == 1
        assert list(repo.marks()) == []
        repo.copy(old, "p", to_branch="main", to_path="z")

    def test_a_whole_mark(self, repo: Repository, old: CommitId) -> None:
        run = marked(repo, old)
        assert repo.unmark(run.mark_id).unmarked_commits == 1
        assert list(repo.marks()) == []
        with pytest.raises(Gone, match="will not be swept"):
            Marks(repo.context).sweeps.begin(run.mark_id)

    def test_what_is_not_marked(self, repo: Repository, old: CommitId) -> None:
        with pytest.raises(Conflict, match="is not marked"):
            repo.unmark(old)
        with pytest.raises(NotFound):
            repo.unmark("nothing-of-the-kind")

    def test_not_any_more_once_the_sweep_began(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        run = marked(repo, old, grace_ms=0)
        marks.sweeps.begin(run.mark_id)
        for which in (old, run.mark_id):
            with pytest.raises(Gone, match="any more"):
                repo.unmark(which)

    def test_a_commit_that_was_unmarked_can_be_marked_again(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        marked(repo, old)
        repo.unmark(old)
        again = marked(repo, old)
        assert [mark.mark_id for mark in marks.commits.read_marks([old]) if mark] == [again.mark_id]

    def test_a_part_that_was_swept_stays_swept(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        release_all(repo)
        part, found = collecting.mark(repo.context, (), partly=[(old, ("p",))])
        collecting.sweep(repo.context, part.mark_id, found.data)
        marked(repo, old)
        with pytest.raises(Gone, match=part.mark_id):
            repo.read(old, "p")
        repo.unmark(old)
        with pytest.raises(Gone):
            repo.copy(old, "p", to_branch="main", to_path="z")
        repo.copy(old, "q", to_branch="main", to_path="z")
        assert [mark.mark_id for mark in marks.commits.read_marks([old]) if mark] == [part.mark_id]


class TestTheSweep:
    def test_not_before_its_time(self, repo: Repository, marks: Marks, old: CommitId, clock: FakeClock) -> None:
        run = marked(repo, old, grace_ms=DAY_MS)
        with pytest.raises(Conflict, match="not due"):
            marks.sweeps.begin(run.mark_id)
        clock.advance(DAY_MS / 1000)
        assert marks.sweeps.begin(run.mark_id).state is RunState.SWEEPING

    def test_not_before_it_is_confirmed(self, repo: Repository, marks: Marks) -> None:
        del repo
        marks.mark_run.finish(waited(marks), {}, question="80 % of all objects")
        with pytest.raises(Conflict, match=r"80 % of all objects; confirm"):
            marks.sweeps.begin("m-waited")
        assert marks.decisions.confirm("m-waited", "ann").record.confirmed_by == "ann"
        marks.sweeps.begin("m-waited")
        with pytest.raises(Conflict):
            marks.decisions.confirm("m-waited", "ann")

    def test_not_what_was_never_finished(self, marks: Marks) -> None:
        waited(marks)
        with pytest.raises(Conflict, match="not finished"):
            marks.sweeps.begin("m-waited")

    def test_what_was_unmarked_drops_out(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        release_all(repo)
        run, found = collecting.mark(repo.context, [old])
        repo.unmark(old)
        assert [commit for commit, _ in marks.sweeps.excluded_commits(marks.sweeps.begin(run.mark_id))] == [old]
        collecting.sweep(repo.context, run.mark_id, found.data)
        assert repo.read(old, "p") == b"1"
        counts = marks.runs.get(run.mark_id).record.sweep_counts
        assert counts.items() >= {"deleted": 0, "missing": 0, "commits_marked": 0, "commits_unmarked": 1}.items()

    def test_what_stands_under_an_older_mark_drops_out_until_that_is_swept(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        release_all(repo)
        older, of_older = collecting.mark(repo.context, [old])
        newer, of_newer = collecting.mark(repo.context, ())
        assert newer.record.disregarded_marks == (older.mark_id,)
        assert of_newer.data == of_older.data != {}
        assert [commit for commit, _ in marks.sweeps.excluded_commits(marks.sweeps.begin(newer.mark_id))] == [old]
        marks.sweeps.begin(older.mark_id)
        assert list(marks.sweeps.excluded_commits(marks.runs.get(newer.mark_id))) == []

    def test_what_became_a_head_is_active_again(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        """As a branch that was being made when the mark came, by a client that died before it looked again."""
        ctx = repo.context
        run = marked(repo, old, grace_ms=0)
        raw = ctx.kv.get(keys.mark(ctx.repo, old))
        assert raw is not ABSENT
        ctx.kv.delete(keys.mark(ctx.repo, old))
        repo.create_branch("late", source=old)
        ctx.kv.set(keys.mark(ctx.repo, old), raw)
        assert [commit for commit, _ in marks.sweeps.excluded_commits(marks.sweeps.begin(run.mark_id))] == [old]
        assert marks.commits.read_marks([old]) == [None]

    def test_a_second_sweep_does_nothing(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        release_all(repo)
        run = swept(repo, old)
        assert marks.sweeps.begin(run.mark_id) == run
        assert marks.sweeps.finish(run.mark_id, {"deleted": 7}) == run

    def test_what_was_swept_reads_as_gone(self, repo: Repository, old: CommitId) -> None:
        release_all(repo)
        run = swept(repo, old)
        with pytest.raises(Gone, match=rf"deleted on 2030-03-17T.* by mark {run.mark_id}"):
            repo.read(old, "p")

    def test_what_was_lost_does_not(self, repo: Repository, old: CommitId) -> None:
        release_all(repo)
        marked(repo, old)
        repo.context.objects.delete_many([repo.stat(old, "p").address])
        with pytest.raises(CorruptObject):
            repo.read(old, "p")

    def test_the_log_tells(self, repo: Repository, old: CommitId, clock: FakeClock) -> None:
        def states() -> list[CommitLifetime]:
            return [line.lifetime for line in repo.history("main")]

        assert states() == [CommitLifetime.ACTIVE] * 3
        run = marked(repo, old, grace_ms=DAY_MS)
        assert states() == [CommitLifetime.ACTIVE, CommitLifetime.MARKED, CommitLifetime.ACTIVE]
        clock.advance(DAY_MS / 1000)
        Marks(repo.context).sweeps.begin(run.mark_id)
        assert states()[1] is CommitLifetime.SWEEPING
        Marks(repo.context).sweeps.finish(run.mark_id, {})
        (line,) = [line for line in repo.history("main") if line.commit.id == old]
        assert line.lifetime is CommitLifetime.SWEPT
        assert line.mark is not None
        assert (line.mark.id, line.mark.deletes_at) == (run.mark_id, to_datetime(run.record.deletes_at_ms))


class TestWhatNeverLanded:
    def test_a_commit_that_lost_its_tokens(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        landed = stored_commit(repo.get_commit(old))
        given_up = aborted(repo)
        assert list(marks.commits.given_up()) == []  # its tokens are sealed: who wrote it may yet advance to it
        repo.reset("main")
        assert list(marks.commits.given_up()) == [given_up]
        marks.mark_run.begin("", 0, marks.commits.given_up(), "m-1")
        assert list(marks.commits.given_up()) == []
        assert stored_commit(repo.get_commit(old)) == landed


def aborted(repo: Repository) -> CommitId:
    """The record of a commit whose committer died before it moved the branch."""
    ctx = repo.context
    repo.upload("main", "never", b"7")
    landed = ctx.branches.read_open(BranchName("main")).record
    new = repo.commit("main", "never").id
    raw = ctx.kv.get(keys.branch(ctx.repo, repo.default_branch))
    assert raw is not ABSENT
    now = ctx.branches.read_open(BranchName("main")).record

    back = msgspec.structs.replace(now, head=landed.head, sealed_tokens=(landed.token,), retired_tokens=())
    assert ctx.kv.set_if(keys.branch(ctx.repo, repo.default_branch), raw, encode(back))
    ctx.kv.delete(keys.landed_mark(ctx.repo, new))
    ctx.kv.delete(keys.committed_marker(ctx.repo, new))
    entries = [
        entry for entry in ctx.manifest.read_waiting() if isinstance(entry, CommitLanded) and entry.commit == new
    ]
    ctx.objects.delete_many([waiting_key(entry) for entry in entries])
    return new


def _taken_over(marks: Marks, mark_id: str) -> OfflineRun:
    run = marks.mark_run.begin("", 0, (), mark_id, take_over=True)
    marks.mark_run.wait(run)
    return run


def test_a_mark_covers_paths_by_their_prefixes() -> None:
    assert StoredMark(0, 0).covers(["any"])
    assert StoredMark(0, 0, prefixes=("a/", "b")).covers(["c", "b1"])
    assert not StoredMark(0, 0, prefixes=("a/", "b")).covers(["a", "c"])
    assert decode(encode(StoredMark(1, 2, "m")), StoredMark) == StoredMark(1, 2, "m")


class TestTagged:
    """A sweep that tags is under way until the bucket has deleted."""

    def tagged(self, repo: Repository, marks: Marks, old: CommitId, *, partly: tuple[str, ...] = ()) -> OfflineRun:
        release_all(repo)
        run, _ = collecting.mark(repo.context, () if partly else [old], partly=[(old, partly)] if partly else [])
        marks.sweeps.begin(run.mark_id)
        return marks.sweeps.note_tagged(run.mark_id, {"tagged": 2})

    def lifetime(self, repo: Repository, old: CommitId) -> CommitLifetime:
        return next(line for line in repo.history("main") if line.commit.id == old).lifetime

    def test_it_is_shown_as_tagged_and_swept_when_the_bucket_is_done(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        run = self.tagged(repo, marks, old)
        assert (run.state, run.state_text, run.record.tagged_ms > 0) == (RunState.SWEEPING, "tagged", True)
        assert self.lifetime(repo, old) is CommitLifetime.TAGGED
        assert marks.sweeps.note_tagged(run.mark_id, {"tagged": 2}).record == run.record, "noted once"
        done = marks.sweeps.finish(run.mark_id, {"deleted by the bucket": 2})
        assert (done.state_text, done.record.sweep_counts["deleted by the bucket"]) == ("swept", 2)
        assert done.record.sweep_counts["commits_marked"] == 1
        assert self.lifetime(repo, old) is CommitLifetime.SWEPT

    def test_what_it_holds_no_other_run_marks_and_nobody_takes_back(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        run = self.tagged(repo, marks, old)
        later, _ = collecting.mark(repo.context, [])
        assert run.mark_id in later.record.disregarded_marks
        for which in (old, run.mark_id):
            with pytest.raises(Gone):
                repo.unmark(which)

    def test_a_part_that_is_tagged_is_out_of_sight_and_the_rest_is_not(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        address = repo.stat(old, "p").address
        run = self.tagged(repo, marks, old, partly=("p",))
        collecting.write_tagged(repo.context, run.mark_id, [address])
        for lifetime in (CommitLifetime.PARTLY_TAGGED, CommitLifetime.PARTLY_SWEPT_MARKED):
            with pytest.raises(Gone, match="for the bucket to delete"):
                repo.read(old, "p")
            assert repo.read(old, "q") == b"2"
            assert [item.path for item in repo.list(old)] == ["q"]
            assert self.lifetime(repo, old) is lifetime
            marked(repo, old)  # the rest, on top of it

    def test_what_a_sweep_left_and_what_is_on_hold_since_is_read(
        self, repo: Repository, marks: Marks, old: CommitId
    ) -> None:
        """The bucket may delete what is on hold at any moment; until then it is there."""
        tagged, left = (repo.stat(old, path).address for path in ("p", "q"))
        run = self.tagged(repo, marks, old)
        collecting.write_tagged(repo.context, run.mark_id, [tagged], [left])
        assert [item.path for item in repo.list(old)] == ["q"]
        assert repo.stat_many(old, ["q"]).keys() == {"q"}
        with pytest.raises(Gone, match="for the bucket to delete"):
            repo.stat(old, "p")
        repo.set_retention('{"legal_holds": [{"prefix": "p"}]}')
        assert repo.read(old, "p") == b"1"
        assert [item.path for item in repo.list(old)] == ["p", "q"]
        repo.context.objects.delete_many([tagged])  # as the bucket does it
        assert [item.path for item in repo.list(old)] == ["q"]
        with pytest.raises(Gone):
            repo.read(old, "p")

    def test_only_a_sweep_that_has_begun_tags(self, repo: Repository, marks: Marks, old: CommitId) -> None:
        run = marked(repo, old, grace_ms=0)
        with pytest.raises(Conflict, match="begin its sweep first"):
            marks.sweeps.note_tagged(run.mark_id, {})
