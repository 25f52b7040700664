"""A task that lists the store is made again while the first one still goes on: on a cluster, where an executor was
taken for lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refstore.objects.base import ObjectStore
from refstore_gc import garbage, list_objects
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.address_codec import BucketBounds, encode_addresses
from refstore_gc.anti_join import AddressWriter, JoinInputs, bucket_bounds, chunk_batches, join_buckets
from refstore_gc.bucket_join import BucketTask, join_bucket
from refstore_gc.engines.local import LocalEngine
from refstore_gc.garbage import MarkedCount
from refstore_gc.incremental.baseline_keys import BaselineKeys
from refstore_gc.list_objects import KeyInterval, list_interval
from refstore_gc.live_in_commits import CommitSources
from refstore_gc.run_layout import make_layout, write_value
from refstore_gc.run_summary import UnitRow
from refstore_gc.sweep_tasks import sweep_unit
from refstore_gc.untyped_arrow import pa
from tests.offline.world import World


def test_two_attempts_of_a_listing_task_do_not_mix_their_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_objects, "CHUNK_ROWS", 2)
    monkeypatch.setattr("refstore_gc.anti_join.BUCKET_ROWS", 2)
    world.commit(a=b"a", b=b"b", c=b"c", d=b"d", e=b"e")
    addresses = sorted(world.data())
    work = make_layout(world.ctx, "mark-1", 1)
    lost = list_interval(work, world.clock.now_ms() + 1000, False, (0, KeyInterval("data/")))
    next(lost)  # and goes on later
    world.ctx.objects.delete_many(addresses[:1])  # the reaper does so all day
    chunks = list(list_interval(work, world.clock.now_ms() + 1000, False, (0, KeyInterval("data/"))))
    for _ in lost:
        pass
    keeper = AddressWriter(work)
    keeper.add(addresses[1:])
    bounds = bucket_bounds(chunks)
    live = [(key, BatchKind.LIVE_IN_KV) for key in keeper.finish()]
    sources = CommitSources([], [], [])
    inputs = JoinInputs(BucketTask(layout=work), bounds, chunk_batches(chunks, bounds), live, [], sources)
    rows = join_buckets(LocalEngine(), inputs)
    assert [row for row in rows if isinstance(row, MarkedCount)] == [], "all that is there is named"


def test_two_attempts_of_a_marking_task_do_not_mix_their_units(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on from another one asks the store for what the KV let go of: two attempts of one task may be
    told otherwise.
    """
    monkeypatch.setattr(garbage, "UNIT_ROWS", 2)
    world.commit(a=b"a", b=b"b", c=b"c", d=b"d")
    addresses = sorted(world.data())
    store, work = world.ctx.objects, make_layout(world.ctx, "mark-1", 1)
    listed = encode_addresses(pa.array(addresses), work.seed)
    write_value(
        store,
        "_refstore/gc/mark-0/known",
        BaselineKeys.from_arrays([], listed[:0], [], [listed], [np.ones(4, np.int64)]),
    )
    told = [
        Batch.from_value(0, BatchKind.EARLIER_KEYS, "_refstore/gc/mark-0/known"),
        Batch(0, BatchKind.FORMERLY_IN_KV, "".join(addresses).encode()),
    ]
    task = BucketTask(layout=work, horizon="data0", is_recorded=True)
    real, done = garbage.write_table, list[UnitRow]()

    def overtaken(store: ObjectStore, key: str, table: Any) -> int:
        """The task is made again, by another executor, before it wrote anything."""
        monkeypatch.setattr(garbage, "write_table", real)
        store.delete_many(addresses[:1])
        done.extend(row for row in join_bucket(task, told) if isinstance(row, UnitRow))
        return real(store, key, table)

    monkeypatch.setattr(garbage, "write_table", overtaken)
    list(join_bucket(task, told))
    assert [row.first_address for row in done] == [addresses[1], addresses[3]]
    cuts = BucketBounds.from_addresses([row.first_address for row in done[1:]])
    again = pa.array([addresses[2]])  # a commit that named it was unmarked
    bucket = int(cuts.buckets_of(again)[0])
    for number, row in enumerate(done):
        sweep_unit(
            work,
            row.key,
            [encode_addresses(again, 1)] * (number == bucket),
            "delete",
        )
    assert world.data() == {addresses[2]}
