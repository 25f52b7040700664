"""Arrow and pandas, without their types: stubs say of most functions that some part of the result is unknown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
pq: Any = import_module("pyarrow.parquet")
pacsv: Any = import_module("pyarrow.csv")
orc: Any = import_module("pyarrow.orc")
pandas_util: Any = import_module("pandas.util")
