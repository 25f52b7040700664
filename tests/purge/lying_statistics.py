"""Parquet files whose statistics lie: bounds that leave out values which are there.

Each lie can be seen without reading the column: it is told by a writer that nobody knows to be right, or it contradicts
itself or the rest of the file. (Of a known writer a lie that contradicts nothing is seen in the column alone: that is
what `--ignore-statistics` is for.)
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from refstore_purge.formats.base import IdKind
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    StatisticsField,
    ThriftList,
    ThriftStruct,
    ThriftType,
)
from tests.purge.test_parquet_kept import edited

WORDS: Final = ["ann", "bob", "cid", "dan", "eve", "zoe"]
KNOWN: Final = [
    b"parquet-cpp-arrow version 26.0.1",
    b"parquet-cpp-arrow version 12.0.0-SNAPSHOT",
    b"parquet-mr version 1.13.1 (build db4183109d5b734ec5930d870cdae161e408ddba)",
    b"DuckDB version v1.4.0 (build b8a06e4a22)",
]
UNKNOWN: Final = [
    b"Polars",
    b"fastparquet-python version 2026.9.0 (build 0)",
    b"parquet-rs version 53.0.0",
    b"parquet-cpp version 1.5.1-SNAPSHOT",
    b"parquet-cpp-arrow version 11.0.0",
    b"parquet-mr version 1.8.1 (build 4aba4dae7bb0d4edbcf7923ae1339f28fd3f7fcf)",
    b"parquet-mr version 1.10.0",
    b"parquet-mr",
    b"DuckDB",
    b"DuckDB version v1.2.2 (build 7c039464e4)",
    b"not parquet-mr version 1.13.1",
    b"parquet-mr version 1.13.1, changed by somebody",
    b"",
]


class LyingFile(NamedTuple):
    what: str
    kind: IdKind
    type: Any
    identifier: str
    body: bytes
    values: list[Any]
    """What stands at the identifier, row by row."""
    denied: Any
    """The one that is there by no statistics."""


class _Chunk(NamedTuple):
    """What a lie is told of."""

    statistics: ThriftStruct
    values: int
    low: bytes
    high: bytes
    """Bounds that are ordered, and leave out what is denied."""

    def claim(self, *, low: bytes | None, high: bytes | None, nulls: int | None = 0) -> None:
        """Say this, and nothing else."""
        fields = (StatisticsField.MIN_VALUE, low), (StatisticsField.MAX_VALUE, high), (StatisticsField.NULLS, nulls)
        for field, value in fields:
            if value is not None:
                self.statistics.set(field, ThriftType.I64 if isinstance(value, int) else ThriftType.STRING, value)

    def claim_bounds(self, nulls: int | None = 0) -> None:
        self.claim(low=self.low, high=self.high, nulls=nulls)


def _claim_with(field: StatisticsField, kind: ThriftType, value: Any) -> Callable[[_Chunk], None]:
    def lie(chunk: _Chunk) -> None:
        chunk.claim_bounds()
        chunk.statistics.set(field, kind, value(chunk) if callable(value) else value)

    return lie


def _claim_old_bounds(chunk: _Chunk) -> None:
    chunk.claim(low=None, high=None)
    chunk.statistics.set(StatisticsField.MIN, ThriftType.STRING, chunk.low)
    chunk.statistics.set(StatisticsField.MAX, ThriftType.STRING, chunk.high)


FAULTS: Final[dict[str, Callable[[_Chunk], None]]] = {
    "nulls alone, beside bounds": lambda chunk: chunk.claim_bounds(nulls=chunk.values),
    "nulls alone, beside the lowest": lambda chunk: chunk.claim(low=chunk.low, high=None, nulls=chunk.values),
    "more nulls than rows": lambda chunk: chunk.claim_bounds(nulls=chunk.values * 3 + 1),
    "more nulls than rows, and no bounds": lambda chunk: chunk.claim(low=None, high=None, nulls=chunk.values + 1),
    "fewer nulls than none": lambda chunk: chunk.claim_bounds(nulls=-1),
    "nulls that are not counted": lambda chunk: chunk.claim_bounds(nulls=None),
    "the lowest alone": lambda chunk: chunk.claim(low=chunk.low, high=None),
    "the highest alone": lambda chunk: chunk.claim(low=None, high=chunk.high),
    "no bounds": lambda chunk: chunk.claim(low=None, high=None),
    "the lowest above the highest": lambda chunk: chunk.claim(low=chunk.high, high=chunk.low),
    "bounds of old writers alone": _claim_old_bounds,
    "another lowest of old writers": _claim_with(StatisticsField.MIN, ThriftType.STRING, lambda chunk: chunk.high),
    "another highest of old writers": _claim_with(StatisticsField.MAX, ThriftType.STRING, lambda chunk: chunk.low),
    "a lowest that is cut off": _claim_with(StatisticsField.IS_MIN_EXACT, ThriftType.BOOL, value=False),
    "a highest that is cut off": _claim_with(StatisticsField.IS_MAX_EXACT, ThriftType.BOOL, value=False),
    "no distinct value": _claim_with(StatisticsField.DISTINCT, ThriftType.I64, 0),
    "too many distinct values": _claim_with(StatisticsField.DISTINCT, ThriftType.I64, lambda chunk: chunk.values + 1),
}
"""What contradicts itself, by whomever it is written."""

_ORDERS: Final[dict[str, Callable[[ThriftStruct], object]]] = {
    "no order of columns": lambda footer: footer.copy_without(FileField.COLUMN_ORDERS),
    "an unknown order": lambda footer: footer.change(
        FileField.COLUMN_ORDERS, ThriftList(ThriftType.STRUCT, [_union(2)] * len(footer[FileField.COLUMN_ORDERS]))
    ),
}


def _union(field: int) -> ThriftStruct:
    made = ThriftStruct()
    made.set(field, ThriftType.STRUCT, ThriftStruct())
    return made


_INTEGERS: Final[list[tuple[Any, list[int]]]] = [
    (pa.int8(), [-128, -2, 0, 1, 5, 127]),
    (pa.int32(), [-(2**31), -2, 0, 1, 5, 2**31 - 1]),
    (pa.int64(), [-(2**63), -2, 0, 1, 5, 2**63 - 1]),
    (pa.uint8(), [0, 1, 5, 130, 255]),
    (pa.uint64(), [0, 1, 5, 2**63 + 3, 2**64 - 1]),
]
_TYPES: Final[list[tuple[IdKind, Any, list[Any]]]] = [
    ("string", pa.string(), WORDS),
    ("string", pa.large_string(), [*WORDS, "", "größe"]),
    ("string", pa.dictionary(pa.int32(), pa.string()), WORDS),
    ("binary", pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"\xff\xff"]),
    ("binary", pa.binary(16), [bytes([first]) * 16 for first in (0, 1, 127, 128, 255)]),
    *(("integer", type_, numbers) for type_, numbers in _INTEGERS),
]


def lying_parquet(rng: random.Random) -> LyingFile:
    """Return a file of at most two row groups, of which those lie that have the value which is denied."""
    kind, type_, pool = rng.choice(_TYPES)
    values = [None if rng.random() < 0.2 else rng.choice(pool) for _ in range(rng.randrange(1, 7))]
    is_nested = rng.random() < 0.3
    column = pa.array(values, type_)
    if is_nested:
        column = pa.StructArray.from_arrays([column], ["id"])
    table = pa.table({"n": range(len(values)), "guest": column})
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=3, store_schema=rng.random() < 0.8, write_page_index=rng.random() < 0.3)
    denied = rng.choice([value for value in values if value is not None] or pool)
    bounds = sorted(_neighbours(rng, pool, denied))
    what = rng.choice([*FAULTS, *_ORDERS, "an unknown writer"])
    liars = [number for number in (0, 1) if denied in values[number * 3 : number * 3 + 3]]

    def lie(footer: ThriftStruct) -> Any:
        writer = rng.choice(UNKNOWN if what == "an unknown writer" else KNOWN)
        footer.change(FileField.CREATED_BY, writer)
        if not writer:
            footer = footer.copy_without(FileField.CREATED_BY)
        for number, group in enumerate(footer[FileField.ROW_GROUPS]):
            metadata = group[RowGroupField.COLUMNS][1][ColumnChunkField.METADATA]
            low, high = (_encode(bound, metadata, type_) for bound in bounds)
            metadata.set(ColumnMetadataField.STATISTICS, ThriftType.STRUCT, ThriftStruct())
            chunk = _Chunk(metadata[ColumnMetadataField.STATISTICS], metadata[ColumnMetadataField.VALUES], low, high)
            if number in liars:
                FAULTS.get(what, _Chunk.claim_bounds)(chunk)
            else:
                _tell_truth(chunk, values[number * 3 : number * 3 + 3], metadata, type_)
        made = _ORDERS[what](footer) if what in _ORDERS else None
        return made if isinstance(made, ThriftStruct) else footer

    body = edited(out.getvalue(), lie)
    return LyingFile(what, kind, type_, "guest.id" if is_nested else "guest", body, values, denied)


def _neighbours(rng: random.Random, pool: list[Any], denied: Any) -> list[Any]:
    """Return two values of the pool below, or above, the one that is denied."""
    sides = [[value for value in pool if value < denied], [value for value in pool if value > denied]]
    return rng.sample(rng.choice([side for side in sides if len(side) > 1]), 2)


def _encode(value: Any, metadata: ThriftStruct, type_: Any) -> bytes:
    """Return a bound as Parquet stores it."""
    if isinstance(value, int):
        size = 4 if metadata[ColumnMetadataField.TYPE] == 1 else 8
        return value.to_bytes(size, "little", signed=pa.types.is_signed_integer(type_))
    return value.encode() if isinstance(value, str) else value


def _tell_truth(chunk: _Chunk, values: list[Any], metadata: ThriftStruct, type_: Any) -> None:
    there = [value for value in values if value is not None]
    low, high = (_encode(bound, metadata, type_) for bound in (min(there), max(there))) if there else (None, None)
    chunk.claim(low=low, high=high, nulls=len(values) - len(there))
