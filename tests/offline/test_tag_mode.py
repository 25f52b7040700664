"""The sweep's mode `tag`: refstore tags, and the bucket's lifecycle rule deletes, a day or more later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec
import pytest

from refstore.cli.rows import lifetime_words
from refstore.core import ids
from refstore.errors import Gone, ObjectsUnavailable, RefstoreError
from refstore.gc_marks import Marks, RunState
from refstore.gc_marks.sweeps import Sweeps
from refstore.kv.base import ABSENT, Key
from refstore.namespaces import folder_url
from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore.operations import rules_document
from refstore.operations.address_info import AddressState
from refstore.records.keys import NAMESPACES
from refstore.repository import Repository
from refstore.versioning.commits import object_names
from refstore_gc import bucket_lifecycle, deleted_repositories, gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_layout import TAG
from refstore_gc.run_summary import SweepMode, read_manifest, write_manifest
from refstore_reaper import repository_removal
from tests.durations import AT_ONCE, unchecked_lake
from tests.offline.test_s3 import client_of, data_of, lake_with_history, let_a_second_pass
from tests.offline.world import SkippingClock, outcomes
from tests.purging import content_of, rewrite
from tests.reaping import reap_all, scrub_all
from tests.servers.s3_base import BUCKET, S3Server
from tests.servers.s3_ceph import CephRgw
from tests.servers.s3_proxy import Fault, ProxiedRequest, Refuse, S3FaultProxy
from tests.servers.s3_servers import need_ceph

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

FOLDERS = ("data/", object_names.RANGES, object_names.METARANGES, object_names.ADDED_ADDRESSES)


def tagging(*, full: bool = False) -> GcOptions:
    return GcOptions(grace_days=0, min_age_seconds=0, mode="tag", is_full=full)


def tags_of(server: S3Server, repo: Repository, address: str) -> list[tuple[str, str]]:
    prefix = urlsplit(repo.context.objects.url).path.strip("/")
    with server.client() as client:
        found = client.get_object_tagging(Bucket=BUCKET, Key=f"{prefix}/{address}")["TagSet"]
    return [(tag["Key"], tag["Value"]) for tag in found]


def let_the_clock_pass(store: ObjectStore, keys: Sequence[str]) -> None:
    """Until the store's clock, which counts whole seconds, says that the objects are older than now."""
    newest = max(store.head(key).mtime_ms for key in keys)
    store.put("_refstore/gc/now", b"")
    while store.head("_refstore/gc/now").mtime_ms <= newest:
        store.put("_refstore/gc/now", b"")


def states(repo: Repository) -> list[str]:
    return [each.state_text for each in Marks(repo.context).runs.scan()]


@pytest.mark.server
def test_what_is_tagged_waits_for_the_bucket_and_is_no_orphan(
    moto_s3_server: S3Server, tmp_path: Path, both_engines: Engines
) -> None:
    with lake_with_history(tmp_path, moto_s3_server) as (repo, gone):
        let_a_second_pass(repo)
        first = gc_run.run_nightly(repo.context, both_engines, tagging()).latest_summary
        assert (first.state, outcomes(first)) == ("tagged", {"tagged": 1})
        assert tags_of(moto_s3_server, repo, gone) == [(TAG, "true")]
        assert states(repo) == ["tagged"]

        second = gc_run.run_nightly(repo.context, both_engines, tagging(full=True))
        assert (second.mark_summary.marked.objects, second.mark_summary.drift) == (0, {})
        assert second.mark_summary.pending.objects == 1
        assert [
            (each.mark_id, each.state, outcomes(each))
            for each in second.sweep_summaries
            if each.mark_id == first.mark_id
        ] == [(first.mark_id, "tagged", {"tagged": 1})]
        assert [each.mark_id for each in second.waiting_marks] == [first.mark_id]

        assert repo.context.objects.delete_many([gone]).deleted_keys  # as the bucket does it
        third = gc_run.run_nightly(repo.context, both_engines, tagging(full=True))
        (settled,) = [each for each in third.sweep_summaries if each.mark_id == first.mark_id]
        assert (settled.state, outcomes(settled)) == ("swept", {"deleted by the bucket": 1})
        assert settled.sweep is not None
        assert settled.sweep.new_outcomes["deleted by the bucket"].objects == 1
        assert third.waiting_marks == []


@pytest.mark.server
def test_what_is_tagged_is_out_of_sight_from_the_tagging_on_and_the_rest_is_not(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    with lake_with_history(tmp_path, moto_s3_server) as (repo, gone), client_of(tmp_path, moto_s3_server) as client:
        expired = client.get_commit("main~1").id
        let_a_second_pass(repo)
        assert client.read(expired, "a") == b"old"
        gc_run.run_nightly(repo.context, engines, tagging())
        assert gone in data_of(repo), "the bucket has not deleted it"

        def told() -> str:
            line = next(each for each in client.history("main") if each.commit.id == expired)
            return lifetime_words(line)

        with pytest.raises(Gone, match="for the bucket to delete"):
            client.read(expired, "a")
        with pytest.raises(Gone):
            client.stat("main~1", "a")
        listed = [item.path for item in client.list(expired)]
        assert "a" not in listed
        for ref in (expired, "main~1", "main"):
            assert client.read(ref, "kept-1") == b"old"
        assert told().startswith("tagged since ")
        assert client.why(gone).info.state is AddressState.TAGGED
        assert client.why(gone).meaning.endswith("is there until the bucket deletes it")
        with pytest.raises(Gone):
            client.unmark(expired)

        assert repo.context.objects.delete_many([gone]).deleted_keys
        gc_run.run_nightly(repo.context, engines, tagging())
        assert told().startswith("swept, deleted by the bucket")
        with pytest.raises(Gone, match="only a backup has it"):
            client.read(expired, "a")
        assert client.read(expired, "kept-1") == b"old"
        assert [item.path for item in client.list(expired)] == listed


@pytest.mark.server
def test_objects_that_the_store_does_not_tag_are_told_and_tried_again(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    with (
        S3FaultProxy(moto_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, moto_s3_server, proxy) as (repo, gone),
    ):
        store = repo.context.objects
        orphans = [ids.new_address(ids.RandomIds(), 1_700_000_000_000 + number) for number in range(60)]
        for orphan in orphans:
            store.put(orphan, b"x")
        let_a_second_pass(repo)
        refused, busy = orphans[7], orphans[21]

        def plan(request: ProxiedRequest) -> Fault | None:
            if request.method != "PUT" or "tagging" not in request.query:
                return None
            target = unquote(request.target)
            return (
                Refuse(status=403, code="AccessDenied") if refused in target else Refuse() if busy in target else None
            )

        proxy.plan = plan
        first = gc_run.run_nightly(repo.context, engines, tagging())
        assert outcomes(first.latest_summary) == {"tagged": 59, "failed": 2}
        assert first.failed_objects == 2
        assert first.latest_summary.sweep is not None
        assert "AccessDenied" in " ".join(first.latest_summary.sweep.failures)
        assert states(repo) == ["sweeping"], "what is not tagged the bucket never deletes"
        assert tags_of(moto_s3_server, repo, gone)
        assert not tags_of(moto_s3_server, repo, refused)
        proxy.plan = None
        again = gc_run.sweep(repo.context, engines, first.latest_summary.mark_id)
        assert (again.state, outcomes(again)) == ("tagged", {"tagged": 61})
        assert tags_of(moto_s3_server, repo, refused)
        assert tags_of(moto_s3_server, repo, busy)


@pytest.mark.server
@pytest.mark.parametrize("mode", ["tag", "delete"])
def test_a_store_that_refuses_every_object_has_failed_and_the_night_goes_on(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines, mode: SweepMode
) -> None:
    """The credentials lack a right: no setting is wrong, and the next night tries again."""
    right = {"tag": "s3:PutObjectTagging", "delete": "DeleteObject"}[mode]
    with (
        S3FaultProxy(moto_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, moto_s3_server, proxy) as (repo, _gone),
    ):
        let_a_second_pass(repo)

        def plan(request: ProxiedRequest) -> Fault | None:
            is_tagging = request.method == "PUT" and "tagging" in request.query
            is_deletion = request.is_bulk_delete and any("/data/" in key for key in request.delete_keys)
            return Refuse(status=403, code="AccessDenied") if is_tagging or is_deletion else None

        proxy.plan = plan
        options = GcOptions(grace_days=0, min_age_seconds=0, mode=mode)
        unswept: list[RefstoreError] = []
        ran = gc_run.run_nightly(repo.context, engines, options, on_sweep_error=lambda _, error: unswept.append(error))
        assert unswept == []
        assert (ran.failed_objects, outcomes(ran.latest_summary)) == (1, {"failed": 1})
        assert ran.latest_summary.sweep is not None
        (why,) = ran.latest_summary.sweep.failures
        assert right in why
        again = gc_run.run_nightly(repo.context, engines, options)
        assert (again.failed_objects, again.sweep_summaries[0].mark_id, outcomes(again.sweep_summaries[0])) == (
            1,
            ran.latest_summary.mark_id,
            {"failed": 1},
        )
        proxy.plan = None
        done = gc_run.sweep(repo.context, engines, ran.latest_summary.mark_id)
        assert outcomes(done) == {"tagged" if mode == "tag" else "deleted": 1}


@pytest.mark.server
def test_a_tag_that_a_hold_takes_off_and_the_store_refuses_to_is_said_and_tried_again(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    hold = '{"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "a"}]}'
    with (
        S3FaultProxy(moto_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, moto_s3_server, proxy) as (repo, gone),
    ):
        let_a_second_pass(repo)
        mark_id = gc_run.run_nightly(repo.context, engines, tagging()).latest_summary.mark_id
        rules_document.set_rules(repo.context, hold, by="")
        proxy.plan = lambda request: (
            Refuse(status=403, code="AccessDenied")
            if request.method == "DELETE" and "tagging" in request.query
            else None
        )
        with pytest.raises(ObjectsUnavailable, match=r"1 objects .* keep their tag.*s3:DeleteObjectTagging"):
            gc_run.sweep(repo.context, engines, mark_id, mode="delete")
        proxy.plan = None
        assert outcomes(gc_run.sweep(repo.context, engines, mark_id, mode="delete")) == {"excluded": 1}
        assert tags_of(moto_s3_server, repo, gone) == []


@pytest.mark.server
def test_a_bucket_that_never_deletes_need_not_be_waited_for(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    with lake_with_history(tmp_path, moto_s3_server) as (repo, gone):
        let_a_second_pass(repo)
        mark_id = gc_run.run_nightly(repo.context, engines, tagging()).latest_summary.mark_id
        summary = gc_run.sweep(repo.context, engines, mark_id, mode="delete")
        assert (summary.state, outcomes(summary)) == ("swept", {"deleted": 1})
        assert gone not in data_of(repo)


@pytest.mark.server
def test_a_hold_that_is_set_after_the_tagging_keeps_it_from_being_deleted_by_hand(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    with lake_with_history(tmp_path, moto_s3_server) as (repo, gone):
        let_a_second_pass(repo)
        mark_id = gc_run.run_nightly(repo.context, engines, tagging()).latest_summary.mark_id
        rules_document.set_rules(
            repo.context, '{"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "a"}]}', by=""
        )
        assert outcomes(gc_run.sweep(repo.context, engines, mark_id, mode="delete")) == {"excluded": 1}
        assert gone in data_of(repo)
        assert tags_of(moto_s3_server, repo, gone) == [], "or the bucket would delete it"


@pytest.mark.server
def test_a_store_that_does_not_say_what_is_left_settles_nothing(
    moto_s3_server: S3Server, tmp_path: Path, both_engines: Engines
) -> None:
    with (
        S3FaultProxy(moto_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, moto_s3_server, proxy) as (repo, _gone),
    ):
        let_a_second_pass(repo)
        mark_id = gc_run.run_nightly(repo.context, both_engines, tagging()).latest_summary.mark_id
        proxy.plan = lambda request: Refuse() if request.method == "HEAD" and "/data/" in request.target else None
        with pytest.raises(ObjectsUnavailable):
            gc_run.sweep(repo.context, both_engines, mark_id)
        assert states(repo) == ["tagged"]
        proxy.plan = None
        assert outcomes(gc_run.sweep(repo.context, both_engines, mark_id)) == {"tagged": 1}


@pytest.mark.server
def test_a_sweep_that_died_before_it_noted_the_tags_notes_them_later(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lake_with_history(tmp_path, moto_s3_server) as (repo, _gone):
        let_a_second_pass(repo)

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Sweeps, "note_tagged", dies)
            with pytest.raises(KeyboardInterrupt):
                gc_run.run_nightly(repo.context, engines, tagging())
        (only,) = Marks(repo.context).runs.scan()
        assert (only.state, only.state_text) == (RunState.SWEEPING, "sweeping")
        summary = gc_run.sweep(repo.context, engines, only.mark_id)
        assert (summary.state, outcomes(summary)) == ("tagged", {"tagged": 1})


# ---- a deleted repository


def delete_and_drain(folder: Path, server: S3Server) -> None:
    with unchecked_lake(f"sqlite://{folder}/kv.sqlite", server.url(), clock=SkippingClock()) as lake:
        repo = lake.create_repository("sales", grace_seconds=0)
        for body in (b"old", b"new"):
            repo.upload("main", "a", body)
            repo.commit("main", "change")
        lake.delete_repository("sales")
        ((_, record),) = lake.all_repositories()
        for _ in range(3):
            lake.clock.sleep(repo.context.safety.scrub_after_seconds + 1)
            scrub_all(repo)
            reap_all(repo)
        assert repository_removal.remove(repo.context, record)


@pytest.mark.server
def test_a_deleted_repositorys_namespace_is_free_once_the_bucket_has_deleted(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    delete_and_drain(tmp_path, moto_s3_server)
    with unchecked_lake(f"sqlite://{tmp_path}/kv.sqlite", moto_s3_server.url(), safety=AT_ONCE) as lake:
        ((repo, record),) = deleted_repositories.closed_repositories(lake)
        store = lake.context(ids.repository_name("sales"), record).objects
        let_the_clock_pass(store, [info.key for info in store.list()])
        left = [info.key for prefix in FOLDERS for info in store.list(prefix)]
        assert len(left) > 2

        first = deleted_repositories.clear_repository(lake, repo, record, engines, tagging())
        assert (first.waiting_objects.objects, first.is_forgotten, first.failed_objects) == (len(left), False, 0)
        with S3FaultProxy(moto_s3_server.endpoint) as proxy:
            lake.open_store = lambda url: open_objects(
                url.replace(moto_s3_server.endpoint, proxy.endpoint) if url == store.url else url
            )
            with unchecked_lake(f"sqlite://{tmp_path}/kv.sqlite", moto_s3_server.url(), safety=AT_ONCE) as again:
                again.open_store = lake.open_store
                second = deleted_repositories.clear_repository(again, repo, record, engines, tagging())
            assert not [request for request, _ in proxy.log if "tagging" in request.query], "it is tagged already"
        assert (second.waiting_objects.objects, second.tagged_ms, second.is_forgotten) == (
            len(left),
            first.tagged_ms,
            False,
        )

        late = ids.new_address(ids.RandomIds(), 1_700_000_000_000)
        store.put(late, b"a PUT that was under way")
        let_the_clock_pass(store, [late])
        store.delete_many(left)  # as the bucket does it
        third = deleted_repositories.clear_repository(lake, repo, record, engines, tagging())
        assert (third.waiting_objects.objects, third.tagged_ms) == (1, first.tagged_ms)
        store.delete_many([late])
        assert deleted_repositories.clear_repository(lake, repo, record, engines, tagging()).is_forgotten
        assert [info.key for info in store.list()] == []
        assert lake.kv.get(Key(NAMESPACES, folder_url(record.namespace))) is ABSENT
        lake.open_store = open_objects
        lake.create_repository("again", namespace=record.namespace)


@pytest.mark.server
def test_what_of_a_deleted_repository_is_not_tagged_is_tried_again(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    delete_and_drain(tmp_path, moto_s3_server)
    with (
        S3FaultProxy(moto_s3_server.endpoint) as proxy,
        unchecked_lake(f"sqlite://{tmp_path}/kv.sqlite", moto_s3_server.url(), safety=AT_ONCE) as lake,
    ):
        ((repo, record),) = deleted_repositories.closed_repositories(lake)
        lake.open_store = lambda url: open_objects(url.replace(moto_s3_server.endpoint, proxy.endpoint))
        store = lake.context(ids.repository_name("sales"), record).objects
        let_the_clock_pass(store, [info.key for info in store.list()])
        one = next(iter(store.list("data/"))).key

        def plan(request: ProxiedRequest) -> Fault | None:
            refused = request.method == "PUT" and "tagging" in request.query and one in unquote(request.target)
            return Refuse(status=403, code="AccessDenied") if refused else None

        proxy.plan = plan
        assert deleted_repositories.clear_repository(lake, repo, record, engines, tagging()).failed_objects == 1
        proxy.plan = None
        second = deleted_repositories.clear_repository(lake, repo, record, engines, tagging())
        assert (second.failed_objects, second.is_forgotten) == (0, False)
        assert second.sweep is not None
        assert second.sweep.failed_objects == 0
        assert (
            second.waiting_objects.objects
            == second.sweep.tagged_count.objects
            == sum(1 for prefix in FOLDERS for _ in store.list(prefix))
        )


# ---- a real bucket


@pytest.fixture(scope="module")
def short_days(s3_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Ceph RGW, whose days are five seconds long."""
    need_ceph()
    with CephRgw(tmp_path_factory.mktemp("short-days") / "rgw", lifecycle_day_seconds=5) as server:
        yield server


def until(done: Callable[[], bool], *, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "the bucket did not delete what was tagged"
        time.sleep(1)


class VersionedBucket(S3Server):
    """A bucket of a server that keeps versions, and in which refstore deletes them."""

    options = "&delete_versions=1"

    def __init__(self, server: S3Server) -> None:
        super().__init__(server.port)
        with server.client() as client:
            client.create_bucket(Bucket="versioned")
            client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})

    def url(self, prefix: str | None = None, *, endpoint: str | None = None) -> str:
        return super().url(prefix, endpoint=endpoint).replace(BUCKET, "versioned")


@pytest.mark.server
@pytest.mark.parametrize("where", ["one namespace", "whole bucket", "with versions"])
def test_a_real_bucket_deletes_what_is_tagged_and_nothing_else(
    short_days: S3Server, tmp_path: Path, engines: Engines, where: str
) -> None:
    whole_bucket = where == "whole bucket"
    if where == "with versions":
        short_days = VersionedBucket(short_days)
    with lake_with_history(tmp_path, short_days) as (repo, gone), client_of(tmp_path, short_days) as client:
        store = repo.context.objects
        rule = bucket_lifecycle.LifecycleRule("") if whole_bucket else bucket_lifecycle.repository_rule(store)
        bucket_lifecycle.apply_rule(store, rule)
        bucket_lifecycle.apply_rule(store, rule)
        assert [each["ID"] for each in store.lifecycle_rules()].count(rule.id) == 1
        let_a_second_pass(repo)
        kept = data_of(repo) - {gone}
        first = gc_run.run_nightly(repo.context, engines, tagging()).latest_summary
        assert outcomes(first) == {"tagged": 1}
        until(lambda: not store.is_stored(gone))
        assert data_of(repo) == kept
        second = gc_run.run_nightly(repo.context, engines, tagging(full=True))
        assert states(repo)[0] == "swept"
        assert (second.mark_summary.marked.objects, second.waiting_marks) == (0, [])
        assert client.read("main", "a") == b"new"
        with pytest.raises(Gone):
            client.read("main~1", "a")


@pytest.mark.server
@pytest.mark.parametrize("others_answer", [False, True])
def test_the_content_of_a_purged_object_goes_after_the_bucket_has_deleted_its_own(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines, others_answer: bool
) -> None:
    """If other servers of the KV answer than while the mark looked, the next full run looks again (rule 21)."""
    with lake_with_history(tmp_path, moto_s3_server) as (repo, gone), client_of(tmp_path, moto_s3_server) as client:
        content = content_of(rewrite(client, client.get_commit("main~1").id, "a", b"less"))
        let_a_second_pass(repo)
        first = gc_run.run_nightly(repo.context, engines, tagging()).latest_summary
        assert first.state == "tagged"
        assert {gone, content} <= data_of(repo)
        if others_answer:
            manifest = read_manifest(repo.context.objects, first.mark_id)
            other = msgspec.structs.replace(manifest, servers={"positions": "another server"})
            write_manifest(repo.context.objects, other)
        assert repo.context.objects.delete_many([gone]).deleted_keys  # as the bucket does it
        settled = gc_run.sweep(repo.context, engines, first.mark_id)
        assert settled.state == "swept"
        assert (content in data_of(repo)) == others_answer
        gc_run.run_nightly(repo.context, engines, tagging(full=True))
        assert content not in data_of(repo)


@pytest.mark.server
def test_a_hold_keeps_the_content_of_a_purged_object_when_the_bucket_has_deleted_the_rest(
    moto_s3_server: S3Server, tmp_path: Path, engines: Engines
) -> None:
    """It was set before the sweep began, so it counts in every night until the sweep is over."""
    with lake_with_history(tmp_path, moto_s3_server) as (repo, gone), client_of(tmp_path, moto_s3_server) as client:
        store = repo.context.objects
        old = client.get_commit("main~1").id
        orphan = ids.new_address(ids.RandomIds(), client.context.clock.now_ms())
        store.put(orphan, b"orphan")
        content = content_of(rewrite(client, old, "a", b"less"))
        let_a_second_pass(repo)
        first = gc_run.mark(repo.context, engines, tagging())
        assert read_manifest(store, first.mark_id).dead_identities
        client.set_retention('{"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "a"}]}')
        swept = gc_run.sweep(repo.context, engines, first.mark_id)
        assert (swept.state, outcomes(swept)) == ("tagged", {"excluded": 1, "tagged": 1})
        assert store.delete_many([orphan]).deleted_keys  # as the bucket does it
        assert gc_run.sweep(repo.context, engines, first.mark_id).state == "swept"
        assert {gone, content} <= data_of(repo)
        assert client.read(old, "a") == b"less"
