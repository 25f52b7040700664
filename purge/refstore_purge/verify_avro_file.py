"""Take Avro files apart for `verify`: their header, and their blocks, decompressed.

It shares no code with the reader of a run, and refuses what that refuses: metadata that is there twice, and blocks that
are damaged or have more than 256 MiB.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.untyped_pandas import pa
from refstore_purge.verify_text import VerifyReadError

OF_AVRO: Final = ("avro.schema", "avro.codec")
"""Entries of the header without which nobody could read the file."""
HEADER_BYTES: Final = 64 * 1024 * 1024
BLOCK_BYTES: Final = 256 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
DAMAGED: Final = "it cannot be read: it is damaged, or no avro"


class AvroFile(NamedTuple):
    source: BinaryIO
    metadata: dict[bytes, bytes]
    codec: str
    sync: bytes
    first: int
    """Where the first block begins."""

    @property
    def entries(self) -> list[tuple[bytes, bytes]]:
        return [pair for pair in self.metadata.items() if pair[0].decode(errors="replace") not in OF_AVRO]

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield of each block how many records it has, and these. Raises VerifyReadError, and PurgeError for
        more than a file of this size may hold.
        """
        allowance = FileAllowance(self.source)
        self.source.seek(self.first)
        while begin := self.source.read(1):
            records = _number(self.source, begin)
            body = _read_sized(self.source, BLOCK_BYTES)
            if records < 0 or _bytes(self.source, len(self.sync)) != self.sync:
                raise VerifyReadError(DAMAGED)
            data = _decompress(self.codec, body)
            allowance.add_rows(records)
            allowance.add_unpacked(len(data))
            yield records, data


def open_avro(source: BinaryIO) -> AvroFile:
    """Read the header of a file. Raises VerifyReadError."""
    source.seek(0)
    if source.read(4) != b"Obj\x01":
        raise VerifyReadError(DAMAGED)
    metadata: dict[bytes, bytes] = {}
    size = 0
    while (count := _number(source)) != 0:
        if count < 0:
            _number(source)
        for _ in range(abs(count)):
            name, value = _read_sized(source, HEADER_BYTES), _read_sized(source, HEADER_BYTES)
            if name in metadata:
                raise VerifyReadError("its header has an entry twice")
            size += len(name) + len(value)
            if size > HEADER_BYTES:
                raise VerifyReadError("its header is larger than 64 MiB")
            metadata[name] = value
    sync = _bytes(source, 16)
    if b"avro.schema" not in metadata:
        raise VerifyReadError("it has no schema")
    codec = metadata.get(b"avro.codec", b"null").decode(errors="replace")
    return AvroFile(source, metadata, codec, sync, source.tell())


def _number(source: BinaryIO, begin: bytes = b"") -> int:
    """Read a zigzag number of up to 64 bits, of which the first byte may have been read."""
    digits = bytearray(begin or _bytes(source, 1))
    while digits[-1] & 0x80:
        if len(digits) == 10:
            raise VerifyReadError(DAMAGED)
        digits += _bytes(source, 1)
    value = 0
    for digit in reversed(digits):
        value = value * 128 + (digit & 0x7F)
    if value >= 2**64:
        raise VerifyReadError(DAMAGED)
    return -(value + 1) // 2 if value % 2 else value // 2


def _bytes(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise VerifyReadError(DAMAGED)
    return data


def _read_sized(source: BinaryIO, size_max: int) -> bytes:
    size = _number(source)
    if not 0 <= size <= size_max:
        raise VerifyReadError(DAMAGED if size < 0 else "it has a block, or an entry, that is too large")
    return _bytes(source, size)


# ---- codecs


def _decompress(codec: str, body: bytes) -> bytes:
    unpack = _CODECS.get(codec)
    if unpack is None:
        raise VerifyReadError(f"its codec {codec[:20]!r} is not known")
    try:
        data = unpack(body)
    except MemoryError:  # Arrow's is also one of its exceptions
        raise
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, pa.ArrowException):
        raise VerifyReadError("a block cannot be decompressed to its end") from None
    if len(data) > BLOCK_BYTES:
        raise VerifyReadError("it has a block that is too large")
    return data


def _decompress_to_end(part: Any, body: bytes) -> bytes:
    data: bytes = part.decompress(body, BLOCK_BYTES + 1)
    if not part.eof and len(data) <= BLOCK_BYTES:
        raise EOFError
    return data


def _decompress_snappy(body: bytes) -> bytes:
    size = place = 0
    while place < min(5, len(body)):  # what is packed says its size first
        size |= (body[place] & 0x7F) << (7 * place)
        place += 1
        if body[place - 1] < 0x80:
            break
    if size > BLOCK_BYTES:
        raise VerifyReadError("it has a block that is too large")
    data: bytes = pa.Codec("snappy").decompress(body[:-4], decompressed_size=size, asbytes=True)
    if zlib.crc32(data) != int.from_bytes(body[-4:], "big"):
        raise EOFError
    return data


def _decompress_zstandard(body: bytes) -> bytes:
    opened, pieces, size = pa.CompressedInputStream(pa.BufferReader(body), "zstd"), list[bytes](), 0
    while size <= BLOCK_BYTES and (piece := opened.read(READ_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


_CODECS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "deflate": lambda body: _decompress_to_end(zlib.decompressobj(-15), body),
    "bzip2": lambda body: _decompress_to_end(bz2.BZ2Decompressor(), body),
    "xz": lambda body: _decompress_to_end(lzma.LZMADecompressor(memlimit=BLOCK_BYTES), body),
    "snappy": _decompress_snappy,
    "zstandard": _decompress_zstandard,
}
