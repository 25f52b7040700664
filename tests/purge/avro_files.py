"""Avro files in memory: written by fastavro, or byte by byte, and read by fastavro."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from refstore.purge_document.document import Dataset
from refstore_gc.engines import worker_processes
from refstore_purge.formats import avro
from refstore_purge.formats.base import FormatTask
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_ids import IdSet
from tests.purge.looking import dataset_ids, rows_left

SYNC = bytes(range(200, 216))


def logical(type_: str, called: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": called, **more}


def record_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "event", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def written(
    schema: Any,
    rows: Sequence[Any],
    *,
    codec: str = "null",
    block_bytes: int = 16_000,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a file of fastavro's."""
    out = io.BytesIO()
    writer: Any = fastavro.writer
    writer(out, schema, rows, codec=codec, sync_interval=block_bytes, sync_marker=SYNC, metadata=metadata)
    return out.getvalue()


def of_rows(rows: Sequence[dict[str, Any]], **options: Any) -> bytes:
    """Return a file of flat or nested rows, each field of which may be null."""
    return written(_type_of("event", rows), rows, **options)


def _type_of(name: str, values: Sequence[Any]) -> Any:
    """Return the type of values that are null or alike."""
    match next((value for value in values if value is not None), None):
        case dict():
            fields = dict.fromkeys(field for row in values for field in row or {})
            columns = {field: [row[field] for row in values if row] for field in fields}
            pairs = [{"name": field, "type": ["null", _type_of(f"{name}_{field}", columns[field])]} for field in fields]
            return {"type": "record", "name": name, "fields": pairs}
        case list():
            items = [item for value in values for item in value or []]
            return {"type": "array", "items": ["null", _type_of(f"{name}_item", items)]}
        case bytes():
            return "bytes"
        case int():
            return "long"
        case _:
            return "string"


def read(body: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(body)))


def texts(body: bytes) -> list[str]:
    """Return the rows as texts, in which NaN is NaN."""
    return [repr(row) for row in read(body)]


def blocks(body: bytes) -> Iterator[bytes]:
    """Yield the bytes of each block."""
    for block in fastavro.block_reader(io.BytesIO(body)):
        each: Any = block
        yield body[each.offset : each.offset + each.size]


def header_of(body: bytes) -> bytes:
    first = next(iter(fastavro.block_reader(io.BytesIO(body))), None)
    offset: Any = getattr(first, "offset", len(body))
    return body[:offset]


# ---- byte by byte


def number(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    found = b""
    while left > 0x7F:
        found += bytes([left & 0x7F | 0x80])
        left >>= 7
    return found + bytes([left])


def sized(text: bytes) -> bytes:
    return number(len(text)) + text


def header(schema: Any, *, codec: bytes | None = None, **more: bytes) -> bytes:
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    pairs = {b"avro.schema": text, **({b"avro.codec": codec} if codec is not None else {})}
    return header_of_pairs([*pairs.items(), *((name.encode(), value) for name, value in more.items())])


def header_of_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"Obj\x01" + number(len(pairs)) + b"".join(sized(a) + sized(b) for a, b in pairs) + b"\0" + SYNC


def block(records: int, data: bytes, sync: bytes = SYNC) -> bytes:
    return number(records) + sized(data) + sync


PACK: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data)[2:-1],  # as Python's writers do, with some bytes of a checksum
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    "snappy": lambda data: pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
}


# ---- looking


class Outcome(NamedTuple):
    run: int | None
    """How many rows match; None: it was refused."""
    verify: int | None
    reasons: tuple[str, str]


def outcomes(body: bytes, what: FormatTask, ids: IdSet, set_null: Sequence[str] = ()) -> Outcome:
    """Return what a run and `verify` find, and why they refuse."""
    by_run = by_verify = None
    reasons = ["", ""]
    try:
        by_run = avro.find(io.BytesIO(body), what, ids).matched_rows
    except PurgeError as error:
        reasons[0] = str(error)
    dataset = Dataset("d", "d/", ".".join(what.identifier), "rewrite", "avro", what.map_part, tuple(set_null))
    wanted = dataset_ids(*ids.values.to_pylist(), kind=ids.kind)
    try:
        by_verify = worker_processes.call(partial(rows_left, body, dataset, wanted, is_of_id=what.matches_every_row))
    except (PurgeError, MemoryError, worker_processes.CrashedError) as error:
        reasons[1] = str(error)
    return Outcome(by_run, by_verify, (reasons[0], reasons[1]))


def metadata_of(body: bytes) -> Mapping[str, Any]:
    reader: Any = fastavro.reader(io.BytesIO(body))
    return reader.metadata
