"""Read files of the corpus with whatever reads them: each as a table of Arrow, and the names of the reader's types."""

from __future__ import annotations

import decimal
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import fastavro
import fastparquet
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from pyarrow import orc

from tests.corpus.by_duckdb import duckdb_connection
from tests.corpus.by_pyorc import CONVERTERS, DIGITS, pyorc

FAMILIES: Final = ("fastparquet", "pandas")
"""Readers that read what was written by their own family only."""


class Read(NamedTuple):
    types: str
    """What the reader says of the columns."""
    table: Any


def _by_pyarrow(path: Path) -> Read:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read()
    return Read(f"{table.schema.to_string(show_field_metadata=True)} {table.schema.metadata}", table)


def _by_duckdb(path: Path) -> Read:
    read = {".parquet": "read_parquet", ".csv": "read_csv", ".json": "read_ndjson"}[_suffix(path)]
    options = {"read_csv": ", header = true, all_varchar = true", "read_ndjson": ", format = 'newline_delimited'"}
    relation = duckdb_connection().sql(f"select * from {read}('{path}'{options.get(read, '')})")  # noqa: S608  # a path of our own
    types = str(list(zip(relation.columns, map(str, relation.types), strict=True)))
    try:
        return Read(types, relation.to_arrow_table())
    except (duckdb.Error, pa.ArrowException):  # types that Arrow has not
        names = [f"#{number}" for number in range(len(relation.columns))]
        columns = list(zip(*relation.fetchall(), strict=True)) or [()] * len(names)
        return Read(
            types,
            pa.table({name: [repr(each) for each in column] for name, column in zip(names, columns, strict=True)}),
        )


def _by_polars(path: Path) -> Read:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that it does not know
            frame = _frame(path)
    except pl.exceptions.PanicException as error:  # which is no Exception
        raise NotImplementedError(str(error)) from error
    return Read(str(frame.schema), frame.to_arrow())


def _frame(path: Path) -> Any:
    match _suffix(path):
        case ".parquet":
            return pl.read_parquet(path, glob=False)
        case ".avro":
            return pl.read_avro(path)
        case ".csv":
            return pl.read_csv(path, infer_schema=False, glob=False)
        case _:
            return pl.read_ndjson(path)


def _by_fastparquet(path: Path) -> Read:
    with path.open("rb") as file:
        frame: Any = fastparquet.ParquetFile(file).to_pandas()
    return _of_pandas(frame)


def _by_pandas(path: Path) -> Read:
    if _suffix(path) == ".csv":
        frame: Any = pd.read_csv(path, dtype=str, compression=_compression(path))
    else:
        frame = pd.read_json(path, lines=True, dtype=False, compression=_compression(path))
    return _of_pandas(frame)


def _compression(path: Path) -> str | None:
    return "gzip" if path.read_bytes()[:2] == b"\x1f\x8b" else None


def _of_pandas(frame: Any) -> Read:
    """Return a frame as a table, in which values are texts: pandas has values that Arrow does not take."""
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype) and column.cat.codes.max() >= len(column.cat.categories):
            raise ValueError(f"column {name!r} has codes of no category")  # at which pandas ends the process
    columns = {str(name): pa.array(map(_text, frame[name]), pa.string()) for name in frame.columns}
    return Read(str(list(frame.dtypes.items())), pa.table(columns))


def _text(value: Any) -> str | None:
    return None if value is None or value is pd.NA or value is pd.NaT or _is_nan(value) else repr(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _by_pyarrow_orc(path: Path) -> Read:
    file = orc.ORCFile(path)
    return Read(file.schema.to_string(), file.read())


def _by_pyorc(path: Path) -> Read:
    with path.open("rb") as source, decimal.localcontext(prec=DIGITS):
        reader: Any = pyorc.Reader(source, converters=CONVERTERS)
        rows = [repr(row) for row in reader]
        return Read(str(reader.schema), pa.table({"rows": pa.array(rows, pa.string())}))


def _by_fastavro(path: Path) -> Read:
    with path.open("rb") as file:
        reader: Any = fastavro.reader(file)
        rows = [repr(row) for row in reader]
        return Read(f"{reader.writer_schema} {reader.metadata}", pa.table({"rows": pa.array(rows, pa.string())}))


def _by_pyarrow_text(path: Path) -> Read:
    if _suffix(path) == ".csv":
        with pa.input_stream(path, compression="detect") as stream:
            names = pa_csv.read_csv(stream).schema.names
        strings = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        with pa.input_stream(path, compression="detect") as stream:
            table = pa_csv.read_csv(
                stream, convert_options=strings, parse_options=pa_csv.ParseOptions(newlines_in_values=True)
            )
    else:
        with pa.input_stream(path, compression="detect") as stream:
            table = pa_json.read_json(stream)
    return Read(table.schema.to_string(), table)


def _suffix(path: Path) -> str:
    return next(each for each in path.suffixes if each in (".parquet", ".orc", ".avro", ".csv", ".json"))


READERS: Final[dict[str, dict[str, Callable[[Path], Read]]]] = {
    "parquet": {
        "pyarrow": _by_pyarrow, "DuckDB": _by_duckdb, "Polars": _by_polars, "fastparquet": _by_fastparquet,
    },
    "orc": {"pyarrow": _by_pyarrow_orc, "pyorc": _by_pyorc},
    "avro": {"fastavro": _by_fastavro, "Polars": _by_polars},
    "csv": {"pyarrow": _by_pyarrow_text, "DuckDB": _by_duckdb, "Polars": _by_polars, "pandas": _by_pandas},
    "json": {"pyarrow": _by_pyarrow_text, "DuckDB": _by_duckdb, "Polars": _by_polars, "pandas": _by_pandas},
}  # fmt: skip
"""Who reads which format."""
