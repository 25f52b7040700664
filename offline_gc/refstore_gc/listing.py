"""List what the store holds, in the order of keys, before anything of the KV is read (rule 13).

The namespace is cut into intervals that touch each other, so that together they are everything. The cuts lie where the
data is. A task lists its interval and writes chunks. It fails closed: a listing that breaks off raises
(`objects/base.py`), and the run ends.

A complete listing is never repeated after the live scan began: it would show objects that the scan could not know.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, pairwise
from typing import Final, NamedTuple

import msgspec

from refstore.core import ids
from refstore.core.arrow_arrays import array
from refstore.objects.base import ObjectStore
from refstore.versioning.commits import names
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import DATA, ROOT, ObjectKind, RunLayout, kind_of, store_at, write_table
from refstore_gc.untyped_arrow import pa

CHUNK_ROWS: Final = 500_000
"""How many objects a chunk holds: some 60 MB in a task."""
INTERVALS_PER_CORE: Final = 4
"""So that one large interval does not keep all cores waiting."""
_PROBES_AT_ONCE: Final = 8
_FEW: Final = 1000
"""A page of the store. Listing less than this is faster than cutting it."""
_ROUNDS: Final = 3
"""How often intervals are narrowed: after that one is a few thousandths of the time."""
HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * HOUR_MS
_BEHIND: Final = "0"
"""Follows the slash: `data0` sorts after everything in `data/`."""
_HEX: Final = "0123456789abcdef"


class Interval(msgspec.Struct, frozen=True):
    """Keys that start with `prefix`, strictly after `after`, before `before` ('': to the end)."""

    prefix: str
    after: str = ""
    before: str = ""


class ListedChunk(NamedTuple):
    """A file of the listing. Its key is '' where the interval had no object to write."""

    number: int
    key: str
    first: str
    objects: int
    bytes: int
    young: int
    young_bytes: int
    foreign: int
    foreign_bytes: int


def count_listed(chunks: Sequence[ListedChunk]) -> int:
    """Return how many objects a run has to compare."""
    return sum(chunk.objects for chunk in chunks)


def list_objects(run: RunContext, data_from: str = "") -> list[ListedChunk]:
    """List everything that was written by the run's cutoff; the chunks in order. `data_from`: of the blobs only those
    from there on.
    """
    planned = intervals(
        run.repository.objects,
        now_ms=run.repository.clock.now_ms(),
        pieces_min=run.engine.parts * INTERVALS_PER_CORE,
        data_from=data_from,
    )
    work = partial(list_interval, run.layout, run.cutoff_ms, run.options.foreign)
    return sorted(run.engine.map(work, list(enumerate(planned))), key=lambda chunk: chunk.number)


def intervals(store: ObjectStore, *, now_ms: int, pieces_min: int, data_from: str = "") -> list[Interval]:
    """Cut the namespace into at least so many intervals, in order; of the blobs those after `data_from`."""
    ranges, data = names.RANGES, _data_cuts(store, now_ms=now_ms, pieces_min=pieces_min, data_from=data_from)
    quarters = [ranges + _HEX[at] for at in (4, 8, 12)] if pieces_min > len(_HEX) else []
    return [
        *_between("", "", [], "_refstore/"),
        *_between(names.ADDED, "", [], ""),
        *_between(names.METARANGES, "", [], ""),
        *_between(ranges, "", quarters, ""),
        *_between("", f"_refstore{_BEHIND}", [], DATA),
        *_between(DATA, data_from, data, ""),
        *_between("", f"data{_BEHIND}", [], ""),
    ]


def _between(prefix: str, after: str, cuts: Sequence[str], before: str) -> list[Interval]:
    bounds = [after, *cuts, before]
    return [Interval(prefix, first, last) for first, last in pairwise(bounds)]


def _data_cuts(store: ObjectStore, *, now_ms: int, pieces_min: int, data_from: str) -> list[str]:
    """Return keys that cut the data where it is. They need not exist; only their order counts."""
    if pieces_min < 2:
        return []
    first_keys = [info.key for info in islice(store.list(DATA, after=data_from), _FEW + 1)]
    start_ms = _time_of(first_keys[0]) if first_keys else None
    if len(first_keys) <= _FEW or start_ms is None:
        return []
    spans: list[tuple[int, int]] = [(start_ms, max(now_ms, start_ms) + _DAY_MS)]
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="refstore-gc-probe") as pool:
        for _ in range(_ROUNDS):
            pieces = -(-pieces_min // len(spans))
            if pieces < 2:
                break
            narrow = [part for low, high in spans for part in _parts(low, high, pieces)]
            nexts = pool.map(_next_key, [store] * len(narrow), [cut_at(low) for low, _ in narrow])
            spans = [
                span for span, key in zip(narrow, nexts, strict=True) if key is not None and key < cut_at(span[1])
            ] or spans[:1]
    return sorted({cut_at(low) for low, _ in spans[1:]})


def _parts(low: int, high: int, pieces: int) -> list[tuple[int, int]]:
    step = max(1, -(-(high - low) // pieces))
    return [(at, min(at + step, high)) for at in range(low, high, step)]


def cut_at(at_ms: int) -> str:
    """Return a key that sorts before every address made then, and after every one made earlier."""
    slice_ = ids.slice_of(at_ms)
    return f"{DATA}{slice_}/" if at_ms % HOUR_MS == 0 else f"{DATA}{slice_}/{ids.RandomIds().unique(at_ms)[:10]}"


def _time_of(key: str) -> int | None:
    made = ids.made_ms(ids.Address(key)) if ids.is_own(ids.Address(key)) else None
    return None if made is None else made // HOUR_MS * HOUR_MS


def _next_key(store: ObjectStore, after: str) -> str | None:
    listing = store.list(DATA, after=after)
    try:
        return next((info.key for info in listing), None)
    finally:
        close: Callable[[], None] | None = getattr(listing, "close", None)
        if close is not None:
            close()


def list_interval(
    layout: RunLayout, cutoff_ms: int, foreign: bool, numbered: tuple[int, Interval]
) -> Iterator[ListedChunk]:
    """List an interval and write its chunks.

    File names contain the attempt, because a task that was taken for lost may go on. It cuts its chunks elsewhere,
    because something was deleted meanwhile. Under the same names its chunks would replace those whose first keys were
    reported.
    """
    number, interval = numbered
    attempt = secrets.token_hex(8)
    store, files_store = store_at(layout.url, layout), store_at(layout.files, layout)
    addresses: list[str] = []  # by column: Python's garbage collector has nothing to look at then
    sizes_bytes: list[int] = []
    mtimes_ms: list[int] = []
    kinds: list[int] = []
    files = 0
    counts = {"young": 0, "young_bytes": 0, "foreign": 0, "foreign_bytes": 0}

    def write_chunk() -> ListedChunk:
        nonlocal files
        chunk_number = number * 1000 + files
        place = layout.place("listing", chunk_number, attempt)
        key, first = "", ""
        if addresses:
            table = pa.table(
                {
                    "address": array(addresses, pa.string()),
                    "size_bytes": array(sizes_bytes, pa.int64()),
                    "mtime_ms": array(mtimes_ms, pa.int64()),
                    "kind": array(kinds, pa.int8()),
                }
            )
            write_table(files_store, place, table)
            key, first = place, addresses[0]
        chunk = ListedChunk(chunk_number, key, first, len(addresses), sum(sizes_bytes), **counts)
        files += 1
        for column in (addresses, sizes_bytes, mtimes_ms, kinds):
            column.clear()
        counts.update(dict.fromkeys(counts, 0))
        return chunk

    for info in store.list(interval.prefix, after=interval.after, before=interval.before):
        kind = kind_of(info.key)
        if kind is ObjectKind.OURS or info.key.startswith(ROOT):
            continue
        if kind is ObjectKind.FOREIGN:
            counts["foreign"] += 1
            counts["foreign_bytes"] += info.size_bytes
            if not foreign or not info.key.startswith(DATA):
                continue
        if info.mtime_ms > cutoff_ms:
            counts["young"] += 1
            counts["young_bytes"] += info.size_bytes
            continue
        addresses.append(info.key)
        sizes_bytes.append(info.size_bytes)
        mtimes_ms.append(info.mtime_ms)
        kinds.append(int(kind))
        if len(addresses) >= CHUNK_ROWS:
            yield write_chunk()
    yield write_chunk()
