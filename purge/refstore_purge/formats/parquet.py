"""Parquet: find ids by statistics and the identifier's column, and rewrite row group by row group.

A rewritten file keeps its schema, its row groups, its key-value metadata but for entries with an id, and of each column
codec, dictionary, Bloom filter and whether it has statistics. What pyarrow would not keep is refused: the written
footer is compared.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

import numpy as np

from refstore_purge.formats import key_values
from refstore_purge.formats.base import (
    Found,
    Ids,
    PurgeError,
    Rewritten,
    See,
    Seeing,
    Task,
    name_of,
)
from refstore_purge.formats.nested import check_schema, rows_that_match, set_null, timestamps_in
from refstore_purge.store_file import buffer_bytes_of
from refstore_purge.untyped_arrow import pa, pc, pq

BATCH_ROWS: Final = 131_072
BLOOM_FPP: Final = 0.05
"""The share of false positives of a Bloom filter; files do not say which theirs had."""
_NS_RANGE_IN_US: Final = 2**63 // 1000 - 1
_CODECS: Final = {"UNCOMPRESSED": "NONE"}
"""Codecs that pyarrow's writer names otherwise than its reader."""


def find(source: BinaryIO, task: Task, ids: Ids, see: See | None = None) -> Found:
    """Look for the ids. Raises PurgeError."""
    with readable():
        file = _open(source)
        check_schema(file.schema_arrow, task, ids)
        if task.every_row and not task.set_null:
            entries = key_values.entries_with_ids(key_values_of(file), ids)
            return Found(file.metadata.num_rows, file.metadata.num_rows, "partition", entries)
        leaf = _plain_leaf(file, task)
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if leaf is None or task.ignore_statistics or _may_match(file.metadata.row_group(number).column(leaf), ids)
        ]
        if groups and see is not None:
            groups = list(range(file.metadata.num_row_groups))
            ids = Seeing(ids, see)
        matched = 0
        if groups:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=_leaves(file, task)):
                matched += int(np.count_nonzero(rows_that_match(batch, task, ids)))
        by = "partition" if task.every_row else "column" if groups else "statistics"
        return Found(file.metadata.num_rows, matched, by, key_values.entries_with_ids(key_values_of(file), ids))


def rewrite(source: BinaryIO, target: BinaryIO, task: Task, ids: Ids) -> Rewritten:
    """Write the file without the rows that match, or with nulls in them. Raises PurgeError."""
    matched = 0
    with readable():
        file = _open(source)
        check_schema(file.schema_arrow, task, ids)
        metadata = file.metadata
        schema, options = _options(file, task)
        with pq.ParquetWriter(target, schema, **options) as writer:
            for number in range(metadata.num_row_groups):
                kept, found = _kept(file, number, schema, task, ids)
                matched += found
                if len(kept):
                    writer.write_table(kept, row_group_size=len(kept))
                del kept  # before the next one is read
            # with the schema of Arrow, which says how the file is read again
            pairs = key_values.without_ids(metadata.metadata, ids, rows_changed=matched > 0)
            if pairs:
                writer.add_key_value_metadata(pairs)
        _check_written(file, target, metadata.num_rows - (0 if task.set_null else matched), pairs)
    return Rewritten(metadata.num_rows, matched, key_values.entries_with_ids(key_values_of(file), ids))


def write_without_rows(source: BinaryIO, target: BinaryIO, ids: Ids) -> None:
    """Write a file of the same schema without rows, and with the metadata that has no id. Raises PurgeError."""
    with readable():
        file = pq.ParquetFile(source, pre_buffer=False)
        schema, options = _options(file, Task(()))
        pairs = key_values.without_ids(file.metadata.metadata, ids, rows_changed=False)
        with pq.ParquetWriter(target, schema, **options) as writer:
            if pairs:
                writer.add_key_value_metadata(pairs)
        _check_written(file, target, 0, pairs)


def key_values_of(file: Any) -> Generator[Mapping[bytes, bytes] | None, None, None]:
    """Yield the metadata of the file and of its column chunks; pyarrow does not write these again."""
    yield file.metadata.metadata
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for column in range(group.num_columns):
            yield group.column(column).metadata


def _kept(file: Any, number: int, schema: Any, task: Task, ids: Ids) -> tuple[Any, int]:
    """Return what stays of a row group, and how many rows match.

    The columns that tell are read first, then one after another, so that no other is in memory as it was and as it
    will be.
    """
    names: list[str] = schema.names
    telling = {path[0] for path in (task.identifier, *task.set_null)} & {*names} or {names[0]}
    rest = [name for name in names if name not in telling]
    if _has_dots(file) or len({*names}) < len(names):
        telling, rest = {*names}, []  # pyarrow would take a name for more columns than one
    table = _read(file, number, schema, [name for name in names if name in telling])
    batches = table.to_batches()
    found = [rows_that_match(batch, task, ids) for batch in batches]
    rows = np.concatenate([np.zeros(0, dtype=np.bool_), *found])
    keep = pa.array(~rows) if rows.any() and not task.set_null else None
    if task.set_null:
        nulled = [set_null(batch, task.set_null, of) for batch, of in zip(batches, found, strict=True)]
        table = pa.Table.from_batches(nulled, table.schema)
    table = _filtered(table, keep)
    del batches
    if rest:
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        for name in rest:
            columns[name] = _filtered(_read(file, number, schema, [name]), keep).column(0)
        table = pa.table([columns[name] for name in names], schema=schema)
    return table, int(np.count_nonzero(rows))


def _read(file: Any, number: int, schema: Any, names: Sequence[str]) -> Any:
    """Read these columns of a row group, which are in the file's order."""
    if len(names) == len(schema):
        return file.read_row_group(number).cast(schema)
    return file.read_row_group(number, columns=names).cast(pa.schema([schema.field(name) for name in names]))


def _filtered(table: Any, keep: Any) -> Any:
    return table if keep is None else table.filter(keep)


@contextmanager
def readable() -> Generator[None, None, None]:
    """Raise PurgeError where pyarrow cannot read a file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        what = "it is encrypted" if "crypt" in str(error).lower() else "it is damaged, or no Parquet"
        raise PurgeError(f"the file cannot be read: {what}; see to it by other means") from error


def _open(source: BinaryIO) -> Any:
    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer_bytes_of(source))
    if file.metadata.num_columns == 0:
        raise PurgeError("the file has no columns; correct the data set's prefix")
    int96 = [path for path, column in _columns(file) if column.physical_type == "INT96"]
    if not int96:
        return file
    in_us = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us")
    return in_us if _fits_in_us(file, in_us, int96) else file


def _columns(file: Any) -> list[tuple[str, Any]]:
    schema = file.schema
    return [(schema.column(number).path, schema.column(number)) for number in range(len(schema))]


def _fits_in_us(in_ns: Any, in_us: Any, columns: Sequence[str]) -> bool:
    """Return whether timestamps of 96 bits are read whole as microseconds; False: as nanoseconds. Raises PurgeError if
    neither does: nanoseconds of 64 bits end in the year 2262.
    """
    has_ns = is_far = False
    for number in range(in_ns.metadata.num_row_groups):
        fine = in_ns.read_row_group(number, columns=columns).flatten().columns
        coarse = in_us.read_row_group(number, columns=columns).flatten().columns
        for ns, us in zip(timestamps_in(fine), timestamps_in(coarse), strict=True):
            far = pc.or_(pc.less(us, -_NS_RANGE_IN_US), pc.greater(us, _NS_RANGE_IN_US))
            is_far |= bool(pc.any(far).as_py())
            differs = pc.not_equal(ns, pc.multiply(us, 1000))
            has_ns |= bool(pc.any(pc.and_(differs, pc.invert(far))).as_py())
    if has_ns and is_far:
        raise PurgeError("the file has timestamps of 96 bits that pyarrow cannot read; purge it by other means")
    return not has_ns


def _plain_leaf(file: Any, task: Task) -> int | None:
    """Return the column of an identifier that lies in no list or map, so that its statistics are those of rows."""
    wanted = name_of(task.identifier)
    schema = file.schema
    if task.every_row or _has_dots(file):
        return None
    for number in range(len(schema)):
        column = schema.column(number)
        if column.path == wanted and column.max_repetition_level == 0:
            return number
    return None


def _may_match(chunk: Any, ids: Ids) -> bool:
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return True
    if statistics.has_null_count and statistics.null_count == chunk.num_values:
        return False
    try:
        return not statistics.has_min_max or ids.may_match(statistics.min, statistics.max)
    except UnicodeDecodeError:  # strings that are none
        return True


def _leaves(file: Any, task: Task) -> Sequence[str]:
    """Return the columns to read: the identifier's leaf, under the names that lists and maps have in the file, and what
    is set to null.
    """
    paths = [path for path, _ in _columns(file)]
    if _has_dots(file):
        return paths
    mine = [path for path in paths if path.split(".")[0] == task.identifier[0]]
    chosen = [path for path in mine if is_subsequence(task.identifier, path.split("."))] or mine
    if not task.every_row and _has_map(file.schema_arrow.field(task.identifier[0]).type):
        chosen = mine  # without its keys a map would be read as a list
    return [*chosen, *(path for path in paths for null in task.set_null if path.split(".")[: len(null)] == list(null))]


def _has_dots(file: Any) -> bool:
    """Return whether a name has a dot, so that a path does not say which column it means."""

    def has(fields: Any) -> bool:
        return any("." in field.name or has(_fields_of(field.type)) for field in fields)

    return has(file.schema_arrow)


def _fields_of(type_: Any) -> list[Any]:
    return [type_.field(number) for number in range(type_.num_fields)]


def _has_map(type_: Any) -> bool:
    return pa.types.is_map(type_) or any(_has_map(field.type) for field in _fields_of(type_))


def is_subsequence(wanted: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path goes through the wanted names, in their order."""
    rest = iter(path)
    return all(step in rest for step in wanted)


def _plain(type_: Any) -> Any:
    """Return a type without dictionaries, which keep the values of rows that went, and without views, of which Arrow
    cannot choose rows. Raises PurgeError.
    """
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    fields = [field.with_type(_plain(field.type)) for field in _fields_of(type_)]
    if pa.types.is_struct(type_):
        return pa.struct(fields)
    if pa.types.is_map(type_):
        return pa.map_(fields[0].type.field(0), fields[0].type.field(1), keys_sorted=type_.keys_sorted)
    if pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_):
        raise PurgeError("the file has views of lists, which pyarrow cannot rewrite; purge it by other means")
    if pa.types.is_large_list(type_):
        return pa.large_list(fields[0])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(fields[0], type_.list_size)
    return pa.list_(fields[0]) if pa.types.is_list(type_) else type_


def _options(file: Any, task: Task) -> tuple[Any, dict[str, Any]]:
    """Return the schema of the new file, and what its writer is to do as the old one's did."""
    metadata = file.metadata
    schema = pa.schema([field.with_type(_plain(field.type)) for field in file.schema_arrow])
    decimals = [column for _, column in _columns(file) if column.logical_type.type == "DECIMAL"]
    options: dict[str, Any] = {
        "version": metadata.format_version if metadata.format_version in ("1.0", "2.4", "2.6") else "2.6",
        "store_schema": False,  # it comes with the metadata
        "store_decimal_as_integer": any(column.physical_type in ("INT32", "INT64") for column in decimals),
        "use_compliant_nested_type": not any(
            ".list.item" in file.schema.column(number).path for number in range(len(file.schema))
        ),
        "use_deprecated_int96_timestamps": any(column.physical_type == "INT96" for _, column in _columns(file)),
    }
    if not metadata.num_row_groups:
        return schema, options
    group = metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    options["compression"] = {
        chunk.path_in_schema: _CODECS.get(chunk.compression, chunk.compression) for chunk in chunks
    }
    options["use_dictionary"] = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page] or False
    options["write_statistics"] = [chunk.path_in_schema for chunk in chunks if chunk.is_stats_set] or False
    options["write_page_index"] = any(chunk.has_column_index for chunk in chunks)
    sorted_by = [chunks[each.column_index].path_in_schema for each in group.sorting_columns]
    if not any(
        path == name_of(null) or path.startswith(f"{name_of(null)}.") for path in sorted_by for null in task.set_null
    ):
        options["sorting_columns"] = group.sorting_columns or None
    options["bloom_filter_options"] = {
        chunk.path_in_schema: {"ndv": max(1, group.num_rows), "fpp": BLOOM_FPP}
        for chunk in chunks
        if chunk.bloom_filter_offset is not None
    } or None
    return schema, options


def _check_written(file: Any, target: BinaryIO, rows: int, pairs: Mapping[bytes, bytes]) -> None:
    """Raise PurgeError where the new file is not what the old one was, but for its rows, with this metadata."""
    target.flush()
    target.seek(0)
    written = pq.ParquetFile(target, pre_buffer=False)
    if not written.schema.equals(file.schema):
        raise PurgeError("pyarrow cannot write this file's schema as it is; purge it by other means")
    if written.metadata.num_rows != rows:
        raise PurgeError(f"the new file has {written.metadata.num_rows} rows instead of {rows}; report this")
    if (written.metadata.metadata or {}) != pairs:
        raise PurgeError("pyarrow cannot keep this file's metadata; purge it by other means")
