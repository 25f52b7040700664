"""The offline job, the purge and `why` see the hidden branches of transactions (rule 24)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from refstore.core.safety import Safety
from refstore.errors import MergeConflict, NotFound
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.operations.address_info import AddressState
from refstore.operations.transaction import LEASE_MS
from refstore.repository import Repository
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_purge import IdsFile, RowFinding, verify
from tests.offline.world import World, marked_in
from tests.reaping import reap_all, release_all

if TYPE_CHECKING:
    from pathlib import Path

    from refstore_gc.engines.choice import Engines

LEASE_SECONDS = LEASE_MS / 1000 + Safety().operations_end_ms(0) / 1000 + 1
"""After so long without a call the reaper ends a transaction."""


def left_after_a_conflict(repo: Repository) -> str:
    """Return the branch of a transaction that has committed `a`, and could not be merged."""
    tx = repo.transaction("main", "load").__enter__()
    tx.upload("a", b"ours")
    name = tx.name
    repo.upload("main", "a", b"theirs")
    repo.commit("main", "meanwhile")
    with pytest.raises(MergeConflict):
        tx.__exit__(None, None, None)
    return name


def test_a_mark_keeps_the_commit_at_which_a_transaction_began(world: World, engines: Engines) -> None:
    old = world.commit(days_ago=9, a=b"old")
    address = world.address(old, "a")
    with world.repo.transaction("main", "load") as tx:
        world.commit(days_ago=8, a=b"new")
        world.settle()
        summary = gc_run.mark(world.ctx, engines, GcOptions())
        assert address not in marked_in(world, summary.mark_id)
        assert CommitMarks(world.ctx).read_marks([old]) == [None]
        gc_run.sweep(world.ctx, engines, summary.mark_id)
        assert tx.read("a") == b"old"
    world.settle()
    assert address in marked_in(world, gc_run.mark(world.ctx, engines, GcOptions()).mark_id)


def test_a_nightly_run_deletes_nothing_that_a_transaction_has(world: World, engines: Engines) -> None:
    world.commit(days_ago=9, other=b"1")
    committed = left_after_a_conflict(world.repo)
    with world.repo.transaction("main", "load") as tx:
        tx.upload("staged", b"2")
        world.settle()
        gc_run.run_nightly(world.ctx, engines, GcOptions(is_full=True))
        reap_all(world.repo)
        assert (tx.read("staged"), world.repo.read(committed, "a")) == (b"2", b"ours")
    assert world.repo.read("main", "staged") == b"2"


def test_a_nightly_run_deletes_what_a_transaction_had_committed_that_was_ended(world: World, engines: Engines) -> None:
    name = left_after_a_conflict(world.repo)
    address = world.address(name, "a")
    world.clock.sleep(LEASE_SECONDS)
    world.settle()
    with pytest.raises(NotFound):
        world.repo.get_branch(name)
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert address not in world.data()
    assert world.repo.read("main", "a") == b"theirs"


def test_rules_that_act_on_branches_leave_a_transaction_whole(world: World, engines: Engines) -> None:
    """What is merged is all of it, however long it took."""
    world.commit(tmp__old=b"0")
    rule = {"filter": {"prefix": "tmp/"}, "expiration": {"all": {"days": 2}, "uncommitted": {"days": 2}}}
    world.set_rules(rules=[rule], allow_deletion_from_latest_view=True)
    with world.repo.transaction("main", "load") as tx:
        tx.upload("tmp/new", b"1")
        for _ in range(6):
            world.clock.sleep(LEASE_MS / 1000 * 0.6)
            tx.renew()
        gc_run.run_nightly(world.ctx, engines, GcOptions())
        assert [item.path for item in tx.list()] == ["tmp/new", "tmp/old"]
        assert [item.path for item in world.repo.list("main")] == []
        log = [commit.id for commit in tx.log()]
        assert len(log) == 2, "the job committed on the branch of the transaction"
    assert [item.path for item in world.repo.list("main")] == ["tmp/new"]


DOCUMENT = {
    "whitelist": ["*"],
    "datasets": [
        {"name": "visits", "prefix": "visits/", "format": "csv", "identifier": "guest", "mode": "keep-history"},
    ],
}
VISIT, BODY = "visits/x", b"guest,at\nann,1\nbob,2\n"


@pytest.fixture
def ids(world: World) -> Path:
    world.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    world.commit_files({"visits/clean": b"guest,at\nzed,1\n"})
    file = world.folder / "ids.csv"
    file.write_text("id\nbob\n")
    return file


def found_rows(world: World, ids: Path) -> list[RowFinding]:
    return verify(world.repo, IdsFile(ids)).findings


def test_verify_looks_at_what_a_transaction_has_staged(world: World, ids: Path) -> None:
    with world.repo.transaction("main", "late") as tx:
        assert found_rows(world, ids) == []
        tx.upload(VISIT, BODY)
        assert found_rows(world, ids) == [RowFinding(tx.name, VISIT, 1, 0, "")]
        tx.commit("a part of it")
        release_all(world.repo)
        assert found_rows(world, ids) == [RowFinding(tx.name, VISIT, 1, 0, "")]
    assert found_rows(world, ids) == [RowFinding("main", VISIT, 1, 0, "")]


def test_verify_takes_the_commit_at_which_a_transaction_began_for_history(world: World, ids: Path) -> None:
    world.commit_files({VISIT: BODY})
    with world.repo.transaction("main", "other"):
        world.commit_files({VISIT: b"guest,at\nann,1\n"})
        assert found_rows(world, ids) == []


def test_why_tells_of_a_transaction(world: World) -> None:
    with world.repo.transaction("main", "load") as tx:
        staged = tx.upload("a", b"1").address
        why = world.repo.why(staged)
        assert (why.info.state, why.meaning) == (
            AddressState.REFERENCED,
            "a transaction has staged it, and merges it, or it goes with the hidden branch of that transaction",
        )
    release_all(world.repo)
    assert world.repo.why(staged).info.state is AddressState.COMMITTED


def test_why_tells_what_branch_of_a_transaction_has_a_commit(world: World) -> None:
    name = left_after_a_conflict(world.repo)
    release_all(world.repo)
    why = world.repo.why(world.address(name, "a"), commits=True)
    assert why.naming is not None
    assert why.naming.branches == ((name, "a"),)
