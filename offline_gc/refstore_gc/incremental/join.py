"""The anti-join of an incremental run, and its records for the next run.

An incremental run lists only objects that are newer than its horizon. An older object can be garbage only if it was
named by a commit that is not kept any more, or by the KV. Such objects are passed to their bucket as whole addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from refstore.core.arrow_arrays import array, numpy_of, scalar
from refstore.gc_marks import Run
from refstore.versioning.commits.metaranges import RangeRow
from refstore.versioning.commits.store import TreeStore
from refstore.versioning.commits.workers import Workers
from refstore_gc import anti_join, garbage, listing
from refstore_gc.address_codec import among, keys_of
from refstore_gc.anti_join import JoinInputs, JoinResult, LiveSet
from refstore_gc.batches import Batch, BatchKind
from refstore_gc.checked_files import read_required, write_value
from refstore_gc.garbage import Bucket, GarbageCount, LiveKeys
from refstore_gc.incremental.baseline import Baseline, bucket_key
from refstore_gc.incremental.known_keys import KnownKeys, ranges_in, sizes_of, still_named
from refstore_gc.listing import ListedChunk
from refstore_gc.live_in_commits import CommitReads, Listing, LiveCommits, Sources, Tree, trees_of
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import ObjectKind, RunLayout, is_there, store_at, threads_at
from refstore_gc.untyped_arrow import pa, pc

EARLIER_NUMBERS: Final = 1_000_000_000
"""The numbers of files with garbage that earlier runs listed. They are higher than the numbers of chunks."""


def list_objects(run: RunContext, baseline: Baseline) -> list[ListedChunk]:
    """List the objects that are newer than the baseline's horizon."""
    return listing.list_objects(run, baseline.horizon)


def find_garbage(
    run: RunContext, mark: Run, chunks: Sequence[ListedChunk], live: LiveSet, reads: CommitReads, baseline: Baseline
) -> JoinResult:
    """Find garbage as `anti_join.find_garbage` does, but read only the changes since the baseline."""
    pending = anti_join.pending_files(run, mark)
    with run.steps.step("comparing what is there with what is named"):
        bounds = anti_join.bucket_bounds(chunks, baseline.cuts(listing.DATA))
        earlier_files = [(key, BatchKind.PENDING) for key in pending]
        earlier_files += [(key, BatchKind.FORMERLY_IN_KV) for key in baseline.former]
        inputs = JoinInputs(
            run.layout,
            bounds,
            anti_join.chunk_batches(chunks, bounds) + baseline.batches(bounds),
            [(key, BatchKind.LIVE_IN_KV) for key in live.addresses.files],
            earlier_files,
            changed_sources(live.commits, reads, baseline.units, run.layout),
            partial(join_bucket, horizon=baseline.horizon),
        )
        return anti_join.result_of(inputs, anti_join.join(run.engine, inputs), chunks, live)


def changed_sources(commits: LiveCommits, reads: CommitReads, before: CommitReads, layout: RunLayout) -> Sources:
    """Return the sources that are read now and were not before, and those that were read before and are not now. Of the
    trees it returns only the ranges that the two do not share. Raises CorruptRange.

    `reads`: those of `commits`. The ranges of trees in `before` are on record.
    """
    trees = trees_of(layout)
    former, now = _ranges_of(trees, before.roots), _ranges_of(trees, reads.roots)
    # in the order of their paths: one task sees a range and the one that it replaced (`BatchBuilder`)
    changed = [(now[each], int(BatchKind.LIVE_IN_COMMITS)) for each in now.keys() - former.keys()]
    changed += [(former[each], int(BatchKind.NO_LONGER_READ)) for each in former.keys() - now.keys()]
    changed.sort(key=lambda each: (each[0].first_path, each[0].id))
    metaranges, metarange_of = commits.range_sources()
    new_trees = [Tree(each) for each in metaranges if each not in before.metaranges]
    new = sorted(reads.added - before.added)
    added = [Listing(each, BatchKind.LIVE_IN_COMMITS, metarange_of[each]) for each in new]
    added += [Listing(each, BatchKind.NO_LONGER_READ) for each in sorted(before.added - reads.added)]
    ranges = [(row.id, kind, -1) for row, kind in changed]
    return Sources(new_trees, added, [], ranges, sum(row.rows for row, _ in changed))


def _ranges_of(trees: TreeStore, metaranges: Iterable[str]) -> dict[str, RangeRow]:
    return {row.id: row for metarange in metaranges for row in trees.metarange(metarange).rows}


def join_bucket(layout: RunLayout, batches: Iterable[Batch], horizon: str = "") -> Iterator[GarbageCount]:
    """Write the garbage of one bucket to the mark, and record the bucket's known keys for the next run.

    `horizon`: where the listing of an incremental run began. '': everything was listed.
    """
    store, bucket = store_at(layout.files, layout), Bucket(layout, batches)
    keys, chunks = bucket.live_keys(), bucket.chunks()
    lost = bucket.addresses(BatchKind.NO_LONGER_READ)
    lost_keys = keys_of(lost, layout.seed)
    in_commits, ranges = bucket.keys[BatchKind.LIVE_IN_COMMITS], bucket.keys[BatchKind.RANGES]
    keys = keys._replace(expired=[*keys.expired, lost_keys])
    if horizon:
        open_chunks = list(chunks)
        addresses = pa.concat_arrays([lost, bucket.addresses(BatchKind.FORMERLY_IN_KV)])
        candidates = np.unique(
            np.concatenate([keys_of(addresses, layout.seed), *(chunk.keys for chunk in open_chunks)])
        )
        known = [read_required(store, key, KnownKeys) for key in bucket.earlier_files] if len(candidates) else []
        still = still_named(known, candidates, in_commits, lost_keys)
        keys = keys._replace(live=[*bucket.keys[BatchKind.LIVE_IN_KV], still, *ranges, *ranges_in(known)])
        chunks = iter(open_chunks)
        earlier = _earlier_garbage(layout, horizon, known, addresses, keys)
        yield from garbage.write_garbage(layout, EARLIER_NUMBERS + bucket.number, earlier, keys.expired)
    staying: list[tuple[Any, Any]] = []
    for chunk in chunks:
        is_live = among(chunk.keys, keys.live)
        yield from garbage.subtract_live(layout, chunk, keys, is_live)
        blobs = is_live & (numpy_of(chunk.table.column("kind")) == ObjectKind.DATA)
        staying.append((chunk.keys[blobs], numpy_of(chunk.table.column("size_bytes"))[blobs]))
    if not horizon:
        yield from garbage.find_dead(layout, bucket, keys)
    if staying or in_commits or ranges or len(lost_keys):
        key = bucket_key(layout.mark_id, bucket.number)
        listed, sizes = [blobs for blobs, _ in staying], [sizes for _, sizes in staying]
        write_value(store, key, KnownKeys.of(in_commits, lost_keys, ranges, listed, sizes))
        yield GarbageCount(bucket.number, "", "carried", key, "", 0, 0)


def _earlier_garbage(
    layout: RunLayout, horizon: str, known: Sequence[KnownKeys], candidates: Any, keys: LiveKeys
) -> Any:
    """Return the garbage among the objects that earlier runs listed, as a table like a chunk's.

    Objects that commits no longer name still exist, because only a sweep deletes them. Objects that the KV no longer
    names were most likely deleted by the operation that released them, so the store is asked. Nothing can name them
    again, so their presence decides.
    """
    addresses = pc.unique(candidates)
    addresses = addresses.filter(pc.less(addresses, scalar(horizon, pa.string())))
    own_keys = keys_of(addresses, layout.seed)
    ordered, places = np.unique(own_keys, return_inverse=True)
    sizes = sizes_of(known, ordered)[places]
    is_garbage = (sizes >= 0) & ~among(own_keys, keys.live) & ~among(own_keys, keys.pending)
    uncertain = np.flatnonzero(is_garbage & ~among(own_keys, keys.expired))
    store = store_at(layout.url, layout)
    with Workers(threads_at(layout)) as workers:
        in_question = (addresses[place].as_py() for place in uncertain.tolist())
        is_garbage[uncertain] = np.fromiter(workers.ahead(partial(is_there, store), in_question), bool, len(uncertain))
    addresses, sizes = addresses.filter(array(is_garbage)), sizes[is_garbage]
    table = pa.table(
        {
            "address": addresses,
            "size_bytes": array(sizes, pa.int64()),
            "mtime_ms": pa.nulls(len(addresses), pa.int64()),
            "kind": array(np.full(len(addresses), ObjectKind.DATA, np.int8)),
        }
    )
    return table.sort_by("address")
