"""Random tables, and how Parquet files of them are written: nested types of all kinds, with nulls at every level."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
_CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
_ENCODINGS = {
    "INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "FLOAT": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "DOUBLE": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"],
    "BOOLEAN": ["PLAIN", "RLE"],
}


def _plain_types() -> list[Any]:
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    texts = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.binary(12)]
    times = [
        pa.date32(),
        pa.time32("ms"),
        pa.time64("ns"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns"),
        pa.duration("ms"),
    ]
    decimals = [pa.decimal128(5, 1), pa.decimal128(18, 0), pa.decimal128(38, 2), pa.decimal256(50, 2)]
    return [pa.bool_(), pa.float16(), pa.float32(), pa.float64(), *integers, *texts, *times, *decimals]


def random_type(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if not depth or kind < 0.4:
        return chance.choice(_plain_types())
    if kind < 0.65:
        names = [f"f{number}" for number in range(chance.randint(1, 3))]
        return pa.struct([_field(chance, name, depth - 1) for name in names])
    if kind < 0.8:
        return chance.choice([pa.list_, pa.large_list])(_field(chance, "element", depth - 1))
    if kind < 0.88:
        return pa.list_(_field(chance, "element", 0), chance.randint(1, 3))
    return pa.map_(chance.choice([pa.string(), pa.int32()]), _field(chance, "value", depth - 1))


def _field(chance: random.Random, name: str, depth: int) -> Any:
    return pa.field(name, random_type(chance, depth), nullable=chance.random() < 0.7)


def random_value(chance: random.Random, field: Any, text: str, nulls: float) -> Any:
    """Return a value whose texts have `text` in them."""
    type_, is_ = field.type, pa.types
    if field.nullable and chance.random() < nulls:
        return None
    if is_.is_boolean(type_):
        return chance.random() < 0.5
    if is_.is_integer(type_):
        low = -(1 << (type_.bit_width - 1)) if is_.is_signed_integer(type_) else 0
        return chance.choice([low, low + (1 << type_.bit_width) - 1, max(low, -1), 7])
    if is_.is_floating(type_):
        return chance.choice([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan")])
    if is_.is_fixed_size_binary(type_):
        return chance.randbytes(type_.byte_width)
    if is_.is_string(type_) or is_.is_large_string(type_):
        return text + "ä" * chance.choice([0, 1, 40, 35_000 if chance.random() < 0.02 else 2])
    if is_.is_binary(type_) or is_.is_large_binary(type_):
        return text.encode() + chance.randbytes(chance.choice([0, 1, 20]))
    if is_.is_date(type_):
        return date(2000, 1, 1) + timedelta(days=chance.randrange(-9000, 9000))
    if is_.is_time(type_) or is_.is_temporal(type_):
        number = chance.randrange(86_000) * (1000 if type_.bit_width == 64 else 1)
        return pa.scalar(number, pa.int64() if type_.bit_width == 64 else pa.int32()).cast(type_)
    if is_.is_decimal(type_):
        bound = 10 ** chance.randint(1, type_.precision)
        return Decimal(chance.randrange(1 - bound, bound)).scaleb(-type_.scale)
    if is_.is_struct(type_):
        return {child.name: random_value(chance, child, text, nulls) for child in type_}
    if is_.is_map(type_):
        keys = [
            f"{text}:{number}" if is_.is_string(type_.key_type) else number for number in range(chance.randrange(3))
        ]
        return [(key, random_value(chance, type_.item_field, text, nulls)) for key in keys]
    count = type_.list_size if is_.is_fixed_size_list(type_) else chance.choice([0, 0, 1, 2, 5])
    return [random_value(chance, type_.value_field, text, nulls) for _ in range(count)]


def random_options(chance: random.Random, leaves: list[tuple[str, str]]) -> dict[str, Any]:
    """Return how to write a file; `leaves`: path and physical type of each column."""
    options: dict[str, Any] = {
        "row_group_size": chance.choice([1, 3, 10, 1000]),
        "version": chance.choice(["1.0", "2.4", "2.6"]),
        "data_page_version": chance.choice(["1.0", "2.0"]),
        "compression": {path: chance.choice(_CODECS) for path, _ in leaves},
        "use_dictionary": [path for path, _ in leaves if chance.random() < 0.5],
        "dictionary_pagesize_limit": chance.choice([30, 1 << 20]),
        "write_statistics": [path for path, _ in leaves if chance.random() < 0.7],
        **{name: chance.random() < 0.5 for name in ("store_schema", "write_page_index", "use_compliant_nested_type")},
        "write_page_checksum": chance.random() < 0.3,
        "data_page_size": chance.choice([60, 1 << 20]),
    }
    if chance.random() < 0.4:
        options["use_dictionary"] = False
        options["column_encoding"] = {path: chance.choice(_ENCODINGS[physical]) for path, physical in leaves}
    if chance.random() < 0.4:
        chosen = [path for path, physical in leaves if physical != "BOOLEAN"]
        options["bloom_filter_options"] = {path: {"ndv": 10, "fpp": 0.05} for path in chosen}
    return options
