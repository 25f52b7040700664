"""Do small steps of an incremental run in the driver, because each job of Spark takes a second, however small it is.

Only incremental runs try this, because a lake of any size may have few changes. The size of a step shows only while it
runs. If a step exceeds `LocalLimits`, it is given up, and Spark does it from its start. So the driver's time and memory
stay bounded.
"""

from __future__ import annotations

from itertools import chain, count

from refstore.versioning.commits.workers import Workers
from refstore_gc import listing, live_in_commits, live_in_kv
from refstore_gc.address_codec import Cuts
from refstore_gc.anti_join import JoinInputs
from refstore_gc.batches import Batch, by_bucket
from refstore_gc.garbage import GarbageCount
from refstore_gc.listing import ListedChunk
from refstore_gc.run_context import LocalLimits, RunContext
from refstore_gc.run_layout import threads_at


class TooLarge(Exception):
    """The step exceeds the limits; Spark does it. Not an error."""


def list_here(run: RunContext, data_from: str, limits: LocalLimits) -> list[ListedChunk]:
    """List objects as `listing.list_objects` does, in the driver. Raises TooLarge."""
    keys = count(1)

    def count_key() -> None:
        if next(keys) > limits.keys:
            raise TooLarge

    def list_one(numbered: tuple[int, listing.Interval]) -> list[ListedChunk]:
        return list(listing.list_interval(run.layout, *numbered, run.cutoff_ms, run.options.foreign, count_key))

    intervals = listing.intervals(
        run.repository.objects, now_ms=run.repository.clock.now_ms(), pieces_min=1, data_from=data_from
    )
    with Workers(threads_at(run.layout)) as workers:
        return [chunk for chunks in workers.ahead(list_one, list(enumerate(intervals))) for chunk in chunks]


def join_here(inputs: JoinInputs, limits: LocalLimits) -> list[GarbageCount]:
    """Join as `anti_join.join_in_spark` does, in the driver. Raises TooLarge before anything was written."""
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
    return [count for batches in by_bucket(together) for count in inputs.join_bucket(layout, batches)]
