"""The anti-join: what the store lists, less what the KV and the commits name.

A bucket is an interval of the namespace (`address_codec.py`). Everything that says something about an address comes to
the address's bucket as a batch: the listing, what the KV names, and what commits name. There `bucket_join.py` joins it,
on every engine, in full and in incremental runs.

Only the run's own process sees the KV, because an SQLite file is on one machine. It reads the addresses that the KV
names in the order of rule 13 and writes them to files (`AddressWriter`), which tasks of the engine read. It holds one
file of addresses at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from refstore.core.arrow_arrays import make_array
from refstore.core.ids import CommitId
from refstore.errors import Corrupt
from refstore.gc_marks import LiveBatch, LiveCommit, Marks, OfflineRun
from refstore.gc_marks.commit_marks import PAGE
from refstore_gc import live_in_commits
from refstore_gc.address_batches import Batch, BatchBuilder, BatchKind
from refstore_gc.address_codec import BucketBounds
from refstore_gc.bucket_join import BucketRow, BucketTask, ChunkReference, join_bucket
from refstore_gc.engines.base import BatchStream, Engine
from refstore_gc.incremental.baseline import Baseline, changed_sources
from refstore_gc.list_objects import ListedChunk
from refstore_gc.live_in_commits import CommitReads, CommitSources, LiveCommits, TreeFilter
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import DATA, RunLayout, open_store, read_table, write_table
from refstore_gc.run_summary import UnitRow, read_units
from refstore_gc.untyped_arrow import pa

BUCKET_ROWS: Final = 500_000
"""Small chunks of the listing share a bucket."""


@dataclass(frozen=True, slots=True)
class LiveSet:
    """Everything that must be kept, as the live scan found it."""

    addresses: AddressWriter
    identities: AddressWriter
    """Identities of purged objects."""
    commits: LiveCommits
    reads: CommitReads | None
    """What is read of the commits. None: some keep a part only."""


def collect_live_set(
    run: RunContext,
    scan: Iterable[LiveBatch],
    filter_of: Callable[[LiveCommit], TreeFilter | None],
    report: Callable[[int], None],
) -> LiveSet:
    """Write the addresses of a live scan to files, and gather what is to be read of its commits."""
    addresses, commits = AddressWriter(run.layout), LiveCommits()
    identities = AddressWriter(run.layout, "identities")
    for batch in scan:
        addresses.add(batch.addresses)
        identities.add(batch.identities)
        for each in batch.commits:
            commits.add(each.commit, each.record, filter_of(each))
        report(addresses.rows)
    objects = commits.tree_object_keys()
    while page := list(islice(objects, PAGE)):
        addresses.add(page)
    addresses.finish()
    identities.finish()
    return LiveSet(addresses, identities, commits, commits.read_names())


class JoinInputs(NamedTuple):
    """Everything that is joined."""

    task: BucketTask
    bounds: Sequence[str]
    """Where the buckets begin, except the first."""
    batches: list[Batch]
    """The listing's chunks, and files that earlier runs recorded."""
    files: list[tuple[str, BatchKind]]
    """Files of addresses that this run wrote."""
    earlier_files: list[tuple[str, BatchKind]]
    """Files of addresses that earlier runs wrote."""
    sources: CommitSources


class JoinResult(NamedTuple):
    chunks: Sequence[ListedChunk]
    live_set: LiveSet
    bounds: Sequence[str]
    rows: list[BucketRow]
    sources: dict[str, int]
    """How many objects of commits were read."""

    def list_units(self) -> list[UnitRow]:
        return list_units_of(self.rows)


def find_garbage(
    run: RunContext,
    mark: OfflineRun,
    chunks: Sequence[ListedChunk],
    live: LiveSet,
    expired: Iterable[CommitId],
    marked_again: Iterable[CommitId] = (),
    *,
    is_recorded: bool = False,
    baseline: Baseline | None = None,
) -> JoinResult:
    """Write what is listed and not live to the mark's files, and count it.

    The names of `expired` commits tell why something is garbage. Those of commits that are `marked_again` are not
    pending in an earlier mark, which leaves them. `baseline`: the records of the run before; only what changed since is
    read, and the names of commits that went are known from there. `is_recorded`: as in `BucketTask`.
    """
    earlier_files = [(key, BatchKind.PENDING) for key in read_pending_files(run, mark)]
    with run.steps.step("comparing what is there with what is named"):
        bounds = bucket_bounds(chunks, baseline.cuts(DATA) if baseline is not None else ())
        batches = chunk_batches(chunks, bounds)
        files = [(key, BatchKind.LIVE_IN_KV) for key in live.addresses.files]
        task = BucketTask(layout=run.layout, is_recorded=is_recorded)
        if baseline is not None and live.reads is not None:
            task = msgspec.structs.replace(
                task, horizon=baseline.horizon, expired_files=baseline.nothing_to_delete.files
            )
            batches += baseline.batches(bounds)
            earlier_files += [(key, BatchKind.FORMERLY_IN_KV) for key in baseline.former_kv_files]
            sources = changed_sources(live.commits, live.reads, baseline.commit_reads, run.layout)
        else:
            files += [(key, BatchKind.IDENTITIES) for key in live.identities.files]
            sources = live.commits.sources(expired, marked_again)
        rows = join_buckets(run.engine, JoinInputs(task, bounds, batches, files, earlier_files, sources))
        read = {"trees": len(sources.trees), "listings": len(sources.added_addresses), "ranges": len(sources.ranges)}
        return JoinResult(chunks, live, bounds, rows, read)


def join_buckets(engine: Engine, inputs: JoinInputs) -> list[BucketRow]:
    """Bring the batches of each bucket together, and join them there."""
    layout, cuts = inputs.task.layout, BucketBounds.from_addresses(inputs.bounds)
    flows = [
        BatchStream(inputs.batches),
        files_flow(layout, cuts, inputs.files),
        files_flow(layout.to_namespace(), cuts, inputs.earlier_files),
        *live_in_commits.commit_flows(layout, cuts, inputs.sources),
    ]
    return list(engine.join(flows, cuts.buckets, partial(join_bucket, inputs.task)))


def list_units_of(rows: Iterable[BucketRow]) -> list[UnitRow]:
    """Return the files of the mark, in order of their addresses."""
    return sorted((row for row in rows if isinstance(row, UnitRow)), key=lambda unit: unit.first_address)


def earlier_commits(marks: Marks, mark: OfflineRun) -> Iterator[CommitId]:
    """Yield the commits of earlier marks, which the live scan disregards."""
    for mark_id in mark.record.disregarded_marks:
        yield from marks.commits.scan_marked(mark_id)


def read_pending_files(run: RunContext, mark: OfflineRun) -> list[str]:
    """Return the files that earlier marks will sweep. A mark whose files are lost sweeps nothing; then this run takes
    its objects.
    """
    files: list[str] = []
    for mark_id in mark.record.disregarded_marks:
        try:
            files += [unit.key for unit in read_units(run.repository.objects, mark_id)]
        except Corrupt:
            continue
    return files


def bucket_bounds(chunks: Sequence[ListedChunk], required: Iterable[str] = ()) -> list[str]:
    """Return where buckets begin, except the first. `required`: bounds that cut no chunk."""
    cuts = set(required)
    rows = 0
    for chunk in chunks:
        if rows and chunk.objects and rows + chunk.objects > BUCKET_ROWS:
            cuts.add(chunk.first_key)
            rows = 0
        rows += chunk.objects
    return sorted(cuts)


def chunk_batches(chunks: Sequence[ListedChunk], bounds: Sequence[str]) -> list[Batch]:
    """Return a batch for each chunk that holds objects, in the chunk's bucket."""
    return [
        Batch.from_value(bisect_right(bounds, each.first_key), BatchKind.LISTED, ChunkReference(each.number, each.key))
        for each in chunks
        if each.objects
    ]


FILE_ROWS: Final = 1 << 18
"""20 MB in the run's own process."""


class AddressWriter:
    """Writes addresses to files of a bounded size."""

    def __init__(self, layout: RunLayout, folder: str = "kept") -> None:
        self._layout = layout
        self._folder = folder
        self._waiting: list[str] = []
        self.files: list[str] = []
        self.rows = 0

    def add(self, addresses: Sequence[str]) -> None:
        self._waiting += addresses
        self.rows += len(addresses)
        if len(self._waiting) >= FILE_ROWS:
            self._write()

    def finish(self) -> list[str]:
        """Write the rest, and return the files' keys."""
        if self._waiting:
            self._write()
        return self.files

    def _write(self) -> None:
        key = self._layout.file_key(self._folder, len(self.files))
        table = pa.table({"address": make_array(self._waiting, pa.string())})
        write_table(open_store(self._layout.files, self._layout), key, table)
        self.files.append(key)
        self._waiting = []


def files_flow(layout: RunLayout, cuts: BucketBounds, files: Sequence[tuple[str, BatchKind]]) -> BatchStream:
    """Return the flow of the addresses in files that a run wrote. `layout`: where the files lie."""
    return BatchStream([Batch.from_value(0, kind, key) for key, kind in files], partial(read_files, layout, cuts))


def read_files(layout: RunLayout, cuts: BucketBounds, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the addresses of files, as batches for their buckets."""
    store = open_store(layout.files, layout)
    builder = BatchBuilder(cuts, layout.seed)
    for batch in batches:
        table = read_table(store, msgspec.msgpack.decode(batch.body, type=str), ["address"])
        addresses = table.column("address").combine_chunks()
        yield from builder.add(batch.kind, addresses)
    yield from builder.flush()
