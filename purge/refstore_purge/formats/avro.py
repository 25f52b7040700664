"""Avro: find ids in the blocks of object container files, and write again only those blocks that have some.

A rewritten file keeps its schema byte for byte, its codec, sync marker and blocks, and its metadata but for entries
with an id. A block in which nothing matches is copied as it is; of the others each record that stays keeps its bytes.
What a file does not say clearly fails it: blocks that are damaged, or values of several types at the identifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.formats import avro_container, avro_schema, key_values
from refstore_purge.formats.avro_container import AvroBlock, AvroHeader
from refstore_purge.formats.avro_records import BlockRecords, RecordReader
from refstore_purge.formats.avro_schema import AvroType
from refstore_purge.formats.base import (
    TEXT_BATCH_BYTES,
    FormatTask,
    IdMatcher,
    PurgeError,
    RewriteResult,
    SearchResult,
)
from refstore_purge.formats.nested_columns import check_schema
from refstore_purge.untyped_pandas import pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS: Final = 20_000
"""So many records are looked up together, of several small blocks or of a part of a large one."""


@dataclass(frozen=True, slots=True)
class _BlockPart:
    """Records of one block."""

    block: AvroBlock
    data: bytes
    """Of the block, decompressed."""
    records: BlockRecords
    is_first: bool
    is_last: bool
    """Whether the block begins and ends with it."""


def schema_of(source: BinaryIO) -> Any:
    """Return the schema of a file as one of Arrow. Raises PurgeError."""
    return avro_schema.arrow_schema(avro_schema.parse_schema(avro_container.read_header(source).schema))


def find(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Look for the ids. Raises PurgeError."""
    header, root = _open(source, task, ids)
    entries = key_values.count_entries_with_ids([header.entries], ids)
    if task.matches_every_row and not task.set_null:
        rows, allowance = 0, FileAllowance(source)
        for block in avro_container.read_blocks(source, header):
            rows += block.records
            allowance.add_rows(block.records)
        return SearchResult(rows, rows, "partition", entries)
    rows = matched = 0
    for part, found in _matches(source, header, root, task, ids):
        rows += len(part.records.ends)
        matched += int(np.count_nonzero(found))
    return SearchResult(rows, matched, "partition" if task.matches_every_row else "column", entries)


def rewrite(source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> RewriteResult:
    """Write the file without the rows that match, or with nulls in them. Raises PurgeError."""
    header, root = _open(source, task, ids)
    kept_entries = key_values.drop_ids(header.entries, ids, rows_changed=False)
    target.write(avro_container.make_header(header, kept_entries))
    rows = matched = left = 0
    pieces: list[bytes | memoryview] = []
    is_changed = False
    for part, found in _matches(source, header, root, task, ids):
        if part.is_first:
            pieces, left, is_changed = [], 0, False
        hits = int(np.count_nonzero(found))
        rows, matched = rows + len(found), matched + hits
        left += len(found) - (0 if task.set_null else hits)
        is_changed = is_changed or hits > 0
        pieces += part.records.remaining_data(part.data, found, is_set_null=bool(task.set_null))
        if part.is_last and not is_changed:
            target.writelines((part.block.start, part.block.body, header.sync))
        elif part.is_last and left:
            target.writelines(avro_container.make_block(left, b"".join(pieces), header))
    return RewriteResult(rows, matched, key_values.count_entries_with_ids([header.entries], ids))


def _open(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> tuple[AvroHeader, AvroType]:
    """Read header and schema. Raises PurgeError also where no row would tell."""
    header = avro_container.read_header(source)
    root = avro_schema.parse_schema(header.schema)
    check_schema(avro_schema.arrow_schema(root), task, ids)
    return header, root


def _matches(
    source: BinaryIO, header: AvroHeader, root: AvroType, task: FormatTask, ids: IdMatcher
) -> Iterator[tuple[_BlockPart, NDArray[np.bool_]]]:
    """Yield the parts of all blocks, and which of their records match."""
    waiting: list[_BlockPart] = []
    rows = size = 0
    for part in _parts(source, header, RecordReader(root, task, ids.kind), root):
        waiting.append(part)
        rows += len(part.records.ends) + len(part.records.values)
        size += len(part.data) if part.is_first else 0
        if rows >= BATCH_ROWS or size >= TEXT_BATCH_BYTES:
            yield from zip(waiting, _match_parts(waiting, task, ids), strict=True)
            waiting, rows, size = [], 0, 0
    yield from zip(waiting, _match_parts(waiting, task, ids), strict=True)


def _parts(source: BinaryIO, header: AvroHeader, reader: RecordReader, root: AvroType) -> Iterator[_BlockPart]:
    allowance = FileAllowance(source)
    for block in avro_container.read_blocks(source, header):
        data = avro_container.decompress(header.codec, block.body)
        allowance.add_unpacked(len(data))
        bytes_each = 1 if root.width is None else root.width  # at least
        if block.records * bytes_each > len(data):
            raise PurgeError(avro_container.DAMAGED)
        allowance.add_rows(block.records)
        at = done = 0
        while True:
            records = reader.read(data, at, min(BATCH_ROWS, block.records - done))
            at = records.ends[-1] if records.ends else at
            first, done = done, done + len(records.ends)
            is_last = done == block.records
            if is_last and at != len(data):
                raise PurgeError(avro_container.DAMAGED)
            yield _BlockPart(block, data, records, first == 0, is_last)
            if is_last:
                break


def _match_parts(parts: list[_BlockPart], task: FormatTask, ids: IdMatcher) -> Iterator[NDArray[np.bool_]]:
    """Yield of each part which records match. Where columns are to be set to null, records in which they are null match
    no more.
    """
    hits = _match_values([value for part in parts for value in part.records.values], ids)
    at = 0
    for part in parts:
        records = part.records
        matched = np.full(len(records.ends), task.matches_every_row, dtype=np.bool_)
        matched[records.rows[hits[at : at + len(records.values)]]] = True
        at += len(records.values)
        if task.set_null:
            can_be_null = np.zeros(len(records.ends), dtype=np.bool_)
            can_be_null[records.null_rows] = True
            matched &= can_be_null
        yield matched


def _match_values(values: list[Any], ids: IdMatcher) -> NDArray[np.bool_]:
    if not values:
        return np.zeros(0, dtype=np.bool_)
    if ids.kind == "integer":
        return ids.matches(pa.array(values, pa.int64()))
    array = pa.array(values, pa.binary())
    return ids.matches(array.cast(pa.string(), safe=False) if ids.kind == "string" else array)
