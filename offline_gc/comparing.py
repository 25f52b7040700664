"""What is there against what is named: the look gathered, what is to be read of it told to the tasks, and what nobody names counted.

A bucket is a stretch of the namespace (`addresses.py`). Everything that says something of an address comes to its bucket as a packet:
what the store listed, what the KV named, what commits name, what an earlier run carried over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from offline_gc import committed, kept, listing, marking
from offline_gc.addresses import Cuts
from offline_gc.carried import Carried, Layer
from offline_gc.committed import Filter, Units, Wanted
from offline_gc.listing import ListedStretch
from offline_gc.marking import Asked, Counted, Stretch
from offline_gc.packets import Packet, Side
from offline_gc.places import Work
from offline_gc.session import parts_of, translated
from offline_gc.small import Comparison, Small, TooMuch, compare
from offline_gc.steps import Steps
from offline_gc.summary import UnitRow, read_units
from refstore.context import Context
from refstore.errors import Corrupt
from refstore.ids import CommitId
from refstore.marks import Kept, Marks, Named, Run
from refstore.marks.commits import PAGE
from refstore.objects.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET_ROWS: Final = 500_000
"""Small stretches of the listing share a task."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the look gave: everything that must be kept."""

    addresses: kept.Keeper
    commits: Wanted
    units: Units | None
    """What is read of the commits; None: some keep a part only."""


def gathered(
    work: Work, looked: Iterable[Named], kept_of: Callable[[Kept], Filter | None], said: Callable[[int], None], files: ObjectStore
) -> Gathered:
    """Addresses into `files`, commits into what is to be read of them."""
    addresses, commits = kept.Keeper(files, work), Wanted()
    for batch in looked:
        addresses.add(batch.addresses)
        for each in batch.commits:
            commits.add(each.commit, each.record, kept_of(each))
        said(addresses.rows)
    objects = commits.objects()
    while page := list(islice(objects, PAGE)):
        addresses.add(page)
    addresses.finish()
    return Gathered(addresses, commits, commits.units())


def earlier(marks: Marks, run: Run) -> Iterator[CommitId]:
    """What other marks hold that this run does not look at."""
    for mark_id in run.record.disregards:
        yield from marks.marked(mark_id)


class Compared(NamedTuple):
    bounds: Sequence[str]
    """Where its buckets begin, but the first."""
    rows: list[Counted]
    sources: dict[str, int]
    """How many objects of commits were read."""
    pending: Sequence[str]
    """The files of marks that stand."""

    def units(self) -> list[UnitRow]:
        """The files of the mark, in the order of their addresses."""
        found = (UnitRow(row.detail, row.first, row.objects, row.bytes) for row in self.rows if row.what == "unit")
        return sorted(found, key=lambda unit: unit.first)

    def layer(self) -> Layer:
        """What the tasks wrote down for the next run."""
        return Layer(list(self.bounds), {row.kind: row.detail for row in self.rows if row.what == "carried"})


def left_over(
    ctx: Context,
    spark: SparkSession,
    work: Work,
    run: Run,
    stretches: Sequence[ListedStretch],
    named: Gathered,
    expired: Iterable[CommitId],
    steps: Steps,
    before: Carried | None = None,
    *,
    carry: bool = False,
    small: Small | None = None,
) -> Compared:
    """Compare what is there with what is named; what nobody names is in the mark's files, and counted.

    `expired`: the commits whose names tell why something goes. `before`: where to go on from, fit for what was named. `carry`: write
    down for the next run what is known. `small`: what the driver does itself.
    """
    pending = [(unit.key, Side.PENDING) for mark_id in run.record.disregards for unit in _units(ctx, mark_id)]
    with steps.step("comparing what is there with what is named"), translated("comparing"):
        sources = named.units.since(before.units, work) if before and named.units else named.commits.sources(expired)
        bounds, told = buckets_of(stretches, before.cuts(listing.DATA) if before else ())
        told += before.packets(bounds) if before else []
        cuts = Cuts.of(bounds)
        in_kv = [(key, Side.KEPT) for key in named.addresses.files]
        others = pending + [(key, Side.FORMER) for key in (before.former if before else ())]
        asked = Asked(carry=carry, horizon=before.horizon if before else "")
        wanted = Comparison(work, cuts, told, in_kv, others, sources, asked)
        rows = _compared(spark, wanted, small)
    read = {"trees": len(sources.trees), "listings": len(sources.added), "ranges": len(sources.ranges)}
    return Compared(bounds, rows, read, [key for key, _ in pending])


def _compared(spark: SparkSession, wanted: Comparison, small: Small | None) -> list[Counted]:
    if small:
        with suppress(TooMuch):
            return compare(wanted, small)
    return in_spark(spark, wanted)


def in_spark(spark: SparkSession, wanted: Comparison) -> list[Counted]:
    """The comparison on the executors."""
    work, cuts, parts = wanted.work, wanted.cuts, parts_of(spark)
    named = [kept.addresses_in(spark, work, cuts, wanted.here, parts * 2)] if wanted.here else []
    named += [kept.addresses_in(spark, work.in_namespace(), cuts, wanted.there, parts * 2)] if wanted.there else []
    in_commits, done = committed.addresses(spark, work, cuts, wanted.sources, parts)
    listed = kept.packets_of(spark, wanted.told, parts)
    rows = [Counted(*row) for row in marking.garbage(listed, [*named, *in_commits], cuts.buckets, work, wanted.asked).collect()]
    done()
    return rows


def _units(ctx: Context, mark_id: str) -> Sequence[UnitRow]:
    """What an earlier mark is going to sweep. One whose files are lost sweeps nothing, and then this run takes it."""
    try:
        return read_units(ctx.objects, mark_id)
    except Corrupt:
        return ()


def buckets_of(stretches: Sequence[ListedStretch], also: Sequence[str] = ()) -> tuple[list[str], list[Packet]]:
    """Where buckets begin, but the first, and the listing's stretches dealt to them in order. `also`: cuts that go through no stretch."""
    there = [stretch for stretch in stretches if stretch.objects]
    cuts = set(also)
    rows = 0
    for stretch in there:
        if rows and rows + stretch.objects > BUCKET_ROWS:
            cuts.add(stretch.first)
            rows = 0
        rows += stretch.objects
    bounds = sorted(cuts)
    told = [Packet.telling(bisect_right(bounds, each.first), Side.LISTED, Stretch(each.number, each.key), each.objects) for each in there]
    return bounds, told
