"""The same lake, once on each engine: the same marks, counts, reports and files, in full and incremental runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore.core import ids
from refstore.gc_marks import Marks, RunState
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from refstore_purge import purge_run as purging
from tests.offline.purge_runs import options_of
from tests.offline.test_incremental_marks import DAY, RULES, live_for_a_day
from tests.offline.world import World, marked_in
from tests.purge import datasets
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

UNLIKE = ("mark_id", "engine", "began_ms", "deletes_at_ms", "baseline_mark_id", "seconds", "rules_digest")
"""What two lakes do not share: ids, times, and what ran."""


def bodies_of(world: World, addresses: dict[str, str]) -> list[tuple[bytes, str]]:
    """Return what is marked as content and reason, because the two lakes have other addresses. Of ranges, which hold
    addresses, only the reason.
    """
    return sorted(
        ((world.blobs / address).read_bytes() if address.startswith("data/") else b"", reason)
        for address, reason in addresses.items()
    )


def report_of(summary: Any) -> Any:
    found = msgspec.to_builtins(summary)
    return {name: value for name, value in found.items() if name not in UNLIKE}


def without_sizes(value: Any) -> Any:
    """Leave out the sizes of ranges: their ids and addresses are packed otherwise."""
    if isinstance(value, dict):
        return {name: without_sizes(each) for name, each in value.items() if name != "bytes"}
    return value


def nights(folder: Path, engines: Engines, seed: int) -> list[Any]:
    """Return what each night marked, reported and left."""
    world, rng = World(folder, rules=json.dumps(RULES)), random.Random(seed)
    world.clock.sleep(-world.clock.now_ms() / 1000 % DAY)  # both lakes begin with a day, whenever they are made
    told: list[Any] = []
    for day in range(15):
        live_for_a_day(world, rng, day)
        world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()), b"planted on day %d" % day)
        world.stamp()
        world.clock.sleep(DAY)
        if day % 5 != 4:
            continue
        release_all(world.repo)
        swept = [
            gc_run.sweep(world.ctx, engines, each.mark_id)
            for each in list(Marks(world.ctx).runs.scan())
            if each.state is RunState.MARKED and each.record.deletes_at_ms <= world.clock.now_ms()
        ]
        simulated = simulate_mark(world.ctx, engines, GcOptions())
        marked = gc_run.mark(world.ctx, engines, GcOptions(full_days=11))
        told.append(
            (
                without_sizes(report_of(simulated)),
                without_sizes(report_of(marked)),
                bodies_of(world, marked_in(world, marked.mark_id)),
                [(each.sweep.outcomes["deleted"].objects if each.sweep else 0) for each in swept],
                sorted((world.blobs / key).read_bytes() for key in world.data()),
            )
        )
    world.close()
    return told


@pytest.mark.parametrize("seed", [3, 4])
def test_a_random_lake_has_the_same_marks_and_reports(
    tmp_path: Path, engines: Engines, spark_engines: Engines, seed: int
) -> None:
    local, spark = nights(tmp_path / "local", engines, seed), nights(tmp_path / "spark", spark_engines, seed)
    for night, (one, other) in enumerate(zip(local, spark, strict=True)):
        assert one == other, f"night {night}"
    assert any(marked for _, _, marked, _, _ in local)
    assert any(swept for _, _, _, swept, _ in local)
    assert local[-1][1]["full_reason"] == "", "the last run is incremental"


def without_time(body: bytes) -> bytes:
    """Leave out the time at which a gzip file was written, in its header."""
    return body[:4] + bytes(4) + body[8:] if body.startswith(b"\x1f\x8b") else body


def purged(folder: Path, engines: Engines, seed: int) -> tuple[Any, dict[str, bytes]]:
    """Return the report of a purge, and every file afterwards."""
    world, rng = World(folder), random.Random(seed)
    cases = [case for case in datasets.CASES if not case.is_integer]
    world.repo.onboard_purge(datasets.document_of(cases, ("keep-history", "rewrite")[seed % 2]), by="tests")
    for case in cases:
        for number in range(4):
            rows = datasets.make_rows(rng, case, rng.choice([0, 3, 60]))
            world.repo.upload("main", f"{case.name}/day={number % 2}/{number}", datasets.write(case, rows))
    world.repo.commit("main", "data")
    file = folder / "ids.parquet"
    pq.write_table(pa.table({"id": rng.sample(datasets.GUESTS, 5)}), file)
    report = purging.run_purge(world.repo, engines, options_of(file, share=1), lambda _: None)
    files = {item.path: without_time(world.repo.read("main", item.path)) for item in world.repo.list("main")}
    rows = [msgspec.to_builtins(row) for row in report.rows]
    world.close()
    return (report.state, report.ids, report.skipped_count, rows), files


@pytest.mark.parametrize("seed", range(2))
def test_a_purge_writes_the_same_files(tmp_path: Path, engines: Engines, spark_engines: Engines, seed: int) -> None:
    local, spark = purged(tmp_path / "local", engines, seed), purged(tmp_path / "spark", spark_engines, seed)
    assert local == spark
    assert sum(row["rows_changed"] for row in local[0][3]) > 0
