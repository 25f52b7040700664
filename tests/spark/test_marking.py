"""The comparison itself, over many buckets: what each side has is made here, and compared as sets of strings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from offline_gc import kept, marking
from offline_gc.addresses import Cuts
from offline_gc.marking import Counted, Stretch
from offline_gc.packets import Packet, Side
from offline_gc.places import Work, kind_of, read_table, write_table
from refstore import ids
from refstore.objects import open_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRETCH = 150


def some_addresses(rng: random.Random, count: int, hours: int) -> list[str]:
    made = ids.RandomIds()
    blobs = [str(ids.new_address(made, 1_700_000_000_000 + rng.randrange(hours * 3_600_000))) for _ in range(count)]
    ranges = [f"_refstore/ranges/{rng.randbytes(32).hex()}.{made.unique(1_700_000_000_000)}.parquet" for _ in range(count // 5)]
    return sorted(blobs + ranges)


@pytest.mark.parametrize("hours", [1, 300])
def test_what_is_left_is_what_is_listed_and_named_by_nobody(tmp_path: Path, spark: SparkSession, hours: int) -> None:
    """One slice that is cut within, or many slices in a bucket."""
    rng = random.Random(hours)
    listed = some_addresses(rng, 1000, hours)
    pending, expired = set(listed[3::50]), set(rng.sample(listed, 300))
    named = [each for each in listed if rng.random() < 0.8 and each not in pending]
    rng.shuffle(named)
    url = f"file://{tmp_path}?fsync=0"
    store = open_objects(url)
    work = Work(url=url, files=url, mark_id="m", seed=rng.getrandbits(64))
    told: list[Packet] = []
    firsts: list[str] = []
    for number, at in enumerate(range(0, len(listed), STRETCH)):
        some = listed[at : at + STRETCH]
        key = work.place("listing", number)
        columns = {
            "address": pa.array(some),
            "size_bytes": pa.array([len(some)] * len(some), pa.int64()),
            "mtime_ms": pa.array([1] * len(some), pa.int64()),
            "kind": pa.array([int(kind_of(each)) for each in some], pa.int8()),
        }
        write_table(store, key, pa.table(columns))
        firsts.append(some[0])
        told.append(Packet.telling(number, Side.LISTED, Stretch(number, key)))
    files: list[tuple[str, Side]] = []
    for number, (side, some) in enumerate(((Side.KEPT, named), (Side.PENDING, sorted(pending)), (Side.EXPIRED, sorted(expired)))):
        key = work.place("kept", number)
        write_table(store, key, pa.table({"address": pa.array(some)}))
        files.append((key, side))
    cuts = Cuts.of(firsts[1:])
    assert cuts.buckets == len(told) > 5
    frame = marking.garbage(kept.packets_of(spark, told, 2), [kept.addresses_in(spark, work, cuts, files, 2)], cuts.buckets, work)
    rows = [Counted(*row) for row in frame.collect()]
    found: dict[str, str] = {}
    for unit in (row for row in rows if row.what == "unit"):
        table = read_table(store, unit.detail)
        found.update(zip(table.column("address").to_pylist(), table.column("reason").to_pylist(), strict=True))
    assert set(found) == set(listed) - set(named) - pending
    assert {each for each, reason in found.items() if reason == "expired"} == set(found) & expired
    assert sum(row.objects for row in rows if row.what == "listed") == len(listed)
    assert sum(row.objects for row in rows if row.what == "kept") == len(named)
    assert sum(row.objects for row in rows if row.what == "pending") == len(pending)
