"""What a call must not do to what others did meanwhile: while its reply was lost, before it takes itself back, and
behind its own copy.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from refstore.audit.audit_entries import Act
from refstore.audit.audit_reader import entries_newest_first
from refstore.core import deadline
from refstore.core.clock import Clock
from refstore.core.ids import BranchName
from refstore.core.safety import Safety
from refstore.errors import (
    BranchNotFound,
    Conflict,
    ConsentNeeded,
    Contention,
    Gone,
    ObjectNotFound,
    RefstoreError,
)
from refstore.kv.base import ABSENT, Op, SetIf
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.operations import commit as commit_operation
from refstore.operations import refs
from refstore.operations.commit import CommitOptions
from refstore.operations.upload import Link
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, decode_branch
from refstore.records.encoding import encode
from refstore.records.mark_records import StoredMark
from refstore.repository import Repository
from refstore.service import access_keys
from refstore.service.access_keys import Role
from tests.contents import contents
from tests.interrupted import Interrupted, is_entry_write, lose_reply
from tests.kit import collecting
from tests.kit.clock import FakeClock
from tests.reaping import release_all


def world(kv: Interrupted, clock: Clock, *, grace: float = 3600, retrying: bool = True) -> Repository:
    lake = Lake(
        RetryingKV(kv, clock=clock, check=deadline.check) if retrying else kv,
        "memory://once",
        clock=clock,
        safety=Safety(grace_seconds=grace),
    )
    return lake.create_repository("once")


def mark(repo: Repository, commit: str) -> None:
    ctx = repo.context
    ctx.kv.set(keys.mark(ctx.repo, commit), encode(StoredMark(1, 2, "m")))


# ---- creation of a tag


def test_a_tag_that_takes_itself_back_leaves_anothers(clock: FakeClock) -> None:
    kv = Interrupted(
        behind=lambda op: isinstance(op, SetIf) and op.key.partition.endswith("/tags") and op.value is not ABSENT
    )
    repo = world(kv, clock)
    repo.upload("main", "p", b"1")
    old = repo.commit("main", "old").id
    repo.upload("main", "p", b"2")
    head = repo.commit("main", "new").id

    def others() -> None:
        repo.delete_tag("v1")
        assert repo.create_tag("v1", ref="main") == head
        mark(repo, old)

    kv.then = others
    with pytest.raises(Gone):
        repo.create_tag("v1", ref=old)
    assert repo.get_tag("v1").commit_id == head


# ---- creation of a branch


def opening(op: Op) -> bool:
    return (
        isinstance(op, SetIf)
        and op.key.partition.endswith("/branches")
        and op.key.name == "late"
        and isinstance(op.value, bytes)
        and isinstance(decode_branch(op.value), StoredBranch)
    )


def test_who_made_a_branch_is_not_told_that_it_existed(clock: FakeClock) -> None:
    kv = Interrupted(behind=opening)
    repo = world(kv, clock)

    def others() -> None:
        repo.upload("late", "p", b"1")
        repo.commit("late", "c")
        lose_reply()

    kv.then = others
    repo.create_branch("late", source="main")


@pytest.mark.parametrize("committed", [False, True])
def test_a_branch_that_was_made_and_deleted_is_not_made_again(clock: FakeClock, committed: bool) -> None:
    kv = Interrupted(behind=opening)
    repo = world(kv, clock)

    def others() -> None:
        if committed:
            repo.upload("late", "p", b"1")
            repo.commit("late", "theirs")
        repo.delete_branch("late")
        lose_reply()

    kv.then = others
    with suppress(RefstoreError):
        repo.create_branch("late", source="main")
    with pytest.raises(BranchNotFound):
        repo.get_branch("late")


# ---- a commit, and another's


def commit_by_another(repo: Repository) -> None:
    """Of what is staged on main; between its seal and its advance, an upload of q."""
    ctx, name = repo.context, BranchName("main")
    branches, staging = ctx.branches, ctx.staging
    record = branches.seal(name, lambda: staging.new_token(name, ctx.ids, ctx.clock))
    repo.upload("main", "q", b"2")
    tree = refs.head_commit(ctx, record.head)
    changes = [(path, value) for path, value, _ in staging.scan_merged(record.sealed_tokens[::-1])]
    written = ctx.trees.apply_encoded(tree.metarange, changes)
    new = commit_operation.write_commit(
        ctx, CommitOptions(message="theirs"), (record.head,), written, record.sealed_tokens
    )
    assert branches.advance(name, record.head, record.sealed_tokens, new.id, new.id)
    ctx.markers.publish(branches, name)
    release_all(repo)


def test_nothing_to_commit_is_not_said_where_something_always_was(clock: FakeClock) -> None:
    kv = Interrupted()
    repo = world(kv, clock)
    repo.upload("main", "p", b"1")
    kv.scanned = keys.staging(repo.context.repo, repo.context.branches.read_open(BranchName("main")).record.token)
    kv.then = partial(commit_by_another, repo)
    repo.commit("main", "mine")


# ---- uploads and links whose reply was lost


@pytest.mark.parametrize("grace", [3600, 0])
@pytest.mark.parametrize("links", [False, True], ids=["upload", "link"])
def test_what_landed_and_was_replaced_does_not_come_back(clock: FakeClock, grace: float, links: bool) -> None:
    kv = Interrupted(behind=is_entry_write)
    repo = world(kv, clock, grace=grace)
    issued = repo.issue("main", "p")
    repo.context.objects.put(issued.address, b"older")

    def others() -> None:
        assert repo.read("main", "p") == b"older"
        repo.upload("main", "p", b"newer")
        lose_reply()

    kv.then = others
    if links:
        repo.link("main", "p", issued.token)
    else:
        repo.upload("main", "p", b"older")
    assert contents(repo) == {"p": b"newer"}


@pytest.mark.parametrize("how", ["restored", "linked", "linked where nothing is"])
def test_what_never_landed_is_not_told_although_its_address_was_committed_elsewhere(clock: FakeClock, how: str) -> None:
    """Its key is gone then, and with it the reference that says whether it landed."""
    kv = Interrupted(before=lambda op: is_entry_write(op) or placing_once(op))
    repo = world(kv, clock)
    repo.create_branch("other", source="main")
    issued = repo.issue("main", "p")
    repo.context.objects.put(issued.address, b"1")
    address = repo.upload("other", "q", b"1").address if how == "restored" else issued.address

    def others() -> None:
        if how != "restored":
            repo.restore(address, to="other", path="q")
        repo.commit("other", "theirs")
        release_all(repo)
        lose_reply()

    def make() -> object:
        if how == "restored":
            return repo.restore(address, to="main", path="p")
        return repo.link_many("main", [Link(path="p", token=issued.token, if_absent=how != "linked")])

    kv.then = others
    with pytest.raises(Contention):
        make()
    assert contents(repo) == {}
    assert repo.read("other", "q") == b"1"


def linking(op: Op) -> bool:
    return isinstance(op, SetIf) and "/references" in op.key.partition and op.expected is not ABSENT


def test_a_link_whose_list_grew_before_it_was_answered_is_made(clock: FakeClock) -> None:
    """`restore` takes an address that is listed, too: it cannot tell a link under way from one that died."""
    kv = Interrupted(behind=linking)
    repo = world(kv, clock)
    repo.create_branch("other", source="main")
    issued = repo.issue("main", "p")
    repo.context.objects.put(issued.address, b"1")

    def others() -> None:
        repo.restore(issued.address, to="other", path="q")
        lose_reply()

    kv.then = others
    repo.link("main", "p", issued.token)
    assert contents(repo) == {"p": b"1"}
    assert repo.read("other", "q") == b"1"


# ---- creation of a repository


def test_a_repository_whose_creation_was_not_answered_is_not_taken_apart(clock: FakeClock) -> None:
    kv = Interrupted(
        behind=lambda op: isinstance(op, SetIf) and op.key.partition == keys.REPOSITORIES and op.expected is ABSENT
    )
    lake = Lake(RetryingKV(kv, clock=clock), "memory://once", clock=clock)

    def others() -> None:
        lake.repository("once").upload("main", "p", b"1")
        lake.repository("once").commit("main", "theirs")
        lake.set_metadata("once", put={"owner": "them"})
        lose_reply()

    kv.then = others
    with suppress(RefstoreError):
        lake.create_repository("once")
    assert lake.repository("once").read("main", "p") == b"1"


# ---- a commit whose tokens another took


def test_a_commit_whose_tokens_another_took_does_not_say_that_nothing_was_staged(clock: FakeClock) -> None:
    kv = Interrupted(
        behind=lambda op: isinstance(op, SetIf) and op.key.partition.endswith("/branches") and op.key.name == "main"
    )
    repo = world(kv, clock)
    repo.upload("main", "p", b"1")
    kv.then = partial(commit_by_another, repo)
    repo.commit("main", "mine")


# ---- copies from what has expired


@pytest.mark.parametrize("checked", [False, True])
def test_a_copy_that_outlived_the_wait_names_nothing_that_went(checked: bool) -> None:
    clock = FakeClock(1_900_000_000_000)
    kv = Interrupted(before=is_entry_write)
    lake = Lake(RetryingKV(kv, clock=clock, check=deadline.check if checked else None), "memory://once", clock=clock)
    repo = lake.create_repository("once")
    repo.upload("main", "p", b"1")
    old = repo.commit("main", "old").id
    repo.delete("main", "p")
    repo.upload("main", "r", b"3")
    repo.commit("main", "new")
    release_all(repo)

    def others() -> None:
        """In a process of its own, with a context of its own: no deadline of ours."""

        def run() -> None:
            run, found = collecting.mark(repo.context, [old])
            collecting.sweep(repo.context, run.mark_id, found.data)

        contextvars.Context().run(run)

    kv.then = others
    with pytest.raises(RefstoreError):
        repo.copy(old, "p", to_branch="main", to_path="z")
    with pytest.raises(ObjectNotFound):
        repo.read("main", "z")


def test_a_refused_copy_whose_reply_was_lost_is_not_left_there(clock: FakeClock) -> None:
    """Made again, it replaces itself: that is not what is put back."""
    kv = Interrupted(behind=is_entry_write)
    repo = world(kv, clock)
    repo.upload("main", "p", b"1")
    old = repo.commit("main", "old").id
    repo.delete("main", "p")
    repo.upload("main", "r", b"3")
    repo.commit("main", "new")

    def others() -> None:
        mark(repo, old)
        lose_reply()

    kv.then = others
    with pytest.raises(Gone):
        repo.copy(old, "p", to_branch="main", to_path="z")
    assert contents(repo) == {"r": b"3"}


# ---- placed where nothing is


def placing_once(op: Op) -> bool:
    return isinstance(op, SetIf) and "/staging/" in op.key.partition and op.once


@pytest.mark.parametrize("how", ["deleted", "moved", "overwritten"])
def test_what_was_placed_where_nothing_is_and_taken_away_does_not_come_back(clock: FakeClock, how: str) -> None:
    kv = Interrupted(behind=placing_once)
    repo = world(kv, clock)

    def others() -> None:
        assert repo.read("main", "p") == b"1"
        if how == "deleted":
            repo.delete("main", "p")
        elif how == "moved":
            repo.move("main", "p", to_path="q")
        else:
            repo.upload("main", "p", b"2")
        lose_reply()

    kv.then = others
    repo.upload("main", "p", b"1", if_absent=True)
    assert contents(repo) == {"deleted": {}, "moved": {"q": b"1"}, "overwritten": {"p": b"2"}}[how]


# ---- what stands in the audit log


def done(lake: Lake, action: str) -> list[Act]:
    """The acts of that name that took effect, oldest first."""
    entries = [read.entry for read in entries_newest_first(lake.kv, lake.own_store)]
    acts = [entry.act for entry in reversed(entries) if entry is not None and entry.act.action == action]
    return [act for act in acts if act.outcome == "done"]


def writing(partition: str) -> Callable[[Op], bool]:
    return lambda op: isinstance(op, SetIf) and op.key.partition.endswith(partition)


def test_a_tag_that_is_made_again_meanwhile_is_not_called_deleted(clock: FakeClock) -> None:
    kv = Interrupted(before=writing("/tags"))
    lake = Lake(kv, "memory://once", clock=clock)
    repo = lake.create_repository("once")
    repo.create_tag("v1", ref="main")

    def others() -> None:
        repo.delete_tag("v1")
        clock.advance(1)
        repo.create_tag("v1", ref="main")

    kv.then = others
    with pytest.raises(Conflict, match="made again"):
        repo.delete_tag("v1")
    assert [each.name for each in repo.tags()] == ["v1"]
    assert len(done(lake, "tag.delete")) == 1


def test_a_tag_that_others_delete_meanwhile_is_deleted_once(clock: FakeClock) -> None:
    kv = Interrupted(before=writing("/tags"))
    lake = Lake(kv, "memory://once", clock=clock)
    repo = lake.create_repository("once")
    repo.create_tag("v1", ref="main")
    kv.then = lambda: repo.delete_tag("v1")
    repo.delete_tag("v1")
    assert not list(repo.tags())
    assert len(done(lake, "tag.delete")) == 1


def test_rules_that_others_set_meanwhile_stand_in_the_log(clock: FakeClock) -> None:
    kv = Interrupted(before=writing("/retention"))
    lake = Lake(kv, "memory://once", clock=clock)
    repo = lake.create_repository("once")
    held = '{"legal_holds": [{"prefix": "a/", "reason": "court"}]}'
    kv.then = lambda: repo.set_retention(held)
    with pytest.raises(ConsentNeeded, match="hold:a/"):
        repo.set_retention('{"default_retention_days": 7}')
    repo.set_retention('{"default_retention_days": 7}', remove=["hold:a/"])
    befores = [act.before and act.before["document"] for act in done(lake, "rules.set")]
    assert befores == [None, held]


def test_a_key_that_is_rotated_meanwhile_is_revoked_as_it_is_then(clock: FakeClock) -> None:
    kv = Interrupted(before=lambda op: writing("access-keys")(op) and getattr(op, "value", b"") is ABSENT)
    lake = Lake(kv, "memory://once", clock=clock)
    access_keys.create_key(lake, Role.READER, id="key")
    kv.then = lambda: access_keys.rotate_secret(lake, "key", overlap_ms=60_000)
    access_keys.revoke_key(lake, "key")
    assert not list(access_keys.scan_keys(lake.kv))
    [act] = done(lake, "key.revoke")
    assert act.before is not None
    assert act.before["old_secret_ends_ms"]
