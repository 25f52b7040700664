"""pyarrow without its types: its stubs leave most of it unknown, so what is not declared here is Any."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

pa: Final[Any] = import_module("pyarrow")
pc: Final[Any] = import_module("pyarrow.compute")
pq: Final[Any] = import_module("pyarrow.parquet")
