"""List what the store holds, in the order of keys, before anything of the KV is read (rule 13).

The namespace is cut into intervals that touch each other, so that together they are everything. The cuts lie where the
data is. A task lists its interval and writes chunks. It fails closed: a listing that breaks off raises
(`objects/base.py`), and the run ends.

A full listing is never repeated after the live scan began: it would show objects that the scan could not know.
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
from refstore.core.arrow_arrays import make_array
from refstore.core.units import DAY_MS
from refstore.objects.base import ObjectInfo, ObjectStore
from refstore.versioning.commits import object_names
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import DATA, ROOT, ObjectKind, RunLayout, kind_of, open_store, write_table
from refstore_gc.run_summary import ObjectCount
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
_AFTER_SLASH: Final = "0"
"""Follows the slash: `data0` sorts after everything in `data/`."""
_HEX: Final = "0123456789abcdef"


class KeyInterval(msgspec.Struct, frozen=True):
    """Keys that start with `prefix`, strictly after `after`, before `before` ('': to the end)."""

    prefix: str
    after: str = ""
    before: str = ""


class ListedChunk(NamedTuple):
    """A file of the listing. Its key is '' where the interval had no object to write."""

    number: int
    key: str
    first_key: str
    objects: int
    young_objects: ObjectCount
    foreign: ObjectCount


def count_listed(chunks: Sequence[ListedChunk]) -> int:
    """Return how many objects a run has to compare."""
    return sum(chunk.objects for chunk in chunks)


def list_objects(run: RunContext, data_from: str = "") -> list[ListedChunk]:
    """List everything that was written by the run's cutoff; the chunks in order. `data_from`: of the blobs only those
    from there on.
    """
    planned = cut_intervals(
        run.repository.objects,
        now_ms=run.repository.clock.now_ms(),
        pieces_min=run.engine.parallelism * INTERVALS_PER_CORE,
        data_from=data_from,
    )
    work = partial(list_interval, run.layout, run.cutoff_ms, run.options.includes_foreign)
    return sorted(run.engine.map(work, list(enumerate(planned))), key=lambda chunk: chunk.number)


def cut_intervals(store: ObjectStore, *, now_ms: int, pieces_min: int, data_from: str = "") -> list[KeyInterval]:
    """Cut the namespace into at least so many intervals, in order; of the blobs those after `data_from`."""
    ranges, data = (
        object_names.RANGES,
        _find_data_cuts(store, now_ms=now_ms, pieces_min=pieces_min, data_from=data_from),
    )
    quarters = [ranges + _HEX[at] for at in (4, 8, 12)] if pieces_min > len(_HEX) else []
    return [
        *_intervals_between("", "", [], "_refstore/"),
        *_intervals_between(object_names.ADDED_ADDRESSES, "", [], ""),
        *_intervals_between(object_names.METARANGES, "", [], ""),
        *_intervals_between(ranges, "", quarters, ""),
        *_intervals_between("", f"_refstore{_AFTER_SLASH}", [], DATA),
        *_intervals_between(DATA, data_from, data, ""),
        *_intervals_between("", f"data{_AFTER_SLASH}", [], ""),
    ]


def _intervals_between(prefix: str, after: str, cuts: Sequence[str], before: str) -> list[KeyInterval]:
    bounds = [after, *cuts, before]
    return [KeyInterval(prefix, first, last) for first, last in pairwise(bounds)]


def _find_data_cuts(store: ObjectStore, *, now_ms: int, pieces_min: int, data_from: str) -> list[str]:
    """Return keys that cut the data where it is. They need not exist; only their order counts."""
    if pieces_min < 2:
        return []
    first_keys = [info.key for info in islice(store.list(DATA, after=data_from), _FEW + 1)]
    start_ms = _key_time_ms(first_keys[0]) if first_keys else None
    if len(first_keys) <= _FEW or start_ms is None:
        return []
    spans: list[tuple[int, int]] = [(start_ms, max(now_ms, start_ms) + DAY_MS)]
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="refstore-gc-probe") as pool:
        for _ in range(_ROUNDS):
            pieces = -(-pieces_min // len(spans))
            if pieces < 2:
                break
            narrow = [part for low, high in spans for part in _split_range(low, high, pieces)]
            nexts = pool.map(_next_key, [store] * len(narrow), [address_bound(low) for low, _ in narrow])
            spans = [
                span
                for span, key in zip(narrow, nexts, strict=True)
                if key is not None and key < address_bound(span[1])
            ] or spans[:1]
    return sorted({address_bound(low) for low, _ in spans[1:]})


def _split_range(low: int, high: int, pieces: int) -> list[tuple[int, int]]:
    step = max(1, -(-(high - low) // pieces))
    return [(at, min(at + step, high)) for at in range(low, high, step)]


def address_bound(at_ms: int) -> str:
    """Return a key that sorts before every address made then, and after every one made earlier."""
    slice_ = ids.slice_of(at_ms)
    return f"{DATA}{slice_}/" if at_ms % HOUR_MS == 0 else f"{DATA}{slice_}/{ids.RandomIds().new_id(at_ms)[:10]}"


def _key_time_ms(key: str) -> int | None:
    made = ids.address_time_ms(ids.Address(key)) if ids.is_own(ids.Address(key)) else None
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
    layout: RunLayout, cutoff_ms: int, foreign: bool, numbered: tuple[int, KeyInterval]
) -> Iterator[ListedChunk]:
    """List an interval and write its chunks."""
    number, interval = numbered
    chunk = _ChunkWriter(layout, number)
    young_objects = young_bytes = foreign_objects = foreign_bytes = 0
    for info in open_store(layout.url, layout).list(interval.prefix, after=interval.after, before=interval.before):
        kind = kind_of(info.key)
        if kind is ObjectKind.OURS or info.key.startswith(ROOT):
            continue
        if kind is ObjectKind.FOREIGN:
            foreign_objects += 1
            foreign_bytes += info.size_bytes
            if not foreign or not info.key.startswith(DATA):
                continue
        if info.mtime_ms > cutoff_ms:
            young_objects += 1
            young_bytes += info.size_bytes
            continue
        chunk.add(info, kind)
        if chunk.is_full:
            yield chunk.write(ObjectCount(young_objects, young_bytes), ObjectCount(foreign_objects, foreign_bytes))
            young_objects = young_bytes = foreign_objects = foreign_bytes = 0
    yield chunk.write(ObjectCount(young_objects, young_bytes), ObjectCount(foreign_objects, foreign_bytes))


class _ChunkWriter:
    """Gathers the objects of a chunk, and writes one chunk after the other.

    File names contain the attempt, because a task that was taken for lost may go on. It cuts its chunks elsewhere,
    because something was deleted meanwhile. Under the same names its chunks would replace those whose first keys were
    reported.
    """

    def __init__(self, layout: RunLayout, interval_number: int) -> None:
        self._layout = layout
        self._number = interval_number * 1000
        self._attempt = secrets.token_hex(8)
        self._begin()

    def _begin(self) -> None:
        self._addresses: list[str] = []  # by column: Python's garbage collector has nothing to look at then
        self._sizes_bytes: list[int] = []
        self._mtimes_ms: list[int] = []
        self._kinds: list[int] = []

    def add(self, info: ObjectInfo, kind: ObjectKind) -> None:
        self._addresses.append(info.key)
        self._sizes_bytes.append(info.size_bytes)
        self._mtimes_ms.append(info.mtime_ms)
        self._kinds.append(int(kind))

    @property
    def is_full(self) -> bool:
        return len(self._addresses) >= CHUNK_ROWS

    def write(self, young_objects: ObjectCount, foreign: ObjectCount) -> ListedChunk:
        """Write the chunk, and begin the next one. `young_objects`, `foreign`: what was left out."""
        addresses, key = self._addresses, ""
        if addresses:
            key = self._layout.file_key("listing", self._number, self._attempt)
            table = pa.table(
                {
                    "address": make_array(addresses, pa.string()),
                    "size_bytes": make_array(self._sizes_bytes, pa.int64()),
                    "mtime_ms": make_array(self._mtimes_ms, pa.int64()),
                    "kind": make_array(self._kinds, pa.int8()),
                }
            )
            write_table(open_store(self._layout.files, self._layout), key, table)
        first = addresses[0] if addresses else ""
        chunk = ListedChunk(self._number, key, first, len(addresses), young_objects, foreign)
        self._number += 1
        self._begin()
        return chunk
