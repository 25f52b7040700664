"""A file that is uploaded again as it was is no change, as with lakeFS; what only a client says to be the same is
one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore.core.clock import to_datetime
from refstore.errors import MergeConflict, NothingToCommit
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.public_types import Entry
from refstore.repository import Repository
from tests.kit.clock import FakeClock
from tests.reaping import reap_all, release_all


@pytest.fixture
def repo() -> Iterator[Repository]:
    with Lake(MemoryKV(), "memory://uploaded-again", clock=FakeClock()) as lake:
        made = lake.create_repository("lake")
        made.upload("main", "a", b"one", metadata={"k": "v"}, content_type="text/plain")
        made.upload("main", "b", b"two")
        made.commit("main", "first")
        yield made
        lake.delete_repository("lake")


def again(repo: Repository, branch: str = "main") -> Entry:
    return repo.upload(branch, "a", b"one", metadata={"k": "v"}, content_type="text/plain", modified=to_datetime(5))


def test_it_is_no_change_and_nothing_to_commit(repo: Repository) -> None:
    head, committed = repo.get_branch("main").head, repo.stat("main", "a")
    new = again(repo)
    assert list(repo.diff("main")) == []
    with pytest.raises(NothingToCommit):
        repo.commit("main", "second")
    assert (repo.get_branch("main").head, repo.stat("main", "a")) == (head, committed)
    assert new.address != committed.address


def test_with_another_change_it_is_committed_and_shown_by_no_diff(repo: Repository) -> None:
    first, old = repo.get_branch("main").head, repo.stat("main", "a")
    new = again(repo)
    repo.upload("main", "c", b"three")
    assert [change.path for change in repo.diff("main")] == ["c"]
    second = repo.commit("main", "second").id
    assert repo.stat(second, "a").address == new.address, "the new blob is named, or it would be an orphan"
    assert repo.stat(first, "a").address == old.address
    assert [change.path for change in repo.diff(first, to=second)] == ["c"]


def test_an_empty_commit_that_is_asked_for_names_the_new_blob(repo: Repository) -> None:
    new = again(repo)
    commit = repo.commit("main", "second", allow_empty=True).id
    assert repo.stat(commit, "a").address == new.address


@pytest.mark.parametrize(
    "upload",
    [
        {"body": b"One", "metadata": {"k": "v"}, "content_type": "text/plain"},
        {"body": b"one", "metadata": {"k": "w"}, "content_type": "text/plain"},
        {"body": b"one", "metadata": {"k": "v"}, "content_type": "text/html"},
    ],
)
def test_other_bytes_metadata_or_type_are_a_change(repo: Repository, upload: dict[str, object]) -> None:
    repo.upload("main", "a", **upload)
    assert [change.path for change in repo.diff("main")] == ["a"]
    assert repo.commit("main", "second")


def test_a_linkers_checksum_proves_nothing(repo: Repository) -> None:
    """It may have written other bytes of the same length."""
    committed = repo.stat("main", "b")
    (given,) = repo.issue_many("main", ["b"])
    repo.context.objects.put(given.address, b"owt")
    repo.link("main", "b", given.token, checksum=committed.checksum)
    assert [change.path for change in repo.diff("main")] == ["b"]
    repo.commit("main", "second")
    assert repo.read("main", "b") == b"owt"


def test_the_same_file_on_two_branches_is_no_conflict(repo: Repository) -> None:
    repo.create_branch("dev", source="main")
    for branch in ("main", "dev"):
        repo.upload(branch, "new", b"same")
        repo.commit(branch, f"on {branch}")
    repo.upload("dev", "more", b"x")
    repo.commit("dev", "more")
    ours = repo.stat("main", "new")
    repo.merge("dev", into="main")
    assert repo.stat("main", "new") == ours
    assert repo.read("main", "more") == b"x"
    for branch, body in (("main", b"mine"), ("dev", b"theirs")):
        repo.upload(branch, "new", body)
        repo.commit(branch, f"differs on {branch}")
    with pytest.raises(MergeConflict):
        repo.merge("dev", into="main")


def test_what_is_given_up_goes_after_its_grace_and_what_is_named_stays(repo: Repository) -> None:
    reap_all(repo)
    named = {repo.stat("main", path).address for path in "ab"}
    new = again(repo)
    with pytest.raises(NothingToCommit):
        repo.commit("main", "second")
    release_all(repo)
    assert [item.address for item in repo.list_trash()] == [new.address]
    repo.context.clock.sleep(repo.context.grace_seconds + 1)
    assert reap_all(repo) == 1
    assert {info.key for info in repo.context.objects.list("data/")} == named


def test_what_was_committed_beside_another_change_is_never_reaped(repo: Repository) -> None:
    first, old, new = repo.get_branch("main").head, repo.stat("main", "a").address, again(repo).address
    repo.upload("main", "c", b"three")
    repo.commit("main", "second")
    for _ in range(2):
        reap_all(repo)
        repo.context.clock.sleep(repo.context.grace_seconds + 1)
    assert {old, new} <= {info.key for info in repo.context.objects.list("data/")}
    assert repo.read("main", "a") == repo.read(first, "a") == b"one"
