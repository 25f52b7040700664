"""A metarange: the ranges of one tree, in path order, in a Parquet file.

Its id's hash is over what the tree *is*: per range the hash part of the range's id, its first and last path, rows and
sizes. The unique suffixes of the ranges' ids are left out, so two trees that were built apart, of equal rows, by the
same version of the writer, have equal hashes. Equal hashes mean equal trees; different hashes do not mean different
trees (other versions, other cuts): only a diff tells.

A suffix that went bad would name a range that is not there, and leave the true one unnamed for the offline job to
delete. So the file also carries a *seal*: the SHA-256 of its own bytes, taken with the seal's digits as zeros. It is
compared before the file is parsed. Below the seal stands the content's hash once more, for who reads the ids alone.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from refstore.core.units import SUM_BYTES_MAX, sum_sizes
from refstore.versioning.commits import columns, object_names
from refstore.versioning.commits.columns import Column, ColumnKind, Layout, Rows, UnreadableColumns

LAYOUT: Final = Layout(
    "refstore.metarange",
    "1",
    (
        ("first_path", ColumnKind.TEXT),
        ("last_path", ColumnKind.TEXT),
        ("range", ColumnKind.DIGITS),
        ("rows", ColumnKind.INTEGER),
        ("size_bytes", ColumnKind.INTEGER),
    ),
)

CUT_KEY: Final = "refstore.cut"
CONTENT_KEY: Final = "refstore.content"
SEAL_KEY: Final = "refstore.seal"

_SEAL = re.compile(rb"refstore\.seal\x18@([0-9a-f]{64})")
"""The key, then Thrift's field header and length, then the digits: as every Parquet footer lays out a key-value pair.
"""
_UNSEALED: Final = "0" * 64


class RangeRow(NamedTuple):
    """One range of a tree."""

    first_path: str
    last_path: str
    id: str
    rows: int
    size_bytes: int
    """Bytes of the objects that the entries name, not of the Parquet file."""


@dataclass(frozen=True, slots=True)
class Metarange:
    rows: tuple[RangeRow, ...]
    last_paths: tuple[str, ...]
    """The last paths of `rows`, for bisection."""
    cut_rule_label: str
    """The label of the `CutRule` that the whole tree is cut by; '' if it is cut by several."""

    @classmethod
    def from_rows(cls, rows: Iterable[RangeRow], cut: str) -> Metarange:
        fixed = tuple(rows)
        return cls(fixed, tuple(row.last_path for row in fixed), cut)

    def find_range(self, path: str) -> int:
        """Return the place of the first range that ends at or after `path`: the only one that can hold it."""
        return bisect_left(self.last_paths, path)

    @property
    def count(self) -> int:
        return sum(row.rows for row in self.rows)

    @property
    def size_bytes(self) -> int:
        # below 0: of a range whose sum began again from below
        return sum_sizes(row.size_bytes if row.size_bytes >= 0 else SUM_BYTES_MAX for row in self.rows)

    @property
    def content_hash(self) -> str:
        content = [
            (object_names.hash_of(row.id), row.first_path, row.last_path, row.rows, row.size_bytes) for row in self.rows
        ]
        packed = msgspec.msgpack.encode((LAYOUT.name, LAYOUT.version, self.cut_rule_label, content))
        return hashlib.sha256(packed).hexdigest()


EMPTY: Final = Metarange((), (), "")


def encode(metarange: Metarange, content_hash: str = "") -> bytes:
    """Encode a metarange. `content_hash`: its hash, where the caller knows it."""
    rows = columns.rows_of(LAYOUT, tuple(zip(*metarange.rows, strict=True)))
    body = bytearray(
        columns.encode(
            LAYOUT,
            rows,
            {
                CUT_KEY: metarange.cut_rule_label,
                CONTENT_KEY: content_hash or metarange.content_hash,
                SEAL_KEY: _UNSEALED,
            },
        )
    )
    start, end = _find_seal(body)
    body[start:end] = hashlib.sha256(body).hexdigest().encode()
    return bytes(body)


def decode(metarange_id: str, body: bytes) -> Metarange:
    """Decode a metarange. Raises CorruptRange for anything but the one that was written under that id."""
    rows, metadata = _decode(metarange_id, body)
    values = (rows.column(at).to_pylist() for at in range(len(LAYOUT.fields)))
    metarange = Metarange.from_rows(map(RangeRow._make, zip(*values, strict=True)), metadata.get(CUT_KEY, ""))
    _check_content(metarange_id, metarange.content_hash)
    if not metarange.rows or not _is_in_order(metarange):
        raise object_names.corrupt_range(object_names.METARANGES, metarange_id, "its ranges are not in order")
    return metarange


def range_ids(metarange_id: str, body: bytes) -> Column:
    """Decode only the ids of the ranges, as an Arrow array. Raises CorruptRange.

    A job reads the metaranges of all commits for them, so the content is not hashed again: the seal verifies the bytes,
    and the hash among them must be the one in the name.
    """
    rows, metadata = _decode(metarange_id, body, ["range"])
    _check_content(metarange_id, metadata.get(CONTENT_KEY, ""))
    return rows.column(0)


def _decode(metarange_id: str, body: bytes, only: Sequence[str] | None = None) -> tuple[Rows, dict[str, str]]:
    if not _is_sealed(body):
        raise object_names.corrupt_range(
            object_names.METARANGES, metarange_id, f"its {len(body)} bytes do not have the hash in their seal"
        )
    try:
        return columns.decode(LAYOUT, body, only)
    except UnreadableColumns as error:
        raise object_names.corrupt_range(object_names.METARANGES, metarange_id, str(error)) from error


def _check_content(metarange_id: str, content_hash: str) -> None:
    if content_hash != object_names.hash_of(metarange_id):
        raise object_names.corrupt_range(
            object_names.METARANGES, metarange_id, "it does not have the content whose hash is in its name"
        )


def _is_in_order(metarange: Metarange) -> bool:
    before = ""
    for row in metarange.rows:
        if not before < row.first_path <= row.last_path or row.rows < 1:
            return False
        before = row.last_path
    return True


def _find_seal(body: bytes | bytearray) -> tuple[int, int]:
    """Return where the seal's digits are, or (-1, -1). The footer comes last, so the last match is the seal."""
    at = body.rfind(SEAL_KEY.encode())
    match = _SEAL.match(body, at) if at >= 0 else None
    return match.span(1) if match else (-1, -1)


def _is_sealed(body: bytes) -> bool:
    start, end = _find_seal(body)
    if start < 0:
        return False
    digest = hashlib.sha256(memoryview(body)[:start])
    digest.update(_UNSEALED.encode())
    digest.update(memoryview(body)[end:])
    return digest.hexdigest().encode() == body[start:end]
