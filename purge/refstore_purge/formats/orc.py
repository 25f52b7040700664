"""ORC: find ids by the identifier's column, and rewrite stripe by stripe.

A rewritten file keeps its schema, codec, block size, stripes, row index, Bloom filters' columns, and its user metadata
but for entries with an id. pyarrow writes it, by the column, or `orc_rows` what pyarrow would not keep. The written
schema is compared as ORC has it, by pyorc.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO, Final

import numpy as np

from refstore_purge.file_allowance import FileAllowance, raise_if_memory
from refstore_purge.formats import key_values, orc_rows
from refstore_purge.formats.base import FormatTask, IdMatcher, SearchResult, name_of
from refstore_purge.formats.nested_columns import check_schema, match_rows, set_null
from refstore_purge.formats.unclosed_file import UnclosedFile
from refstore_purge.purge_error import OtherMeansError, PurgeError
from refstore_purge.untyped_pandas import orc, pa

pyorc: Any = import_module("pyorc")

BLOOM_FPP: Final = 0.05
"""The share of false positives of a Bloom filter; files do not say which theirs had."""


def schema_of(source: BinaryIO) -> Any:
    """Return the schema of a file. Raises what pyarrow raises."""
    return orc.ORCFile(source).schema


def find(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Look for the ids. Raises PurgeError."""
    with _translate_read_errors():
        file, _ = _open(source, task, ids)
        if task.matches_every_row and not task.set_null:
            return SearchResult(
                file.nrows, file.nrows, "partition", key_values.count_entries_with_ids([file.metadata], ids)
            )
        columns = _deciding_columns(file, task)
        matched = 0
        for number in range(file.nstripes):
            batch = file.read_stripe(number, columns=columns)
            matched += int(np.count_nonzero(match_rows(batch, task, ids)))
        by = "partition" if task.matches_every_row else "column"
        return SearchResult(file.nrows, matched, by, key_values.count_entries_with_ids([file.metadata], ids))


def rewrite(source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Write the file without the rows that match, or with nulls in them. Raises PurgeError."""
    with _translate_read_errors():
        file, reader = _open(source, task, ids)
        write = _write_rows if orc_rows.needs_row_writer(reader) else _write_columns
        matched = write(source, file, reader, target, task, ids)
        pairs = key_values.drop_ids(file.metadata, ids, rows_changed=matched > 0)
        append_metadata(target, pairs, file)
        _check_written(reader, target, file.nrows - (0 if task.set_null else matched), pairs)
    return SearchResult(file.nrows, matched, "column", key_values.count_entries_with_ids([file.metadata], ids))


def _write_columns(
    _source: BinaryIO, file: Any, reader: Any, target: BinaryIO, task: FormatTask, ids: IdMatcher
) -> int:
    """Write the rows that stay by the column, and return how many match."""
    matched = 0
    with orc.ORCWriter(UnclosedFile(target), **_options(file, reader)) as writer:
        writer.write(pa.table(file.schema.empty_table()))  # no row may be left, and the schema stays
        for number in range(file.nstripes):
            batch = file.read_stripe(number)
            rows = match_rows(batch, task, ids)
            matched += int(np.count_nonzero(rows))
            kept = set_null(batch, task.set_null, rows) if task.set_null else batch.filter(pa.array(~rows))
            del batch  # the writer copies what it is given
            if len(kept):
                writer.write(pa.Table.from_batches([kept]))
            del kept
    return matched


def _write_rows(source: BinaryIO, file: Any, reader: Any, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> int:
    """Write the rows that stay one by one, and return how many match."""
    matched = 0
    writer = orc_rows.OrcRowWriter(source, target, reader, _options(file, reader), task.set_null)
    columns = _deciding_columns(file, task)
    for number in range(file.nstripes):
        batch = file.read_stripe(number, columns=columns or [file.schema.names[0]])
        rows = match_rows(batch, task, ids)
        matched += int(np.count_nonzero(rows))
        writer.write(number, rows.tolist())
    writer.close()
    return matched


def _deciding_columns(file: Any, task: FormatTask) -> list[str]:
    """Return the columns that tell which rows match: the identifier's alone, if it lies in structs only."""
    columns = [] if task.matches_every_row else [_column_of(file, task)]
    return [*columns, *map(name_of, task.set_null)]


def _column_of(file: Any, task: FormatTask) -> str:
    """Return what of an identifier can be read alone."""
    type_: Any = pa.struct(list(file.schema))
    for name in task.identifier:
        if not pa.types.is_struct(type_):
            break
        type_ = type_.field(name).type
    return task.identifier[0] if pa.types.is_nested(type_) else name_of(task.identifier)


@contextmanager
def _translate_read_errors() -> Generator[None, None, None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, pyorc.errors.ORCError) as error:
        raise_if_memory(error)
        if "out of range for nanosecond resolution" in str(error):
            raise OtherMeansError("the file has times before 1677 or after 2262, which pyarrow cannot read") from error
        raise OtherMeansError("the file cannot be read: it is damaged, or no ORC") from error
    except RecursionError as error:
        raise OtherMeansError("its types are nested too deep") from error


def _open(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> tuple[Any, Any]:
    """Open the file for pyarrow, and for pyorc. Raises PurgeError also where no row would tell."""
    file, reader = orc.ORCFile(source), pyorc.Reader(source, converters=orc_rows.CONVERTERS)
    allowance = FileAllowance(source)
    allowance.add_rows(file.nrows)
    allowance.add_values(file.nrows * sum(1 for _ in orc_rows.walk_types(reader.schema)))
    check_schema(file.schema, task, ids)
    for path in task.set_null:
        if orc_rows.find_type(reader.schema, path).kind == pyorc.TypeKind.UNION:
            raise PurgeError(
                f"column {name_of(path)!r} is a union, of which pyarrow does not tell where it is null; delete the "
                "rows instead"
            )
    if task.matches_every_row:
        return file, reader
    if any(each.kind == pyorc.TypeKind.CHAR for each in orc_rows.walk_types(reader.schema[task.identifier[0]])):
        raise OtherMeansError(f"column {name_of(task.identifier)!r} is char, whose values are padded")
    return file, reader


def _options(file: Any, reader: Any) -> dict[str, Any]:
    """Return what the new file's writer is to do as the old one's did.

    A stripe ends with the first batch that fills it, so that with the smallest one each batch becomes a stripe.
    """
    longest = max((len(reader.read_stripe(number)) for number in range(file.nstripes)), default=1)
    blooms = {column for number in range(file.nstripes) for column in reader.read_stripe(number).bloom_filter_columns}
    return {
        "file_version": file.file_version,
        "batch_size": longest,
        "stripe_size": 1,
        "compression": file.compression.lower(),
        "compression_block_size": orc_rows.block_bytes(reader),
        "row_index_stride": file.row_index_stride,
        "bloom_filter_columns": sorted(blooms) or None,
        "bloom_filter_fpp": BLOOM_FPP,
    }


def append_metadata(target: BinaryIO, metadata: Mapping[bytes, bytes], file: Any) -> None:
    """Add user metadata to the footer, which pyarrow's writer cannot (ORC specification v1, "File Tail").

    The footer is a message of protobuf, and two of them in a row are one with the fields of both. So another piece of
    footer is put behind the one that is there, as a block that is not compressed, and the postscript's length of the
    footer grows by it.
    """
    if not metadata:
        return
    added = b""
    for name, value in metadata.items():
        item = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(value)) + value
        added += b"\x2a" + _varint(len(item)) + item  # field 5 of Footer: UserMetadataItem
    if file.compression != "UNCOMPRESSED":
        size = min(file.compression_size, 2**23 - 1)
        pieces = [added[start : start + size] for start in range(0, len(added), size)]
        added = b"".join((len(piece) * 2 + 1).to_bytes(3, "little") + piece for piece in pieces)
    target.seek(-1, os.SEEK_END)
    length = target.read(1)[0]
    target.seek(-1 - length, os.SEEK_END)
    start = target.tell()
    postscript = target.read(length)
    if postscript[:1] != b"\x08":  # field 1: footerLength
        raise PurgeError("pyarrow wrote a footer that refstore does not know; report this")
    behind = next(at for at in range(1, length) if postscript[at] < 0x80) + 1
    footer = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(postscript[1:behind]))
    grown = b"\x08" + _varint(footer + len(added)) + postscript[behind:]
    target.seek(start)
    target.write(added + grown + bytes([len(grown)]))


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _check_written(reader: Any, target: BinaryIO, rows: int, pairs: Mapping[bytes, bytes]) -> None:
    """Raise PurgeError where the new file is not what the old one was, but for its rows, with this metadata."""
    target.flush()
    target.seek(0)
    written, schema = orc.ORCFile(UnclosedFile(target)), str(reader.schema)
    target.seek(0)
    new = pyorc.Reader(target).schema
    if str(new) != schema:
        kept = {name: str(type_) for name, type_ in new.fields.items()}
        others = [f"{name!r} ({type_})" for name, type_ in reader.schema.fields.items() if kept.get(name) != str(type_)]
        raise OtherMeansError(f"pyarrow cannot write the types of these columns as they are: {', '.join(others[:5])}")
    if written.nrows != rows:
        raise PurgeError(f"the new file has {written.nrows} rows instead of {rows}; report this")
    if dict(written.metadata or {}) != pairs:
        raise OtherMeansError("this file's metadata could not be kept")
