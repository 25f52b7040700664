"""Take rows out of a text by hand: what a purge of CSV or JSON lines has to write, to the byte."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from collections.abc import Collection, Iterator

import pyarrow as pa

MAGIC = {b"\x1f\x8b": gzip.decompress, b"BZ": bz2.decompress, b"\xfd7": lzma.decompress}


def kept(old_body: bytes, new_body: bytes, gone: Collection[int], format_: str) -> Iterator[str]:
    if old_body[:3] != new_body[:3] and old_body[:2] in {*MAGIC, b"\x28\xb5"}:
        yield "compressed otherwise"
        return
    expected = b"".join(_left(_text(old_body), gone, has_header=format_ == "csv"))
    if _text(new_body) != expected:
        yield "not the same lines, byte for byte"


def _text(body: bytes) -> bytes:
    if body[:4] == b"\x28\xb5\x2f\xfd":
        return bytes(pa.input_stream(pa.BufferReader(body), compression="zstd").read())
    return MAGIC.get(body[:2], bytes)(body)


def _left(text: bytes, gone: Collection[int], *, has_header: bool) -> Iterator[bytes]:
    """Yield the records that stay. A blank line is no row."""
    row = -1 if has_header else 0
    for record in _records(text) if has_header else text.splitlines(keepends=True):
        if not record.strip():
            yield record
            continue
        if row not in gone:
            yield record
        row += 1


def _records(text: bytes) -> Iterator[bytes]:
    lines = text.decode().split("\n")
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    reader = csv.reader(iter(lines))
    start = 0
    for _ in reader:
        yield "".join(lines[start : reader.line_num]).encode()
        start = reader.line_num
