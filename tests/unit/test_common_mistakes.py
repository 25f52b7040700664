"""What applications get wrong in their first hour: each is answered by an error of refstore, which says what to do, and
nothing is written.
"""

from __future__ import annotations

import array
import io
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refstore
from refstore import Copy, Link, Move, Stage, Upload, errors
from refstore.errors import BranchNotFound, Invalid, LakeClosed, NotFound, RefstoreError, TagNotFound
from refstore.operations.restore import RestoreRequest

Call = Callable[[Any], object]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[refstore.Lake]:
    with refstore.create(tmp_path / "lake") as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "a", b"1")
        repo.commit("main", "first")
        repo.create_tag("v1.0", ref="main")
        yield lake


@pytest.fixture
def repo(lake: refstore.Lake) -> refstore.Repository:
    return lake.repository("sales")


BODIES: dict[str, tuple[Any, str]] = {
    "text": ("a,b", "is a text.*encode"),
    "none": (None, "of type NoneType"),
    "number": (5, "of type int"),
    "texts": (["a", "b"], "chunk of type str"),
    "numbers": ([5, 6], "chunk of type int"),
    "mapping": ({"a": 1}, "chunk of type str"),
    "text file": (io.StringIO("a"), "mode 'rb'"),
    "no file": (Path("nowhere/x"), "nowhere/x.*No such file"),
    "folder": (Path(), "is a folder"),
}

CALLS: dict[str, tuple[Call, str]] = {
    "a path to restore": (lambda r: r.restore("a", to="main"), r"use repo\.stat or repo\.why_path"),
    "one name for several": (lambda r: r.set_retention("{}", remove="hold:contracts/"), r"remove.*give \[remove\]"),
    "a number in metadata": (lambda r: r.upload("main", "b", b"", metadata={"a": 1}), r"metadata\['a'\] is 1"),
    "a key of metadata": (lambda r: r.upload("main", "b", b"", metadata={1: "a"}), "the key 1"),
    "None in metadata": (lambda r: r.commit("main", "m", metadata={"a": None}, allow_empty=True), "NoneType"),
    "a list as metadata": (lambda r: r.upload_many("main", [Upload("b", b"", metadata=["a"])]), "a dict"),
    "a number as message": (lambda r: r.commit("main", 5, allow_empty=True), "message is 5"),
    "a text as date": (lambda r: r.commit("main", "m", date="now", allow_empty=True), "date is 'now'"),
    "a committer": (lambda r: r.commit("main", "m", committer=None, allow_empty=True), "committer"),
    "a fraction as time": (lambda r: r.upload("main", "b", b"", modified=1.5), "modified is 1.5"),
    "a text as size": (lambda r: r.stage("main", "b", "s3://x/y", size_bytes="5"), "size_bytes is '5'"),
    "a content type": (lambda r: r.upload_many("main", [Upload("b", b"", content_type=5)]), "content_type is 5"),
    "a hidden branch": (lambda r: r.create_branch("b", source="main", hidden="no"), "hidden is 'no'"),
    "a tuple to upload": (lambda r: r.upload_many("main", [("b", b"")]), r"tuple.*refstore.Upload\(path, body\)"),
    "a dict to upload": (lambda r: r.upload_many("main", {"b": b""}), r"refstore.Upload\(path, body\)"),
    "a single upload": (lambda r: r.upload_many("main", Upload("b", b"")), "give.*uploads.*"),
    "tuples, one by one": (lambda r: next(r.upload_each("main", [("b", b"")])), "refstore.Upload"),
    "a tuple to copy": (
        lambda r: r.copy_many("main", [("a", "b")], to_branch="main"),
        r"refstore.Copy\(source, destination\)",
    ),
    "a tuple to move": (lambda r: r.move_many("main", [("a", "b")]), "refstore.Copy"),
    "a tuple to link": (lambda r: r.link_many("main", [("a", "b")]), r"refstore.Link\(path, token\)"),
    "a tuple to stage": (lambda r: r.stage_many("main", [("a", "b")]), r"refstore.Stage\(path, url, size_bytes\)"),
    "a text to delete": (lambda r: r.delete_many("main", "a"), r"give \[paths\]"),
    "a text to issue": (lambda r: r.issue_many("main", "a"), r"give \[paths\]"),
    "a slash first": (lambda r: r.upload("main", "/b", b""), "'/b' begins with '/'.*write 'b'"),
    "a slash first, in a bulk": (lambda r: r.upload_many("main", [Upload("/b", b"")]), "write 'b'"),
    "a slash first, to read": (lambda r: r.read("main", "/a"), "write 'a'"),
    "a slash first, as prefix": (lambda r: list(r.list("main", prefix="/a/")), "write 'a'"),
    "a Path as path": (lambda r: r.upload("main", Path("b"), b""), r"path.as_posix\(\)"),
    "a Path as path, in a bulk": (lambda r: r.upload_many("main", [Upload(Path("b"), b"")]), "as_posix"),
    "bytes as path": (lambda r: r.delete("main", b"a"), r"path.decode\(\)"),
    "no branch": (lambda r: r.upload(None, "b", b""), "branch is of type NoneType"),
    "by keyword": (lambda r: r.upload(branch="main", path=3, body=b""), "path is 3"),
}


class TestMistakes:
    @pytest.mark.parametrize("name", BODIES)
    def test_a_body_that_is_none(self, repo: refstore.Repository, name: str) -> None:
        body, message = BODIES[name]
        for call in (
            lambda: repo.upload("main", "b", body),
            lambda: repo.upload_many("main", [Upload("b", b""), Upload("c", body)]),
        ):
            with pytest.raises(Invalid, match=message):
                call()
        assert list(repo.diff("main")) == []

    @pytest.mark.parametrize("name", CALLS)
    def test_a_wrong_argument(self, repo: refstore.Repository, name: str) -> None:
        call, message = CALLS[name]
        head = repo.get_branch("main").head
        with pytest.raises(Invalid, match=message):
            call(repo)
        assert list(repo.diff("main")) == []
        assert repo.get_branch("main").head == head
        assert [each.name for each in repo.branches()] == ["main"]

    def test_an_error_names_the_call_of_the_sdk_that_helps(self, repo: refstore.Repository) -> None:
        address = repo.stat("main", "a").address[:-9] + "000000000"  # long gone
        calls: list[tuple[Call, str]] = [
            (lambda r: r.restore(address, to="main"), r"ask repo\.why\(address\)"),
            (lambda r: next(r.restore_each([RestoreRequest(address)], to="main")).error, r"repo\.why"),
            (lambda r: r.delete_retention(), r"repo\.set_retention"),
            (lambda r: r.purge_document(), r"repo\.onboard_purge"),
        ]
        for call, named in calls:
            try:
                said = str(call(repo))
            except RefstoreError as error:
                said = str(error)
            assert re.search(named, said), said

    def test_metadata_of_a_repository(self, lake: refstore.Lake) -> None:
        wrong: Any = {"a": 1}
        for call in (
            lambda: lake.create_repository("other", metadata=wrong),
            lambda: lake.set_metadata("sales", put=wrong),
        ):
            with pytest.raises(Invalid, match="is 1"):
                call()
        assert [repo.name for repo in lake.repositories()] == ["sales"]


class TestBodies:
    def test_a_path_is_opened(self, repo: refstore.Repository, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"x" * 3_000_000)
        assert repo.upload("main", "b", tmp_path / "x").size_bytes == 3_000_000
        repo.upload_many("main", [Upload(f"{n}", tmp_path / "x") for n in range(9)])
        assert repo.read("main", "8") == b"x" * 3_000_000

    @pytest.mark.parametrize(
        "body",
        [
            bytearray(b"abcd"),
            memoryview(b"abcd"),
            memoryview(b"aXbXcXdX")[::2],
            array.array("B", b"abcd"),
            [b"ab", bytearray(b"cd")],
        ],
        ids=["bytearray", "memoryview", "stride", "array", "chunks"],
    )
    def test_a_buffer_is_its_bytes(self, repo: refstore.Repository, body: Any) -> None:
        repo.upload("main", "b", body)
        assert repo.read("main", "b") == b"abcd"

    def test_a_buffer_of_arrow(self, repo: refstore.Repository) -> None:
        import pyarrow as pa

        repo.upload("main", "b", pa.py_buffer(b"abcd"))
        assert repo.read("main", "b") == b"abcd"


def test_items_take_what_they_are_about_in_order() -> None:
    assert Upload("p", b"x") == Upload(path="p", body=b"x")
    assert Link("p", "t") == Link(path="p", token="t")
    assert Stage("p", "s3://b/k", size_bytes=1) == Stage(path="p", url="s3://b/k", size_bytes=1)
    assert (Copy("a", "b").destination, Move("a", "b").source) == ("b", "a")


class TestNames:
    @pytest.mark.parametrize(
        ("call", "kind", "message"),
        [
            (lambda r: r.upload("mian", "b", b""), BranchNotFound, "did you mean 'main'"),
            (lambda r: list(r.diff("mian")), BranchNotFound, "did you mean 'main'"),
            (lambda r: r.read("mian", "a"), NotFound, "did you mean 'main'"),
            (lambda r: list(r.list("mian")), NotFound, "did you mean 'main'"),
            (lambda r: list(r.history("mian")), NotFound, "did you mean 'main'"),
            (lambda r: r.merge("v1.1", into="main"), NotFound, "did you mean 'v1.0'"),
            (lambda r: r.get_tag("v1.1"), TagNotFound, "did you mean 'v1.0'"),
            (lambda r: r.commit("v1.0", "m"), BranchNotFound, "'v1.0' is a tag"),
            (lambda r: r.get_tag("main"), TagNotFound, "'main' is a branch"),
            (lambda r: r.get_branch("nothing-like-it"), BranchNotFound, "list the branches"),
        ],
    )
    def test_an_unknown_name_gets_a_suggestion(
        self, repo: refstore.Repository, call: Call, kind: type[RefstoreError], message: str
    ) -> None:
        with pytest.raises(kind, match=message) as raised:
            call(repo)
        assert str(raised.value).count(";") == 1

    def test_a_repository(self, lake: refstore.Lake) -> None:
        with pytest.raises(NotFound, match="did you mean 'sales'"):
            lake.repository("sale")


class TestAfterClose:
    @pytest.mark.parametrize(
        "call",
        [
            lambda _, repo: repo.read("main", "a"),
            lambda _, repo: repo.upload("main", "b", b""),
            lambda _, repo: list(repo.list("main")),
            lambda _, repo: repo.commit("main", "m"),
            lambda lake, _: lake.repository("sales"),
            lambda lake, _: lake.create_repository("other"),
            lambda lake, _: list(lake.repositories()),
        ],
    )
    def test_a_call_is_refused(self, tmp_path: Path, call: Callable[[Any, Any], object]) -> None:
        lake = refstore.create(tmp_path / "lake")
        repo = lake.create_repository("sales")
        repo.upload("main", "a", b"1")
        lake.close()
        lake.close()  # a second time is no error
        with pytest.raises(LakeClosed, match="open it again"):
            call(lake, repo)


class TestPickling:
    def test_a_lake_its_repositories_and_handles_are_not_and_say_what_to_do(
        self, lake: refstore.Lake, repo: refstore.Repository
    ) -> None:
        """Their URLs may hold secrets, and who unpickled a handle could not close its lake."""
        with pytest.raises(Invalid, match=r"in the other process, open it by refstore\.open$"):
            pickle.dumps(lake)
        for handle in (repo, repo.branch("main"), repo.ref("main~1"), repo.tag("v1"), repo.transaction("main", "m")):
            with pytest.raises(Invalid, match=r"open the lake by .*, then call lake\.repository\('sales'\)$"):
                pickle.dumps(handle)

    def test_answers_are(self, repo: refstore.Repository) -> None:
        for answer in (
            repo.stat("main", "a"),
            repo.get_commit("main"),
            repo.get_branch("main").head,
            Upload("p", b"x"),
        ):
            assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301  # its own bytes

    @pytest.mark.parametrize(
        "error",
        [
            errors.MissingExtra("s3", "s3://"),
            errors.MergeConflict("both changed it", ("a", "b")),
            errors.InvalidRules("wrong", place="rules[0]"),
            BranchNotFound("no", unknown="x"),
            LakeClosed("closed"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_errors_are(self, error: RefstoreError) -> None:
        """A pool of processes whose error cannot be read again waits for ever."""
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own bytes
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
