"""What a restore puts back: all that is still known of what was lost, and never over what was written since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import BranchName, Path
from refstore.errors import AlreadyExists, BranchNotFound, Gone, ObjectNotFound
from refstore.kv.base import Get, Op
from refstore.lake import Lake
from refstore.operations.copy import Copy
from refstore.operations.restore import RestoreOutcome, RestoreResult
from refstore.operations.upload import Upload
from refstore.public_types import Entry, stored_entry
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.staging_records import StoredEntry, without_reference
from refstore.repository import Repository
from refstore_reaper.scrub import scrub_references
from tests.interrupted import Interrupted, seal
from tests.kit.clock import FakeClock
from tests.kit.counting_kv import CountingKV
from tests.reaping import delete_due, release_all, scrub_all


def upload(repo: Repository, path: str = "a", body: bytes = b"1", branch: str = "main") -> Entry:
    return repo.upload(
        branch, path, body, metadata={"owner": "ann"}, content_type="text/plain", modified=to_datetime(7)
    )


def kept(entry: Entry | None) -> StoredEntry:
    """Return all that the record holds, but its reference."""
    assert entry is not None
    return without_reference(stored_entry(entry))


def outcomes(done: Sequence[RestoreResult]) -> dict[str, RestoreOutcome]:
    return {item.path: item.outcome for item in done}


def loses(repo: Repository, how: str) -> None:
    match how:
        case "reset":
            repo.reset("main")
        case "reset of a path":
            repo.reset("main", path="a")
        case "deleted":
            repo.delete("main", "a")
        case _:  # sealed, then reset
            seal(repo)
            repo.reset("main")


# ---- what comes back


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize("how", ["reset", "reset of a path", "deleted", "sealed, then reset"])
def test_all_of_the_entry_comes_back_before_and_after_the_reaper_has_passed(
    repo: Repository, how: str, reaped: bool
) -> None:
    lost = upload(repo)
    loses(repo, how)
    if reaped:
        release_all(repo)
    restored = repo.restore(lost.address, to="main")
    assert kept(restored.entry) == kept(lost)
    assert repo.stat("main", "a") == restored.entry


@pytest.mark.parametrize("reaped", [False, True])
def test_what_a_deleted_branch_lost_comes_back_on_another(repo: Repository, reaped: bool) -> None:
    repo.create_branch("try", source="main")
    lost = upload(repo, branch="try")
    repo.delete_branch("try")
    if reaped:
        release_all(repo)
    repo.restore(lost.address, to="main")
    assert kept(repo.stat("main", "a")) == stored_entry(lost)


def test_the_reaper_may_pass_while_the_names_of_an_address_are_read(clock: FakeClock) -> None:
    def reads_an_entry(op: Op) -> bool:
        return isinstance(op, Get) and "/staging/main:" in op.key.partition

    kv = Interrupted(before=reads_an_entry)
    with Lake(kv, "memory://between", clock=clock) as lake:
        repo = lake.create_repository("between")
        lost = upload(repo)
        repo.reset("main")
        kv.then = lambda: release_all(repo)
        assert kept(repo.restore(lost.address, to="main").entry) == stored_entry(lost)
        assert kv.then is None


def test_what_the_scrubber_dropped_is_described_by_what_its_token_still_holds(
    repo: Repository, clock: FakeClock
) -> None:
    """A token that nobody knows any more: of a KV that was restored from a backup."""
    lost = upload(repo)
    ctx = repo.context
    branch = ctx.branches.read_open(BranchName("main")).record
    token = ctx.staging.new_token(BranchName("main"), ctx.ids, ctx.clock)
    ctx.kv.set(
        keys.branch(ctx.repo, BranchName("main")), encode(msgspec.structs.replace(branch, token=token, write_id="w"))
    )
    clock.advance(10_000)
    for shard in range(keys.SHARDS):
        scrub_references(ctx, shard)
    (item,) = repo.list_trash()
    assert (item.cause, item.entry) == ("scrubbed", None)
    assert kept(repo.restore(lost.address, to="main").entry) == stored_entry(lost)


def test_an_upload_that_died_before_its_blob_cannot_come_back(repo: Repository) -> None:
    def dies() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        repo.upload("main", "a", dies())
    (item,) = repo.list_trash(prefix="a")
    with pytest.raises(ObjectNotFound, match="nothing was written"):
        repo.restore(item.address, to="main")


def test_of_several_names_the_one_on_the_branch_comes_back(repo: Repository) -> None:
    repo.create_branch("try", source="main")
    lost = upload(repo, branch="try")
    repo.copy("try", "a", to_branch="main", to_path="b")
    repo.reset("main")
    repo.reset("try")
    assert repo.restore(lost.address, to="main").path == "b"
    assert repo.restore(lost.address, to="try").path == "a"


# ---- what changes nothing


@pytest.mark.parametrize("path", [None, "a"])
def test_restored_twice_it_is_unchanged(repo: Repository, path: str | None) -> None:
    lost = upload(repo)
    repo.reset("main")
    first = repo.restore(lost.address, to="main", path=path).entry
    second = repo.restore(lost.address, to="main", path=path)
    assert (second.outcome, second.entry) == (RestoreOutcome.UNCHANGED, first)
    assert repo.stat("main", "a") == first
    assert len(repo.address(lost.address).references) <= 2


@pytest.mark.parametrize("path", [None, "a"])
def test_what_is_still_staged_is_unchanged(repo: Repository, path: str | None) -> None:
    staged = upload(repo)
    assert repo.restore(staged.address, to="main", path=path) == RestoreResult(
        staged.address, Path("a"), staged, RestoreOutcome.UNCHANGED
    )


def test_what_is_committed_at_the_path_is_unchanged(repo: Repository) -> None:
    committed = upload(repo)
    repo.commit("main", "a")
    release_all(repo)
    assert repo.restore(committed.address, to="main", path="a").outcome is RestoreOutcome.UNCHANGED
    with pytest.raises(Gone):
        repo.restore(committed.address, to="main")


def test_what_is_staged_on_another_branch_takes_all_of_its_entry_along(repo: Repository) -> None:
    repo.create_branch("try", source="main")
    staged = upload(repo)
    restored = repo.restore(staged.address, to="try", path="b")
    assert kept(restored.entry) == kept(staged)


# ---- what is in the way


def test_what_was_staged_since_is_left(repo: Repository) -> None:
    lost = upload(repo)
    repo.reset("main")
    newer = repo.upload("main", "a", b"2")
    with pytest.raises(AlreadyExists, match="written since"):
        repo.restore(lost.address, to="main")
    assert repo.stat("main", "a") == newer
    assert repo.restore(lost.address, to="main", path="b").outcome is RestoreOutcome.RESTORED


def test_with_force_it_goes_over_what_was_staged_since_which_can_be_taken_back(repo: Repository) -> None:
    lost = upload(repo)
    repo.reset("main")
    newer = repo.upload("main", "a", b"2")
    repo.restore(lost.address, to="main", force=True)
    assert repo.read("main", "a") == b"1"
    assert [(item.address, item.cause) for item in repo.list_trash()] == [(newer.address, "overwritten")]


def test_what_was_committed_since_is_left(repo: Repository, clock: FakeClock) -> None:
    lost = upload(repo)
    repo.reset("main")
    clock.advance(1)
    repo.upload("main", "a", b"2")
    repo.commit("main", "newer")
    with pytest.raises(AlreadyExists):
        repo.restore(lost.address, to="main")


def test_what_was_committed_before_is_staged_over_again(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "a", b"0")
    repo.commit("main", "older")
    clock.advance(1)
    lost = upload(repo)
    repo.reset("main")
    repo.restore(lost.address, to="main")
    assert repo.read("main", "a") == b"1"


def test_over_a_staged_deletion_it_comes_back(repo: Repository) -> None:
    lost = upload(repo)
    repo.delete("main", "a")
    assert repo.restore(lost.address, to="main").outcome is RestoreOutcome.RESTORED


# ---- many at a time


@pytest.mark.parametrize("reaped", [False, True])
def test_all_that_a_branch_lost_comes_back(repo: Repository, reaped: bool) -> None:
    before = repo.upload_many(
        "main",
        (Upload(path=f"p/{number:04}", body=b"%d" % number, metadata={"n": str(number)}) for number in range(1200)),
    )
    repo.reset("main")
    if reaped:
        release_all(repo)
    planned = repo.restore_many("main", dry_run=True)
    assert {item.outcome for item in planned} == {RestoreOutcome.RESTORED}
    assert len(planned) == 1200
    assert list(repo.list("main")) == []
    done = repo.restore_many("main")
    assert {item.outcome for item in done} == {RestoreOutcome.RESTORED}
    assert [kept(item.entry) for item in repo.list("main") if item.entry is not None] == [
        stored_entry(entry) for entry in before
    ]
    assert {item.outcome for item in repo.restore_many("main")} == set()


def test_a_prefix_of_what_a_deleted_branch_lost_comes_back_on_another(repo: Repository) -> None:
    repo.create_branch("try", source="main")
    repo.upload_many("try", [Upload(path=path, body=b"1") for path in ("a/1", "a/2", "b/1")])
    repo.delete_branch("try")
    assert outcomes(repo.restore_many("try", to="main", prefix="a/")) == {
        "a/1": RestoreOutcome.RESTORED,
        "a/2": RestoreOutcome.RESTORED,
    }
    assert [item.path for item in repo.list("main")] == ["a/1", "a/2"]
    with pytest.raises(BranchNotFound):
        repo.restore_many("try")


@pytest.mark.parametrize("reaped", [False, True])
def test_of_several_versions_the_one_that_was_lost_last_comes_back(
    repo: Repository, clock: FakeClock, reaped: bool
) -> None:
    for number in range(3):
        clock.advance(1)
        repo.upload("main", "a", b"%d" % number)
    seal(repo)
    clock.advance(1)
    repo.upload("main", "a", b"last")
    repo.reset("main")
    if reaped:
        release_all(repo)
    done = repo.restore_many("main")
    assert sorted(item.outcome.value for item in done) == ["older", "older", "older", "restored"]
    assert repo.read("main", "a") == b"last"


def test_what_was_only_overwritten_comes_back_by_its_path(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "a", b"1")
    clock.advance(1)
    repo.upload("main", "a", b"2")
    assert outcomes(repo.restore_many("main")) == {"a": RestoreOutcome.OLDER}
    assert outcomes(repo.restore_many("main", path="a")) == {"a": RestoreOutcome.CONFLICT}
    assert outcomes(repo.restore_many("main", path="a", force=True)) == {"a": RestoreOutcome.RESTORED}
    assert repo.read("main", "a") == b"1"


def test_one_that_is_in_the_way_keeps_no_other(repo: Repository) -> None:
    repo.upload_many("main", [Upload(path=path, body=b"1") for path in "abc"])
    repo.reset("main")
    repo.upload("main", "b", b"2")
    assert outcomes(repo.restore_many("main")) == {
        "a": RestoreOutcome.RESTORED,
        "b": RestoreOutcome.CONFLICT,
        "c": RestoreOutcome.RESTORED,
    }
    assert {path: repo.read("main", path) for path in "abc"} == {"a": b"1", "b": b"2", "c": b"1"}


def test_two_lost_names_of_one_address_both_come_back(repo: Repository) -> None:
    lost = upload(repo)
    repo.copy_many("main", [Copy("a", "b")], to_branch="main")
    repo.reset("main")
    assert outcomes(repo.restore_many("main")) == {"a": RestoreOutcome.RESTORED, "b": RestoreOutcome.RESTORED}
    assert {item.path: item.entry.address for item in repo.list("main") if item.entry} == {
        "a": lost.address,
        "b": lost.address,
    }


def test_what_went_while_it_was_restored_is_told(clock: FakeClock) -> None:
    def reads_an_entry(op: Op) -> bool:
        return isinstance(op, Get) and op.key.name == "b"

    kv = Interrupted(before=reads_an_entry)
    with Lake(kv, "memory://too-late", clock=clock) as lake:
        repo = lake.create_repository("late")
        lost = upload(repo)
        repo.reset("main")
        release_all(repo)

        def goes() -> None:
            clock.advance(10**6)
            delete_due(repo)

        kv.then = goes
        with pytest.raises(Gone, match="while it was being restored"):
            repo.restore(lost.address, to="main", path="b")
        assert list(repo.list("main")) == []


def test_what_came_back_stays(repo: Repository, clock: FakeClock) -> None:
    repo.upload_many("main", [Upload(path=path, body=b"1") for path in "abc"])
    repo.reset("main")
    repo.restore_many("main")
    for _ in range(2):
        clock.advance(10**6)
        release_all(repo)
        delete_due(repo)
        scrub_all(repo)
    assert {path: repo.read("main", path) for path in "abc"} == {"a": b"1", "b": b"1", "c": b"1"}
    repo.commit("main", "back")
    release_all(repo)
    clock.advance(10**6)
    delete_due(repo)
    assert repo.read("main", "c") == b"1"


def test_many_share_their_round_trips(clock: FakeClock) -> None:
    kv = CountingKV()
    with Lake(kv, "memory://counting", clock=clock) as lake:
        repo = lake.create_repository("counting")
        repo.upload_many("main", (Upload(path=f"{number:04}", body=b"1") for number in range(2000)))
        repo.reset("main")
        kv.calls = 0
        assert len(repo.restore_many("main")) == 2000
        assert kv.calls < 60
