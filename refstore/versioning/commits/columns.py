"""Rows in columns, and their Parquet files. No other module of this package uses pyarrow.

pyarrow's stubs leave most of it unknown, so its modules are untyped here, and what the rest of the package sees of them
is `Rows` and `Column` below. A *layout* is what one kind of file holds; its name and version stand in the file's
metadata, and a file of another layout is not read. The first column is the key, in which rows are sorted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from io import SEEK_END
from typing import IO, Any, Final, Protocol, cast

from refstore.core.arrow_arrays import make_array, make_scalar, pa
from refstore.core.lazy_modules import LazyModule
from refstore.core.units import SUM_BYTES_MAX, sum_sizes
from refstore.objects.base import CHUNK_BYTES

# Lazily: pyarrow takes 50 MB and a third of a second. Processes that only stage, list staged entries, or reap
# uncommitted ones do not need it.
pc = cast(Any, LazyModule("pyarrow.compute"))
pq = cast(Any, LazyModule("pyarrow.parquet"))
ipc = cast(Any, LazyModule("pyarrow.ipc"))

SPOOL_BYTES: Final = 16 << 20
"""The size up to which a temporary file stays in memory."""


class Column(Protocol):
    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int | None = None) -> Column: ...

    def to_pylist(self) -> list[Any]: ...


class Rows(Protocol):
    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def column(self, number: int) -> Column: ...

    def slice(self, offset: int, length: int | None = None) -> Rows: ...


class UnreadableColumns(Exception):
    """The bytes are no file of the layout; the message says why."""


class ColumnKind(Enum):
    """How a column is stored. Measured on ranges of 500 rows: against Zstandard for everything, a third less time and a
    quarter more bytes; against LZ4 for everything, a quarter more time and two thirds of the bytes."""

    TEXT = "text"
    """Values that share much with their neighbours: LZ4."""
    DIGITS = "digits"
    """Checksums, and ids that hold them: nothing repeats, but few different characters occur. Zstandard halves them,
    LZ4 does nothing.
    """
    FEW = "few"
    """Text of which there are few different values: a dictionary."""
    SORTED = "sorted"
    """Text in order: what each value shares with the one before is left out; then Zstandard."""
    INTEGER = "integer"
    """Differences, packed."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The columns of one kind of file."""

    name: str
    """The metadata key that holds the version."""
    version: str
    fields: tuple[tuple[str, ColumnKind], ...]


_CODEC: Final = {
    ColumnKind.TEXT: "lz4",
    ColumnKind.DIGITS: "zstd",
    ColumnKind.FEW: "lz4",
    ColumnKind.SORTED: "zstd",
    ColumnKind.INTEGER: "none",
}
_ENCODING: Final = {ColumnKind.SORTED: "DELTA_BYTE_ARRAY", ColumnKind.INTEGER: "DELTA_BINARY_PACKED"}


@cache
def _schema(layout: Layout) -> Any:
    return pa.schema([pa.field(name, _type(kind), nullable=False) for name, kind in layout.fields])


@cache
def _options(layout: Layout) -> Mapping[str, Any]:
    return {
        "compression": {name: _CODEC[kind] for name, kind in layout.fields},
        "column_encoding": {name: _ENCODING[kind] for name, kind in layout.fields if kind in _ENCODING},
        "use_dictionary": [name for name, kind in layout.fields if kind is ColumnKind.FEW],
        # statistics would say what the metarange says, and the Arrow schema what the Parquet schema says
        "write_statistics": False,
        "store_schema": False,
    }


def _type(kind: ColumnKind) -> Any:
    return pa.int64() if kind is ColumnKind.INTEGER else pa.string()


# ---- making rows


def rows_of(layout: Layout, columns: Sequence[Sequence[object]]) -> Rows:
    """Make rows. Raises ValueError for an integer beyond 64 bits, and for text that is not Unicode."""
    try:
        arrays = [make_array(values, _type(kind)) for values, (_, kind) in zip(columns, layout.fields, strict=True)]
        if any(each.null_count for each in arrays):
            raise TypeError("None where there must be a value")
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(layout))
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error


def rows_of_columns(layout: Layout, arrays: Sequence[Column]) -> Rows:
    """Make rows of existing columns."""
    return pa.RecordBatch.from_arrays(list(arrays), schema=_schema(layout))


def text_column(values: Sequence[str]) -> Column:
    """Make a text column. Raises ValueError for text that is not Unicode."""
    try:
        return make_array(values, pa.string())
    except (pa.ArrowException, UnicodeError) as error:
        raise ValueError(str(error)) from error


def integer_column(values: Sequence[int]) -> Column:
    return make_array(values, pa.int64())


def join_columns(parts: Sequence[Column | str], between: str = "") -> Column:
    """Join the parts row by row; a text part is repeated in each row. Integers become decimal digits."""
    columns = [
        make_scalar(part, pa.string()) if isinstance(part, str) else pc.cast(part, pa.string()) for part in parts
    ]
    return pc.binary_join_element_wise(*columns, make_scalar(between, pa.string()))


def map_matches(column: Column, pattern: str, change: Callable[[str], str]) -> Column:
    """Apply `change` to those values in which the pattern occurs (RE2)."""
    places = pc.match_substring_regex(column, pattern)
    if not pc.any(places).as_py():
        return column
    values: Any = column
    return pc.replace_with_mask(
        values, places, make_array([change(value) for value in values.filter(places).to_pylist()], pa.string())
    )


def merge_sorted(parts: Sequence[Rows]) -> Rows:
    """Merge the parts, sorted by key; of rows with equal keys the row of the last part is kept."""
    rows: Any = concatenate(parts)
    rank = make_array([at for at, part in enumerate(parts) for _ in range(part.num_rows)], pa.int64())
    ranked = pa.table({"key": rows.column(0), "rank": rank})
    order = pc.sort_indices(ranked, sort_keys=[("key", "ascending"), ("rank", "ascending")])
    keys = rows.column(0).take(order)
    if len(keys) > 1:
        is_last = pa.concat_arrays(
            [pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1)), make_array([True], pa.bool_())]
        )
        order = order.filter(is_last)
    return rows.take(order)


def empty_rows(layout: Layout) -> Rows:
    return rows_of(layout, [()] * len(layout.fields))


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Concatenate the parts."""
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def take_rows(rows: Rows, places: Sequence[int]) -> Rows:
    """Return the rows at those places, in that order."""
    return pc.take(rows, make_array(places, pa.int64()))


# ---- looking at rows


def text_at(rows: Rows, column: int, at: int) -> str:
    values: Any = rows.column(column)
    return values[at].as_py()


def last_key(rows: Rows) -> str:
    return text_at(rows, 0, rows.num_rows - 1)


def sum_column(rows: Rows, column: int) -> int:
    """Add up sizes. What many of them add up to may be more than Arrow's sum holds, which begins again from below."""
    values = rows.column(column)
    bounds: Any = pc.min_max(values).as_py()
    if (bounds["min"] or 0) >= 0 and (bounds["max"] or 0) * len(values) <= SUM_BYTES_MAX:
        return pc.sum(values).as_py() or 0
    return sum_sizes(values.to_pylist())


def find_position(rows: Rows, key: str, *, behind: bool = False) -> int:
    """Return the place of `key`, or where it would be; with `behind`, the place after it."""
    find = bisect_right if behind else bisect_left
    return find(range(rows.num_rows), key, key=_key_reader(rows))


def find_first_without_prefix(rows: Rows, prefix: str, start: int) -> int:
    """Return the place of the first row from `start` on whose key does not start with `prefix`.

    The keys from `start` on do not sort before the prefix.
    """
    key_at = _key_reader(rows)
    return bisect_left(range(rows.num_rows), True, lo=start, key=lambda at: not key_at(at).startswith(prefix))


def _key_reader(rows: Rows) -> Callable[[int], str]:
    keys: Any = rows.column(0)
    return lambda at: keys[at].as_py()


def is_strictly_increasing(keys: Column) -> bool:
    """Return whether the keys increase strictly."""
    if len(keys) < 2:
        return True
    return pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py()


def places_of(keys: Sequence[str], rows: Rows) -> list[int]:
    """Return the places of those keys that are among the rows."""
    return pc.index_in(make_array(keys, pa.string()), value_set=rows.column(0)).drop_null().to_pylist()


def compare_values(left: Rows, right: Rows, compared: Sequence[int]) -> list[bool]:
    """Return row by row whether these columns are equal."""
    return _compare_values(left, right, compared).to_pylist()


def drop_equal(left: Rows, right: Rows, compared: Sequence[int]) -> tuple[Rows, Rows]:
    """Remove the rows that are in both: those with the same key, and equal in these columns."""
    if not left.num_rows or not right.num_rows:
        return left, right
    places = pc.index_in(right.column(0), value_set=left.column(0))
    common = pc.is_valid(places)
    here = pc.indices_nonzero(common)
    left_places = places.filter(common)
    equal = _compare_values(pc.take(right, here), pc.take(left, left_places), compared)
    return _drop_rows(left, left_places.filter(equal)), _drop_rows(right, here.filter(equal))


def _compare_values(left: Rows, right: Rows, compared: Sequence[int]) -> Any:
    equal = None
    for at in compared:
        same = pc.equal(left.column(at), right.column(at))
        equal = same if equal is None else pc.and_(equal, same)
    return equal


def _drop_rows(rows: Any, places: Any) -> Rows:
    numbers = make_array(range(rows.num_rows), pa.int64())
    return rows.filter(pc.invert(pc.is_in(numbers, value_set=places.cast(pa.int64()))))


# ---- columns alone


def filter_matches(column: Column, pattern: str) -> Column:
    """Return the values that the pattern matches completely (RE2)."""
    values: Any = column
    return values.filter(pc.match_substring_regex(values, f"^(?:{pattern})$"))


def merge_unique(parts: Sequence[Column]) -> Column:
    values = pa.concat_arrays(parts)
    values = values.take(pc.sort_indices(values))
    if len(values) < 2:
        return values
    differs = pc.not_equal(values.slice(1), values.slice(0, len(values) - 1))
    return pa.concat_arrays([values.slice(0, 1), values.slice(1).filter(differs)])


class RowSpill:
    """Rows in a temporary file, read again by their number after all were added."""

    def __init__(self, layout: Layout) -> None:
        from tempfile import SpooledTemporaryFile

        self._file = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115  # closed by `close`
        self._writer: Any = ipc.new_file(self._file, _schema(layout))
        self._reader: Any = None
        self.written = 0

    def add(self, rows: Rows) -> None:
        self._writer.write_batch(rows)
        self.written += 1

    def read(self, number: int) -> Rows:
        if self._reader is None:
            self._writer.close()
            self._file.seek(0)
            self._reader = ipc.open_file(self._file)
        return self._reader.get_batch(number)

    def close(self) -> None:
        self._file.close()


# ---- files


def encode(layout: Layout, rows: Rows, metadata: Mapping[str, str] | None = None) -> bytes:
    """Encode rows as a file. Equal rows give equal bytes under the same version of pyarrow."""
    sink = pa.BufferOutputStream()
    with _writer(layout, sink) as writer:
        writer.write_table(pa.Table.from_batches([rows]))
        writer.add_key_value_metadata({layout.name: layout.version, **(metadata or {})})
    return sink.getvalue().to_pybytes()


@contextmanager
def open_encoder(
    layout: Layout, file: IO[bytes], row_group_rows: int, metadata: Mapping[str, str]
) -> Generator[Callable[[Column], None]]:
    """Write a file of one column, piece by piece."""
    with _writer(layout, file) as writer:
        schema = _schema(layout)
        yield lambda piece: writer.write_table(
            pa.Table.from_arrays([piece], schema=schema), row_group_size=row_group_rows
        )
        writer.add_key_value_metadata({layout.name: layout.version, **metadata})


def _writer(layout: Layout, sink: object) -> Any:
    return pq.ParquetWriter(sink, _schema(layout), **_options(layout))


def decode(layout: Layout, body: bytes, only: Sequence[str] | None = None) -> tuple[Rows, dict[str, str]]:
    """Return the rows, or `only` some columns of them, and the file's metadata. Raises UnreadableColumns.

    The caller knows that the bytes are whole.
    """
    try:
        file, metadata = _open(layout, pa.BufferReader(body))
        batches = file.read(columns=only, use_threads=False).combine_chunks().to_batches()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_columns(error) from error
    return (batches[0] if batches else empty_rows(layout)), metadata


def decode_batches(layout: Layout, file: IO[bytes], batch_rows: int) -> tuple[Iterator[Rows], dict[str, str]]:
    """Return the rows of a file that need not fit into memory, batch by batch, and the file's metadata.

    Raises UnreadableColumns, also when the next rows are asked for.
    """
    try:
        small = file.seek(0, SEEK_END) <= CHUNK_BYTES  # read at once: Arrow would call Python for each piece of it
        file.seek(0)
        parquet, metadata = _open(layout, pa.BufferReader(file.read()) if small else file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_columns(error) from error
    return _batches(parquet, batch_rows), metadata


def _batches(parquet: Any, batch_rows: int) -> Iterator[Rows]:
    try:
        yield from parquet.iter_batches(batch_rows, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_columns(error) from error


def _unreadable_columns(error: Exception) -> UnreadableColumns:
    return UnreadableColumns(f"it is not Parquet that can be read: {error}")


def _open(layout: Layout, source: object) -> tuple[Any, dict[str, str]]:
    """Open a file; return it and its metadata. Raises UnreadableColumns if it has another layout."""
    file = pq.ParquetFile(source)
    pairs = cast(dict[bytes, bytes], file.metadata.metadata or {})
    metadata = {key.decode(): value.decode() for key, value in pairs.items()}
    version = metadata.get(layout.name)
    if version == layout.version and file.schema_arrow.equals(_schema(layout)):
        return file, metadata
    raise UnreadableColumns(
        f"it has {layout.name} version {version!r}, this program reads {layout.version!r}; a newer refstore may read it"
    )
