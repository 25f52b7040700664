"""What the pages say of figures that nobody has measured yet, of what the deleters wait for, and of S3 clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.core.clock import format_utc
from refstore.core.ids import branch_name
from refstore.core.safety import FOR_TRYING
from refstore.gc_marks import Marks
from refstore.kv.base import Server
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.monitoring import figures
from refstore.operations import multipart
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reaper_records import Heartbeat
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from refstore_http.request_metrics import render_lake_metrics
from refstore_reaper.reaper_metrics import FileMetrics, read_metrics_file
from tests.api.pages import pages_of
from tests.reaper_world import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.lake.close()


def test_what_no_reaper_has_measured_is_not_shown_as_nothing(world: World) -> None:
    world.upload("main", "a")
    before = pages_of(world.lake, "", "/repositories/lake")
    assert all("not measured yet" in page.lower() for page in before)
    assert "Staged entries not measured yet" in before[1]
    assert "Orphans, last run no run yet" in before[1]
    assert b'_staged_entries{repository="lake"}' not in render_lake_metrics(world.lake)
    world.run_once()
    after = pages_of(world.lake, "", "/repositories/lake")
    assert not any("not measured yet" in page.lower() for page in after)
    assert "Staged entries 1 " in after[1]
    assert b'_staged_entries{repository="lake"} 1.0' in render_lake_metrics(world.lake)


def test_the_pages_say_that_a_lake_is_for_trying(world: World) -> None:
    with Lake(MemoryKV(), "memory://try", clock=world.clock, safety=FOR_TRYING) as lake:
        lake.create_repository("lake")
        for trying, other in zip(
            *(pages_of(each, "", "/repositories/lake") for each in (lake, world.lake)), strict=True
        ):
            assert "This lake is for trying: an operation may take 20 s." in trying
            assert "for trying" not in other


def test_marks_and_rules_are_known_before_a_reaper_measures(world: World) -> None:
    marks = Marks(world.repo.context)
    run = marks.mark_run.begin("digest", 86_400_000, [], "m-1")
    marks.mark_run.finish(run, {"objects": 7, "bytes": 70})
    figures.write_marks(world.repo.context)
    world.repo.set_retention('{"default_retention_days": 21}')
    overview, own = pages_of(world.lake, "", "/repositories/lake")
    assert "Marked 7 " in overview
    assert "Marked 7 " in own
    assert "Next sweep none" not in own
    assert "no rules" not in overview + own
    assert "No reaper runs" in overview
    assert "No reaper runs" in own
    metrics = render_lake_metrics(world.lake)
    assert b'refstore_repository_marked_objects{repository="lake"} 7.0' in metrics
    assert b'refstore_repository_has_rules{repository="lake"} 1.0' in metrics
    now_ms = world.clock.now_ms()
    world.kv.set(keys.heartbeat("a"), encode(Heartbeat("host", 7, now_ms, now_ms, 10)))
    assert "No reaper runs" not in "".join(pages_of(world.lake, "", "/repositories/lake"))


def test_the_pages_and_metrics_say_until_when_nothing_is_deleted(world: World, tmp_path: Path) -> None:
    def run_once() -> str:
        """Run a reaper once, and return its own metrics."""
        own_metrics = FileMetrics(tmp_path)
        with world.reaper(metrics=own_metrics) as reaper:
            reaper.run_once(lambda: False)
        own_metrics.record_beat(world.clock.now_ms())
        return read_metrics_file(tmp_path).decode()

    identity = "run-1"
    world.kv.servers = lambda: [Server("positions", identity)]  # type: ignore[method-assign]  # another server answers
    assert "refstore_reaper_settlement_wait_seconds 0.0" in run_once()
    places = ("", "/repositories/lake", "/reapers")
    assert not any("settling" in page.lower() for page in pages_of(world.lake, *places))
    assert b"refstore_settlement_wait_seconds 0.0" in render_lake_metrics(world.lake)
    identity = "run-2"
    longest = world.safety.operation_deadline_seconds + world.safety.io_timeout_seconds
    longest += 2 * world.safety.clock_skew_seconds
    assert f"refstore_reaper_settlement_wait_seconds {longest}" in run_once()
    until = format_utc(world.clock.now_ms() + int(longest * 1000))
    for page in pages_of(world.lake, *places):
        assert f"Settling until {until}, because other servers of the KV answer than before" in page
    assert f"refstore_settlement_wait_seconds {longest}".encode() in render_lake_metrics(world.lake)
    world.clock.advance(longest)
    assert all("until a reaper has looked for lost writes" in page for page in pages_of(world.lake, *places))
    assert "refstore_reaper_settlement_wait_seconds 0.0" in run_once()
    assert not any("settling" in page.lower() for page in pages_of(world.lake, *places))
    assert b"refstore_settlement_wait_seconds 0.0" in render_lake_metrics(world.lake)


def test_a_repositorys_page_has_its_open_uploads(world: World) -> None:
    ctx = world.repo.context
    begun = [multipart.begin(ctx, branch_name("main"), path, seconds=7 * 86_400) for path in ("<b>.bin", "aborted.bin")]
    for number, body in ((1, b"12345"), (2, b"1"), (2, b"123")):
        multipart.write_part(ctx, begun[0].name, number, body)
        world.clock.advance(1)
    multipart.abort(ctx, begun[1].name)
    world.clock.advance(86_400)
    (page,) = pages_of(world.lake, "/repositories/lake")
    _, _, uploads = page.partition("Open uploads in parts")
    assert "&lt;b&gt;.bin main 2 8 B 1 d ago in " in uploads
    assert "aborted.bin" not in uploads
    world.clock.advance(6 * 86_400)
    assert "Open uploads" not in pages_of(world.lake, "/repositories/lake")[0]


def test_the_page_of_keys_says_which_have_an_s3_secret(world: World) -> None:
    cipher = s3_secrets.read_cipher("a-server-key-for-the-secrets-of-s3-clients", None)
    assert cipher is not None
    for id_ in ("with-one", "with-two", "without"):
        access_keys.create_key(world.lake, Role.READER, id=id_)
    for id_ in ("with-two", "with-one", "with-two"):
        s3_secrets.make_s3_secret(world.lake, cipher, id_, overlap_ms=3_600_000)
    (page,) = pages_of(world.lake, "/keys")
    rows = [page.partition(f" {id_} ")[2].partition("Revoke")[0] for id_ in ("with-one", "with-two", "without")]
    assert [row.rpartition("never")[2].strip() for row in rows] == [
        "made 0 s ago",
        "made 0 s ago (the old one ends in 1 h )",
        "none",
    ]
