"""Handles: a branch, a tag or another ref, with the repository's methods and without the name in each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import refstore
from refstore.errors import BranchNotFound, Invalid, InvalidName, NothingToCommit, TagNotFound
from refstore.handles import Branch, Ref, Tag
from refstore.lake import Lake
from refstore.operations.copy import Copy
from refstore.operations.move import Move
from refstore.operations.restore import RestoreRequest
from refstore.operations.upload import Link, Stage, Upload
from refstore.records.repository_records import ImportSource
from refstore.repository import Repository

RENAMED = {"list_trash": "trash", "merge": "merge_from"}
NOT_OF_A_REF = {
    "address", "branch", "branches", "create_branch", "create_tag", "get_branch", "get_tag", "marks", "ref",
    "delete_retention", "onboard_purge", "purge_document", "retention", "review_retention", "set_gc_rules",
    "set_retention", "tag", "tags", "unmark", "why",
}  # fmt: skip
"""What concerns the repository, or makes a ref."""
NOT_ON_A_HANDLE = {"resolve", "why_path"}
"""What explains: `refstore why`, and the API."""
OPTIONS_OF_WRITING = {"metadata", "content_type", "if_absent"}


def methods_of(cls: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


@pytest.fixture
def repo(lake: Lake) -> Repository:
    """A commit on `main` with the tag v1, a later one, and a branch at each."""
    repo = lake.create_repository("sales")
    repo.upload("main", "a", b"1")
    repo.commit("main", "first")
    repo.create_tag("v1", ref="main")
    repo.create_branch("dev", source="v1")
    repo.upload("main", "b", b"2")
    repo.commit("main", "second")
    return repo


class TestEveryMethod:
    def test_a_branch_has_every_method_that_names_a_ref(self) -> None:
        of_repository = methods_of(Repository).keys() - NOT_OF_A_REF - NOT_ON_A_HANDLE
        of_handles = methods_of(Branch).keys() | methods_of(Tag).keys()
        assert of_handles == {RENAMED.get(name, name) for name in of_repository}

    @pytest.mark.parametrize("cls", [Ref, Branch, Tag])
    def test_it_takes_what_the_repositorys_does_but_the_name(self, cls: type) -> None:
        names = {handle: of_repository for of_repository, handle in RENAMED.items()}
        for name, method in methods_of(cls).items():
            theirs = dict(inspect.signature(methods_of(Repository)[names.get(name, name)]).parameters)
            own = dict(inspect.signature(method).parameters)
            assert own.keys() <= theirs.keys(), name
            only_written = OPTIONS_OF_WRITING if name == "open" and cls is not Branch else set[str]()
            assert len(theirs.keys() - own.keys() - only_written) == 1, name
            for each in own.keys() - ({"self", "to"} if name == "diff" else {"self"}):
                assert (own[each].default, own[each].kind) == (theirs[each].default, theirs[each].kind), (name, each)


class TestRef:
    def test_it_reads_what_the_name_reads(self, repo: Repository) -> None:
        ref = repo.ref("main~1")
        assert (ref.read("a"), b"".join(ref.get("a", start=0, end=1))) == (b"1", b"1")
        assert ref.stat("a") == repo.stat("v1", "a")
        assert ref.stat_many(["a", "b"]) == {"a": ref.stat("a")}
        assert [item.path for item in ref.list()] == [item.path for item in ref.list_page().results] == ["a"]
        assert ref.get_commit() == repo.get_commit("v1")
        assert [line.id for line in ref.log()] == [line.commit.id for line in ref.history()] != []
        assert ref.merge_base(other="main") == repo.get_commit("v1").id

    def test_a_second_ref_may_be_a_handle(self, repo: Repository) -> None:
        ref, main = repo.ref("v1"), repo.branch("main")
        assert [change.path for change in ref.diff(to=main)] == ["b"]
        assert ref.merge_base(other=main) == repo.get_commit("v1").id
        ref.copy("a", to_branch=main, to_path="c")
        ref.copy_many([Copy("a", "d")], to_branch=main)
        assert [change.path for change in main.diff()] == ["c", "d"]
        main.move("c", to_branch=repo.branch("dev"))
        main.move_many([Move("d", "d")], to_branch=repo.branch("dev"))
        assert [change.path for change in repo.branch("dev").diff()] == ["c", "d"]

    def test_it_says_what_it_is(self, repo: Repository) -> None:
        assert [repr(each) for each in (repo.ref("v1"), repo.branch("main"), repo.tag("v1"))] == [
            "Ref('v1', repository='sales')",
            "Branch('main', repository='sales')",
            "Tag('v1', repository='sales')",
        ]
        assert f"{repo.branch('main')}" == "main"
        assert {repo.branch("main"), *repo.branches()} == {repo.branch("main"), repo.branch("dev")}
        assert repo.ref("main") != repo.branch("main")


class TestBranch:
    def test_it_writes_to_its_branch(self, repo: Repository) -> None:
        main = repo.branch("main")
        main.upload("u", b"1", content_type="text/plain")
        main.upload_many([Upload("um", b"1")])
        assert len(list(main.upload_each([Upload("ue", b"1")]))) == 1
        main.stage("s", "s3://other/x", size_bytes=1)
        main.stage_many([Stage("sm", "s3://other/y", 1)])
        issued = [main.issue("l"), *main.issue_many(["lm", "le"])]
        for each in issued:
            repo.context.objects.put(each.address, b"1")
        main.link("l", issued[0].token)
        main.link_many([Link("lm", issued[1].token)])
        assert len(list(main.link_each([Link("le", issued[2].token)]))) == 1
        main.move("u", to_path="v")
        main.change_metadata("v", lambda entry: entry)
        assert [change.path for change in main.diff()] == ["l", "le", "lm", "s", "sm", "ue", "um", "v"]
        main.delete_if_entry("v", main.stat("v"))
        main.delete("um")
        main.delete_many(["ue", "le"])
        assert main.delete_prefix("l") == 2
        main.reset(path="sm")
        assert [change.path for change in main.diff()] == ["s"]

    def test_it_takes_back_what_it_lost(self, repo: Repository) -> None:
        main, dev = repo.branch("main"), repo.branch("dev")
        for path in "xyz":
            dev.upload(path, b"1")
        dev.reset()
        lost: dict[str, str] = {item.path: item.address for item in dev.trash()}
        assert ([*main.trash()], sorted(lost)) == ([], ["x", "y", "z"])
        assert dev.restore(lost["x"]).path == "x"
        assert [result.path for result in dev.restore_each([RestoreRequest(lost["y"])])] == ["y"]
        assert [result.path for result in dev.restore_many(to=main)] == ["z"]
        assert ([change.path for change in dev.diff()], main.read("z")) == (["x", "y"], b"1")

    def test_its_head_follows_commits_and_merges(self, repo: Repository) -> None:
        main, dev = repo.branch("main"), repo.branch("dev")
        before = main.head
        dev.upload("c", b"3")
        new = dev.commit("third", metadata={"job": "7"})
        merged = main.merge_from(dev, message="merged")
        assert (dev.head, main.head) == (new.id, merged.id)
        assert merged.parents == (before, new.id)
        assert main.revert(main, parent=1).id == main.head
        main.cherry_pick(repo.ref(new.id))
        assert main.read("c") == b"3"

    def test_an_import_says_what_the_repositorys_says(self, repo: Repository) -> None:
        with pytest.raises(Invalid, match="cannot be read from here"):
            repo.branch("main").import_objects([ImportSource("memory://other/", "in/")], "imported")

    def test_it_is_deleted(self, repo: Repository) -> None:
        dev = repo.branch("dev")
        dev.delete_branch()
        for call in (lambda: dev.head, lambda: dev.upload("a", b""), lambda: repo.get_branch("dev")):
            with pytest.raises(BranchNotFound, match="dev"):
                call()


class TestListings:
    def test_branches_carry_what_the_listing_read(self, repo: Repository) -> None:
        repo.create_branch("secret", source="main", hidden=True)
        dev, main, secret = repo.branches()
        assert [each.name for each in (dev, main, secret)] == ["dev", "main", "secret"]
        assert (dev.head, main.head) == (repo.get_commit("dev").id, repo.get_commit("main").id)
        assert (main.is_hidden, secret.is_hidden) == (False, True)
        dev.upload("c", b"3")
        new = dev.commit("third")
        assert (dev.head != new.id, repo.get_branch("dev").head, repo.branch("dev").head) == (True, new.id, new.id)

    def test_tags_carry_what_the_listing_read(self, repo: Repository) -> None:
        (tag,) = repo.tags()
        assert (tag.name, tag.commit_id, tag.read("a")) == ("v1", repo.get_commit("v1").id, b"1")
        assert repo.tag("v1").commit_id == repo.get_tag("v1").commit_id == tag.commit_id
        tag.delete_tag()
        with pytest.raises(TagNotFound):
            _ = repo.tag("v1").commit_id

    def test_when_it_was_created_is_a_time_in_utc(self, repo: Repository) -> None:
        now = datetime.fromtimestamp(repo.context.clock.now_ms() / 1000, UTC)
        (tag,) = repo.tags()
        for each in (tag, repo.tag("v1"), repo.branch("main"), *repo.branches()):
            assert each.created.tzinfo is UTC
            assert each.created <= now

    def test_making_a_handle_reads_nothing_and_checks_the_name(self, repo: Repository) -> None:
        assert repo.branch("nothing").name == "nothing"
        for call in (lambda: repo.branch("a b"), lambda: repo.tag("")):
            with pytest.raises(InvalidName):
                call()
        with pytest.raises(BranchNotFound, match="did you mean 'main'"):
            repo.branch("mian").commit("x")


def test_the_names_are_exported(repo: Repository) -> None:
    assert (refstore.Ref, refstore.Branch, refstore.Tag) == (Ref, Branch, Tag)
    assert isinstance(repo.branch("main"), Ref)
    with pytest.raises(NothingToCommit):
        repo.branch("main").commit("nothing")


def test_handles_of_one_name_are_equal_wherever_they_were_made(lake: Lake, repo: Repository) -> None:
    again = lake.repository("sales")
    assert repo.branch("main") == again.branch("main")
    assert len({repo.branch("main"), again.branch("main"), again.branch("dev"), again.tag("v1"), again.ref("v1")}) == 4
    other = lake.create_repository("other")
    assert repo.branch("main") != other.branch("main")


def test_a_handle_of_another_repository_is_refused(lake: Lake, repo: Repository) -> None:
    other = lake.create_repository("other")
    with pytest.raises(Invalid, match="is of another repository than 'sales'"):
        repo.ref("main").copy("a", to_branch=other.branch("main"), to_path="copied")
    with pytest.raises(Invalid, match="is of another repository than 'other'"):
        other.branch("main").merge_from(repo.branch("dev"))
    assert repo.stat_many("main", ["copied"]) == {}
    assert repo.branch("main").copy("a", to_branch=lake.repository("sales").branch("dev")).path == "a"
