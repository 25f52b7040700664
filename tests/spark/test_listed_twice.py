"""A task that lists the store is made again while the first one still goes on: on a cluster, where an executor was taken for lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_gc import carried, kept, listing, marking, small
from offline_gc.addresses import Cuts, keys_of
from offline_gc.arrow import pa
from offline_gc.carried import Known
from offline_gc.committed import Sources
from offline_gc.comparing import buckets_of
from offline_gc.listing import Interval, _stretches  # pyright: ignore[reportPrivateUsage]
from offline_gc.marking import PLAINLY, Asked, Counted
from offline_gc.packets import Packet, Side
from offline_gc.places import work_of
from offline_gc.small import Comparison, Small
from offline_gc.sweeping import Unit, _one  # pyright: ignore[reportPrivateUsage]
from refstore.objects.base import ObjectStore
from tests.spark.world import World


def test_the_files_of_a_task_that_was_taken_for_lost_are_not_taken_for_those_of_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "STRETCH_ROWS", 2)
    monkeypatch.setattr("offline_gc.comparing.BUCKET_ROWS", 2)
    world.commit(a=b"a", b=b"b", c=b"c", d=b"d", e=b"e")
    addresses = sorted(world.data())
    work = work_of(world.ctx, "mark-1", 1)
    lost = _stretches(work, 0, Interval("data/"), world.clock.now_ms() + 1000, False)
    next(lost)  # and goes on later
    world.ctx.objects.delete_many(addresses[:1])  # the reaper does so all day
    stretches = list(_stretches(work, 0, Interval("data/"), world.clock.now_ms() + 1000, False))
    for _ in lost:
        pass
    keeper = kept.Keeper(world.ctx.objects, work)
    keeper.add(addresses[1:])
    bounds, told = buckets_of(stretches)
    here = [(key, Side.KEPT) for key in keeper.finish()]
    rows = small.compare(Comparison(work, Cuts.of(bounds), told, here, [], Sources([], [], []), PLAINLY), Small())
    assert [row for row in rows if row.what == "marked"] == [], "all that is there is named"


def test_the_units_of_a_task_that_was_taken_for_lost_are_not_taken_for_those_of_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on from another one asks the store for what the KV let go of: two attempts of one task may be told otherwise."""
    monkeypatch.setattr(marking, "UNIT_ROWS", 2)
    world.commit(a=b"a", b=b"b", c=b"c", d=b"d")
    addresses = sorted(world.data())
    store, work = world.ctx.objects, work_of(world.ctx, "mark-1", 1)
    listed = keys_of(pa.array(addresses), work.seed)
    carried.write_known(store, "_refstore/gc/mark-0/known", Known.of([], listed[:0], [], [listed], [np.ones(4, np.int64)]))
    told = [
        Packet.telling(0, Side.CARRIED, "_refstore/gc/mark-0/known"),
        Packet(0, Side.FORMER, 4, "".join(addresses).encode()),
    ]
    decide = marking.deciding(work, Asked(horizon="data0"))
    real, done = marking.write_table, list[Counted]()

    def overtaken(store: ObjectStore, key: str, table: Any) -> int:
        """The task is made again, by another executor, before it wrote anything."""
        monkeypatch.setattr(marking, "write_table", real)
        store.delete_many(addresses[:1])
        done.extend(row for row in decide(told) if row.what == "unit")
        return real(store, key, table)

    monkeypatch.setattr(marking, "write_table", overtaken)
    list(decide(told))
    assert [row.first for row in done] == [addresses[1], addresses[3]]
    cuts = Cuts.of([row.first for row in done[1:]])
    again = pa.array([addresses[2]])  # a commit that named it was unmarked
    bucket = int(cuts.buckets_of(again)[0])
    for number, row in enumerate(done):
        _one(work, Unit(row.detail, row.detail.replace("/mark/", "/sweep/")), [keys_of(again, 1)] * (number == bucket), "delete")
    assert world.data() == {addresses[2]}
