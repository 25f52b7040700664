"""Read text that may be compressed, and write it compressed as it was. The first bytes tell how, not the name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Literal

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.formats.base import TEXT_BATCH_BYTES
from refstore_purge.formats.unclosed_file import UnclosedFile
from refstore_purge.purge_error import OtherMeansError
from refstore_purge.untyped_pandas import pa

Codec = Literal["none", "gzip", "bzip2", "xz", "zstd"]

READ_BYTES: Final = 64 * 1024
"""What is behind a part is copied for each part: there may be one for every 14 bytes."""
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer line or record is refused: it would have to be in memory whole."""

_MAGIC: Final[tuple[tuple[bytes, Codec], ...]] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


def detect_codec(source: BinaryIO) -> Codec:
    """Return how a file is compressed. The file stands at its beginning afterwards."""
    source.seek(0)
    first = source.read(6)
    source.seek(0)
    for magic, codec in _MAGIC:
        if first.startswith(magic):
            return codec
    return "none"


def read_blocks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed text in blocks. Raises PurgeError if it is damaged or cut off, or if there is more of it
    than a file of this size may have.
    """
    allowance = FileAllowance(source)
    for block in _decompress_blocks(source):
        allowance.add_unpacked(len(block))
        yield block


def _decompress_blocks(source: BinaryIO) -> Iterator[bytes]:
    try:
        match detect_codec(source):
            case "none":
                yield from _read_blocks(source)
            case "gzip":
                yield from _read_blocks(gzip.GzipFile(fileobj=source))
            case "bzip2":
                yield from _decompress_parts(source, bz2.BZ2Decompressor)
            case "xz":
                yield from _decompress_parts(source, lzma.LZMADecompressor)
            case "zstd":
                yield from _read_blocks(pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd"))
    except MemoryError:  # Arrow's is also one of its exceptions
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise OtherMeansError("the file cannot be decompressed to its end; it is damaged") from error


@contextmanager
def open_writer(target: BinaryIO, codec: Codec) -> Generator[Any, None, None]:
    """Yield a file whose text goes to `target`, compressed. What it writes depends on the text alone."""
    match codec:
        case "none":
            yield target
            return
        case "gzip":
            opened: Any = gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0)
        case "bzip2":
            opened = bz2.BZ2File(target, "wb")
        case "xz":
            opened = lzma.LZMAFile(target, "wb")  # noqa: SIM115  # closed below
        case "zstd":
            opened = pa.CompressedOutputStream(pa.PythonFile(UnclosedFile(target), mode="w"), "zstd")
    with opened:
        yield opened


def _read_blocks(opened: Any) -> Iterator[bytes]:
    while block := opened.read(TEXT_BATCH_BYTES):
        yield block


def _decompress_parts(source: BinaryIO, make: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress all parts of a file, as programs write them that compress on all cores. Raises what `make` raises for
    a part that is damaged, where BZ2File and LZMAFile would leave it out; EOFError for one that is cut off.
    """
    data = source.read(READ_BYTES)
    while data := data.lstrip(b"\0"):  # padding
        part = make()
        while not part.eof:
            if part.needs_input and not data:
                data = source.read(READ_BYTES)
                if not data:
                    raise EOFError
            if block := part.decompress(data, max_length=TEXT_BATCH_BYTES):
                yield block
            data = b""
        data = part.unused_data or source.read(READ_BYTES)
