"""Files that pyarrow writes."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.corpus import arrow_values
from tests.corpus.case import GONE, GROUP_ROWS, ROWS, SPREAD_NULLS, WANTED, Case, case_of_guests, guests
from tests.corpus.case_tables import identifiers

pq_: Any = pq


def cases() -> Iterator[Case]:
    for name, (type_, values) in arrow_values.types().items():
        is_view = name.endswith("_view")  # pyarrow writes no part of one
        make = partial(arrow_values.table, type_, values, with_nested=not is_view)
        null_already = frozenset(GONE) if name == "null" else SPREAD_NULLS
        options = {"row_group_size": ROWS} if is_view else {}
        yield _case(name, make, set_null=("v",), null_already=null_already, **options)
    for identified in identifiers():
        yield identified.case("pyarrow", "parquet", partial(_write, partial(_identified, identified.column)))
    texts = partial(_identified, pa.array(guests()).dictionary_encode())
    yield _case("identifier dictionary, no schema of Arrow", texts, store_schema=False)
    for name, options in _OPTIONS.items():
        yield _case(name, mixed, **options)
    yield from _shapes()


def mixed(rows: int = ROWS) -> Any:
    """Return a table of what people have most."""
    prices = [None if row % 9 == 2 else decimal.Decimal(row).scaleb(-2) for row in range(rows)]
    tags = [None if row % 6 == 4 else [f"t{row % 4}"] * (row % 3) for row in range(rows)]
    return pa.table(
        {
            "guest": pa.array(guests(rows), pa.string()),
            "n": pa.array(range(rows), pa.int64()),
            "amount": pa.array([None if row % 5 == 2 else row / 7 for row in range(rows)], pa.float64()),
            "price": pa.array(prices, pa.decimal128(9, 2)),
            "at": pa.array([row * 10**12 + 123_456 for row in range(rows)], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "is_new": pa.array([row % 3 == 0 for row in range(rows)], pa.bool_()),
            "word": pa.array([None if row % 8 == 1 else f"word-{row % 6}" for row in range(rows)], pa.string()),
            "tags": pa.array(tags, pa.list_(pa.string())),
        }
    )


_NO_DICTIONARY: Final = {"use_dictionary": False}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{f"codec {codec}": {"compression": codec} for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")},
    "codec of each column": {"compression": {"guest": "zstd", "n": "gzip", "amount": "none", "word": "snappy"}},
    "compression level": {"compression": "zstd", "compression_level": 19},
    "data pages of version 2": {"data_page_version": "2.0"},
    "data pages of version 2, not compressed": {"data_page_version": "2.0", "compression": "none"},
    "no dictionaries": {"use_dictionary": False},
    "dictionary of one column": {"use_dictionary": ["word"]},
    "dictionary that gets too large": {"dictionary_pagesize_limit": 64, "data_page_size": 64},
    "many pages": {"data_page_size": 32, "write_batch_size": 4},
    "many pages of version 2": {"data_page_size": 32, "write_batch_size": 4, "data_page_version": "2.0"},
    "many pages with an index": {"data_page_size": 32, "write_batch_size": 4, "write_page_index": True},
    "encoding DELTA_BINARY_PACKED": {"column_encoding": {"n": "DELTA_BINARY_PACKED"}, **_NO_DICTIONARY},
    "encoding DELTA_BYTE_ARRAY": {
        "column_encoding": {"guest": "DELTA_BYTE_ARRAY", "word": "DELTA_BYTE_ARRAY"},
        **_NO_DICTIONARY,
    },
    "encoding DELTA_LENGTH_BYTE_ARRAY": {"column_encoding": {"guest": "DELTA_LENGTH_BYTE_ARRAY"}, **_NO_DICTIONARY},
    "encoding BYTE_STREAM_SPLIT": {
        "column_encoding": {"amount": "BYTE_STREAM_SPLIT", "n": "BYTE_STREAM_SPLIT"},
        **_NO_DICTIONARY,
    },
    "encoding RLE of booleans": {"column_encoding": {"is_new": "RLE"}, **_NO_DICTIONARY},
    "encoding PLAIN": {"column_encoding": "PLAIN", **_NO_DICTIONARY},
    "no statistics": {"write_statistics": False},
    "statistics of one column": {"write_statistics": ["n"]},
    "page index": {"write_page_index": True},
    "page checksums": {"write_page_checksum": True},
    "page checksums, version 2": {"write_page_checksum": True, "data_page_version": "2.0"},
    "Bloom filters": {"bloom_filter_options": {"guest": {"ndv": 120, "fpp": 0.01}, "word": {"ndv": 6, "fpp": 0.1}}},
    "format version 1.0": {"version": "1.0"},
    "format version 2.4": {"version": "2.4"},
    "no schema of Arrow": {"store_schema": False},
    "timestamps of 96 bits": {"use_deprecated_int96_timestamps": True, "store_schema": False},
    "timestamps of 96 bits with a schema of Arrow": {"use_deprecated_int96_timestamps": True},
    "timestamps coerced to milliseconds": {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
    "flavor spark": {"flavor": "spark"},
    "decimals as integers": {"store_decimal_as_integer": True},
    "list items named item": {"use_compliant_nested_type": False},
    "list items named item, no schema of Arrow": {"use_compliant_nested_type": False, "store_schema": False},
    "sorting columns": {"sorting_columns": [pq.SortingColumn(1), pq.SortingColumn(0, True, True)]},
    "content-defined chunks": {"use_content_defined_chunking": True},
    "one row group": {"row_group_size": ROWS},
    "uneven row groups": {"row_group_size": 7},
}
"""What `pq.write_table` is given, and what is tried with it."""


def _identified(column: Any) -> Any:
    rows = range(len(column))
    return pa.table({"n": pa.array(rows, pa.int64()), "guest": column, "word": [f"w{row % 5}" for row in rows]})


def _write(make: Callable[[], Any], path: Path, **options: Any) -> None:
    pq_.write_table(make(), path, **{"row_group_size": GROUP_ROWS, **options})


_case: Final = partial(case_of_guests, "pyarrow", "parquet", _write)


def _shapes() -> Iterator[Case]:
    """Yield files of other names, sizes and schemas."""
    yield _case("no rows", partial(mixed, 0), rows=0)
    yield _case("one row", partial(mixed, 1), rows=1)
    yield _case("row groups of one row", lambda: pa.table({"guest": guests(), "n": range(ROWS)}), row_group_size=1)
    yield _case("one column", lambda: pa.table({"guest": guests()}))
    yield _case("60 columns", lambda: pa.table({"guest": guests(), **{f"c{at}": range(ROWS) for at in range(60)}}))
    yield Case("pyarrow", "parquet", "every row goes", partial(_write, mixed), guests(), tuple(guests()))
    names = ["a.b", "a b", 'a"b', "UPPER", "größe", "日本", "a`b", "a,b", "a=b", "list", "element", "key_value", " "]
    yield _case("odd names", lambda: pa.table({"guest": guests(), **{name: range(ROWS) for name in names}}))
    yield _case("a name that is empty", lambda: pa.table({"guest": guests(), "": range(ROWS)}))
    yield _case(
        "names of other case", lambda: pa.table({"guest": guests(), "GUEST": range(ROWS), "Guest": range(ROWS)})
    )
    twice = pa.schema([("guest", pa.string()), ("n", pa.int64()), ("n", pa.int64())])
    yield _case("a name twice", lambda: pa.table([guests(), range(ROWS), range(ROWS)], schema=twice))
    yield _case(
        "identifier with a dot in a neighbour",
        lambda: pa.table({"guest": guests(), "guest.id": range(ROWS), "x": [{"guest": row} for row in range(ROWS)]}),
    )
    yield _case(
        "key-value metadata", lambda: mixed().replace_schema_metadata({"b": "2", "a": "1", "größe": "ü", "": "x"})
    )
    yield _case("field ids and metadata of columns", _with_field_ids, set_null=("n",))
    yield _case("required columns", _required)
    yield _case("deep nesting", _deep)
    yield _case("a column of nulls alone", lambda: mixed().append_column("v", pa.array([None] * ROWS, pa.string())))
    yield _case(
        "long strings", lambda: mixed().append_column("v", pa.array(["x" * 9000 + str(row) for row in range(ROWS)]))
    )
    yield _case("pandas metadata", lambda: pa.Table.from_pandas(mixed().to_pandas().set_index("n")))
    yield Case(
        "pyarrow", "parquet", "identifier of nulls alone",
        partial(_write, lambda: pa.table({"guest": pa.nulls(ROWS), "n": range(ROWS)})), [None] * ROWS, WANTED,
    )  # fmt: skip
    for type_ in (pa.timestamp("us"), pa.float64(), pa.bool_(), pa.date32(), pa.decimal128(9, 2)):
        yield _case(f"identifier {type_}", partial(_unfit, type_))
    yield Case("pyarrow", "parquet", "several schemas of row groups", _of_several_tables, guests(), WANTED)


def _unfit(type_: Any) -> Any:
    return pa.table({"guest": pa.nulls(ROWS, type_), "n": range(ROWS)})


def _with_field_ids() -> Any:
    schema = pa.schema(
        [
            pa.field(field.name, field.type, metadata={"PARQUET:field_id": str(7 + 3 * at), "comment": f"column {at}"})
            for at, field in enumerate(mixed().schema)
        ]
    )
    return mixed().cast(schema)


def _required() -> Any:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    schema = pa.schema(
        [
            pa.field("guest", pa.string(), nullable=False),
            pa.field("n", pa.int32(), nullable=False),
            pa.field("s", inner, nullable=False),
            pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        ]
    )
    rows = range(ROWS)
    columns = [guests(), list(rows), [{"a": row, "b": None} for row in rows], [[row] * (row % 3) for row in rows]]
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema)


def _deep() -> Any:
    type_ = pa.list_(pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.list_(pa.int32())), ("y", pa.string())]))))
    values = [
        None if row % 9 == 1 else [[("k", [{"x": [row, None], "y": None}, None] * (row % 3))], None, []][: row % 4]
        for row in range(ROWS)
    ]
    return pa.table({"guest": guests(), "v": pa.array(values, type_)})


def _of_several_tables(path: Path) -> None:
    """Row groups of which one has a dictionary, another has none."""
    table = mixed()
    with pq_.ParquetWriter(path, table.schema, dictionary_pagesize_limit=200) as writer:
        for start, length in ((0, 5), (5, 90), (95, 1), (96, 24)):
            writer.write_table(table.slice(start, length), row_group_size=length)
