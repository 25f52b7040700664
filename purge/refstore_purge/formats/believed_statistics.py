"""Which statistics of a Parquet file a run believes: bounds that rule out that the file has one of the ids.

Nobody checks statistics when a file is written, and a purge that believes wrong ones leaves rows of people who asked to
be forgotten. So those of a column are used only where each of these holds of the whole file; else the column is read:

    whole        there are both bounds and the counts beside them
    consistent   they contradict neither each other nor the rows, the type, and what the file says elsewhere of the same
    known        writer and type stand in this module: the corpus compares the statistics of these writers with the
                 values, and a version is named from which on they have no known fault

Page indexes and Bloom filters rule nothing out: they say no more of a whole file. The column of an ORC file is always
read: its libraries show a count that is left out as zero, and crash at what is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from refstore_purge.formats.base import IdMatcher
from refstore_purge.formats.parquet_footer import (
    BOUNDS,
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    SchemaElementField,
    StatisticsField,
    ThriftStruct,
)
from refstore_purge.formats.parquet_schema import ConvertedType, LogicalType, PhysicalType, SchemaNode
from refstore_purge.untyped_pandas import pa

PARQUET_WRITERS: Final = {
    b"parquet-cpp-arrow": (12, 0),  # before, those of dictionaries in several chunks were of the first (GH-15042)
    b"parquet-mr": (1, 12),  # before 1.8, those of strings were of another row (PARQUET-251); none before is tried
    b"DuckDB": (1, 3),  # before, it did not say which bounds are cut off
}
"""The first version of each writer that is believed. Polars stands not here: the nulls that it counts are those of all
pages, times the number of pages.
"""
BYTEWISE_TYPES: Final = ((None, None), (LogicalType.STRING, ConvertedType.UTF8), (LogicalType.UUID, None))
"""Parquet's logical and converted types of values that are compared by their bytes, without a sign."""

_CREATED_BY: Final = re.compile(rb"([A-Za-z-]+) version v?(\d+)\.(\d+)[.\d]*( \(build [^()]*\))?")
_INTEGER_BYTES: Final = {PhysicalType.INT32: 4, PhysicalType.INT64: 8}
_TYPE_ORDER: Final = 1
"""A field of the union `ColumnOrder`."""


class Bounds(NamedTuple):
    """The lowest and the highest value of a column in a row group: of text the bytes."""

    low: Any
    high: Any


def rule_out(bounds: Sequence[Bounds] | None, ids: IdMatcher) -> bool:
    """Return whether a file has none of the ids. `bounds`: of all its rows; None: they are not believed."""
    return bounds is not None and not any(ids.may_match(*each) for each in bounds)


def parquet_bounds(footer: ThriftStruct, leaf: SchemaNode, type_: Any) -> Sequence[Bounds] | None:
    """Return the bounds of a column that lies in no list or map; None: they are not believed. `type_`: what Arrow reads
    it as.
    """
    orders = footer.get(FileField.COLUMN_ORDERS, ())
    is_ordered = leaf.first_leaf < len(orders) and _TYPE_ORDER in orders[leaf.first_leaf]
    if not is_ordered or not _is_known_writer(footer.get(FileField.CREATED_BY, b"")):
        return None
    chunks = [group[RowGroupField.COLUMNS][leaf.first_leaf] for group in footer[FileField.ROW_GROUPS]]
    bounds = [_chunk_bounds(chunk[ColumnChunkField.METADATA], leaf, type_) for chunk in chunks]
    return None if None in bounds else [each for of_chunk in bounds for each in of_chunk or ()]


def _is_known_writer(created_by: bytes) -> bool:
    parts = _CREATED_BY.fullmatch(created_by)
    if parts is None or parts[1] not in PARQUET_WRITERS:
        return False
    return (int(parts[2]), int(parts[3])) >= PARQUET_WRITERS[parts[1]]


def _chunk_bounds(metadata: ThriftStruct, leaf: SchemaNode, type_: Any) -> Sequence[Bounds] | None:
    """Return the bounds of a column chunk, and none where it has only nulls; None: they are not believed."""
    statistics = metadata.get(ColumnMetadataField.STATISTICS, ThriftStruct())
    values, nulls = metadata[ColumnMetadataField.VALUES], statistics.get(StatisticsField.NULLS, -1)
    low, high = statistics.get(StatisticsField.MIN_VALUE), statistics.get(StatisticsField.MAX_VALUE)
    if not 0 <= nulls <= values or (nulls and not leaf.levels):
        return None
    if nulls == values:
        return None if any(field in statistics for field in BOUNDS) else ()
    if low is None or high is None or not 1 <= statistics.get(StatisticsField.DISTINCT, 1) <= values - nulls:
        return None
    is_exact = statistics.get(StatisticsField.IS_MIN_EXACT, True) and statistics.get(StatisticsField.IS_MAX_EXACT, True)
    is_same = statistics.get(StatisticsField.MIN, low) == low and statistics.get(StatisticsField.MAX, high) == high
    decode = _decode_integers if pa.types.is_integer(type_) else _decode_bytes
    bounds = decode(low, high, leaf, type_)
    return (bounds,) if bounds is not None and is_exact and is_same and bounds.low <= bounds.high else None


def _decode_integers(low: bytes, high: bytes, leaf: SchemaNode, type_: Any) -> Bounds | None:
    """Return numbers that the type of Arrow has, too: it may be narrower, or have a sign where Parquet's has none."""
    size = _INTEGER_BYTES.get(leaf.element[SchemaElementField.TYPE])
    is_signed = pa.types.is_signed_integer(type_)
    if not len(low) == len(high) == size or is_signed == leaf.is_unsigned:
        return None
    bounds = Bounds(*(int.from_bytes(each, "little", signed=is_signed) for each in (low, high)))
    limit = 2 ** (type_.bit_width - is_signed)
    return bounds if all(-limit * is_signed <= each < limit for each in bounds) else None


def _decode_bytes(low: bytes, high: bytes, leaf: SchemaNode, _type: Any) -> Bounds | None:
    element = leaf.element
    length = element.get(SchemaElementField.LENGTH, 0)
    is_whole = element[SchemaElementField.TYPE] == PhysicalType.BYTE_ARRAY or (
        element[SchemaElementField.TYPE] == PhysicalType.FIXED and len(low) == len(high) == length
    )
    of_type = (leaf.logical_type, element.get(SchemaElementField.CONVERTED))
    return Bounds(low, high) if is_whole and of_type in BYTEWISE_TYPES else None
