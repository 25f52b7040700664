"""The offline job over S3 servers, which refuse, break off, and do not delete everything they are asked to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from refstore.core import ids
from refstore.core.clock import to_datetime
from refstore.errors import ObjectsUnavailable
from refstore.gc_marks import Marks, RunState
from refstore.operations import rules_document
from refstore.records import keys
from refstore.repository import Repository
from refstore_gc import deletion_index_writer, gc_run
from refstore_gc.gc_run import GcOptions
from tests.durations import AT_ONCE, unchecked_lake
from tests.offline.world import SkippingClock
from tests.reaping import release_all
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import CutBody, FailKeys, Fault, ProxiedRequest, RandomFaults, Refuse, S3FaultProxy
from tests.servers.s3_servers import RcloneS3

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

NOW = GcOptions(grace_days=0, min_age_seconds=0)


@contextmanager
def lake_with_history(
    folder: Path, server: S3Server, proxy: S3FaultProxy | None = None
) -> Iterator[tuple[Repository, str]]:
    """(a repository for the offline job alone, the address that is to go)"""
    url = server.url()
    kv = f"sqlite://{folder}/kv.sqlite"
    with unchecked_lake(kv, url) as lake:
        repo = lake.create_repository("sales", grace_seconds=0)
        repo.set_retention('{"default_retention_days": 0, "grace_days": 0}')
        for body, day in ((b"old", 1), (b"new", 2)):
            repo.upload("main", "a", body)
            repo.upload("main", f"kept-{day}", body)
            repo.commit("main", "change", date=to_datetime(day * 86_400_000))
        release_all(repo)
        gone = repo.stat("main~1", "a").address
    through = unchecked_lake(kv, url, safety=AT_ONCE)
    if proxy is not None:
        from refstore.objects import open_objects

        through.open_store = lambda url: open_objects(url.replace(server.endpoint, proxy.endpoint))
    with through as lake:
        yield lake.repository("sales"), gone


@contextmanager
def client_of(folder: Path, server: S3Server) -> Iterator[Repository]:
    """The same repository, with the time that an upload needs; its addresses say that they were made days ago, so that
    a second run does not list them.
    """
    clock = SkippingClock(off_seconds=-3 * 86_400)
    with unchecked_lake(f"sqlite://{folder}/kv.sqlite", server.url(), clock=clock) as lake:
        yield lake.repository("sales")


def let_go_of(client: Repository) -> None:
    """Reset what is staged, and forget it as a reaper would that loses what it was to delete."""
    client.reset("main")
    release_all(client)
    ctx = client.context
    for shard in range(keys.SHARDS):
        ctx.kv.delete_range(keys.references(ctx.repo, shard), "", keys.LAST_CODE_POINT)


def let_a_second_pass(repo: Repository, address: str = "") -> None:
    """Until the store's clock, which counts whole seconds, says that the object, or all data, are older than now."""
    store = repo.context.objects
    newest_ms = store.head(address).mtime_ms if address else max(info.mtime_ms for info in store.list("data/"))
    store.put("_refstore/gc/now", b"")
    while store.head("_refstore/gc/now").mtime_ms <= newest_ms:
        store.put("_refstore/gc/now", b"")


def addresses_of(mark: bytes) -> list[str]:
    return pq.read_table(BytesIO(mark)).column("address").to_pylist()


def data_of(repo: Repository) -> set[str]:
    return {info.key for info in repo.context.objects.list("data/")}


@pytest.mark.server
def test_a_store_that_refuses_now_and_then_is_asked_again(
    rclone_s3_server: RcloneS3, tmp_path: Path, both_engines: Engines
) -> None:
    with S3FaultProxy(rclone_s3_server.endpoint, RandomFaults(seed=11, unavailable=0.05)) as proxy:
        with lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, gone):
            let_a_second_pass(repo)
            before = data_of(repo)
            ran = gc_run.run_nightly(repo.context, both_engines, NOW)
            assert ran.latest_summary.sweep is not None
            assert {name: count.objects for name, count in ran.latest_summary.sweep.outcomes.items()} == {"deleted": 1}
            assert data_of(repo) == before - {gone}
        assert any(fault is not None for _, fault in proxy.log)


@pytest.mark.server
def test_keys_that_the_store_does_not_delete_are_told_and_tried_again(
    rclone_s3_server: RcloneS3, tmp_path: Path, both_engines: Engines
) -> None:
    with (
        S3FaultProxy(rclone_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, _),
    ):
        store = repo.context.objects
        orphans = [ids.new_address(ids.RandomIds(), 1_700_000_000_000 + number) for number in range(1000)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda orphan: store.put(orphan, b"x"), orphans))
        let_a_second_pass(repo)
        summary = gc_run.mark(repo.context, both_engines, NOW)
        prefix = urlsplit(repo.context.objects.url).path.strip("/")
        failing = frozenset(f"{prefix}/{orphan}" for orphan in orphans[100:400:100])

        def plan(request: ProxiedRequest) -> Fault | None:
            return FailKeys(failing) if request.is_bulk_delete and failing & set(request.delete_keys) else None

        proxy.plan = plan
        first = gc_run.sweep(repo.context, both_engines, summary.mark_id)
        assert first.sweep is not None
        assert {name: count.objects for name, count in first.sweep.outcomes.items()} == {"deleted": 998, "failed": 3}
        assert first.sweep.failures
        assert Marks(repo.context).runs.get(summary.mark_id).state is RunState.SWEEPING
        assert data_of(repo) & set(orphans) == set(orphans[100:400:100])
        for orphan, outcome in ((orphans[100], "failed"), (orphans[101], "deleted")):
            (told,) = repo.why(orphan).deletions
            assert (told.outcome, bool(told.reason)) == (outcome, outcome == "failed")
        proxy.plan = None
        second = gc_run.sweep(repo.context, both_engines, summary.mark_id)
        assert second.sweep is not None
        assert {name: count.objects for name, count in second.sweep.outcomes.items()} == {"deleted": 1001}
        assert not data_of(repo) & set(orphans)
        assert Marks(repo.context).runs.get(summary.mark_id).state is RunState.SWEPT
        files = [info.key for info in store.list(f"_refstore/gc/{summary.mark_id}/sweep/")]
        for number in range(8):
            deletion_index_writer.index_sweep(repo.context, f"again-{number}", files, number)
        proxy.log.clear()
        deletions = repo.why(orphans[100]).deletions
        assert [told.run for told in deletions] == [*(f"again-{number}" for number in range(8)), summary.mark_id]
        assert {told.outcome for told in deletions} == {"deleted"}
        # The blob, the index, the journal; and of each of nine files its footer, its keys and the other columns.
        assert len(proxy.log) <= 3 + 9 * 3


@pytest.mark.server
def test_a_hold_that_is_set_after_a_sweep_failed_counts_for_what_failed(
    rclone_s3_server: RcloneS3, tmp_path: Path, engines: Engines
) -> None:
    def plan(request: ProxiedRequest) -> Fault | None:
        return FailKeys(frozenset(request.delete_keys)) if request.is_bulk_delete else None

    with (
        S3FaultProxy(rclone_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, gone),
    ):
        let_a_second_pass(repo)
        summary = gc_run.mark(repo.context, engines, NOW)
        proxy.plan = plan
        first = gc_run.sweep(repo.context, engines, summary.mark_id)
        assert first.sweep is not None
        assert {name: count.objects for name, count in first.sweep.outcomes.items()} == {"failed": 1}
        proxy.plan = None
        rules_document.set_rules(
            repo.context, '{"default_retention_days": 0, "grace_days": 0, "legal_holds": [{"prefix": "a"}]}', by=""
        )
        second = gc_run.sweep(repo.context, engines, summary.mark_id)
        assert second.sweep is not None
        assert {name: count.objects for name, count in second.sweep.outcomes.items()} == {"excluded": 1}
        assert gone in data_of(repo)
        assert second.state == RunState.SWEPT


@pytest.mark.server
def test_a_listing_that_breaks_off_ends_the_run(
    rclone_s3_server: RcloneS3, tmp_path: Path, both_engines: Engines
) -> None:
    def plan(request: ProxiedRequest) -> Fault | None:
        return CutBody(400) if request.is_list and "ranges" in request.target else None

    with (
        S3FaultProxy(rclone_s3_server.endpoint, plan) as proxy,
        lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, gone),
    ):
        let_a_second_pass(repo)
        with pytest.raises(ObjectsUnavailable):
            gc_run.run_nightly(repo.context, both_engines, NOW)
        assert gone in data_of(repo)
        assert [each.state for each in Marks(repo.context).runs.scan()] == [RunState.ABANDONED]


class Together:
    """A plan that lets a HEAD of data pass once another is under way. Alone they are refused, and told as alone."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)
        self._lock = threading.Lock()
        self.asked = self.alone = 0

    def __call__(self, request: ProxiedRequest) -> Fault | None:
        if request.method == "HEAD" and "/data/" in request.target:
            with self._lock:
                self.asked += 1
            try:
                self._both.wait(timeout=10)
            except threading.BrokenBarrierError:
                self.alone += 1
                return Refuse(status=403, code="AccessDenied")
        return None


@pytest.mark.server
def test_what_the_kv_let_go_of_is_asked_for_several_at_once(
    rclone_s3_server: RcloneS3, tmp_path: Path, engines: Engines
) -> None:
    with (
        S3FaultProxy(rclone_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, _),
        client_of(tmp_path, rclone_s3_server) as client,
    ):
        store = repo.context.objects
        staged = [client.upload("main", f"staged-{number:02}", b"%d" % number).address for number in range(24)]
        let_a_second_pass(repo)
        first = gc_run.mark(repo.context, engines, NOW)
        let_go_of(client)
        gone = [*staged[::3], *staged[1:20:9]]
        store.delete_many(gone)
        proxy.plan = together = Together()
        second = gc_run.mark(repo.context, engines, NOW)
        assert (together.asked, together.alone) == (len(staged), 0)
        assert second.baseline_mark_id == first.mark_id
        marked = [
            address
            for each in store.list(f"_refstore/gc/{second.mark_id}/mark/")
            for address in addresses_of(store.read(each.key))
        ]
        assert marked == sorted(set(staged) - {*gone})


@pytest.mark.server
def test_one_that_the_store_does_not_tell_of_ends_the_run(
    rclone_s3_server: RcloneS3, tmp_path: Path, both_engines: Engines
) -> None:
    with (
        S3FaultProxy(rclone_s3_server.endpoint) as proxy,
        lake_with_history(tmp_path, rclone_s3_server, proxy) as (repo, _),
        client_of(tmp_path, rclone_s3_server) as client,
    ):
        staged = [client.upload("main", f"staged-{number:02}", b"%d" % number).address for number in range(24)]
        let_a_second_pass(repo)
        gc_run.mark(repo.context, both_engines, NOW)
        let_go_of(client)
        proxy.plan = lambda request: Refuse() if request.method == "HEAD" and staged[13] in request.target else None
        with pytest.raises(ObjectsUnavailable):
            gc_run.mark(repo.context, both_engines, NOW)
        assert [each.state for each in Marks(repo.context).runs.scan()] == [RunState.MARKED, RunState.ABANDONED]
