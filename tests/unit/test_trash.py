"""What can be taken back is listed at once, whether the reaper has passed or not, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import BranchName
from refstore.errors import Invalid
from refstore.operations.upload import Upload
from refstore.public_types import TrashItem
from refstore.repository import Repository
from tests.interrupted import seal
from tests.kit.clock import FakeClock
from tests.reaping import delete_due, release_all


def shown(found: Iterator[TrashItem]) -> list[tuple[str, str, str]]:
    return [(item.branch, item.path, item.cause) for item in found]


def test_what_a_reset_lost_is_listed_at_once(repo: Repository, clock: FakeClock) -> None:
    entry = repo.upload("main", "a", b"1", metadata={"k": "v"})
    repo.reset("main")
    (item,) = repo.list_trash()
    assert (item.address, item.path, item.cause, item.since, item.entry) == (
        entry.address,
        "a",
        "reset",
        to_datetime(clock.now_ms()),
        entry,
    )
    assert item.deletes_at is None, "its window has not begun"
    release_all(repo)
    (item,) = repo.list_trash()
    assert item.deletes_at == to_datetime(clock.now_ms()) + timedelta(seconds=repo.context.grace_seconds)


def test_a_deleted_branchs_objects_are_listed_before_its_tokens_are_published(repo: Repository) -> None:
    repo.create_branch("try", source="main")
    repo.upload("try", "a", b"1")
    ctx = repo.context
    branches = ctx.branches
    branches.close(
        BranchName("try"), branches.read_open(BranchName("try")), "branch-deleted"
    )  # and its process died here
    assert shown(repo.list_trash()) == [("try", "a", "branch-deleted")]
    release_all(repo)
    assert shown(repo.list_trash()) == [("try", "a", "branch-deleted")]


def test_of_an_overwritten_sealed_token_both_versions_are_listed(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    seal(repo)
    repo.upload("main", "a", b"2")
    repo.reset("main")
    assert shown(repo.list_trash()) == [("main", "a", "reset")] * 2
    release_all(repo)
    assert shown(repo.list_trash()) == [("main", "a", "reset")] * 2


def test_what_has_another_name_is_not_listed(repo: Repository) -> None:
    repo.create_branch("try", source="main")
    repo.upload("main", "a", b"1")
    repo.copy("main", "a", to_branch="try", to_path="b")
    repo.reset("main")
    assert shown(repo.list_trash()) == []
    repo.reset("try")
    assert shown(repo.list_trash()) == [("main", "a", "reset"), ("try", "b", "reset")]


def test_what_is_committed_is_not_listed(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.create_branch("try", source="main")
    repo.copy("main", "a", to_branch="try", to_path="b")
    repo.commit("main", "a")
    repo.reset("try")
    assert shown(repo.list_trash()) == []


def test_what_cannot_be_restored_any_more_is_not_listed(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "a", b"1")
    repo.reset("main")
    release_all(repo)
    clock.advance(10**6)
    delete_due(repo)
    assert shown(repo.list_trash()) == []


def test_deletions_and_names_from_outside_are_not_listed(repo: Repository) -> None:
    repo.stage("main", "outside", "s3://elsewhere/key", size_bytes=1)
    repo.delete("main", "gone")
    repo.reset("main")
    assert shown(repo.list_trash()) == []


def test_by_branch_and_prefix(repo: Repository) -> None:
    repo.create_branch("try", source="main")
    for branch in ("main", "try"):
        repo.upload_many(branch, [Upload(path=path, body=b"1") for path in ("a/1", "a/2", "b")])
        repo.reset(branch)
    assert shown(repo.list_trash(branch="try", prefix="a/")) == [("try", "a/1", "reset"), ("try", "a/2", "reset")]
    assert [item.branch for item in repo.list_trash(prefix="b")] == ["main", "try"]


@pytest.mark.parametrize("released", [0, 1, 2])
def test_pages_go_on_where_the_last_one_ended(repo: Repository, released: int) -> None:
    """Of two branches, none, one, or both of which the reaper has been through."""
    repo.create_branch("team/x", source="main")
    for number, branch in enumerate(("team/x", "main")):
        repo.upload_many(branch, [Upload(path=f"a/{number:03}", body=b"1") for number in range(40)])
        repo.reset(branch)
        if number < released:
            release_all(repo)
    whole = list(repo.list_trash())
    paged: list[TrashItem] = []
    while page := list(islice(repo.list_trash(after=paged[-1].cursor if paged else ""), 7)):
        paged += page
    assert paged == whole
    assert len({(item.branch, item.path) for item in whole}) == 80


def test_what_the_reaper_passes_between_two_pages_is_not_missed(repo: Repository) -> None:
    repo.upload_many("main", [Upload(path=f"{number:03}", body=b"1") for number in range(40)])
    repo.reset("main")
    first = list(islice(repo.list_trash(), 20))
    release_all(repo)
    rest = list(repo.list_trash(after=first[-1].cursor))
    assert {item.path for item in [*first, *rest]} == {f"{number:03}" for number in range(40)}


@pytest.mark.parametrize(
    "cursor", ["x", "released/nothing", "due/zz/1", "due/40/", "due/-1/x", "data/2026112107/x", "\0"]
)
def test_a_cursor_that_is_none_is_refused(repo: Repository, cursor: str) -> None:
    with pytest.raises(Invalid, match="listing of the trash"):
        list(repo.list_trash(after=cursor))


def test_a_token_that_never_was_current_does_no_harm(repo: Repository) -> None:
    ctx = repo.context
    ctx.staging.new_token(BranchName("main"), ctx.ids, ctx.clock)
    assert shown(repo.list_trash()) == []
