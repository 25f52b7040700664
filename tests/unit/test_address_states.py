"""The state of an address (seed 004, proposal 3): over all references, and where there is none by the commits that name
it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import Address, BranchName, CommitId, id_time_ms, new_address
from refstore.gc_marks import Marks, new_mark_id
from refstore.lake import Lake
from refstore.operations import committed_names
from refstore.operations.address_info import AddressInfo, AddressState, ReferenceState
from refstore.repository import Repository
from tests.commands import Command
from tests.kit.clock import FakeClock
from tests.reaping import reap_all

MAIN = BranchName("main")


@pytest.fixture
def repo(lake: Lake) -> Repository:
    repo = lake.create_repository("lake")
    repo.create_branch("feature", source="main")
    return repo


def seal(repo: Repository, branch: BranchName = MAIN) -> None:
    """As a commit does at first, before it reads what it commits."""
    ctx = repo.context
    staging = ctx.staging
    ctx.branches.seal(branch, lambda: staging.new_token(branch, ctx.ids, ctx.clock))


def sweep(repo: Repository, *commits: str) -> None:
    """Beyond recall, though no blob has gone yet. What is complete is not unmarked: as an earlier version swept it."""
    marks = Marks(repo.context)
    run = marks.mark_run.begin("", 0, [CommitId(commit) for commit in commits], new_mark_id(repo.context))
    marks.mark_run.wait(run)
    deque(marks.mark_run.scan_live(run), maxlen=0)
    marks.sweeps.begin(marks.mark_run.finish(run, {}).mark_id)


def states(view: AddressInfo) -> list[tuple[str, ReferenceState]]:
    return [(named.path, named.state) for named in view.references]


class TestReferences:
    @pytest.mark.parametrize(
        ("act", "state", "whole"),
        [
            pytest.param(
                lambda repo: repo.commit("main", "a"),
                ReferenceState.COMMITTED,
                ReferenceState.COMMITTED,
                id="committed wins over staged",
            ),
            pytest.param(
                lambda repo: repo.reset("main"),
                ReferenceState.DELETED,
                ReferenceState.STAGED,
                id="staged wins over deleted",
            ),
        ],
    )
    def test_one_of_two_states_wins(
        self, repo: Repository, act: Callable[[Repository], object], state: ReferenceState, whole: ReferenceState
    ) -> None:
        entry = repo.upload("main", "a", b"1")
        repo.copy("main", "a", to_branch="feature", to_path="b")
        act(repo)
        view = repo.address(entry.address)
        assert states(view) == [("a", state), ("b", ReferenceState.STAGED)]
        assert view.reference_state is whole

    @pytest.mark.parametrize("how", ["overwritten", "deleted"])
    def test_what_was_overwritten_over_a_sealed_token_is_not_committed(self, repo: Repository, how: str) -> None:
        entry = repo.upload("main", "a", b"1")
        seal(repo)
        if how == "overwritten":
            repo.upload("main", "a", b"2")
        else:
            repo.delete("main", "a")
        repo.upload("main", "b", b"3")
        assert repo.address(entry.address).reference_state is ReferenceState.STAGED
        repo.commit("main", "b")
        view = repo.address(entry.address)
        assert (states(view), view.reference_state) == ([("a", ReferenceState.DELETED)], ReferenceState.DELETED)

    def test_each_reference_says_when_it_was_made(self, repo: Repository, clock: FakeClock) -> None:
        uploaded = clock.now_ms()
        entry = repo.upload("main", "a", b"1")
        clock.advance(60)
        copied = clock.now_ms()
        repo.copy("main", "a", to_branch="feature", to_path="b")
        assert [named.last_modified for named in repo.address(entry.address).references] == [
            to_datetime(uploaded),
            to_datetime(copied),
        ]

    def test_a_fate_that_was_told_is_a_change(self, repo: Repository, clock: FakeClock) -> None:
        entry = repo.upload("main", "a", b"1")
        clock.advance(60)
        repo.reset("main")
        (named,) = repo.address(entry.address).references
        assert named.last_modified == to_datetime(clock.now_ms())

    def test_an_id_that_counts_no_time_says_none(self) -> None:
        assert id_time_ms("e0000000000000000000000001") is None
        assert id_time_ms("zzzzzzzzzz0000000000000000") is None
        assert id_time_ms("short") is None


class TestWithoutReferences:
    def test_a_commit_names_it(self, repo: Repository) -> None:
        entry = repo.upload("main", "a", b"1")
        commit = repo.commit("main", "a").id
        reap_all(repo)
        view = repo.address(entry.address)
        assert (view.state, view.reference_state) == (AddressState.COMMITTED, ReferenceState.COMMITTED)
        assert view.committed_name is not None
        assert (view.committed_name.commit, view.committed_name.path) == (commit, "a")

    def test_a_blob_that_nothing_names_is_an_orphan(self, repo: Repository) -> None:
        repo.upload("main", "a", b"1")
        repo.commit("main", "a")
        ctx = repo.context
        orphan = new_address(ctx.ids, ctx.clock.now_ms())
        ctx.objects.put(orphan, b"nobody's")
        assert (repo.address(orphan).state, repo.address(orphan).reference_state) == (AddressState.ORPHAN, None)

    def test_what_only_swept_commits_name_is_not_committed(self, repo: Repository) -> None:
        entry = repo.upload("main", "a", b"1")
        commit = repo.commit("main", "a").id
        repo.upload("main", "a", b"2")
        repo.commit("main", "another a")
        reap_all(repo)
        assert repo.address(entry.address).state is AddressState.COMMITTED
        sweep(repo, commit)
        view = repo.address(entry.address)
        assert (view.state, view.reference_state) == (AddressState.SWEPT, None)
        assert view.committed_name is not None
        assert view.committed_name.swept_commit == commit

    @pytest.mark.parametrize("on", ["a head", "a commit between"])
    def test_one_that_has_it_from_a_swept_commit_keeps_it_committed(self, repo: Repository, on: str) -> None:
        entry = repo.upload("main", "a", b"1")
        first = repo.commit("main", "a").id
        repo.upload("main", "b", b"2")
        second = repo.commit("main", "b").id
        if on == "a commit between":
            repo.delete("main", "a")
            repo.commit("main", "without a")
        reap_all(repo)
        sweep(repo, first)
        view = repo.address(entry.address)
        assert view.state is AddressState.COMMITTED
        assert view.committed_name is not None
        assert view.committed_name.commit == second

    def test_one_that_was_copied_out_of_a_commit_that_was_swept_since(self, repo: Repository) -> None:
        entry = repo.upload("feature", "a", b"1")
        swept = repo.commit("feature", "a").id
        reap_all(repo)
        repo.copy("feature", "a", to_branch="main", to_path="elsewhere")
        copied = repo.commit("main", "elsewhere").id
        repo.delete("feature", "a")
        repo.commit("feature", "without")
        sweep(repo, swept)
        view = repo.address(entry.address)
        assert view.committed_name is not None
        assert (view.state, view.committed_name.commit, view.committed_name.path) == (
            AddressState.COMMITTED,
            copied,
            "elsewhere",
        )

    def test_where_history_is_too_long_it_says_that_it_does_not_know(
        self, repo: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = repo.upload("main", "a", b"1")
        repo.commit("main", "a")
        reap_all(repo)
        monkeypatch.setattr(committed_names, "ADDED_FILES_MAX", 0)
        assert repo.address(entry.address).state is AddressState.UNKNOWN

    def test_what_is_gone_is_gone(self, repo: Repository) -> None:
        assert repo.address(Address("data/2026112107/00000000000000000000000000")).state is AddressState.GONE


def test_the_command_tells_state_commit_and_times(sales: Command) -> None:
    address = sales.json("upload", "sales", "main", "-", "a", stdin=b"1")["address"]
    found = sales.json("why", "sales", address)
    (named,) = found["references"]
    assert (found["state"], found["expires"]) == ("referenced", None)
    assert re.fullmatch(r"main a \(staged, \d{4}-.*Z\)", named)
    commit = sales.json("commit", "sales", "main", "-m", "a")["commit"]
    sales.ok("reaper", "--once")
    found = sales.json("why", "sales", address)
    assert (found["state"], found["committed"]["commits"][0]["commit"]) == ("committed", commit)
