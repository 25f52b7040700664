"""Take the footer of a Parquet file apart for `verify`, and the schema that Arrow's writers put into it.

pyarrow shows an entry of key-value metadata that stands twice only once. So both are read as their formats say: the
compact protocol of Thrift, and the flat buffers of Arrow's messages. What cannot be followed is not read.
"""

from __future__ import annotations

import base64
import binascii
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from refstore_purge.verify_text import VerifyReadError

MAGIC: Final = b"PAR1"
ENCRYPTED: Final = b"PARE"
TAIL_BYTES: Final = 8
END_BYTES: Final = 64 * 1024
"""So much of a file's end is read at once: most footers are shorter."""
Pairs = list[tuple[bytes, bytes]]

# numbers of fields in parquet.thrift
SCHEMA: Final = 2
ROW_GROUPS: Final = 4
KEY_VALUES: Final = 5
COLUMNS: Final = 1
ROWS: Final = 3
FILE_PATH: Final = 1
TYPE: Final = 1
COLUMN: Final = 3
ENCRYPTION: Final = 8
KEY_VALUES_OF_COLUMN: Final = 8
PATH_IN_SCHEMA: Final = 3
STATISTICS: Final = 12
BOUNDS: Final = {"lowest": (2, 6), "highest": (1, 5)}
"""Of statistics; that of old writers first."""

FieldMap = dict[int, Any]


def read_footer(source: BinaryIO) -> FieldMap:
    """Return the footer, its fields by number. Raises VerifyReadError."""
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - END_BYTES))
    end = source.read(END_BYTES)
    tail = end[-TAIL_BYTES:]
    if tail[4:] == ENCRYPTED:
        raise VerifyReadError("it is encrypted")
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > size - TAIL_BYTES - len(MAGIC):
        raise VerifyReadError("its footer is not there: it is damaged, or no parquet")
    if length + TAIL_BYTES > len(end):
        source.seek(size - TAIL_BYTES - length)
        end = source.read(length + TAIL_BYTES)
    try:
        footer = _ThriftReader(end[len(end) - TAIL_BYTES - length : -TAIL_BYTES]).struct()
        _check_types(footer)
    except (IndexError, struct.error, RecursionError, KeyError, TypeError, AttributeError, ValueError):
        raise VerifyReadError("its footer cannot be followed") from None
    return footer


def _check_types(footer: FieldMap) -> None:
    """Raise VerifyReadError where a column chunk has another type than its column: pyarrow aborts at it."""
    types = [element[TYPE] for element in footer[SCHEMA] if TYPE in element]
    for group in footer[ROW_GROUPS]:
        for chunk, type_ in zip(group[COLUMNS], types, strict=True):
            if COLUMN in chunk and chunk[COLUMN][TYPE] != type_:
                raise VerifyReadError("its footer contradicts itself: a column has two types")


def read_pairs(entries: Any) -> Pairs:
    """Return key-value metadata, also keys that are there twice. Raises VerifyReadError."""
    try:
        pairs: list[tuple[Any, Any]] = [(entry.get(1, b""), entry.get(2, b"")) for entry in entries or ()]
    except (TypeError, AttributeError):
        raise VerifyReadError("its footer cannot be followed") from None
    if not all(isinstance(text, bytes) for pair in pairs for text in pair):
        raise VerifyReadError("its footer cannot be followed")
    return pairs


class _ThriftReader:
    """Reads the compact protocol of Thrift. Raises IndexError where the data end, and VerifyReadError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> FieldMap:
        found: FieldMap = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            if number in found:
                raise VerifyReadError("its footer has a field twice")
            kind = head & 15
            found[number] = kind == 1 if kind <= 2 else self._value(kind)  # the kind is the value of a bool
        return found

    def _value(self, kind: int) -> Any:
        match kind:
            case 8:
                return self._bytes(self._varint())
            case 4 | 5 | 6:
                return self._integer()
            case 12:
                return self.struct()
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._varint()
                return [self._value(head & 15) for _ in range(count)]
            case 1 | 2 | 3:
                return self._byte()
            case 7:
                return struct.unpack("<d", self._bytes(8))[0]
            case _:
                raise VerifyReadError("its footer has a type that Parquet does not have")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise IndexError
        return self._data[start : self._at]

    def _varint(self) -> int:
        byte = self._byte()
        found, shift = byte & 0x7F, 7
        while byte & 0x80:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            shift += 7
        return found

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


# ---- the schema of Arrow


def pairs_of_arrow_schema(text: bytes) -> Pairs:
    """Return the metadata in an entry `ARROW:schema`: of the schema, and of fields however deep. Raises
    VerifyReadError.
    """
    try:
        message = base64.b64decode(text, validate=True)
        if message[:4] == b"\xff\xff\xff\xff":  # older writers begin with the length at once
            message = message[4:]
        schema = _FlatBufferTable(message[4:]).table(2)
        if schema is None:
            return []
        return [*schema.pairs(2), *_pairs_of_fields(schema, 1)]
    except (binascii.Error, struct.error, IndexError, RecursionError):
        raise VerifyReadError("its ARROW:schema cannot be followed") from None


def _pairs_of_fields(table: _FlatBufferTable, field: int) -> Iterator[tuple[bytes, bytes]]:
    for child in table.tables(field):
        yield from child.pairs(6)
        yield from _pairs_of_fields(child, 5)


class _FlatBufferTable:
    """A table in a flat buffer. Raises struct.error or IndexError where an offset leads out of it."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self._data = data
        self._at = self._read_unsigned(0) if at is None else at

    def table(self, field: int) -> _FlatBufferTable | None:
        at = self._place(field)
        return None if at is None else _FlatBufferTable(self._data, at + self._read_unsigned(at))

    def tables(self, field: int) -> Iterator[_FlatBufferTable]:
        at = self._place(field)
        if at is None:
            return
        vector = at + self._read_unsigned(at)
        for number in range(self._read_unsigned(vector)):
            item = vector + 4 + number * 4
            yield _FlatBufferTable(self._data, item + self._read_unsigned(item))

    def pairs(self, field: int) -> Pairs:
        return [(each._text(0), each._text(1)) for each in self.tables(field)]

    def _text(self, field: int) -> bytes:
        at = self._place(field)
        if at is None:
            return b""
        start = at + self._read_unsigned(at)
        end = start + 4 + self._read_unsigned(start)
        if end > len(self._data):
            raise IndexError
        return self._data[start + 4 : end]

    def _place(self, field: int) -> int | None:
        """Return where a field stands; None: it is not there."""
        (back,) = struct.unpack_from("<i", self._data, self._at)
        vtable = self._at - back
        if vtable < 0:
            raise IndexError
        (size,) = struct.unpack_from("<H", self._data, vtable)
        if 4 + field * 2 >= size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, vtable + 4 + field * 2)
        return self._at + offset if offset else None

    def _read_unsigned(self, at: int) -> int:
        return struct.unpack_from("<I", self._data, at)[0]
