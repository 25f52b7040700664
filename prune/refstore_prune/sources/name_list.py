"""Names from lists: files of text, CSV or Parquet, in a folder or an object store, and what a command prints.

Whatever may be cut off, or may be read otherwise than it was meant, is an error. A list has the names of the time at
which its file was written, so it says that time (`SourceFacts.as_of_ms`).
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import shlex
import shutil
import tempfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast
from urllib.parse import quote

from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.core.child_processes import run_command
from refstore.core.clock import SystemClock, format_utc
from refstore.core.redaction import redact_url
from refstore.errors import Corrupt, Invalid, NotFound, Unavailable
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import SkippedKeys
from refstore.objects.store_urls import parse_store_url
from refstore_gc.untyped_arrow import pa, pc, pq
from refstore_prune.sources.base import BATCH_NAMES, NameBatch, NameSource, SourceFacts, SourceOptions

READ_BYTES: Final = 1 << 20
CLOCK_MS_MAX: Final = 300_000
"""How far the clock may be ahead of this one by which a file has its time."""
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
        folder = f"{_url_of(store_url).partition('?')[0].rstrip('/')}/"
        with _find_files(self._place) as (found, _):
            for each in found:
                if each.url.startswith(folder):
                    raise Invalid(
                        f"the list {each.url} lies in the store, and would be deleted, too; move it elsewhere"
                    )
                if not each.store.is_remote:
                    with each.open() as (file, _):
                        next(_read_file(file, each.url, self._column), None)

    def parts(self) -> Iterator[NameBatch]:
        self._began_ms = self._as_of_ms = SystemClock().now_ms()
        with _find_files(self._place) as (found, left_out):
            self._read = {"files": len(found), "files_left_out": left_out, "names": 0}
            for each in found:
                with each.open() as (file, written_ms):
                    for batch in _read_file(file, each.url, self._column):
                        self._read["names"] += len(batch)
                        yield batch
                    if written_ms > SystemClock().now_ms() + CLOCK_MS_MAX:
                        raise Invalid(
                            f"{each.url} was written in the future ({format_utc(written_ms)}), so it may be of any "
                            "time; set the clocks right, and write it again"
                        )
                    self._as_of_ms = max(1, min(self._as_of_ms, written_ms))  # 0 would say: now
        _check_some(self.text, self._read["names"])

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
        self._names = self._began_ms = self._as_of_ms = 0

    def check(self, store_url: str) -> None:
        del store_url
        if shutil.which(self._arguments[0]) is None:
            raise Invalid(f"there is no program {self._arguments[0]!r} that can be started; give its path")

    def parts(self) -> Iterator[NameBatch]:
        """Yield what the command prints. An end other than 0 is raised after the last batch: it is no list then."""
        self._began_ms = SystemClock().now_ms()
        with _translate_errors(self.text), run_command(self._arguments) as process:
            for batch in _read_text(cast(BinaryIO, process.stdout), self.text, self._column):
                self._names += len(batch)
                yield batch
            code = process.wait()
            if code:
                how = f"with code {code}" if code > 0 else f"by signal {-code}"
                raise Unavailable(
                    f"{self.text} ended {how}, so its names are not complete; see what it says, and retry"
                )
            _check_some(self.text, self._names)

    def facts(self) -> SourceFacts:
        return SourceFacts(source=self.text, began_ms=self._began_ms, read={"names": self._names})


def _check_some(text: str, names: int) -> None:
    """Raise Invalid for a list without a name: beside other sources nobody would miss its names."""
    if not names:
        raise Invalid(f"{text} is empty, so it is no list of names; look at what writes it, or leave it out")


# ---- where the files are


class _NameFile(NamedTuple):
    store: ObjectStore
    key: str

    @property
    def url(self) -> str:
        """Return its URL without options, as messages name it."""
        return f"{self.store.url.partition('?')[0].rstrip('/')}/{self.key}"

    @contextmanager
    def open(self) -> Generator[tuple[BinaryIO, int], None, None]:
        """Yield the file, and when it was written. Raises what reading it raises as errors of refstore; Unavailable, at
        the end: somebody wrote it meanwhile.
        """
        with _translate_errors(self.url):
            info, folder = self.store.head(self.key), self.store.local_folder
            with tempfile.TemporaryFile() if folder is None else (folder / self.key).open("rb") as file:
                if folder is None:
                    for chunk in self.store.get(self.key, size_bytes=info.size_bytes):
                        file.write(chunk)
                    file.seek(0)
                yield cast(BinaryIO, file), info.mtime_ms
            if self.store.head(self.key) != info:
                raise Unavailable(f"{self.url} changed while it was read; run it again when it has been written")


def _url_of(place: str) -> str:
    """Return the URL of a place on this machine without links, and of a folder with a slash; or another URL."""
    if "://" in place and not place.startswith("file://"):
        return place
    path = parse_store_url(place).path if "://" in place else os.path.expanduser(place)  # noqa: PTH111  # as a text
    return f"file://{quote(os.path.realpath(path))}{'/' if Path(path).is_dir() else ''}"


@contextmanager
def _find_files(place: str) -> Generator[tuple[list[_NameFile], int], None, None]:
    """Yield the files of a place, in the order of their names, and how many others a folder has, such as `_SUCCESS`.
    Raises NotFound: there is none; Invalid: some cannot be read; Unavailable: they are being written.
    """
    parsed = parse_store_url(_url_of(place))
    folder, _, last = parsed.path.rpartition("/")
    fixed = re.split(r"[*?[]", last)[0]
    with closing(open_objects(parsed._replace(path=folder).text())) as store:
        if last and fixed == last:
            yield [_NameFile(store, store.head(last).key)], 0
            return
        skipped = SkippedKeys()
        every = [key for page in store.list_pages(fixed, skipped=skipped) for key in page.keys]
        for name, reason in skipped.examples:
            if last and not fnmatchcase(name, last) and skipped.count < SkippedKeys.EXAMPLES_MAX:
                continue  # it is another file of the folder
            raise Invalid(f"{name} of {redact_url(place)} cannot be read: {reason}; name the files one by one")
        if any(f"/{_UNFINISHED}/" in f"/{key}" for key in every):
            raise Unavailable(f"{redact_url(place)} has a folder {_UNFINISHED}: a job still writes it, or has failed")
        chosen = [key for key in every if ("/" not in key and fnmatchcase(key, last) if last else _is_data(key))]
        if not chosen:
            raise NotFound(f"there is no list of names at {redact_url(place)}; give a file, a folder, or a pattern")
        yield [_NameFile(store, key) for key in chosen], len(every) - len(chosen)


def _is_data(name: str) -> bool:
    """Return whether Spark and Hive take a file of a folder for data."""
    segments = name.split("/")
    return not any(each.startswith(".") or (each.startswith("_") and "=" not in each) for each in segments)


@contextmanager
def _translate_errors(name: str) -> Generator[None, None, None]:
    try:
        yield
    except MemoryError:  # Arrow's is also one of its exceptions
        raise
    except (EOFError, zlib.error, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow and gzip give no number
            raise Unavailable(f"{name} cannot be read to its end: {error.strerror}; correct that, and retry") from error
        raise Corrupt(f"{name} is damaged, or was cut off, so it is no list; write it again ({error})") from error


# ---- the formats


def _read_file(file: BinaryIO, name: str, column: str) -> Iterator[NameBatch]:
    head = file.read(len(_PARQUET))
    file.seek(0)
    plain = name.lower().removesuffix(".gz")
    if head == _PARQUET or plain.endswith((".parquet", ".parq")):
        return _read_parquet(file, name, column)
    text = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if head.startswith(_GZIP) else file
    return _read_text(text, name, column, _DELIMITERS.get(plain[-4:], ""))


def _read_parquet(file: BinaryIO, name: str, column: str) -> Iterator[NameBatch]:
    opened = pq.ParquetFile(file, page_checksum_verification=True)
    schema = opened.schema_arrow
    texts = [field.name for field in schema if _is_text(field.type)]
    column = column or (texts[0] if len(texts) == 1 else "")
    if texts.count(column) != 1 or schema.names.count(column) != 1:
        raise Invalid(f"say which column of {name} has the names (--column); of text are: {', '.join(texts) or 'none'}")
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


def _read_text(file: BinaryIO, name: str, column: str, delimiter: str = "") -> Iterator[NameBatch]:
    """Read a text: CSV if its suffix says the delimiter, or a column is named; else one name a line."""
    lines = _read_lines(file, name)
    first = next(lines, None)
    if first is None:
        raise Invalid(f"{name} is empty, so it is no list of names; look at what writes it")
    whole = chain([first], lines)
    names = _take_column(whole, name, column, delimiter or ",") if column or delimiter else _take_lines(whole, name)
    while batch := list(islice(names, BATCH_NAMES)):
        yield make_array(batch, pa.string())


def _read_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a text in UTF-8. Raises Invalid: one has no end."""
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
        yield from lines
        number += len(lines)
    if rest:
        raise Invalid(
            f"line {number + 1} of {name}, the last one, has no line end, so it may be cut off; end the file with one"
        )


def _take_lines(lines: Iterator[str], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.startswith('"') and line.endswith('"'):
            raise Invalid(f"line {number} of {name} is in quotes; if it is CSV, name the column (--column)")
        if line:
            yield line


def _take_column(lines: Iterator[str], name: str, column: str, delimiter: str) -> Iterator[str]:
    """Yield the names in a column of CSV. Each row must have one line, and as many fields as the first: a quote that
    is not closed would hide names. The first row is a header if the column has a name; else it may have a name.
    """
    width = index = 0
    for number, line in enumerate(lines, 1):
        try:
            row = next(csv.reader([line], delimiter=delimiter, strict=True), list[str]())
        except csv.Error as error:
            raise _refuse_row(name, number, f"is no row of CSV ({error})") from None
        if not row:
            continue
        if not width:
            width = len(row)
            if row.count(column) != 1 if column else width > 1:
                raise Invalid(f"say which column of {name} has the names (--column); it has: {', '.join(row)}")
            index = row.index(column) if column else 0
            if column:
                continue
        if len(row) != width:
            raise _refuse_row(name, number, f"has {len(row)} fields, and the first one has {width}")
        if not row[index]:
            raise _refuse_row(name, number, "has no name")
        yield row[index]


def _refuse_row(name: str, number: int, why: str) -> Invalid:
    return Invalid(f"line {number} of {name} {why}; correct it, or write a list of the names alone")
