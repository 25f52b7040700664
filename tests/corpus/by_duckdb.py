"""Files that DuckDB writes: its row groups have 2,048 rows at least."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import duckdb

from refstore_purge.formats.base import IdKind
from tests.corpus.case import Case

ROWS: Final = 5000
GROUP_ROWS: Final = 2048
GONE: Final = (2100, 3000, 3001)
"""All in the second row group."""
_GUEST: Final = "'guest-' || format('{:05d}', i) || '-' || (i * 7919 % 9973)"


def _guest(row: int) -> str:
    return f"guest-{row:05}-{row * 7919 % 9973}"


_INTEGERS: Final = {
    "TINYINT": (-128, 127), "SMALLINT": (-32_768, 32_767), "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1), "HUGEINT": (-(2**127) + 1, 2**127 - 1), "UTINYINT": (0, 255),
    "USMALLINT": (0, 65_535), "UINTEGER": (0, 2**32 - 1), "UBIGINT": (0, 2**64 - 1), "UHUGEINT": (0, 2**128 - 1),
}  # fmt: skip
_TIMES: Final = ("1970-01-01 00:00:00", "2020-02-03 04:05:06.789", "1899-12-31 23:59:59.999")
TYPES: Final[dict[str, tuple[str, ...]]] = {
    "BOOLEAN": ("true", "false"),
    **{name: (f"'{low}'", f"'{high}'", "'0'", "'1'", "'77'") for name, (low, high) in _INTEGERS.items()},
    "FLOAT": ("0.0", "'-0.0'", "1.5", "'nan'", "'inf'", "'-inf'"),
    "DOUBLE": ("0.0", "'-0.0'", "1.5", "'nan'", "'inf'", "'-inf'", "1e308"),
    "DECIMAL(4,1)": ("999.9", "-999.9", "0"),
    "DECIMAL(9,2)": ("9999999.99", "-1.5", "0"),
    "DECIMAL(18,3)": ("999999999999999.999", "-1.5", "0"),
    "DECIMAL(38,10)": ("'9999999999999999999999999999.9999999999'", "-1.5", "0"),
    "VARCHAR": ("''", "'a'", "'größe'", "'日本'", "repeat('x', 40)"),
    "BLOB": ("''", r"'\x00'", r"'\xFF\xFEabc'"),
    "DATE": ("'1970-01-01'", "'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "'20000-01-01'"),
    "TIME": ("'00:00:00'", "'23:59:59.999999'", "'12:00:00.5'"),
    "TIMETZ": ("'00:00:00+00'", "'23:59:59.999999+05'", "'12:00:00.5-01:30'"),
    "TIME_NS": ("'00:00:00'", "'23:59:59.999999999'"),
    **{name: (*map(repr, _TIMES), "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'")
       for name in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMPTZ")},
    "TIMESTAMP_NS": (*map(repr, _TIMES), "'2262-04-11 23:47:16.854775806'"),
    "TIMESTAMPTZ_NS": tuple(map(repr, _TIMES)),
    "INTERVAL": ("'1 month'", "'3 days'", "'2 hours 3 seconds'", "'14 months 5 days 4 milliseconds'"),
    "UUID": ("'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "BIT": ("'101'", "'0'"),
    "JSON": ("""'{"a": [1, null]}'""", "'null'", "'\"x\"'"),
    "BIGNUM": ("'123456789012345678901234567890123456789012345'", "'-5'"),
    "ENUM('low', 'high')": ("'low'", "'high'"),
    "INTEGER[]": ("[1, null, 3]", "[]", "[7]"),
    "INTEGER[3]": ("[1, null, 3]", "[7, 8, 9]"),
    "STRUCT(a INTEGER, b VARCHAR[])": ("{'a': 1, 'b': ['x', null]}", "{'a': null, 'b': null}"),
    "MAP(VARCHAR, INTEGER[])": ("MAP {'a': [1], 'b': null}", "MAP {}"),
    "UNION(n INTEGER, s VARCHAR)": ("union_value(n := 1)", "union_value(s := 'x')"),
}  # fmt: skip
"""Each type's values, as DuckDB reads them."""

_OPTIONS: Final = {
    **{f"codec {name}": f"CODEC '{name}'" for name in ("uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4")},
    "codec lz4_raw": "CODEC 'lz4_raw'",
    "compression level": "CODEC 'zstd', COMPRESSION_LEVEL 19",
    "format v1": "PARQUET_VERSION v1",
    "format v2": "PARQUET_VERSION v2",
    "format v2 without dictionaries": "PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 1",
    "no dictionaries": "DICTIONARY_SIZE_LIMIT 1",
    "no Bloom filters": "WRITE_BLOOM_FILTER false",
    "Bloom filters of few false positives": "BLOOM_FILTER_FALSE_POSITIVE_RATIO 0.001",
    "field ids": "FIELD_IDS {guest: 7, n: 3, word: {__duckdb_field_id: 4}}",
    "key-value metadata": "KV_METADATA {b: '2', a: '1'}",
    "one row group": "ROW_GROUP_SIZE 100000",
    "row groups of many bytes": "ROW_GROUP_SIZE_BYTES '100kb'",
}
_MIXED: Final = (
    f"{_GUEST} guest, i n, case when i % 5 = 2 then null else i / 7 end amount, (i / 100)::DECIMAL(9, 2) price, "
    "case when i % 8 = 1 then null else 'word-' || (i % 6) end word, i % 3 = 0 is_new, "
    "make_timestamp(i * 1000000000000 + 123456) moment, case when i % 6 = 4 then null else ['t' || (i % 4)] end tags"
)


def cases() -> Iterator[Case]:
    for name, values in TYPES.items():
        yield _case(name, f"{_GUEST} guest, {_columns(name, values)}", set_null=("v",))
    yield _case("VARIANT", f"{_GUEST} guest, {{'a': i, 'b': ['x', null]}}::VARIANT v")
    for name, options in _OPTIONS.items():
        yield _case(name, _MIXED, options, set_null=("word",) if name == "format v2" else ())
    yield from _identifiers()
    odd = ("a.b", "a b", 'a""b', "UPPER", "größe", "日本", "a,b", "list", "element")
    yield _case("odd names", f"{_GUEST} guest, " + ", ".join(f'i as "{name}"' for name in odd))
    yield _case("one column", f"{_GUEST} guest")
    yield _case("no rows", _MIXED, rows=0)


def _columns(type_: str, values: tuple[str, ...]) -> str:
    listed = " ".join(f"when {place} then {value}::{type_}" for place, value in enumerate(values))
    v = f"case when i % 7 = 3 then null else (case i % {len(values)} {listed} end) end"
    return (
        f"{v} v, case when i % 11 = 5 then null when i % 3 = 0 then [] else [{v}, null] end in_list, "
        f"case when i % 11 = 5 then null else {{'a': {v}, 'b': i}} end in_struct, "
        f"MAP {{'k' || (i % 5): {v}}} in_map, [{{'a': {v}, 'b': i}}, null] in_structs"
    )


def _identifiers() -> Iterator[Case]:
    numbers = {
        "SMALLINT": 1,
        "INTEGER": 400_000,
        "BIGINT": 2**50,
        "USMALLINT": 3,
        "UINTEGER": 800_000,
        "UBIGINT": 2**50 + 1,
    }
    for type_, step in numbers.items():
        yield _identified(
            f"identifier {type_}", f"(i * {step})::{type_}", [row * step for row in range(ROWS)], "integer"
        )
    uuids = [uuid.UUID(int=row * 2**100 + 7).bytes for row in range(ROWS)]
    as_text = "lpad(printf('%x', i), 7, '0') || repeat('0', 24) || '7'"
    yield _identified("identifier UUID", f"({as_text})::UUID", uuids, "binary")
    blobs = [b"guest-%05d-blob" % row for row in range(ROWS)]
    yield _identified("identifier BLOB", "('guest-' || format('{:05d}', i) || '-blob')::BLOB", blobs, "binary")
    texts: list[Any] = [_guest(row) for row in range(ROWS)]
    names = ", ".join(f"'{text}'" for text in texts)
    yield _identified("identifier ENUM", f"({_GUEST})::ENUM({names})", texts)
    some = [None if row % 10 == 9 else text for row, text in enumerate(texts)]
    yield _identified("identifier with nulls", f"case when i % 10 = 9 then null else {_GUEST} end", some)
    struct = f"case when i % 10 = 9 then null else {{'id': {_GUEST}, 'age': i}} end"
    yield _identified("identifier in a struct", struct, some, identifier="guest.id")
    lists: list[Any] = [[text] if row % 2 else [] for row, text in enumerate(texts)]
    yield _identified("identifier in a list", f"case when i % 2 = 1 then [{_GUEST}] else [] end", lists)
    structs = f"case when i % 2 = 1 then [{{'n': i, 'id': {_GUEST}}}, null] else [] end"
    yield _identified("identifier in a list of structs", structs, lists, identifier="guest.id")
    yield _identified("identifier as a map's key", f"MAP {{{_GUEST}: i}}", texts, map_part="key")
    yield _identified("identifier as a map's value", f"MAP {{i: {_GUEST}}}", texts)


def _identified(
    what: str, column: str, keys: list[Any], kind: IdKind = "string", identifier: str = "guest", map_part: str = "value"
) -> Case:
    keyed = [keys[row] for row in GONE]
    wanted = tuple(each for key in keyed if key for each in (key if isinstance(key, list) else [key]))
    write = partial(_write, f"i n, {column} guest, 'word-' || (i % 6) word", "", ROWS)
    is_text = kind != "integer"
    return Case("DuckDB", "parquet", what, write, keys, wanted, kind, identifier, map_part, is_text_id=is_text)


def _case(what: str, columns: str, options: str = "", *, set_null: tuple[str, ...] = (), rows: int = ROWS) -> Case:
    nulls = frozenset(row for row in GONE if (row % 8 == 1 if set_null == ("word",) else row % 7 == 3))
    return Case(
        "DuckDB", "parquet", what, partial(_write, columns, options, rows), [_guest(row) for row in range(rows)],
        tuple(map(_guest, GONE)), set_null=set_null, null_already=nulls,
    )  # fmt: skip


@cache
def duckdb_connection() -> Any:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("set timezone = 'UTC'")
    return connection


def _write(columns: str, options: str, rows: int, path: Path) -> None:
    size = "" if "ROW_GROUP_SIZE" in options else f", ROW_GROUP_SIZE {GROUP_ROWS}"
    others = f", {options}" if options else ""
    select = f"select {columns} from range({rows}) t(i) order by i"  # noqa: S608  # columns of our own
    duckdb_connection().execute(f"copy ({select}) to '{path}' (FORMAT parquet{size}{others})")
