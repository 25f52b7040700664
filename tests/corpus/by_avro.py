"""Avro files that fastavro and Polars write."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastavro
import polars as pl

from refstore_purge.formats.base import IdKind
from tests.corpus import by_pyarrow
from tests.corpus.case import GONE, ROWS, SPREAD_NULLS, WANTED, Case, case_of_guests, guests, spread
from tests.purge.avro_files import logical

_MOMENT: Final = datetime.datetime(1960, 2, 29, 1, 2, 3, 456_000, datetime.UTC)
_SYNC: Final = b"0123456789abcdef"


_TYPES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "boolean": ("boolean", [True, False]),
    "int": ("int", [0, 1, 2**31 - 1, -(2**31)]),
    "long": ("long", [0, 1, 2**63 - 1, -(2**63)]),
    "float": ("float", [0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "double": ("double", [0.0, -0.0, 1.5, float("nan"), float("-inf"), 5e-324]),
    "string": ("string", ["", "a", "größe", "日本", "x" * 100]),
    "bytes": ("bytes", [b"", b"\0", b"\xff" * 20]),
    "fixed": ({"type": "fixed", "name": "four", "size": 4}, [b"abcd", b"\0\xff\0\xff"]),
    "enum": ({"type": "enum", "name": "color", "symbols": ["red", "blue"]}, ["red", "blue"]),
    "date": (logical("int", "date"), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "time-millis": (logical("int", "time-millis"), [datetime.time(1, 2, 3)]),
    "time-micros": (logical("long", "time-micros"), [datetime.time(1, 2, 3, 4)]),
    "timestamp-millis": (logical("long", "timestamp-millis"), [_MOMENT]),
    "timestamp-micros": (logical("long", "timestamp-micros"), [_MOMENT]),
    "local-timestamp-micros": (logical("long", "local-timestamp-micros"), [_MOMENT.replace(tzinfo=None)]),
    "decimal": (logical("bytes", "decimal", precision=9, scale=2), [decimal.Decimal("-1234567.89")]),
    "decimal of a fixed size": (
        {"type": "fixed", "name": "money", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 2},
        [decimal.Decimal("1234567.89")],
    ),
    "uuid": (logical("string", "uuid"), [uuid.UUID(int=7)]),
    "array": ({"type": "array", "items": ["null", "long"]}, [[1, None], []]),
    "map": ({"type": "map", "values": "string"}, [{"b": "x", "a": ""}, {}]),
}
_CODECS: Final = ("null", "deflate", "bzip2", "snappy", "xz")
_MIXED: Final = [("guest", "string"), ("n", "long"), ("word", ["null", "string"])]


def cases() -> Iterator[Case]:
    for name, (type_, values) in _TYPES.items():
        rows = [{"guest": text, "v": v} for text, v in zip(guests(), spread(values), strict=True)]
        schema = [("guest", "string"), ("v", ["null", type_])]
        yield _case(schema, name, rows, set_null=("v",), null_already=SPREAD_NULLS)
    mixed = [{"guest": text, "n": row, "word": f"w{row % 5}"} for row, text in enumerate(guests())]
    for codec in _CODECS:
        yield _case(_MIXED, f"codec {codec}", mixed, codec=codec)
    yield _case(_MIXED, "metadata", mixed, metadata={"b": "2", "a": "1"})
    yield _case(_MIXED, "one block", mixed, sync_interval=10**6)
    yield _case(_MIXED, "no rows", [], rows=0)
    yield from _identifiers()
    for codec in ("uncompressed", "snappy", "deflate"):
        yield Case("Polars", "avro", f"codec {codec}", partial(_by_polars, codec), guests(), WANTED)


def _identifiers() -> Iterator[Case]:
    texts = guests()
    some: list[Any] = [None if row % 10 == 9 else text for row, text in enumerate(texts)]
    numbers: list[Any] = list(range(ROWS))
    yield _identified("identifier int", "int", numbers, numbers, (23, 84), "integer")
    yield _identified("identifier long", ["null", "long"], numbers, numbers, (23, 84), "integer")
    blobs: list[Any] = [text.encode() for text in texts]
    yield _identified("identifier bytes", "bytes", blobs, blobs, tuple(blobs[row] for row in GONE), "binary")
    yield _identified("identifier with nulls", ["null", "string"], some, some)
    person = {"type": "record", "name": "person", "fields": [{"name": "id", "type": ["string", "null"]}]}
    people = [{"id": each} for each in some]
    yield _identified("identifier in a record", person, people, some, identifier="guest.id")
    listed = {"type": "array", "items": person}
    yield _identified("identifier in an array of records", listed, [[each] for each in people], some,
                      identifier="guest.id")  # fmt: skip
    keyed = [{text: 1} for text in texts]
    yield _identified("identifier as a map's key", {"type": "map", "values": "int"}, keyed, texts, map_part="key")
    valued = [{"k": text} for text in texts]
    yield _identified("identifier as a map's value", {"type": "map", "values": "string"}, valued, texts)
    yield _identified("identifier double", "double", [1.5] * ROWS, texts)


def _identified(
    what: str, type_: Any, column: list[Any], keys: list[Any], wanted: tuple[Any, ...] = WANTED, kind: IdKind =
    "string", identifier: str = "guest", map_part: str = "value",
) -> Case:  # fmt: skip
    rows = [{"n": row, "guest": value} for row, value in enumerate(column)]
    write = partial(_write, [("n", "long"), ("guest", type_)], rows)
    is_text = kind != "integer"
    return Case("fastavro", "avro", what, write, keys, wanted, kind, identifier, map_part, is_text_id=is_text)


def _write(fields: list[tuple[str, Any]], rows: list[Any], path: Path, **options: Any) -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": name, "type": type_} for name, type_ in fields]}
    with path.open("wb") as out:
        fastavro.writer(out, schema, rows, **{"sync_interval": 500, "sync_marker": _SYNC, **options})


def _case(fields: list[tuple[str, Any]], what: str, rows_written: list[Any], **more: Any) -> Case:
    return case_of_guests("fastavro", "avro", partial(_write, fields), what, rows_written, **more)


def _by_polars(codec: Any, path: Path) -> None:
    """Without decimals and time zones, which Polars does not write, and lists, which nobody reads that it writes."""
    table = by_pyarrow.mixed().drop_columns(["price", "at", "tags"])
    pl.DataFrame(pl.from_arrow(table)).write_avro(path, compression=codec)
