"""Do small steps of an incremental run in the driver, because each job of Spark takes a second, however small it is.

Only incremental runs try this, because a lake of any size may have few changes. The size of a step shows only while it
runs. If a step exceeds `LocalLimits`, it is given up, and Spark does it from its start. So the driver's time and memory
stay bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import chain, count

from refstore.versioning.commits.workers import Workers
from refstore_gc import listing, live_in_commits, live_in_kv
from refstore_gc.address_codec import Cuts
from refstore_gc.anti_join import BucketJoin, JoinInputs
from refstore_gc.batches import Batch, by_bucket
from refstore_gc.garbage import GarbageCount
from refstore_gc.helper_processes import helpers
from refstore_gc.listing import ListedChunk
from refstore_gc.run_context import LocalLimits, RunContext
from refstore_gc.run_layout import RunLayout, threads_at


class TooLarge(Exception):
    """The step exceeds the limits; Spark does it. Not an error."""


def list_here(run: RunContext, data_from: str, limits: LocalLimits) -> list[ListedChunk]:
    """List objects as `listing.list_objects` does, in the driver and its helpers. Raises TooLarge."""
    helpers.start()
    intervals = listing.intervals(
        run.repository.objects, now_ms=run.repository.clock.now_ms(), pieces_min=1, data_from=data_from
    )
    numbered = list(enumerate(intervals))
    middle = len(numbered) // 2 + 1  # before the blobs
    list_share = partial(_list_share, run.layout, run.cutoff_ms, run.options.foreign, limits.keys)
    chunks: list[ListedChunk] = []
    with closing(helpers.share(list_share, [numbered[:middle], numbered[middle:]])) as shares:
        for share in shares:
            chunks += share
            if sum(chunk.objects + chunk.young + chunk.foreign for chunk in chunks) > limits.keys:
                raise TooLarge
    return chunks


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
    for batch in chain(
        inputs.batches,
        live_in_kv.file_reader(layout, cuts)(live_in_kv.file_batches(inputs.files)),
        live_in_kv.file_reader(layout.in_namespace(), cuts)(live_in_kv.file_batches(inputs.earlier_files)),
        live_in_commits.read_addresses_here(layout, cuts, inputs.sources),
    ):
        together.append(batch)
        rows += batch.rows
        if rows > limits.rows:
            raise TooLarge
    with closing(helpers.share(partial(_join_share, layout, inputs.join_bucket), by_bucket(together))) as shares:
        return [found for share in shares for found in share]


def _join_share(layout: RunLayout, join_bucket: BucketJoin, batches: list[Batch]) -> list[GarbageCount]:
    return list(join_bucket(layout, batches))
