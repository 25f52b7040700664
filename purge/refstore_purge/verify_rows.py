"""Read one object for `verify`, and hand what stands at the identifier to a lookup. It trusts no statistics.

What a run refuses to read, this refuses, too: it says what it could not understand instead of calling an object clean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, cast

from refstore.errors import Invalid
from refstore.purge_document.document import Dataset, FileFormat
from refstore_purge.file_allowance import raise_if_memory
from refstore_purge.formats.base import PurgeError
from refstore_purge.untyped_pandas import pa, pq
from refstore_purge.verify_avro import count_avro, entries_of_avro, schema_of_avro
from refstore_purge.verify_columns import (
    DAMAGED,
    count_orc,
    count_parquet,
    describe_missing_column,
    identifier_type,
    schema_of_orc,
)
from refstore_purge.verify_file_metadata import count_summary, entries_of_orc, entries_of_parquet
from refstore_purge.verify_ids import INTEGER, BatchedLookup, MetadataEntry, RowCount, kind_of, parse_integers
from refstore_purge.verify_text import JsonFields, NumberText, VerifyReadError, blocks_of, lines_of, records_of, unquote

TEXT_ROWS: Final = 50_000
"""So many rows of text are handed over at a time."""


def count_rows(
    source: BinaryIO,
    dataset: Dataset,
    lookup: BatchedLookup,
    count: RowCount,
    *,
    is_of_id: bool,
    describes_others: bool = False,
) -> None:
    """Count the rows of an object that have ids, and tell what stands beside them, now or when the lookup is finished.
    `is_of_id`: the object's partition is that of an id, so all of its rows are. Rows whose columns of `set_null` are
    null do not count. `describes_others`: it is a summary file of Parquet. Raises VerifyReadError.
    """
    try:
        if describes_others:
            count_summary(source, dataset, lookup, count)
            return
        assert dataset.format is not None  # noqa: S101  # the document's check says so
        reader = READERS[dataset.format]
        lookup = reader.read_rows(source, dataset, lookup, count, is_of_id=is_of_id)
        if reader.entries_of is not None:
            lookup.add_entries(count, list(reader.entries_of(source)))
    except PurgeError as error:
        raise VerifyReadError(str(error)) from None
    except (pa.ArrowException, OSError, EOFError) as error:
        raise_if_memory(error)
        is_encrypted = "crypt" in str(error).lower()
        raise VerifyReadError("it is encrypted" if is_encrypted else DAMAGED.format(dataset.format)) from None


def refuse_other_types(source: BinaryIO, dataset: Dataset) -> None:
    """Raise Invalid if the identifier of an object is a struct, or of another type that no id has: then so is that of
    the whole data set. What cannot be read is left to `count_rows`.
    """
    assert dataset.format is not None  # noqa: S101  # the document's check says so
    schema_of = READERS[dataset.format].schema_of
    if schema_of is None:
        return
    try:
        type_ = identifier_type(schema_of(source), dataset)
    except Exception:  # noqa: BLE001  # whatever a file does to a reader
        return
    name = dataset.identifier
    if kind_of(type_) is not None or pa.types.is_null(type_):
        return
    if pa.types.is_struct(type_):
        fields = ", ".join(f"{name}.{field.name}" for field in type_)
        what = f"a struct; name one of its fields as the data set's identifier: {fields}"
    else:
        what = f"{type_}; an identifier is text, an integer or binary: correct the data set's identifier"
    raise Invalid(f"column {name!r} of data set {dataset.name!r} is {what}")


# ---- CSV


def _count_csv(
    source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount, *, is_of_id: bool
) -> BatchedLookup:
    records = records_of(blocks_of(source))
    header = next(records, None)
    if header is None:
        return lookup
    if lookup.ids.kind == "binary":
        raise VerifyReadError("CSV has no binary values, and the ids are binary")
    try:
        names = [unquote(name).decode() for name in header]
    except UnicodeDecodeError:
        raise VerifyReadError("its header is no UTF-8") from None
    at = -1 if is_of_id else _column_index(names, dataset.identifier)
    nulls = [_column_index(names, name) for name in dataset.set_null]
    if nulls and len(names) == 1:
        raise VerifyReadError("a null in its only column would be a blank line, so no run sets it")
    texts: list[bytes] = []
    for number, fields in enumerate(records, 1):
        if len(fields) != len(names):
            raise VerifyReadError(f"record {number} has {len(fields)} fields, and the header {len(names)}")
        if nulls and not any(fields[null] for null in nulls):
            continue
        if is_of_id:
            count.rows += 1
        elif fields[at]:
            texts.append(unquote(fields[at]))
            if len(texts) == TEXT_ROWS:
                lookup.add(count, _values_of(texts, dataset, lookup.ids.kind))
                texts = []
    if texts:
        lookup.add(count, _values_of(texts, dataset, lookup.ids.kind))
    return lookup


def _column_index(names: Sequence[str], name: str) -> int:
    if names.count(name) != 1:
        raise VerifyReadError(describe_missing_column(names, name, name))
    return names.index(name)


def _values_of(texts: list[bytes], dataset: Dataset, kind: str) -> Any:
    """Return the texts of a CSV column as their ids are compared. Raises VerifyReadError."""
    if kind == "integer":
        texts = [text for text in texts if text]
        if not all(re.fullmatch(INTEGER.encode(), text) for text in texts):
            raise VerifyReadError(
                f"column {dataset.identifier!r} has a value that is no integer, and the ids are integers"
            )
        return parse_integers([text.decode() for text in texts])
    values = pa.array(texts, pa.large_binary())
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise VerifyReadError(f"column {dataset.identifier!r} is no UTF-8") from None
    return values


# ---- JSON lines


def _count_json(
    source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount, *, is_of_id: bool
) -> BatchedLookup:
    steps = dataset.identifier.split(".")
    nulls = [name.split(".") for name in dataset.set_null]
    wanted: type = NumberText if lookup.ids.kind == "integer" else str
    texts: list[str] = []
    rows: list[int] = []
    count.has_identifier = None
    try:
        for number, line in lines_of(blocks_of(source)):
            if lookup.ids.kind == "binary":
                raise VerifyReadError("JSON has no binary values, and the ids are binary")
            count.has_identifier = _combine(count.has_identifier, _has_path(line, steps))
            if nulls and not any(_is_set(line, null) for null in nulls):
                continue
            if is_of_id:
                count.rows += 1
                continue
            values = list(_values_at(line, steps, dataset.map_part))
            if not values and any(True for _ in _values_at(line, steps, dataset.map_part, any_case=True)):
                raise VerifyReadError(f"line {number} has {dataset.identifier!r} in another case only")
            count.rows_without_identifier += not values
            for value in values:
                if type(value) is not wanted or (wanted is NumberText and not re.fullmatch(r"-*[0-9]+", value)):
                    raise VerifyReadError(
                        f"line {number} has another type at {dataset.identifier!r}, and the ids are {lookup.ids.kind}s"
                    )
                texts.append(value)
                rows.append(number)
            if len(texts) >= TEXT_ROWS:
                _add_values(texts, rows, lookup, count)
                texts, rows = [], []
    except RecursionError:
        raise VerifyReadError("a line is nested too deep") from None
    if texts:
        _add_values(texts, rows, lookup, count)
    return lookup


def _add_values(texts: list[str], rows: list[int], lookup: BatchedLookup, count: RowCount) -> None:
    if lookup.ids.kind == "integer":
        values = parse_integers(texts)
    else:  # also half of a pair of surrogates
        values = pa.array([text.encode(errors="surrogatepass") for text in texts], pa.large_binary())
    lookup.add(count, values, pa.array(rows, pa.int64()))


def _values_at(value: Any, steps: Sequence[str], map_part: str, *, any_case: bool = False) -> Iterator[Any]:
    """Yield what stands at a path: through objects and arrays. Of an object at the path's end, its keys or values."""
    match value:
        case JsonFields():
            for name, each in value:
                if steps and (name == steps[0] or (any_case and name.casefold() == steps[0].casefold())):
                    yield from _values_at(each, steps[1:], map_part, any_case=any_case)
                elif not steps and map_part == "key":
                    yield name
                elif not steps:
                    yield from _values_at(each, steps, map_part)
        case list():
            for each in cast(list[Any], value):
                yield from _values_at(each, steps, map_part, any_case=any_case)
        case None:
            return
        case _ if not steps:
            yield value
        case _:
            return


def _has_path(value: Any, steps: Sequence[str]) -> bool | None:
    """Return whether a path is there: through objects and arrays, and be it null. None: a null or an empty array on the
    way leaves it open.
    """
    if not steps:
        return True
    if isinstance(value, JsonFields):
        below = [_has_path(each, steps[1:]) for name, each in value if name == steps[0]]
        return reduce(_combine, below) if below else False
    if isinstance(value, list):
        return reduce(_combine, (_has_path(each, steps) for each in cast(list[Any], value)), None)
    return None if value is None else False


def _combine(one: bool | None, other: bool | None) -> bool | None:
    return True if one or other else False if False in (one, other) else None


def _is_set(value: Any, steps: Sequence[str]) -> bool:
    if not steps:
        return value is not None
    if isinstance(value, JsonFields):
        return any(_is_set(each, steps[1:]) for name, each in value if name == steps[0])
    if isinstance(value, list):
        raise VerifyReadError(f"an array leads to {steps[-1]!r}, so no run sets it to null")
    return False


# ---- the formats


class _CountFunction(Protocol):
    def __call__(
        self, source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount, *, is_of_id: bool
    ) -> BatchedLookup:
        """Count the rows of an object that have ids; return the lookup for the identifier's type."""
        ...


class _FormatReader(NamedTuple):
    """What tells of the files of a format."""

    read_rows: _CountFunction
    entries_of: Callable[[BinaryIO], Iterable[MetadataEntry]] | None = None
    """Returns what stands beside the rows."""
    schema_of: Callable[[BinaryIO], Any] | None = None
    """Returns the schema as one of Arrow. None: such files do not say which type their identifiers have."""


READERS: Final[Mapping[FileFormat, _FormatReader]] = {
    "parquet": _FormatReader(count_parquet, entries_of_parquet, pq.read_schema),
    "orc": _FormatReader(count_orc, entries_of_orc, schema_of_orc),
    "avro": _FormatReader(count_avro, entries_of_avro, schema_of_avro),
    "json": _FormatReader(_count_json),
    "csv": _FormatReader(_count_csv),
}
