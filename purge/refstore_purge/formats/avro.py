"""Avro: find ids in the blocks of object container files, and write again only those blocks that have some.

A rewritten file keeps its schema byte for byte, its codec, sync marker and blocks, and its metadata but for entries
with an id. A block in which nothing matches is copied as it is; of the others each record that stays keeps its bytes.
fastavro decodes each record (`avro_schema.py` says how), so it is known where each ends; only records in which a column
is set to null are encoded again. What a file does not say clearly fails it: blocks that are damaged, or values of
several types at the identifier.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import numpy as np

from refstore.core.batches import split_sized
from refstore_purge.file_allowance import FileAllowance
from refstore_purge.formats import avro_container, key_values
from refstore_purge.formats.avro_container import DAMAGED, AvroBlock, AvroHeader, read_plain, to_bytes
from refstore_purge.formats.avro_schema import KEY, VALUE, AvroType, parse_schema
from refstore_purge.formats.base import (
    TEXT_BATCH_BYTES,
    FormatTask,
    IdKind,
    IdMatcher,
    SearchResult,
    is_alike,
    name_of,
)
from refstore_purge.formats.nested_columns import check_schema
from refstore_purge.purge_error import OtherMeansError, PurgeError
from refstore_purge.untyped_pandas import pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_VALUES: Final = 50_000
"""So many values are looked up together, of several small blocks or of a part of a large one."""
BATCH_BLOCKS: Final = 10_000


@dataclass(slots=True)
class _UnpackedBlock:
    block: AvroBlock
    data: bytes
    """Decompressed."""
    ends: array[int]
    """Where the first record begins, and where each ends."""
    matched: NDArray[np.bool_]
    """Which records match."""


def schema_of(source: BinaryIO) -> Any:
    """Return the schema of a file as one of Arrow. Raises PurgeError."""
    return pa.schema(parse_schema(avro_container.read_header(source).metadata[avro_container.SCHEMA]).arrow)


def find(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Look for the ids. Raises PurgeError."""
    file = _BlockMatcher(source, task, ids)
    entries = key_values.count_entries_with_ids([file.header.entries], ids)
    rows = matched = 0
    if task.matches_every_row and not task.set_null:
        allowance = FileAllowance(source)
        for block in avro_container.read_blocks(source, file.header):
            allowance.add_rows(block.records)
            rows += block.records
        return SearchResult(rows, rows, "partition", entries)
    for block in file.match_blocks():
        rows += len(block.matched)
        matched += int(np.count_nonzero(block.matched))
    return SearchResult(rows, matched, "partition" if task.matches_every_row else "column", entries)


def rewrite(source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Write the file without the rows that match, or with nulls in them. Raises PurgeError."""
    file = _BlockMatcher(source, task, ids)
    header = file.header
    target.write(avro_container.make_header(header, key_values.drop_ids(header.entries, ids, rows_changed=False)))
    rows = matched = 0
    for block in file.match_blocks():
        hits = int(np.count_nonzero(block.matched))
        rows, matched = rows + len(block.matched), matched + hits
        left = len(block.matched) - (0 if task.set_null else hits)
        if not hits:
            target.writelines((block.block.start, block.block.body, header.sync))
        elif left:
            target.writelines(avro_container.make_block(left, file.remaining_data(block), header))
    return SearchResult(rows, matched, "column", key_values.count_entries_with_ids([header.entries], ids))


class IdentifierValues(NamedTuple):
    """Finds what stands at the identifier."""

    task: FormatTask
    kind: IdKind

    def values_in(self, value: Any, type_: AvroType, path: Sequence[str]) -> Iterator[Any]:
        """Yield the values at the rest of the identifier's path, bytes or integers. Raises PurgeError for what no id
        can be compared with.
        """
        value, type_ = _branch_of(value, type_)
        if value is None:
            return
        match type_.kind:
            case "record" if path:
                if path[0] in type_.names:
                    place = type_.names.index(path[0])
                    yield from self.values_in(value[f"c{place}"], type_.children[place], path[1:])
                elif any(is_alike(path[0], name) for name in type_.names):
                    raise PurgeError(
                        f"column {self._name!r} has one of its types in another case only; correct the data set's "
                        "identifier, or rename the column"
                    )
            case "array":
                for item in value:
                    yield from self.values_in(item, type_.children[0], path)
            case "map" if self.task.map_part == "key":
                yield from (pair[KEY] for pair in value if not path)
            case "map":
                for pair in value:
                    yield from self.values_in(pair[VALUE], type_.children[0], path)
            case _ if path:
                return
            case kind if type_.id_kind != self.kind:
                raise OtherMeansError(f"column {self._name!r} has values that are {kind}, and the ids are {self.kind}s")
            case "enum" if not 0 <= value < len(type_.names):
                raise OtherMeansError(DAMAGED)
            case "enum":
                symbol = type_.names[int(value)]
                yield symbol.encode(errors="surrogatepass")
            case _:
                yield value

    @property
    def _name(self) -> str:
        return name_of(self.task.identifier)


def find_column(value: Any, type_: AvroType, path: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    """Return the record in which a column stands that is to be null, and its field; None: it is null, or not there.
    Raises PurgeError where it cannot be null.
    """
    record, type_ = _branch_of(value, type_)
    if record is None or type_.kind != "record" or path[0] not in type_.names:
        return None
    place = type_.names.index(path[0])
    field, child = f"c{place}", type_.children[place]
    if len(path) > 1:
        return find_column(record[field], child, path[1:])
    if record[field] is not None and not child.is_nullable:
        raise PurgeError("a column to be null is required in some of its types; delete the rows instead")
    return None if record[field] is None else (record, field)


def _branch_of(value: Any, type_: AvroType) -> tuple[Any, AvroType]:
    """Return the value of a union, as fastavro reads it (`AvroType.plain`), and its type."""
    if type_.kind != "union" or value is None:
        return value, type_
    if type_.names:
        name, branch = value
        return branch[VALUE], type_.children[type_.names.index(name)]
    return value, next(each for each in type_.children if each.kind != "null")


class _BlockMatcher:
    """Tells which records of a file match a task."""

    def __init__(self, source: BinaryIO, task: FormatTask, ids: IdMatcher) -> None:
        """Raises PurgeError also where no row would tell."""
        self._source, self._task, self._ids = source, task, ids
        self.header: AvroHeader = avro_container.read_header(source)
        self._root: AvroType = parse_schema(self.header.metadata[avro_container.SCHEMA])
        check_schema(pa.schema(self._root.arrow), task, ids)

    def match_blocks(self) -> Iterator[_UnpackedBlock]:
        """Yield all blocks, with which of their records match. Where columns are to be set to null, records in which
        they are null match no more.
        """
        blocks = split_sized(
            self._unpack_blocks(), lambda block: len(block.data), size_max=TEXT_BATCH_BYTES, items_max=BATCH_BLOCKS
        )
        search = IdentifierValues(self._task, self._ids.kind)
        for together in blocks:
            values, places = list[Any](), list[tuple[_UnpackedBlock, int]]()
            for block in together:
                for row, record in enumerate(self._read_records(block)):
                    if self._task.set_null and not self._columns_to_null(record):
                        continue
                    block.matched[row] = self._task.matches_every_row
                    if not self._task.matches_every_row:
                        values += search.values_in(record, self._root, self._task.identifier)
                        places += [(block, row)] * (len(values) - len(places))
                    if len(values) >= BATCH_VALUES:
                        self._look_up(values, places)
            self._look_up(values, places)
            yield from together

    def _unpack_blocks(self) -> Iterator[_UnpackedBlock]:
        allowance = FileAllowance(self._source)
        for block in avro_container.read_blocks(self._source, self.header):
            data = avro_container.decompress(self.header.codec, block.body)
            allowance.add_unpacked(len(data))
            if block.records > len(data) and not self._root.is_empty:
                raise OtherMeansError(avro_container.DAMAGED)
            allowance.add_rows(block.records)
            allowance.add_values(block.records * self._root.types)  # fastavro goes through all types for each record
            yield _UnpackedBlock(block, data, array("q", [0]), np.zeros(block.records, dtype=np.bool_))

    def _read_records(self, block: _UnpackedBlock) -> Iterator[Any]:
        stream = io.BytesIO(block.data)
        for _ in range(block.block.records):
            yield read_plain(stream, self._root.plain)
            block.ends.append(stream.tell())
        if stream.tell() != len(block.data):
            raise OtherMeansError(avro_container.DAMAGED)

    def _look_up(self, values: list[Any], places: list[tuple[_UnpackedBlock, int]]) -> None:
        """Mark the records whose values are ids, and forget the values."""
        looked_up = pa.array(values, pa.int64() if self._ids.kind == "integer" else pa.binary())
        if self._ids.kind == "string":
            looked_up = looked_up.cast(pa.string(), safe=False)
        for place in np.flatnonzero(self._ids.matches(looked_up)).tolist():
            block, row = places[place]
            block.matched[row] = True
        values.clear()
        places.clear()

    def remaining_data(self, block: _UnpackedBlock) -> Sequence[bytes | memoryview]:
        """Return pieces of a block's data: without the records that match, or with nulls in them."""
        data, pieces, at = memoryview(block.data), list[bytes | memoryview](), 0
        for row in np.flatnonzero(block.matched).tolist():
            start, end = block.ends[row], block.ends[row + 1]
            pieces.append(data[at:start])
            at = end
            if self._task.set_null:
                record = read_plain(io.BytesIO(data[start:end]), self._root.plain)
                for holder, column in self._columns_to_null(record):
                    holder[column] = None
                pieces.append(to_bytes(record, self._root.plain))
        return [*pieces, data[at:]]

    def _columns_to_null(self, record: Any) -> list[tuple[dict[str, Any], str]]:
        columns = [find_column(record, self._root, path) for path in self._task.set_null]
        return [column for column in columns if column is not None]
