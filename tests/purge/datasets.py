"""Data sets in every format and compression, and plain readers of them: pyarrow, DuckDB, and Python's own.

A row is `{"n": int, "user": {"guestid": str | None} | None, "tags": [str | None] | None, "seen": {str: int} | None}`;
of CSV it is flat: n, guestid, text.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

Row = dict[str, Any]

GUESTS = [f"guest-{number}" for number in range(40)] + ["", "größe", "a,b", 'say "x"']
SCHEMA: Any = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("user", pa.struct([pa.field("guestid", pa.string()), pa.field("age", pa.int16())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("seen", pa.map_(pa.string(), pa.int32())),
    ]
)
AVRO: Any = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "n", "type": "long"},
        {
            "name": "user",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "user",
                    "fields": [{"name": "guestid", "type": ["null", "string"]}, {"name": "age", "type": "int"}],
                },
            ],
        },
        {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
        {"name": "seen", "type": ["null", {"type": "map", "values": "int"}]},
    ],
}
TEXT_CODECS = {
    "none": (bytes, bytes),
    "gzip": (gzip.compress, gzip.decompress),
    "bzip2": (bz2.compress, bz2.decompress),
    "xz": (lzma.compress, lzma.decompress),
    "zstd": (
        lambda data: pa.compress(data, codec="zstd", asbytes=True),
        lambda data: pa.input_stream(pa.BufferReader(data), compression="zstd").read(),
    ),
}


def _never(_row: Row, _ids: set[Any]) -> bool:
    return False


@dataclass(frozen=True)
class Case:
    """A data set's format, how its files are compressed, and where the identifier is."""

    format: str
    codec: str
    identifier: str
    map_part: str = "value"
    has_id: Callable[[Row, set[Any]], bool] = field(default=_never, compare=False)

    @property
    def name(self) -> str:
        return f"{self.format}.{self.codec}.{self.identifier}.{self.map_part}".replace("_", "-")

    @property
    def is_integer(self) -> bool:
        return self.identifier == "n"


def _of_user(row: Row, ids: set[Any]) -> bool:
    return (row["user"] or {}).get("guestid") in ids


def _of_tags(row: Row, ids: set[Any]) -> bool:
    return any(tag in ids for tag in row["tags"] or [])


def _of_seen(row: Row, ids: set[Any]) -> bool:
    return any(key in ids for key in row["seen"] or {})


def _of_number(row: Row, ids: set[Any]) -> bool:
    return row["n"] in ids


IDENTIFIERS = [
    ("user.guestid", "value", _of_user),
    ("tags", "value", _of_tags),
    ("seen", "key", _of_seen),
    ("n", "value", _of_number),
]
CASES = [
    *(
        Case("parquet", codec, *identifier)
        for codec, identifier in zip(("snappy", "zstd", "none", "gzip"), IDENTIFIERS, strict=True)
    ),
    *(
        Case("orc", codec, *identifier)
        for codec, identifier in zip(("zlib", "uncompressed", "snappy", "zstd"), IDENTIFIERS, strict=True)
    ),
    *(
        Case("avro", codec, *identifier)
        for codec, identifier in zip(("deflate", "null", "xz", "bzip2"), IDENTIFIERS, strict=True)
    ),
    *(
        Case("json", codec, *identifier)
        for codec, identifier in zip(("none", "gzip", "bzip2", "zstd"), IDENTIFIERS, strict=True)
    ),
    Case("csv", "none", "guestid", "value", lambda row, ids: row["guestid"] in ids),
    Case("csv", "xz", "n", "value", _of_number),
    Case("csv", "gzip", "guestid", "value", lambda row, ids: row["guestid"] in ids),
]


def make_rows(rng: random.Random, case: Case, count: int) -> list[Row]:
    def guest() -> str | None:
        return None if rng.random() < 0.1 else rng.choice(GUESTS)

    if case.format == "csv":
        texts = ["", "a", 'q"q', "x,y", "two\nlines"]
        return [{"n": rng.randrange(200), "guestid": guest() or None, "text": rng.choice(texts)} for _ in range(count)]
    return [
        {
            "n": rng.randrange(200),
            "user": None if rng.random() < 0.1 else {"guestid": guest(), "age": rng.randrange(99)},
            "tags": None if rng.random() < 0.1 else [guest() for _ in range(rng.randrange(4))],
            "seen": None if rng.random() < 0.1 else {rng.choice(GUESTS): 1 for _ in range(rng.randrange(3))},
        }
        for _ in range(count)
    ]


def write(case: Case, rows: list[Row]) -> bytes:
    out = io.BytesIO()
    match case.format:
        case "parquet":
            table = pa.Table.from_pylist([{**row, "seen": _pairs(row)} for row in rows], SCHEMA)
            pq.write_table(table, out, compression=case.codec, row_group_size=max(1, len(rows) // 3))
        case "orc":
            table = pa.Table.from_pylist([{**row, "seen": _pairs(row)} for row in rows], SCHEMA)
            with orc.ORCWriter(out, compression=case.codec) as writer:
                writer.write(table)
        case "avro":
            fastavro.writer(out, AVRO, rows, codec=case.codec, sync_interval=500, sync_marker=b"sixteen bytes it")
        case "json":
            text = "".join(json.dumps(row, ensure_ascii=bool(row["n"] % 2)) + "\n" for row in rows)
            return TEXT_CODECS[case.codec][0](text.encode())
        case _:
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, ["n", "guestid", "text"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return TEXT_CODECS[case.codec][0](text.getvalue().encode())
    return out.getvalue()


def read(case: Case, body: bytes) -> list[Row]:
    match case.format:
        case "parquet":
            rows = pq.read_table(io.BytesIO(body)).to_pylist(maps_as_pydicts="strict")
            assert duckdb.from_arrow(pq.read_table(io.BytesIO(body))).count("*").fetchall() == [(len(rows),)]
            return rows
        case "orc":
            return orc.ORCFile(io.BytesIO(body)).read().to_pylist(maps_as_pydicts="strict")
        case "avro":
            found: Any = list(fastavro.reader(io.BytesIO(body)))
            return found
        case "json":
            return [json.loads(line) for line in TEXT_CODECS[case.codec][1](body).splitlines()]
        case _:
            text = TEXT_CODECS[case.codec][1](body).decode()
            return [
                {**row, "n": int(row["n"]), "guestid": row["guestid"] or None}
                for row in csv.DictReader(io.StringIO(text, newline=""))
            ]


def _pairs(row: Row) -> list[tuple[str, int]] | None:
    return None if row["seen"] is None else list(row["seen"].items())


def document_of(cases: list[Case], mode: str) -> str:
    """Return the purge document that describes these cases."""
    datasets = [
        {
            "name": case.name,
            "prefix": f"{case.name}/",
            "format": case.format,
            "identifier": case.identifier,
            "map_part": case.map_part,
            "mode": mode,
        }
        for case in cases
    ]
    return json.dumps({"whitelist": ["*"], "datasets": datasets})
