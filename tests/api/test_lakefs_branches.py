"""lakeFS's high-level client: branches, what lies on them uncommitted, commits, transactions."""

from __future__ import annotations

import lakefs
import pytest
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    NotFoundException,
    TransactionException,
)

from tests.api.conftest import upload_all

PATHS = ["a", "b", "bar/a", "bar/b", "bar/c", "c", "foo/a", "foo/b", "foo/c"]


def uncommitted(branch: lakefs.Branch, **options: str | int) -> list[tuple[str, str]]:
    return [(change.type, change.path) for change in branch.uncommitted(**options)]


def test_a_branch_begins_where_it_is_created_and_ends_when_it_is_deleted(
    repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    branch = repo.branch("dev").create("main")
    assert (branch.repo_id, branch.id, branch.head.id) == (repo.id, "dev", main.head.id)
    branch.delete()
    with pytest.raises(NotFoundException):
        _ = branch.head
    with pytest.raises(NotFoundException):
        branch.delete()


def test_a_branch_is_created_once_from_anything_that_names_a_commit(
    repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    commit = main.commit("empty", allow_empty=True)
    repo.tag("v1").create(commit)
    for number, source in enumerate(
        ["main", main, commit, commit.get_commit(), repo.tag("v1"), "v1", commit.id[:12], "main@"]
    ):
        assert repo.branch(f"b{number}").create(source).head.id == commit.id
    assert repo.branch("before").create("main~1").head.id == repo.ref("main~").get_commit().id
    with pytest.raises(ConflictException):
        repo.branch("b0").create("main")
    assert repo.branch("b0").create("main", exist_ok=True).id == "b0"
    with pytest.raises(NotFoundException):
        repo.branch("b9").create("no-such-ref")


def test_the_default_branch_cannot_be_deleted(main: lakefs.Branch) -> None:
    with pytest.raises(ConflictException):
        main.delete()
    assert main.get_commit()


def test_a_hidden_branch_is_listed_to_those_who_ask(repo: lakefs.Repository) -> None:
    repo.branch("dev").create("main", hidden=True)
    assert [found.id for found in repo.branches()] == ["main"]
    assert [found.id for found in repo.branches(show_hidden=True)] == ["dev", "main"]


def test_a_commit_has_what_it_was_given(main: lakefs.Branch) -> None:
    main.object("a").upload("x")
    commit = main.commit(
        "a message\nof two lines", metadata={"job": "7", "ünï": "cödé"}, date=1_700_000_000
    ).get_commit()
    assert (commit.message, commit.metadata, commit.creation_date) == (
        "a message\nof two lines", {"job": "7", "ünï": "cödé"}, 1_700_000_000,
    )  # fmt: skip
    assert commit.committer == "AKIATESTS"
    assert len(commit.parents) == 1
    assert commit.meta_range_id
    assert main.get_commit() == commit
    assert uncommitted(main) == []


def test_a_commit_of_nothing_is_refused_unless_it_is_meant(main: lakefs.Branch) -> None:
    with pytest.raises(BadRequestException, match="no changes"):
        main.commit("nothing")
    main.object("a").upload("x")
    main.object("a").delete()
    with pytest.raises(BadRequestException, match="no changes"):
        main.commit("nothing that remains")
    assert main.commit("on purpose", allow_empty=True).get_commit().message == "on purpose"


def test_uncommitted_changes_are_shown_by_kind_prefix_and_page(main: lakefs.Branch) -> None:
    upload_all(main, ["changed", "removed"])
    main.object("kept").upload("kept", pre_sign=False)
    main.commit("before")
    upload_all(main, ["changed", "new/1", "new/2"], lambda _: "other")
    main.object("kept").upload(
        "kept", pre_sign=False
    )  # another object, but the same bytes, as the service knows: it hashed both
    main.object("removed").delete()
    assert [(item.type, item.path, item.path_type, item.size_bytes) for item in main.uncommitted()] == [
        ("changed", "changed", "object", 5),
        ("added", "new/1", "object", 5),
        ("added", "new/2", "object", 5),
        ("removed", "removed", "object", 0),
    ]
    assert uncommitted(main, prefix="new/") == [("added", "new/1"), ("added", "new/2")]
    assert uncommitted(main, delimiter="/", prefix="new") == [("prefix_changed", "new/")]
    assert uncommitted(main, amount=1, after="changed", max_amount=2) == [("added", "new/1"), ("added", "new/2")]


def test_resets_take_back_a_path_a_prefix_or_everything(main: lakefs.Branch) -> None:
    upload_all(main, PATHS)

    def left() -> list[str]:
        return [path for _, path in uncommitted(main)]

    main.reset_changes("object", "bar/a")
    assert left() == [path for path in PATHS if path != "bar/a"]
    main.reset_changes("object", "bar/")  # names no object: nothing happens
    assert left() == [path for path in PATHS if path != "bar/a"]
    main.reset_changes("common_prefix", "foo/")
    assert left() == ["a", "b", "bar/b", "bar/c", "c"]
    main.reset_changes()
    assert left() == []
    assert list(main.objects()) == []


def test_a_reset_brings_back_what_was_deleted_or_overwritten(main: lakefs.Branch) -> None:
    upload_all(main, ["a", "b"])
    main.commit("before")
    main.object("a").delete()
    main.object("b").upload("other")
    main.reset_changes("object", "a")
    assert main.object("a").reader("r").read() == "a"
    main.reset_changes("reset")
    assert main.object("b").reader("r").read() == "b"


def test_a_revert_undoes_a_commit_and_says_so(main: lakefs.Branch) -> None:
    main.object("a").upload("old")
    main.commit("old")
    main.object("a").upload("new")
    undone = main.commit("new")
    made = main.revert(main.head)
    assert made.message.startswith("Revert")
    assert made.parents == [undone.id]
    assert main.object("a").reader("r").read() == "old"
    with pytest.raises(BadRequestException, match="no changes"):
        main.revert(undone)


def test_a_merge_commit_is_reverted_against_the_parent_that_is_named(
    repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    dev = repo.branch("dev").create("main")
    upload_all(dev, ["from dev"])
    dev.commit("dev")
    upload_all(main, ["from main"])
    main.commit("main")
    merged = dev.merge_into(main)
    with pytest.raises(BadRequestException, match="parents"):
        main.revert(merged)
    main.revert(merged, parent_number=1)
    assert [found.path for found in main.objects()] == ["from main"]


def test_a_cherry_pick_brings_changes_message_and_metadata(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main", hidden=True)
    upload_all(dev, ["first"])
    dev.commit("first")
    upload_all(dev, ["second"])
    picked = dev.commit("second", metadata={"job": "7"}).get_commit()
    made = main.cherry_pick(dev.head)
    assert (made.message, made.metadata["job"], made.metadata["cherry-pick-origin"]) == ("second", "7", picked.id)
    assert [found.path for found in main.objects()] == ["second"]
    assert main.head.id == made.id


def test_what_would_overwrite_uncommitted_work_is_refused(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    upload_all(dev, ["x"])
    commit = dev.commit("x")
    upload_all(main, ["staged"])
    for call in (lambda: dev.merge_into(main), lambda: main.cherry_pick(commit), lambda: main.revert(main.head)):
        with pytest.raises(BadRequestException, match="dirty branch"):
            call()
    assert uncommitted(main) == [("added", "staged")]


def test_a_transaction_is_merged_when_it_succeeds(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    with main.transact(commit_message="mine", commit_metadata={"k": "v"}, tag="done") as tx:
        assert tx.get_commit().id == main.head.id
        assert [found.id for found in repo.branches()] == ["main"]
        upload_all(tx, PATHS)
        tx.reset_changes("common_prefix", "foo")
        assert not main.object("a").exists()
    assert [found.path for found in main.objects()] == [path for path in PATHS if not path.startswith("foo")]
    merge, commit = main.log(max_amount=2)
    assert merge.message == f"Merge transaction {tx.id} to branch"
    assert (commit.message, commit.metadata) == ("mine", {"k": "v"})
    assert repo.tag("done").get_commit().id == merge.id
    with pytest.raises(NotFoundException):
        repo.branch(tx.id).get_commit()


def test_a_transaction_without_changes_says_so_and_leaves_no_branch(
    repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    def nothing() -> None:
        with main.transact(commit_message="mine") as tx:
            upload_all(tx, ["a"])
            tx.reset_changes()

    with pytest.raises(TransactionException, match="no changes"):
        nothing()
    assert [found.id for found in repo.branches(show_hidden=True)] == ["main"]


@pytest.mark.parametrize("delete", [True, False])
def test_a_transaction_that_fails_leaves_the_branch_as_it_was(
    repo: lakefs.Repository, main: lakefs.Branch, delete: bool
) -> None:
    def fail() -> None:
        with main.transact(commit_message="mine", delete_branch_on_error=delete) as tx:
            upload_all(tx, ["a"])
            raise KeyError("something of the caller's")

    before = main.head.id
    with pytest.raises(KeyError):
        fail()
    assert main.head.id == before
    assert len(list(repo.branches(show_hidden=True))) == (1 if delete else 2)


def test_a_transaction_that_meets_others_says_with_what(main: lakefs.Branch) -> None:
    def dirty() -> None:
        with main.transact(commit_message="mine") as tx:
            upload_all(tx, ["a"])
            upload_all(main, ["b"])

    def conflicting() -> None:
        with main.transact(commit_message="mine") as tx:
            upload_all(tx, ["b"], lambda path: path * 2)
            main.commit("theirs")

    with pytest.raises(TransactionException, match="dirty branch"):
        dirty()
    with pytest.raises(TransactionException, match="Conflict"):
        conflicting()
    assert main.object("b").reader("r").read() == "b"
