"""The comparison itself, over many buckets: what each side has is made here, and compared as sets of strings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from refstore.core import ids
from refstore.objects import open_objects
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.address_codec import BucketBounds
from refstore_gc.anti_join import JoinInputs, join_buckets
from refstore_gc.bucket_join import BucketTask, ChunkReference, ComparedCount
from refstore_gc.engines.spark import buckets_of_task
from refstore_gc.live_in_commits import CommitSources
from refstore_gc.run_layout import RunLayout, kind_of, read_table, write_table
from refstore_gc.run_summary import UnitRow

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

CHUNK = 30


def some_addresses(rng: random.Random, count: int, hours: int) -> list[str]:
    made = ids.RandomIds()
    blobs = [str(ids.new_address(made, 1_700_000_000_000 + rng.randrange(hours * 3_600_000))) for _ in range(count)]
    ranges = [
        f"_refstore/ranges/{rng.randbytes(32).hex()}.{made.new_id(1_700_000_000_000)}.parquet"
        for _ in range(count // 5)
    ]
    return sorted(blobs + ranges)


@pytest.mark.parametrize("hours", [1, 300])
def test_what_is_left_is_what_is_listed_and_named_by_nobody(tmp_path: Path, both_engines: Engines, hours: int) -> None:
    """One slice that is cut within, or many slices in a bucket."""
    rng = random.Random(hours)
    listed = some_addresses(rng, 1000, hours)
    pending, expired = set(listed[3::50]), set(rng.sample(listed, 300))
    named = [each for each in listed if rng.random() < 0.8 and each not in pending]
    rng.shuffle(named)
    url = f"file://{tmp_path}?fsync=0"
    store = open_objects(url)
    work = RunLayout(url=url, files=url, mark_id="m", seed=rng.getrandbits(64))
    told: list[Batch] = []
    firsts: list[str] = []
    for number, at in enumerate(range(0, len(listed), CHUNK)):
        some = listed[at : at + CHUNK]
        key = work.file_key("listing", number)
        columns = {
            "address": pa.array(some),
            "size_bytes": pa.array([len(some)] * len(some), pa.int64()),
            "mtime_ms": pa.array([1] * len(some), pa.int64()),
            "kind": pa.array([int(kind_of(each)) for each in some], pa.int8()),
        }
        write_table(store, key, pa.table(columns))
        firsts.append(some[0])
        told.append(Batch.from_value(number, BatchKind.LISTED, ChunkReference(number, key)))
    files: list[tuple[str, BatchKind]] = []
    for number, (side, some) in enumerate(
        ((BatchKind.LIVE_IN_KV, named), (BatchKind.PENDING, sorted(pending)), (BatchKind.EXPIRED, sorted(expired)))
    ):
        key = work.file_key("kept", number)
        write_table(store, key, pa.table({"address": pa.array(some)}))
        files.append((key, side))
    assert BucketBounds.from_addresses(firsts[1:]).buckets == len(told)
    engine = both_engines.for_objects(0)
    assert buckets_of_task(len(told), engine.parallelism) > 1
    inputs = JoinInputs(BucketTask(layout=work), firsts[1:], told, files, [], CommitSources([], [], []))
    rows = join_buckets(engine, inputs)
    found: dict[str, str] = {}
    for unit in (row for row in rows if isinstance(row, UnitRow)):
        table = read_table(store, unit.key)
        found.update(zip(table.column("address").to_pylist(), table.column("reason").to_pylist(), strict=True))
    assert set(found) == set(listed) - set(named) - pending
    assert {each for each, reason in found.items() if reason == "expired"} == set(found) & expired
    compared = [row for row in rows if isinstance(row, ComparedCount)]
    assert sum(row.listed.objects for row in compared) == len(listed)
    assert sum(row.kept.objects for row in compared) == len(named)
    assert sum(row.pending.objects for row in compared) == len(pending)
