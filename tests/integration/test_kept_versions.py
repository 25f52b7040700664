"""Buckets that keep versions: what is said and counted there, and what `delete_versions=1` and object lock do."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core import ids
from refstore.errors import ObjectsRefused
from refstore.lake import open_lake_at
from refstore.monitoring import figures
from refstore.objects import open_objects
from refstore.objects.base import DeleteResult, SkippedKeys, VersioningStatus
from refstore.objects.object_look import ObjectLook, look_at
from refstore_gc import deleted_repositories, gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_summary import KEPT_AS_VERSION_OUTCOME, ObjectCount
from refstore_purge import purge_cleanup
from refstore_reaper import repository_removal
from refstore_reaper.daemon import Reaper
from tests.durations import AT_ONCE, unchecked_lake
from tests.kit.logged_events import collecting_events
from tests.offline.test_s3 import let_a_second_pass
from tests.offline.test_tag_mode import let_the_clock_pass
from tests.offline.world import SkippingClock
from tests.purging import rewrite
from tests.reaping import reap_all, release_all, scrub_all
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import Fault, ProxiedRequest, Refuse, S3FaultProxy

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines
    from tests.commands import Command

pytestmark = pytest.mark.server

NOW = GcOptions(grace_days=0, min_age_seconds=0)
DELETE = "&delete_versions=1"
UNTIL = datetime(2038, 1, 1, tzinfo=UTC)


class Version(NamedTuple):
    key: str
    version: str
    size_bytes: int


class KeepingBucket:
    """A bucket of its own that keeps versions, and may lock them."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server = server
        self.name = name
        with server.client() as client:
            client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)

    def url(self, options: str = "", endpoint: str = "") -> str:
        return f"s3://{self.name}/lake?endpoint={endpoint or self.server.endpoint}{options}"

    def versions(self, within: str = "") -> list[Version]:
        with self.server.client() as client:
            pages = client.get_paginator("list_object_versions").paginate(Bucket=self.name)
            found = [each for page in pages for each in page.get("Versions", [])]
        versions = [Version(each.get("Key", ""), each.get("VersionId", ""), each.get("Size", -1)) for each in found]
        return [each for each in versions if within in each.key]

    def markers(self) -> list[str]:
        with self.server.client() as client:
            pages = client.get_paginator("list_object_versions").paginate(Bucket=self.name)
            return [each.get("Key", "") for page in pages for each in page.get("DeleteMarkers", [])]

    def hold(self, within: str, status: Literal["ON", "OFF"] = "ON") -> None:
        """Put a legal hold of S3 on all versions, or take it off."""
        with self.server.client() as client:
            for each in self.versions(within):
                client.put_object_legal_hold(
                    Bucket=self.name, Key=each.key, VersionId=each.version, LegalHold={"Status": status}
                )


@pytest.fixture
def bucket(rgw_server: S3Server) -> KeepingBucket:
    return KeepingBucket(rgw_server, f"kept-{uuid.uuid4().hex}")


@pytest.fixture
def kv(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/kv.sqlite"


def delete_one(refstore: Command, where: tuple[str, ...]) -> Any:
    """Delete an object of ten bytes, reap, and return what the reaper counted."""
    with unchecked_lake(where[1], where[3]) as lake:
        repo = lake.repository("sales")
        repo.upload("main", "a", b"0123456789")
        repo.delete("main", "a")
    return refstore.json("reaper", "--once", *where)


def test_what_stays_as_a_version_is_not_counted_as_reclaimed(bucket: KeepingBucket, kv: str, refstore: Command) -> None:
    where = ("--kv", kv, "--objects", bucket.url())
    refstore.ok("repo", "create", "sales", "--grace", "0", *where)
    done = delete_one(refstore, where)
    assert (done["deleted"], done["bytes"], done["kept"], done["kept_bytes"]) == (1, 0, 1, 10)
    assert [each.size_bytes for each in bucket.versions("/data/")] == [10]

    checks = {each["check"]: each for each in refstore("doctor", *where, "--json").json}
    assert checks["versions of deleted objects"]["state"] == "warning"
    assert "NoncurrentVersionExpiration" in checks["versions of deleted objects"]["advice"]
    with unchecked_lake(kv, bucket.url()) as lake:
        repo = lake.repository("sales")
        own = figures.read_figures(lake.kv, repo.context.repo)
        assert sum(day.bytes for day in own.reclaimed_days) == 0
        concerns = [each.concern for each in figures.find_warnings(own, 0, lake.clock.now_ms())]
        assert figures.Concern.KEEPS_VERSIONS in concerns

    # The option comes later, and holds for repositories that were created without it.
    where = ("--kv", kv, "--objects", bucket.url(DELETE))
    done = delete_one(refstore, where)
    assert (done["deleted"], done["bytes"], done["kept"]) == (1, 10, 0)
    assert len(bucket.versions("/data/")) == 1, "what was deleted before is for the lifecycle rule"
    checks = {each["check"]: each for each in refstore("doctor", *where, "--json").json}
    assert checks["versions of deleted objects"]["state"] == "ok"


def test_what_is_pruned_stays_as_a_version_or_goes_with_all_of_them(bucket: KeepingBucket) -> None:
    for options, kept, left in (("", {"a"}, ["a", "b", "b", "c"]), (DELETE, set[str](), ["b", "b"])):
        with closing(open_objects(bucket.url(options))) as store:
            for key in ("a", "b", "c"):
                store.put(f"data{options}/{key}", b"0123456789")
            (listed,) = store.list_pages(f"data{options}/", skipped=SkippedKeys())
            store.put(f"data{options}/b", b"another one")
            store.delete_many([f"data{options}/c"])
            deletion = store.delete_unchanged(listed)
            assert [key[-1] for key in deletion.deleted_keys] == ["a"]
            assert {key[-1] for key, _ in deletion.kept_keys} == kept
            assert [key[-1] for key in deletion.changed_keys] == ["b"]
            assert [key[-1] for key in deletion.missing_keys] == ["c"]
        assert sorted(each.key[-1] for each in bucket.versions(f"data{options}/")) == left


def test_a_lock_is_named_and_the_object_counts_as_failed(bucket: KeepingBucket, kv: str, refstore: Command) -> None:
    where = ("--kv", kv, "--objects", bucket.url(DELETE))
    refstore.ok("repo", "create", "sales", "--grace", "0", *where)
    with unchecked_lake(kv, bucket.url(DELETE)) as lake:
        repo = lake.repository("sales")
        repo.upload("main", "a", b"0123456789")
        bucket.hold("/data/")
        repo.delete("main", "a")
    ran = refstore("reaper", "--once", *where, "--json")
    assert ran.code == 5
    assert (ran.json["deleted"], ran.json["bytes"], ran.json["failed"]) == (0, 0, 1)
    why = refstore.ok("why", *where, "sales", "main", "a").out
    assert "a legal hold of S3 keeps version" in why
    bucket.hold("/data/", "OFF")
    done = refstore.json("reaper", "--once", *where)
    assert (done["deleted"], done["bytes"], done["failed"]) == (1, 10, 0)
    assert bucket.versions("/data/") == []


def test_the_store_deletes_all_versions_of_a_key_and_nothing_else(bucket: KeepingBucket) -> None:
    with (
        closing(open_objects(bucket.url())) as plain,
        closing(open_objects(bucket.url(DELETE))) as store,
        bucket.server.client() as client,
    ):
        for key in ("a", "a/b", "a2", "twice", "held", "retained", "_refstore/own", "hidden"):
            plain.put(key, b"x")
        plain.put("twice", b"y")
        assert [key for key, _ in plain.delete_many(["hidden"]).kept_keys] == ["hidden"]
        for key in ("lake/held", "lake/_refstore/own"):
            client.put_object_legal_hold(Bucket=bucket.name, Key=key, LegalHold={"Status": "ON"})
        client.put_object_retention(
            Bucket=bucket.name, Key="lake/retained", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": UNTIL}
        )
        client.put_object(Bucket=bucket.name, Key="lake/held", Body=b"newer, and not held")
        deletion = store.delete_many(["a", "twice", "held", "retained", "_refstore/own", "hidden", "never"])
        assert (deletion.deleted_keys, deletion.missing_keys) == (("a", "twice", "hidden", "_refstore/own"), ("never",))
        reasons = dict(deletion.failed_keys)
        assert set(reasons) == {"held", "retained"}
        assert "legal hold" in reasons["held"]
        assert "governance" in reasons["retained"]
        assert "2038-01-01" in reasons["retained"]
        # An own file says nothing any more, though its bytes stay.
        assert [key for key, _ in deletion.kept_keys] == ["_refstore/own"]
        assert not store.is_stored("a")
        assert store.is_stored("_refstore/own")
        assert store.read("held") == b"newer, and not held", "an older content must not show again"
        assert {each.key.removeprefix("lake/") for each in bucket.versions()} == {
            "a/b", "a2", "held", "retained", "_refstore/own",
        }  # fmt: skip
        assert bucket.markers() == ["lake/_refstore/own"]
        store.delete_many(["a/b", "a2"])
        assert len(bucket.versions()) == 4


def test_a_bucket_that_cannot_be_asked_is_not_known(bucket: KeepingBucket) -> None:
    def plan(request: ProxiedRequest) -> Fault | None:
        return Refuse(403, "AccessDenied") if "versioning" in request.query else None

    with S3FaultProxy(bucket.server.endpoint, plan) as proxy:
        with closing(open_objects(bucket.url(endpoint=proxy.endpoint))) as store:
            kept = store.versioning_status()
            assert (kept.keeps_versions, "allow s3:GetBucketVersioning" in kept.warning) == (None, True)
            store.put("a", b"x")
            # The answers to the deletions themselves say it.
            assert [key for key, _ in store.delete_many(["a"]).kept_keys] == ["a"]
        with closing(open_objects(bucket.url(DELETE, proxy.endpoint))) as store:
            store.put("a", b"x")
            assert store.delete_many(["a"]) == DeleteResult(("a",), (), ())
            assert bucket.versions() == []


def test_a_reaper_warns_once_of_each_bucket_that_keeps_versions(bucket: KeepingBucket, kv: str) -> None:
    """Also of one that has the name of another, elsewhere; and when it answers, if it did not before."""
    faults: list[Fault | None] = [Refuse(503, "SlowDown")] * 20

    def plan(request: ProxiedRequest) -> Fault | None:
        return faults.pop() if "versioning" in request.query and faults else None

    with S3FaultProxy(bucket.server.endpoint, plan) as proxy:
        elsewhere = {"elsewhere": {"endpoint": proxy.endpoint}}
        with open_lake_at(kv, bucket.url(), clock=SkippingClock(), stores=elsewhere) as lake:
            lake.create_repository("here")
            lake.create_repository("there", namespace=f"s3://{bucket.name}/there?endpoint=elsewhere")
            with Reaper(lake, ReaperSettings()) as reaper, collecting_events() as events:
                for _ in range(3):
                    reaper.run_passes(lambda: False)
                    faults.clear()
                    lake.clock.sleep(2)  # for longer than the reaper leaves the one alone that did not answer
    warned = [each for each in events if each["event"] == "deleting_frees_no_space"]
    assert sorted(each["repository"] for each in warned) == ["here", "there"]


@pytest.mark.parametrize("answer", [Refuse(501, "NotImplemented"), Refuse(405, "MethodNotAllowed")])
def test_a_server_without_versions_keeps_none(bucket: KeepingBucket, answer: Refuse) -> None:
    def plan(request: ProxiedRequest) -> Fault | None:
        return answer if request.query.keys() & {"versioning", "versions"} else None

    with S3FaultProxy(bucket.server.endpoint, plan) as proxy:
        for option in ("", DELETE):
            with closing(open_objects(bucket.url(option, proxy.endpoint))) as store:
                assert store.versioning_status() == VersioningStatus(keeps_versions=False, warning="")
                store.put("a", b"x")
                assert store.delete_many(["a"]) == DeleteResult(("a",), (), ())


def test_who_may_not_list_versions_is_told_at_once(bucket: KeepingBucket) -> None:
    asked: list[str] = []

    def plan(request: ProxiedRequest) -> Fault | None:
        if "versions" not in request.query:
            return None
        asked.append(request.target)
        return Refuse(403, "AccessDenied")

    with (
        S3FaultProxy(bucket.server.endpoint, plan) as proxy,
        closing(open_objects(bucket.url(DELETE, proxy.endpoint))) as store,
        pytest.raises(ObjectsRefused, match="s3:ListBucketVersions"),
    ):
        store.delete_many(["a"])
    assert len(asked) == 1


@pytest.mark.parametrize("option", ["", DELETE])
def test_a_sweep_counts_what_the_bucket_keeps(bucket: KeepingBucket, kv: str, engines: Engines, option: str) -> None:
    with unchecked_lake(kv, bucket.url(option)) as lake:
        repo = lake.create_repository("sales", grace_seconds=0)
        repo.set_retention('{"default_retention_days": 0, "grace_days": 0}')
        for body, day in ((b"old", 1), (b"new", 2)):
            repo.upload("main", "a", body)
            repo.commit("main", "change", date=datetime(1970, 1, 1 + day, tzinfo=UTC))
        release_all(repo)
        gone = repo.stat("main~1", "a").address
    with unchecked_lake(kv, bucket.url(option), safety=AT_ONCE) as lake:
        repo = lake.repository("sales")
        let_a_second_pass(repo)
        latest = gc_run.run_nightly(repo.context, engines, NOW).latest_summary
        assert latest.sweep is not None
        counted = {name: count.objects for name, count in latest.sweep.outcomes.items()}
        stays = bool(bucket.versions(gone))
        if option:
            assert (counted, stays, latest.versions_warning) == ({"deleted": 1}, False, "")
        else:
            assert (counted, stays, latest.sweep.failed_objects) == ({KEPT_AS_VERSION_OUTCOME: 1}, True, 0)
            assert latest.sweep.failures == [f"bucket {bucket.name!r} keeps it as a version"]
            assert "keeps versions" in latest.versions_warning
        assert bool(figures.read_figures(lake.kv, repo.context.repo).gc.reclaimed) == bool(option)


@pytest.mark.parametrize("option", ["", DELETE])
def test_what_ends_backups_and_repositories_counts_what_the_bucket_keeps(
    bucket: KeepingBucket, kv: str, engines: Engines, option: str
) -> None:
    with unchecked_lake(kv, bucket.url(option), clock=SkippingClock(off_seconds=-60 * 86_400)) as lake:
        repo = lake.create_repository("sales", grace_seconds=0)
        repo.upload("main", "a", b"original")
        repo.commit("main", "change")
        release_all(repo)
        rewrite(repo, "main", "a", b"less")
        lake.clock.sleep(31 * 86_400)
        cleaned = purge_cleanup.clean_up(repo.context)
        backup = ObjectCount(1, len(b"original"))
        assert (cleaned.backups, cleaned.kept_contents) == (
            (backup, ObjectCount()) if option else (ObjectCount(), backup)
        )
        lake.delete_repository("sales")
        ((_, record),) = lake.all_repositories()
        for _ in range(3):
            lake.clock.sleep(repo.context.safety.scrub_after_seconds + 1)
            scrub_all(repo)
            reap_all(repo)
        assert repository_removal.remove(repo.context, record)
    with unchecked_lake(kv, bucket.url(option), safety=AT_ONCE) as lake:
        ((repo_id, record),) = deleted_repositories.closed_repositories(lake)
        store = lake.context(ids.repository_name("sales"), record).objects
        let_the_clock_pass(store, [info.key for info in store.list()])
        cleared = deleted_repositories.clear_repository(lake, repo_id, record, engines, NOW)
        assert cleared.is_forgotten
        assert cleared.sweep is not None
        assert set(cleared.sweep.outcomes) == ({"deleted"} if option else {KEPT_AS_VERSION_OUTCOME})
        # Its own files (journal, reports, claim) go with their versions, too.
        assert bool(bucket.versions("/sales.")) == (not option)


def test_a_version_that_is_written_after_the_look_stays(bucket: KeepingBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion of all versions of a key has no way back."""
    store = open_objects(bucket.url(DELETE))
    for key in ("a", "b"):
        store.put(key, b"old")
    listed = next(store.list_pages(skipped=SkippedKeys()))

    def look_and_write(*args: Any) -> ObjectLook:
        look = look_at(*args)
        store.put("b", b"new")
        return look

    monkeypatch.setattr("refstore.objects.s3.look_at", look_and_write)
    deletion = store.delete_unchanged(listed)
    assert (deletion.deleted_keys, deletion.changed_keys) == (("a",), ("b",))
    assert store.read("b") == b"new"
    assert not bucket.versions("/a")
    store.close()
