"""Files that fastparquet writes, of frames of pandas."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastparquet
import numpy as np
import pandas as pd

from refstore_purge.formats.base import IdKind
from tests.corpus.case import GONE, GROUP_ROWS, ROWS, Case, case_of_guests, guests, spread

_DAYS: Final = pd.date_range("1969-12-30", periods=ROWS, freq="7h13min").astype("datetime64[ns]")
_DELTAS: Final = pd.to_timedelta(np.arange(ROWS) * 1_234_567, unit="ms")


def _columns() -> dict[str, Any]:
    """Return a column of each type that fastparquet writes."""
    numbers = np.arange(ROWS)
    with_nulls = numbers % 7 == 3
    found: dict[str, Any] = {"bool": numbers % 3 == 0}
    for bits in (8, 16, 32, 64):
        for kind in ("int", "uint"):
            info = np.iinfo(f"{kind}{bits}")
            found[f"{kind}{bits}"] = np.array([info.min, info.max, 0, 1, 77], f"{kind}{bits}")[numbers % 5]
            nullable = pd.Series(found[f"{kind}{bits}"]).astype(f"{'Int' if kind == 'int' else 'UInt'}{bits}")
            found[f"nullable {kind}{bits}"] = nullable.mask(with_nulls)
    found["nullable bool"] = pd.Series(numbers % 3 == 0).astype("boolean").mask(with_nulls)
    found["float32"] = np.array([0.0, -0.0, 1.5, np.nan, np.inf], "float32")[numbers % 5]
    found["float64"] = np.array([0.0, -0.0, 1.5, np.nan, -np.inf, 5e-324])[numbers % 6]
    found["string"] = spread(["", "a", "größe", "日本", "x" * 40])
    found["string dtype"] = pd.array(spread(["", "a", "größe"]), dtype="string")
    found["bytes"] = spread([b"", b"\0", b"\xff" * 20])
    found["json"] = spread([{"a": [1, None]}, [], {"b": "größe"}])
    found["category"] = pd.Categorical(spread(["low", "high", "größe"]))
    found["ordered category"] = pd.Categorical(spread(["low", "high"]), ["low", "high", "never"], ordered=True)
    found["category of numbers"] = pd.Categorical([7, 8, 9] * (ROWS // 3))
    for unit in ("s", "ms", "us", "ns"):
        found[f"datetime64[{unit}]"] = pd.Series(_DAYS.astype(f"datetime64[{unit}]")).mask(with_nulls)
    found["datetime64[ns, UTC]"] = pd.Series(_DAYS.tz_localize("UTC")).mask(with_nulls)
    found["datetime64[ns, Europe/Berlin]"] = pd.Series(_DAYS.tz_localize("UTC").tz_convert("Europe/Berlin"))
    found["timedelta64"] = pd.Series(_DELTAS).mask(with_nulls)
    return found


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{
        f"codec {codec}": {"compression": codec}
        for codec in ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4", "LZ4_RAW")
    },
    "codec of each column": {"compression": {"guest": "GZIP", "n": "ZSTD", "_default": "SNAPPY"}},
    "no statistics": {"stats": False},
    "statistics of one column": {"stats": ["n"]},
    "every column may have nulls": {"has_nulls": True},
    "strings of fixed length": {"fixed_text": {"guest": 16}},
    "timestamps of 96 bits": {"times": "int96"},
    "metadata": {"custom_metadata": {"b": "2", "a": "1"}},
    "with an index": {"write_index": True},
    "one row group": {"row_group_offsets": [0]},
    "uneven row groups": {"row_group_offsets": [0, 1, 30, 31, 100]},
}


def cases() -> Iterator[Case]:
    for name, column in _columns().items():
        encodings = {"guest": "utf8", "v": {"json": "json", "bytes": "bytes"}.get(name, "utf8")}
        nulls = _null_in(column) & frozenset(GONE)
        is_optional = nulls or pd.Series(column).hasnans or name == "nullable"
        yield _case(
            name, partial(_frame, v=column), set_null=("v",) if is_optional and name != "float64" else (),
            null_already=nulls, object_encoding=encodings,
        )  # fmt: skip
    for name, options in _OPTIONS.items():
        yield _case(name, _mixed, **options)
    yield _case("no column has nulls", lambda: _frame(n=range(ROWS), moment=_DAYS), has_nulls=False)
    for bits in (8, 16, 32, 64):
        numbers = np.arange(ROWS, dtype=f"int{bits}")
        yield _identified(f"identifier int{bits}", numbers, [int(each) for each in numbers], "integer")
    ids = [b"\x00\xffguest-%03d" % row for row in range(ROWS)]
    yield _identified("identifier bytes", pd.Series(ids), list(ids), "binary", object_encoding={"guest": "bytes"})
    yield _case("identifier category", lambda: _frame(guest=pd.Categorical(guests()), n=range(ROWS)))
    some = [None if row % 10 == 9 else text for row, text in enumerate(guests())]
    yield _identified("identifier with nulls", pd.Series(some), list(some))
    yield _case("one column", _frame)
    names = ["a.b", "a b", 'a"b', "UPPER", "größe", "日本", "list"]
    yield _case("odd names", lambda: _frame(**{name: range(ROWS) for name in names}))
    yield _case("no rows", lambda: _mixed().head(0), rows=0, row_group_offsets=[0])
    yield _case("one row", lambda: _mixed().head(1), rows=1, row_group_offsets=[0])


def _null_in(column: Any) -> frozenset[int]:
    return frozenset(int(row) for row in np.flatnonzero(pd.isna(pd.Series(column))))


def _frame(**columns: Any) -> Any:
    return pd.DataFrame({"guest": guests(), **columns})


def _mixed() -> Any:
    return _frame(n=range(ROWS), amount=np.arange(ROWS) / 7, word=spread(["x", "y"]), moment=_DAYS)


def _identified(what: str, column: Any, keys: list[Any], kind: IdKind = "string", **options: Any) -> Case:
    write = partial(_write, partial(_frame, guest=column, n=range(ROWS)), **options)
    wanted = tuple(keys[row] for row in GONE if keys[row] is not None)
    return Case("fastparquet", "parquet", what, write, keys, wanted, kind, is_text_id=kind != "integer")


def _write(make: Callable[[], Any], path: Path, **options: Any) -> None:
    defaults: dict[str, Any] = {"row_group_offsets": list(range(0, ROWS, GROUP_ROWS)), "object_encoding": "utf8"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fastparquet.write(str(path), make(), **{**defaults, **options})


_case: Final = partial(case_of_guests, "fastparquet", "parquet", _write)
