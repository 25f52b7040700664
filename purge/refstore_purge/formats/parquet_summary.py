"""Summary files of Parquet data sets: `_metadata` has the row groups of all files with their statistics, so the lowest
and the highest identifier of each; `_common_metadata` has the schema and key-value metadata only.

When a file that `_metadata` describes is replaced, its offsets lead a reader to the wrong bytes. So a summary is never
edited: it is made again, of the footers that the files have now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from refstore_purge.formats import key_values
from refstore_purge.formats.base import FormatTask, IdMatcher, PurgeError
from refstore_purge.formats.parquet_chunks import FileAssembly
from refstore_purge.formats.parquet_file import make_footer, pairs_of, translate_read_errors
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    ThriftStruct,
    read_footer,
    write_footer,
)
from refstore_purge.formats.parquet_identifier import is_subsequence
from refstore_purge.formats.parquet_structs import ThriftType
from refstore_purge.untyped_pandas import pq

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
        source.seek(0)
        bounds = frozenset(_identifiers(pq.read_metadata(source), task))
        return ParquetSummary(dict(groups), bounds, list(pairs_of(footer)))


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


def _identifiers(metadata: Any, task: FormatTask) -> Iterator[bytes]:
    """Yield the lowest and the highest identifier of each row group, as texts. Where other columns are set to null, ids
    stay in theirs.
    """
    if task.set_null and not any(task.identifier[: len(null)] == null for null in task.set_null):
        return
    leaves = _leaves(metadata, task)
    for number in range(metadata.num_row_groups):
        for leaf in leaves:
            chunk = metadata.row_group(number).column(leaf)
            statistics = chunk.statistics if chunk.is_stats_set else None
            if statistics is None or not statistics.has_min_max:
                continue
            try:
                bounds = (statistics.min_raw, statistics.max_raw)
                bounds = (statistics.min, statistics.max) if isinstance(bounds[0], int) else bounds
            except UnicodeDecodeError:
                continue
            yield from (_text(bound) for bound in bounds)


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return str(value).encode(errors="replace")


def _leaves(metadata: Any, task: FormatTask) -> list[int]:
    """Return the numbers of the identifier's leaves; of a map those of its keys or of its values."""
    names = [metadata.schema.column(number).path.split(".") for number in range(metadata.num_columns)]
    root = task.identifier[0]
    mine = [number for number, path in enumerate(names) if path[0] == root]
    chosen = [number for number in mine if is_subsequence(task.identifier, names[number])]
    if len(chosen) > 1:
        chosen = [number for number in chosen if task.map_part in names[number]] or chosen
    return chosen
