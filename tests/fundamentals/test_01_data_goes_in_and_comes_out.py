from __future__ import annotations

import io

import pytest

from refstore.errors import InvalidPath, ObjectNotFound
from refstore.operations.upload import Stage, Upload
from refstore.repository import Repository


def test_what_is_uploaded_can_be_read_at_once(repo: Repository) -> None:
    repo.upload("main", "a/b.txt", b"hello")
    assert repo.read("main", "a/b.txt") == b"hello"


def test_a_body_may_be_bytes_a_file_or_chunks(repo: Repository) -> None:
    repo.upload("main", "bytes", b"abc")
    repo.upload("main", "file", io.BytesIO(b"abc"))
    repo.upload("main", "chunks", iter([b"a", b"b", b"c"]))
    assert {repo.read("main", path) for path in ("bytes", "file", "chunks")} == {b"abc"}


def test_an_entry_says_where_the_data_is_and_what_it_is(repo: Repository) -> None:
    entry = repo.upload("main", "a", b"hello", metadata={"by": "me"}, content_type="text/plain")
    assert entry == repo.stat("main", "a")
    assert entry.size_bytes == 5
    assert entry.metadata == {"by": "me"}
    assert entry.content_type == "text/plain"
    assert repo.context.objects.read(entry.address) == b"hello"


def test_a_range_of_the_bytes(repo: Repository) -> None:
    repo.upload("main", "a", b"0123456789")
    assert b"".join(repo.get("main", "a", start=2, end=5)) == b"234"


def test_the_same_path_uploaded_again_shows_the_new_data_under_a_new_address(repo: Repository) -> None:
    first = repo.upload("main", "a", b"1")
    second = repo.upload("main", "a", b"2")
    assert repo.read("main", "a") == b"2"
    assert first.address != second.address


def test_many_objects_share_their_round_trips(repo: Repository) -> None:
    entries = repo.upload_many("main", (Upload(path=f"p/{number:04d}", body=b"%d" % number) for number in range(1200)))
    assert len(entries) == 1200
    assert [item.path for item in repo.list("main")] == [f"p/{number:04d}" for number in range(1200)]


def test_one_call_writes_a_path_once(repo: Repository) -> None:
    with pytest.raises(InvalidPath, match="twice"):
        repo.upload_many("main", [Upload(path="a", body=b"1"), Upload(path="a", body=b"2")])


def test_data_outside_the_namespace_can_be_staged_and_is_never_deleted(repo: Repository) -> None:
    repo.stage_many("main", [Stage(path="ext", url="s3://elsewhere/key", size_bytes=7)])
    assert repo.stat("main", "ext").address == "s3://elsewhere/key"


def test_what_is_not_there_is_not_found(repo: Repository) -> None:
    with pytest.raises(ObjectNotFound):
        repo.read("main", "nothing")


def test_a_deleted_path_is_not_there_any_more(repo: Repository) -> None:
    repo.upload("main", "a", b"1")
    repo.delete("main", "a")
    with pytest.raises(ObjectNotFound):
        repo.stat("main", "a")


def test_deleting_what_is_not_there_is_fine(repo: Repository) -> None:
    repo.delete("main", "nothing")


def test_a_listing_folds_what_lies_behind_a_delimiter(repo: Repository) -> None:
    for path in ("a/1", "a/2", "b", "c/x/1", "d"):
        repo.upload("main", path, b"")
    assert [item.path for item in repo.list("main", delimiter="/")] == ["a/", "b", "c/", "d"]
    assert [item.path for item in repo.list("main", prefix="c/", delimiter="/")] == ["c/x/"]


def test_a_listing_goes_on_behind_any_path_or_prefix_in_pages(repo: Repository) -> None:
    for path in ("a/1", "a/2", "b", "c/1", "d"):
        repo.upload("main", path, b"")
    page = repo.list_page("main", amount=2, delimiter="/")
    assert [item.path for item in page.results] == ["a/", "b"]
    assert page.has_more
    page = repo.list_page("main", after=page.next_after, amount=2, delimiter="/")
    assert [item.path for item in page.results] == ["c/", "d"]
    assert not page.has_more
    assert [item.path for item in repo.list_page("main", after="a/", delimiter="/").results] == ["b", "c/", "d"]
