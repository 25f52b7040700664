"""Read CSV and JSON lines for `verify`, by Python's `csv` and `json`, and take compressed text apart.

Text that readers take in several ways is refused, so that no such file is called clean.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, cast

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.untyped_pandas import pa
from refstore_purge.verify_ids import INTEGER, MetadataEntry, RowSearch, VerifyReadError, place_of

READ_BYTES: Final = 64 * 1024
BLOCK_BYTES: Final = 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
BOM: Final = b"\xef\xbb\xbf"
FIELD: Final = re.compile(rb'(?:^|(?<=,))("[^"]*(?:""[^"]*)*"|[^",]*)(?=,|\Z)')
"""A field of a record as it is written."""


def _lines_of(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without their ends, decompressed if its first bytes say so. Raises VerifyReadError, and
    where it has more text or lines than a file of this size may have, PurgeError.
    """
    allowance, rest, is_first = FileAllowance(source), b"", True
    for block in _unpacked_blocks(source):
        allowance.add_unpacked(len(block))
        allowance.add_rows(block.count(b"\n"))
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.removeprefix(BOM) if is_first else line
            is_first = False
        if len(rest) > LINE_BYTES_MAX:
            raise VerifyReadError("it has a line that is longer than 64 MiB")
    if rest:
        yield rest.removeprefix(BOM) if is_first else rest


def _unpacked_blocks(source: BinaryIO) -> Iterator[bytes]:
    first = source.read(6)
    source.seek(0)
    try:
        if first.startswith(b"\x1f\x8b"):
            yield from _read(gzip.GzipFile(fileobj=source))
        elif first.startswith(b"BZh"):
            yield from _decompress(source, bz2.BZ2Decompressor)
        elif first.startswith(b"\xfd7zXZ\x00"):
            yield from _decompress(source, lzma.LZMADecompressor)
        elif first.startswith(b"\x28\xb5\x2f\xfd"):
            yield from _read(pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd"))
        else:
            yield from _read(source)
    except MemoryError:  # Arrow's is also one of its exceptions
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException):
        raise VerifyReadError("it cannot be decompressed to its end") from None


def _read(opened: Any) -> Iterator[bytes]:
    while block := opened.read(BLOCK_BYTES):
        yield block


def _decompress(source: BinaryIO, make: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the text of one compressed part after another, of which BZ2File and LZMAFile leave out what is damaged."""
    data = b""
    while data := data.lstrip(b"\0") or source.read(READ_BYTES):
        part = make()
        while not part.eof:
            if part.needs_input and not data and not (data := source.read(READ_BYTES)):
                raise EOFError
            yield part.decompress(data, BLOCK_BYTES)
            data = b""
        data = part.unused_data


# ---- CSV


def search_csv(source: BinaryIO, search: RowSearch) -> Sequence[MetadataEntry]:
    """Count the rows that have ids; there is nothing beside them. Raises VerifyReadError."""
    dataset, is_text = search.dataset, search.ids.kind == "string"
    records = _records_of(source)
    header = next(records, None)
    if header is None:
        return ()
    if search.ids.kind == "binary":
        raise VerifyReadError("CSV has no binary values, and the ids are binary")
    names = [_decode(_unquote(name), "its header") for name in header]
    at = -1 if search.is_of_id else place_of(names, dataset.identifier, dataset.identifier)
    nulls = [place_of(names, name, name) for name in dataset.set_null]
    for number, fields in enumerate(records, 1):
        if len(fields) != len(names):
            raise VerifyReadError(f"record {number} has {len(fields)} fields, and the header {len(names)}")
        if nulls and not any(fields[null] for null in nulls):
            continue
        if search.is_of_id:
            search.findings.rows += 1
        elif fields[at]:
            value = _unquote(fields[at])
            if not is_text and value and not INTEGER.fullmatch(value):
                raise VerifyReadError(
                    f"column {dataset.identifier!r} has a value that is no integer, and the ids are integers"
                )
            if is_text and not value.isascii():
                _decode(value, f"column {dataset.identifier!r}")
            search.add_text(value, number)
    return ()


def _records_of(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the fields of each record as they are written, quotes included. A blank line is a record only if it is the
    first, and so the header. Raises VerifyReadError.
    """
    taken: list[bytes] = []

    def take_lines() -> Iterator[str]:
        for line in _lines_of(source):
            if b"\0" in line:
                raise VerifyReadError("it is no text")
            taken.append(line)
            yield line.decode("latin-1") + "\n"

    # The limit is one of the whole process: it is only ever raised, because other threads read, too.
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES_MAX))
    reader = csv.reader(take_lines(), strict=True)
    try:
        for number, values in enumerate(reader, 1):
            record = b"\n".join(taken).removesuffix(b"\r")
            if b'"' in record:
                if b'\\"' in record:
                    raise VerifyReadError(
                        f"record {number} has a quote after a backslash, which readers take in two ways"
                    )
                fields: list[bytes] = FIELD.findall(record)
                if b",".join(fields) != record:
                    raise csv.Error
            else:
                fields = [value.encode("latin-1") for value in values]
            taken.clear()
            if fields or number == 1:
                yield fields
    except csv.Error:
        raise VerifyReadError(
            f"line {reader.line_num} has a quote or a carriage return where RFC 4180 has none"
        ) from None


def _unquote(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field


def _decode(text: bytes, what: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise VerifyReadError(f"{what} is no UTF-8") from None


# ---- JSON lines


class JsonFields(list[tuple[str, Any]]):
    """A JSON object as its fields, also those that are there twice."""


class NumberText(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(object_pairs_hook=JsonFields, parse_int=NumberText, parse_float=NumberText)


def search_json(source: BinaryIO, search: RowSearch) -> Sequence[MetadataEntry]:
    """Count the rows that have ids; there is nothing beside them. Raises VerifyReadError."""
    dataset, kind, findings = search.dataset, search.ids.kind, search.findings
    steps, nulls = dataset.identifier.split("."), [name.split(".") for name in dataset.set_null]
    wanted: type = NumberText if kind == "integer" else str
    findings.has_identifier = None
    for number, text in enumerate(_lines_of(source), 1):
        if not text.strip():
            continue
        if kind == "binary":
            raise VerifyReadError("JSON has no binary values, and the ids are binary")
        try:
            line = _DECODER.decode(text.decode())
            if not isinstance(line, JsonFields):
                raise VerifyReadError(f"line {number} is no JSON object")
            values = list(_values_at(line, steps, dataset.map_part))
            findings.has_identifier = bool(findings.has_identifier or values)
            if nulls and not any(_is_set(line, null) for null in nulls):
                continue
            if search.is_of_id:
                findings.rows += 1
                continue
            values = [value for value in values if value is not None]
            in_any_case = _values_at(line, steps, dataset.map_part, any_case=True)
            if not values and any(value is not None for value in in_any_case):
                raise VerifyReadError(f"line {number} has {dataset.identifier!r} in another case only")
        except RecursionError:
            raise VerifyReadError(f"line {number} is nested too deep") from None
        except ValueError:
            raise VerifyReadError(f"line {number} is no JSON in UTF-8") from None
        findings.has_rows_without_identifier |= not values
        for value in values:
            if type(value) is not wanted or (wanted is NumberText and not value.lstrip("-").isdecimal()):
                raise VerifyReadError(
                    f"line {number} has another type at {dataset.identifier!r}, and the ids are {kind}s"
                )
            search.add_text(value.encode(errors="surrogatepass"), number)  # also half of a pair of surrogates
    return ()


def _values_at(value: Any, steps: Sequence[str], map_part: str, *, any_case: bool = False) -> Iterator[Any]:
    """Yield what stands at a path: through objects and arrays. Of an object at the path's end, its keys or values. None
    stands for null, on the way, too, and for an empty array.
    """
    if isinstance(value, JsonFields):
        for name, each in value:
            if steps and (name == steps[0] or (any_case and name.casefold() == steps[0].casefold())):
                yield from _values_at(each, steps[1:], map_part, any_case=any_case)
            elif not steps and map_part == "key":
                yield name
            elif not steps:
                yield from _values_at(each, steps, map_part)
    elif isinstance(value, list):
        for each in cast(list[Any], value) or [None]:
            yield from _values_at(each, steps, map_part, any_case=any_case)
    elif value is None or not steps:
        yield value


def _is_set(value: Any, steps: Sequence[str]) -> bool:
    if steps and isinstance(value, list) and not isinstance(value, JsonFields):
        raise VerifyReadError(f"an array leads to {steps[-1]!r}, so no run sets it to null")
    if steps and isinstance(value, JsonFields):
        return any(_is_set(each, steps[1:]) for name, each in value if name == steps[0])
    return value is not None and not steps
