"""Summary files of Parquet data sets: `_metadata` has the row groups of all files with their statistics, so the lowest
and the highest identifier of each; `_common_metadata` has the schema and key-value metadata only.

When a file that `_metadata` describes is replaced, its offsets lead a reader to the wrong bytes. So a summary is never
edited: it is made again, of the footers that the files have now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from refstore_purge.formats import key_values
from refstore_purge.formats.base import FormatTask, IdMatcher
from refstore_purge.formats.parquet_chunks import FileAssembly
from refstore_purge.formats.parquet_file import is_subsequence, make_footer, pairs_of, translate_read_errors
from refstore_purge.formats.parquet_footer import (
    BOUNDS,
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    SchemaElementField,
    ThriftStruct,
    ThriftType,
    read_footer,
    write_footer,
)
from refstore_purge.formats.parquet_schema import PhysicalType, SchemaNode, read_schema_tree
from refstore_purge.purge_error import PurgeError

RowGroups = Sequence[tuple[int, ...]]
"""Of each row group what tells it from that of another file: its rows and bytes, and where its columns begin."""


class ParquetSummary(NamedTuple):
    """What a summary file says."""

    files: dict[str, RowGroups]
    """By path from its folder, in its order."""
    identifier_bounds: frozenset[bytes]
    """The lowest and the highest identifier of each row group, as texts."""
    key_values: Sequence[Mapping[bytes, bytes] | None]
    """The metadata of the file and of its column chunks."""

    def has_ids(self, ids: IdMatcher) -> bool:
        """Return whether statistics of the identifier, or key-value metadata, have an id."""
        return bool(
            key_values.count_entries_with_ids(self.key_values, ids) or key_values.find_ids(self.identifier_bounds, ids)
        )


def read_summary(source: BinaryIO, task: FormatTask) -> ParquetSummary:
    """Read a summary file. Raises PurgeError."""
    with translate_read_errors():
        footer, _ = read_footer(source)
        groups: dict[str, list[tuple[int, ...]]] = {}
        for group in footer[FileField.ROW_GROUPS]:
            path = group[RowGroupField.COLUMNS][0].get(ColumnChunkField.FILE_PATH)
            if not path:
                raise PurgeError("it has rows of its own, and is no summary of other files; give it another name")
            groups.setdefault(path.decode("utf-8", "surrogateescape"), []).append(_row_group_key(group))
        return ParquetSummary(dict(groups), frozenset(_identifiers(footer, task)), list(pairs_of(footer)))


def row_groups_of(source: BinaryIO) -> RowGroups:
    """Return the row groups that a data file has. Raises PurgeError."""
    with translate_read_errors():
        footer, _ = read_footer(source)
        return [_row_group_key(group) for group in footer[FileField.ROW_GROUPS]]


def write_summary(
    source: BinaryIO, target: BinaryIO, files: Iterable[tuple[str, BinaryIO]], task: FormatTask, ids: IdMatcher
) -> None:
    """Write a summary again: its schema, its key-value metadata without ids, and the row groups of the files. Raises
    PurgeError.
    """
    with translate_read_errors():
        summary, _ = read_footer(source)
        groups: list[ThriftStruct] = []
        for path, file in files:
            footer, _ = read_footer(file)
            if footer[FileField.SCHEMA][1:] != summary[FileField.SCHEMA][1:]:
                raise PurgeError("the files that it describes have different schemas by now; write it again, or delete "
                                 "it")  # fmt: skip
            for group in footer[FileField.ROW_GROUPS]:
                for chunk in group[RowGroupField.COLUMNS]:
                    chunk.set(ColumnChunkField.FILE_PATH, ThriftType.STRING, path.encode("utf-8", "surrogateescape"))
                groups.append(group)
        FileAssembly(target).finish()
        write_footer(target, make_footer(summary, groups, ids, rows_changed=False))
    target.flush()
    target.seek(0)
    if read_summary(target, task).has_ids(ids):
        raise PurgeError("it describes files that still have an id; see why these were not purged")
    target.seek(0)


def _row_group_key(group: ThriftStruct) -> tuple[int, ...]:
    first, last = (
        group[RowGroupField.COLUMNS][0][ColumnChunkField.METADATA],
        group[RowGroupField.COLUMNS][-1][ColumnChunkField.METADATA],
    )
    return (
        group[RowGroupField.ROWS],
        group[RowGroupField.BYTES],
        first[ColumnMetadataField.DATA_PAGE],
        last[ColumnMetadataField.DATA_PAGE],
    )


def _identifiers(footer: ThriftStruct, task: FormatTask) -> Iterator[bytes]:
    """Yield the lowest and the highest identifier of each row group, as texts: also those that no reader would believe.
    Where other columns are set to null, ids stay in theirs.
    """
    if task.set_null and not any(task.identifier[: len(null)] == null for null in task.set_null):
        return
    leaves = _leaves(read_schema_tree(footer), task)
    for group in footer[FileField.ROW_GROUPS]:
        for leaf in leaves:
            metadata = group[RowGroupField.COLUMNS][leaf.first_leaf][ColumnChunkField.METADATA]
            statistics = metadata.get(ColumnMetadataField.STATISTICS, ThriftStruct())
            yield from (_text(statistics[field], leaf) for field in BOUNDS if field in statistics)


def _text(bound: bytes, leaf: SchemaNode) -> bytes:
    if leaf.element[SchemaElementField.TYPE] not in (PhysicalType.INT32, PhysicalType.INT64):
        return bound
    return str(int.from_bytes(bound, "little", signed=not leaf.is_unsigned)).encode()


def _leaves(root: SchemaNode, task: FormatTask) -> list[SchemaNode]:
    """Return the identifier's columns; of a map those of its keys or of its values."""
    mine = [leaf for leaf in root.leaves() if leaf.path[0] == task.identifier[0]]
    chosen = [leaf for leaf in mine if is_subsequence(task.identifier, leaf.path)]
    if len(chosen) > 1:
        chosen = [leaf for leaf in chosen if task.map_part in leaf.path] or chosen
    return chosen
