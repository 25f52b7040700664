"""List a store whose keys others made, in the order of keys, before any name is read.

The keys are cut into intervals that touch each other, so that together they are everything. The cuts lie where many
keys are: they are found by asking for the next keys behind a beginning. They only make the listing faster; that nothing
is left out does not depend on them. A task lists its interval and writes chunks. It fails closed: a listing that breaks
off raises (`refstore/objects/base.py`), and the run ends.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import islice, pairwise
from posixpath import commonprefix
from typing import Any, Final, NamedTuple

from refstore.core.arrow_arrays import make_array, to_numpy
from refstore.core.batches import split_sized
from refstore.errors import ObjectsUnavailable
from refstore.lake_identity import LAKE_OBJECT
from refstore.namespaces import NAMESPACE_OBJECT
from refstore.objects.base import OWN_FILES, ObjectStore, SkippedKeys
from refstore.records.keys import LAST_CODE_POINT
from refstore_gc.engines.base import Engine
from refstore_gc.garbage import count_of
from refstore_gc.list_objects import CHUNK_ROWS, INTERVALS_PER_CORE, KeyInterval, ListedChunk
from refstore_gc.run_layout import open_store, write_table
from refstore_gc.run_summary import ObjectCount
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.prune_layout import PruneLayout
from refstore_prune.sources.base import MetadataPlace

EXAMPLES_MAX: Final = 10
PLACES_MAX: Final = 10_000
"""How many places of metadata a run can look at."""
LISTED: Final = pa.schema(
    [("key", pa.string()), ("size_bytes", pa.int64()), ("mtime_ms", pa.int64()), ("etag", pa.string())]
)
FEW_KEYS: Final = 1000
"""A page of the store. Listing less than this is faster than cutting it."""
_PROBES_AT_ONCE: Final = 8
PROBE_SECONDS_MAX: Final = 5.0
"""In a large folder of this machine each probe reads the names of all its files."""
_GROUPS_PER_INTERVAL: Final = 8
"""So that intervals of several groups of keys are about equally long."""

_OWN_KEYS: Final = f"(^|/){OWN_FILES}"
_METADATA_KEYS: Final = r"(?:^|/)(_delta_log|_lakefs|\.git)/|\.metadata\.json(?:\.gz)?$"
_NAMESPACE_KEYS: Final = (f"/{NAMESPACE_OBJECT}", f"/{LAKE_OBJECT}")


class IntervalFacts(NamedTuple):
    """What a task tells of its interval beside the chunks."""

    listed: ObjectCount = ObjectCount()
    own: ObjectCount = ObjectCount()
    """Files of refstore's, which are in no chunk."""
    skipped: int = 0
    """Objects whose keys are none that a store may have."""
    skipped_examples: tuple[str, ...] = ()
    places: frozenset[MetadataPlace] = frozenset()
    """At most one more than `PLACES_MAX`."""
    namespaces: tuple[str, ...] = ()
    """Objects that tell a namespace or a lake of refstore's; at most `EXAMPLES_MAX`."""
    has_encoded_keys: bool = False
    """Whether some key has a `%`."""

    def plus(self, other: IntervalFacts) -> IntervalFacts:
        return IntervalFacts(
            self.listed + other.listed,
            self.own + other.own,
            self.skipped + other.skipped,
            (*self.skipped_examples, *other.skipped_examples)[:EXAMPLES_MAX],
            frozenset(islice(self.places | other.places, PLACES_MAX + 1)),
            (*self.namespaces, *other.namespaces)[:EXAMPLES_MAX],
            self.has_encoded_keys or other.has_encoded_keys,
        )

    @classmethod
    def of_skipped(cls, skipped: SkippedKeys) -> IntervalFacts:
        return cls(skipped=skipped.count, skipped_examples=tuple(f"{name} ({why})" for name, why in skipped.examples))


class Listing(NamedTuple):
    chunks: list[ListedChunk]
    """In order."""
    facts: IntervalFacts
    as_of_ms: int = 0
    """Of an inventory: when it was made. 0: the store was asked, in this run."""


def list_store(layout: PruneLayout, engine: Engine) -> Listing:
    """List everything below the store's URL."""
    intervals = cut_store(open_store(layout.url, layout), engine.parallelism * INTERVALS_PER_CORE)
    return gather_listing(engine.map(partial(list_part, layout), list(enumerate(intervals))))


def gather_listing(rows: Iterable[ListedChunk | IntervalFacts], as_of_ms: int = 0) -> Listing:
    """Return what the tasks of all intervals told."""
    found = list(rows)
    chunks = sorted(row for row in found if isinstance(row, ListedChunk))
    facts = reduce(IntervalFacts.plus, (row for row in found if isinstance(row, IntervalFacts)), IntervalFacts())
    return Listing(chunks, facts, as_of_ms)


# ---- where to cut


def cut_store(store: ObjectStore, pieces_min: int) -> list[KeyInterval]:
    """Return intervals that together have every key once, in order: about so many, if the store has many keys."""
    groups, end = [""], time.monotonic() + PROBE_SECONDS_MAX
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="refstore-prune-probe") as pool:
        while len(groups) < pieces_min * _GROUPS_PER_INTERVAL:
            found = pool.map(partial(_find_groups, store, end), groups)
            below = [each for group, some in zip(groups, found, strict=True) for each in some or [group]]
            if below == groups:
                break
            groups = below
    step = max(1, len(groups) // pieces_min)
    return touching_intervals(groups[step::step])


def _find_groups(store: ObjectStore, end: float, prefix: str) -> list[str]:
    """Return the beginnings of groups of keys with this prefix that may have more than `FEW_KEYS`, in order. Each is
    longer than the prefix, and they differ behind it. If it takes until `end`, these are not all.
    """
    groups: list[str] = []
    after = ""
    while time.monotonic() < end:
        pages = store.list_pages(prefix, skipped=SkippedKeys(), after=after)
        keys = list(islice((key for page in pages for key in page.keys), FEW_KEYS))
        if len(keys) < FEW_KEYS:
            break
        goes_on = bool(groups) and len(commonprefix([groups[-1], keys[0]])) > len(prefix)
        common = commonprefix([groups.pop() if goes_on else keys[-1], keys[0]])
        groups.append(common if len(common) > len(prefix) else keys[-1][: len(prefix) + 1])
        after = max(groups[-1] + LAST_CODE_POINT, keys[-1])
    return groups


def touching_intervals(cuts: Sequence[str]) -> list[KeyInterval]:
    """Return the intervals between cuts, in order. A key that is itself a cut belongs to the interval that ends there:
    `after` leaves it out of the next one, and NUL, which no key has, makes `before` take it.
    """
    return [
        KeyInterval("", after, f"{before}\0" if before else "")
        for after, before in pairwise(["", *sorted({*cuts}), ""])
    ]


# ---- the tasks


def list_part(layout: PruneLayout, numbered: tuple[int, KeyInterval]) -> Iterator[ListedChunk | IntervalFacts]:
    """List an interval, and write its chunks."""
    skipped = SkippedKeys()
    pages = _list_pages(open_store(layout.url, layout), numbered[1], skipped)
    chunks = split_sized(pages, len, size_max=CHUNK_ROWS, items_max=CHUNK_ROWS)
    for number, tables in enumerate(chunks, numbered[0] * 1000):
        yield from write_chunk(layout, number, pa.concat_tables(tables))
    yield IntervalFacts.of_skipped(skipped)


def _list_pages(store: ObjectStore, interval: KeyInterval, skipped: SkippedKeys) -> Iterator[Any]:
    """Yield the objects of an interval, as tables. Raises ObjectsUnavailable: they are out of order."""
    last_key = interval.after
    for page in store.list_pages(interval.prefix, skipped=skipped, after=interval.after, before=interval.before):
        ordered = [last_key, *page.keys, *([interval.before] if interval.before else [])]
        if any(one >= other for one, other in pairwise(ordered)):  # a key in another bucket than its name would be lost
            raise ObjectsUnavailable(
                f"the listing of {store.url} cannot be trusted: it is out of order after {last_key!r}; check its server"
            )
        last_key = page.keys[-1]
        columns = [make_array(column, field.type) for column, field in zip(page, LISTED, strict=True)]
        yield pa.table(columns, schema=LISTED)


def write_chunk(layout: PruneLayout, number: int, table: Any) -> Iterator[ListedChunk | IntervalFacts]:
    """Write objects, which are in order, to a file of the listing, without refstore's own files. Tell what there was,
    and what says in its keys that the store belongs to others.
    """
    keys, sizes = table["key"], to_numpy(table["size_bytes"])
    is_own = pc.match_substring_regex(keys, _OWN_KEYS)
    others = table.filter(pc.invert(is_own))
    if len(others):
        # as of `refstore_gc.list_objects`: another attempt of the task may cut its chunks elsewhere
        key = layout.file_key("listing", number, secrets.token_hex(8))
        write_table(open_store(layout.files, layout), key, others)
        yield ListedChunk(number, key, others["key"][0].as_py(), len(others), ObjectCount(), ObjectCount())
    metadata = others["key"].filter(pc.match_substring_regex(others["key"], _METADATA_KEYS)).to_pylist()
    namespaces = [key for key in keys.filter(is_own).to_pylist() if f"/{key}".endswith(_NAMESPACE_KEYS)]
    yield IntervalFacts(
        listed=ObjectCount(len(sizes), int(sizes.sum())),
        own=count_of(sizes, to_numpy(is_own)),
        places=frozenset(islice({metadata_place(key) for key in metadata}, PLACES_MAX + 1)),
        namespaces=tuple(namespaces[:EXAMPLES_MAX]),
        has_encoded_keys=bool(pc.any(pc.match_substring(keys, "%")).as_py()),
    )


def metadata_place(key: str) -> MetadataPlace:
    """Return whose metadata the object at a key is that `_METADATA_KEYS` matches."""
    match = re.search(_METADATA_KEYS, key)
    if match is not None and match.group(1):
        return MetadataPlace(match.group(1), key[: match.start()])
    folder = key.rpartition("/")[0]
    return MetadataPlace("iceberg", "" if folder == "metadata" else folder.removesuffix("/metadata"))
