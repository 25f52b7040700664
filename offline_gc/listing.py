"""What the store holds, listed by the executors and written down in the order of keys, before anything of the KV is read (rule 13).

The namespace is cut into intervals that touch each other, so that together they are everything, whatever is in it; the cuts are
looked for where the data is. A task lists its interval and writes stretches. It fails closed: a listing that breaks off raises
(`objects/base.py`), the job fails, and nothing is concluded from it.

A listing is never made a second time for the same run once it is complete: one that is younger than the reading of the KV would
show what the reading could not know.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from offline_gc.arrow import pa
from offline_gc.kept import packets_of
from offline_gc.packets import Packet, Side, received
from offline_gc.places import DATA, ROOT, Kind, Work, kind_of, store_at, threads_at, write_table
from offline_gc.small import Small, TooMuch
from refstore import ids
from refstore.commits import names
from refstore.commits.workers import Workers
from refstore.objects.base import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRETCH_ROWS: Final = 500_000
"""What a task of the marking holds: some 60 MB."""
INTERVALS_PER_CORE: Final = 4
"""So that one that holds more than the others does not keep all cores waiting."""
_PROBES_AT_ONCE: Final = 8
_FEW: Final = 1000
"""A page of the store: less is listed sooner than it is cut."""
_ROUNDS: Final = 3
"""Of looking closer: after that an interval is a few thousandths of the time."""
HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * HOUR_MS
_BEHIND: Final = "0"
"""Follows the slash: `data0` is behind everything in `data/`."""
_HEX: Final = "0123456789abcdef"

LISTED: Final = (
    "number long, key string, first string, objects long, bytes long, young long, young_bytes long, foreign long, foreign_bytes long"
)
_ARROW: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("key", pa.string()),
        ("first", pa.string()),
        *((name, pa.int64()) for name in ("objects", "bytes", "young", "young_bytes", "foreign", "foreign_bytes")),
    ]
)


class Interval(msgspec.Struct, frozen=True):
    """Keys that start with `prefix`, strictly after `after`, before `before` ('': to the end)."""

    prefix: str
    after: str = ""
    before: str = ""


class ListedStretch(NamedTuple):
    """A file of the listing; '' for one of an interval in which nothing was left to be written."""

    number: int
    key: str
    first: str
    objects: int
    bytes: int
    young: int
    young_bytes: int
    foreign: int
    foreign_bytes: int


def write(
    spark: SparkSession,
    store: ObjectStore,
    work: Work,
    *,
    cutoff_ms: int,
    now_ms: int,
    parts: int,
    foreign: bool = False,
    data_from: str = "",
    small: Small | None = None,
) -> list[ListedStretch]:
    """List everything that was not written behind `cutoff_ms`, by the store's clock; the stretches in order. `foreign`: that, too.

    `data_from`: of the blobs only those from there on. `small`: what this process lists itself (`small.py`).
    """
    if small:
        planned = intervals(store, now_ms=now_ms, wanted=1, data_from=data_from)
        with suppress(TooMuch):
            return _here(work, planned, cutoff_ms, foreign, small)
    planned = intervals(store, now_ms=now_ms, wanted=parts * INTERVALS_PER_CORE, data_from=data_from)
    return in_spark(spark, work, planned, parts, cutoff_ms, foreign)


def in_spark(
    spark: SparkSession, work: Work, planned: Sequence[Interval], parts: int, cutoff_ms: int, foreign: bool
) -> list[ListedStretch]:
    """Listed by the executors."""
    told = [Packet.telling(0, Side.LISTED, each) for each in enumerate(planned)]
    tasks = len(told) if len(told) > parts * INTERVALS_PER_CORE else parts
    listed = packets_of(spark, told, tasks).mapInArrow(_task(work, cutoff_ms, foreign), LISTED)
    found = [ListedStretch(*row) for row in listed.collect()]
    return sorted(found, key=lambda stretch: stretch.number)


def _here(work: Work, planned: Sequence[Interval], cutoff_ms: int, foreign: bool, small: Small) -> list[ListedStretch]:
    """Raises TooMuch."""
    seen = count(1)

    def see() -> None:
        if next(seen) > small.keys:
            raise TooMuch

    with Workers(threads_at(work)) as workers:
        found = workers.ahead(lambda each: list(_stretches(work, *each, cutoff_ms, foreign, see)), list(enumerate(planned)))
        return [stretch for some in found for stretch in some]


def intervals(store: ObjectStore, *, now_ms: int, wanted: int, data_from: str = "") -> list[Interval]:
    """The whole namespace, in order, in about as many pieces as wanted; of the blobs what comes after `data_from`."""
    ranges, data = names.RANGES, _data_cuts(store, now_ms=now_ms, wanted=wanted, data_from=data_from)
    quarters = [ranges + _HEX[at] for at in (4, 8, 12)] if wanted > len(_HEX) else []
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


def _data_cuts(store: ObjectStore, *, now_ms: int, wanted: int, data_from: str) -> list[str]:
    """Keys that cut the data where it is. They need not exist; that they are in order is all that counts."""
    if wanted < 2:
        return []
    seen = [info.key for info in islice(store.list(DATA, after=data_from), _FEW)]
    start_ms = _time_of(seen[0]) if seen else None
    if len(seen) < _FEW or start_ms is None:
        return []
    spans: list[tuple[int, int]] = [(start_ms, max(now_ms, start_ms) + _DAY_MS)]
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="refstore-gc-probe") as pool:
        for _ in range(_ROUNDS):
            pieces = -(-wanted // len(spans))
            if pieces < 2:
                break
            narrow = [part for low, high in spans for part in _parts(low, high, pieces)]
            nexts = pool.map(_next_key, [store] * len(narrow), [cut_at(low) for low, _ in narrow])
            spans = [span for span, key in zip(narrow, nexts, strict=True) if key is not None and key < cut_at(span[1])] or spans[:1]
    return sorted({cut_at(low) for low, _ in spans[1:]})


def _parts(low: int, high: int, pieces: int) -> list[tuple[int, int]]:
    step = max(1, -(-(high - low) // pieces))
    return [(at, min(at + step, high)) for at in range(low, high, step)]


def cut_at(at_ms: int) -> str:
    """Before every address that was made then, behind every one that was made earlier."""
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


def _task(work: Work, cutoff_ms: int, foreign: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for packet in received(batches):
            number, interval = msgspec.msgpack.decode(packet.body, type=tuple[int, Interval])
            for seen in _stretches(work, number, interval, cutoff_ms, foreign):
                yield pa.RecordBatch.from_pylist([seen._asdict()], schema=_ARROW)

    return run


def _stretches(
    work: Work, number: int, interval: Interval, cutoff_ms: int, foreign: bool, see: Callable[[], None] = lambda: None
) -> Iterator[ListedStretch]:
    """`see` is called for each key.

    The files have names of their own each time: a task that was taken for lost may go on, and what it lists is cut elsewhere, for
    something was deleted meanwhile. Under the same names its stretches would take the place of those whose first keys were told.
    """
    attempt = secrets.token_hex(8)
    store, files_store = store_at(work.url, work), store_at(work.files, work)
    rows: list[tuple[ObjectInfo, Kind]] = []
    files = 0
    counts = {"young": 0, "young_bytes": 0, "foreign": 0, "foreign_bytes": 0}

    def written() -> ListedStretch:
        nonlocal files
        place = work.place("listing", number * 1000 + files, attempt)
        infos = [info for info, _ in rows]
        table = pa.table(
            {
                "address": pa.array([info.key for info in infos], pa.string()),
                "size_bytes": pa.array([info.size_bytes for info in infos], pa.int64()),
                "mtime_ms": pa.array([info.mtime_ms for info in infos], pa.int64()),
                "kind": pa.array([int(kind) for _, kind in rows], pa.int8()),
            }
        )
        if rows:
            write_table(files_store, place, table)
        total = sum(info.size_bytes for info in infos)
        seen = ListedStretch(number * 1000 + files, place if rows else "", infos[0].key if rows else "", len(rows), total, **counts)
        files += 1
        rows.clear()
        counts.update(dict.fromkeys(counts, 0))
        return seen

    for info in store.list(interval.prefix, after=interval.after, before=interval.before):
        see()
        kind = kind_of(info.key)
        if kind is Kind.OURS or info.key.startswith(ROOT):
            continue
        if kind is Kind.FOREIGN:
            counts["foreign"] += 1
            counts["foreign_bytes"] += info.size_bytes
            if not foreign or not info.key.startswith(DATA):
                continue
        if info.mtime_ms > cutoff_ms:
            counts["young"] += 1
            counts["young_bytes"] += info.size_bytes
            continue
        rows.append((info, kind))
        if len(rows) >= STRETCH_ROWS:
            yield written()
    yield written()
