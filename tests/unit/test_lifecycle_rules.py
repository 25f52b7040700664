"""The lifecycle rules of repositories that share a bucket, and of a bucket that is one lake's alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from refstore.errors import Conflict, Invalid
from refstore.gc_marks import OfflineRun, RunState
from refstore.lake import open_lake_at
from refstore.objects import open_objects
from refstore.objects.base import ObjectStore, VersioningStatus
from refstore.records.mark_records import GcRun
from refstore_gc import bucket_lifecycle
from refstore_gc.bucket_lifecycle import LifecycleRule
from tests.commands import Command
from tests.servers.s3_base import S3Server

DEPLOY = Path(__file__).parents[2] / "deploy" / "lifecycle"
DAY_MS = 86_400_000


class Bucket:
    def __init__(self) -> None:
        self.rules: list[dict[str, Any]] = []
        self.url = ""

    def at(self, url: str) -> ObjectStore:
        self.url = url
        return cast(ObjectStore, self)

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        return list(self.rules)

    def set_lifecycle_rules(self, rules: list[dict[str, Any]]) -> None:
        self.rules = rules


@pytest.mark.parametrize(("one", "other"), [("lake/sales", "lake-sales"), ("a" * 300 + "/one", "a" * 300 + "/two")])
def test_a_namespaces_rule_does_not_take_the_place_of_anothers(one: str, other: str) -> None:
    bucket = Bucket()
    for prefix in (one, other, other):
        store = bucket.at(f"s3://bucket/{prefix}")
        bucket_lifecycle.apply_rule(store, bucket_lifecycle.repository_rule(store))
    assert [each["Filter"]["And"]["Prefix"] for each in bucket.rules] == [f"{one}/", f"{other}/"]


def test_a_prefix_is_the_keys_own_and_not_the_urls() -> None:
    assert bucket_lifecycle.repository_rule(Bucket().at("s3://bucket/a%20lake/sales")).prefix == "a lake/sales/"


@pytest.mark.parametrize(
    ("file", "rule"), [("bucket.json", LifecycleRule("")), ("repository.json", LifecycleRule("lake/sales/"))]
)
def test_the_files_to_deploy_are_what_the_command_prints(file: str, rule: LifecycleRule) -> None:
    assert json.loads((DEPLOY / file).read_text()) == {"Rules": [rule.document()]}


def test_a_mark_that_waits_too_long_for_the_bucket_is_told() -> None:
    def waiting(mark_id: str, state: RunState, tagged_ms: int) -> OfflineRun:
        return OfflineRun(mark_id, GcRun("w", state, 0, 0, 0, "d", tagged_ms=tagged_ms))

    runs = [
        waiting("old", RunState.SWEEPING, 1),
        waiting("new", RunState.SWEEPING, 2 * DAY_MS),
        waiting("plain", RunState.SWEEPING, 0),
    ]
    (line,) = bucket_lifecycle.find_overdue(runs, 4 * DAY_MS)
    assert line.startswith("mark old: ")
    assert "tagged on 1970-01-01" in line


# ---- a whole bucket


class Shared:
    """A bucket of its own on a server, with two repositories."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.url = f"s3://own-{uuid4().hex}/a%20lake?endpoint={server.endpoint}"
        self.bucket = urlsplit(self.url).netloc
        self.client = server.client
        with server.client() as client:
            client.create_bucket(Bucket=self.bucket)
        self.lake = open_lake_at(f"sqlite://{folder}/kv.sqlite", self.url)
        for name in ("sales", "returns"):
            self.lake.create_repository(name).upload("main", "a", b"data")

    def put(self, key: str) -> None:
        with self.client() as client:
            client.put_object(Bucket=self.bucket, Key=key, Body=b"")

    def check(self) -> None:
        store = bucket_lifecycle.bucket_store(self.lake)
        try:
            bucket_lifecycle.check_bucket_is_ours(self.lake, store)
        finally:
            store.close()


@pytest.fixture
def shared(tmp_path: Path, moto_s3_server: S3Server) -> Iterator[Shared]:
    made = Shared(tmp_path, moto_s3_server)
    yield made
    made.lake.close()


@pytest.mark.server
def test_a_bucket_of_namespaces_alone_is_the_lakes(shared: Shared) -> None:
    shared.check()
    shared.lake.delete_repository("sales")
    shared.check()


@pytest.mark.server
@pytest.mark.parametrize("key", ["0", "a lake/", "a lake/0", "a lake/zz", "logs/2026", "zz"])
def test_a_bucket_with_anything_else_is_shared(shared: Shared, key: str) -> None:
    if key.endswith("/"):
        key += "readme"
    shared.put(key)
    with pytest.raises(Conflict, match="not this lake's alone: " + key):
        shared.check()


def test_a_lake_that_is_in_no_bucket_has_no_rule(tmp_path: Path) -> None:
    with (
        open_lake_at("memory://", f"file://{tmp_path}") as lake,
        pytest.raises(Invalid, match="has no lifecycle rules"),
    ):
        bucket_lifecycle.bucket_store(lake)


@pytest.mark.server
def test_the_command_applies_one_rule_to_the_whole_bucket(shared: Shared, tmp_path: Path, refstore: Command) -> None:
    where = ("--kv", f"sqlite://{tmp_path}/kv.sqlite", "--objects", shared.url)
    printed = refstore.ok("gc", "lifecycle", "--whole-bucket", *where)
    assert json.loads(printed.out) == {"Rules": [LifecycleRule("").document()]}
    assert "whoever set it" in printed.err
    other = {"ID": "somebody-elses", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}
    with shared.client() as client:
        client.put_bucket_lifecycle_configuration(Bucket=shared.bucket, LifecycleConfiguration={"Rules": [other]})
        assert refstore("gc", "lifecycle", "--whole-bucket", "--apply", *where).code == 2, "nobody was asked"
        would = json.loads(refstore.ok("gc", "lifecycle", "--whole-bucket", "--dry-run", *where).out)
        assert [each["ID"] for each in would["Rules"]] == ["somebody-elses", "refstore-expire"]
        assert len(client.get_bucket_lifecycle_configuration(Bucket=shared.bucket)["Rules"]) == 1
        refstore.ok("gc", "lifecycle", "--whole-bucket", "--apply", "--yes", *where)
        refstore.ok("gc", "lifecycle", "sales", "--apply", "--yes", *where)
        ids = [each["ID"] for each in client.get_bucket_lifecycle_configuration(Bucket=shared.bucket)["Rules"]]
    assert ids[:2] == ["somebody-elses", "refstore-expire"]
    assert len(ids) == 3
    shared.put("logs/2026")
    assert refstore("gc", "lifecycle", "--whole-bucket", "--apply", "--yes", *where).code == 4
    assert refstore("gc", "lifecycle", "sales", "--whole-bucket", *where).code == 2
    assert refstore("gc", "lifecycle", *where).code == 2


@pytest.mark.server
def test_a_real_bucket_is_checked_by_the_same_requests(rgw_server: S3Server, tmp_path: Path) -> None:
    shared = Shared(tmp_path, rgw_server)
    try:
        shared.check()
        shared.put("zz")
        with pytest.raises(Conflict, match="zz"):
            shared.check()
        store = open_objects(shared.url)
        bucket_lifecycle.apply_rule(store, bucket_lifecycle.repository_rule(store))
        assert [rule["ID"] for rule in store.lifecycle_rules()] == [bucket_lifecycle.repository_rule(store).id]
        store.close()
    finally:
        shared.lake.close()


@pytest.mark.server
def test_a_bucket_that_keeps_versions_says_so(shared: Shared) -> None:
    """Deleting is then not the end: the report of a purge tells."""
    store = bucket_lifecycle.bucket_store(shared.lake)
    assert store.versioning_status() == VersioningStatus(False, "")
    with shared.client() as client:
        client.put_bucket_versioning(Bucket=shared.bucket, VersioningConfiguration={"Status": "Enabled"})
    kept = store.versioning_status()
    assert kept.keeps_versions
    assert "keeps versions of what is deleted" in kept.warning
    assert "NoncurrentVersionExpiration" in kept.warning
