"""A transaction is merged as one commit, or is gone as any deleted branch is; and ends once (rule 24)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import refstore
from refstore.configuration.settings import ReaperSettings
from refstore.core.ids import BranchName
from refstore.core.safety import Safety
from refstore.errors import (
    BranchNotFound,
    DirtyBranch,
    Invalid,
    MergeConflict,
    TransactionEnded,
)
from refstore.kv import open_kv
from refstore.kv.base import SetIf
from refstore.lake import Lake
from refstore.operations import transaction
from refstore.operations.transaction import LEASE_MS, TRANSACTION_BRANCHES
from refstore.records import keys
from refstore.repository import Repository
from refstore_reaper.daemon import Reaper
from tests.contents import contents
from tests.kit.clock import FakeClock
from tests.reaper_world import GRACE_SECONDS, World

LEASE_SECONDS = LEASE_MS // 1000
LONGEST_SECONDS = Safety().operations_end_ms(0) // 1000 + 1


class _Broken(Exception):
    """The work of a transaction fails."""


def branches(repo: Repository) -> list[str]:
    return [each.name for each in repo.branches() if each.name != "main"]


def messages(repo: Repository) -> list[str]:
    return [commit.message for commit in repo.log("main")]


def lease_of(repo: Repository, branch: str) -> int:
    return repo.context.branches.read_open(BranchName(branch)).record.lease_until_ms


def run(
    repo: Repository, meanwhile: Callable[[], object], *, target: str = "main", lease: timedelta = timedelta(days=1)
) -> None:
    """A transaction that uploads `a`; before its end something else happens."""
    with repo.transaction(target, "load", lease=lease) as tx:
        tx.upload("a", b"1")
        meanwhile()


def conflict_with(repo: Repository) -> None:
    def meanwhile() -> None:
        repo.upload("main", "a", b"theirs")
        repo.commit("main", "meanwhile")

    run(repo, meanwhile)


def test_it_is_merged_as_one_commit(repo: Repository) -> None:
    for path in ("a", "b", "c"):
        repo.upload("main", path, b"old")
    repo.commit("main", "before")
    with repo.transaction("main", "load 28", metadata={"job": "7"}, committer="ada") as tx:
        tx.upload("a", b"new")
        tx.delete("b")
        tx.move("c", to_path="moved")
        repo.ref("main").copy("c", to_branch=tx, to_path="copied")
        assert [item.path for item in tx.list()] == ["a", "copied", "moved"]
        assert (tx.read("a"), b"".join(tx.get("moved")), tx.stat("a").size_bytes) == (b"new", b"old", 3)
        assert tx.name in repr(tx)
        assert contents(repo, "main") == {"a": b"old", "b": b"old", "c": b"old"}
    assert contents(repo, "main") == {"a": b"new", "copied": b"old", "moved": b"old"}
    assert messages(repo) == ["load 28", "before", "Repository created"]
    commit = repo.get_commit("main")
    assert (commit.id, commit.committer, commit.metadata) == (tx.merged_commit, "ada", {"job": "7"})
    assert branches(repo) == []


def test_it_reads_the_target_as_it_was_and_keeps_what_came_to_it_since(repo: Repository) -> None:
    with repo.transaction("main", "load") as tx:
        repo.upload("main", "theirs", b"1")
        repo.commit("main", "meanwhile")
        tx.upload("mine", b"2")
        assert [item.path for item in tx.list()] == ["mine"]
    assert contents(repo, "main") == {"theirs": b"1", "mine": b"2"}
    assert messages(repo)[:2] == ["load", "meanwhile"]


def test_its_branch_is_hidden(repo: Repository) -> None:
    with repo.transaction("main", "load") as tx:
        assert tx.name.startswith(TRANSACTION_BRANCHES)
        assert repo.get_branch(tx.name).is_hidden


def test_one_that_changes_nothing_makes_no_commit(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.commit("main", "before")
    with repo.transaction("main", "nothing") as tx:
        pass
    assert tx.merged_commit is None
    with repo.transaction("main", "the same") as tx:
        repo.ref("main").copy("a", to_branch=tx, to_path="b")
        tx.delete("b")
    assert tx.merged_commit is None
    assert (messages(repo)[0], branches(repo)) == ("before", [])


def test_after_an_error_what_it_staged_is_in_the_trash(repo: Repository) -> None:
    tx = repo.transaction("main", "load")

    def fail() -> None:
        with tx:
            tx.upload("a", b"1")
            names.append(tx.name)
            raise _Broken

    names: list[str] = []
    with pytest.raises(_Broken):
        fail()
    (name,) = names
    assert (contents(repo, "main"), branches(repo), tx.merged_commit) == ({}, [], None)
    assert [(item.branch, item.path, item.cause) for item in repo.list_trash()] == [(name, "a", "branch-deleted")]
    repo.restore_many(name, to="main")
    assert contents(repo, "main") == {"a": b"1"}


def test_a_conflict_names_the_paths_and_loses_nothing(repo: Repository) -> None:
    with pytest.raises(MergeConflict) as conflict:
        conflict_with(repo)
    (name,) = branches(repo)
    assert conflict.value.paths == ("a",)
    assert "the transaction is not in 'main', and nothing of it is lost" in str(conflict.value)
    assert f"hidden branch {name!r} until " in str(conflict.value)
    assert (contents(repo, "main"), contents(repo, name)) == ({"a": b"theirs"}, {"a": b"1"})
    repo.merge(name, into="main", strategy="source-wins")
    assert contents(repo, "main") == {"a": b"1"}


def test_it_waits_for_staged_changes_of_others_and_not_for_long(repo: Repository, clock: FakeClock) -> None:
    with pytest.raises(DirtyBranch, match=r"nothing of it is lost"):
        run(repo, lambda: repo.upload("main", "b", b"2"))
    assert clock.slept_seconds == [0.5, 1, 2, 4, 8]
    repo.commit("main", "theirs")
    repo.merge(branches(repo)[0], into="main")
    assert contents(repo, "main") == {"a": b"1", "b": b"2"}


def test_a_target_that_is_gone_loses_nothing(repo: Repository) -> None:
    repo.create_branch("dev", source="main")
    with pytest.raises(BranchNotFound, match=r"hidden branch 'refstore-transaction-"):
        run(repo, lambda: repo.delete_branch("dev"), target="dev")
    assert contents(repo, branches(repo)[0]) == {"a": b"1"}
    with pytest.raises(BranchNotFound), repo.transaction("dev", "x"):
        pass


def test_it_is_used_in_its_with_statement_only(repo: Repository) -> None:
    tx = repo.transaction("main", "load")
    with pytest.raises(Invalid, match=r"inside of its `with` statement"):
        tx.upload("a", b"1")
    with tx, pytest.raises(Invalid, match=r"has begun"), tx:
        pass
    with pytest.raises(Invalid, match=r"inside of its `with` statement"):
        tx.read("a")
    with pytest.raises(Invalid, match=r"longer than nothing"):
        repo.transaction("main", "load", lease=timedelta(0))


class TestLease:
    def test_each_call_renews_it_when_half_of_it_is_over(self, repo: Repository, clock: FakeClock) -> None:
        with repo.transaction("main", "load") as tx:
            assert lease_of(repo, tx.name) == clock.now_ms() + LEASE_MS
            for _ in range(3):
                clock.advance(LEASE_SECONDS * 0.4)
                tx.list()
                clock.advance(LEASE_SECONDS * 0.4)
                tx.upload("a", b"1")
                assert lease_of(repo, tx.name) == clock.now_ms() + LEASE_MS
        assert contents(repo, "main") == {"a": b"1"}

    def test_a_call_that_writes_to_it_from_elsewhere_renews_it(self, repo: Repository, clock: FakeClock) -> None:
        repo.upload("main", "a", b"1")
        repo.commit("main", "before")
        repo.create_tag("v1", ref="main")
        main = repo.ref("v1")
        with repo.transaction("main", "load") as tx:
            for number in range(3):
                clock.advance(LEASE_SECONDS * 0.7)
                main.copy("a", to_branch=tx, to_path=f"copy {number}")
                assert lease_of(repo, tx.name) == clock.now_ms() + LEASE_MS
                clock.advance(LEASE_SECONDS * 0.7)
                assert main.merge_base(other=tx) == tx.head
                assert lease_of(repo, tx.name) == clock.now_ms() + LEASE_MS
        assert [item.path for item in main.list()] == ["a"]
        assert contents(repo, "main").keys() == {"a", "copy 0", "copy 1", "copy 2"}

    def test_a_call_that_writes_to_it_from_elsewhere_is_refused(self, repo: Repository, clock: FakeClock) -> None:
        repo.upload("main", "a", b"1")
        tx = repo.transaction("main", "load").__enter__()
        clock.advance(LEASE_SECONDS + 1)
        with pytest.raises(TransactionEnded):
            repo.branch("main").copy("a", to_branch=tx)

    def test_a_writer_that_was_paused_for_longer_does_not_merge(self, repo: Repository, clock: FakeClock) -> None:
        with pytest.raises(TransactionEnded, match=r"its lease ran out at .+Z; begin another one"):
            run(repo, lambda: clock.advance(301), lease=timedelta(minutes=5))
        assert (contents(repo, "main"), branches(repo)) == ({}, [])
        assert [item.path for item in repo.list_trash()] == ["a"]

    def test_its_calls_are_refused(self, repo: Repository, clock: FakeClock) -> None:
        tx = repo.transaction("main", "load").__enter__()
        clock.advance(LEASE_SECONDS + 1)
        with pytest.raises(TransactionEnded):
            tx.upload("a", b"1")

    def test_a_computation_renews_a_short_one(self, repo: Repository, clock: FakeClock) -> None:
        with repo.transaction("main", "load", lease=timedelta(seconds=10)) as tx:
            tx.upload("a", b"1")
            for _ in range(5):
                clock.advance(9)
                tx.renew()
        assert contents(repo, "main") == {"a": b"1"}

    def test_a_deleted_branch_is_told(self, repo: Repository) -> None:
        with pytest.raises(TransactionEnded, match=r"its branch was deleted"):
            run(repo, lambda: repo.delete_branch(branches(repo)[0]))


class TestReaper:
    def test_it_ends_one_that_nobody_renews(self, world: World) -> None:
        world.repo.transaction("main", "load").__enter__().upload("a", b"1")
        (name,) = branches(world.repo)
        world.clock.advance(LEASE_SECONDS + LONGEST_SECONDS - 10)
        assert world.run_pass().ended == 0
        world.clock.advance(20)
        assert world.run_pass().ended == 1
        assert branches(world.repo) == []
        assert [(item.branch, item.path) for item in world.repo.list_trash()] == [(name, "a")]
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        assert world.stored() == set()
        assert world.run_once().idle

    def test_it_keeps_one_that_works(self, world: World) -> None:
        with world.repo.transaction("main", "load") as tx:
            tx.upload("a", b"1")
            for _ in range(4):
                world.clock.advance(LEASE_SECONDS * 0.7)
                assert world.run_pass().ended == 0
                tx.stat("a")
        assert contents(world.repo, "main") == {"a": b"1"}

    def test_it_keeps_hidden_branches_of_others(self, world: World) -> None:
        world.repo.create_branch("mine", source="main", hidden=True)
        world.clock.advance(10 * LEASE_SECONDS)
        assert world.run_pass().ended == 0
        assert branches(world.repo) == ["mine"]

    def test_it_ends_what_is_left_after_a_conflict(self, world: World) -> None:
        with pytest.raises(MergeConflict):
            conflict_with(world.repo)
        own = world.repo.get_branch(branches(world.repo)[0]).head
        world.clock.advance(LEASE_SECONDS + LONGEST_SECONDS + 10)
        world.run_once()
        assert branches(world.repo) == []
        assert world.repo.read(own, "a") == b"1", "a commit stays while no rule lets it expire"

    @pytest.mark.parametrize("dies_before", ["merge", "deletion of the branch"])
    def test_a_writer_that_dies_at_the_end_leaves_what_the_reaper_ends(self, world: World, dies_before: str) -> None:
        tx = world.repo.transaction("main", "load").__enter__()
        tx.upload("a", b"1")
        where = "main" if dies_before == "merge" else tx.name
        changes = 0

        def die(op: object) -> None:
            nonlocal changes
            if isinstance(op, SetIf) and op.key == keys.branch(world.repo.context.repo, BranchName(where)):
                changes += 1
                # of the own branch: renewed, sealed, advanced, published; then closed
                if where == "main" or changes > 4:
                    raise KeyboardInterrupt

        world.kv.before = die
        with pytest.raises(KeyboardInterrupt):
            tx.__exit__(None, None, None)
        world.kv.before = None
        is_merged = dies_before != "merge"
        assert contents(world.repo, "main") == ({"a": b"1"} if is_merged else {})
        world.clock.advance(LEASE_SECONDS + LONGEST_SECONDS + 10)
        assert world.run_once().ended == 1
        assert (contents(world.repo, "main"), branches(world.repo)) == ({"a": b"1"} if is_merged else {}, [])

    def test_it_ends_nothing_that_was_renewed_since_it_looked(self, world: World) -> None:
        with world.repo.transaction("main", "load") as tx:
            tx.upload("a", b"1")
            seen = world.repo.context.branches.read_open(tx.name)
            world.clock.advance(LEASE_SECONDS * 0.7)
            tx.renew()
            assert not transaction.end(world.repo.context, tx.name, seen)
        assert contents(world.repo, "main") == {"a": b"1"}


def test_why_tells_that_a_transaction_has_it(repo: Repository) -> None:
    with repo.transaction("main", "load") as tx:
        address = tx.upload("a", b"1").address
        assert "a transaction has staged it" in repo.why(address).meaning


KILLED = """
import os, signal, sys
import refstore
with refstore.open(kv=sys.argv[1], objects=sys.argv[2]) as lake:
    with lake.repository("sales").transaction("main", "load") as tx:
        tx.upload("a", b"1")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_only_what_the_reaper_ends(tmp_path: Path) -> None:
    kv, objects = f"sqlite://{tmp_path}/kv", f"file://{tmp_path}/objects"
    with refstore.create(kv=kv, objects=objects) as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "before", b"0")
        repo.commit("main", "before")
        ran = subprocess.run([sys.executable, "-c", KILLED, kv, objects], check=False)
        assert ran.returncode == -signal.SIGKILL
        (name,) = branches(repo)
        assert (contents(repo, "main"), contents(repo, name)["a"]) == ({"before": b"0"}, b"1")
    clock = FakeClock(wall_ms=time.time_ns() // 1_000_000)
    clock.advance(LEASE_SECONDS + LONGEST_SECONDS + 10)
    with (
        closing(open_kv(kv)) as later,
        Lake(later, objects, clock=clock) as lake,
        Reaper(lake, ReaperSettings(), asynchronous=False) as reaper,
    ):
        repo = lake.repository("sales")
        assert reaper.run_once(lambda: False).ended == 1
        assert (contents(repo, "main"), branches(repo)) == ({"before": b"0"}, [])
        assert [(item.branch, item.path) for item in repo.list_trash()] == [(name, "a")]
