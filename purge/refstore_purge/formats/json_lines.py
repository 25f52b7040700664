"""JSON lines: a line that stays is kept byte for byte.

A line that is no JSON object fails the file: nobody could say that it has none of the ids. A field that is there twice
counts twice, because readers differ in which of the two they take.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

import numpy as np

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.formats import compression
from refstore_purge.formats.base import (
    FormatTask,
    IdMatcher,
    MissingColumnError,
    SearchResult,
    is_alike,
    name_of,
)
from refstore_purge.formats.text_values import match_integers, match_strings
from refstore_purge.purge_error import OtherMeansError, PurgeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINES: Final = 2000
"""How many lines are parsed at a time: each takes many times its length, and Python's garbage collector looks at all of
them again and again.
"""
PARSED_BYTES: Final = 128 * 1024
"""How much of them, at least: numbers of one digit take 60 times as much."""
schema_of: Final = None
"""Lines tell the types, one by one."""
_BOM: Final = b"\xef\xbb\xbf"


class _JsonObject(list[tuple[str, Any]]):
    """A JSON object as its fields, in order, also those that are there twice."""

    __slots__ = ()


class _JsonNumber(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_JsonObject, parse_int=_JsonNumber, parse_float=_JsonNumber)


class _JsonLine(NamedTuple):
    number: int
    """From 1."""
    text: bytes
    """With its end."""
    value: _JsonObject | None
    """None: the line is blank."""


def find(source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Look for the ids. Raises PurgeError."""
    rows = matched = 0
    has_identifier: bool | None = True if task.matches_every_row else None
    for lines in _batches(source):
        rows += sum(line.value is not None for line in lines)
        matched += int(np.count_nonzero(_matches(lines, task, ids)))
        if not has_identifier:
            told = (_has_identifier(line, task) for line in lines if line.value is not None)
            has_identifier = reduce(_combine, told, has_identifier)
    return SearchResult(
        rows,
        matched,
        "partition" if task.matches_every_row else "column",
        has_identifier=has_identifier,
    )


def rewrite(source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
    """Write the lines that do not match, and where columns are set to null, the others changed. Raises PurgeError."""
    rows = matched = 0
    with compression.open_writer(target, compression.detect_codec(source)) as out:
        for lines in _batches(source):
            found = _matches(lines, task, ids)
            rows += sum(line.value is not None for line in lines)
            matched += int(np.count_nonzero(found))
            for line, is_match in zip(lines, found, strict=True):
                if not is_match:
                    out.write(line.text)
                elif task.set_null:
                    out.write(_null_columns(line, task.set_null))
    return SearchResult(rows, matched, "column")


def _batches(source: BinaryIO) -> Iterator[list[_JsonLine]]:
    allowance = FileAllowance(source)
    lines: list[_JsonLine] = []
    size = 0
    for number, text in enumerate(_lines(source), 1):
        lines.append(_parse_line(number, text))
        size += len(text)
        if len(lines) == LINES or size >= PARSED_BYTES:
            allowance.add_rows(len(lines))
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines, with their ends."""
    number = 0
    rest = b""
    for block in compression.read_blocks(source):
        text = rest + block
        end = text.rfind(b"\n") + 1
        rest = text[end:]
        if len(rest) > compression.RECORD_BYTES_MAX:
            raise OtherMeansError(f"line {number + 1} or one behind it is longer than 64 MiB")
        if end:
            # not `splitlines`, which ends lines in more ways than this format does
            for line in text[: end - 1].split(b"\n"):
                number += 1
                yield line + b"\n"
    if rest:
        yield rest


def _parse_line(number: int, text: bytes) -> _JsonLine:
    bare = text.removeprefix(_BOM) if number == 1 else text
    if not bare.strip():
        return _JsonLine(number, text, None)
    try:
        value = _DECODER.decode(bare.decode())
    except RecursionError:
        raise _depth_error(number) from None
    except ValueError:
        raise PurgeError(f"line {number} is not JSON; correct the file, or see to it by other means") from None
    if not isinstance(value, _JsonObject):
        raise PurgeError(f"line {number} is no JSON object; correct the data set's format or prefix")
    return _JsonLine(number, text, value)


def _depth_error(number: int) -> PurgeError:
    return OtherMeansError(f"line {number} is nested too deep")


@contextmanager
def _limit_depth(line: _JsonLine) -> Generator[None, None, None]:
    try:
        yield
    except RecursionError:
        raise _depth_error(line.number) from None


def _matches(lines: Sequence[_JsonLine], task: FormatTask, ids: IdMatcher) -> NDArray[np.bool_]:
    if ids.kind == "binary":
        raise PurgeError("JSON has no binary values; give ids that are strings or integers")
    wanted = _JsonNumber if ids.kind == "integer" else str
    found: list[Any] = []
    rows: list[int] = []
    matched = np.zeros(len(lines), dtype=np.bool_)
    for row, line in enumerate(lines):
        if line.value is None:
            continue
        if task.set_null and not any(_is_set(line, line.value, path) for path in task.set_null):
            continue  # it is done
        if task.matches_every_row:
            matched[row] = True
            continue
        with _limit_depth(line):
            values = list(_values(line.value, task.identifier, task))
            if not values and any(True for _ in _values(line.value, task.identifier, task, any_case=True)):
                raise _other_case_error(lines, line, task)
        for value in values:
            if type(value) is not wanted or (wanted is _JsonNumber and not value.lstrip("-").isdecimal()):
                raise PurgeError(
                    f"line {line.number} has {_type_of(value)} at {name_of(task.identifier)!r}, and the ids are "
                    f"{ids.kind}s; give ids of its type, or correct the line"
                )
            found.append(value)
            rows.append(row)
    if ids.kind == "integer":
        hits = match_integers(found, ids)
    else:
        hits = match_strings([value.encode(errors="surrogatepass") for value in found], ids)  # lone surrogates, too
    matched[np.array(rows, dtype=np.int64)[hits]] = True
    return matched


def _other_case_error(lines: Sequence[_JsonLine], line: _JsonLine, task: FormatTask) -> PurgeError:
    """Return the error for a line whose identifier has another name: whoever wrote it may have meant the same."""
    others_have = any(_has_identifier(each, task) for each in lines)
    error = PurgeError if others_have else MissingColumnError
    name = name_of(task.identifier)
    return error(
        f"line {line.number} has {name!r} in another case only; correct the data set's identifier, or the line"
    )


def _values(value: Any, path: Sequence[str], task: FormatTask, *, any_case: bool = False) -> Iterator[Any]:
    """Yield the values at a path: through objects and arrays; of an object at its end, keys or values."""
    if isinstance(value, _JsonObject):
        for name, each in value:
            if path:
                if name == path[0] or (any_case and is_alike(name, path[0])):
                    yield from _values(each, path[1:], task, any_case=any_case)
            elif task.map_part == "key":
                yield name
            else:
                yield from _values(each, path, task)
    elif isinstance(value, list):
        for each in cast(list[Any], value):
            yield from _values(each, path, task, any_case=any_case)
    elif value is not None and not path:
        yield value


def _has_identifier(line: _JsonLine, task: FormatTask) -> bool | None:
    with _limit_depth(line):
        return _has_path(line.value, task.identifier)


def _has_path(value: Any, path: Sequence[str]) -> bool | None:
    """Return whether a path is there, be it null or in an array. None: a null or an empty array on the way leaves that
    open, as in rows that stay when all others were purged.
    """
    if not path:
        return True
    if isinstance(value, _JsonObject):
        below = [_has_path(each, path[1:]) for name, each in value if name == path[0]]
        return reduce(_combine, below) if below else False
    if isinstance(value, list):
        return reduce(_combine, (_has_path(each, path) for each in cast(list[Any], value)), None)
    return None if value is None else False


def _combine(one: bool | None, other: bool | None) -> bool | None:
    return True if one or other else False if False in (one, other) else None


def _is_set(line: _JsonLine, value: Any, path: Sequence[str]) -> bool:
    if not path:
        return value is not None
    if isinstance(value, list) and not isinstance(value, _JsonObject):
        raise PurgeError(
            f"line {line.number} has an array on the way to {path[-1]!r}, which is to be null; delete the rows instead"
        )
    return isinstance(value, _JsonObject) and any(
        _is_set(line, each, path[1:]) for name, each in value if name == path[0]
    )


def _type_of(value: Any) -> str:
    if isinstance(value, _JsonNumber):
        return "an integer" if value.lstrip("-").isdecimal() else "a number"
    return "a string" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"


def _null_columns(line: _JsonLine, columns: Sequence[Sequence[str]]) -> bytes:
    value: Any = line.value
    with _limit_depth(line):
        for path in columns:
            value = _set_null(value, path)
        text = _encode_value(value)
    end = line.text[len(line.text.rstrip(b"\r\n")) :]
    bom = _BOM if line.text.startswith(_BOM) and line.number == 1 else b""
    return bom + text.encode() + end


def _set_null(value: Any, path: Sequence[str]) -> Any:
    if not isinstance(value, _JsonObject):
        return value
    return _JsonObject(
        (name, each if name != path[0] else None if len(path) == 1 else _set_null(each, path[1:]))
        for name, each in value
    )


def _encode_value(value: Any) -> str:
    match value:
        case _JsonNumber():
            return str(value)
        case _JsonObject():
            return "{" + ",".join(f"{_encode_value(name)}:{_encode_value(each)}" for name, each in value) + "}"
        case list():
            return "[" + ",".join(map(_encode_value, cast(list[Any], value))) + "]"
        case str():
            # what UTF-8 cannot hold, a lone surrogate, was an escape
            return json.dumps(value, ensure_ascii=any("\ud800" <= each <= "\udfff" for each in value))
        case _:
            return json.dumps(value)
