"""Column chunks of Parquet files: how they are stored, and how they come into another file byte for byte.

A new file gets the chunks that are to stay as they are from the old file, and the others from a row group that pyarrow
wrote; both are copied, and their offsets in the footer moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple

from refstore_purge.formats.parquet_footer import (
    BLOOM_FILTER,
    BOUNDS,
    MAGIC,
    OFFSET_INDEX,
    PAGE_HEADER,
    ColumnChunkField,
    ColumnMetadataField,
    RowGroupField,
    SchemaElementField,
    StatisticsField,
    ThriftList,
    ThriftStruct,
    ThriftType,
    read_struct,
    read_struct_at,
    to_bytes,
)
from refstore_purge.formats.parquet_schema import PhysicalType, SchemaNode, decode_name
from refstore_purge.purge_error import OtherMeansError

COPY_BYTES: Final = 1024 * 1024
BLOOM_FPP: Final = 0.05
"""The share of false positives of a Bloom filter; files do not say which theirs had."""
DICTIONARY_BYTES: Final = 1024 * 1024
"""pyarrow's bound for a column's dictionary, if that of the old file was not larger."""
LZ4_OF_HADOOP: Final = 5
"""LZ4 in a frame that Hadoop and others made differently; its successor is written instead."""
LZ4_RAW: Final = 7
CODECS: Final = {0: "NONE", 1: "SNAPPY", 2: "GZIP", 4: "BROTLI", LZ4_OF_HADOOP: "LZ4", 6: "ZSTD", LZ4_RAW: "LZ4"}
_OTHER_CODECS: Final = {3: "LZO"}
PLAIN_DICTIONARY: Final = 2
ENCODINGS: Final = {
    0: "PLAIN",
    3: "RLE",
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    9: "BYTE_STREAM_SPLIT",
}
_DAMAGED_INDEX: Final = "an index of the file's pages is damaged"
INDEXES: Final = (
    (ColumnChunkField.COLUMN_INDEX, ColumnChunkField.COLUMN_INDEX_BYTES),
    (ColumnChunkField.OFFSET_INDEX, ColumnChunkField.OFFSET_INDEX_BYTES),
)
"""The fields with the place and the size of each index of a chunk's pages."""
BOUND_FIELDS: Final = (*BOUNDS, StatisticsField.IS_MAX_EXACT, StatisticsField.IS_MIN_EXACT)

# fields of PageHeader, and of the header of each kind of page
PAGE_TYPE, PAGE_BYTES, PAGE_COMPRESSED_BYTES, PAGE_CHECKSUM = 1, 2, 3, 4
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
OWN_HEADERS: Final = {DATA_PAGE: (5, 2), DATA_PAGE_V2: (8, 4)}
"""By type of page: the field with its own header, and there the field with the encoding of its values."""
VALUES: Final = 1
"""The field of such a header with the number of its values, nulls included."""


class ChunkStorage(NamedTuple):
    """How a column chunk is stored."""

    codec: int
    encoding: int
    """Of the values in its first page with data."""
    dictionary: int
    """The encoding of its dictionary; -1: it has none."""
    dictionary_bytes: int
    dictionary_values: int
    is_v2: bool
    """Whether its pages with data are of the second version."""
    has_checksums: bool
    has_statistics: bool
    has_bounds: bool
    has_bloom_filter: bool
    has_column_index: bool
    has_offset_index: bool

    def comparable_part(self) -> ChunkStorage:
        """Return what is the same of a chunk that is written like this one."""
        return self._replace(
            codec=LZ4_RAW if self.codec == LZ4_OF_HADOOP else self.codec,
            encoding=0 if self.dictionary >= 0 else self.encoding,
            dictionary=min(self.dictionary, 0),
            dictionary_bytes=0,
            dictionary_values=0,
            is_v2=False,  # all columns of a row group get the same
            has_bounds=False,  # columns of nulls have none
        )


class ColumnPage(NamedTuple):
    header: ThriftStruct
    start: int
    """Where its header begins."""
    end: int


class ChunkSource(NamedTuple):
    """A file with column chunks."""

    file: BinaryIO
    end: int
    """Where its footer begins."""


def read_storage(source: ChunkSource, chunk: ThriftStruct) -> ChunkStorage:
    """Return how a column chunk is stored: what the footer says, and the headers of its first pages. Raises
    PurgeError.
    """
    metadata = chunk[ColumnChunkField.METADATA]
    dictionary, dictionary_bytes, dictionary_values, encoding, is_v2, has_checksums = -1, 0, 0, 0, False, False
    for header, _, _ in pages_of(source.file, *chunk_extent(source, chunk)):
        kind = header[PAGE_TYPE]
        has_checksums = PAGE_CHECKSUM in header
        if kind in OWN_HEADERS:
            of, number = OWN_HEADERS[kind]
            encoding, is_v2 = header[of][number], kind == DATA_PAGE_V2
            break
        if kind == DICTIONARY_PAGE:
            dictionary_values, dictionary = header[7][1], header[7][2]
            dictionary_bytes = header[PAGE_BYTES]
    statistics = metadata.get(ColumnMetadataField.STATISTICS)
    return ChunkStorage(
        codec=metadata[ColumnMetadataField.CODEC],
        encoding=encoding,
        dictionary=dictionary,
        dictionary_bytes=dictionary_bytes,
        dictionary_values=dictionary_values,
        is_v2=is_v2,
        has_checksums=has_checksums,
        has_statistics=statistics is not None,
        has_bounds=statistics is not None and any(number in statistics for number in BOUNDS),
        has_bloom_filter=metadata.get(ColumnMetadataField.BLOOM_FILTER, 0) > 0,
        has_column_index=chunk.get(ColumnChunkField.COLUMN_INDEX, 0) > 0,
        has_offset_index=chunk.get(ColumnChunkField.OFFSET_INDEX, 0) > 0,
    )


def chunk_extent(source: ChunkSource, chunk: ThriftStruct) -> tuple[int, int]:
    """Return where a column chunk begins, and its size. Raises PurgeError."""
    metadata = chunk[ColumnChunkField.METADATA]
    if chunk.get(ColumnChunkField.FILE_PATH):
        raise OtherMeansError("the file has columns in another file")
    data, dictionary = metadata[ColumnMetadataField.DATA_PAGE], metadata.get(ColumnMetadataField.DICTIONARY_PAGE, 0)
    size = metadata[ColumnMetadataField.COMPRESSED_BYTES]
    start = dictionary if dictionary > 0 and (dictionary < data or not data) else data
    if not size and not start:  # a column of a row group without rows has no pages, and so no place
        return len(MAGIC), 0
    if start < len(MAGIC) or size < 0 or start + size > source.end:
        raise OtherMeansError("the file cannot be read: its footer leads out of it; it is damaged")
    return start, size


def pages_of(file: BinaryIO, start: int, size: int) -> Iterator[ColumnPage]:
    """Yield the pages of a column chunk. Raises PurgeError."""
    at = start
    while at < start + size:
        header, length = read_struct_at(file, at, PAGE_HEADER)
        end = at + length + header[PAGE_COMPRESSED_BYTES]
        if end < at + length:
            raise OtherMeansError("a page of the file has a negative size; it is damaged")
        yield ColumnPage(header, at, end)
        at = end


def check_pages(file: BinaryIO, start: int, size: int, values: int, name: str) -> None:
    """Raise PurgeError unless a column chunk has these values, and ends with its last page. Else a copy of it would
    lack some, or have something that no reader shows.
    """
    there, end = 0, start
    for page in pages_of(file, start, size):
        end = page.end
        if page.header[PAGE_TYPE] in OWN_HEADERS:
            there += page.header[OWN_HEADERS[page.header[PAGE_TYPE]][0]][VALUES]
    if (there, end) != (values, start + size):
        raise OtherMeansError(
            f"the pages of column {name!r} have {there} values in {end - start} bytes, and the footer says {values} in "
            f"{size}; the file is damaged"
        )


def check_codec(leaf: SchemaNode, metadata: ThriftStruct) -> None:
    """Raise PurgeError for a column that is compressed as pyarrow does not know."""
    codec = metadata[ColumnMetadataField.CODEC]
    if codec not in CODECS:
        told = _OTHER_CODECS.get(codec, f"codec {codec}")
        raise OtherMeansError(f"column {'.'.join(leaf.path)!r} is compressed with {told}, which pyarrow cannot")


def writer_options(
    leaves: Sequence[SchemaNode], paths: Sequence[str], of: Sequence[ChunkStorage], rows: int
) -> dict[str, Any]:
    """Return how pyarrow's writer is to store the columns of a row group, `paths` being its names for them. Raises
    PurgeError for what it cannot.
    """
    for leaf, each in zip(leaves, of, strict=True):
        name = ".".join(leaf.path)
        if each.dictionary < 0 and each.encoding not in ENCODINGS:
            raise OtherMeansError(f"column {name!r} has the encoding {each.encoding}, which pyarrow cannot write")
    columns = dict(zip(paths, of, strict=True))
    is_old = any(each.dictionary == PLAIN_DICTIONARY for each in of)
    needs_new = any(
        leaf.element.get(SchemaElementField.TYPE) == PhysicalType.INT32 and leaf.is_unsigned for leaf in leaves
    )
    return {
        "version": "1.0" if is_old and not needs_new else "2.6",  # the first one calls the encoding of dictionaries so
        "store_schema": False,
        "compression": {path: CODECS[each.codec] for path, each in columns.items()},
        "use_dictionary": [path for path, each in columns.items() if each.dictionary >= 0] or False,
        "column_encoding": {path: ENCODINGS[each.encoding] for path, each in columns.items() if each.dictionary < 0}
        or None,
        "dictionary_pagesize_limit": max(DICTIONARY_BYTES, *(each.dictionary_bytes for each in of)),
        "data_page_version": "2.0" if any(each.is_v2 for each in of) else "1.0",
        "write_page_checksum": any(each.has_checksums for each in of),
        # without them pyarrow writes no index either
        "write_statistics": [path for path, each in columns.items() if each.has_statistics or each.has_column_index]
        or False,
        "write_page_index": any(each.has_column_index or each.has_offset_index for each in of),
        "bloom_filter_options": {
            path: {"ndv": max(1, rows), "fpp": BLOOM_FPP} for path, each in columns.items() if each.has_bloom_filter
        }
        or None,
    }


def restore_chunk_schema(
    chunk: ThriftStruct, leaf: SchemaNode, before: ChunkStorage, old: ThriftStruct
) -> ThriftStruct:
    """Return what the footer says of a chunk that pyarrow wrote under a plain schema: under the file's own, and without
    what the old chunk did not have.
    """
    metadata = chunk[ColumnChunkField.METADATA].copy_without()
    metadata.change(ColumnMetadataField.TYPE, leaf.element[SchemaElementField.TYPE])
    metadata.change(ColumnMetadataField.PATH, old[ColumnChunkField.METADATA][ColumnMetadataField.PATH])
    if ColumnMetadataField.KEY_VALUES in old[ColumnChunkField.METADATA]:
        metadata.set(
            ColumnMetadataField.KEY_VALUES,
            ThriftType.LIST,
            old[ColumnChunkField.METADATA][ColumnMetadataField.KEY_VALUES],
        )
    statistics = metadata.get(ColumnMetadataField.STATISTICS)
    has_bounds = before.has_bounds and leaf.has_order
    if not before.has_statistics:
        metadata = metadata.copy_without(ColumnMetadataField.STATISTICS)
    elif statistics is not None and not has_bounds:
        metadata.change(ColumnMetadataField.STATISTICS, statistics.copy_without(*BOUND_FIELDS))
    stays = (before.has_column_index and leaf.has_order, before.has_offset_index)
    found = chunk.copy_without(*chain(*(index for index, kept in zip(INDEXES, stays, strict=True) if not kept)))
    found.change(ColumnChunkField.METADATA, metadata)
    return found


class FileAssembly:
    """Puts a new file together from column chunks; what belongs to them follows."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._indexes: list[tuple[ThriftStruct, int, bytes]] = []
        target.write(MAGIC)

    def add_group(
        self, group: ThriftStruct, rows: int, chunks: Sequence[tuple[ChunkSource, ThriftStruct]]
    ) -> ThriftStruct:
        """Copy the chunks of a row group; return what the footer says of it."""
        start = self._target.tell()
        columns = [self._copy_chunk(source, chunk) for source, chunk in chunks]
        for (source, _), column in zip(chunks, columns, strict=True):
            self._add_bloom_filter(source, column)
        found = group.copy_without()
        found.change(RowGroupField.COLUMNS, ThriftList(ThriftType.STRUCT, columns))
        found.change(RowGroupField.ROWS, rows)
        metadata = [column[ColumnChunkField.METADATA] for column in columns]
        found.change(RowGroupField.BYTES, sum(each[ColumnMetadataField.UNCOMPRESSED_BYTES] for each in metadata))
        if RowGroupField.COMPRESSED_BYTES in found:
            found.change(
                RowGroupField.COMPRESSED_BYTES, sum(each[ColumnMetadataField.COMPRESSED_BYTES] for each in metadata)
            )
        if RowGroupField.OFFSET in found:
            found.change(RowGroupField.OFFSET, start)
        return found

    def finish(self) -> None:
        """Write the page indexes, each kind together, as readers fetch them."""
        for wanted, length in INDEXES:
            for chunk, number, data in self._indexes:
                if number == wanted:
                    chunk.set(number, ThriftType.I64, self._target.tell())
                    chunk.set(length, ThriftType.I32, len(data))
                    self._target.write(data)

    def _copy_chunk(self, source: ChunkSource, chunk: ThriftStruct) -> ThriftStruct:
        start, size = chunk_extent(source, chunk)
        moved = self._target.tell() - start
        self._copy_bytes(source, start, size)
        metadata = chunk[ColumnChunkField.METADATA].copy_without()
        name = ".".join(map(decode_name, metadata[ColumnMetadataField.PATH]))
        check_pages(self._target, start + moved, size, metadata[ColumnMetadataField.VALUES], name)
        self._target.seek(0, os.SEEK_END)
        for number in (
            ColumnMetadataField.DATA_PAGE,
            ColumnMetadataField.INDEX_PAGE,
            ColumnMetadataField.DICTIONARY_PAGE,
        ):
            if metadata.get(number, 0) > 0:
                metadata.change(number, metadata[number] + moved)
        found = chunk.copy_without(*chain(*INDEXES))
        found.change(ColumnChunkField.METADATA, metadata)
        if found.get(ColumnChunkField.OFFSET, 0) > 0:
            found.change(ColumnChunkField.OFFSET, found[ColumnChunkField.OFFSET] + moved)
        for number, length in INDEXES:
            if chunk.get(number, 0) > 0:
                data = _read_index(source, chunk[number], chunk[length])
                if number == ColumnChunkField.OFFSET_INDEX:
                    data = _move_index(data, start, size, moved)
                self._indexes.append((found, number, data))
        return found

    def _add_bloom_filter(self, source: ChunkSource, column: ThriftStruct) -> None:
        metadata = column[ColumnChunkField.METADATA]
        at = metadata.get(ColumnMetadataField.BLOOM_FILTER, 0)
        if at > 0:
            header, length = read_struct_at(source.file, at, BLOOM_FILTER)
            size = length + header[1]
            if (
                header[1] < 0
                or at + size > source.end
                or metadata.get(ColumnMetadataField.BLOOM_FILTER_BYTES, size) != size
            ):
                raise OtherMeansError("a Bloom filter of the file is damaged")
            metadata.change(ColumnMetadataField.BLOOM_FILTER, self._target.tell())
            metadata.set(ColumnMetadataField.BLOOM_FILTER_BYTES, ThriftType.I32, size)
            self._copy_bytes(source, at, size)

    def _copy_bytes(self, source: ChunkSource, start: int, size: int) -> None:
        source.file.seek(start)
        while size:
            data = source.file.read(min(size, COPY_BYTES))
            if not data:
                raise OtherMeansError("the file cannot be read: it is cut off")
            self._target.write(data)
            size -= len(data)


def _read_index(source: ChunkSource, at: int, size: int) -> bytes:
    """Return the index of a chunk's pages, which is one struct. Raises PurgeError."""
    if size > 0 and at + size <= source.end:
        source.file.seek(at)
        data = source.file.read(size)
        if read_struct(data, {})[1] == size:
            return data
    raise OtherMeansError(_DAMAGED_INDEX)


def _move_index(data: bytes, start: int, size: int, moved: int) -> bytes:
    """Return the offset index of a chunk whose pages lie elsewhere. Raises PurgeError."""
    index, _ = read_struct(data, OFFSET_INDEX)
    for page in index[1]:
        if not start <= page[1] < start + size:
            raise OtherMeansError(_DAMAGED_INDEX)
        page.change(1, page[1] + moved)
    return to_bytes(index)


def check_chunk(leaf: SchemaNode, became: SchemaNode, before: ChunkStorage, after: ChunkStorage) -> None:
    """Raise PurgeError where pyarrow wrote a column otherwise than it is to be."""
    name = ".".join(leaf.path)
    if became.levels != leaf.levels:
        raise OtherMeansError(f"pyarrow cannot write the groups around column {name!r} as they are")
    # pyarrow writes no index of pages if one has nothing but NaN
    before = before._replace(has_column_index=before.has_column_index and leaf.has_order and after.has_column_index)
    pairs = zip(ChunkStorage._fields, before.comparable_part(), after.comparable_part(), strict=True)
    others = [field for field, was, is_now in pairs if was != is_now]
    if others:
        raise OtherMeansError(f"pyarrow cannot keep {', '.join(others)} of column {name!r}")
