"""A namespace names the endpoint of its store, and a changed endpoint is used only where the repository really is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

import refstore
from refstore.errors import InvalidName, InvalidSettings, WrongStore
from refstore.lake import Lake
from refstore.objects.named_stores import namespace_url, resolve
from tests.servers.s3_servers import BUCKET, S3FaultProxy, S3Server

NAMED = {"archive": {"endpoint": "https://s3.example", "region": "eu"}, "aws": {"region": "eu-central-1"}}
OWN = "s3://lake/a?conditional_put=0&endpoint=http://127.0.0.1:9&region=us-east-1"


@pytest.mark.parametrize(
    ("url", "lake_url", "resolved"),
    [
        ("s3://b/p?endpoint=archive", OWN, "s3://b/p?endpoint=https://s3.example&region=eu"),
        ("s3://b/p?endpoint=archive&region=x", OWN, "s3://b/p?endpoint=https://s3.example&region=x"),
        ("s3://b/p?endpoint=archive&part_mib=9", OWN, "s3://b/p?endpoint=https://s3.example&part_mib=9&region=eu"),
        ("s3://b/p?endpoint=aws", OWN, "s3://b/p?region=eu-central-1"),
        ("s3://b/p", OWN, "s3://b/p?endpoint=http://127.0.0.1:9&region=us-east-1"),
        ("s3://b/p?conditional_put=0", "s3://lake?region=x", "s3://b/p?conditional_put=0&region=x"),
        ("s3://b/p", "s3://lake?endpoint=archive", "s3://b/p?endpoint=https://s3.example&region=eu"),
        ("s3://b/p?region=x", OWN, "s3://b/p?region=x"),
        ("s3://b/p", "file:///lake", "s3://b/p"),
        (OWN, OWN, OWN),
        ("file:///lake?fsync=0", OWN, "file:///lake?fsync=0"),
    ],
)
def test_how_a_store_is_reached(url: str, lake_url: str, resolved: str) -> None:
    assert resolve(url, NAMED, lake_url) == resolved


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        (OWN.replace("/a?", "/a/repo?"), "s3://lake/a/repo?conditional_put=0"),
        ("s3://b/p?endpoint=archive", "s3://b/p?endpoint=archive"),
        ("s3://b/p", "s3://b/p"),
        ("file:///x", "file:///x"),
    ],
)
def test_a_record_has_no_endpoint(url: str, recorded: str) -> None:
    assert namespace_url(url, NAMED, OWN) == recorded


def test_what_no_setting_names_is_refused_with_what_to_set() -> None:
    with pytest.raises(InvalidName, match=r"object_stores\.NAME\.endpoint"):
        namespace_url("s3://b/p?endpoint=http://127.0.0.1:1", NAMED, OWN)
    for call in (resolve, namespace_url):
        with pytest.raises(InvalidSettings, match=r"object_stores\.attic\.endpoint"):
            call("s3://b/p?endpoint=attic", NAMED, OWN)


@pytest.mark.server
def test_a_changed_endpoint_is_used_only_where_the_repository_is(
    moto_s3_server: S3Server, rclone_s3_server: S3Server, tmp_path: Path
) -> None:
    """The lake's own objects, and a namespace elsewhere, each behind an endpoint of its own."""
    own, namespace = moto_s3_server.url(), f"s3://{BUCKET}/{tmp_path.name}"

    def open_lake(endpoint: str, lake_endpoint: str = moto_s3_server.endpoint) -> Lake:
        objects = own.replace(moto_s3_server.endpoint, lake_endpoint)
        stores = {"archive": {"endpoint": endpoint, "region": "us-east-1"}}
        return refstore.open(kv=f"sqlite://{tmp_path}/kv.sqlite", objects=objects, object_stores=stores)

    with open_lake(moto_s3_server.endpoint) as lake:
        lake.create_repository("beside").upload("main", "a", b"1")
        lake.create_repository("far", namespace=f"{namespace}?endpoint=archive").upload("main", "a", b"2")
        records = [record.namespace for _, record in lake.repositories()]
        assert [urlsplit(each).query for each in records] == ["", "endpoint=archive"]
    with S3FaultProxy(moto_s3_server.endpoint) as moved:
        with open_lake(moved.endpoint, moved.endpoint) as lake:
            assert [lake.repository(name).read("main", "a") for name in ("beside", "far")] == [b"1", b"2"]
        assert moved.log
    with open_lake(rclone_s3_server.endpoint) as lake:
        assert lake.repository("beside").read("main", "a") == b"1"
        with pytest.raises(WrongStore, match="right endpoint"):
            lake.repository("far")
    with pytest.raises(WrongStore, match="does not hold that id"):
        open_lake(moto_s3_server.endpoint, rclone_s3_server.endpoint)
