"""Tell how a table of ids is written: Parquet, JSON lines, or CSV with which delimiter, header and columns.

A first line that may be an id is never taken for a header. No message names a value, nor the name of a column that may
be one: the first line of a CSV file is shown only where it is known to be a header.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from refstore.errors import Invalid
from refstore_purge.formats.base import PurgeError
from refstore_purge.formats.compression import detect_codec, read_blocks
from refstore_purge.untyped_pandas import pa, pq

PARQUET: Final = b"PAR1"
DELIMITERS: Final = (",", ";", "\t", "|")
HEAD_BYTES: Final = 256 * 1024
"""How much of a text is looked at to learn its form."""
_BOM: Final = b"\xef\xbb\xbf"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_SHOWN: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars (|)"}

_KNOWN: Final = re.compile(
    r"(?i:(?:[a-z]+[ _-])*(?:id|ids|uuid|guid|identifier|key|e-?mail)"
    r"|(?:guest|user|customer|client|member|person|account|visitor|device|subject|patient|contact|profile)_?(?:id|uuid)s?)"
    r"|[A-Za-z]*[a-z](?:Id|ID|Ids|IDs|Uuid|UUID)"
)
"""Names that people give to a column of ids, and hardly to a person."""
_WORD: Final = re.compile(r"[^\W\d]+(?:[ _.-]+[^\W\d]+)*")
_SHAPES: Final = (
    re.compile(r"[+-]?\d+"),
    re.compile(r"(?i)[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"),
    re.compile(r"[^@\s]+@[^@\s]+"),
    re.compile(r"(?i)[0-9a-f]{8,}"),
)
"""What ids look like that no header looks like."""
_NUMBERED: Final = re.compile(r"(\D*)\d+")

IdsFormat = Literal["parquet", "json", "csv"]


class IdsFormOptions(NamedTuple):
    """What the caller says about a table of ids."""

    column: str = ""
    """Which has the ids, '': the only one. Of CSV without a header: its number, from 1."""
    dataset_column: str = ""
    """Which names the data set of each id, '': none; the ids are for all. Likewise a number."""
    has_header: bool = True
    """Of CSV: False: its first line is a row."""
    names: tuple[str, ...] = ()
    """Names that a header may have: the identifiers of the data sets."""


class IdsForm(NamedTuple):
    file: str
    """The file's name."""
    format: IdsFormat
    columns: int
    """0: not known, of JSON lines."""
    id_at: int
    """The number of the ids' column, from 0."""
    id_name: str = ""
    """'': there is none, or it may be an id."""
    dataset_at: int | None = None
    dataset_name: str = ""
    delimiter: str = ","
    has_header: bool = True
    blank_lines: int = 0
    """At the beginning of the file."""
    has_quotes: bool = False
    """Of CSV: whether a value may have a line break."""

    def describe(self, values: int, kind: str) -> str:
        """Return what was read, without a value: `2 columns 'guestid' and 'dataset', 3 values, text`."""
        names = " and ".join(f"{name!r}" for name in (self.id_name, self.dataset_name) if name)
        many = "JSON lines, " if self.format == "json" else f"{self.columns} column{'s' * (self.columns != 1)}"
        ways = [] if self.delimiter == "," else [f"separated by {_SHOWN[self.delimiter]}"]
        if self.format == "csv" and not self.id_name:
            ways.append("the first line is the header" if self.has_header else "no header")
        way = f" ({', '.join(ways)})" if ways else ""
        return f"{many}{' ' * bool(names and self.columns)}{names}{way}, {_count_text(values)}, {kind}"


def unpack(file: Path, folder: Path) -> Path:
    """Return the file, or what it holds in a file of this folder if it is compressed. Raises Invalid, OSError."""
    with file.open("rb") as source:
        if detect_codec(source) == "none":
            return file
        plain = folder / "unpacked"
        try:
            with plain.open("wb") as target:
                for block in read_blocks(source):
                    target.write(block)
        except PurgeError:
            raise Invalid(f"{file.name} cannot be decompressed to its end; it is damaged, bring it again") from None
    return plain


def detect_form(file: Path, name: str, options: IdsFormOptions) -> IdsForm:
    """Return how a table is written, which `unpack` has returned. `name`: what messages call it.

    Raises Invalid, and of a damaged Parquet file what pyarrow raises.
    """
    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
        is_whole = not opened.read(1)
    if not options.has_header and (head.startswith(PARQUET) or head.lstrip()[:1] == b"{"):
        raise Invalid(f"{name} is no CSV, so --no-header is not for it; leave it out")
    if head.startswith(PARQUET):
        return _parquet(file, name, options)
    text = _complete_lines(head, name, is_whole=is_whole)
    match text.lstrip()[:1]:
        case "":
            raise Invalid(f"{name} is empty; give a table that has ids")
        case "{":
            return _json(text, name, options)
        case "[":
            raise Invalid(f"{name} looks like a JSON array; write JSON lines: one object a line")
        case _:
            return _csv(file, text, name, options, is_whole=is_whole)


def _choose_column(name: str, names: Sequence[str], column: str, *, shown: bool) -> str:
    """Return the column that has the ids. Raises Invalid, which shows the names only if they are `shown`: in a CSV file
    without a header the first ids stand in their place.
    """
    if not column and len(names) == 1:
        return names[0]
    if column and names.count(column) == 1:
        return column
    what = f"no column {column!r}" if column else f"{len(names)} columns"
    if column and names.count(column) > 1:
        what = f"more than one column {column!r}"
    else:
        other = next((each for each in names if column and each.lower() == column.lower()), "")
        what += f", but {other!r}" if other else ""
    there = f": {', '.join(names[:20])}" if shown else "; a CSV file begins with a header, or say --no-header"
    raise Invalid(f"{name} has {what}; say which has the ids with --id-column{there}")


def _parquet(file: Path, name: str, options: IdsFormOptions) -> IdsForm:
    try:
        names: list[str] = pq.read_schema(file).names
    except (pa.ArrowInvalid, OSError):
        raise Invalid(f"{name} begins like Parquet and cannot be read; it is damaged, bring it again") from None
    id_at, dataset_at = _find_columns(name, names, options, shown=True)
    dataset_name = "" if dataset_at is None else names[dataset_at]
    return IdsForm(name, "parquet", len(names), id_at, names[id_at], dataset_at, dataset_name)


def _json(text: str, name: str, options: IdsFormOptions) -> IdsForm:
    first = text.lstrip().splitlines()[0]
    try:
        value: Any = json.loads(first)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Invalid(f"line 1 of {name} is no JSON object; write JSON lines: one object a line")
    names = list(cast(dict[str, Any], value))
    id_at, dataset_at = _find_columns(name, names, options, shown=False)
    return IdsForm(name, "json", 0, id_at, names[id_at], dataset_at, options.dataset_column)


def _find_columns(name: str, names: list[str], options: IdsFormOptions, *, shown: bool) -> tuple[int, int | None]:
    """Return where the ids and the names of data sets stand. Raises Invalid."""
    dataset = options.dataset_column
    if dataset and names.count(dataset) != 1:
        there = f"; there are: {', '.join(names[:20])}" if shown else "; a CSV file begins with a header"
        raise Invalid(f"{name} has no column {dataset!r}, which --dataset-column names{there}")
    others = [each for each in names if not dataset or each != dataset]
    at = names.index(_choose_column(name, others if not options.column else names, options.column, shown=shown))
    if dataset and names[at] == dataset:
        raise Invalid("--id-column and --dataset-column name the same column; the ids stand in another one")
    return at, names.index(dataset) if dataset else None


def _complete_lines(head: bytes, name: str, *, is_whole: bool) -> str:
    """Return the lines of a text that are there whole. Raises Invalid."""
    if head.startswith(_UTF_16) or (b"\0" in head and (not any(head[::2]) or not any(head[1::2]))):
        raise Invalid(f"{name} is text in UTF-16; convert it to UTF-8, for example: iconv -f UTF-16 -t UTF-8")
    if b"\0" in head:
        raise Invalid(f"{name} is no text, and no Parquet; give Parquet, CSV or JSON lines")
    whole = head if is_whole else head[: head.rfind(b"\n") + 1] or head
    try:
        return whole.removeprefix(_BOM).decode()
    except UnicodeDecodeError:
        raise Invalid(
            f"the ids of {name} cannot be read: it is no text in UTF-8; convert it, for example: "
            "iconv -f LATIN1 -t UTF-8"
        ) from None


def _csv(file: Path, text: str, name: str, options: IdsFormOptions, *, is_whole: bool) -> IdsForm:
    tables = {delimiter: _records(text, delimiter, is_whole=is_whole) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter, records in tables.items() if _width(records) > 1]
    named = [each for each in (options.column, options.dataset_column) if each]
    if options.has_header and named:  # a delimiter that shows the names is the right one
        fitting = [each for each in DELIMITERS if tables[each] and {*named} <= {*tables[each][0]}] or fitting
        fitting = [each for each in fitting if _width(tables[each]) > 1] or fitting[:1]
    if len(fitting) > 1:
        ways = " and by ".join(_SHOWN[each] for each in fitting)
        raise Invalid(f"the lines of {name} can be split by {ways}; write it with commas, and others in quotes")
    delimiter = fitting[0] if fitting else ","
    records = tables[delimiter]
    if not records:
        raise Invalid(f"the ids of {name} cannot be read: it is neither Parquet, JSON lines nor CSV; correct it")
    blank = len(text) - len(text.lstrip("\r\n"))
    blank_lines = text[:blank].replace("\r\n", "\n").count("\n")
    first = records[0]
    lines, quotes = _count_lines_and_quotes(file)
    has_quotes = quotes > 0
    if quotes % 2:  # a reader would take all lines behind it for one value
        raise Invalid(
            f"{name} has an odd number of quotes: one is not closed, or stands where RFC 4180 has none; correct it"
        )
    if not options.has_header:
        id_at, dataset_at = _find_numbered_columns(name, len(first), options)
        return IdsForm(name, "csv", len(first), id_at, "", dataset_at, "", delimiter, False, blank_lines, has_quotes)
    try:
        id_at, dataset_at = _find_columns(name, first, options, shown=False)
    except Invalid as error:
        many = f"{len(first)} column{'s' * (len(first) != 1)}"
        way = f" separated by {_SHOWN[delimiter]}" if delimiter != "," else ""
        raise Invalid(f"{error} (read: {many}{way}, {_count_text(lines - 1)} below the first line, text)") from None
    below = [record[id_at] for record in records[1:] if len(record) > id_at and record[id_at]]
    is_known = bool(named) or _is_known_name(first[id_at], options.names)
    if not is_known and not _is_header(first[id_at], below):
        raise Invalid(
            f"the first line of {name} may be a header, or an id (read: 1 column, {_count_text(lines)}, text); if it "
            "is an id, say --no-header; if not, give the header's name with --id-column"
        )
    if lines == 1:
        raise Invalid(f"{name} has a header and no ids; give a table that has some")
    dataset_name = "" if dataset_at is None else first[dataset_at]
    shown = first[id_at] if is_known else ""
    return IdsForm(
        name, "csv", len(first), id_at, shown, dataset_at, dataset_name, delimiter, True, blank_lines, has_quotes
    )


def _records(text: str, delimiter: str, *, is_whole: bool) -> list[list[str]]:
    try:
        records = [record for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if record]
    except csv.Error:  # a field that is longer than anybody's id
        return []
    return records if is_whole or len(records) < 2 else records[:-1]  # a quote may be open at the end


def _width(records: Sequence[Sequence[str]]) -> int:
    """Return how many fields all records have; 0: they differ."""
    widths = {len(record) for record in records}
    return widths.pop() if len(widths) == 1 else 0


def _is_known_name(text: str, names: Sequence[str]) -> bool:
    known = {part.lower() for name in names for part in (name, name.rpartition(".")[2])}
    return text.strip().lower() in known or _KNOWN.fullmatch(text.strip()) is not None


def _is_header(text: str, below: Sequence[str]) -> bool:
    """Return whether a first line is a word, and all values below have one shape that no word has."""
    if not below or not _WORD.fullmatch(text.strip()):
        return False
    if any(not shape.fullmatch(text) and all(map(shape.fullmatch, below)) for shape in _SHAPES):
        return True
    numbered = [_NUMBERED.fullmatch(value) for value in below]
    return len({found and found[1] for found in numbered}) == 1 and numbered[0] is not None


def _find_numbered_columns(name: str, width: int, options: IdsFormOptions) -> tuple[int, int | None]:
    """Return where the ids and the names of data sets stand, which are given as numbers. Raises Invalid."""

    def place(text: str, option: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= width:
            raise Invalid(
                f"{name} has {width} column{'s' * (width != 1)} and no header; say which with its number from 1: "
                f"{option} 1"
            )
        return int(text) - 1

    dataset_at = place(options.dataset_column, "--dataset-column") if options.dataset_column else None
    others = [number for number in range(width) if number != dataset_at]
    id_at = others[0] if not options.column and len(others) == 1 else place(options.column, "--id-column")
    if id_at == dataset_at:
        raise Invalid("--id-column and --dataset-column name the same column; the ids stand in another one")
    return id_at, dataset_at


def _count_lines_and_quotes(file: Path) -> tuple[int, int]:
    """Return how many lines are not blank, and how many quotes there are."""
    lines = quotes = 0
    with file.open("rb") as opened:
        for line in opened:
            lines += not line.isspace()
            quotes += line.count(b'"')
    return lines, quotes


def _count_text(count: int) -> str:
    return f"{count} value{'s' * (count != 1)}"
