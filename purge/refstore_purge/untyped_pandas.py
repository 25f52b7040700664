"""Arrow and pandas, without their types: stubs say of most functions that some part of the result is unknown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from refstore.errors import MissingExtra

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
pq: Any = import_module("pyarrow.parquet")
orc: Any = import_module("pyarrow.orc")


def import_extra(module: str, needed_for: str) -> Any:
    """Return a module that the extra `purge` installs. Raises MissingExtra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra("purge", needed_for) from error


def siphash(values: Any, key: bytes) -> Any:
    """Return the SipHash-2-4 of each value of an array of objects, by pandas. Raises MissingExtra."""
    pandas_util = import_extra("pandas.util", "the index and the ledger of purged ids")
    return pandas_util.hash_array(values, encoding="latin-1", hash_key=key.decode("latin-1"), categorize=False)
