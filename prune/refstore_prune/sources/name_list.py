"""Names from lists: files of text, CSV or Parquet, in a folder or an object store, and what a command prints.

Whatever may be cut off, or may be read otherwise than it was meant, is an error. A list has the names of the time at
which its file was written, so it says that time (`SourceFacts.as_of_ms`).
"""

from __future__ import annotations

import csv
import gzip
import os
import shlex
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.core.child_processes import run_command
from refstore.core.clock import SystemClock, format_utc
from refstore.core.redaction import redact_url
from refstore.errors import Corrupt, Invalid, NotFound, Unavailable
from refstore.objects import open_objects
from refstore.objects.store_urls import parse_store_url
from refstore_gc.untyped_arrow import pa, pc, pq
from refstore_prune.sources.base import BATCH_NAMES, NameBatch, NameSource, SourceFacts, SourceOptions

READ_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 1 << 16
"""A longer line is refused: no list of names has one."""

NEVER_TAKEN: Final = ("_SUCCESS", ".*.crc", "*_$folder$", ".keep", ".gitkeep")
"""Markers of folders and checksums beside files, which programs write and no database names. Everything else that a
list does not name goes, also what its owner may call a sidecar: it has to be on the list, or protected.
"""

_BOM: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_PARQUET: Final = b"PAR1"
_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
_UNFINISHED: Final = "_temporary"
"""The folder that Spark and Hadoop have in their output until it is complete."""


def open_list(place: str, options: SourceOptions) -> NameSource:
    """Open `list:PLACE`."""
    return NameList(place, options.column)


def open_exec(command: str, options: SourceOptions) -> NameSource:
    """Open `exec:COMMAND`. Raises Invalid."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise Invalid(f"the command of exec: cannot be split into words: {error}; close its quotes") from None
    if not arguments:
        raise Invalid("exec: has no command; write exec:COMMAND with its arguments")
    return CommandNames(arguments, options.column)


# ---- the sources


class NameList(NameSource):
    """The names in a file, in the files of a folder, or in those that a pattern takes."""

    never_taken = NEVER_TAKEN

    def __init__(self, place: str, column: str) -> None:
        self.text = f"list:{redact_url(place)}"
        self._place = place
        self._column = column
        self._read: dict[str, int] = {}
        self._began_ms = self._as_of_ms = 0

    def check(self, store_url: str) -> None:
        """Find the files, and read the beginnings of those on this machine. Raises Invalid for a list that lies in the
        store: nothing names it, so it would be deleted.
        """
        for each in _find_files(self._place).files:
            if each.lies_in(store_url):
                raise Invalid(
                    f"the list {each.name} lies in the store that it is about, and would be deleted with what it does "
                    "not name; move it elsewhere"
                )
            if each.path is not None:
                with _translate_errors(each.name), each.open() as (file, _):
                    next(_read_file(file, each.name, self._column), None)

    def parts(self) -> Iterator[NameBatch]:
        self._began_ms = self._as_of_ms = SystemClock().now_ms()
        found = _find_files(self._place)
        self._read = {"files": len(found.files), "files_left_out": found.left_out, "names": 0}
        for each in found.files:
            with _translate_errors(each.name), each.open() as (file, written_ms):
                for batch in _read_file(file, each.name, self._column):
                    self._read["names"] += len(batch)
                    yield batch
                self._as_of_ms = min(self._as_of_ms, written_ms)

    def facts(self) -> SourceFacts:
        return SourceFacts(
            source=self.text,
            began_ms=self._began_ms,
            as_of_ms=self._as_of_ms,
            read=self._read,
            not_seen=[f"{self.text}: what was named after {format_utc(self._as_of_ms)}, when it was written"],
        )


class CommandNames(NameSource):
    """The names that a command prints, such as a query of a database."""

    never_taken = NEVER_TAKEN

    def __init__(self, arguments: list[str], column: str) -> None:
        self.text = f"exec:{arguments[0]}"  # the arguments may have a password
        self._arguments = arguments
        self._column = column
        self._names = self._began_ms = 0

    def check(self, store_url: str) -> None:
        del store_url
        if shutil.which(self._arguments[0]) is None:
            raise Invalid(f"there is no program {self._arguments[0]!r} that can be started; give its path")

    def parts(self) -> Iterator[NameBatch]:
        """Yield what the command prints. An end other than 0 is raised after the last batch: it is no list then."""
        self._began_ms = SystemClock().now_ms()
        with _translate_errors(self.text), run_command(self._arguments) as process:
            for batch in _read_text(cast(BinaryIO, process.stdout), self.text, self._column, ","):
                self._names += len(batch)
                yield batch
            code = process.wait()
            if code:
                how = f"with code {code}" if code > 0 else f"by signal {-code}"
                raise Unavailable(
                    f"{self.text} ended {how}, so its names are not complete; see what it says, and retry"
                )

    def facts(self) -> SourceFacts:
        return SourceFacts(source=self.text, began_ms=self._began_ms, read={"names": self._names})


# ---- where the files are


class _NameFile(NamedTuple):
    name: str
    """How messages call it."""
    path: Path | None
    """None: it is an object."""
    store_url: str = ""
    key: str = ""

    @contextmanager
    def open(self) -> Generator[tuple[BinaryIO, int], None, None]:
        """Yield the file, and when it was written. Raises Unavailable, at the end: somebody wrote it meanwhile."""
        if self.path is None:
            with closing(open_objects(self.store_url)) as store, tempfile.TemporaryFile() as copy:
                info = store.head(self.key)
                for chunk in store.get(self.key, size_bytes=info.size_bytes):
                    copy.write(chunk)
                copy.seek(0)
                yield cast(BinaryIO, copy), info.mtime_ms
            return
        with self.path.open("rb") as file:
            before = os.fstat(file.fileno())
            yield file, before.st_mtime_ns // 1_000_000
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Unavailable(f"{self.name} changed while it was read; run it again when it has been written")

    def lies_in(self, store_url: str) -> bool:
        of = parse_store_url(store_url)
        if self.path is not None:
            return of.scheme == "file" and self.path.resolve().is_relative_to(Path(of.path).resolve())
        own = parse_store_url(self.store_url)
        folder = f"{of.path.strip('/')}/".lstrip("/")
        same = (own.scheme, own.host, own.options.get("endpoint")) == (of.scheme, of.host, of.options.get("endpoint"))
        return same and f"{own.path.strip('/')}/{self.key}".lstrip("/").startswith(folder)


class _FoundFiles(NamedTuple):
    files: list[_NameFile]
    """In the order of their names."""
    left_out: int
    """Files of the folder that are no data, such as `_SUCCESS`."""


def _find_files(place: str) -> _FoundFiles:
    """Find the files of a place. Raises NotFound: there is none; Invalid; Unavailable."""
    found = _find_objects(place) if "://" in place and not place.startswith("file://") else _find_local(place)
    if not found.files:
        raise NotFound(
            f"there is no list of names at {redact_url(place)}; give a file, a folder, or a pattern of files"
        )
    return found


def _find_local(place: str) -> _FoundFiles:
    with _translate_errors(place):
        path = Path(parse_store_url(place).path if place.startswith("file://") else place).expanduser()
        if path.is_dir():
            tree = os.walk(path, followlinks=True, onerror=_raise)
            names = (os.path.relpath(f"{folder}/{name}", path) for folder, _, files in tree for name in files)
            chosen, left_out = _choose(names, _is_data)
        elif path.exists():
            if not path.is_file():
                raise Invalid(f"{path} is no regular file; a pipe can be read with exec:cat")
            return _FoundFiles([_NameFile(str(path), path)], 0)
        elif path.parent.is_dir():
            chosen, left_out = _choose(os.listdir(path.parent), _matcher(path.name))  # noqa: PTH208  # names
            path = path.parent
        else:
            return _FoundFiles([], 0)
    return _FoundFiles([_NameFile(str(path / name), path / name) for name in chosen], left_out)


def _find_objects(place: str) -> _FoundFiles:
    parsed = parse_store_url(place)
    folder, _, last = parsed.path.rpartition("/")
    url = parsed._replace(path=folder).text()
    with closing(open_objects(url)) as store:
        if last and not _is_pattern(last):
            store.head(last)
            chosen, left_out = [last], 0
        else:
            keys = (info.key for info in store.list(last[: _wildcard_at(last)]))
            chosen, left_out = _choose(keys, _matcher(last) if last else _is_data)
    return _FoundFiles([_NameFile(f"{redact_url(url)}/{key}", None, url, key) for key in chosen], left_out)


def _choose(names: Iterable[str], is_chosen: Callable[[str], bool]) -> tuple[list[str], int]:
    """Return the chosen names in order, and the number of others. Raises Unavailable: they are being written."""
    every = list(names)
    for name in every:
        if _UNFINISHED in name.split("/")[:-1]:
            raise Unavailable(
                f"{name} is of a job that still writes the list; wait for its end, or remove {_UNFINISHED}"
            )
    chosen = sorted(filter(is_chosen, every))
    return chosen, len(every) - len(chosen)


def _is_data(name: str) -> bool:
    """Return whether Spark and Hive take a file of a folder for data."""
    segments = name.split("/")
    return not any(each.startswith(".") or (each.startswith("_") and "=" not in each) for each in segments)


def _is_pattern(name: str) -> bool:
    return _wildcard_at(name) < len(name)


def _wildcard_at(name: str) -> int:
    return next((at for at, character in enumerate(name) if character in "*?["), len(name))


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return what takes the names of one folder that match the pattern, as a shell does."""
    return lambda name: (
        fnmatchcase(name, pattern) and name.count("/") == 0 and (name[0] != "." or pattern.startswith("."))
    )


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def _translate_errors(name: str) -> Generator[None, None, None]:
    """Raise what reading a list may raise as errors of refstore."""
    try:
        yield
    except MemoryError:  # Arrow's is also one of its exceptions
        raise
    except FileNotFoundError:
        raise NotFound(f"{name} is not there; give a file, a folder, or a pattern of files") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException) as error:
        raise Corrupt(f"{name} is damaged, or was cut off, so it is no list; write it again ({error})") from error
    except OSError as error:
        if error.errno is None:  # Arrow's, of a file that is cut off
            raise Corrupt(f"{name} is damaged, or was cut off, so it is no list; write it again ({error})") from error
        raise Unavailable(f"{name} cannot be read to its end: {error.strerror}; correct that, and retry") from error


# ---- the formats


def _read_file(file: BinaryIO, name: str, column: str) -> Iterator[NameBatch]:
    head = file.read(len(_PARQUET))
    file.seek(0)
    plain = name.lower().removesuffix(".gz")
    if head == _PARQUET or plain.endswith((".parquet", ".parq")):
        return _read_parquet(file, name, column)
    delimiter = next((_DELIMITERS[each] for each in _DELIMITERS if plain.endswith(each)), "")
    text = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if head.startswith(_GZIP) else file
    return _read_text(text, name, column, delimiter or ",", is_csv=bool(delimiter))


def _read_parquet(file: BinaryIO, name: str, column: str) -> Iterator[NameBatch]:
    opened = pq.ParquetFile(file, page_checksum_verification=True)
    schema = opened.schema_arrow
    texts = [field.name for field in schema if _is_text(field.type)]
    if column:
        if schema.names.count(column) != 1 or column not in texts:
            raise Invalid(f"{name} has no column {column!r} of text; use one of {', '.join(texts) or 'another file'}")
    elif len(texts) == 1:
        column = texts[0]
    else:
        raise Invalid(f"{name} has {len(texts)} columns of text; name one with --column: {', '.join(texts)}")
    row = 0
    for batch in opened.iter_batches(batch_size=BATCH_NAMES, columns=[column], use_threads=False):
        names = batch.column(batch.schema.names.index(column)).cast(pa.string())
        names.validate(full=True)  # that it is UTF-8
        lengths = pc.fill_null(pc.binary_length(names), make_scalar(0, pa.int32()))
        if len(names) and not pc.min(lengths).as_py():
            at = lengths.to_pylist().index(0)
            raise Invalid(f"{name} has no name in row {row + at + 1}, column {column!r}; leave such rows out")
        row += len(names)
        yield names


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return str(kind) in ("string", "large_string", "string_view")


def _read_text(file: BinaryIO, name: str, column: str, delimiter: str, *, is_csv: bool = False) -> Iterator[NameBatch]:
    """Read a text: CSV if its suffix says so, or if a column is named; else one name a line."""
    number = 0
    table = _Table(name, column, delimiter) if column or is_csv else None
    for lines in _read_lines(file, name):
        names = _take_lines(lines, name, number) if table is None else table.take(lines, number)
        number += len(lines)
        for start in range(0, len(names), BATCH_NAMES):
            yield make_array(names[start : start + BATCH_NAMES], pa.string())
    if not number:
        raise Invalid(f"{name} is empty, so it is no list of names; look at what writes it")


def _read_lines(file: BinaryIO, name: str) -> Iterator[list[str]]:
    """Yield the lines of a text in UTF-8, many at a time. Raises Invalid: one has no end."""
    rest, number, is_first = b"", 0, True
    while block := file.read(READ_BYTES):
        complete, newline, rest = (rest + block).rpartition(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise Invalid(f"{name} has a line of more than {LINE_BYTES_MAX} bytes; write one name a line")
        if not newline:
            continue
        try:
            text = complete.removeprefix(_BOM).decode() if is_first else complete.decode()
        except UnicodeDecodeError as error:
            line = number + 1 + complete.count(b"\n", 0, error.start)
            raise Invalid(f"{name} is not UTF-8 in line {line}; write it in UTF-8") from None
        is_first = False
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        if "\0" in text:
            line = number + 1 + next(at for at, each in enumerate(lines) if "\0" in each)
            raise Invalid(f"{name} has a NUL in line {line}; write it as text in UTF-8")
        yield lines
        number += len(lines)
    if rest:
        raise Invalid(
            f"line {number + 1} of {name}, the last one, has no line end, so it may be cut off; end the file with one"
        )


def _take_lines(lines: list[str], name: str, before: int) -> list[str]:
    for at, line in enumerate(lines, before + 1):
        if line.startswith('"') and line.endswith('"'):
            raise Invalid(
                f"line {at} of {name} is in quotes; if it is CSV, say which column has the names (--column), and if a "
                "name has quotes, write the list as CSV"
            )
    return [line for line in lines if line]


class _Table:
    """The column of a CSV text that has the names. Each row must have one line and as many fields as the first one: a
    quote that is not closed would hide names.
    """

    def __init__(self, name: str, column: str, delimiter: str) -> None:
        self._name = name
        self._column = column
        self._delimiter = delimiter
        self._header: list[str] = []
        self._index = 0

    def take(self, lines: list[str], before: int) -> list[str]:
        """Return the names in the next lines. `before`: how many lines there were before them."""
        rows = self._parse(lines, before)
        names: list[str] = []
        for number, row in enumerate(rows, before + 1):
            if not row:
                continue
            if not self._header:
                self._header = row
                if self._take_header():
                    continue
            if len(row) != len(self._header):
                raise Invalid(
                    f"line {number} of {self._name} has {len(row)} fields, and the first one has {len(self._header)}; "
                    "correct it, or write a list of the names alone"
                )
            if not row[self._index]:
                raise Invalid(f"{self._name} has no name in line {number}; leave such rows out")
            names.append(row[self._index])
        return names

    def _parse(self, lines: list[str], before: int) -> list[list[str]]:
        try:
            rows = list(csv.reader(lines, delimiter=self._delimiter, strict=True))
            if len(rows) == len(lines):
                return rows
        except csv.Error:
            pass
        for number, line in enumerate(lines, before + 1):
            try:
                next(csv.reader([line], delimiter=self._delimiter, strict=True), None)
            except csv.Error as error:
                raise Invalid(
                    f"line {number} of {self._name} is no row of CSV ({error}); write each row in one line, or a list "
                    "of the names alone"
                ) from None
        raise AssertionError

    def _take_header(self) -> bool:
        """Find the column. Return whether the first row is a header: without a column's name, it may have a name."""
        header = self._header
        if not self._column:
            if len(header) > 1:
                raise Invalid(f"{self._name} has {len(header)} columns; name one with --column: {', '.join(header)}")
            return False
        if header.count(self._column) != 1:
            raise Invalid(f"{self._name} has not one column {self._column!r}; its header has: {', '.join(header)}")
        self._index = header.index(self._column)
        return True
