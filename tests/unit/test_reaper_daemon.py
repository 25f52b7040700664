"""The daemon: passes over all repositories, what fails and is left alone, signs of life, metrics, status."""

from __future__ import annotations

import gc
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from refstore.errors import InvalidSettings, KVUnavailable
from refstore.kv.base import ABSENT, Key, Op
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.reaper_records import Heartbeat
from refstore_reaper import daemon
from refstore_reaper.daemon import BEAT_SECONDS, Reaper, new_id
from refstore_reaper.pass_summary import PassSummary
from refstore_reaper.reaper_metrics import FileMetrics, PrometheusMetrics, read_metrics_file
from refstore_reaper.status import LATE_BEATS, SKEW_SECONDS_MAX, read_status
from tests.reaper_world import GRACE_SECONDS, World, never


@pytest.fixture
def world() -> World:
    return World(pause_seconds=10)


def for_seconds(world: World, seconds: float) -> Callable[[], bool]:
    """Asks to stop when so much time has passed."""
    until = world.clock.monotonic_seconds() + seconds
    return lambda: world.clock.monotonic_seconds() >= until


def test_for_ever_it_finds_what_comes_due_while_it_runs(world: World) -> None:
    world.upload("main", "a")
    world.repo.reset("main")
    with world.reaper() as reaper:
        done = reaper.run(for_seconds(world, GRACE_SECONDS + 60))
    assert (done.released, done.deleted) == (1, 1)
    assert not world.stored()


def test_once_ends_when_nothing_is_due(world: World) -> None:
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    began = world.clock.monotonic_seconds()
    done = world.run_once()
    assert (done.released, done.deleted, done.more) == (20, 0, False)
    assert world.clock.monotonic_seconds() == began


def test_once_ends_though_something_cannot_be_done(world: World) -> None:
    entry = world.upload("main", "a")[0]
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    world.objects.refuses = {entry.address}
    assert world.run_once().failed >= 1
    world.objects.refuses = set()
    world.objects.down = True
    done = world.run_once()
    assert done.unavailable
    assert done.deleted == 0


def test_only_the_repositories_that_were_named(world: World) -> None:
    other = world.lake.create_repository("other", grace_seconds=0)
    other.upload("main", "a", b"x")
    other.reset("main")
    world.upload("main", "a")
    world.repo.reset("main")
    assert world.run_once(repositories=["other"]).deleted == 1
    assert world.kv.count(keys.deleted_tokens(world.repo.context.repo), limit=9) == 1


def test_a_failing_repository_stops_no_other_and_is_retried_after_growing_pauses(world: World) -> None:
    world.upload("main", "a")
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    world.objects.down = True
    other = world.lake.create_repository("other", grace_seconds=0)
    other.upload("main", "a", b"x")
    other.reset("main")
    tried: list[float] = []
    check = world.objects.check

    def watched() -> None:
        tried.append(world.clock.monotonic_seconds())
        check()

    world.objects.check = watched
    with world.reaper() as reaper:
        done = reaper.run(for_seconds(world, 600))
        assert done.deleted == 1
        waits = [later - earlier for earlier, later in pairwise(sorted(set(tried)))]
        assert 5 <= len(waits) <= 20
        assert waits[-1] > 60
        world.objects.down = False
        assert reaper.run(for_seconds(world, 300)).deleted == 2


def test_a_kv_that_is_down_is_waited_for(world: World) -> None:
    world.upload("main", "a")
    world.repo.reset("main")
    with world.reaper() as reaper:
        stop = for_seconds(world, 300)
        scans = 0
        scan = world.kv.scan

        def failing(partition: str, *args: object, **options: object) -> object:
            nonlocal scans
            if partition == keys.REAPERS:  # old heartbeats are looked for once, before the passes
                return scan(partition, *args, **options)
            scans += 1
            if scans < 6:
                raise KVUnavailable("planted: down")
            return scan(partition, *args, **options)

        world.kv.scan = failing
        assert reaper.run(stop).released == 1


def test_once_says_that_the_kv_is_down(world: World) -> None:
    world.kv.down = True
    with pytest.raises(KVUnavailable):
        world.run_once()


def test_a_fault_of_ours_in_one_repository_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = world.lake.create_repository("other", grace_seconds=0)
    other.upload("main", "a", b"x")
    other.reset("main")
    run = daemon.reaper_pass.run_pass

    def faulty(ctx: object, record: object, tools: object) -> PassSummary:
        if ctx.name == "lake":
            raise ZeroDivisionError("planted")
        return run(ctx, record, tools)

    monkeypatch.setattr(daemon.reaper_pass, "run_pass", faulty)
    done = world.run_once()
    assert done.deleted == 1
    assert "ZeroDivisionError" in done.errors[0].message


def test_a_record_that_cannot_be_read_stops_no_other_repository(world: World) -> None:
    world.kv.set(Key(keys.REPOSITORIES, "aaa"), b"\xc1")
    world.upload("main", "a")
    world.repo.reset("main")
    done = world.run_once()
    assert done.released == 1
    assert done.corrupt


# ---- signs of life


def beat(world: World, reaper: str) -> Heartbeat | None:
    raw = world.kv.get(keys.heartbeat(reaper))
    return None if raw is ABSENT else decode(raw, Heartbeat)


def test_it_shows_that_it_lives_and_takes_its_leave(world: World) -> None:
    beats: list[int] = []

    def stop() -> bool:
        found = beat(world, "r7")
        if found is not None:
            beats.append(found.beat_ms)
        return world.clock.monotonic_seconds() > began + 60

    began = world.clock.monotonic_seconds()
    with world.reaper(reaper="r7") as reaper:
        reaper.run(stop)
    gaps = [later - earlier for earlier, later in pairwise(sorted(set(beats)))]
    assert len(gaps) >= 8
    assert max(gaps) <= (BEAT_SECONDS + 1) * 1000
    assert beat(world, "r7") is None


def test_status_tells_the_living_from_the_dead_and_what_waits(world: World) -> None:
    now = world.clock.now_ms()
    assert LATE_BEATS * BEAT_SECONDS + SKEW_SECONDS_MAX < 70
    for name, age_seconds in (("alive", LATE_BEATS * BEAT_SECONDS - 1), ("dead", 70)):
        world.kv.set(
            keys.heartbeat(name),
            daemon.encode(Heartbeat("h", 1, now - 10**6, now - int(age_seconds * 1000), BEAT_SECONDS, 3, 2, 1, 0, 0)),
        )
    world.upload("main", "a", "b")
    world.repo.delete("main", "a")
    world.repo.reset("main")
    found = read_status(world.lake)
    assert [(item.reaper, item.is_alive) for item in found.reapers] == [("alive", True), ("dead", False)]
    (item,) = found.repositories
    assert (item.repository, item.due, item.in_grace, item.tokens, item.stopped) == ("lake", 0, 1, 1, "")
    world.clock.advance(GRACE_SECONDS + 1)
    assert read_status(world.lake, repository="lake").repositories[0].due == 1
    assert read_status(world.lake, repository="other").repositories == ()


def test_status_reads_on_over_what_cannot_be_read(world: World) -> None:
    world.kv.set(Key(keys.REPOSITORIES, "aaa"), b"\xc1")
    world.kv.set(keys.heartbeat("broken"), b"\xc1")
    found = read_status(world.lake)
    assert [item.repository for item in found.repositories] == ["aaa", "lake"]
    assert found.repositories[0].error
    assert found.reapers == ()


def test_the_dead_are_forgotten_after_a_day(world: World) -> None:
    now = world.clock.now_ms()
    for name, age_ms in (("old", 2 * 86_400_000), ("young", 1000)):
        world.kv.set(keys.heartbeat(name), daemon.encode(Heartbeat("h", 1, 0, now - age_ms, BEAT_SECONDS)))
    world.run_once()
    assert beat(world, "old") is None
    assert beat(world, "young") is not None


def test_ids_say_where_a_reaper_runs_and_are_never_the_same() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in ids)


def test_the_collector_is_as_it_was_when_the_run_is_over(world: World) -> None:
    before = gc.get_threshold()
    seen: list[tuple[int, int, int]] = []
    with world.reaper() as reaper:
        reaper.run(lambda: bool(seen.append(gc.get_threshold())) or len(seen) > 3)
    assert gc.get_threshold() == before
    assert seen[0][0] > before[0]


# ---- metrics


def fetch(metrics: PrometheusMetrics) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_metrics_say_what_was_done_what_waits_and_where_deletion_is_stopped() -> None:
    world = World(breaker_floor_objects=2, breaker_share=0.1)
    metrics = PrometheusMetrics("127.0.0.1", 0)
    try:
        world.upload("main", "a", body=b"12345")
        world.repo.delete("main", "a")
        world.clock.advance(GRACE_SECONDS + 1)
        assert world.run_once(metrics=metrics).deleted == 1
        found = fetch(metrics)
        assert found['refstore_reaper_deleted_objects_total{repository="lake"}'] == 1
        assert found['refstore_reaper_deleted_bytes_total{repository="lake"}'] == 5
        assert found['refstore_reaper_breaker_tripped{repository="lake"}'] == 0
        assert found["refstore_reaper_beat_timestamp_seconds"] == world.clock.now_ms() / 1000
        world.upload("main", "b", "c", "d")
        world.repo.delete_many("main", ["b", "c", "d"])
        world.clock.advance(GRACE_SECONDS + 1)
        assert world.run_once(metrics=metrics).blocked == 1
        found = fetch(metrics)
        assert found['refstore_reaper_breaker_tripped{repository="lake"}'] == 1
        assert found['refstore_reaper_due_objects{repository="lake"}'] == 3
        assert found['refstore_reaper_oldest_due_seconds{repository="lake"}'] == pytest.approx(1)
        with pytest.raises(InvalidSettings, match=r"another --metrics-port"):
            PrometheusMetrics("127.0.0.1", metrics.port)
    finally:
        metrics.close()


def test_written_metrics_are_read_whole_and_cost_a_backlog_only_where_somebody_reads(tmp_path: Path) -> None:
    world = World()
    world.upload("main", "a", body=b"12345")
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    metrics = FileMetrics(tmp_path)
    assert not metrics.is_read
    assert world.run_once(metrics=metrics).deleted == 1
    metrics.record_beat(world.clock.now_ms())
    said = read_metrics_file(tmp_path).decode()
    assert 'refstore_reaper_deleted_bytes_total{repository="lake"} 5.0' in said
    assert "refstore_reaper_due_objects{" not in said
    assert metrics.is_read, "it was fetched"
    assert world.run_once(metrics=metrics).deleted == 0
    metrics.record_beat(world.clock.now_ms())
    assert "refstore_reaper_due_objects{" in read_metrics_file(tmp_path).decode()
    assert read_metrics_file(tmp_path / "nowhere") == b""


def test_a_disk_that_takes_no_metrics_keeps_nobody_from_reaping(tmp_path: Path) -> None:
    world = World()
    world.upload("main", "a", body=b"12345")
    world.repo.delete("main", "a")
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_once(metrics=FileMetrics(tmp_path / "nowhere")).deleted == 1


def test_two_reapers_in_turns_do_what_one_does() -> None:
    world = World(batch_keys=3)
    world.upload("main", *(f"p{number}" for number in range(30)))
    world.repo.reset("main")
    one, two = (
        Reaper(world.lake, world.settings, random=Random(seed), asynchronous=False, reaper=f"r{seed}")
        for seed in (1, 2)
    )
    with one, two:
        total = 0
        for _ in range(4):
            total += one.run_passes(never).deleted + two.run_passes(never).deleted
            world.clock.advance(GRACE_SECONDS)
    assert total == 30
    assert not world.stored()


@pytest.mark.parametrize("fault", ["ours", "record"])
def test_metrics_count_a_pass_that_failed_as_a_whole(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> PassSummary:
        raise ZeroDivisionError("planted")

    world = World()
    if fault == "ours":
        monkeypatch.setattr(daemon.reaper_pass, "run_pass", faulty)
    else:
        world.corrupt(keys.repository(world.repo.name))
    metrics = PrometheusMetrics("127.0.0.1", 0)
    try:
        assert world.run_once(metrics=metrics).error_count == 1
        assert fetch(metrics)['refstore_reaper_errors_total{repository="lake"}'] == 1
    finally:
        metrics.close()


def test_what_was_done_before_the_kv_failed_counts() -> None:
    world = World(grace_seconds=0, pause_seconds=1, breaker_share=1)
    world.upload("main", *(f"p{number}" for number in range(20)))
    world.repo.reset("main")
    failures: list[str] = []

    def fail(op: Op) -> None:
        if not failures and op.key.name.startswith("scrubbed/"):
            failures.append(op.key.name)
            raise KVUnavailable("planted: once")

    world.kv.before = fail
    metrics = PrometheusMetrics("127.0.0.1", 0)
    try:
        with world.reaper(metrics=metrics) as reaper:
            done = reaper.run(for_seconds(world, 60))
        assert failures
        assert not world.stored()
        assert (done.released, done.deleted) == (20, 20)
        assert fetch(metrics)['refstore_reaper_deleted_objects_total{repository="lake"}'] == 20
    finally:
        metrics.close()
