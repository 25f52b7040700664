"""Object container files of Avro: a header with metadata, then blocks of records, each compressed by itself.

fastavro reads and writes their parts, by the schemas that the Avro specification gives ("Object Container Files"). It
is not asked for whole files: it shows one of two equal entries of a header, unpacks blocks without a bound, does not
compare checksums, and needs further packages for Snappy and Zstandard.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

from refstore_purge.purge_error import OtherMeansError, PurgeError
from refstore_purge.untyped_pandas import import_extra, pa

fastavro: Any = import_extra("fastavro", "the format avro")

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
SCHEMA: Final = b"avro.schema"
CODEC: Final = b"avro.codec"
CODECS: Final = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")
HEADER_BYTES: Final = (64 * 1024, 64 * 1024 * 1024)
"""How much is read for the header; more if that was too little."""
BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
"""A larger block is refused, compressed or not: it would have to be in memory whole. Polars writes one block a file."""
READ_BYTES: Final = 1024 * 1024
CHECKSUM_BYTES: Final = 4
DAMAGED: Final = "the file cannot be read: it is damaged, or no Avro"


_PARTS: Final[Mapping[str, Callable[[], Any]]] = {
    "deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=BLOCK_BYTES_MAX),
}
"""What decompresses a block that is one stream."""


def _record_of(name: str, **fields: Any) -> Any:
    types = [{"name": field, "type": type_} for field, type_ in fields.items()]
    return fastavro.parse_schema({"type": "record", "name": name, "fields": types})


_ENTRIES: Final = {"type": "array", "items": _record_of("entry", key="bytes", value="bytes")}
"""What the specification calls a map of bytes, which is stored so; but no entry replaces another one."""
_HEADER: Final = _record_of(
    "header",
    magic={"type": "fixed", "name": "magic", "size": len(MAGIC)},
    entries=_ENTRIES,
    sync={"type": "fixed", "name": "sync", "size": SYNC_BYTES},
)
_BLOCK_START: Final = _record_of("block", records="long", size="long")
_BLOCK_START_BYTES_MAX: Final = 20


class AvroHeader(NamedTuple):
    raw: bytes
    """All of it, as it was read."""
    metadata: Mapping[bytes, bytes]
    """In its order."""
    codec: str
    sync: bytes
    """What each block ends with."""

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


def read_plain(stream: BinaryIO, plain: Any) -> Any:
    """Return the value with which a stream goes on, by a schema that fastavro has parsed. Raises PurgeError."""
    try:
        return fastavro.schemaless_reader(stream, plain, return_named_type=True, return_named_type_override=True)
    except (EOFError, IndexError):
        raise OtherMeansError(DAMAGED) from None


def to_bytes(value: Any, plain: Any) -> bytes:
    """Return a value as it stands in a file."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain, value)
    return out.getvalue()


def read_header(source: BinaryIO) -> AvroHeader:
    """Read the header of a file, from its beginning. Raises PurgeError."""
    for size in HEADER_BYTES:
        source.seek(0)
        start = source.read(size)
        if not start.startswith(MAGIC):
            raise OtherMeansError(DAMAGED)
        stream = io.BytesIO(start)
        try:
            header = read_plain(stream, _HEADER)
            break
        except PurgeError:
            if len(start) < size:
                raise
    else:
        raise OtherMeansError("its header is larger than 64 MiB, or damaged")
    metadata = {entry["key"]: entry["value"] for entry in header["entries"]}
    if len(metadata) < len(header["entries"]):
        raise OtherMeansError("its header has an entry twice, and readers differ in which they take")
    if SCHEMA not in metadata:
        raise OtherMeansError("it has no Avro schema")
    codec = metadata.get(CODEC, b"null").decode(errors="replace")
    if codec not in CODECS:
        raise OtherMeansError(f"its codec {codec[:20]!r} is none of {', '.join(CODECS)}")
    return AvroHeader(start[: stream.tell()], metadata, codec, header["sync"])


def make_header(header: AvroHeader, entries: Mapping[bytes, bytes]) -> bytes:
    """Return the bytes of a header that has only these entries besides what Avro needs, in their old order."""
    if entries == header.entries:
        return header.raw
    kept = [{"key": key, "value": entries.get(key, value)} for key, value in header.metadata.items()
            if key in (SCHEMA, CODEC) or key in entries]  # fmt: skip
    return to_bytes({"magic": MAGIC, "entries": kept, "sync": header.sync}, _HEADER)


def read_blocks(source: BinaryIO, header: AvroHeader) -> Iterator[AvroBlock]:
    """Yield the blocks behind the header. Raises PurgeError."""
    end, at = source.seek(0, os.SEEK_END), len(header.raw)
    while at < end:
        source.seek(at)
        start = io.BytesIO(source.read(_BLOCK_START_BYTES_MAX))
        block = read_plain(start, _BLOCK_START)
        records, size = block["records"], block["size"]
        at += start.tell()
        if records < 0 or not 0 <= size <= end - at - SYNC_BYTES:
            raise OtherMeansError(DAMAGED)
        if size > BLOCK_BYTES_MAX:
            _refuse_large()
        source.seek(at)
        body = source.read(size)
        if len(body) < size or source.read(SYNC_BYTES) != header.sync:
            raise OtherMeansError(DAMAGED)
        yield AvroBlock(records, start.getvalue()[: start.tell()], body)
        at += size + SYNC_BYTES


def make_block(records: int, pieces: Sequence[bytes | memoryview], header: AvroHeader) -> tuple[bytes, ...]:
    """Return the bytes of a block of these records."""
    body = compress(header.codec, b"".join(pieces))
    return to_bytes({"records": records, "size": len(body)}, _BLOCK_START), body, header.sync


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
            case _:
                data = _decompress_part(codec, body)
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


def _decompress_part(codec: str, body: bytes) -> bytes:
    part = _PARTS[codec]()
    data: bytes = part.decompress(body, BLOCK_BYTES_MAX + 1)
    if len(data) <= BLOCK_BYTES_MAX and not part.eof:
        raise EOFError
    if part.unused_data and codec != "deflate":  # Python's writers leave some bytes of a checksum behind that
        raise OtherMeansError(DAMAGED)
    return data


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


def _refuse_large() -> None:
    raise OtherMeansError("it has a block of more than 256 MiB")
