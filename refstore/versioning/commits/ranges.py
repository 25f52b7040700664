"""A range: a Parquet file of entries, sorted by path, and where one range ends and the next begins.

Invariants, checked on every read and held on every write:

- the rows are strictly increasing by the UTF-8 bytes of their paths (for `str` that is the order of `<`), and there is
at
  least one;
- the SHA-256 of the file's bytes is the hash in its id, and is compared before a byte of it is parsed.

*Boundaries are defined by content*, as in lakeFS's Graveler. A tree's rows, read in order, are cut behind a row if
the range has at least `rows_min` rows by then and the row's path is a *boundary path* (its hash falls below a
threshold), or if the range has `rows_max` rows. How a tree is cut is therefore a function of its rows alone, not of the
edits that led to it, and an edit moves the cuts only until an old one is met again. The constants and the hash are part
of the format: a tree that was cut by others stays readable and correct, but shares fewer ranges with trees that were
cut by these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final
from zlib import crc32

import msgspec

from refstore.core.ids import Address
from refstore.errors import CorruptRange, Invalid
from refstore.records.s3_attributes import S3Attributes
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import columns, object_names
from refstore.versioning.commits.columns import Column, ColumnKind, Layout, Rows, UnreadableColumns

LAYOUT: Final = Layout(
    "refstore.range",
    "1",
    (
        ("path", ColumnKind.TEXT),
        ("address", ColumnKind.TEXT),
        ("size_bytes", ColumnKind.INTEGER),
        ("checksum", ColumnKind.DIGITS),
        ("mtime_ms", ColumnKind.INTEGER),
        ("metadata", ColumnKind.FEW),  # a JSON object with sorted keys; '' for none
        ("content_type", ColumnKind.FEW),
        ("s3", ColumnKind.TEXT),  # a JSON array (`refstore/records/s3_attributes.py`); '' for none
        ("md5", ColumnKind.DIGITS),
    ),
)
PATH: Final = 0
ADDRESS: Final = 1
SIZE_BYTES: Final = 2
MD5: Final = len(LAYOUT.fields) - 1
COMPARED: Final = range(ADDRESS, MD5)
"""The columns that say whether an entry is another one. MD5 follows from the content, where somebody knows it: an entry
is not another one because it is known now.
"""

_MIX: Final = 0x9E3779B1
"""2^32 over the golden ratio. CRC-32 is linear, so that names that count up would give regular patterns; a product's
high bits depend on all of it.
"""
_WORD: Final = 1 << 32

BISECTED_PATHS_MAX: Final = 4
"""Up to so many paths are searched by bisection in a range; for more, reading all of its paths is faster."""

_json = msgspec.json.Encoder(order="sorted")
_metadata = msgspec.json.Decoder(dict[str, str])
_s3 = msgspec.json.Decoder(S3Attributes)


@dataclass(frozen=True, slots=True)
class CutRule:
    """Where ranges end."""

    rows_min: int
    """No range is shorter, but the last of a tree: bounds the number of ranges, whatever the paths."""
    rows_more: int
    """Behind that one path in so many is a boundary path: so many rows more a range has on average."""
    rows_max: int
    """No range is longer: bounds the memory and the cost of an edit, whatever the paths."""

    def __post_init__(self) -> None:
        if not 1 <= self.rows_min <= self.rows_max or self.rows_more < 1:
            raise Invalid(f"{self} makes no sense; it needs 1 <= rows_min <= rows_max and rows_more >= 1")

    @property
    def label(self) -> str:
        """Stands in a metarange whose tree is cut so."""
        return f"{self.rows_min}/{self.rows_more}/{self.rows_max}"

    def is_boundary(self, path: str) -> bool:
        return bool(self.find_boundaries((path,)))

    def find_boundaries(self, paths: Sequence[str]) -> list[int]:
        """The places of the boundary paths."""
        below = -(-_WORD // self.rows_more)
        return [at for at, path in enumerate(paths) if (crc32(path.encode()) * _MIX) % _WORD < below]

    def is_full_at(self, path: str, rows: int) -> bool:
        """Whether a range of so many rows that ends in `path` takes no further row."""
        return rows >= self.rows_max or (rows >= self.rows_min and self.is_boundary(path))


CUT_RULE: Final = CutRule(rows_min=192, rows_more=192, rows_max=768)
"""About 375 rows, 20 KB. A change rewrites its whole range, so smaller ranges make scattered changes cheaper: 100 of
them in a million entries should cost under 5% of what writing the million costs, also where only the number of requests
counts. That asks for well over 2000 ranges. More would only make more requests of everything else, and a longer
metarange.
"""


# ---- rows


def rows_of(paths: Sequence[str], entries: Sequence[StoredEntry]) -> Rows:
    """Make rows of entries. Raises Invalid for an entry that a range cannot hold."""
    try:
        return columns.rows_of(
            LAYOUT,
            (
                paths,
                [entry.address for entry in entries],
                [entry.size_bytes for entry in entries],
                [entry.checksum for entry in entries],
                [entry.mtime_ms for entry in entries],
                [_json.encode(entry.metadata).decode() if entry.metadata else "" for entry in entries],
                [entry.content_type for entry in entries],
                [_json.encode(entry.s3).decode() if entry.s3 is not None else "" for entry in entries],
                [entry.md5 for entry in entries],
            ),
        )
    except ValueError as error:
        raise Invalid(
            f"an entry between {paths[0]!r} and {paths[-1]!r} cannot be stored ({error}); correct it and stage it again"
        ) from error


def paths_of(rows: Rows) -> list[str]:
    return rows.column(PATH).to_pylist()


def addresses_of(rows: Rows) -> list[Address]:
    return rows.column(ADDRESS).to_pylist()


def entries_of(rows: Rows) -> list[StoredEntry]:
    """Make entries of rows. Raises CorruptRange."""
    values = (rows.column(at).to_pylist() for at in range(1, len(LAYOUT.fields)))
    addresses, sizes, checksums, mtimes, metadata, content_types, s3, md5s = values
    try:
        decoded = [_metadata.decode(each) if each else {} for each in metadata]
        attributes = [_s3.decode(each) if each else None for each in s3]
    except msgspec.DecodeError as error:
        raise CorruptRange(
            f"the metadata of an entry cannot be decoded ({error}); restore its range from a backup"
        ) from error
    return list(
        map(StoredEntry, addresses, sizes, checksums, mtimes, decoded, content_types, repeat(""), md5s, attributes)
    )


def items_of(rows: Rows) -> list[tuple[str, StoredEntry]]:
    return list(zip(paths_of(rows), entries_of(rows), strict=True))


def find_entries(rows: Rows, paths: Sequence[str]) -> list[tuple[str, StoredEntry]]:
    """Return the entries of those paths that are in the range."""
    if len(paths) > BISECTED_PATHS_MAX:
        return items_of(columns.take_rows(rows, columns.places_of(paths, rows)))
    places = [columns.find_position(rows, path) for path in paths]
    matching = [
        at
        for at, path in zip(places, paths, strict=True)
        if at < rows.num_rows and columns.text_at(rows, PATH, at) == path
    ]
    return [item for at in matching for item in items_of(rows.slice(at, 1))]


def may_contain(first_path: str, prefix: str) -> bool:
    """Return whether a range with that first path can hold the prefix, if it does not end before the prefix."""
    return first_path <= prefix or first_path.startswith(prefix)


def rows_with_prefix(rows: Rows, prefix: str, after: str) -> Rows:
    """Return the rows that start with `prefix`, strictly after `after`."""
    start = columns.find_position(rows, prefix) if prefix > after else columns.find_position(rows, after, behind=True)
    end = columns.find_first_without_prefix(rows, prefix, start) if prefix else rows.num_rows
    return rows.slice(start, end - start)


# ---- files


def encode(rows: Rows) -> bytes:
    return columns.encode(LAYOUT, rows)


def hash_hex(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def decode(range_id: str, body: bytes) -> Rows:
    """Decode a range. Raises CorruptRange for anything but the range that was written under that id."""
    rows = _decode(range_id, body)
    if not rows.num_rows or not columns.is_strictly_increasing(rows.column(PATH)):
        raise object_names.corrupt_range(object_names.RANGES, range_id, "its rows are not in order")
    return rows


def decode_addresses(range_id: str, body: bytes) -> Column:
    """Decode only the addresses. Raises CorruptRange as `decode` does."""
    rows = _decode(range_id, body, [LAYOUT.fields[ADDRESS][0]])
    if not rows.num_rows:
        raise object_names.corrupt_range(object_names.RANGES, range_id, "it has no rows")
    return rows.column(0)


def _decode(range_id: str, body: bytes, only: Sequence[str] | None = None) -> Rows:
    if hash_hex(body) != object_names.hash_of(range_id):
        raise object_names.corrupt_range(
            object_names.RANGES, range_id, f"its {len(body)} bytes do not have the hash in its name"
        )
    try:
        return columns.decode(LAYOUT, body, only)[0]
    except UnreadableColumns as error:
        raise object_names.corrupt_range(object_names.RANGES, range_id, str(error)) from error
