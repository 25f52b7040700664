"""Which files of the corpus are refused, and by which part of the message; and how much each reader compares."""

from __future__ import annotations

from typing import Final

_KIND: Final = "and the ids are strings"

REFUSED: Final[dict[str, str]] = {
    **{
        f"pyarrow parquet: identifier {type_}": f"column 'guest' is {type_}, {_KIND}"
        for type_ in ("timestamp[us]", "double", "bool", "date32[day]", "decimal128(9, 2)")
    },
    **{
        f"pyorc orc: identifier {name}": f"column 'guest' is {type_}, {_KIND}"
        for name, type_ in {
            "double": "double", "boolean": "bool", "date": "date32[day]", "decimal(9,2)": "decimal128(9, 2)",
        }.items()
    },
    **{
        f"fastparquet parquet: {name}": "is a category of pandas, and fastparquet reads one dictionary"
        for name in (
            "category (rows go)", "category (set to null)", "ordered category (rows go)",
            "ordered category (set to null)", "category of numbers (rows go)", "identifier category (rows go)",
        )
    },
    **{
        f"DuckDB parquet: INTEGER[3] ({what})": "column 'v' cannot be read: pyarrow does not know how it is stored"
        for what in ("rows go", "set to null")
    },
    "fastparquet parquet: strings of fixed length": "pyarrow cannot read the type of 'guest'",
    "Polars parquet: identifier Int128": "column 'guest' is fixed_size_binary[16], and the ids are integers",
    **{
        f"{name} (set to null)": "times before 1677 or after 2262"
        for name in (
            "pyarrow orc: date64", "pyorc orc: timestamp: beyond 1677 to 2262",
            "pyorc orc: timestamp with local time zone: beyond 1677 to 2262",
        )
    },
    "pyorc orc: uniontype<int,string> (set to null)": "column 'v' is a union",
    **{
        f"{name} orc: format version 0.11, with times": "the file is of ORC's version 0.11, of which times"
        for name in ("pyarrow", "Spark")
    },
    "pyorc orc: identifier char": "column 'guest' is char, whose values are padded",
    "fastavro avro: identifier double": "and the ids are strings",
    "Python csv: a tab between fields": "there is no column 'guest' in the header",
    "Python csv: a semicolon between fields": "there is no column 'guest' in the header",
    "Python csv: a backslash before a quote": "line 2 has a quote after a backslash",
    "Python csv: Latin-1": "the header is not UTF-8",
    "Python json: one array of objects": "line 1 is no JSON object",
}  # fmt: skip
"""Of each file's name, or of one way to purge it. What is not named is purged."""

COMPARED: Final[dict[str, dict[str, int]]] = {
    "pyarrow": {"pyarrow": 315, "DuckDB": 320, "Polars": 315},
    "DuckDB": {"pyarrow": 180, "DuckDB": 190, "Polars": 170},
    "Polars": {"pyarrow": 175, "DuckDB": 185, "Polars": 180},
    "fastparquet": {"pyarrow": 135, "DuckDB": 135, "Polars": 135, "fastparquet": 135},
    "pyarrow, ORC": {"pyarrow": 140, "pyorc": 140},
    "pyorc": {"pyarrow": 150, "pyorc": 150},
    "Avro": {"fastavro": 90, "Polars": 20},
    "text": {"pyarrow": 70, "DuckDB": 70, "Polars": 70, "pandas": 18},
    "Spark": {"pyarrow": 240, "DuckDB": 130, "Polars": 130, "pyorc": 110, "Spark": 240},
}
"""How many comparisons each reader makes at least."""

READ_BY_SPARK: Final = {"pyarrow": 120, "DuckDB": 66, "Polars": 70, "fastparquet": 35, "pyarrow, ORC": 58, "pyorc": 55}
"""Of how many files of others Spark reads what is left."""
