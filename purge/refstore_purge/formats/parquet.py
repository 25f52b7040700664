"""Parquet: find ids by statistics and the identifier's column, and rewrite the row groups that have some.

What does not change is copied byte for byte: the footer but for entries of its metadata that have an id, row groups
without a match, and columns that stay beside those that are set to null. pyarrow writes the rest as it is stored
(`parquet_schema.py`), each column of each row group with the codec, the encoding and the indexes that it had
(`parquet_chunks.py`). What pyarrow would not keep is refused.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import numpy as np

from refstore_purge.formats.base import FormatTask, IdMatcher, SearchResult, name_of
from refstore_purge.formats.nested_columns import match_rows, rows_with_values, set_null
from refstore_purge.formats.parquet_chunks import (
    ChunkSource,
    FileAssembly,
    check_chunk,
    check_codec,
    chunk_extent,
    read_storage,
    restore_chunk_schema,
    writer_options,
)
from refstore_purge.formats.parquet_file import (
    ParquetFile,
    leaves_of,
    make_footer,
    translate_read_errors,
)
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    FileField,
    RowGroupField,
    ThriftStruct,
    read_footer,
    write_footer,
)
from refstore_purge.formats.parquet_schema import SchemaNode, make_view, read_schema_tree
from refstore_purge.formats.unclosed_file import FileEnd, UnclosedFile
from refstore_purge.purge_error import OtherMeansError, PurgeError
from refstore_purge.untyped_pandas import pa, pc, pq

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS: Final = 131_072
SPOOLED_BYTES: Final = 8 * 1024 * 1024
"""A row group that pyarrow writes is in memory if it is not larger, compressed."""
_WRONG_SIZES: Final = re.compile(rb"parquet-mr version 1\.([01]\D|2\.[0-8]\D|2\.[0-8]$)")
"""Writers whose chunks are longer than they say (PARQUET-816): nothing of theirs is copied as it is."""


def schema_of(source: BinaryIO) -> Any:
    """Return the schema of a file, without columns whose types pyarrow does not know. Raises PurgeError."""
    with suppress(pa.ArrowException, OSError):
        return pq.read_schema(source)
    with translate_read_errors():
        footer, _ = read_footer(source)
        fields: list[Any] = []
        for top in read_schema_tree(footer).children:
            with suppress(PurgeError):
                fields += make_view(footer, [top], [], is_plain=False).schema.to_arrow_schema()
        return pa.schema(fields)


def find(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Look for the ids. Raises PurgeError."""
    with translate_read_errors():
        file = ParquetFile(source, task, ids)
        if task.matches_every_row and not task.set_null:
            return SearchResult(file.rows, file.rows, "partition", file.entries_with_ids)
        is_ruled_out = file.is_ruled_out()
        matched = 0 if is_ruled_out else _count_matching_rows(file, task, ids)
        by = "partition" if task.matches_every_row else "statistics" if is_ruled_out else "column"
        return SearchResult(file.rows, matched, by, file.entries_with_ids)


def _count_matching_rows(file: ParquetFile, task: FormatTask, ids: IdMatcher) -> int:
    """Return how many rows match. Raises PurgeError."""
    matched = rows = 0
    for number in range(len(file.groups)):  # of several at once pyarrow reads no dictionary in a struct
        for batch in _batches(file, number, task):
            matched += int(np.count_nonzero(match_rows(batch, task, ids)))
            rows += len(batch)
    _check_rows(rows, file.rows, name_of(task.identifier))
    return matched


def _batches(file: ParquetFile, number: int, task: FormatTask) -> Iterator[Any]:
    """Yield what decides of the rows of a row group, some rows at a time."""
    columns = leaves_of(file.typed, task)
    yield from file.typed.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns, use_threads=False)


def rewrite(source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Write the file without the rows that match, or with nulls in them. Raises PurgeError.

    Column chunks in which nothing changes are copied byte for byte; pyarrow writes the others, and the footer stays as
    it was but for what these need.
    """
    with translate_read_errors():
        file = ParquetFile(source, task, ids)
        assembly = FileAssembly(target)
        groups: list[ThriftStruct] = []
        tops = _changed_roots(file.root, task)
        every = [_match_group(file, number, tops, task, ids) for number in range(len(file.groups))]
        matched = sum(int(np.count_nonzero(rows)) for rows in every)
        if matched:
            file.check_categories(tops)
        for number, (group, rows) in enumerate(zip(file.groups, every, strict=True)):
            found = int(np.count_nonzero(rows))
            left = len(rows) - (0 if task.set_null else found)
            if left or not len(rows):
                changed = [top for top in tops if found or (matched and _has_spare_values(file, number, top))]
                with tempfile.SpooledTemporaryFile(SPOOLED_BYTES, prefix="refstore-purge-") as written:
                    chunks = _make_chunks(file, number, changed, task, rows, cast(BinaryIO, written))
                    groups.append(assembly.add_group(_keep_sorting(group, file.root, task), left, chunks))
        assembly.finish()
        footer = make_footer(file.footer, groups, ids, rows_changed=matched > 0)
        write_footer(target, footer)
        _check_written(footer, target)
        return SearchResult(file.rows, matched, "column", file.entries_with_ids)


def _has_spare_values(file: ParquetFile, number: int, top: SchemaNode) -> bool:
    """Return whether a dictionary has more values than stand in the rows of a row group, as those of categories have:
    then what a row had that goes may stand in it, though the row is of another group.
    """
    chunks = file.groups[number][RowGroupField.COLUMNS]
    counts = [read_storage(file.source, chunks[leaf.first_leaf]).dictionary_values for leaf in top.leaves()]
    if not any(counts):
        return False
    column = _read(file.open_view([top], [number], is_plain=True), top).column(0)
    parts = [list(_leaf_values(chunk)) for chunk in column.chunks]
    if not parts:
        return True
    return any(
        count and pc.count_distinct(pa.chunked_array([part[place] for part in parts])).as_py() < count
        for place, count in enumerate(counts)
    )


def _leaf_values(values: Any) -> Iterator[Any]:
    """Yield what stands in the leaves of a plain column, in their order."""
    if pa.types.is_struct(values.type):
        for child in values.flatten():
            yield from _leaf_values(child)
    elif pa.types.is_list(values.type):
        yield from _leaf_values(values.flatten())
    else:
        yield values


def _changed_roots(root: SchemaNode, task: FormatTask) -> Sequence[SchemaNode]:
    """Return the outermost columns of which something changes."""
    if not task.set_null:
        return root.children
    names = {null[0] for null in task.set_null}
    return [node for node in root.children if node.name in names]


def _match_group(
    file: ParquetFile, number: int, tops: Sequence[SchemaNode], task: FormatTask, ids: IdMatcher
) -> NDArray[np.bool_]:
    """Return for each row of a row group whether it matches."""
    rows = np.full(file.groups[number][RowGroupField.ROWS], task.matches_every_row)
    if not task.matches_every_row:
        by_column = replace(task, set_null=())
        found = [match_rows(batch, by_column, ids) for batch in _batches(file, number, by_column)]
        _check_rows(sum(map(len, found)), len(rows), name_of(task.identifier))
        rows = np.concatenate([rows[:0], *found])
    if task.set_null and rows.any():
        plain = file.open_view(tops, [number], is_plain=True)
        paths = _plain_paths(file.root, task)
        table = pa.table([_read(plain, top).column(0) for top in tops], schema=plain.schema_arrow)
        sets = [rows_with_values(batch, paths) for batch in table.to_batches()]
        rows = rows & np.concatenate([rows[:0], *sets])
    return rows


def _plain_paths(root: SchemaNode, task: FormatTask) -> list[list[str]]:
    """Return the names that the columns to set to null have in a plain view."""
    paths: list[list[str]] = []
    for null in task.set_null:
        node = root
        paths.append([])
        for name in null:
            node = node.child(name)
            paths[-1].append(node.plain_name)
    return paths


def _make_chunks(
    file: ParquetFile,
    number: int,
    tops: Sequence[SchemaNode],
    task: FormatTask,
    rows: NDArray[np.bool_],
    written: BinaryIO,
) -> list[tuple[ChunkSource, ThriftStruct]]:
    """Return the column chunks of a row group as they are to be: of `tops` without the rows, or with nulls in them,
    in the file `written`; all others as they are.
    """
    group = file.groups[number]
    if _WRONG_SIZES.match(file.footer.get(FileField.CREATED_BY, b"")):
        tops = file.root.children
    chunks = [(file.source, chunk) for chunk in group[RowGroupField.COLUMNS]]
    if not tops:
        return chunks
    plain = file.open_view(tops, [number], is_plain=True)
    paths = _plain_paths(file.root, task)
    keep = pa.array(~rows) if rows.any() and not task.set_null else None
    for top in tops:  # one after another, so that no other is in memory
        leaves = list(top.leaves())
        for leaf in leaves:
            check_codec(leaf, group[RowGroupField.COLUMNS][leaf.first_leaf][ColumnChunkField.METADATA])
        before = [read_storage(file.source, group[RowGroupField.COLUMNS][leaf.first_leaf]) for leaf in leaves]
        table = _change_column(_read(plain, top), paths, rows, keep)
        of_column = cast(BinaryIO, FileEnd(written))
        _write(table, of_column, writer_options(leaves, _written_paths(table.schema), before, len(rows)))
        del table
        footer, end = read_footer(of_column)
        made = ChunkSource(of_column, end)
        (new,) = footer[FileField.ROW_GROUPS]
        for leaf, was, became, chunk in zip(
            leaves, before, read_schema_tree(footer).leaves(), new[RowGroupField.COLUMNS], strict=True
        ):
            old = group[RowGroupField.COLUMNS][leaf.first_leaf]
            changed = restore_chunk_schema(chunk, leaf, was, old)
            check_chunk(leaf, became, was, read_storage(made, changed))
            chunks[leaf.first_leaf] = made, changed
    return chunks


def _read(plain: Any, top: SchemaNode) -> Any:
    """Return a column of the one row group of a plain view. Raises PurgeError."""
    try:
        table = plain.read_row_group(0, columns=[top.plain_name], use_threads=False)
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise OtherMeansError(
            f"column {top.name!r} cannot be read: pyarrow does not know how it is stored, or its pages are broken"
        ) from error
    _check_rows(len(table), plain.metadata.num_rows, top.name)
    return table


def _check_rows(there: int, said: int, name: str) -> None:
    """Raise PurgeError unless pyarrow read as many rows of a column as the footer says: else they would be taken for
    others.
    """
    if there != said:
        raise OtherMeansError(
            f"pyarrow reads {there} rows of column {name!r}, and the footer says {said}: it is damaged, or stored as "
            "pyarrow does not know"
        )


def _change_column(column: Any, paths: Sequence[Sequence[str]], rows: NDArray[np.bool_], keep: Any) -> Any:
    """Return a plain column without the rows that go, or with nulls at the paths that lie in it."""
    if keep is not None:
        return column.filter(keep)
    mine = [path for path in paths if path[0] == column.schema.names[0]]
    batches: list[Any] = []
    at = 0
    for batch in column.to_batches():
        batches.append(set_null(batch, mine, rows[at : at + len(batch)]))
        at += len(batch)
    return pa.Table.from_batches(batches, column.schema)


def _write(table: Any, target: BinaryIO, how: Mapping[str, Any]) -> None:
    """Write a file with one row group."""
    with pq.ParquetWriter(UnclosedFile(target), table.schema, **how) as writer:
        writer.write_table(table, row_group_size=max(1, len(table)))


def _written_paths(schema: Any) -> list[str]:
    """Return what pyarrow's writer calls the columns of a schema."""
    file = io.BytesIO()
    _write(schema.empty_table(), file, {"store_schema": False})
    empty = pq.read_metadata(file).schema
    return [empty.column(number).path for number in range(len(empty))]


def _keep_sorting(group: ThriftStruct, root: SchemaNode, task: FormatTask) -> ThriftStruct:
    """Return a row group that does not say to be sorted by what is set to null."""
    nulled = {
        leaf.first_leaf
        for leaf in root.leaves()
        if any(leaf.path[: len(null)] == tuple(null) for null in task.set_null)
    }
    return (
        group.copy_without(RowGroupField.SORTING)
        if any(each[1] in nulled for each in group.get(RowGroupField.SORTING, ()))
        else group
    )


def _check_written(footer: ThriftStruct, target: BinaryIO) -> None:
    """Raise PurgeError where the new file does not have this footer, or a chunk does not lie in it."""
    target.flush()
    target.seek(0)
    there, end = read_footer(target)
    if there != footer:
        raise PurgeError("the new file has another footer than was written; report this")
    for group in there[FileField.ROW_GROUPS]:
        for chunk in group[RowGroupField.COLUMNS]:
            chunk_extent(ChunkSource(target, end), chunk)
    target.seek(0)
