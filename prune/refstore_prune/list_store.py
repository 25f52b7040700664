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
from functools import partial
from itertools import islice, pairwise
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np

from refstore.core.arrow_arrays import make_array, to_numpy
from refstore.errors import ObjectsUnavailable
from refstore.lake_identity import LAKE_OBJECT
from refstore.namespaces import NAMESPACE_OBJECT
from refstore.objects.base import OWN_FILES, ObjectPage, ObjectStore, SkippedKeys
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
"""How many places of metadata a task tells."""
FEW_KEYS: Final = 1000
"""A page of the store. Listing less than this is faster than cutting it."""
_PROBES_AT_ONCE: Final = 8
_PROBES_PER_INTERVAL: Final = 16
_PROBES_MAX: Final = 2000
PROBE_SECONDS_MAX: Final = 10.0
LOCAL_PROBE_SECONDS_MAX: Final = 1.0
"""In a large folder each probe reads the names of all its files, and listing them takes no more than some of these."""
_GROUPS_PER_INTERVAL: Final = 8
"""So that intervals of several groups of keys are about equally long."""

_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xE000)
_NO_CHARACTERS: Final = (0xFFFE, 0x10000)
"""What XML cannot carry."""

_SPECIAL_KEYS: Final = r"(^|/)(_delta_log|_lakefs|\.git|_refstore)/|\.metadata\.json(\.gz)?$"
_METADATA_FOLDER: Final = re.compile(r"(?:^|/)(_delta_log|_lakefs|\.git)/")
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
    has_more_places: bool = False
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
            self.places | other.places,
            self.has_more_places or other.has_more_places,
            (*self.namespaces, *other.namespaces)[:EXAMPLES_MAX],
            self.has_encoded_keys or other.has_encoded_keys,
        )


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
    chunks: list[ListedChunk] = []
    facts = IntervalFacts()
    for row in rows:
        if isinstance(row, ListedChunk):
            chunks.append(row)
        else:
            facts = facts.plus(row)
    return Listing(sorted(chunks, key=lambda chunk: chunk.number), facts, as_of_ms)


# ---- where to cut


def cut_store(store: ObjectStore, pieces_min: int) -> list[KeyInterval]:
    """Return intervals that together have every key once, in order: about so many, if the store has many keys."""
    return touching_intervals(_find_cuts(store, pieces_min))


def touching_intervals(cuts: Sequence[str]) -> list[KeyInterval]:
    """Return the intervals between cuts, in order. A key that is itself a cut belongs to the interval that ends there:
    `after` leaves it out of the next one, and NUL, which no key has, makes `before` take it.
    """
    return [
        KeyInterval("", after, f"{before}\0" if before else "")
        for after, before in pairwise(["", *sorted({*cuts}), ""])
    ]


def _find_cuts(store: ObjectStore, pieces_min: int) -> list[str]:
    """Return beginnings of keys, in order, with many keys between them. They need not be keys."""
    probes = _Probes(store, min(_PROBES_MAX, pieces_min * _PROBES_PER_INTERVAL))
    groups, is_open = [""], {""}
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="refstore-prune-probe") as pool:
        while is_open and len(groups) < pieces_min * _GROUPS_PER_INTERVAL:
            found = dict(zip(sorted(is_open), pool.map(probes.find_groups, sorted(is_open)), strict=True))
            is_open = {below for each in found.values() for below in each}
            groups = [below for group in groups for below in (found.get(group) or [group])]
    step = max(1, len(groups) // pieces_min)
    return [group for group in groups[step::step] if group]


class _Probes:
    """Asks a store for the keys behind a beginning, not without end."""

    def __init__(self, store: ObjectStore, probes_max: int) -> None:
        self._store = store
        self._left = probes_max
        self._end = time.monotonic() + (PROBE_SECONDS_MAX if store.is_remote else LOCAL_PROBE_SECONDS_MAX)
        self._lock = Lock()

    def find_groups(self, prefix: str) -> list[str]:
        """Return the beginnings of groups of keys with this prefix that may have more than `FEW_KEYS`, in order. Each
        is longer than the prefix, and they differ behind it. If it takes too long, these are not all.
        """
        groups: list[str] = []
        after = ""
        while self._may_probe():
            keys = self._next_keys(prefix, after)
            if groups and keys and len(common := common_beginning(groups[-1], keys[0])) > len(prefix):
                groups[-1] = common  # this group goes on
            elif len(keys) < FEW_KEYS:
                return groups
            else:
                common = common_beginning(keys[0], keys[-1])
                groups.append(common if len(common) > len(prefix) else keys[-1][: len(prefix) + 1])
            after = next_beginning(groups[-1])
            if not after:
                return groups
        return groups

    def _may_probe(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0 and time.monotonic() < self._end

    def _next_keys(self, prefix: str, after: str) -> list[str]:
        if not self._store.is_remote:  # whose pages are larger
            return [info.key for info in islice(self._store.list(prefix, after=after), FEW_KEYS)]
        keys: list[str] = []
        for page in self._store.list_pages(prefix, skipped=SkippedKeys(), after=after):
            keys += page.keys
            if len(keys) >= FEW_KEYS:
                break
        return keys[:FEW_KEYS]


def common_beginning(one: str, other: str) -> str:
    return next(
        (one[:at] for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(one, other)
    )


def next_beginning(prefix: str) -> str:
    """Return a text behind all keys that begin with the prefix, and not behind what follows these; '': there is
    none.
    """
    following = ord(prefix[-1]) + 1
    for first, behind in (_SURROGATES, _NO_CHARACTERS):
        following = behind if first <= following < behind else following
    return "" if following > _LAST_CHARACTER else prefix[:-1] + chr(following)


# ---- the tasks


def list_part(layout: PruneLayout, numbered: tuple[int, KeyInterval]) -> Iterator[ListedChunk | IntervalFacts]:
    """List an interval, write its chunks, and tell what it has beside them."""
    number, interval = numbered[0] * 1000, numbered[1]
    # As of `refstore_gc.list_objects`: another attempt of the task may cut its chunks elsewhere.
    attempt, skipped, found = secrets.token_hex(8), SkippedKeys(), FoundInKeys()
    waiting: list[Any] = []
    last_key, store = interval.after, open_store(layout.url, layout)
    pages = store.list_pages(interval.prefix, skipped=skipped, after=interval.after, before=interval.before)
    for page in pages:
        ordered = [last_key, *page.keys, *([interval.before] if interval.before else [])]
        if any(one >= other for one, other in pairwise(ordered)):  # a key in another bucket than its name would be lost
            raise ObjectsUnavailable(
                f"the listing of {store.url} cannot be trusted: it is out of order after {last_key!r}; check its server"
            )
        last_key, table = page.keys[-1], found.add(_table_of(page))
        if len(table):
            waiting.append(table)
        if sum(map(len, waiting)) >= CHUNK_ROWS:
            yield write_chunk(layout, number, attempt, pa.concat_tables(waiting))
            waiting.clear()
            number += 1
    if waiting:
        yield write_chunk(layout, number, attempt, pa.concat_tables(waiting))
    yield found.facts(skipped)


def _table_of(page: ObjectPage) -> Any:
    return pa.table(
        {
            "key": make_array(page.keys, pa.string()),
            "size_bytes": make_array(page.sizes_bytes, pa.int64()),
            "mtime_ms": make_array(page.mtimes_ms, pa.int64()),
            "etag": make_array(page.etags, pa.string()),
        }
    )


def write_chunk(layout: PruneLayout, number: int, attempt: str, table: Any) -> ListedChunk:
    """Write objects, which are in order, to a file of the listing."""
    key = layout.file_key("listing", number, attempt)
    write_table(open_store(layout.files, layout), key, table)
    return ListedChunk(number, key, table["key"][0].as_py(), len(table), ObjectCount(), ObjectCount())


class FoundInKeys:
    """Counts listed objects, and looks in their keys for what says that the store belongs to others."""

    def __init__(self) -> None:
        self._listed = self._own = ObjectCount()
        self._places: set[MetadataPlace] = set()
        self._has_more_places = False
        self._namespaces: list[str] = []
        self._has_encoded_keys = False

    def facts(self, skipped: SkippedKeys) -> IntervalFacts:
        """Return what the interval has. `skipped`: by the listing."""
        return IntervalFacts(
            self._listed,
            self._own,
            skipped.count,
            tuple(f"{name} ({why})" for name, why in skipped.examples),
            frozenset(self._places),
            self._has_more_places,
            tuple(self._namespaces[:EXAMPLES_MAX]),
            self._has_encoded_keys,
        )

    def add(self, table: Any) -> Any:
        """Return the objects without refstore's own files."""
        keys, sizes = table["key"], to_numpy(table["size_bytes"])
        is_own = np.zeros(len(sizes), np.bool_)
        for place in np.flatnonzero(to_numpy(pc.match_substring_regex(keys, _SPECIAL_KEYS))).tolist():
            is_own[place] = self._look(keys[place].as_py())
        self._has_encoded_keys |= bool(pc.any(pc.match_substring(keys, "%")).as_py())
        self._listed += ObjectCount(len(sizes), int(sizes.sum()))
        if not is_own.any():
            return table
        self._own += count_of(sizes, is_own)
        return table.filter(make_array(~is_own))

    def _look(self, key: str) -> bool:
        """Return whether this is a file of refstore's own. Remember whose metadata lies there."""
        if f"/{OWN_FILES}" in f"/{key}":
            if f"/{key}".endswith(_NAMESPACE_KEYS):
                self._namespaces.append(key)
            return True
        if len(self._places) < PLACES_MAX:
            self._places.add(metadata_place(key))
        else:
            self._has_more_places |= metadata_place(key) not in self._places
        return False


def metadata_place(key: str) -> MetadataPlace:
    """Return whose metadata the object at a key is that `_SPECIAL_KEYS` matches."""
    match = _METADATA_FOLDER.search(key)
    if match is not None:
        return MetadataPlace(match.group(1), key[: match.start()])
    folder = key.rpartition("/")[0]
    return MetadataPlace("iceberg", "" if folder == "metadata" else folder.removesuffix("/metadata"))
