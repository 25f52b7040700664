"""Compare what is listed with what is named, bucket by bucket, as the offline job does (`refstore_gc.anti_join`).

A bucket is an interval of the listing. Names come to their bucket as hashes of the keys that they stand for, the files
of the last mark as they are. A task of the engine decides there about every listed object, and writes those that are
unnamed to the files of the run's mark.
"""

from __future__ import annotations

import pickle
import re
import secrets
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast
from unicodedata import normalize

import msgspec
import numpy as np
from numpy.typing import NDArray

from refstore.core.arrow_arrays import make_array, to_numpy
from refstore.core.batches import split_batches
from refstore.core.units import DAY_MS
from refstore.errors import InvalidSettings
from refstore_gc.address_batches import SLICE_ROWS, Batch, BatchBuilder, BatchKind
from refstore_gc.address_codec import AddressKeys, BucketBounds, are_among, encode_addresses, sort_distinct
from refstore_gc.anti_join import bucket_bounds, chunk_batches
from refstore_gc.bucket_join import ChunkReference
from refstore_gc.engines.base import BatchStream, Engine
from refstore_gc.garbage import Flags, count_of
from refstore_gc.list_objects import ListedChunk
from refstore_gc.run_layout import open_store, read_table, write_table
from refstore_gc.run_summary import ObjectCount
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.prune_layout import UNIT_ROWS, PruneLayout, PruneUnit
from refstore_prune.prune_report import UnnamedObject, Verdict
from refstore_prune.resolve_names import NameResolver, key_spellings
from refstore_prune.sources.base import NameBatch, NameSource, NameTask
from refstore_prune.state import UNIT_COLUMNS, LastMark, read_left

AGE_DAYS: Final = (0, 1, 7, 30, 90, 365)
"""From how many days on a row of ages counts."""
LARGEST_MAX: Final = 100
PREFIXES_MAX: Final = 1000
"""Of how many prefixes a task counts the objects apart."""
_EXAMPLES_MAX: Final = 100
_EXAMPLES_OF_ITEM: Final = 8
_FILE_NAMES: Final = 1 << 18
_ITEMS_PER_CORE: Final = 16
"""Into how many items the reading of names is cut, so that the engine's cores end at about the same time."""
VERDICTS: Final[tuple[Verdict, ...]] = ("named", "young", "protected", "never taken", "unnamed")


# ---- the decision


class ObjectFlags(NamedTuple):
    """What is known of listed objects."""

    named: Flags
    young: Flags
    protected: Flags
    never_taken: Flags
    marked_ms: NDArray[np.int64]
    """When an earlier run marked the same object, with the size, time and ETag that it has now; 0: none did."""


class Decision(NamedTuple):
    verdicts: NDArray[np.int8]
    """A number of `VERDICTS` for each object."""
    is_due: Flags


def decide(objects: ObjectFlags, named_ms: int, grace_ms: int) -> Decision:
    """Decide about listed objects. It is decided here and nowhere else.

    An object is unnamed, and so marked, if all of these are true:

    - It was listed before the names were read, and no name that was read means it in any spelling.
    - It is not young: when the names were read, it was older than an object gets before it is first named.
    - No pattern protects it, no source says that its kind of files is never taken, and it lies in a folder of which a
      source knows the names.

    It is due, and so deleted by this run, if it is unnamed, an earlier run marked it as it is now, and its grace period
    ended before the names were read (`named_ms`). So it was listed twice and unnamed twice, a grace period apart. The
    sweep looks at it once more (`prune_sweep.py`).

    A named object has its hash among those of the names, so it is never unnamed. An unnamed one may share its hash with
    a named one by chance; then it stays until a run with another seed.
    """
    named, young, protected, never_taken, marked_ms = objects
    verdicts = np.select([named, young, protected, never_taken], np.arange(4, dtype=np.int8), np.int8(4))
    is_unnamed = verdicts == VERDICTS.index("unnamed")
    return Decision(verdicts, is_unnamed & (marked_ms > 0) & (marked_ms + grace_ms < named_ms))


# ---- the run's own process


class CompareTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of all buckets have in common."""

    layout: PruneLayout
    marks_url: str
    """The store of the last mark's files."""
    began_ms: int
    """As of when this run marks."""
    named_ms: int
    """Up to when an age and a grace period are counted: what was named then is among the names of every source."""
    min_age_ms: int
    grace_ms: int
    protected: tuple[str, ...]
    """Patterns of keys."""
    never_taken: tuple[str, ...]
    """Patterns of the last segment of keys."""
    never_taken_folders: tuple[str, ...]
    """Regular expressions of beginnings of keys."""
    folders: tuple[str, ...]
    """Beginnings of keys; what has none of them is never taken."""
    last_times: tuple[int, int]
    """`marked_ms` and `stood_ms` of the last mark."""
    unmarked_ms: tuple[int, ...]
    """What was marked as of these times counts as never marked."""


class SourceCount(NamedTuple):
    """How the names of one source and the store met."""

    read: int = 0
    outside: int = 0
    """Of objects elsewhere."""
    looked_up: int = 0
    """Examples that were looked up in the listing."""
    found: int = 0
    """Of these, the ones that are there."""

    def plus(self, other: SourceCount) -> SourceCount:
        return SourceCount(*map(sum, zip(self, other, strict=True)))


Counts = defaultdict[str, ObjectCount]


def _make_counts() -> Counts:
    return defaultdict(ObjectCount)


@dataclass(slots=True)
class Comparison:
    """What was found, in one bucket or in all of them."""

    counts: Counts = field(default_factory=_make_counts)
    """By `Verdict`, and `waiting`, `newly_marked`, `named_again` and `due`, as of `PruneReport`."""
    first_marked_ms: int = 0
    """Of what waits; 0: nothing does."""
    by_source: dict[int, SourceCount] = field(default_factory=dict[int, "SourceCount"])
    """By the source's place among the sources."""
    names: int = 0
    """Distinct."""
    found_by_other_spelling: int = 0
    outside_examples: list[str] = field(default_factory=list[str])
    not_found: list[str] = field(default_factory=list[str])
    """Examples of keys that are named and not listed."""
    ages: list[ObjectCount] = field(default_factory=lambda: [ObjectCount()] * len(AGE_DAYS))
    """Of what is unnamed, by `AGE_DAYS`."""
    listed: Counts = field(default_factory=_make_counts)
    """By prefix; '': of all others."""
    unnamed: Counts = field(default_factory=_make_counts)
    """By the same prefixes."""
    largest: list[UnnamedObject] = field(default_factory=list[UnnamedObject])
    units: list[PruneUnit] = field(default_factory=list[PruneUnit])

    @property
    def outside(self) -> int:
        """How many names are of objects elsewhere."""
        return sum(count.outside for count in self.by_source.values())

    def add(self, other: Comparison) -> None:
        for source, count in other.by_source.items():
            self.by_source[source] = self.by_source.get(source, SourceCount()).plus(count)
        for mine, more in (
            (self.counts, other.counts),
            (self.listed, other.listed),
            (self.unnamed, other.unnamed),
        ):
            for what, count in more.items():
                mine[what] += count
        self.first_marked_ms = min(filter(None, (self.first_marked_ms, other.first_marked_ms)), default=0)
        self.names += other.names
        self.found_by_other_spelling += other.found_by_other_spelling
        self.outside_examples = [*self.outside_examples, *other.outside_examples][:_EXAMPLES_MAX]
        self.not_found = [*self.not_found, *other.not_found][:_EXAMPLES_MAX]
        self.ages = [one + more for one, more in zip(self.ages, other.ages, strict=True)]
        self.largest = largest_of([*self.largest, *other.largest])
        self.units += other.units


def largest_of(objects: Iterable[UnnamedObject]) -> list[UnnamedObject]:
    return sorted(objects, key=lambda each: (-each.size_bytes, each.key))[:LARGEST_MAX]


def compare(
    engine: Engine,
    task: CompareTask,
    chunks: Sequence[ListedChunk],
    names: Sequence[Batch],
    last: LastMark | None,
) -> Comparison:
    """Read the names to their end, and compare. `names`: of `gather_names`. Raises Corrupt, and what a source does."""
    bounds = bucket_bounds(chunks)
    cuts = BucketBounds.from_addresses(bounds, are_whole=True)
    flows = [
        BatchStream(chunk_batches(chunks, bounds)),
        BatchStream(_earlier_batches(last, bounds)),
        BatchStream(names, partial(read_names, task.layout, cuts)),
    ]
    found = Comparison()
    for each in engine.join(flows, cuts.buckets, partial(compare_bucket, task)):
        found.add(each)
    found.units.sort(key=lambda unit: (not unit.is_due, unit.first_key))
    return found


def _earlier_batches(last: LastMark | None, bounds: Sequence[str]) -> list[Batch]:
    """Return for each bucket the units of the last mark that may have a key of its interval."""
    by_bucket: dict[int, list[PruneUnit]] = {}
    units = last.manifest.units if last is not None else []
    for of_kind in ([unit for unit in units if unit.is_due], [unit for unit in units if not unit.is_due]):
        in_order = sorted(of_kind, key=lambda unit: unit.first_key)
        for unit, following in pairwise([*in_order, None]):
            if unit is not None:
                first = bisect_right(bounds, unit.first_key)
                end = bisect_right(bounds, following.first_key) if following is not None else len(bounds)
                for bucket in range(first, end + 1):
                    by_bucket.setdefault(bucket, []).append(unit)
    return [Batch.from_value(bucket, BatchKind.MARKED_BEFORE, some) for bucket, some in by_bucket.items()]


def gather_names(
    layout: PruneLayout, engine: Engine, sources: Sequence[NameSource], *, has_encoded_keys: bool
) -> list[Batch]:
    """Return what tasks of the engine are to read. What a source reads in this process is written to files first.
    `has_encoded_keys`: as of `NameResolver`. Raises what a source raises.
    """
    items: list[Batch] = []
    written = 0
    for number, source in enumerate(sources):
        tasks: list[NameTask] = []
        waiting: list[NameBatch] = []
        for part in source.parts():
            if callable(part):
                tasks.append(cast(NameTask, part))
                continue
            waiting.append(pc.drop_null(part.cast(pa.string())))
            if sum(map(len, waiting)) >= _FILE_NAMES:
                tasks.append(_write_names(layout, written, waiting))
                written += 1
        if waiting:
            tasks.append(_write_names(layout, written, waiting))
            written += 1
        resolver = NameResolver(layout.url, source.base_url, has_encoded_keys=has_encoded_keys)
        size = -(-len(tasks) // (engine.parallelism * _ITEMS_PER_CORE)) or 1
        parts = (pickle.dumps((number, resolver, some)) for some in split_batches(tasks, size))
        items += [Batch(0, BatchKind.TO_READ, part) for part in parts]
    return items


def _write_names(layout: PruneLayout, number: int, waiting: list[NameBatch]) -> NameTask:
    key = layout.file_key("names", number)
    write_table(open_store(layout.files, layout), key, pa.table({"name": pa.chunked_array(waiting, pa.string())}))
    waiting.clear()
    return partial(_read_file, layout, key)


# ---- the tasks


def _read_file(layout: PruneLayout, key: str) -> Iterator[NameBatch]:
    yield from read_table(open_store(layout.files, layout), key, ["name"]).column("name").chunks


def join_batches(batches: Iterable[NameBatch]) -> Iterator[NameBatch]:
    """Yield names in batches of `SLICE_ROWS` or more. A range of lakeFS's, or a snapshot, may have a few only, and what
    a batch costs depends little on how many names it has.
    """
    waiting: list[NameBatch] = []
    for batch in batches:
        waiting.append(batch.cast(pa.string()))
        if sum(map(len, waiting)) >= SLICE_ROWS:
            yield pa.concat_arrays(waiting)
            waiting.clear()
    if waiting:
        yield pa.concat_arrays(waiting)


def read_names(layout: PruneLayout, cuts: BucketBounds, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Read a part of the names, and yield the hashes of their keys, by bucket."""
    builder = BatchBuilder(cuts, layout.seed)
    examples: list[tuple[int, str]] = []
    for batch in batches:
        source: int
        resolver: NameResolver
        source, resolver, tasks = pickle.loads(batch.body)  # noqa: S301  # the run's own process sent it
        read = outside = 0
        keys: list[str] = []
        outside_examples: list[str] = []
        for names in join_batches(names for task in tasks for names in task()):
            resolved = resolver.resolve(names)
            yield from builder.add(BatchKind.NAMED, resolved.keys)
            yield from builder.add(BatchKind.NAMED_OTHERWISE, resolved.other_keys)
            read += len(names)
            outside += resolved.outside
            outside_examples = [*outside_examples, *resolved.outside_examples][:_EXAMPLES_OF_ITEM]
            if len(keys) < _EXAMPLES_OF_ITEM and len(resolved.keys):
                spread = np.linspace(0, len(resolved.keys) - 1, _EXAMPLES_OF_ITEM).astype(np.int64)
                keys += resolved.keys.take(make_array(sort_distinct(spread))).to_pylist()
        examples += [(source, key) for key in keys]
        yield Batch.from_value(0, BatchKind.NAME_COUNT, (source, read, outside, outside_examples))
    yield from builder.flush()
    buckets = cuts.buckets_of(make_array([key for _, key in examples], pa.string())).tolist()
    for bucket, example in zip(buckets, examples, strict=True):
        yield Batch.from_value(bucket, BatchKind.NAME_EXAMPLES, example)


class _ComparedBucket:
    """The batches that came to one bucket, sorted by kind."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.found = Comparison()
        self.chunks: list[ChunkReference] = []
        self.names: list[AddressKeys] = []
        self.other_names: list[AddressKeys] = []
        self.examples: list[tuple[int, str]] = []
        self.units: list[PruneUnit] = []
        for batch in batches:
            match batch.kind:
                case BatchKind.LISTED:
                    self.chunks.append(msgspec.msgpack.decode(batch.body, type=ChunkReference))
                case BatchKind.NAMED:
                    self.names.append(batch.keys)
                case BatchKind.NAMED_OTHERWISE:
                    self.other_names.append(batch.keys)
                case BatchKind.NAME_EXAMPLES:
                    self.examples.append(msgspec.msgpack.decode(batch.body, type=tuple[int, str]))
                case BatchKind.MARKED_BEFORE:
                    self.units += msgspec.msgpack.decode(batch.body, type=list[PruneUnit])
                case BatchKind.NAME_COUNT:
                    source, read, outside, some = msgspec.msgpack.decode(
                        batch.body, type=tuple[int, int, int, list[str]]
                    )
                    self.found.add(Comparison(by_source={source: SourceCount(read, outside)}, outside_examples=some))
                case _:
                    raise AssertionError(batch.kind)
        self.chunks.sort(key=lambda chunk: chunk.number)
        if self.names:
            self.names = [sort_distinct(np.concatenate(self.names))]
            self.found.names = len(self.names[0])


def compare_bucket(task: CompareTask, batches: Iterable[Batch]) -> Iterator[Comparison]:
    """Decide about the listed objects of one bucket, and write those that are unnamed to the mark."""
    bucket, layout = _ComparedBucket(batches), task.layout
    files, marks = open_store(layout.files, layout), open_store(task.marks_url, layout)
    earlier = _EarlierMark([read_left(marks, unit, task.last_times) for unit in bucket.units if bucket.chunks], task)
    listed_hashes: list[AddressKeys] = []
    unnamed: list[Any] = []
    for chunk in bucket.chunks:
        table = read_table(files, chunk.key).combine_chunks()
        hashes = encode_addresses(table["key"], layout.seed)
        if bucket.examples:
            listed_hashes.append(hashes)
        unnamed.append(_compare_chunk(task, bucket, table, hashes, earlier))
    in_store = are_among_keys(layout, [key for _, key in bucket.examples], listed_hashes)
    for (source, key), is_there in zip(bucket.examples, in_store, strict=True):
        looked_up = {source: SourceCount(looked_up=1, found=int(is_there))}
        bucket.found.add(Comparison(by_source=looked_up, not_found=[] if is_there else [key]))
    if bucket.chunks:
        bucket.found.units = _write_units(layout, bucket.chunks[0].number, pa.concat_tables(unnamed))
    yield bucket.found


def _compare_chunk(
    task: CompareTask, bucket: _ComparedBucket, table: Any, hashes: AddressKeys, earlier: _EarlierMark
) -> Any:
    """Count the objects of a chunk of the listing, and return those that are unnamed."""
    found, sizes, mtimes = bucket.found, to_numpy(table["size_bytes"]), to_numpy(table["mtime_ms"])
    by_name = are_among(hashes, bucket.names)
    named = by_name | are_among(hashes, bucket.other_names)
    young = mtimes > task.named_ms - task.min_age_ms
    in_question = np.flatnonzero(~named & ~young)
    keys: list[str] = table["key"].take(make_array(in_question)).to_pylist()
    outside = np.zeros(len(sizes), np.bool_)
    outside[in_question] = [not key.startswith(task.folders) for key in keys]
    marked_before, marked_ms = earlier.find(table, hashes)
    decided = decide(
        ObjectFlags(
            named,
            young,
            _match_some(named, in_question, keys, map(translate, task.protected)),
            _match_some(named, in_question, [key.rpartition("/")[2] for key in keys], map(translate, task.never_taken))
            | _match_some(named, in_question, keys, task.never_taken_folders)
            | outside,
            marked_ms,
        ),
        task.named_ms,
        task.grace_ms,
    )
    is_unnamed = decided.verdicts == VERDICTS.index("unnamed")
    is_waiting = is_unnamed & ~decided.is_due
    found.found_by_other_spelling += int((named & ~by_name).sum())
    parts: dict[str, Flags] = {verdict: decided.verdicts == number for number, verdict in enumerate(VERDICTS)} | {
        "named_again": named & marked_before,
        "due": decided.is_due,
        "waiting": is_waiting,
        "newly_marked": is_waiting & (marked_ms == 0),
    }
    for what, of_these in parts.items():
        found.counts[what] += count_of(sizes, of_these)
    for at in range(0, len(sizes), SLICE_ROWS):  # as Python's texts a whole chunk would take 100 MB
        rows = slice(at, at + SLICE_ROWS)
        _count_prefixes(found, table["key"].slice(at, SLICE_ROWS).to_pylist(), sizes[rows], is_unnamed[rows])
    unnamed = (
        table.append_column("marked_ms", make_array(np.where(marked_ms > 0, marked_ms, task.began_ms)))
        .append_column("is_due", make_array(decided.is_due))
        .filter(make_array(is_unnamed))
    )
    _count_unnamed(found, unnamed, task.began_ms)
    return unnamed


def protecting_patterns(pattern: str) -> set[str]:
    """Return what a caller's pattern may mean: a folder means all that it has, and a slash before it, or a normal form
    of Unicode, makes no difference. Raises InvalidSettings: no key matches it.
    """
    bare = re.sub(r"^(\.?/+)+", "", pattern).rstrip("/")
    if not bare or "://" in pattern:
        raise InvalidSettings(
            f"no key matches the pattern {pattern!r}; write it as keys below the store, such as logos/*"
        )
    return {normalize(form, each) for each in (pattern, bare, f"{bare}/*") for form in ("NFC", "NFD")}


class _EarlierMark:
    """What the last run found unnamed in the interval of a bucket."""

    def __init__(self, tables: Sequence[Any], task: CompareTask) -> None:
        self._rows = pa.concat_tables(tables).combine_chunks() if tables else None
        self._hashes = encode_addresses(self._rows["key"], task.layout.seed) if self._rows is not None else None
        self._unmarked_ms = task.unmarked_ms

    def find(self, table: Any, hashes: AddressKeys) -> tuple[Flags, NDArray[np.int64]]:
        """Return which listed objects were unnamed then, and when those were marked that are the same as then."""
        found, marked_ms = np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.int64)
        if self._rows is None or not len(self._rows):
            return found, marked_ms
        at = pc.index_in(make_array(hashes), value_set=make_array(self._hashes))
        places = np.flatnonzero(to_numpy(pc.is_valid(at)))
        listed, earlier = table.take(make_array(places)), self._rows.take(pc.drop_null(at))
        equal = {name: to_numpy(pc.equal(listed[name], earlier[name])) for name in UNIT_COLUMNS[:4]}
        found[places] = equal["key"]
        times = to_numpy(earlier["marked_ms"])
        is_same = np.logical_and.reduce([*equal.values(), ~np.isin(times, self._unmarked_ms)])
        marked_ms[places] = np.where(is_same, times, 0)
        return found, marked_ms


def _match_some(objects: Flags, places: NDArray[np.int64], texts: Iterable[str], patterns: Iterable[str]) -> Flags:
    """Return which of as many objects match a regular expression. Those at `places`, which have these texts, are looked
    at.
    """
    found = np.zeros_like(objects)
    if expression := "|".join(patterns):
        matches: Callable[[str], object] = re.compile(expression).match
        found[places] = [matches(text) is not None for text in texts]
    return found


def are_among_keys(layout: PruneLayout, keys: Sequence[str], listed: Sequence[AddressKeys]) -> list[bool]:
    """Return which keys were listed, in one of their spellings."""
    every = [(number, each) for number, key in enumerate(keys) for each in {key, *key_spellings(key)} if each]
    hashes = encode_addresses(make_array([each for _, each in every], pa.string()), layout.seed)
    there = {
        number for (number, _), is_there in zip(every, are_among(hashes, listed).tolist(), strict=True) if is_there
    }
    return [number in there for number in range(len(keys))]


def _count_prefixes(found: Comparison, keys: Sequence[str], sizes: Any, is_unnamed: Flags) -> None:
    """Count objects by the first two segments of their folders."""
    folders = ["/".join([*key.split("/", 2)[:-1], ""]) or "./" for key in keys]
    prefixes = make_array(folders, pa.string()).dictionary_encode()
    numbers, names = to_numpy(prefixes.indices), prefixes.dictionary.to_pylist()
    flags = np.ones(len(keys)), is_unnamed
    counts = [np.bincount(numbers, weights, len(names)) for flag in flags for weights in (flag, flag * sizes)]
    rows: list[list[float]] = np.stack(counts, axis=1).tolist()
    for name, (listed, listed_bytes, unnamed, unnamed_bytes) in zip(names, rows, strict=True):
        place = name if name in found.listed or len(found.listed) < PREFIXES_MAX else ""
        found.listed[place] += ObjectCount(int(listed), int(listed_bytes))
        found.unnamed[place] += ObjectCount(int(unnamed), int(unnamed_bytes))


def _count_unnamed(found: Comparison, unnamed: Any, began_ms: int) -> None:
    """Count unnamed objects by age, and remember the largest."""
    sizes, mtimes = to_numpy(unnamed["size_bytes"]), to_numpy(unnamed["mtime_ms"])
    days: NDArray[np.int64] = (began_ms - mtimes) // DAY_MS
    rows = np.digitize(days, AGE_DAYS[1:])
    found.ages = [count + count_of(sizes, rows == number) for number, count in enumerate(found.ages)]
    places = np.argsort(-sizes, kind="stable")[:LARGEST_MAX]
    columns = unnamed.select(["key", "size_bytes", "mtime_ms", "marked_ms"]).take(make_array(places)).to_pydict()
    found.largest = largest_of([*found.largest, *map(UnnamedObject, *columns.values())])
    waiting = to_numpy(unnamed["marked_ms"])[~to_numpy(unnamed["is_due"])]
    if len(waiting):
        found.first_marked_ms = min(filter(None, (found.first_marked_ms, int(waiting.min()))))


def _write_units(layout: PruneLayout, number: int, unnamed: Any) -> list[PruneUnit]:
    """Write unnamed objects to files of the mark: those that are due apart from those that wait. File names have the
    attempt, as of `refstore_gc.garbage.write_garbage`.
    """
    store, attempt = open_store(layout.files, layout), secrets.token_hex(8)
    units: list[PruneUnit] = []
    is_due = to_numpy(unnamed["is_due"])
    for due, chosen in ((True, is_due), (False, ~is_due)):
        rows = unnamed.drop_columns(["is_due"]).filter(make_array(chosen))
        for at in range(0, len(rows), UNIT_ROWS):
            unit, key = rows.slice(at, UNIT_ROWS), layout.file_key("mark", number * 1000 + len(units), attempt)
            write_table(store, key, unit)
            units.append(PruneUnit(file=key, first_key=unit["key"][0].as_py(), objects=len(unit), is_due=due))
    return units
