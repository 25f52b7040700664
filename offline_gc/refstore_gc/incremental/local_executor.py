"""Do small steps of an incremental run in the driver, because each job of Spark takes a second, however small it is.

Only incremental runs try this, because a lake of any size may have few changes. The size of a step shows only while it
runs. If a step exceeds `LocalLimits`, it is given up, and Spark does it from its start. So the driver's time and memory
stay bounded.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import count

from refstore.versioning.commits.workers import Workers
from refstore_gc import listing, live_in_commits, live_in_kv
from refstore_gc.address_codec import Cuts
from refstore_gc.anti_join import JoinInputs
from refstore_gc.batches import Batch, by_bucket
from refstore_gc.garbage import GarbageCount
from refstore_gc.helper_processes import helpers
from refstore_gc.listing import ListedChunk
from refstore_gc.run_context import LocalLimits, RunContext
from refstore_gc.run_layout import DATA, RunLayout, threads_at


class TooLarge(Exception):
    """The step exceeds the limits; Spark does it. Not an error."""


def list_here(run: RunContext, data_from: str, limits: LocalLimits) -> list[ListedChunk]:
    """List objects as `listing.list_objects` does, in the driver and its helpers. Raises TooLarge."""
    helpers.start()
    intervals = listing.intervals(
        run.repository.objects, now_ms=run.repository.clock.now_ms(), pieces_min=1, data_from=data_from
    )
    shares: dict[bool, list[tuple[int, listing.Interval]]] = {False: [], True: []}
    for number, interval in enumerate(intervals):
        shares[interval.prefix == DATA].append((number, interval))
    work = partial(_list_share, run.layout, run.cutoff_ms, run.options.foreign, limits.keys)
    chunks: list[ListedChunk] = []
    keys = 0
    with closing(helpers.share(work, [*shares.values()])) as listed:
        for chunk in listed:
            chunks.append(chunk)
            keys += chunk.objects + chunk.young + chunk.foreign
            if keys > limits.keys:
                raise TooLarge
    return sorted(chunks, key=lambda chunk: chunk.number)


def _list_share(
    layout: RunLayout,
    cutoff_ms: int,
    foreign: bool,
    keys_max: int,
    numbered: Sequence[tuple[int, listing.Interval]],
) -> list[ListedChunk]:
    keys = count(1)

    def count_key() -> None:
        if next(keys) > keys_max:
            raise TooLarge

    def list_one(each: tuple[int, listing.Interval]) -> list[ListedChunk]:
        return list(listing.list_interval(layout, *each, cutoff_ms, foreign, count_key))

    with Workers(threads_at(layout)) as workers:
        return [chunk for chunks in workers.ahead(list_one, numbered) for chunk in chunks]


def join_here(inputs: JoinInputs, limits: LocalLimits) -> list[GarbageCount]:
    """Join as `anti_join.join_in_spark` does, in the driver and its helpers. Raises TooLarge before anything was
    written.
    """
    layout, cuts = inputs.layout, Cuts.of(inputs.bounds)
    if cuts.buckets > limits.buckets or inputs.sources.rows > limits.rows:
        raise TooLarge
    together: list[Batch] = []
    rows = 0
    with closing(_read_here(inputs, cuts)) as batches:
        for batch in batches:
            together.append(batch)
            rows += batch.rows
            if rows > limits.rows:
                raise TooLarge
    return [*helpers.share(partial(inputs.join_bucket, layout), by_bucket(together))]


def _read_here(inputs: JoinInputs, cuts: Cuts) -> Generator[Batch, None, None]:
    layout = inputs.layout
    yield from inputs.batches
    yield from live_in_kv.read_files_here(layout, cuts, inputs.files)
    yield from live_in_kv.read_files_here(layout.in_namespace(), cuts, inputs.earlier_files)
    yield from live_in_commits.read_addresses_here(layout, cuts, inputs.sources)
