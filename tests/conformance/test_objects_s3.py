"""The S3 store holds the suite: on moto (quick, no proof), on rclone (real, needs no root) and on Ceph RGW (real)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from refstore.conformance.objects_suite import MIB, Broken, ObjectStoreSuite, breaking, fill, pattern
from refstore.core.clock import SystemClock
from refstore.errors import (
    AlreadyExists,
    Invalid,
    InvalidPath,
    InvalidSettings,
    MissingExtra,
    ObjectsRefused,
    ObjectsUnavailable,
)
from refstore.objects import ObjectStore, child, open_objects
from refstore.objects.s3 import object_writer
from tests.servers.s3_servers import BUCKET, S3Server, environment


class S3Suite(ObjectStoreSuite):
    presigns = True
    tells_missing = False
    many = 1200
    """More than a page of a listing and a batch of a deletion hold."""

    @pytest.fixture
    def server(self) -> S3Server:
        raise NotImplementedError

    @pytest.fixture
    def url(self, server: S3Server) -> str:
        return server.url()

    @pytest.fixture(autouse=True)
    def _no_parts_are_left(self, server: S3Server, url: str) -> Iterator[None]:
        yield
        assert self.uploads(server, url) == []

    def uploads(self, server: S3Server, url: str) -> list[str]:
        prefix = url.removeprefix(f"s3://{BUCKET}/").partition("?")[0]
        return server.pending_uploads(prefix)

    def test_uploads_of_killed_clients_are_swept(self, store: ObjectStore, server: S3Server, url: str):
        prefix = url.removeprefix(f"s3://{BUCKET}/").partition("?")[0]
        with server.client() as client:
            for key in (f"{prefix}/a", f"{prefix}-neighbour/a"):
                upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
                client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"x")
            if self.knows_when_begun:
                assert store.sweep_temporary(older_than_seconds=3600, clock=SystemClock()) == 0
                assert sorted(self.uploads(server, url)) == [f"{prefix}-neighbour/a", f"{prefix}/a"]
            assert store.sweep_temporary(older_than_seconds=-60, clock=SystemClock()) == 1
            assert self.uploads(server, url) == [f"{prefix}-neighbour/a"]
            client.abort_multipart_upload(Bucket=BUCKET, Key=f"{prefix}-neighbour/a", UploadId=upload)

    def test_a_large_object_is_copied_in_parts(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(object_writer, "COPY_PART_BYTES", 5 * MIB)
        store.put("a", pattern(11 * MIB))
        store.copy("a", "b")
        assert hashlib.sha256(store.read("b")).digest() == hashlib.sha256(store.read("a")).digest()

    def test_what_others_wrote_is_not_listed_but_does_not_stop_the_listing(
        self, store: ObjectStore, server: S3Server, url: str
    ):
        prefix = url.removeprefix(f"s3://{BUCKET}/").partition("?")[0]
        with server.client() as client:
            for key in self.foreign_keys:
                client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=b"")
        fill(store, ["a", "folder/a", "z"])
        assert [info.key for info in store.list()] == ["a", "folder/a", "z"]

    foreign_keys = ("folder/", "double//slash", "dot/./x", "dots/../../x", ".tmp/x")

    def test_a_bucket_that_is_not_there_is_not_an_empty_store(self, server: S3Server):
        store = open_objects(server.url().replace(BUCKET, "no-such-bucket"))
        try:
            for attempt in (
                lambda: store.head("a"),
                lambda: store.get("a"),
                lambda: list(store.list()),
                lambda: store.delete_many(["a"]),
                lambda: store.put("a", b"x"),
                lambda: store.put("a", pattern(9 * MIB)),
            ):
                with pytest.raises(ObjectsRefused, match="create it, or correct the URL"):
                    attempt()
        finally:
            store.close()

    def test_a_prefix_and_a_key_that_are_too_long_together(self, server: S3Server):
        store = open_objects(server.url("/".join(["p" * 199] * 5) + "p"))
        try:
            store.put("x" * 23, b"x")
            for attempt in (
                lambda: store.put("x" * 24, b"x"),
                lambda: store.delete_many(["x" * 24]),
                lambda: list(store.list(after="x" * 24)),
            ):
                with pytest.raises(InvalidPath, match="prefix"):
                    attempt()
            assert [info.key for info in store.list()] == ["x" * 23]
            store.delete_many(["x" * 23])
        finally:
            store.close()


class SignedS3Suite(S3Suite):
    """For servers that check signatures."""

    @pytest.mark.parametrize(
        ("credentials", "says"),
        [(("AKIDTEST", "hush-hush"), "AWS_SECRET_ACCESS_KEY"), (("NOBODY", "hush-hush"), "AWS_ACCESS_KEY_ID")],
        ids=["wrong secret", "unknown key"],
    )
    def test_wrong_credentials_say_what_to_check(
        self, server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, credentials: tuple[str, str], says: str
    ):
        for name, value in environment(*credentials).items():
            monkeypatch.setenv(name, value)
        store = open_objects(url)
        try:
            for attempt in (
                lambda: list(store.list()),
                lambda: store.get("a"),
                lambda: store.put("a", b"x"),
                lambda: store.put("a", pattern(9 * MIB)),
                lambda: store.delete_many(["a", "b"]),
            ):
                with pytest.raises(ObjectsRefused, match=says) as raised:
                    attempt()
                assert "hush" not in str(raised.value), "a secret does not stand in a message"
            with pytest.raises(ObjectsRefused):
                store.head("a")  # a HEAD has no body, so the server cannot say what is wrong
        finally:
            store.close()

    def test_a_url_may_write_only_where_nothing_is(self, store: ObjectStore):
        if not store.conditional_put:
            with pytest.raises(Invalid, match="conditional_put=0"):
                store.presign_put("new", expires_seconds=60, if_absent=True)
            return
        url, condition = store.presign_put("new", expires_seconds=60, if_absent=True), {"If-None-Match": "*"}
        statuses: list[int] = []
        for body, headers in ((b"first", {}), (b"first", condition), (b"second", condition)):
            try:
                with urlopen(Request(url, body, headers, method="PUT"), timeout=30) as answer:  # noqa: S310  # likewise
                    statuses.append(answer.status)
            except HTTPError as refused:
                refused.close()
                statuses.append(refused.code)
        assert (statuses, store.read("new")) == ([403, 200, 412], b"first")


class TestMoto(S3Suite):
    knows_when_begun = False  # its uploads are all of 2010

    @pytest.fixture
    def server(self, moto_s3_server: S3Server) -> S3Server:
        return moto_s3_server

    test_of_many_that_put_if_absent_exactly_one_wins = None  # moto loses such races; a real server is asked
    test_a_put_if_absent_is_atomic_at_each_of_its_steps = None  # likewise
    # moto answers 500 to a put whose body another put of the key has closed, before its ETag was computed
    test_puts_and_deletes_of_one_key_at_once_leave_it_whole = None


@pytest.mark.server
class TestRclone(SignedS3Suite):
    conditional = False
    numbers_parts_freely = False
    foreign_keys = (".tmp/x",)  # it keeps objects as files
    test_a_large_object_is_copied_in_parts = None  # it refuses the parts

    @pytest.fixture
    def server(self, rclone_s3_server: S3Server) -> S3Server:
        return rclone_s3_server


@pytest.mark.server
@pytest.mark.root
@pytest.mark.slow
class TestRgw(SignedS3Suite):
    @pytest.fixture
    def server(self, rgw_server: S3Server) -> S3Server:
        return rgw_server

    def test_tags(self, store: ObjectStore, server: S3Server, url: str):
        keys = [f"data/1/{number}" for number in range(120)]
        fill(store, keys)
        tagging = store.tag_many([*keys, "data/1/nothing"], {"refstore": "expired", "why": "a b"})
        assert (sorted(tagging.tagged_keys), tagging.missing_keys, tagging.failed_keys) == (
            sorted(keys),
            ("data/1/nothing",),
            (),
        )
        prefix = url.removeprefix(f"s3://{BUCKET}/").partition("?")[0]
        with server.client() as client:
            tags = client.get_object_tagging(Bucket=BUCKET, Key=f"{prefix}/data/1/7")["TagSet"]
        assert sorted((tag["Key"], tag["Value"]) for tag in tags) == [("refstore", "expired"), ("why", "a b")]
        assert store.tag_many(["data/1/7"], {}).tagged_keys == ("data/1/7",)
        with server.client() as client:
            assert client.get_object_tagging(Bucket=BUCKET, Key=f"{prefix}/data/1/7")["TagSet"] == []

    def test_a_presigned_url_that_was_made_to_last_longer_is_refused(self, store: ObjectStore, server: S3Server):
        store.put("a", b"x")
        forged = store.presign_get("a", expires_seconds=60).replace("X-Amz-Expires=60", "X-Amz-Expires=6000")
        with pytest.raises(HTTPError) as refused:
            urlopen(forged, timeout=30)  # noqa: S310  # of a server that the tests started
        refused.value.close()
        assert refused.value.code == 403


def test_a_server_that_is_not_there(s3_credentials: None):
    store = open_objects("s3://bucket/prefix?endpoint=http://127.0.0.1:9", io_timeout_seconds=6)
    try:
        for attempt in (
            lambda: list(store.list()),
            lambda: store.head("a"),
            lambda: store.get("a"),
            lambda: store.put("a", b"x"),
            lambda: store.delete_many([str(number) for number in range(5000)]),
        ):
            with pytest.raises(ObjectsUnavailable, match="can be reached") as raised:
                attempt()
            assert raised.value.retryable
    finally:
        store.close()


def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, moto_s3_url: str):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_objects(moto_s3_url)
    try:
        with pytest.raises(ObjectsRefused, match="set AWS_ACCESS_KEY_ID"):
            store.head("a")
    finally:
        store.close()


def test_a_body_of_too_many_parts(moto_s3_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("refstore.objects.s3.object_writer.PARTS_MAX", 2)
    monkeypatch.setattr("refstore.objects.s3.PART_BYTES", 5 * MIB)
    store = open_objects(moto_s3_url)
    try:
        store.put("fits", pattern(10 * MIB))
        with pytest.raises(Invalid, match="upload it in parts"):
            store.put("too-large", pattern(11 * MIB))
        assert [info.key for info in store.list()] == ["fits"]
    finally:
        store.close()


def test_parts_are_alike_but_for_the_last(moto_s3_url: str, moto_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch):
    """Some servers (R2) refuse parts of different sizes."""
    monkeypatch.setattr("refstore.objects.s3.PART_BYTES", 5 * MIB)
    store = open_objects(moto_s3_url)
    try:
        store.put("a", pattern(12 * MIB, chunk_bytes=7 * MIB + 1))
        store.put("exact", pattern(5 * MIB))
    finally:
        store.close()
    prefix = moto_s3_url.removeprefix(f"s3://{BUCKET}/").partition("?")[0]
    with moto_s3_server.client() as client:
        sizes = [
            client.head_object(Bucket=BUCKET, Key=f"{prefix}/a", PartNumber=number)["ContentLength"]
            for number in (1, 2, 3)
        ]
        whole = client.head_object(Bucket=BUCKET, Key=f"{prefix}/exact")
    assert sizes == [5 * MIB, 5 * MIB, 2 * MIB]
    assert "-" not in whole["ETag"], "a body of exactly one part needs no multipart upload"


def test_if_absent_where_the_server_cannot(moto_s3_url: str):
    store = open_objects(f"{moto_s3_url}&conditional_put=0")
    try:
        assert not store.conditional_put
        store.put("a", b"first", if_absent=True)
        with pytest.raises(AlreadyExists):
            store.put("a", b"second", if_absent=True)
        with pytest.raises(Broken):
            store.put("b", breaking(9 * MIB), if_absent=True)
    finally:
        store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://", "names a bucket"),
        ("s3:///prefix", "names a bucket"),
        ("s3://key:secret@bucket/prefix", "credentials"),
        ("s3://bucket/prefix?endpoint=http://key:secret@host", "credentials"),
        ("s3://bucket/prefix?endpont=http://host", "'endpont'"),
        ("s3://bucket/prefix?conditional_put=perhaps", "conditional_put=0"),
        ("s3://bucket/prefix?region=eu-central-1", "use endpoint, conditional_put, delete_versions"),
        ("s3://bucket/prefix?endpoint=host:80", "correct the URL"),
        ("s3://bucket/prefix?profile=nobody", "correct the URL"),
    ],
)
def test_urls_that_are_refused(s3_credentials: None, url: str, says: str):
    with pytest.raises(InvalidSettings) as raised:
        open_objects(url)
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_prefix_that_leaves_the_bucket(s3_credentials: None):
    with pytest.raises(InvalidPath):
        open_objects("s3://bucket/a/../b")


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in list(sys.modules):
        if name.startswith("refstore.objects.s3"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(MissingExtra, match=r"refstore-lake\[s3\]"):
        open_objects("s3://bucket/prefix")


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("file:///a%20b?fsync=0", "repo.0a", "file:///a%20b/repo.0a?fsync=0"),
        ("s3://bucket?endpoint=http://h:1", "r", "s3://bucket/r?endpoint=http://h:1"),
        ("s3://bucket/p/?delete_versions=1", "r", "s3://bucket/p/r?delete_versions=1"),
        ("memory://m", "r", "memory://m/r"),
    ],
)
def test_child(url: str, name: str, expected: str):
    assert child(url, name) == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "x" * 1025, ".tmp"])
def test_child_names_that_are_refused(name: str):
    with pytest.raises(InvalidSettings):
        child("s3://bucket/p", name)
