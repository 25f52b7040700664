from __future__ import annotations

import pytest

from refstore.errors import (
    AlreadyExists,
    BranchNotFound,
    Conflict,
    DirtyBranch,
    InvalidPath,
    MergeConflict,
    NotFound,
    NothingToCommit,
    ObjectNotFound,
)
from refstore.repository import Repository


def paths(repo: Repository, ref: str) -> list[str]:
    return [item.path for item in repo.list(ref)]


def test_staged_changes_are_seen_on_their_branch_only(repo: Repository) -> None:
    repo.create_branch("feature", source="main")
    repo.upload("feature", "a", b"1")
    assert paths(repo, "feature") == ["a"]
    assert paths(repo, "main") == []


def test_a_commit_keeps_what_is_staged(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.upload("main", "b", b"2")
    commit = repo.commit("main", "two files").id
    assert paths(repo, commit) == ["a", "b"]
    repo.delete("main", "a")
    assert paths(repo, "main") == ["b"]
    assert paths(repo, commit) == ["a", "b"]


def test_a_ref_says_which_state_of_a_branch_is_meant(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    first = repo.commit("main", "first").id
    repo.upload("main", "b", b"2")
    second = repo.commit("main", "second").id
    repo.upload("main", "c", b"3")
    repo.create_tag("v1", ref=first)
    assert paths(repo, "main") == ["a", "b", "c"]
    assert paths(repo, "main@") == ["a", "b"] == paths(repo, second[:8])
    assert paths(repo, "main~1") == ["a"] == paths(repo, "v1")
    with pytest.raises(NotFound):
        paths(repo, "main~9")


def test_nothing_staged_is_nothing_to_commit(repo: Repository) -> None:
    with pytest.raises(NothingToCommit):
        repo.commit("main", "empty")
    repo.commit("main", "on purpose", allow_empty=True)


def test_changes_that_change_nothing_are_nothing_to_commit(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    repo.upload("main", "x", b"1")
    repo.delete("main", "x")
    with pytest.raises(NothingToCommit):
        repo.commit("main", "nothing")
    assert paths(repo, "main") == ["a"]


def test_the_log_goes_from_new_to_old(repo: Repository) -> None:
    for message in ("one", "two", "three"):
        repo.upload("main", message, b"")
        repo.commit("main", message, committer="me", metadata={"k": message})
    log = list(repo.log("main"))
    assert [commit.message for commit in log] == ["three", "two", "one", "Repository created"]
    assert log[0].metadata == {"k": "three"}


def test_reset_throws_away_what_is_staged_and_keeps_what_is_committed(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    repo.upload("main", "b", b"2")
    repo.delete("main", "a")
    repo.reset("main")
    assert paths(repo, "main") == ["a"]


def test_reset_of_a_path_or_prefix_takes_just_that_back(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    for path in ("a", "p/1", "p/2", "q"):
        repo.upload("main", path, b"new")
    repo.reset("main", path="a")
    assert repo.read("main", "a") == b"1"
    repo.reset("main", prefix="p/")
    assert paths(repo, "main") == ["a", "q"]


def test_diff_says_what_is_staged_and_what_two_refs_differ_in(repo: Repository) -> None:
    for path in ("a", "b", "c"):
        repo.upload("main", path, b"1")
    repo.commit("main", "abc")
    repo.upload("main", "b", b"2")
    repo.delete("main", "c")
    repo.upload("main", "d", b"4")
    expected = [("b", "changed"), ("c", "removed"), ("d", "added")]
    assert [(change.path, change.kind.value) for change in repo.diff("main")] == expected
    repo.commit("main", "more")
    assert [(change.path, change.kind.value) for change in repo.diff("main~1", to="main")] == expected


def test_merge_brings_what_changed_on_one_side(repo: Repository) -> None:
    repo.upload("main", "base", b"")
    repo.commit("main", "base")
    repo.create_branch("feature", source="main")
    repo.upload("feature", "f", b"f")
    repo.commit("feature", "f")
    repo.upload("main", "m", b"m")
    repo.commit("main", "m")
    merged = repo.merge("feature", into="main").id
    assert paths(repo, "main") == ["base", "f", "m"]
    assert len(repo.get_commit(merged).parents) == 2
    with pytest.raises(NothingToCommit):
        repo.merge("feature", into="main")


def test_merge_reports_conflicts_or_decides_them_as_told(repo: Repository) -> None:
    repo.create_branch("feature", source="main")
    for branch in ("main", "feature"):
        repo.upload(branch, "same", branch.encode())
        repo.commit(branch, branch)
    with pytest.raises(MergeConflict) as caught:
        repo.merge("feature", into="main")
    assert caught.value.paths == ("same",)
    assert str(caught.value).startswith("1 path was changed on both sides, 'same';")
    repo.merge("feature", into="main", strategy="source-wins")
    assert repo.read("main", "same") == b"feature"


def test_merge_wants_a_branch_without_uncommitted_changes(repo: Repository) -> None:
    repo.create_branch("feature", source="main")
    repo.upload("feature", "f", b"")
    repo.commit("feature", "f")
    repo.upload("main", "staged", b"")
    with pytest.raises(DirtyBranch):
        repo.merge("feature", into="main")
    assert paths(repo, "main") == ["staged"]
    repo.reset("main", path="staged")


def test_revert_undoes_a_commit_and_cherry_pick_does_it_again(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    repo.upload("main", "b", b"2")
    commit = repo.commit("main", "b").id
    repo.revert(commit, on="main")
    assert paths(repo, "main") == ["a"]
    repo.cherry_pick(commit, onto="main")
    assert paths(repo, "main") == ["a", "b"]
    assert repo.read("main", "b") == b"2"


def test_a_deleted_branch_is_gone_and_its_name_is_free(repo: Repository) -> None:
    repo.create_branch("feature", source="main")
    repo.upload("feature", "f", b"")
    repo.delete_branch("feature")
    with pytest.raises(BranchNotFound):
        repo.upload("feature", "g", b"")
    repo.create_branch("feature", source="main")
    assert paths(repo, "feature") == []


def test_names_are_taken_once_and_the_default_branch_stays(repo: Repository) -> None:
    with pytest.raises(AlreadyExists):
        repo.create_branch("main", source="main")
    with pytest.raises(Conflict):
        repo.delete_branch("main")
    repo.create_tag("v1", ref="main")
    with pytest.raises(AlreadyExists, match="a tag is named 'v1'"):
        repo.create_branch("v1", source="main")
    with pytest.raises(AlreadyExists, match="a branch is named 'main'"):
        repo.create_tag("main", ref="v1")
    assert [each.name for each in repo.branches()] == ["main"]
    assert [each.name for each in repo.tags()] == ["v1"]


def test_a_copy_has_its_own_name_for_the_same_data(repo: Repository) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.create_branch("feature", source="main")
    assert repo.copy("main", "a", to_branch="feature", to_path="b").address == entry.address
    repo.delete("main", "a")
    assert repo.read("feature", "b") == b"1"


def test_an_object_is_not_copied_or_moved_onto_itself(repo: Repository) -> None:
    """It would undo what somebody else writes there meanwhile. What was there in a commit may come back."""
    repo.upload("main", "a", b"1")
    first = repo.commit("main", "c").id
    repo.upload("main", "a", b"2")
    for call in (lambda: repo.copy("main", "a", to_branch="main"), lambda: repo.move("main", "a", to_path="a")):
        with pytest.raises(InvalidPath, match="onto itself; give another destination"):
            call()
    assert repo.read("main", "a") == b"2"
    repo.copy(first, "a", to_branch="main")
    assert repo.read("main", "a") == b"1"


def test_a_move_leaves_one_name(repo: Repository) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.move("main", "a", to_path="b")
    assert paths(repo, "main") == ["b"]
    assert repo.stat("main", "b").address == entry.address
    with pytest.raises(ObjectNotFound):
        repo.move("main", "a", to_path="c")
