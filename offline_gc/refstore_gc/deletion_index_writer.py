"""Writes the index over all deletions (`refstore/deletions/index_format.py`), so that `refstore why` finds an address
among all runs.

    cover       the outcomes of a sweep -> a segment; then the KV says that the run is covered, and the sweep may end
    catch_up    what is not covered yet: sweeps of earlier versions, and what the reaper wrote into its journal since
    merge       FAN_OUT segments of a level -> one of the next

Each entry is rewritten once per level, so log(runs) to the base FAN_OUT times. Memory: CHUNK_ENTRIES of what is merged
at once. A crash in between, or several hosts at once, leave entries twice at worst; a merge drops those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from refstore.context import Context
from refstore.core import event_log, keys
from refstore.core.arrow_arrays import array, numpy_of, scalar
from refstore.core.ids import branch_of
from refstore.deletions import journal_format
from refstore.deletions.index_format import (
    ENTRY_BYTES,
    FOLDER,
    HASH_BITS,
    JOURNAL,
    OUTCOMES,
    REASONS,
    SWEEP,
    Segment,
    Source,
    damaged,
    encode_source,
    hash_of,
    path_text,
    read_sources,
    segment_key,
    segments,
)
from refstore.errors import Corrupt, ObjectNotFound, RefstoreError
from refstore.gc_marks import Marks, RunState
from refstore.kv.base import ABSENT, Key
from refstore.objects.base import ObjectStore
from refstore.versioning.commits.workers import Workers
from refstore_gc.run_layout import read_table
from refstore_gc.run_summary import read_manifest
from refstore_gc.untyped_arrow import pa, pc

FAN_OUT: Final = 3
"""With 1,000 runs at most 12 segments are left; each entry is written 7 times."""
SEGMENT_ENTRIES: Final = 4_000_000
"""What a run's entries are sorted in: 64 MB. One of more leaves several segments."""
CHUNK_ENTRIES: Final = 1 << 20
"""What a merge has in memory at once."""
READ_BYTES: Final = 1 << 22
JOURNAL_LAG_MS: Final = 2 * 3_600_000
"""A segment of the journal is taken up when it is so old: clocks may be apart, and a put may land late."""
JOURNAL_SEGMENTS: Final = 20_000
"""Taken up at once; the next time goes on."""
JOURNAL_PAGE: Final = 1_000
_THREADS: Final = 8

LOST: Final = b"lost"
"""What the KV says of a run whose files were removed before they were indexed."""

ENTRY: Final = np.dtype([("hash", ">u8"), ("source", ">u4"), ("outcome", "u1"), ("reason", "u1"), ("spare", ">u2")])

_EXCLUDED: Final = "dropped out"

Entries = np.ndarray[Any, np.dtype[Any]]

_log = event_log.get_logger(__name__)


def cover(ctx: Context, mark_id: str, outcome_files: Iterable[str], at_ms: int) -> None:
    """Index what became of each address of a sweep, from the sweep's files. Called again it does nothing, or writes the
    same again.

    Raises Corrupt (an outcome file is missing or damaged), Unavailable.
    """
    key = keys.gc_indexed(ctx.repo, mark_id)
    if ctx.kv.get(key) is not ABSENT:
        return
    files = list(outcome_files)
    waiting: list[Entries] = []
    sources: list[Source] = []
    with Workers(_THREADS) as workers:
        tables = workers.ahead(lambda file: read_table(ctx.objects, file, ["address", "reason", "outcome"]), files)
        for file, table in zip(files, tables, strict=True):
            entries = _entries_of(table, len(sources))
            if not len(entries):
                continue
            waiting.append(entries)
            sources.append(Source(SWEEP, mark_id, file, at_ms))
            if sum(map(len, waiting)) >= SEGMENT_ENTRIES:
                _write(ctx, waiting, sources)
                waiting, sources = [], []
    _write(ctx, waiting, sources)
    ctx.kv.set(key, b"")
    merge(ctx)


class Indexed(NamedTuple):
    """The index, as it is left."""

    runs: int
    """Runs that were added to it."""
    runs_lost: int
    """Runs that could not be added, because their files are missing or damaged."""
    journal_segments: int
    """Segments of the journal that were added to it."""
    segments: int
    """The files that it consists of."""
    entries: int


def catch_up(ctx: Context) -> Indexed:
    """Index what no sweep has: runs of earlier versions, and the journal. What cannot be read is logged, and the rest
    is done.
    """
    added = lost = 0
    for run in list(Marks(ctx).runs()):
        if run.state is RunState.SWEPT and ctx.kv.get(keys.gc_indexed(ctx.repo, run.mark_id)) is ABSENT:
            try:
                units = read_manifest(ctx.objects, run.mark_id).units
                cover(ctx, run.mark_id, [outcome_key(unit.key) for unit in units], run.record.swept_ms)
                added += 1
            except Corrupt as error:
                _log.warning("sweep_not_indexed", repository=ctx.name, mark=run.mark_id, error=str(error))
                ctx.kv.set(keys.gc_indexed(ctx.repo, run.mark_id), LOST)
                lost += 1
    taken = _cover_journal(ctx)
    merge(ctx)
    found = segments(ctx.objects)
    return Indexed(added, lost, taken, len(found), sum(segment.entries for segment in found))


def catch_up_or_log(ctx: Context) -> None:
    """`catch_up` at the end of a run, which has done its work: what the index lacks is looked for elsewhere until the
    next one.
    """
    try:
        catch_up(ctx)
    except RefstoreError as error:
        _log.error("deletion_index_not_caught_up", repository=ctx.name, error=str(error))


def rebuild(ctx: Context) -> Indexed:
    """Write the index anew from what the runs and the journal say. Runs whose files were removed since are lost to
    it.
    """
    for name, _ in list(ctx.kv.scan_all(keys.gc_states(ctx.repo))):
        if (
            name.startswith((keys.GC_INDEXED, keys.GC_JOURNAL_DAMAGED))
            or name == keys.gc_journal_indexed(ctx.repo).name
        ):
            ctx.kv.delete(
                Key(keys.gc_states(ctx.repo), name)
            )  # before the files: what is not said to be in the index is looked for elsewhere
    ctx.objects.delete_many([info.key for info in ctx.objects.list(FOLDER)])
    return catch_up(ctx)


def outcome_key(unit: str) -> str:
    """Return where the outcome of a file of the mark is written."""
    return unit.replace("/mark/", "/sweep/")


def merge(ctx: Context) -> None:
    """Merge segments until no level has FAN_OUT of them. One that another host has merged meanwhile, or that is
    damaged, ends it.
    """
    store = ctx.objects
    try:
        while due := _due(segments(store)):
            _merge(store, due, ctx.ids.unique(ctx.clock.now_ms()))
    except ObjectNotFound:
        return  # another host is at it
    except Corrupt as error:
        _log.error("deletion_index_not_merged", repository=ctx.name, error=str(error))


def _entries_of(table: Any, source: int) -> Entries:
    """Return entries in the order of the table, without what was excluded: that was not deleted."""
    table = table.filter(pc.not_equal(table.column("outcome"), scalar(_EXCLUDED, pa.string())))
    entries = np.zeros(table.num_rows, ENTRY)
    entries["hash"] = np.frombuffer(b"".join(map(hash_of, table.column("address").to_pylist())), ">u8")
    entries["source"] = source
    for name, names in (("outcome", OUTCOMES), ("reason", REASONS)):
        codes = pc.index_in(table.column(name), value_set=array(names, pa.string()))
        entries[name] = numpy_of(pc.fill_null(codes, scalar(0, pa.int32())))
    return entries


# ---- the journal


def _cover_journal(ctx: Context) -> int:
    """Take up segments of the journal, oldest first, as far as no other can come between them any more. How many there
    were.
    """
    taken = 0
    mark = keys.gc_journal_indexed(ctx.repo)
    known = ctx.kv.get(mark)
    after = known.decode() if isinstance(known, bytes) else ""
    before = journal_format.first_after(ctx.clock.now_ms() - JOURNAL_LAG_MS)
    listed = ctx.objects.list(journal_format.PREFIX, after=after, before=before)
    began = islice((info.key for info in listed if info.key.endswith(journal_format.BEGAN)), JOURNAL_SEGMENTS)
    while page := list(islice(began, JOURNAL_PAGE)):
        waiting: list[Entries] = []
        sources: list[Source] = []
        with Workers(_THREADS) as workers:
            for key, body in zip(page, workers.ahead(ctx.objects.read, page), strict=True):
                try:
                    lines = journal_format.read_lines(body)
                except ValueError as error:
                    _log.error("journal_segment_unreadable", segment=key, error=str(error))
                    ctx.kv.set(keys.gc_journal_damaged(ctx.repo, key), b"")
                    continue
                number = len(sources).to_bytes(4, "big") + bytes(4)
                texts = {line.address for line in lines} | {
                    path_text(branch_of(line.token), line.path) for line in lines if line.token
                }
                waiting.append(np.frombuffer(b"".join(hash_of(text) + number for text in texts), ENTRY))
                sources.append(Source(JOURNAL, "", key, int(key.rpartition("/")[2].partition("-")[0])))
        _write(ctx, waiting, sources)
        ctx.kv.set(mark, page[-1].encode())  # behind its segment: who dies in between takes them up once more
        taken += len(page)
    return taken


# ---- segments


def _write(ctx: Context, waiting: Sequence[Entries], sources: Sequence[Source]) -> None:
    if not sources:
        return
    entries = _sorted(np.concatenate(waiting))
    body = entries.tobytes() + b"".join(map(encode_source, sources))
    ctx.objects.put(segment_key(0, len(sources), ctx.ids.unique(ctx.clock.now_ms())), body)


def _due(found: Sequence[Segment]) -> list[Segment]:
    """Return segments to be merged now: of the lowest level that has enough of them, the oldest."""
    by_level: dict[int, list[Segment]] = {}
    for segment in found:
        by_level.setdefault(segment.level, []).append(segment)
    for level in sorted(by_level):
        if len(by_level[level]) >= FAN_OUT:
            return by_level[level][:FAN_OUT]
    return []


def _merge(store: ObjectStore, due: Sequence[Segment], id_: str) -> None:
    """Write one segment for several, then remove them. Raises ObjectNotFound, Corrupt, Unavailable; nothing is removed
    then.
    """
    numbers: dict[bytes, int] = {}
    places = [
        np.array([numbers.setdefault(each, len(numbers)) for each in read_sources(store, segment)], np.uint32)
        for segment in due
    ]
    streams = [_Stream(store, segment) for segment in due]
    parts = max(1, sum(segment.entries for segment in due) // CHUNK_ENTRIES)

    def body() -> Iterator[bytes]:
        for part in range(1, parts + 1):
            bound = (part << HASH_BITS) // parts
            pieces: list[Entries] = []
            for stream, place in zip(streams, places, strict=True):
                piece = stream.below(bound)
                if len(piece) and int(piece["source"].max()) >= len(place):
                    raise damaged(store, stream.key, "an entry names a source that is not there")
                piece["source"] = place[piece["source"]]
                pieces.append(piece)
            yield _sorted(np.concatenate(pieces)).tobytes()
        yield b"".join(numbers)

    store.put(segment_key(due[0].level + 1, len(numbers), id_), body())
    failed = store.delete_many([segment.key for segment in due]).failed
    if failed:
        _log.error("deletion_index_not_removed", keys=[key for key, _ in failed])
        raise Corrupt(
            f"{failed[0][0]} was merged and could not be removed: {failed[0][1]}"
        )  # else it would be merged again at once


def _sorted(entries: Entries) -> Entries:
    """Return the entries in order of hash, each once."""
    order = np.lexsort((entries["source"].astype(np.uint32), entries["hash"].astype(np.uint64)))
    entries = np.ascontiguousarray(
        entries[order].astype(ENTRY)
    )  # concatenation turns big-endian numbers into the machine's
    if len(entries) < 2:
        return entries
    halves = entries.view(np.uint64).reshape(-1, 2)
    return entries[np.append(True, (halves[1:] != halves[:-1]).any(axis=1))]


class _Stream:
    """A segment's entries, read from the first to the last."""

    def __init__(self, store: ObjectStore, segment: Segment) -> None:
        self.key = segment.key
        self._read: Callable[[int, int], bytes] = lambda start, end: b"".join(
            store.get(segment.key, start=start, end=end)
        )
        self._size = segment.sources_at
        self._at = 0
        self._waiting: Entries = np.empty(0, ENTRY)

    def below(self, bound: int) -> Entries:
        """Return what is left of the entries whose hash is below `bound`, for the caller to change."""
        pieces: list[Entries] = []
        while True:
            hashes = self._waiting["hash"].astype(np.uint64)
            end = len(hashes) if bound >> HASH_BITS else int(np.searchsorted(hashes, np.uint64(bound)))
            pieces.append(self._waiting[:end])
            self._waiting = self._waiting[end:]
            if len(self._waiting) or self._at >= self._size:
                return np.concatenate(pieces)
            size = min(READ_BYTES // ENTRY_BYTES * ENTRY_BYTES, self._size - self._at)
            self._waiting = np.frombuffer(self._read(self._at, self._at + size), ENTRY)
            self._at += size
