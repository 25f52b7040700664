"""Read and write the footer of a Parquet file, and the other structs in it, by Apache Thrift's compact protocol.

A struct is a dict of its fields by number, which `parquet.thrift` of apache/parquet-format gives; what this program has
no use for is kept as it is. So a footer that is written again loses nothing that another version of Parquet knows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum
from importlib import import_module
from typing import Any, BinaryIO, Final, TypeAlias

from refstore_purge.purge_error import OtherMeansError, PurgeError

_protocol: Any = import_module("thrift.protocol.TCompactProtocol")
_transport: Any = import_module("thrift.transport.TTransport")
_thrift: Any = import_module("thrift.Thrift")

MAGIC: Final = b"PAR1"
TAIL_BYTES: Final = 8
END_BYTES: Final = 64 * 1024
"""So much of a file's end is read at once: most footers are shorter."""
HEADER_BYTES: Final = (1024, 64 * 1024, 16 * 1024 * 1024)
"""How much is read for the struct before a page or a Bloom filter; more if that was too little."""
PARTS_MAX: Final = 5_000_000
"""How many fields and items a struct may have: they take 1 GiB of memory. A column chunk has some 45."""
_DAMAGED: Final = "the file cannot be read: its footer is damaged"


class FileField(IntEnum):
    """Fields of `FileMetaData`."""

    VERSION = 1
    SCHEMA = 2
    ROWS = 3
    ROW_GROUPS = 4
    KEY_VALUES = 5
    CREATED_BY = 6
    COLUMN_ORDERS = 7
    ENCRYPTION = 8


class KeyValueField(IntEnum):
    """Fields of `KeyValue`."""

    KEY = 1
    VALUE = 2


class SchemaElementField(IntEnum):
    """Fields of `SchemaElement`."""

    TYPE = 1
    LENGTH = 2
    REPETITION = 3
    NAME = 4
    CHILDREN = 5
    CONVERTED = 6
    SCALE = 7
    PRECISION = 8
    LOGICAL = 10


class RowGroupField(IntEnum):
    """Fields of `RowGroup`."""

    COLUMNS = 1
    BYTES = 2
    ROWS = 3
    SORTING = 4
    OFFSET = 5
    COMPRESSED_BYTES = 6


class ColumnChunkField(IntEnum):
    """Fields of `ColumnChunk`."""

    FILE_PATH = 1
    OFFSET = 2
    METADATA = 3
    OFFSET_INDEX = 4
    OFFSET_INDEX_BYTES = 5
    COLUMN_INDEX = 6
    COLUMN_INDEX_BYTES = 7
    CRYPTO = 8


class ColumnMetadataField(IntEnum):
    """Fields of `ColumnMetaData`."""

    TYPE = 1
    ENCODINGS = 2
    PATH = 3
    CODEC = 4
    VALUES = 5
    UNCOMPRESSED_BYTES = 6
    COMPRESSED_BYTES = 7
    KEY_VALUES = 8
    DATA_PAGE = 9
    INDEX_PAGE = 10
    DICTIONARY_PAGE = 11
    STATISTICS = 12
    BLOOM_FILTER = 14
    BLOOM_FILTER_BYTES = 15
    SIZES = 16


class StatisticsField(IntEnum):
    """Fields of `Statistics`."""

    MAX = 1
    """As old writers wrote it, whatever the order of the type; so is `MIN`."""
    MIN = 2
    NULLS = 3
    DISTINCT = 4
    MAX_VALUE = 5
    MIN_VALUE = 6
    IS_MAX_EXACT = 7
    IS_MIN_EXACT = 8


BOUNDS: Final = (StatisticsField.MIN, StatisticsField.MAX, StatisticsField.MIN_VALUE, StatisticsField.MAX_VALUE)
"""The fields of statistics that have a value."""


# ---- which kinds the fields have that this program reads: a struct by the numbers of its fields, a list by its items

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


class ThriftStruct:
    """A struct of Thrift: its fields by number, each with its kind."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[int, tuple[int, Any]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThriftStruct) and self._fields == other._fields

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # fields change

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def __getitem__(self, number: int) -> Any:
        """Return a field that has to be there. Raises PurgeError."""
        if number not in self._fields:
            raise OtherMeansError("the file's footer lacks a part; it is damaged")
        return self._fields[number][1]

    def get(self, number: int, default: Any = None) -> Any:
        return self._fields[number][1] if number in self._fields else default

    def set(self, number: int, kind: int, value: Any) -> None:
        self._fields[number] = kind, value

    def change(self, number: int, value: Any) -> None:
        """Give a field that has to be there another value. Raises PurgeError."""
        self[number]
        self._fields[number] = self._fields[number][0], value

    def copy_without(self, *numbers: int) -> ThriftStruct:
        """Return a copy without some fields; what is in the others is shared."""
        found = ThriftStruct()
        found._fields = {number: field for number, field in self._fields.items() if number not in numbers}
        return found

    def fields(self) -> list[tuple[int, int, Any]]:
        """Return (number, kind, value) of the fields, by number."""
        return [(number, *self._fields[number]) for number in sorted(self._fields)]


class ThriftList(list[Any]):
    """A list of Thrift, with the kind of its items."""

    def __init__(self, kind: int, items: Sequence[Any] = ()) -> None:
        super().__init__(items)
        self.kind = kind


def read_footer(source: BinaryIO) -> tuple[ThriftStruct, int]:
    """Return the footer and where it begins. Raises PurgeError."""
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - END_BYTES))
    end = source.read(END_BYTES)
    length = int.from_bytes(end[-TAIL_BYTES:-4], "little")
    if end[-4:] == b"PARE":
        raise OtherMeansError("the file cannot be read: it is encrypted")
    if end[-4:] != MAGIC or length > size - TAIL_BYTES - len(MAGIC):
        raise OtherMeansError("the file cannot be read: it is damaged, or no Parquet")
    start = size - TAIL_BYTES - length
    if length + TAIL_BYTES > len(end):
        source.seek(start)
        end = source.read(length + TAIL_BYTES)
    footer, _ = read_struct(end[len(end) - TAIL_BYTES - length : -TAIL_BYTES], FILE)
    if FileField.ENCRYPTION in footer or any(
        ColumnChunkField.CRYPTO in chunk
        for group in footer[FileField.ROW_GROUPS]
        for chunk in group[RowGroupField.COLUMNS]
    ):
        raise OtherMeansError("the file cannot be read: columns of it are encrypted")
    return footer, start


def write_footer(target: BinaryIO, footer: ThriftStruct) -> None:
    """Write the end of a file: the footer, its length, and the magic number."""
    data = to_bytes(footer)
    target.write(data + len(data).to_bytes(4, "little") + MAGIC)


def read_struct_at(source: BinaryIO, at: int, shape: StructShape) -> tuple[ThriftStruct, int]:
    """Return the struct that begins at an offset of a file, such as a page's header, and its size. Raises
    PurgeError.
    """
    for length in HEADER_BYTES:
        source.seek(at)
        data = source.read(length)
        try:
            return read_struct(data, shape)
        except PurgeError:
            if len(data) < length or length == HEADER_BYTES[-1]:
                raise
    raise AssertionError


def read_struct(data: bytes, shape: StructShape) -> tuple[ThriftStruct, int]:
    """Return the struct with which the data begin, and its size. Raises PurgeError, also where fields are of other
    kinds than the shape says.
    """
    transport = _transport.TMemoryBuffer(data)
    protocol = _protocol.TCompactProtocol(transport, string_length_limit=len(data), container_length_limit=len(data))
    try:
        found = _StructReader(protocol).read_struct(shape)
    except (
        _thrift.TException,
        _transport.TTransportException,
        EOFError,
        KeyError,
        AssertionError,
    ) as error:
        raise OtherMeansError(_DAMAGED) from error
    except RecursionError as error:
        raise OtherMeansError("the file cannot be read: its footer is nested too deep") from error
    return found, transport.cstringio_buf.tell()


def to_bytes(struct: ThriftStruct) -> bytes:
    """Return a struct as it stands in a file. Raises PurgeError for numbers that do not fit."""
    transport = _transport.TMemoryBuffer()
    try:
        _write_struct(_protocol.TCompactProtocol(transport), struct)
    except _thrift.TException as error:
        raise OtherMeansError(_DAMAGED) from error
    return transport.getvalue()


_Compact: Any = _protocol.TCompactProtocol
_READERS: Final[dict[int, Any]] = {
    ThriftType.BOOL: _Compact.readBool,
    ThriftType.BYTE: _Compact.readByte,
    ThriftType.DOUBLE: _Compact.readDouble,
    ThriftType.I16: _Compact.readI16,
    ThriftType.I32: _Compact.readI32,
    ThriftType.I64: _Compact.readI64,
    ThriftType.STRING: _Compact.readBinary,
}
_WRITERS: Final[dict[int, Any]] = {
    ThriftType.BOOL: _Compact.writeBool,
    ThriftType.BYTE: _Compact.writeByte,
    ThriftType.DOUBLE: _Compact.writeDouble,
    ThriftType.I16: _Compact.writeI16,
    ThriftType.I32: _Compact.writeI32,
    ThriftType.I64: _Compact.writeI64,
    ThriftType.STRING: _Compact.writeBinary,
}


class _StructReader:
    """Reads a struct, and counts what it has."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._parts_left = PARTS_MAX

    def read_struct(self, shape: StructShape) -> ThriftStruct:
        found = ThriftStruct()
        protocol = self._protocol
        protocol.readStructBegin()
        while True:
            _, kind, number = protocol.readFieldBegin()
            if kind == 0:
                protocol.readStructEnd()
                return found
            if number in found:
                raise OtherMeansError(_DAMAGED)
            found.set(number, kind, self._read(kind, shape.get(number)))
            protocol.readFieldEnd()

    def _read(self, kind: int, part: FieldShape | None) -> Any:
        self._parts_left -= 1
        if self._parts_left < 0:
            raise PurgeError(
                f"the file's footer has more than {PARTS_MAX:,} parts; write the file with fewer row groups, or see to "
                "it by other means"
            )
        if part is not None and kind != _kind_of(part):
            raise OtherMeansError(_DAMAGED)
        protocol = self._protocol
        if kind == ThriftType.STRUCT:
            return self.read_struct(part if isinstance(part, dict) else {})
        if kind == ThriftType.LIST:
            of, size = protocol.readListBegin()
            each = part[0] if isinstance(part, list) else None
            items = ThriftList(of, [self._read(of, each) for _ in range(size)])
            protocol.readListEnd()
            return items
        return _READERS[kind](protocol)


def _kind_of(part: FieldShape) -> int:
    if isinstance(part, dict):
        return ThriftType.STRUCT
    return ThriftType.LIST if isinstance(part, list) else part


def _write_struct(protocol: Any, struct: ThriftStruct) -> None:
    protocol.writeStructBegin("")
    for number, kind, value in struct.fields():
        protocol.writeFieldBegin("", kind, number)
        _write(protocol, kind, value)
        protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()


def _write(protocol: Any, kind: int, value: Any) -> None:
    if kind == ThriftType.STRUCT:
        _write_struct(protocol, value)
    elif kind == ThriftType.LIST:
        protocol.writeListBegin(value.kind, len(value))
        for item in value:
            _write(protocol, value.kind, item)
        protocol.writeListEnd()
    else:
        _WRITERS[kind](protocol, value)
