"""Read what lakeFS has committed: a metarange names the ranges of a commit, a range names its objects.

Both are tables (`sstable.py`), in `_lakefs/` below the repository's namespace. A value is an identity and a message of
Protocol Buffers, each behind its length. In a metarange the identity is the id of a range. What is not as lakeFS writes
it is refused: what is skipped here would be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from refstore.core.arrow_arrays import make_array
from refstore.errors import Corrupt, ObjectNotFound
from refstore.objects import open_objects
from refstore.versioning.commits.workers import Workers
from refstore_gc.untyped_arrow import pa
from refstore_prune.sources.base import BATCH_NAMES
from refstore_prune.sources.lakefs.sstable import (
    Entries,
    TableFile,
    damage,
    name_errors,
    read_table,
    read_varint,
    unknown_form,
)

FOLDER: Final = "_lakefs/"
"""Where a repository has its ranges and metaranges, below its namespace."""

_MIN_KEY, _MAX_KEY, _ESTIMATED_SIZE, _COUNT = 1 << 3 | 2, 2 << 3 | 2, 3 << 3, 4 << 3
_RANGE_TAGS: Final = frozenset((_MIN_KEY, _MAX_KEY, _ESTIMATED_SIZE, _COUNT))
"""Of the fields of a range: a field's number, and as what it is written (0: a number, 2: bytes)."""
_ADDRESS, _LAST_MODIFIED, _SIZE, _E_TAG = 1 << 3 | 2, 2 << 3 | 2, 3 << 3, 4 << 3 | 2
_METADATA, _ADDRESS_TYPE, _CONTENT_TYPE = 5 << 3 | 2, 6 << 3, 7 << 3 | 2
_ENTRY_TAGS: Final = frozenset((_ADDRESS, _LAST_MODIFIED, _SIZE, _E_TAG, _METADATA, _ADDRESS_TYPE, _CONTENT_TYPE))
"""Of those of an entry. It may have the metadata more than once."""
_BY_SCHEME, _RELATIVE, _FULL = range(3)
"""The types of addresses. Those of old commits are full if they begin with a scheme, else relative."""
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_RANGE_ID: Final = re.compile(rb"[0-9A-Za-z]{1,128}")
_THREADS: Final = 4
"""How many ranges a task reads at once from a remote store."""


@dataclass(frozen=True, slots=True)
class RangeRef:
    """What a metarange says of a range."""

    id: str
    min_key: bytes
    max_key: bytes
    count: int
    """How many objects it names; 0: unknown, because an old version of lakeFS wrote the metarange."""


def read_metarange(file: TableFile) -> list[RangeRef]:
    """Return the ranges that a metarange names, in order. Raises Corrupt."""
    with name_errors(file.name):
        return [ref for entries in read_table(file, b"metaranges") for ref in _parse_range_refs(entries)]


def read_range_addresses(file: TableFile, ref: RangeRef | None = None) -> Iterator[Any]:
    """Yield the addresses that a range names, as Arrow arrays of at most `BATCH_NAMES` strings: URLs, or relative to
    the namespace. `ref`: what the metarange says of it. Raises Corrupt, at the latest when all have been read.
    """
    count, first, last = 0, None, None
    with name_errors(file.name):
        for entries in read_table(file, b"ranges"):
            first, last = entries.keys[0] if first is None else first, entries.keys[-1]
            addresses = _parse_addresses(entries)
            count += len(addresses)
            for start in range(0, len(addresses), BATCH_NAMES):
                yield addresses.slice(start, BATCH_NAMES)
        if ref is not None and ((ref.count or count) != count or (ref.min_key or first, ref.max_key) != (first, last)):
            raise damage(f"it has {count} entries, from {first!r} to {last!r}, and a metarange says: {ref}")


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Reads the addresses that many ranges name, in a task of the engine."""

    store_url: str
    namespace_prefix: str
    """What the keys of the namespace begin with in the store: '', or a folder with its slash."""
    ranges: Sequence[RangeRef]

    def __call__(self) -> Iterator[Any]:
        """Yield what `read_range_addresses` does. Raises Corrupt, also if a range is not there."""
        with closing(open_objects(self.store_url, read_only=True)) as store:

            def open_range(ref: RangeRef) -> TableFile:
                try:
                    return TableFile.from_store(store, range_key(self.namespace_prefix, ref.id))
                except ObjectNotFound as error:
                    raise Corrupt(
                        f"the range {ref.id} is gone, and a commit names it; put it back from a copy: {error}"
                    ) from error

            with Workers(_THREADS if store.is_remote else 1) as workers:
                for ref, file in zip(self.ranges, workers.map_ahead(open_range, self.ranges), strict=True):
                    yield from read_range_addresses(file, ref)


def range_key(namespace_prefix: str, id_: str) -> str:
    """Return the key of a range or metarange."""
    return f"{namespace_prefix}{FOLDER}{id_}"


def _open_value(value: bytes, tags: frozenset[int]) -> tuple[bytes, dict[int, Any]]:
    """Return the identity, and the fields of the message by their tags. Raises TableError."""
    zigzag, start = read_varint(value, 0)
    middle = start + (zigzag >> 1)
    length, at = read_varint(value, middle)
    end = at + (length >> 1)
    if zigzag & 1 or length & 1 or end > len(value):
        raise damage("a value is cut off")
    if end < len(value):
        raise damage("there is something behind a value")
    fields: dict[int, Any] = {}
    while at < end:
        tag, at = value[at], at + 1
        if tag not in tags:
            tag, _ = read_varint(value, at - 1)
            raise unknown_form(f"it has a field {tag >> 3} of the wire type {tag & 7}")
        if tag in fields and tag != _METADATA:
            raise damage("a message has a field twice")
        content, at = read_varint(value, at)
        if tag & 7:
            begin, at = at, at + content
            content = value[begin:at]
        fields[tag] = content
    if at > end:
        raise damage("a field leaves its message")
    return value[start:middle], fields


def _parse_range_refs(entries: Entries) -> Iterator[RangeRef]:
    for key, value in zip(*entries, strict=True):
        id_, fields = _open_value(value, _RANGE_TAGS)
        min_key, max_key, count = fields.get(_MIN_KEY, b""), fields.get(_MAX_KEY, b""), fields.get(_COUNT, 0)
        if not _RANGE_ID.fullmatch(id_) or max_key != key or min_key > max_key or count >> 63:
            raise damage(f"what it says of a range is impossible: {(key, id_, min_key, max_key, count)}")
        yield RangeRef(id_.decode(), min_key, max_key, count)


def _parse_addresses(entries: Entries) -> Any:
    addresses: list[str] = []
    for key, value in zip(*entries, strict=True):
        _, fields = _open_value(value, _ENTRY_TAGS)
        try:
            address: str = fields.get(_ADDRESS, b"").decode()
        except UnicodeDecodeError as error:
            raise damage("an address is not in UTF-8") from error
        kind = fields.get(_ADDRESS_TYPE, _BY_SCHEME)
        if not address or kind not in (_BY_SCHEME, _FULL if _SCHEME.match(address) else _RELATIVE):
            raise unknown_form(f"the entry {key!r} has the address {address!r} of type {kind}")
        addresses.append(address)
    return make_array(addresses, pa.string())
