"""Take text apart for `verify`: compressed text into blocks, and blocks into records of CSV or lines of JSON.

It shares no code with the readers of a run, and reads what they read: RFC 4180, and one JSON object a line. What they
refuse it refuses, too, so that a file of which a run says nothing is not called clean.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, BinaryIO, Final

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.untyped_pandas import pa

READ_BYTES: Final = 64 * 1024
BLOCK_BYTES: Final = 2 * 1024 * 1024
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
BOM: Final = b"\xef\xbb\xbf"
COMMA: Final = b","


class VerifyReadError(Exception):  # it is no error of the program
    """Something could not be read, or not be understood as a run understands it; the message says why, and names no
    value.
    """


def blocks_of(source: BinaryIO) -> Iterator[bytes]:
    """Yield the text of a file in blocks, decompressed if its first bytes say so. Raises VerifyReadError, and where it
    has more text or lines than a file of this size may have, PurgeError.
    """
    allowance = FileAllowance(source)
    for block in _unpacked_blocks(source):
        allowance.add_unpacked(len(block))
        allowance.add_rows(block.count(b"\n"))
        yield block


def _unpacked_blocks(source: BinaryIO) -> Iterator[bytes]:
    first = source.read(6)
    source.seek(0)
    try:
        if first.startswith(b"\x1f\x8b"):
            yield from _read(gzip.GzipFile(fileobj=source))
        elif first.startswith(b"BZh"):
            yield from _decompress(source, bz2.BZ2Decompressor)
        elif first.startswith(b"\xfd7zXZ\x00"):
            yield from _decompress(source, lzma.LZMADecompressor)
        elif first.startswith(b"\x28\xb5\x2f\xfd"):
            yield from _read(pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd"))
        else:
            yield from _read(source)
    except MemoryError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException):
        raise VerifyReadError("it cannot be decompressed to its end") from None


def _read(opened: Any) -> Iterator[bytes]:
    while block := opened.read(BLOCK_BYTES):
        yield block


def _decompress(source: BinaryIO, make: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the text of one compressed part after another; zeros between them are padding."""
    data = b""
    while data := data.lstrip(b"\0") or source.read(READ_BYTES):
        data = data.lstrip(b"\0")
        if not data:
            continue
        part = make()
        while not part.eof:
            is_at_end = False
            if part.needs_input and not data:
                data = source.read(READ_BYTES)
                is_at_end = not data
            block = part.decompress(data, BLOCK_BYTES)
            data = b""
            if block:
                yield block
            elif is_at_end and not part.eof:
                raise EOFError
        data = part.unused_data


# ---- CSV


def records_of(blocks: Iterator[bytes], delimiter: bytes = COMMA) -> Iterator[list[bytes]]:
    """Yield the fields of each record as they are written, quotes included. A blank line is a record only if it is the
    first, and so the header. Raises VerifyReadError.
    """
    is_first = True
    for fields, is_blank in _split_records(blocks, delimiter):
        if is_first or not is_blank:
            yield fields
        is_first = False


def _split_records(blocks: Iterator[bytes], delimiter: bytes) -> Iterator[tuple[list[bytes], bool]]:
    """Yield the fields of each line or record, and whether it is a blank line."""
    line = 1
    rest = b""
    is_begun = False
    for block in blocks:
        if b"\0" in block:
            raise VerifyReadError("it is no text")
        text = rest + block
        if not is_begun:
            is_begun = len(text) >= len(BOM) or b"\n" in text
            if text.startswith(BOM):
                text = text[len(BOM) :] or b"\n"  # alone it is a blank line
        end = text.rfind(b"\n") + 1
        if b'"' not in text and end:
            for fields in _split_unquoted(text[:end], line, delimiter):
                yield fields, fields == [b""]
            line += text.count(b"\n")
            rest = text[end:]
            continue
        done = 0
        for fields, behind in _split_quoted(text, line, delimiter, is_all=False):
            yield fields, fields == [b""]
            line += text.count(b"\n", done, behind)
            done = behind
        rest = text[done:]
        if len(rest) > RECORD_BYTES_MAX:
            raise VerifyReadError(f"a record from line {line} on is longer than 64 MiB")
    for fields, _ in _split_quoted(rest, line, delimiter, is_all=True):
        yield fields, False


def _split_unquoted(text: bytes, line: int, delimiter: bytes) -> Iterator[list[bytes]]:
    for number, record in enumerate(text[:-1].split(b"\n"), line):
        bare = record[:-1] if record.endswith(b"\r") else record
        if b"\r" in bare:
            raise VerifyReadError(f"line {number} has a carriage return that ends no line")
        yield bare.split(delimiter)


def _split_quoted(text: bytes, line: int, delimiter: bytes, *, is_all: bool) -> Iterator[tuple[list[bytes], int]]:
    """Yield the records of a text, and where each ends. `is_all`: whether no more text follows: then the last record
    may have no end of line. Raises VerifyReadError.
    """
    field = _field(delimiter)
    begin = at = 0
    fields: list[bytes] = []
    while at < len(text) or fields:
        found = field.match(text, at)
        if found is None or not (is_all or found[2].endswith((delimiter, b"\n"))):
            if not is_all:
                return  # its end is still to come
            number = line + text.count(b"\n", 0, begin)
            raise VerifyReadError(f"line {number} has a quote or a carriage return where RFC 4180 has none")
        fields.append(found[1])
        at = found.end()
        if found[2] == delimiter:
            continue
        if text.find(b'\\"', begin, at) >= 0:
            number = line + text.count(b"\n", 0, begin)
            raise VerifyReadError(f"line {number} has a quote after a backslash, which readers take in two ways")
        yield fields, at
        fields, begin = [], at


@lru_cache(maxsize=8)
def _field(delimiter: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a field and of what ends it."""
    end = re.escape(delimiter)
    return re.compile(rb'("[^"]*(?:""[^"]*)*"|[^"' + end + rb"\r\n]*)(" + end + rb"|\r?\n|\r?\Z)")


def unquote(field: bytes) -> bytes:
    """Return a field without its quotes."""
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field


# ---- JSON lines


class JsonFields(list[tuple[str, Any]]):
    """A JSON object as its fields, also those that are there twice."""


class NumberText(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(object_pairs_hook=JsonFields, parse_int=NumberText, parse_float=NumberText)


def lines_of(blocks: Iterator[bytes]) -> Iterator[tuple[int, JsonFields]]:
    """Yield the objects of JSON lines, with their numbers from 1. Raises VerifyReadError."""
    number = 0
    rest = b""
    for block in blocks:
        *ended, rest = (rest + block).split(b"\n")
        for text in ended:
            number += 1
            if (found := _parse_object(text, number)) is not None:
                yield number, found
        if len(rest) > RECORD_BYTES_MAX:
            raise VerifyReadError(f"line {number + 1} is longer than 64 MiB")
    if (found := _parse_object(rest, number + 1)) is not None:
        yield number + 1, found


def _parse_object(text: bytes, number: int) -> JsonFields | None:
    if number == 1:
        text = text.removeprefix(BOM)
    if not text.strip():
        return None
    try:
        value = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        raise VerifyReadError(f"line {number} is no JSON in UTF-8") from None
    if not isinstance(value, JsonFields):
        raise VerifyReadError(f"line {number} is no JSON object")
    return value
