"""Read the ids of a file: Parquet, or CSV with a header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from refstore.errors import Invalid
from refstore_gc.private_folder import private_folder
from refstore_purge import ids
from refstore_purge.formats.base import Kind, kind_of
from refstore_purge.untyped_arrow import pa, pacsv, pc, pq

KINDS: Final[tuple[Kind, ...]] = ("string", "integer", "binary")
PARQUET: Final = b"PAR1"
FOLDER_PREFIX: Final = "refstore-purge-ids-"
"""What the name of a folder with ids begins with."""


def ids_folder() -> AbstractContextManager[Path]:
    """Make a folder for ids, for a block."""
    return private_folder(FOLDER_PREFIX)


def load(file: Path, folder: Path, *, column: str = "", id_type: str = "") -> int:
    """Write the ids of a file to a folder, for `ids.IdSet`; return how many there are.

    `column`: '' if the file has only one. `id_type`: what the ids are to be compared as; '': as the file has them.
    Raises Invalid; its message names no id.
    """
    if id_type and id_type not in KINDS:
        raise Invalid(f"{id_type!r} is no type of ids; use {', '.join(KINDS)}")
    try:
        with file.open("rb") as opened:
            is_parquet = opened.read(len(PARQUET)) == PARQUET
        found, batches = (_parquet if is_parquet else _csv)(file, column)
        kind = kind_of(found)
        if kind is None:
            raise Invalid(f"the ids of {file.name} are {found}; ids are strings, integers or binary")
        wanted = id_type or kind
        return ids.write(folder, wanted, (_as(batch, kind, wanted) for batch in batches))
    except pa.ArrowInvalid as error:
        is_value = any(word in str(error).lower() for word in ("convert", "parse string", "out of bounds", "utf8"))
        reason = "a value cannot be converted" if is_value else "it is neither Parquet nor CSV"
        raise Invalid(
            f"the ids of {file.name} cannot be read as {id_type or 'they are'}: {reason}; correct it, or --id-type"
        ) from None  # Arrow's message may name an id
    except OSError as error:
        raise Invalid(f"the ids of {file.name} cannot be read: {error.strerror or 'it is damaged'}") from None


def _parquet(file: Path, column: str) -> tuple[Any, Iterator[Any]]:
    opened = pq.ParquetFile(file)
    names: list[str] = opened.schema_arrow.names
    name = chosen(file, names, column, shown=True)
    # a name with a dot may choose a field of a struct, too
    batches = (batch.column(name) for batch in opened.iter_batches(columns=[name]))
    return opened.schema_arrow.field(name).type, batches


def _csv(file: Path, column: str) -> tuple[Any, Iterator[Any]]:
    convert = pacsv.ConvertOptions(strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=False)
    reader = pacsv.open_csv(file, convert_options=convert)
    name = chosen(file, reader.schema.names, column)
    reader.close()
    convert.column_types = {name: pa.string()}
    convert.include_columns = [name]
    batches = pacsv.open_csv(file, convert_options=convert)
    return pa.string(), (batch.column(0) for batch in batches)


def chosen(file: Path, names: list[str], column: str, *, shown: bool = False) -> str:
    """Return the column that has the ids. Raises Invalid, which shows the names only if they are `shown`: in a CSV file
    without a header the first ids stand in their place.
    """
    if not column and len(names) == 1:
        return names[0]
    if names.count(column) == 1:
        return column
    what = f"no column {column!r}" if column else f"{len(names)} columns"
    there = f": {', '.join(names[:20])}" if shown else "; a CSV file begins with a header"
    raise Invalid(f"{file.name} has {what}; say which has the ids with --id-column{there}")


def _as(values: Any, kind: Kind, wanted: Kind) -> Any:
    if kind == wanted:
        return values
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if wanted == "integer":
        if kind == "binary":
            raise Invalid("binary ids are no integers; leave --id-type out")
        if not pc.all(pc.match_substring_regex(values, r"\A[+-]?[0-9]+\z"), skip_nulls=True).as_py():
            raise pa.ArrowInvalid("cannot convert to an integer")  # where Arrow would take 0x10, too
        has_minus = pc.any(pc.starts_with(values, "-")).as_py()
        return values.cast(pa.int64() if has_minus else pa.uint64())
    if wanted == "string":
        return values.cast(pa.string())
    return pc.cast(values.cast(pa.string()), pa.binary())
