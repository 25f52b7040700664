"""Bulk calls with several objects that may only go where nothing is: each is told what became of it, and fails nobody
else.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.errors import AlreadyExists, AlreadyLinked, InvalidPath
from refstore.lake import Lake
from refstore.operations.upload import Link, Upload
from refstore.public_types import Entry
from refstore.repository import Repository
from refstore_reaper.daemon import Reaper
from tests.contents import contents


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("sales", grace_seconds=0)


def new(path: str, body: bytes | Iterator[bytes] = b"new") -> Upload:
    return Upload(path=path, body=body, if_absent=True)


def overtaken(repo: Repository, path: str) -> Iterator[bytes]:
    """A body that takes so long that somebody else is at the path first."""
    repo.upload("main", path, b"theirs")
    yield b"late"


def unread() -> Iterator[bytes]:
    raise AssertionError("it was read")
    yield b""


def said(results: object) -> list[str]:
    return [type(result).__name__ for result in results]


def test_each_is_told_whether_something_was_there(repo: Repository) -> None:
    repo.upload("main", "b", b"theirs")
    results = repo.upload_each("main", [new("a"), new("b", unread()), new("c"), Upload(path="d", body=b"over")])
    assert said(results) == ["Entry", "AlreadyExists", "Entry", "Entry"]
    assert contents(repo) == {"a": b"new", "b": b"theirs", "c": b"new", "d": b"over"}


def test_each_is_told_whether_somebody_was_faster(repo: Repository) -> None:
    results = repo.upload_each(
        "main", [new("a"), new("b", overtaken(repo, "b")), new("c"), Upload(path="d", body=b"over")]
    )
    assert said(results) == ["Entry", "AlreadyExists", "Entry", "Entry"]
    assert contents(repo) == {"a": b"new", "b": b"theirs", "c": b"new", "d": b"over"}


def test_the_entries_are_those_that_were_written(repo: Repository) -> None:
    repo.upload("main", "a", b"theirs")
    _, entry = repo.upload_each("main", [new("a"), new("b")])
    assert isinstance(entry, Entry)
    assert entry == repo.stat("main", "b")


def test_what_was_refused_is_reaped_and_nothing_else(lake: Lake, repo: Repository) -> None:
    said(repo.upload_each("main", [new("a"), new("b", overtaken(repo, "b")), new("c", overtaken(repo, "c")), new("d")]))
    with Reaper(lake, ReaperSettings(breaker_share=1.0)) as reaper:
        for _ in range(3):
            reaper.run_passes(lambda: False)
    objects = repo.context.objects
    assert sorted(objects.read(found.key) for found in objects.list("data/")) == [b"new", b"new", b"theirs", b"theirs"]
    assert contents(repo) == {"a": b"new", "b": b"theirs", "c": b"theirs", "d": b"new"}


def test_where_all_are_there_nothing_is_written(repo: Repository) -> None:
    for path in ("a", "b"):
        repo.upload("main", path, b"theirs")
    assert said(repo.upload_each("main", [new("a", unread()), new("b", unread())])) == ["AlreadyExists"] * 2
    assert len(list(repo.context.objects.list("data/"))) == 2


def test_a_stream_of_uploads_ends_before_its_batch_where_something_is_there(repo: Repository) -> None:
    repo.upload("main", "b", b"theirs")
    with pytest.raises(AlreadyExists, match="'b'"):
        repo.upload_many("main", [new("a", unread()), new("b", unread())])
    assert contents(repo) == {"b": b"theirs"}


def test_a_stream_of_uploads_ends_behind_its_batch_where_somebody_was_faster(repo: Repository) -> None:
    with pytest.raises(AlreadyExists, match="'b'"):
        repo.upload_many("main", [new("a"), new("b", overtaken(repo, "b")), new("c"), Upload(path="d", body=b"over")])
    assert contents(repo) == {"a": b"new", "b": b"theirs", "c": b"new", "d": b"over"}


def test_a_path_is_written_once_in_a_call(repo: Repository) -> None:
    with pytest.raises(InvalidPath, match="twice"):
        next(repo.upload_each("main", [new("a"), new("a")]))
    assert contents(repo) == {}


def test_of_links_each_is_told_what_became_of_it(repo: Repository) -> None:
    issued = {path: repo.issue("main", path) for path in ("a", "b", "c")}
    for one in issued.values():
        repo.context.objects.put(one.address, b"new")
    repo.upload("main", "b", b"theirs")
    repo.link("main", "c", issued["c"].token)
    links = [Link(path=path, token=issued[path].token, if_absent=path != "c") for path in ("a", "b", "c")]
    results = list(repo.link_each("main", links))
    assert said(results) == ["Entry", "AlreadyExists", "AlreadyLinked"]
    assert isinstance(results[2], AlreadyLinked)
    assert contents(repo) == {"a": b"new", "b": b"theirs", "c": b"new"}


def test_a_link_that_was_refused_can_be_made_when_the_path_is_free(repo: Repository) -> None:
    """It is refused before the address is taken."""
    issued = repo.issue("main", "a")
    repo.context.objects.put(issued.address, b"new")
    repo.upload("main", "a", b"theirs")
    link = Link(path="a", token=issued.token, if_absent=True)
    assert said(repo.link_each("main", [link])) == ["AlreadyExists"]
    repo.delete("main", "a")
    assert said(repo.link_each("main", [link])) == ["Entry"]
    assert contents(repo) == {"a": b"new"}
