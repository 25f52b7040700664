"""Which kinds the fields of Parquet's structs have, of those that this program reads.

A struct is given by the numbers of its fields, as in `parquet.thrift` of apache/parquet-format; a list by its items.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

StructShape: TypeAlias = dict[int, "FieldShape"]
FieldShape: TypeAlias = "int | StructShape | list[FieldShape]"


class ThriftType(IntEnum):
    """Thrift's types that Parquet has."""

    BOOL = 2
    BYTE = 3
    DOUBLE = 4
    I16 = 6
    I32 = 8
    I64 = 10
    STRING = 11
    STRUCT = 12
    LIST = 15


BOOL, BYTE, I16, I32, I64, STRING = (
    ThriftType.BOOL,
    ThriftType.BYTE,
    ThriftType.I16,
    ThriftType.I32,
    ThriftType.I64,
    ThriftType.STRING,
)

_KEY_VALUE: Final[StructShape] = {1: STRING, 2: STRING}
_INTEGER: Final[StructShape] = {10: {1: BYTE, 2: BOOL}}
"""What is read of the union `LogicalType`."""
_ELEMENT: Final[StructShape] = {1: I32, 2: I32, 3: I32, 4: STRING, 5: I32, 6: I32, 7: I32, 8: I32, 10: _INTEGER}
_STATISTICS: Final[StructShape] = {1: STRING, 2: STRING, 3: I64, 4: I64, 5: STRING, 6: STRING, 7: BOOL, 8: BOOL}
_COLUMN: Final[StructShape] = {
    1: I32,
    2: [I32],
    3: [STRING],
    **dict.fromkeys((5, 6, 7, 9, 10, 11, 14), I64),
    4: I32,
    8: [_KEY_VALUE],
    12: _STATISTICS,
    15: I32,
}
_CHUNK: Final[StructShape] = {1: STRING, 2: I64, 3: _COLUMN, 4: I64, 5: I32, 6: I64, 7: I32}
_GROUP: Final[StructShape] = {1: [_CHUNK], 2: I64, 3: I64, 4: [{1: I32}], 5: I64, 6: I64, 7: I16}
FILE: Final[StructShape] = {1: I32, 2: [_ELEMENT], 3: I64, 4: [_GROUP], 5: [_KEY_VALUE], 6: STRING, 7: [{}]}
PAGE_HEADER: Final[StructShape] = {
    **dict.fromkeys((1, 2, 3, 4), I32),
    5: {1: I32, 2: I32},
    7: {1: I32, 2: I32},
    8: {1: I32, 4: I32},
}
BLOOM_FILTER: Final[StructShape] = {1: I32}
OFFSET_INDEX: Final[StructShape] = {1: [{1: I64, 2: I32, 3: I64}]}
