"""After a purge entries are compared by the content that their readers get now, not by what was uploaded once: a file
with the purged rows that is uploaded again is a change, which every diff shows and a commit keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from refstore.core.ids import Address
from refstore.errors import MergeConflict, NothingToCommit
from refstore.lake import Lake
from refstore.operations import log_and_diff
from refstore.operations.content_comparison import ContentComparison
from refstore.public_types import stored_commit, stored_entry
from refstore.records.location_records import Content
from refstore.repository import Repository
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.tree_rewrite import SAMPLES_MAX
from refstore.versioning.locations import WrittenContent
from tests.kit.clock import FakeClock
from tests.kit.counting_kv import CountingKV
from tests.purging import announce, content_of, intend, rewrite
from tests.reaping import reap_all

WHOLE = b"all the rows"
PURGED = b"fewer rows"


@pytest.fixture
def repo() -> Iterator[Repository]:
    with Lake(CountingKV(), "memory://uploaded-after-purge", clock=FakeClock()) as lake:
        made = lake.create_repository("lake")
        upload(made, WHOLE)
        made.upload("main", "other", b"two")
        made.commit("main", "first")
        yield made
        lake.delete_repository("lake")


def upload(repo: Repository, body: bytes, branch: str = "main", path: str = "a") -> None:
    repo.upload(branch, path, body, metadata={"k": "v"}, content_type="text/plain")


def diff(repo: Repository, left: str = "main", right: str | None = None) -> list[str]:
    return [change.path for change in repo.diff(left, to=right)]


def erase(repo: Repository) -> None:
    announce(repo)
    intended = intend(repo, "main", "a")
    assert intended is not None
    erased = Content(Address(""), 0, "", run="run-1")
    assert repo.context.locations.publish([WrittenContent(intended, erased)], "run-1") != [None]


def test_the_original_that_is_uploaded_again_is_shown_and_committed(repo: Repository) -> None:
    first = repo.get_branch("main").head
    rewrite(repo, "main", "a", PURGED)
    upload(repo, WHOLE)
    assert repo.read("main", "a") == WHOLE
    assert diff(repo) == ["a"]
    second = repo.commit("main", "the rows are back").id
    for _ in range(2):
        reap_all(repo)
        repo.context.clock.sleep(repo.context.grace_seconds + 1)
    assert repo.read("main", "a") == WHOLE
    assert repo.read(first, "a") == PURGED
    assert diff(repo, first, second) == ["a"]
    assert log_and_diff.has_changed_paths(repo.context, stored_commit(repo.get_commit(second)), PathFilter(["a"], []))


def test_what_the_purge_left_that_is_uploaded_again_is_no_change(repo: Repository) -> None:
    rewrite(repo, "main", "a", PURGED)
    upload(repo, PURGED)
    assert diff(repo) == []
    with pytest.raises(NothingToCommit):
        repo.commit("main", "nothing")
    assert repo.read("main", "a") == PURGED


def test_the_original_is_no_change_once_its_content_is_restored(repo: Repository) -> None:
    identity = repo.resolve("main", "a").entry.address
    rewrite(repo, "main", "a", PURGED)
    upload(repo, WHOLE)
    assert diff(repo) == ["a"]
    repo.context.locations.restore(identity, identity, "restore")
    assert diff(repo) == []


def test_two_uploads_of_which_one_is_purged_differ_until_both_are(repo: Repository) -> None:
    first = repo.get_branch("main").head
    upload(repo, WHOLE)
    second = repo.commit("main", "again", allow_empty=True).id
    assert diff(repo, first, second) == []
    rewrite(repo, first, "a", PURGED)
    assert diff(repo, first, second) == diff(repo, second, first) == ["a"]
    rewrite(repo, second, "a", PURGED)
    assert diff(repo, first, second) == []


def test_an_upload_over_an_erased_object_is_a_change(repo: Repository) -> None:
    erase(repo)
    upload(repo, WHOLE)
    assert diff(repo) == ["a"]
    repo.commit("main", "back")
    assert repo.read("main", "a") == WHOLE


def test_what_is_being_deleted_is_equal_to_nothing_else(repo: Repository) -> None:
    identity = repo.resolve("main", "a").entry.address
    rewrite(repo, "main", "a", PURGED)
    upload(repo, WHOLE)
    repo.context.locations.begin_deletion([identity])
    assert diff(repo) == ["a"]


def test_an_identity_is_equal_to_itself_whenever_it_was_put(repo: Repository) -> None:
    (issued,) = repo.issue_many("main", ["linked"])
    repo.context.objects.put(issued.address, WHOLE)
    entry = repo.link("main", "linked", issued.token, checksum="says the writer")
    repo.commit("main", "linked")
    repo.context.clock.sleep(5)
    repo.copy("main@", "linked", to_branch="main", to_path="linked")
    assert repo.resolve("main", "linked").entry.modified != entry.modified
    assert diff(repo) == []
    with pytest.raises(NothingToCommit):
        repo.commit("main", "a copy of itself")


def test_a_merge_brings_the_original_back(repo: Repository) -> None:
    repo.create_branch("dev", source="main")
    rewrite(repo, "main", "a", PURGED)
    upload(repo, WHOLE, "dev")
    repo.commit("dev", "the rows are back")
    repo.merge("dev", into="main")
    assert repo.read("main", "a") == WHOLE
    repo.revert("main", on="main", parent=1)
    assert repo.read("main", "a") == PURGED


def test_a_merge_does_not_replace_what_ours_uploaded_again(repo: Repository) -> None:
    """Ours has the checksum of the base, and yet is a change: the base was purged."""
    repo.create_branch("dev", source="main")
    upload(repo, b"new rows", "dev")
    repo.commit("dev", "new rows")
    rewrite(repo, "main", "a", PURGED)
    upload(repo, WHOLE)
    repo.commit("main", "the rows are back")
    with pytest.raises(MergeConflict):
        repo.merge("dev", into="main")
    assert repo.read("main", "a") == WHOLE


def test_both_sides_with_one_content_do_not_conflict_after_it_was_purged_on_both(repo: Repository) -> None:
    repo.create_branch("dev", source="main")
    for branch in ("main", "dev"):
        upload(repo, b"same", branch, "new")
        repo.commit(branch, "new")
    rewrite(repo, "main", "new", PURGED)
    with pytest.raises(MergeConflict):
        repo.merge("dev", into="main")
    rewrite(repo, "dev", "new", PURGED)
    repo.merge("dev", into="main")
    assert repo.read("main", "new") == PURGED


def test_what_is_purged_between_the_two_looks_of_a_merge_is_not_dropped(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look finds ours equal to the base, the second one does not: a conflict, and theirs is not left out."""
    repo.create_branch("dev", source="main")
    upload(repo, b"new rows", "dev")
    repo.commit("dev", "new rows")
    upload(repo, WHOLE)
    repo.commit("main", "again", allow_empty=True)
    announce(repo)
    equal, looks = ContentComparison.are_equal, list[int]()

    def then_purged(comparison: ContentComparison, pairs: Sequence[tuple[object, object]]) -> list[bool]:
        looks.append(len(pairs))
        if len(looks) == 3:  # each look compares with theirs, then with the base
            rewrite(repo, "main~1", "a", PURGED)
        return equal(comparison, pairs)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(ContentComparison, "are_equal", then_purged)
    with pytest.raises(MergeConflict):
        repo.merge("dev", into="main", squash=True)
    assert repo.read("main", "a") == WHOLE


@pytest.mark.parametrize("at", [0, SAMPLES_MAX - 1, SAMPLES_MAX, SAMPLES_MAX + 49])
def test_one_purged_object_among_many_uploads_is_committed(repo: Repository, at: int) -> None:
    paths = [f"p{number:04d}" for number in range(SAMPLES_MAX + 50)]
    for _ in range(2):
        for path in paths:
            repo.upload("main", path, path.encode())
        repo.commit("main", "uploaded", allow_empty=True)
    for path in paths:
        repo.upload("main", path, path.encode())
    rewrite(repo, "main@", paths[at], PURGED)
    assert diff(repo) == [paths[at]]
    repo.commit("main", "one of them is back")
    assert repo.read("main", paths[at]) == paths[at].encode()


def test_many_uploads_of_what_is_there_are_nothing_to_commit(repo: Repository) -> None:
    paths = [f"p{number:04d}" for number in range(SAMPLES_MAX + 50)]
    for path in paths:
        repo.upload("main", path, path.encode())
    repo.commit("main", "uploaded")
    for path in paths:
        repo.upload("main", path, path.encode())
    with pytest.raises(NothingToCommit):
        repo.commit("main", "again")


def test_stat_answers_the_checksums_and_the_time_of_what_the_purge_wrote(repo: Repository) -> None:
    before = stored_entry(repo.stat("main", "a"))
    upload(repo, PURGED, path="same")
    same = stored_entry(repo.stat("main", "same"))
    repo.context.clock.sleep(5)
    published = rewrite(repo, "main", "a", PURGED)
    shown = stored_entry(repo.stat("main", "a"))
    assert (shown.address, shown.size_bytes) == (content_of(published), len(PURGED))
    assert (shown.checksum, shown.md5) == (same.checksum, same.md5)
    assert shown.md5
    assert shown.mtime_ms == repo.context.clock.now_ms() > before.mtime_ms


def test_comparing_costs_one_call_and_with_a_purge_two_however_many_there_are(repo: Repository) -> None:
    kv = repo.context.kv
    assert isinstance(kv, CountingKV)
    first = repo.get_branch("main").head
    paths = [f"p{number:04d}" for number in range(200)]
    commits: list[str] = []
    for body in (b"one", b"two"):
        for path in paths:
            repo.upload("main", path, body)
        commits.append(repo.commit("main", body.decode()).id)
    trees = [stored_commit(repo.get_commit(commit)).metarange for commit in (first, *commits)]
    changes = list(repo.context.trees.diff(trees[1], trees[2]))
    assert len(changes) == len(paths)

    def calls(pairs: list[tuple[object, object]]) -> int:
        before = kv.calls
        ContentComparison(repo.context).are_equal(pairs)  # type: ignore[arg-type]  # passed on
        return kv.calls - before

    pairs = [(change.left, change.right) for change in changes]
    added = [(None, change.right) for change in changes]
    itself = [(change.left, change.left) for change in changes]
    assert [calls(each) for each in (pairs, added, itself)] == [1, 0, 0]
    before = kv.calls
    assert len(list(ContentComparison(repo.context).drop_equal(iter(changes)))) == len(paths)
    assert kv.calls - before == 1
    announce(repo)
    assert [calls(each) for each in (pairs, added, itself)] == [2, 0, 0]
