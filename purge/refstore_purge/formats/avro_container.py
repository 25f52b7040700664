"""Object container files of Avro: a header with metadata, then blocks of records, each compressed by itself.

What is written was read, but for blocks whose records changed, and a header whose entries did (Avro specification,
"Object Container Files").
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple

from refstore_purge.formats.base import OtherMeansError
from refstore_purge.untyped_pandas import pa

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
SCHEMA: Final = b"avro.schema"
CODEC: Final = b"avro.codec"
CODECS: Final = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")
VARINT_BYTES_MAX: Final = 10
HEADER_BYTES_MAX: Final = 64 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
"""A larger block is refused, compressed or not: it would have to be in memory whole. Polars writes one block a file."""
READ_BYTES: Final = 1024 * 1024
CHECKSUM_BYTES: Final = 4
DAMAGED: Final = "the file cannot be read: it is damaged, or no Avro"


class AvroHeader(NamedTuple):
    raw: bytes
    """All of it, as it was read."""
    metadata: Mapping[bytes, bytes]
    """In its order."""
    codec: str
    sync: bytes
    """What each block ends with."""

    @property
    def schema(self) -> bytes:
        return self.metadata[SCHEMA]

    @property
    def entries(self) -> dict[bytes, bytes]:
        """What a writer added to what Avro needs."""
        return {key: value for key, value in self.metadata.items() if key not in (SCHEMA, CODEC)}


class AvroBlock(NamedTuple):
    records: int
    start: bytes
    """Both numbers that it begins with, as they were read."""
    body: bytes
    """Its records, compressed."""


def read_header(source: BinaryIO) -> AvroHeader:
    """Read the header of a file, from its beginning. Raises PurgeError."""
    source.seek(0)
    reader = _HeaderReader(source)
    if reader.read_bytes(len(MAGIC)) != MAGIC:
        raise OtherMeansError(DAMAGED)
    metadata: dict[bytes, bytes] = {}
    while count := reader.read_long():
        if count < 0:  # then its size follows
            reader.read_long()
        for _ in range(abs(count)):
            key = reader.read_bytes(reader.read_long())
            if key in metadata:
                raise OtherMeansError("its header has an entry twice, and readers differ in which they take")
            metadata[key] = reader.read_bytes(reader.read_long())
            if len(reader.raw) > HEADER_BYTES_MAX:
                raise OtherMeansError("its header is larger than 64 MiB")
    sync = reader.read_bytes(SYNC_BYTES)
    if SCHEMA not in metadata:
        raise OtherMeansError("it has no Avro schema")
    codec = metadata.get(CODEC, b"null").decode(errors="replace")
    if codec not in CODECS:
        raise OtherMeansError(f"its codec {codec[:20]!r} is none of {', '.join(CODECS)}")
    return AvroHeader(bytes(reader.raw), metadata, codec, sync)


def make_header(header: AvroHeader, entries: Mapping[bytes, bytes]) -> bytes:
    """Return the bytes of a header that has only these entries besides what Avro needs, in their old order."""
    if entries == header.entries:
        return header.raw
    kept = {key: entries.get(key, value) for key, value in header.metadata.items()
            if key in (SCHEMA, CODEC) or key in entries}  # fmt: skip
    pairs = b"".join(_add_length(key) + _add_length(value) for key, value in kept.items())
    return MAGIC + encode_varint(len(kept)) + pairs + b"\0" + header.sync


def read_blocks(source: BinaryIO, header: AvroHeader) -> Iterator[AvroBlock]:
    """Yield the blocks behind the header. Raises PurgeError."""
    end = source.seek(0, os.SEEK_END)
    source.seek(len(header.raw))
    while source.tell() < end:
        reader = _HeaderReader(source)
        records, size = reader.read_long(), reader.read_long()
        start = bytes(reader.raw)
        if records < 0 or size < 0 or size > end - source.tell():
            raise OtherMeansError(DAMAGED)
        if size > BLOCK_BYTES_MAX:
            _refuse_large()
        body = source.read(size)
        if len(body) < size or source.read(SYNC_BYTES) != header.sync:
            raise OtherMeansError(DAMAGED)
        yield AvroBlock(records, start, body)


def make_block(records: int, data: bytes, header: AvroHeader) -> tuple[bytes, ...]:
    """Return the bytes of a block of these records."""
    body = compress(header.codec, data)
    return encode_varint(records) + encode_varint(len(body)), body, header.sync


def decompress(codec: str, body: bytes) -> bytes:
    """Return what a block contains. Raises PurgeError if it is damaged or too large."""
    try:
        match codec:
            case "null":
                return body
            case "snappy":
                return _decompress_snappy(body)
            case "zstandard":
                data = _decompress_zstd(body)
            case "deflate":
                part: Any = zlib.decompressobj(-zlib.MAX_WBITS)
                data = part.decompress(body, BLOCK_BYTES_MAX + 1)
                _check(part, data)  # Python's writers leave some bytes of a checksum behind it
            case _:
                part = bz2.BZ2Decompressor() if codec == "bzip2" else lzma.LZMADecompressor(memlimit=BLOCK_BYTES_MAX)
                data = part.decompress(body, BLOCK_BYTES_MAX + 1)
                _check(part, data)
                if part.unused_data:
                    raise OtherMeansError(DAMAGED)
    except MemoryError:  # Arrow's is also one of its exceptions
        raise
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise OtherMeansError(DAMAGED) from error
    if len(data) > BLOCK_BYTES_MAX:
        _refuse_large()
    return data


def compress(codec: str, data: bytes) -> bytes:
    """Return a block's content, compressed. It depends on the data alone."""
    match codec:
        case "null":
            return data
        case "deflate":
            part = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            return part.compress(data) + part.flush()
        case "bzip2":
            return bz2.compress(data)
        case "xz":
            return lzma.compress(data)
        case "zstandard":
            return pa.compress(data, codec="zstd", asbytes=True)
        case _:
            return pa.compress(data, codec="snappy", asbytes=True) + _checksum(data)


def encode_varint(number: int) -> bytes:
    """Return a number of 64 bits as Avro writes it."""
    left = number << 1 ^ number >> 63
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that stands in data, and where it ends. Raises IndexError, and PurgeError if it has more than
    64 bits.
    """
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * VARINT_BYTES_MAX:
            raise OtherMeansError(DAMAGED)
    if found >= 1 << 64:
        raise OtherMeansError(DAMAGED)
    return found >> 1 ^ -(found & 1), at


class _HeaderReader:
    """Reads a file, and keeps what it read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.raw = bytearray()

    def read_long(self) -> int:
        """Read a number. Raises PurgeError."""
        found = self.read_bytes(1)
        while found[-1] >= 0x80 and len(found) < VARINT_BYTES_MAX:
            found += self.read_bytes(1)
        if found[-1] >= 0x80:
            raise OtherMeansError(DAMAGED)
        return read_varint(found, 0)[0]

    def read_bytes(self, size: int) -> bytes:
        """Read so many bytes. Raises PurgeError."""
        if size < 0 or size > HEADER_BYTES_MAX:
            raise OtherMeansError(DAMAGED)
        data = self._source.read(size)
        if len(data) < size:
            raise OtherMeansError(DAMAGED)
        self.raw += data
        return data


def _check(part: Any, data: bytes) -> None:
    if not part.eof and len(data) <= BLOCK_BYTES_MAX:
        raise OtherMeansError(DAMAGED)


def _decompress_zstd(body: bytes) -> bytes:
    found = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as opened:
        # in pieces, because memory for all that is asked for is taken at once
        while len(found) <= BLOCK_BYTES_MAX and (piece := opened.read(READ_BYTES)):
            found += piece
    return bytes(found)


def _decompress_snappy(body: bytes) -> bytes:
    packed, checksum = body[:-CHECKSUM_BYTES], body[-CHECKSUM_BYTES:]
    size = shift = 0
    for byte in packed[:5]:  # the size that it says
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > BLOCK_BYTES_MAX:
        _refuse_large()
    data: bytes = pa.decompress(packed, decompressed_size=size, codec="snappy", asbytes=True)
    if _checksum(data) != checksum:
        raise OtherMeansError("a block does not have the checksum that stands behind it; it is damaged")
    return data


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "big")


def _add_length(text: bytes) -> bytes:
    return encode_varint(len(text)) + text


def _refuse_large() -> None:
    raise OtherMeansError("it has a block of more than 256 MiB")
