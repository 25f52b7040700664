"""Find the module of a file format by the name that the purge document has for it.

A new format is one module with what `base.FormatModule` says, and one line here.
`refstore.purge_document.document.FileFormat` has the same names; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, cast

from refstore.purge_document.document import FileFormat
from refstore_purge.formats.base import FormatModule
from refstore_purge.untyped_pandas import import_extra

MODULES: Final[Mapping[FileFormat, str]] = {
    "parquet": "refstore_purge.formats.parquet",
    "orc": "refstore_purge.formats.orc",
    "avro": "refstore_purge.formats.avro",
    "json": "refstore_purge.formats.json_lines",
    "csv": "refstore_purge.formats.csv",
}
"""Imported when they are needed: each has the libraries of its format."""


@cache
def load_format(name: FileFormat) -> FormatModule:
    """Return the module of a format. Raises MissingExtra."""
    return cast(FormatModule, import_extra(MODULES[name], f"the format {name}"))
