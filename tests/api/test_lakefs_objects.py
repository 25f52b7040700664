"""lakeFS's high-level client: objects in and out, by signed URLs and through the service."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import time
from typing import get_args

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import BadRequestException, NotFoundException, ObjectExistsException, ObjectNotFoundException
from lakefs.object import ReadModes, WriteModes

from tests.api.conftest import upload_all

BOTH = pytest.mark.parametrize("pre_sign", [True, False], ids=["signed", "direct"])


@BOTH
@pytest.mark.parametrize("write_mode", get_args(WriteModes))
def test_what_is_written_in_any_mode_is_read_in_any_mode(
    main: lakefs.Branch, write_mode: WriteModes, pre_sign: bool
) -> None:
    text = "Grüße, 世界\r\n" * 100
    found = main.object("dir/ä b+c&d=e?f#g%.txt").upload(text, mode=write_mode, pre_sign=pre_sign)
    for read_mode in get_args(ReadModes):
        with found.reader(read_mode, pre_sign=pre_sign) as reader:
            assert reader.read() == (text.encode() if "b" in read_mode else text)


@BOTH
def test_stat_says_what_was_uploaded(main: lakefs.Branch, pre_sign: bool) -> None:
    before = int(time.time())
    main.object("a.csv").upload(
        "1,2", pre_sign=pre_sign, content_type="text/csv", metadata={"owner": "sales", "note": "x y"}
    )
    found = main.object("a.csv").stat()
    assert (found.path, found.size_bytes, found.content_type) == ("a.csv", 3, "text/csv")
    assert found.metadata == {"owner": "sales", "note": "x y"}
    assert before <= found.mtime <= time.time()
    assert found.checksum == hashlib.md5(b"1,2", usedforsecurity=False).hexdigest()
    assert found.physical_address_expiry is None


@BOTH
def test_the_content_type_that_nobody_gave_is_bytes(main: lakefs.Branch, pre_sign: bool) -> None:
    assert main.object("a").upload(b"", pre_sign=pre_sign).stat().content_type == "application/octet-stream"


@BOTH
def test_an_empty_object_reads_as_nothing(main: lakefs.Branch, pre_sign: bool) -> None:
    found = main.object("empty").upload(b"", pre_sign=pre_sign)
    assert found.stat().size_bytes == 0
    with found.reader(pre_sign=pre_sign) as reader:
        assert reader.read() == b""
        assert reader.read(1) == b""


@BOTH
def test_a_reader_reads_ranges_and_seeks(main: lakefs.Branch, pre_sign: bool) -> None:
    data = b"0123456789"
    found = main.object("digits").upload(data, pre_sign=pre_sign)
    with found.reader(pre_sign=pre_sign) as reader:
        assert reader.read(100) == data
        assert reader.seek(2) == 2
        assert reader.read(5) == data[2:7]
        assert reader.read() == data[7:]
        assert reader.read(1) == b""
        assert reader.seek(-4, os.SEEK_END) == 6
        assert reader.read(2) == b"67"
        assert reader.seek(-3, os.SEEK_CUR) == 5
        assert reader.read() == data[5:]
        assert reader.tell() == 10
        reader.seek(50)
        assert reader.read(1) == b""
        with pytest.raises(OSError, match="non-negative"):
            reader.seek(-1)
    with found.reader(pre_sign=pre_sign) as reader:
        reader.seek(10)  # at the very end, before the size is known: the service answers 416
        assert reader.read(1) == b""


@BOTH
def test_a_reader_reads_byte_by_byte_and_line_by_line(main: lakefs.Branch, pre_sign: bool) -> None:
    found = main.object("lines").upload("one\ntwo\n\nlast", pre_sign=pre_sign)
    with found.reader("r", pre_sign=pre_sign) as reader:
        assert list(reader) == ["one\n", "two\n", "\n", "last"]
    with found.reader("r", pre_sign=pre_sign) as reader:
        assert [reader.readline(2), reader.readline(), reader.read(3)] == ["on", "e\n", "two"]
    with found.reader("rb", pre_sign=pre_sign) as reader:
        assert b"".join(iter(lambda: reader.read(1), b"")) == b"one\ntwo\n\nlast"


def test_files_of_other_libraries_pass_through_reader_and_writer(main: lakefs.Branch) -> None:
    rows = [["id", "name"], ["1", "Alice"], ["2", "Bob"]]
    with main.object("a.csv").writer("w", content_type="text/csv") as writer:
        csv.writer(writer).writerows(rows)
    assert list(csv.reader(main.object("a.csv").reader("r"))) == rows
    with main.object("a.json").writer("w") as writer:
        json.dump({"rows": rows}, writer)
    assert json.load(main.object("a.json").reader("r")) == {"rows": rows}


@BOTH
def test_exclusive_creation_leaves_what_is_there(main: lakefs.Branch, pre_sign: bool) -> None:
    found = main.object("once").upload("first", mode="x", pre_sign=pre_sign)
    with pytest.raises(ObjectExistsException):
        found.upload("second", mode="xb", pre_sign=pre_sign)
    assert found.reader("r").read() == "first"
    found.upload("third", mode="w", pre_sign=pre_sign)
    assert found.reader("r").read() == "third"


@BOTH
def test_of_two_exclusive_writers_that_began_together_the_second_is_told(main: lakefs.Branch, pre_sign: bool) -> None:
    first, second = (main.object("race").writer("x", pre_sign=pre_sign) for _ in range(2))
    first.write("first")
    second.write("second")
    first.close()
    with pytest.raises(ObjectExistsException):
        second.close()
    assert main.object("race").reader("r").read() == "first"


@BOTH
def test_a_writer_uploads_when_it_is_closed_and_not_before(main: lakefs.Branch, pre_sign: bool) -> None:
    writer = main.object("late").writer("wb", pre_sign=pre_sign)
    assert (writer.readable(), writer.seekable(), writer.writable(), writer.tell()) == (False, False, True, 0)
    writer.write(b"Hello")
    writer.write(b" World")
    assert writer.tell() == 11
    assert not main.object("late").exists()
    writer.metadata, writer.content_type = {"k": "v"}, "text/plain"
    writer.close()
    writer.close()
    found = main.object("late").stat()
    assert (found.size_bytes, found.metadata, found.content_type) == (11, {"k": "v"}, "text/plain")
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"more")


def test_a_writer_that_failed_or_was_discarded_leaves_nothing(main: lakefs.Branch) -> None:
    def fail() -> None:
        with main.object("failed").writer() as writer:
            writer.write("data")
            raise KeyError("something of the caller's")

    with pytest.raises(KeyError):
        fail()
    with main.object("discarded").writer() as writer:
        writer.write("data")
        writer.discard()
    assert list(main.objects()) == []


@BOTH
def test_an_object_larger_than_any_buffer_comes_back_byte_by_byte(main: lakefs.Branch, pre_sign: bool) -> None:
    body = random.Random(5).randbytes(5_300_001)
    found = main.object("large").upload(body, pre_sign=pre_sign)
    assert found.stat().size_bytes == len(body)
    with found.reader(pre_sign=pre_sign) as reader:
        assert reader.read() == body
        reader.seek(4_000_000)
        assert reader.read(1_000_000) == body[4_000_000:5_000_000]


def test_what_is_not_there_is_said_so(main: lakefs.Branch, repo: lakefs.Repository, client: Client) -> None:
    nothing = main.object("nothing")
    assert not nothing.exists()
    for call in (nothing.stat, lambda: nothing.reader().read(), lambda: nothing.reader(pre_sign=True).read()):
        with pytest.raises(ObjectNotFoundException):
            call()
    with pytest.raises(NotFoundException):
        nothing.copy("main", "elsewhere")
    with pytest.raises(NotFoundException):
        repo.branch("nowhere").object("a").upload("x", pre_sign=False)
    with pytest.raises(FileNotFoundError):  # what code that knows nothing of lakeFS catches
        main.object("nothing").stat()
    assert not repo.branch("nowhere").object("a").exists()
    with pytest.raises(ObjectNotFoundException):
        lakefs.Repository("no-such-repository", client).branch("main").object("a").stat()


def test_a_copy_has_all_that_its_source_has(main: lakefs.Branch, repo: lakefs.Repository) -> None:
    source = main.object("a").upload("body", content_type="text/plain", metadata={"k": "v"})
    other = repo.branch("other").create("main")
    for copied in (source.copy("main", "b"), source.copy("other", "dir/c")):
        there, here = copied.stat(), source.stat()
        assert (there.size_bytes, there.checksum, there.content_type, there.metadata) == (
            here.size_bytes, here.checksum, here.content_type, here.metadata,
        )  # fmt: skip
        assert copied.reader("r").read() == "body"
    source.delete()
    assert other.object("dir/c").reader("r").read() == "body"


def test_an_object_is_not_copied_onto_itself(main: lakefs.Branch) -> None:
    source = main.object("a").upload("body")
    with pytest.raises(BadRequestException):
        source.copy("main", "a")
    assert source.reader("r").read() == "body"


def test_a_committed_object_is_copied_from_a_commit(main: lakefs.Branch, repo: lakefs.Repository) -> None:
    main.object("a").upload("old")
    commit = main.commit("old")
    main.object("a").upload("new")
    commit.object("a").copy("main", "restored")
    assert main.object("restored").reader("r").read() == "old"
    assert repo.ref("main@").object("a").reader("r").read() == "old"


def test_a_deleted_object_is_gone_and_can_be_deleted_again(main: lakefs.Branch) -> None:
    main.object("a").upload("x")
    main.commit("with a")
    main.object("a").delete()
    main.object("a").delete()
    assert not main.object("a").exists()
    assert [(change.type, change.path) for change in main.uncommitted()] == [("removed", "a")]


def test_many_objects_are_deleted_at_once_named_in_any_way(main: lakefs.Branch) -> None:
    upload_all(main, ["a", "b", "c", "d", "e", "f"])
    main.delete_objects("a")
    main.delete_objects(main.object("b"))
    main.delete_objects({"c", "never there"})
    main.delete_objects([main.object("d"), "e"])
    assert [found.path for found in main.objects()] == ["f"]


def test_listings_fold_page_and_begin_where_they_are_told(main: lakefs.Branch) -> None:
    paths = ["a", "b", "bar/a", "bar/b", "bar/c", "c", "foo/a/x", "foo/b"]
    upload_all(main, paths)
    assert [found.path for found in main.objects()] == paths
    assert [found.path for found in main.objects(amount=1)] == paths
    assert [found.path for found in main.objects(delimiter="/")] == ["a", "b", "bar/", "c", "foo/"]
    assert [found.path for found in main.objects(delimiter="/", amount=1)] == ["a", "b", "bar/", "c", "foo/"]
    assert [type(found).__name__ for found in main.objects(delimiter="/", prefix="foo/")] == [
        "CommonPrefix",
        "ObjectInfo",
    ]
    assert [found.path for found in main.objects(prefix="bar/", after="bar/a")] == ["bar/b", "bar/c"]
    assert [found.path for found in main.objects(max_amount=3, amount=2)] == paths[:3]
    assert [found.path for found in main.objects(delimiter="/", after="bar/")] == ["c", "foo/"]


def test_a_listing_shows_metadata_unless_it_is_told_not_to(main: lakefs.Branch) -> None:
    main.object("a").upload("x", metadata={"k": "v"})
    assert [found.metadata for found in main.objects()] == [{"k": "v"}]
    assert [found.metadata for found in main.objects(user_metadata=False)] == [None]


def test_signed_stats_read_without_credentials(main: lakefs.Branch) -> None:
    import urllib3

    found = main.object("a").upload("body")
    signed = found.stat(pre_sign=True)
    assert signed.physical_address.startswith("http://")
    assert signed.physical_address_expiry > time.time()
    (listed,) = main.objects(presign=True)
    with urllib3.PoolManager() as pool:
        for url in (signed.physical_address, listed.physical_address):
            assert pool.request("GET", url).data == b"body"
            part = pool.request("GET", url, headers={"Range": "bytes=1-2"})
            assert (part.status, part.data) == (206, b"od")


def test_the_client_names_objects_as_it_likes(main: lakefs.Branch) -> None:
    hard = ["a//b", "a b", "~tilde", "x" * 1024, "ü/日本/😀", "%2e%2e/x", "a\\b", "trailing/"]
    for path in hard:
        main.object(path).upload(path)
    assert {found.path for found in main.objects()} == set(hard)
    for path in hard:
        assert main.object(path).reader("r").read() == path


@pytest.mark.parametrize("path", ["a/../b", "..", "./a", "a/.", "nul\0", "x" * 1025])
def test_a_path_that_could_mean_another_place_is_refused(main: lakefs.Branch, path: str) -> None:
    with pytest.raises(BadRequestException):
        main.object(path).upload("x", pre_sign=False)
    assert list(main.objects()) == []


def test_a_reader_is_a_file_to_those_who_want_one(main: lakefs.Branch) -> None:
    reader = main.object("a").upload("x").reader()
    assert (reader.readable(), reader.writable(), reader.seekable(), reader.isatty(), reader.name) == (
        True,
        False,
        True,
        False,
        "a",
    )
    with pytest.raises(io.UnsupportedOperation):
        reader.fileno()
    reader.close()
    assert reader.closed
