"""Small files of which a reader would make gigabytes, or work without end, if it believed them or held them whole."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from refstore.purge_document.document import FileFormat
from refstore_purge.formats.parquet_footer import ThriftList, ThriftStruct, ThriftType, to_bytes, write_footer
from tests.purge import avro_files

pyorc: Any = import_module("pyorc")

MIB: Final = 1 << 20
STRING: Final = 6
"""The physical type BYTE_ARRAY."""
ZSTD: Final = 6


class HostileFile(NamedTuple):
    format: FileFormat
    body: Callable[[], bytes]
    reason: str
    """What a run says of it, or a part of that."""


# ---- text


def xz_with_large_dictionary() -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    return lzma.compress(b'{"guest":"ann"}\n', filters=filters)


MEMORY: Final = "takes more memory than 192 MiB and 32 times its size"
TOO_MUCH: Final = "which is more than"
ONE: Final = b'{"guest":"ann","n":['
LINES: Final = (ONE + b"1]" + b" " * 1000 + b"}\n") * 65_536
BLANK_LINES: Final = b"\n" * 32 * MIB
TEXT: Final[dict[str, HostileFile]] = {
    "a line of 31 million numbers": HostileFile(
        "json", lambda: gzip.compress(ONE + b"1," * 31_000_000 + b"1]}\n"), MEMORY
    ),
    "a line of lists": HostileFile("json", lambda: gzip.compress(ONE + b"[]," * 5_000_000 + b"1]}\n"), MEMORY),
    "lists in lists": HostileFile("json", lambda: ONE + b"[" * 9_000 + b"]" * 9_000 + b"]}\n", "is nested too deep"),
    "equal lines by zstd": HostileFile("json", lambda: zstd(LINES), TOO_MUCH),
    "blank lines by bzip2": HostileFile("json", lambda: bz2.compress(BLANK_LINES), TOO_MUCH),
    "equal lines by xz": HostileFile("json", lambda: lzma.compress(LINES), TOO_MUCH),
    "xz that has to remember a gigabyte": HostileFile("json", xz_with_large_dictionary, MEMORY),
    "a record of 8 million fields": HostileFile(
        "csv", lambda: gzip.compress(b"guest,n\nann," + b"ab," * 8_000_000 + b"\n"), MEMORY
    ),
    "8 million columns": HostileFile("csv", lambda: gzip.compress(b"guest," + b"ab," * 8_000_000 + b"n\n"), MEMORY),
    "a field of half a gigabyte": HostileFile(
        "csv", lambda: gzip.compress(b"guest,n\nann," + b"a" * 512 * MIB + b"\n", 1), "longer than 64 MiB"
    ),
}


# ---- Avro

NOTHING: Final = {"type": "record", "name": "r", "fields": [{"name": "guest", "type": "null"}]}
GUEST: Final = {"type": "record", "name": "r", "fields": [{"name": "guest", "type": "string"}]}
GUESTS: Final = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "guest", "type": {"type": "array", "items": "string"}}],
}


def avro_file(schema: Any, codec: str, *blocks: tuple[int, bytes]) -> bytes:
    packed_blocks = (avro_files.block(records, avro_files.PACK[codec](data)) for records, data in blocks)
    return avro_files.header(schema, codec=codec.encode()) + b"".join(packed_blocks)


def array(items: int, data: bytes) -> bytes:
    return avro_files.number(items) + data + b"\0"


AVRO: Final[dict[str, HostileFile]] = {
    "blocks of empty records": HostileFile(
        "avro", lambda: avro_file(NOTHING, "null", *[(1 << 24, b"")] * 100), TOO_MUCH
    ),
    "a record of 6 million ids": HostileFile(
        "avro", lambda: avro_file(GUESTS, "deflate", (1, array(6_000_000, b"\x06ann" * 6_000_000))), MEMORY
    ),
    "a block of 250 MiB": HostileFile(
        "avro", lambda: avro_file(GUEST, "zstandard", (50 * MIB, b"\x08anna" * 50 * MIB)), MEMORY
    ),
    "block after block": HostileFile(
        "avro", lambda: avro_file(GUEST, "zstandard", *[(1, b"\x80\x80\x80\x01" + b"a" * MIB)] * 99), TOO_MUCH
    ),
}


# ---- Parquet


def _fields(*fields: tuple[int, int, Any]) -> ThriftStruct:
    made = ThriftStruct()
    for field in fields:
        made.set(*field)
    return made


def _structs(*items: ThriftStruct) -> ThriftList:
    return ThriftList(ThriftType.STRUCT, items)


def _page(kind: int, own: int, values: int, encoding: int, data: bytes, uncompressed_bytes: int | None) -> bytes:
    i32, size = ThriftType.I32, len(data) if uncompressed_bytes is None else uncompressed_bytes
    more = ((3, i32, 3), (4, i32, 3)) if own == 5 else ()
    header = _fields((1, i32, kind), (2, i32, size), (3, i32, len(body := zstd(data))),
                     (own, ThriftType.STRUCT, _fields((1, i32, values), (2, i32, encoding), *more)))  # fmt: skip
    return to_bytes(header) + body


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def dictionary_page(*texts: bytes, uncompressed_bytes: int | None = None) -> bytes:
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return _page(2, 7, len(texts), 0, data, uncompressed_bytes)


def data_page(values: int, data: bytes, *, encoding: int = 8, uncompressed_bytes: int | None = None) -> bytes:
    return _page(0, 5, values, encoding, data, uncompressed_bytes)


def run(length: int, width: int, value: int) -> bytes:
    """Return as many equal numbers as one run."""
    head, left = b"", length << 1
    while left > 0x7F:
        head += bytes([left & 0x7F | 0x80])
        left >>= 7
    return head + bytes([left]) + value.to_bytes((width + 7) // 8, "little")


def levels(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def parquet_file(rows: int, values: int, *pages: bytes, is_list: bool = False) -> bytes:
    """Return a file whose column `guest` has these pages."""
    i32, i64, text, struct = ThriftType.I32, ThriftType.I64, ThriftType.STRING, ThriftType.STRUCT
    path = [b"guest", b"list", b"element"] if is_list else [b"guest"]
    leaf = _fields((1, i32, STRING), (3, i32, 0), (4, text, path[-1]), (6, i32, 0))
    groups = [_fields((3, i32, 0), (4, text, b"guest"), (5, i32, 1), (6, i32, 3)),
              _fields((3, i32, 2), (4, text, b"list"), (5, i32, 1))] if is_list else []  # fmt: skip
    metadata = _fields(
        (1, i32, STRING), (2, ThriftType.LIST, ThriftList(i32, [0, 8])), (3, ThriftType.LIST, ThriftList(text, path)),
        (4, i32, ZSTD), (5, i64, values), (6, i64, 100), (7, i64, sum(map(len, pages))), (9, i64, 4 + len(pages[0])),
        *([(11, i64, 4)] if len(pages) > 1 else []),
    )  # fmt: skip
    if len(pages) == 1:
        metadata.change(9, 4)
    chunk = _fields((2, i64, 4), (3, struct, metadata))
    group = _fields((1, ThriftType.LIST, _structs(chunk)), (2, i64, 100), (3, i64, rows))
    schema = _structs(_fields((4, text, b"schema"), (5, i32, 1)), *groups, leaf)
    out = io.BytesIO()
    out.write(b"PAR1" + b"".join(pages))
    write_footer(out, _fields((1, i32, 1), (2, ThriftType.LIST, schema), (3, i64, rows),
                              (4, ThriftType.LIST, _structs(group))))  # fmt: skip
    return out.getvalue()


def footer_of_empty_structs() -> bytes:
    footer = to_bytes(_fields((99, ThriftType.LIST, _structs(*[ThriftStruct()] * 1_000_000))))
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def list_of_100_million() -> bytes:
    items = 100 * MIB
    repetitions, definitions = levels(run(1, 1, 0) + run(items - 1, 1, 1)), levels(run(items, 1, 1))
    data = repetitions + definitions + b"\1" + run(items, 1, 0)
    return parquet_file(1, items, dictionary_page(b"ann"), data_page(items, data), is_list=True)


PARQUET: Final[dict[str, HostileFile]] = {
    "2^40 rows and no data": HostileFile(
        "parquet", lambda: parquet_file(1 << 40, 1 << 40, data_page(0, b"")), TOO_MUCH
    ),
    "a run of a billion rows": HostileFile(
        "parquet",
        lambda: parquet_file(10**9, 10**9, dictionary_page(b"ann"), data_page(10**9, b"\1" + run(10**9, 1, 0))),
        TOO_MUCH,
    ),
    "a large text a million times": HostileFile(
        "parquet",
        lambda: parquet_file(
            MIB, MIB, dictionary_page(b"a" * MIB, b"b"), data_page(MIB, b"\1" + run(MIB, 1, 0))
        ),
        MEMORY,
    ),
    "a page of a gigabyte": HostileFile(
        "parquet",
        lambda: parquet_file(1, 1, data_page(1, (512 * MIB).to_bytes(4, "little") + b"a" * 512 * MIB, encoding=0)),
        MEMORY,
    ),
    "a dictionary that says to be of a gigabyte": HostileFile(
        "parquet",
        lambda: parquet_file(
            1, 1, dictionary_page(b"ann", uncompressed_bytes=(1 << 31) - 1), data_page(1, b"\1" + run(1, 1, 0))
        ),
        MEMORY,
    ),
    "a list of 100 million texts": HostileFile("parquet", list_of_100_million, TOO_MUCH),
    "a footer of empty structs": HostileFile("parquet", footer_of_empty_structs, ""),
}  # fmt: skip


# ---- ORC


def orc_file(type_: str, rows: Iterator[Any], **options: Any) -> bytes:
    out = io.BytesIO()
    options = {"compression": pyorc.CompressionKind.ZSTD, "stripe_size": 1 << 30, "batch_size": 1024, **options}
    with pyorc.Writer(out, f"struct<guest:{type_},n:int>", **options) as writer:
        for value in rows:
            writer.write((value, 1))
    return out.getvalue()


ORC: Final[dict[str, HostileFile]] = {
    "a large text thousands of times": HostileFile(
        "orc",
        lambda: orc_file("string", repeat("a" * 64 * 1024, 8 * 1024), dict_key_size_threshold=1.0),
        MEMORY,
    ),
}

FILES: Final[dict[str, HostileFile]] = {**TEXT, **AVRO, **PARQUET, **ORC}
