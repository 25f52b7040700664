"""Files that Polars writes."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from tests.corpus import by_pyarrow
from tests.corpus.case import GROUP_ROWS, ROWS, SPREAD_NULLS, Case, case_of_guests, guests, spread
from tests.corpus.case_tables import identifiers

_NAN: Final = float("nan")
_INTEGERS: Final = {
    "Int8": 2**7, "Int16": 2**15, "Int32": 2**31, "Int64": 2**63, "Int128": 2**127,
    "UInt8": 2**8, "UInt16": 2**16, "UInt32": 2**32, "UInt64": 2**64, "UInt128": 2**128,
}  # fmt: skip
_MOMENTS: Final = [
    datetime.datetime.fromisoformat(text)
    for text in ("1970-01-01", "2020-02-03T04:05:06.007", "1899-12-31T23:59", "2262-01-01T00:00:00.001", "1700-01-01")
]


def _types() -> dict[str, tuple[Any, list[Any]]]:
    found: dict[str, tuple[Any, list[Any]]] = {"Boolean": (pl.Boolean, [True, False])}
    for name, limit in _INTEGERS.items():
        values = [0, 1, limit - 1] if name.startswith("U") else [0, 1, limit - 1, -limit]
        found[name] = (getattr(pl, name), values)
    found["Float16"] = (pl.Float16, [0.0, -0.0, 1.5, _NAN])
    found["Float32"] = (pl.Float32, [0.0, -0.0, 1.5, _NAN, float("inf")])
    found["Float64"] = (pl.Float64, [0.0, -0.0, 1.5, _NAN, float("-inf"), 5e-324])
    for precision, scale in ((5, 2), (18, 3), (38, 10)):
        largest = decimal.Decimal(10**precision - 1).scaleb(-scale, decimal.Context(prec=50))
        found[f"Decimal({precision}, {scale})"] = (
            pl.Decimal(precision, scale),
            [largest, largest.copy_negate(), decimal.Decimal(0)],
        )
    found["String"] = (pl.String, ["", "a", "größe", "日本", "x" * 40])
    found["Binary"] = (pl.Binary, [b"", b"\0", b"\xff" * 20])
    found["Date"] = (pl.Date, [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1970, 1, 1)])
    found["Time"] = (pl.Time, [datetime.time(0), datetime.time(23, 59, 59, 999_999)])
    for unit in ("ms", "us", "ns"):
        found[f"Datetime({unit})"] = (pl.Datetime(unit), _MOMENTS)
        found[f"Datetime({unit}, Europe/Berlin)"] = (pl.Datetime(unit, "Europe/Berlin"), _MOMENTS)
        found[f"Duration({unit})"] = (pl.Duration(unit), [datetime.timedelta(0), datetime.timedelta(-3, 5)])
    found["Categorical"] = (pl.Categorical, ["low", "high", "größe"])
    found["Enum"] = (pl.Enum(["low", "high", "never"]), ["low", "high"])
    found["List"] = (pl.List(pl.List(pl.Int16)), [[[1, None], None], [], [[]]])
    found["Array"] = (pl.Array(pl.Int16, 2), [[1, 2], [None, 3]])
    found["Struct"] = (
        pl.Struct({"a": pl.Int8, "b": pl.List(pl.String)}),
        [{"a": 1, "b": ["x"]}, {"a": None, "b": None}],
    )
    return found


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{
        f"codec {codec}": {"compression": codec}
        for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4")
    },
    "compression level": {"compression": "zstd", "compression_level": 15},
    "no statistics": {"statistics": False},
    "full statistics": {"statistics": "full"},
    "only some statistics": {"statistics": {"min": False, "max": False, "null_count": True, "distinct_count": True}},
    "small pages": {"data_page_size": 64},
    "row groups of three rows": {"row_group_size": 3},
    "one row group": {"row_group_size": None},
    "metadata": {"metadata": {"b": "2", "a": "1"}},
    "written through pyarrow": {"use_pyarrow": True},
}


def cases() -> Iterator[Case]:
    for name, (type_, values) in _types().items():
        yield _case(name, partial(_frame, type_, values), set_null=("v",), null_already=SPREAD_NULLS)
    yield _case("Null", lambda: pl.DataFrame({"guest": guests(), "v": pl.Series([None] * ROWS, dtype=pl.Null)}))
    for name, options in _OPTIONS.items():
        yield _case(name, _mixed, **options)
    for each in identifiers():
        if "fixed" in each.what or "uuid" in each.what:  # types that Polars does not have
            continue
        is_map = "map" in each.what  # to Polars a list of structs
        known = each._replace(identifier=f"guest.{each.map_part}", map_part="value") if is_map else each
        yield known.case("Polars", "parquet", partial(_write, partial(_identified, each.column)))
    enum = pl.Enum(guests())
    yield _case("identifier Enum", lambda: pl.DataFrame({"guest": pl.Series(guests(), dtype=enum), "n": range(ROWS)}))
    big = [2**100 + row for row in range(ROWS)]
    yield Case(
        "Polars", "parquet", "identifier Int128",
        partial(_write, lambda: pl.DataFrame({"guest": pl.Series(big, dtype=pl.Int128)})), big, (5,), "integer",
    )  # fmt: skip
    yield _case("no rows", lambda: _mixed().head(0), rows=0)
    yield _case("one row", lambda: _mixed().head(1), rows=1)
    yield _case("one column", lambda: pl.DataFrame({"guest": guests()}))
    names = ["a.b", "a b", 'a"b', "UPPER", "größe", "日本", "", "list"]
    yield _case("odd names", lambda: pl.DataFrame({"guest": guests(), **{name: range(ROWS) for name in names}}))
    yield _case("sorted", lambda: _mixed().sort("n"))


def _frame(type_: Any, values: list[Any]) -> Any:
    """Return a frame with a type's column, and the same within others."""
    plain = pl.Series("v", spread(values), dtype=type_)
    frame = pl.DataFrame({"guest": guests(), "v": plain, "k": [f"k{row % 5}" for row in range(ROWS)]})
    rows = pl.int_range(pl.len())
    return frame.select(
        "guest",
        "v",
        pl.when(rows % 11 != 5).then(pl.concat_list("v", "v")).alias("in_list"),
        pl.when(rows % 11 != 5).then(pl.struct("v", "k")).alias("in_struct"),
        pl.concat_list(pl.struct("v", "k")).alias("in_structs"),
    )


def _mixed() -> Any:
    return pl.DataFrame(pl.from_arrow(by_pyarrow.mixed()))


def _identified(column: Any) -> Any:
    series = pl.Series("guest", pl.from_arrow(column))
    return pl.DataFrame({"n": range(ROWS), "guest": series, "word": [f"w{row % 5}" for row in range(ROWS)]})


def _write(make: Callable[[], Any], path: Path, **options: Any) -> None:
    make().write_parquet(path, **{"row_group_size": GROUP_ROWS, **options})


_case: Final = partial(case_of_guests, "Polars", "parquet", _write)
