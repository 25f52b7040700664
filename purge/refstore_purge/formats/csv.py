"""CSV as RFC 4180 has it, with a header: a record that stays is kept byte for byte.

What readers take in different ways fails the file: a quote within a field that does not begin with one, a quote after a
backslash, a carriage return that ends no line, a record with more or fewer fields than the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import numpy as np

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.formats import compression
from refstore_purge.formats.base import (
    FormatTask,
    IdMatcher,
    SearchResult,
    column_error,
    is_alike,
    name_of,
)
from refstore_purge.formats.text_values import match_integers, match_strings
from refstore_purge.purge_error import OtherMeansError, PurgeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORDS: Final = 20_000
"""How many records are looked at at a time: short ones take many times their length."""
schema_of: Final = None
"""All of it is text."""
_BOM: Final = b"\xef\xbb\xbf"
_FIELD: Final = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"|[^",\r\n]*)(?=,|\Z)')
_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")


class _RecordBatch(NamedTuple):
    line: int
    """The line on which the first one begins, from 1."""
    records: list[bytes]
    """Each with its end."""

    def line_of(self, number: int) -> int:
        return self.line + sum(record.count(b"\n") for record in self.records[:number])


class _CsvHeader(NamedTuple):
    names: list[str]
    identifier_at: int | None
    """Which column is the identifier. None: every row matches."""
    null_columns: frozenset[int]
    """Which columns are set to null."""


def find(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Look for the ids. Raises PurgeError."""
    rows = matched = 0
    for _, found, count, _ in _search(source, task, ids):
        rows, matched = rows + count, matched + int(np.count_nonzero(found))
    return SearchResult(rows, matched, "partition" if task.matches_every_row else "column")


def rewrite(source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Write the records that do not match, and where columns are set to null, the others changed. Raises PurgeError."""
    rows = matched = 0
    with compression.open_writer(target, compression.detect_codec(source)) as out:
        for records, found, count, nulls in _search(source, task, ids):
            rows, matched = rows + count, matched + int(np.count_nonzero(found))
            for record, is_match in zip(records, found, strict=True):
                if not is_match:
                    out.write(record)
                elif task.set_null:
                    out.write(_null_columns(record, nulls))
    return SearchResult(rows, matched, "column")


def _search(
    source: BinaryIO, task: FormatTask, ids: IdMatcher
) -> Iterator[tuple[Sequence[bytes], NDArray[np.bool_], int, frozenset[int]]]:
    """Yield records, which of them match, how many are rows, and which columns are set to null."""
    header: _CsvHeader | None = None
    for batch in _batches(source):
        start = 0 if header else 1
        header = header or _header(batch.records[0], task)
        yield batch.records, *_matches(batch, start, header, ids), header.null_columns


def _batches(source: BinaryIO) -> Iterator[_RecordBatch]:
    """Yield the records. A quote that is still open at the end of a line goes on in the next one."""
    allowance = FileAllowance(source)
    line = 1
    rest = b""
    for block in compression.read_blocks(source):
        if b"\0" in block:
            raise OtherMeansError("the file is no text, or its compression is not known")
        *ended, rest = (rest + block).split(b"\n")
        records: list[bytes] = []
        pending: list[bytes] = []
        is_open = False
        for text in ended:
            is_open ^= text.count(b'"') % 2 == 1
            pending.append(text)
            if not is_open:
                records.append(b"\n".join(pending) + b"\n")
                pending = []
                if len(records) == RECORDS:
                    yield _RecordBatch(line, records)
                    line += sum(record.count(b"\n") for record in records)
                    records = []
        rest = b"\n".join([*pending, rest])
        if len(rest) > compression.RECORD_BYTES_MAX:
            raise OtherMeansError(f"a record behind line {line} is longer than 64 MiB")
        allowance.add_rows(len(ended))
        if records:
            yield _RecordBatch(line, records)
            line += sum(record.count(b"\n") for record in records)
    if rest:
        yield _RecordBatch(line, [rest])


def _header(record: bytes, task: FormatTask) -> _CsvHeader:
    try:
        names = [_text(field).decode() for field in _fields(record.removeprefix(_BOM), 1)]
    except UnicodeDecodeError:
        raise PurgeError("the header is not UTF-8; convert the file, or see to it by other means") from None

    def place(name: str, what: str) -> int:
        if names.count(name) != 1:
            there = "there is no column" if name not in names else "there is more than one column"
            raise PurgeError(f"{there} {name!r} in the header; correct {what} of the data set")
        return names.index(name)

    identifier = name_of(task.identifier)
    if not task.matches_every_row and identifier not in names:
        other = next((name for name in names if is_alike(name, identifier)), "")
        raise column_error(identifier, " in the header", other_case=other)

    nulls = frozenset(place(name_of(path), "set_null") for path in task.set_null)
    if nulls and len(names) == 1:
        raise PurgeError("a null in the only column would be a blank line, which is no row; delete the rows instead")
    return _CsvHeader(names, None if task.matches_every_row else place(identifier, "the identifier"), nulls)


def _matches(batch: _RecordBatch, start: int, header: _CsvHeader, ids: IdMatcher) -> tuple[NDArray[np.bool_], int]:
    """Return which records match, and how many rows there are: a blank line is none, and neither is the header."""
    if ids.kind == "binary":
        raise PurgeError("CSV has no binary values; give ids that are strings or integers")
    width, at = len(header.names), header.identifier_at
    values: list[bytes] = []
    places: list[int] = []
    matched = np.zeros(len(batch.records), dtype=np.bool_)
    rows = 0
    for number in range(start, len(batch.records)):
        record = batch.records[number]
        if record in (b"\n", b"\r\n"):
            continue
        fields = _fields(record, batch.line, batch, number)
        if len(fields) != width:
            raise PurgeError(
                f"line {batch.line_of(number)} has {len(fields)} fields and the header {width}; correct the file"
            )
        rows += 1
        if header.null_columns and not any(fields[null] for null in header.null_columns):
            continue  # it is done
        if at is None:
            matched[number] = True
            continue
        value = _text(fields[at])
        if value or (fields[at] and ids.kind == "string"):  # null is unquoted, but a number cannot be ""
            values.append(value)
            places.append(number)
    if at is not None:
        hits = _match_values(batch, values, places, header.names[at], ids)
        matched[np.array(places, dtype=np.int64)[hits]] = True
    return matched, rows


def _match_values(
    batch: _RecordBatch, values: Sequence[bytes], places: Sequence[int], name: str, ids: IdMatcher
) -> NDArray[np.bool_]:
    if ids.kind == "integer":
        for value, place in zip(values, places, strict=True):
            if not _INTEGER.fullmatch(value):
                raise PurgeError(
                    f"line {batch.line_of(place)} has no integer in column {name!r}, and the ids are integers; give "
                    "ids that are strings (--id-type string), or correct the line"
                )
        return match_integers(values, ids)
    for value, place in zip(values, places, strict=True):
        if not value.isascii():
            try:
                value.decode()
            except UnicodeDecodeError:
                raise PurgeError(
                    f"line {batch.line_of(place)} is not UTF-8 in column {name!r}; convert the file"
                ) from None
    return match_strings(values, ids)


def _fields(record: bytes, line: int, batch: _RecordBatch | None = None, number: int = 0) -> list[bytes]:
    """Return the fields as they are written, quotes included."""
    bare = _strip_line_end(record)
    if b'"' not in bare:
        if b"\r" not in bare:
            return bare.split(b",")
        reason = "a carriage return that ends no line"
    elif b'\\"' in bare:
        reason = "a quote after a backslash, which readers take in two ways"
    else:
        fields: list[bytes] = []
        at = 0
        while found := _FIELD.match(bare, at):
            fields.append(found[0])
            at = found.end() + 1
            if at > len(bare):
                return fields
        reason = "a quote that is not closed, or not where a field begins or ends"
    where = batch.line_of(number) if batch else line
    raise PurgeError(f"line {where} has {reason}; write the file as RFC 4180 says, or see to it by other means")


def _strip_line_end(record: bytes) -> bytes:
    return record.removesuffix(b"\n").removesuffix(b"\r")


def _text(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field


def _null_columns(record: bytes, nulls: frozenset[int]) -> bytes:
    bare = _strip_line_end(record)
    fields = [b"" if number in nulls else field for number, field in enumerate(_fields(record, 0))]
    return b",".join(fields) + record[len(bare) :]
