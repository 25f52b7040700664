"""Read what lakeFS has committed: a metarange names the ranges of a commit, a range names its objects.

Both are tables (`sstable.py`), in `_lakefs/` below the repository's namespace. A value is an identity and a message of
Protocol Buffers, each behind its length. In a metarange the identity is the id of a range. NumPy takes the n-th field
of some thousand messages at once. What is not as lakeFS writes it is refused: what is skipped here would be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refstore.core.arrow_arrays import to_numpy
from refstore.errors import Corrupt, ObjectNotFound
from refstore.objects import open_objects
from refstore.versioning.commits.workers import Workers
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.sources.base import BATCH_NAMES
from refstore_prune.sources.lakefs.sstable import Entries, TableFile, damage, name_errors, read_table, unknown_form

FOLDER: Final = "_lakefs/"
"""Where a repository has its ranges and metaranges, below its namespace."""

FIELDS_MAX: Final = 1 << 14
"""How many fields a message may have: each takes a step. An entry has one for each pair of its metadata."""

_Numbers = NDArray[np.int64]
_NUMBER, _BYTES, _UNKNOWN = 0, 2, -1
_RANGE_FIELDS: Final = (_UNKNOWN, _BYTES, _BYTES, _NUMBER, _NUMBER)
"""The wire types, by number, of: min_key, max_key, estimated_size, count."""
_ENTRY_FIELDS: Final = (_UNKNOWN, _BYTES, _BYTES, _NUMBER, _BYTES, _BYTES, _NUMBER, _BYTES)
"""Those of: address, last_modified, size, e_tag, metadata, address_type, content_type."""
_METADATA: Final = 5
"""The only field that a message may have more than once."""
_BY_SCHEME, _RELATIVE, _FULL = range(3)
"""The types of addresses. Those of old commits are full if they begin with a scheme, else relative."""
_SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*://"
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


class _Spans(NamedTuple):
    """Where something lies in the bytes of many values, for each of them."""

    starts: _Numbers
    ends: _Numbers

    def slice(self, data: bytes) -> list[bytes]:
        return [data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


class _Values:
    """The values of many entries: their identities, and the fields of their messages."""

    def __init__(self, values: Sequence[bytes], wire_types: Sequence[int]) -> None:
        """Raises TableError."""
        self.data = b"".join((*values, bytes(16)))  # `_read_varints` looks ten bytes ahead
        self._octets = np.frombuffer(self.data, np.uint8)
        value_ends = np.cumsum([len(value) for value in values], dtype=np.int64)
        at = value_ends - [len(value) for value in values]
        self.identities = self._read_span(at, value_ends)
        messages = self._read_span(self.identities.ends, value_ends)
        if (messages.ends != value_ends).any():
            raise damage("there is something behind a value")
        self.fields = self._find_fields(messages, wire_types)

    def numbers(self, field: int) -> _Numbers:
        """Return the numbers of a field; 0 where a message does not have it."""
        starts, ends = self.fields[field]
        return np.where(ends > 0, self._read_varints(starts)[0], 0)

    def _read_span(self, at: _Numbers, limits: _Numbers) -> _Spans:
        """Return where the bytes lie whose length stands here, as a zigzag number."""
        zigzag, starts = self._read_varints(at)
        if ((zigzag & 1 != 0) | (zigzag < 0) | (zigzag >> 1 > limits - starts)).any():
            raise damage("a value is cut off")
        return _Spans(starts, starts + (zigzag >> 1))

    def _find_fields(self, messages: _Spans, wire_types: Sequence[int]) -> list[_Spans]:
        """Return where each field lies in each message, by number. A field that is not there begins and ends at 0."""
        expected = np.array([*wire_types, _UNKNOWN])
        found = np.zeros((len(expected), 2, len(messages.starts)), np.int64)
        rows, (at, limits) = np.arange(len(messages.starts)), messages
        for _ in range(FIELDS_MAX):
            more = at < limits
            rows, at, limits = rows[more], at[more], limits[more]
            if not len(rows):
                return [_Spans(starts, ends) for starts, ends in found]
            tag, body = self._read_varints(at)
            number, wire_type = np.clip(tag >> 3, 0, len(wire_types)), tag & 7
            for row in np.flatnonzero(expected[number] != wire_type)[:1]:
                raise unknown_form(f"it has a field {tag[row] >> 3} of the wire type {wire_type[row]}")
            value, after = self._read_varints(body)
            is_bytes = wire_type == _BYTES
            if ((after > limits) | is_bytes & ((value < 0) | (value > limits - after))).any():
                raise damage("a field leaves its message")
            if ((number != _METADATA) & (found[number, 1, rows] > 0)).any():
                raise damage("a message has a field twice")
            at = after + np.where(is_bytes, value, 0)
            found[number, 0, rows], found[number, 1, rows] = np.where(is_bytes, after, body), at
        raise unknown_form(f"an entry has more than {FIELDS_MAX} fields")

    def _read_varints(self, at: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Return the numbers at these places, and where they end. What is beyond 2^63 becomes negative."""
        values = self._octets[at].astype(np.int64)
        ends = at + 1
        longer = np.flatnonzero(values > 127)
        values[longer] &= 127
        for shift in range(7, 70, 7):
            if not len(longer):
                break
            octet = self._octets[ends[longer]].astype(np.int64)
            if shift == 63 and (octet > 1).any():
                raise damage("a number is too large")
            values[longer] |= (octet & 127) << shift
            ends[longer] += 1
            longer = longer[octet > 127]
        return values, ends


def _parse_range_refs(entries: Entries) -> Iterator[RangeRef]:
    values = _Values(entries.values, _RANGE_FIELDS)
    columns = [spans.slice(values.data) for spans in (values.identities, values.fields[1], values.fields[2])]
    for key, id_, min_key, max_key, count in zip(entries.keys, *columns, values.numbers(4).tolist(), strict=True):
        if not _RANGE_ID.fullmatch(id_) or max_key != key or min_key > max_key or count < 0:
            raise damage(f"what it says of a range is impossible: {(key, id_, min_key, max_key, count)}")
        yield RangeRef(id_.decode(), min_key, max_key, count)


def _parse_addresses(entries: Entries) -> Any:
    values = _Values(entries.values, _ENTRY_FIELDS)
    spans = values.fields[1]
    lengths = spans.ends - spans.starts
    offsets = np.append(np.int32(0), np.cumsum(lengths, dtype=np.int32))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(spans.slice(values.data)))]
    addresses = pa.Array.from_buffers(pa.string(), len(lengths), buffers)
    try:
        addresses.validate(full=True)
    except ValueError as error:
        raise damage("an address is not in UTF-8") from error
    types = values.numbers(6)
    has_scheme = to_numpy(pc.match_substring_regex(addresses, _SCHEME))
    known = (types == _BY_SCHEME) | (types == np.where(has_scheme, _FULL, _RELATIVE))
    for row in np.flatnonzero(~known | (lengths == 0))[:1]:
        address = addresses[row].as_py()
        raise unknown_form(f"the entry {entries.keys[row]!r} has the address {address!r} of type {types[row]}")
    return addresses
