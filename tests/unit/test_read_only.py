"""A lake that is opened to read only: every call that reads answers, and every other one raises and writes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import refstore
from refstore import Lake, Repository
from refstore.errors import Invalid, LakeReadOnly, NotFound
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, Get, Set
from refstore.kv.read_only import ReadOnlyKV
from refstore.kv.retries import RetryingKV
from refstore.objects.base import ObjectStore
from refstore.objects.read_only import ReadOnlyObjects
from refstore.records import keys

READS: Final[dict[str, Callable[[Repository], object]]] = {
    "branches": lambda repo: [branch.name for branch in repo.branches()],
    "diff": lambda repo: list(repo.diff("v1", to="main")),
    "get": lambda repo: b"".join(repo.get("v1", "a")),
    "get_branch": lambda repo: repo.get_branch("main").head,
    "get_commit": lambda repo: repo.get_commit("main"),
    "get_tag": lambda repo: repo.get_tag("v1"),
    "history": lambda repo: list(repo.history("main")),
    "list": lambda repo: list(repo.list("main")),
    "list_page": lambda repo: repo.list_page("main"),
    "list_trash": lambda repo: list(repo.list_trash()),
    "log": lambda repo: list(repo.log("main")),
    "marks": lambda repo: list(repo.marks()),
    "merge_base": lambda repo: repo.merge_base("v1", other="main"),
    "open": lambda repo: repo.open("main", "a").read(),
    "purge_document": lambda repo: repo.purge_document(),
    "read": lambda repo: repo.read("main", "a"),
    "resolve": lambda repo: repo.resolve("main", "a"),
    "retention": lambda repo: repo.retention(),
    "review_retention": lambda repo: repo.review_retention(),
    "stat": lambda repo: repo.stat("main", "a"),
    "stat_many": lambda repo: repo.stat_many("main", ["a", "b"]),
    "tags": lambda repo: list(repo.tags()),
    "why_path": lambda repo: repo.why_path("main", "a"),
}
RETENTION: Final = '{"default_retention_days": 3, "branches": []}'
PURGE: Final = refstore.PurgeDocument(
    whitelist=("events",),
    datasets=(refstore.Dataset("events", "events/", "guestid", "rewrite", "parquet"),),
)
WRITES: Final[dict[str, Callable[[Repository], object]]] = {
    "change_metadata": lambda repo: repo.change_metadata("main", "a", lambda entry: entry),
    "cherry_pick": lambda repo: repo.cherry_pick("main", onto="dev"),
    "commit": lambda repo: repo.commit("work", "more"),
    "copy": lambda repo: repo.copy("main", "a", to_branch="dev", to_path="b"),
    "copy_many": lambda repo: repo.copy_many("main", [refstore.Copy("a", "b")], to_branch="dev"),
    "create_branch": lambda repo: repo.create_branch("new", source="main"),
    "create_tag": lambda repo: repo.create_tag("v2", ref="main"),
    "delete": lambda repo: repo.delete("main", "a"),
    "delete_branch": lambda repo: repo.delete_branch("dev"),
    "delete_if_entry": lambda repo: repo.delete_if_entry("main", "a", repo.stat("main", "a")),
    "delete_many": lambda repo: repo.delete_many("main", ["a"]),
    "delete_prefix": lambda repo: repo.delete_prefix("main", "a"),
    "delete_retention": lambda repo: repo.delete_retention(),
    "delete_tag": lambda repo: repo.delete_tag("v1"),
    "issue": lambda repo: repo.issue("main", "b"),
    "issue_many": lambda repo: repo.issue_many("main", ["b"]),
    "merge": lambda repo: repo.merge("dev", into="main"),
    "move": lambda repo: repo.move("main", "a", to_path="b"),
    "move_many": lambda repo: repo.move_many("main", [refstore.Move("a", "b")]),
    "onboard_purge": lambda repo: repo.onboard_purge(PURGE, by="us"),
    "reset": lambda repo: repo.reset("work"),
    "restore": lambda repo: repo.restore(trashed(repo), to="main"),
    "restore_each": lambda repo: list(repo.restore_each([refstore.RestoreRequest(trashed(repo))], to="main")),
    "restore_many": lambda repo: repo.restore_many("main"),
    "revert": lambda repo: repo.revert("main", on="main"),
    "set_retention": lambda repo: repo.set_retention(RETENTION, by="us"),
    "stage": lambda repo: repo.stage("main", "b", "s3://elsewhere/b", size_bytes=1),
    "stage_many": lambda repo: repo.stage_many("main", [refstore.Stage("b", "s3://elsewhere/b", size_bytes=1)]),
    "transaction": lambda repo: repo.transaction("main", "load").__enter__(),
    "upload": lambda repo: repo.upload("main", "b", b"2"),
    "upload_each": lambda repo: list(repo.upload_each("main", [refstore.Upload("b", b"2")])),
    "upload_many": lambda repo: repo.upload_many("main", [refstore.Upload("b", b"2")]),
}
ELSEWHERE: Final = {
    "address", "branch", "ref", "tag", "why", "import_objects", "link", "link_each", "link_many", "set_gc_rules",
    "unmark",
}  # fmt: skip
"""What only makes a handle, or needs what a lake like this one has not: its writes are those of the others."""


def trashed(repo: Repository) -> str:
    return next(item.address for item in repo.list_trash())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")  # SQLite's locks between processes
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with refstore.create(tmp_path / "lake") as lake:
        repo = lake.create_repository("sales", metadata={"team": "one"})
        repo.upload("main", "a", b"1")
        repo.commit("main", "first")
        repo.create_tag("v1", ref="main")
        repo.create_branch("dev", source="main")
        repo.upload("dev", "only-here", b"3")
        repo.commit("dev", "another")
        repo.upload("main", "lost", b"4")
        repo.delete("main", "lost")
        repo.upload("main", "c", b"5")
        repo.commit("main", "second")
        repo.set_retention(RETENTION)
        repo.onboard_purge(PURGE)
        repo.create_branch("work", source="main")
        repo.upload("work", "staged", b"6")
    return tmp_path / "lake"


@pytest.fixture
def lake(folder: Path) -> Iterator[Lake]:
    before = contents(folder)
    with refstore.open(folder, read_only=True) as lake:
        yield lake
    assert contents(folder) == before


def test_every_method_is_known_here() -> None:
    names = {name for name, _ in inspect.getmembers(Repository, inspect.isfunction) if not name.startswith("_")}
    assert names == {*READS, *WRITES, *ELSEWHERE}


def test_what_reads_answers(lake: Lake) -> None:
    (repo,) = lake.repositories()
    assert (repo.name, repo.metadata) == ("sales", {"team": "one"})
    for read in READS.values():
        read(repo)
    assert repo.why(trashed(repo))
    assert repo.address(trashed(repo))


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_raises(lake: Lake, name: str) -> None:
    with pytest.raises(LakeReadOnly, match="opened to read only, so nothing was changed; open it without read_only"):
        WRITES[name](lake.repository("sales"))


@pytest.mark.parametrize(
    "call",
    [
        lambda lake: lake.create_repository("other"),
        lambda lake: lake.delete_repository("sales"),
        lambda lake: lake.set_metadata("sales", put={"team": "two"}),
    ],
)
def test_so_do_calls_of_the_lake(lake: Lake, call: Callable[[Lake], object], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LakeReadOnly):
        call(lake)
    assert caplog.records == []


def test_a_file_that_is_written_raises_as_the_system_does(lake: Lake) -> None:
    with pytest.raises(PermissionError, match="read only"), lake.repository("sales").open("main", "b", "wb") as file:
        file.write(b"2")


def test_a_key_is_not_made_for_who_issues_nothing(folder: Path) -> None:
    """A KV that was made anew has no signing key until somebody needs one."""
    with refstore.open(folder) as lake:
        lake.kv.delete(keys.SIGNING_KEYS)
    with refstore.open(folder, read_only=True) as lake:
        assert lake.repository("sales").read("main", "a") == b"1"


def test_a_lake_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        refstore.open(tmp_path / "nowhere", read_only=True)
    with pytest.raises(Invalid, match="leave one of them out"):
        refstore.open(tmp_path / "nowhere", create=True, read_only=True)
    assert list(tmp_path.iterdir()) == []


class TestNoMethodOfADriverIsForgotten:
    """What the wrappers inherit would write past the store's own method, or read past it."""

    def test_of_object_stores(self) -> None:
        methods = {name for name in vars(ObjectStore) if not name.startswith("_")}
        assert methods - vars(ReadOnlyObjects).keys() == set()

    def test_of_the_kv(self) -> None:
        passed_on = {name for name in vars(RetryingKV) if not name.startswith("_")} - {"close_for_good"}
        assert passed_on - vars(ReadOnlyKV).keys() == set()
        kv = open_kv("memory:", read_only=True)
        for write in (
            lambda: kv.set(keys.LAKE, b""),
            lambda: kv.delete(keys.LAKE),
            lambda: kv.exchange(keys.LAKE, b""),
            lambda: kv.set_if(keys.LAKE, ABSENT, b""),
            lambda: kv.delete_range(keys.REPOSITORIES, "", keys.LAST_CODE_POINT),
            lambda: kv.execute([Get(keys.LAKE), Set(keys.LAKE, b"")]),
        ):
            with pytest.raises(LakeReadOnly):
                write()
        assert kv.get(keys.LAKE) is ABSENT
