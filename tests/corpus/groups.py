"""The corpus but for what Spark writes: who writes what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.corpus import by_avro, by_duckdb, by_fastparquet, by_polars, by_pyarrow, by_pyarrow_orc, by_pyorc, by_text
from tests.corpus.case import Case

GROUPS: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "pyarrow": by_pyarrow.cases,
    "DuckDB": by_duckdb.cases,
    "Polars": by_polars.cases,
    "fastparquet": by_fastparquet.cases,
    "pyarrow, ORC": by_pyarrow_orc.cases,
    "pyorc": by_pyorc.cases,
    "Avro": by_avro.cases,
    "text": by_text.cases,
}
"""The files of each, made one after the other. Another format is one more line."""
