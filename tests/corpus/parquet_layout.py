"""Read how a Parquet file is laid out, to the byte: a reader of its own, which shares no code with the purge."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import cramjam
import pyarrow as pa

Struct = dict[int, Any]

# fields of ColumnMetaData in parquet.thrift
TYPE, ENCODINGS, PATH, CODEC, VALUES, SIZE, DATA_AT, DICTIONARY_AT, STATISTICS, BLOOM_AT = (
    1,
    2,
    3,
    4,
    5,
    7,
    9,
    11,
    12,
    14,
)
DICTIONARY_PAGE, DATA_PAGE_V2 = 2, 3
LZ4_OF_HADOOP: Final = 5
_CODECS: Final = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class Thrift:
    """Reads the compact protocol of Thrift."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = head & 15 == 1 if head & 15 <= 2 else self._value(head & 15)
        return found

    def _value(self, kind: int) -> Any:
        if kind == 8:
            length = self._varint()
            self.at += length
            return self.data[self.at - length : self.at]
        if kind == 12:
            return self.struct()
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15) for _ in range(count)]
        if kind == 7:
            self.at += 8
            return struct.unpack("<d", self.data[self.at - 8 : self.at])[0]
        return self._byte() if kind in (1, 2, 3) else self._integer()

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


class Page(NamedTuple):
    header: Struct
    body: bytes

    @property
    def kind(self) -> int:
        return self.header[1]

    @property
    def checksum(self) -> int | None:
        return self.header.get(4)

    @property
    def is_sound(self) -> bool:
        """Whether its checksum, if it has one, is right."""
        return self.checksum is None or self.checksum & 0xFFFFFFFF == zlib.crc32(self.body)


@dataclass(frozen=True)
class Chunk:
    """A column of a row group."""

    entry: Struct
    body: bytes

    @property
    def meta(self) -> Struct:
        return self.entry[3]

    @property
    def path(self) -> str:
        return b".".join(self.meta[PATH]).decode()

    def pages(self) -> Iterator[Page]:
        at = 0
        while at < len(self.body):
            reader = Thrift(self.body, at)
            header = reader.struct()
            at = reader.at + header[3]
            yield Page(header, self.body[reader.at : at])

    def content(self) -> Iterator[bytes]:
        """Yield what the pages have, decompressed."""
        for page in self.pages():
            levels = page.header[8].get(5, 0) + page.header[8].get(6, 0) if page.kind == DATA_PAGE_V2 else 0
            is_plain = page.kind == DATA_PAGE_V2 and not page.header[8].get(7, True)
            codec = self.meta[CODEC]
            if codec == 0 or is_plain or len(page.body) == levels:
                yield page.body
            else:
                yield page.body[:levels]
                yield _decompressed(codec, page.body[levels:], page.header[2] - levels)


def _decompressed(codec: int, body: bytes, size: int) -> bytes:
    if codec != LZ4_OF_HADOOP:
        return pa.decompress(body, decompressed_size=size, codec=_CODECS[codec], asbytes=True)
    frames = list(_frames(body))
    if sum(raw for raw, _ in frames) != size:  # some writers put a bare block there
        frames = [(size, body)]
    return b"".join(bytes(cramjam.lz4.decompress_block(block, output_len=raw)) for raw, block in frames)


def _frames(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of Hadoop: two lengths, big-endian, and a block."""
    at = 0
    while at + 8 <= len(body):
        raw, packed = struct.unpack_from(">II", body, at)
        yield raw, body[at + 8 : at + 8 + packed]
        at += 8 + packed


@dataclass(frozen=True)
class Layout:
    footer: Struct
    groups: list[list[Chunk]]
    data: bytes

    def entry(self, chunk: Chunk, place: int, length: int) -> bytes:
        """Return the index that a chunk's entry points to; empty: it has none."""
        at = chunk.entry.get(place)
        return b"" if at is None else self.data[at : at + chunk.entry[length]]


def layout(data: bytes) -> Layout:
    assert data[:4] == data[-4:] == b"PAR1"
    length = int.from_bytes(data[-8:-4], "little")
    footer = Thrift(data[-8 - length : -8]).struct()
    groups: list[list[Chunk]] = []
    for group in footer[4]:
        chunks: list[Chunk] = []
        for entry in group[1]:
            meta = entry[3]
            start = min(meta[DATA_AT], meta.get(DICTIONARY_AT) or meta[DATA_AT])
            chunks.append(Chunk(entry, data[start : start + meta[SIZE]]))
        groups.append(chunks)
    return Layout(footer, groups, data)
