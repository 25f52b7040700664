"""ORC files that pyarrow writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import orc

from tests.corpus import arrow_values, by_pyarrow
from tests.corpus.case import ROWS, SPREAD_NULLS, Case, case_of_guests, guests
from tests.corpus.case_tables import identifiers

orc_: Any = orc
_NOT_IN_ORC: Final = ("uint", "float16", "time[", "duration", "null", "json", "decimal32", "decimal64", "decimal256",
                      "view", "dictionary", "uuid")  # fmt: skip
_WRONG: Final = "two structs"
"""pyarrow's writer of ORC takes what lies below a null in a struct of structs for the next row's value."""
_BEYOND: Final = {"s": 253_402_300_799, "ms": 253_402_300_799_999, "us": -62_135_596_800_000_000}
"""Of the values of `arrow_values`: times of the years 9999 and 1, in a unit."""
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{f"codec {codec}": {"compression": codec} for codec in ("uncompressed", "zlib", "snappy", "lz4", "zstd")},
    "format version 0.11, with times": {"file_version": "0.11"},
    "small stripes": {"stripe_size": 1, "batch_size": 20},
    "small blocks": {"compression": "zlib", "compression_block_size": 65_536},
    "compression strategy": {"compression": "zstd", "compression_strategy": "compression"},
    "row index of 1,000": {"row_index_stride": 1000},
    "Bloom filters": {"bloom_filter_columns": [0, 1], "bloom_filter_fpp": 0.01},
    "dictionaries": {"dictionary_key_size_threshold": 1.0},
}


def cases() -> Iterator[Case]:
    for name, (type_, values) in arrow_values.types().items():
        if any(each in name for each in _NOT_IN_ORC):
            continue
        near = [each for each in values if not name.startswith("timestamp") or each not in _BEYOND.values()]
        if name.startswith("timestamp"):  # pyarrow writes others wrongly
            near = [each for each in near if each >= 0]
        yield _case(name, partial(arrow_values.table, type_, near), set_null=("v",), null_already=SPREAD_NULLS)
    for name, options in _OPTIONS.items():
        yield _case(name, by_pyarrow.mixed, **options)
    for identified in identifiers():
        if any(each in identified.what for each in (*_NOT_IN_ORC, _WRONG)):
            continue
        yield identified.case("pyarrow", "orc", partial(_write, partial(_identified, identified.column)))
    plain = ["guest", "n", "amount", "price", "word", "tags"]
    yield _case("format version 0.11", lambda: by_pyarrow.mixed().select(plain), file_version="0.11")
    yield _case("no rows", partial(by_pyarrow.mixed, 0), rows=0)
    yield _case("one row", partial(by_pyarrow.mixed, 1), rows=1)
    yield _case("300 columns", lambda: pa.table({"guest": guests(), **{f"c{at}": range(ROWS) for at in range(300)}}))
    names = ["a.b", "a b", "UPPER", "größe", "日本", ""]
    yield _case("odd names", lambda: pa.table({"guest": guests(), **{name: range(ROWS) for name in names}}))


def _identified(column: Any) -> Any:
    return pa.table({"n": pa.array(range(len(column)), pa.int64()), "guest": column})


def _write(make: Callable[[], Any], path: Path, **options: Any) -> None:
    orc_.write_table(make(), path, **{"compression": "uncompressed", **options})


_case: Final = partial(case_of_guests, "pyarrow", "orc", _write)
