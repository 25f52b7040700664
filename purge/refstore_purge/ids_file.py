"""Read a file of ids, and write them for tasks: one set for all data sets, or one for each that a column names.

The file has one plain form: Parquet, JSON lines, or CSV in UTF-8, with a column of ids that is named; or one id a line.
Nothing is guessed. No message names a value, nor what a first line of text has: it may be an id.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from refstore.core.batches import split_batches
from refstore.errors import Invalid
from refstore_gc.private_folder import make_private_folder
from refstore_purge import purge_ids
from refstore_purge.formats.base import IdKind, kind_of
from refstore_purge.formats.text_values import UUID_BYTES, are_uuids, uuid_bytes
from refstore_purge.purge_ids import COMPARED_TYPES
from refstore_purge.untyped_pandas import pa, pc, pq

KINDS: Final[tuple[IdKind, ...]] = ("string", "integer", "binary")
TYPES: Final = (*KINDS, "uuid")
"""What ids can be compared as; UUIDs are binary, of 16 bytes."""
WORDS: Final = {"string": "text", "integer": "integers", "binary": "binary", "uuid": "UUIDs"}
FOLDER_PREFIX: Final = "refstore-purge-ids-"
"""What the name of a folder with ids begins with."""
ID_COLUMN: Final = "id"
"""What the only column is called, if nobody says which one has the ids."""
GIVEN: Final = "ids"
"""What a file of ids is called that were given as values."""
BATCH_ROWS: Final = 100_000
FIELD_CHARS_MAX: Final = 128 * 1024
"""How long a value of CSV may be; a longer one comes from a quote that is not closed."""
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**64 - 1
"""What a column of integers can have, signed or not."""

_PARQUET: Final = b"PAR1"
_BOM: Final = b"\xef\xbb\xbf"
_HEAD_BYTES: Final = 64
_OBJECT: Final = re.compile(rb'\s*\{\s*"')
_DIGITS: Final = r"\A[+-]?0*[0-9]{1,20}\z"


class IdsFile(NamedTuple):
    """A file of ids, and what the caller says about it."""

    path: Path
    column: str = ""
    """Which has the ids; '': the only one, which is called `id`."""
    dataset_column: str = ""
    """Which names the data set of each id; '': none, the ids are for all."""
    delimiter: str = ","
    """Of CSV; `\\t` may be written with its two characters."""
    has_header: bool = True
    """False: it has one id a line, also the first."""
    takes_empty_id: bool = False
    """Whether a value that is empty, and not null, is an id."""

    @property
    def name(self) -> str:
        return self.path.name


GivenIds = Path | IdsFile | Iterable[str | int]
"""Ids as a caller of `refstore_purge` has them: a file whose only column is `id`, a file of another form, or values."""


class LoadedIds(NamedTuple):
    """What was read from a file of ids."""

    sets: dict[str, str]
    """The name of each data set's set in the folder. Of '': the one for all of them."""
    text: str
    """What people are told of it; without a value."""


class _Row(NamedTuple):
    line: int
    value: str | int | None
    dataset: Any


class _IdBatch(NamedTuple):
    lines: Sequence[int]
    kind: IdKind
    values: Any
    """In the type in which their kind is compared."""
    datasets: Any
    """The name of each id's data set."""


def ids_folder() -> AbstractContextManager[Path]:
    """Make a folder for ids, for a block."""
    return make_private_folder(FOLDER_PREFIX)


@contextmanager
def open_ids(ids: object) -> Generator[IdsFile, None, None]:
    """Give `GivenIds` as a file for the block. Values are written to one that only this user can read, and that goes
    afterwards. Raises Invalid; its message names no id.
    """
    if isinstance(ids, IdsFile):
        yield ids
    elif isinstance(ids, Path):
        yield IdsFile(ids)
    elif isinstance(ids, str | bytes) or not isinstance(ids, Iterable):  # a text may be an id as well as a path
        raise Invalid(
            f"ids is of type {type(ids).__name__}; give a list of ids, or a file of them: pathlib.Path(...), or "
            "refstore_purge.IdsFile(...)"
        )
    else:
        with ids_folder() as folder:
            file = folder / GIVEN
            _write_values(file, cast("Iterable[object]", ids))
            yield IdsFile(file)


def _write_values(file: Path, values: Iterable[object]) -> None:
    number = 0
    with file.open("w", encoding="ascii") as opened:
        for number, value in enumerate(values, 1):
            if isinstance(value, str):
                opened.write(json.dumps({ID_COLUMN: str(value)}) + "\n")
            elif isinstance(value, Integral) and value is not True and value is not False:
                opened.write(json.dumps({ID_COLUMN: int(value)}) + "\n")
            else:
                raise Invalid(
                    f"number {number} of the ids is of type {type(value).__name__}; give texts or integers, and binary "
                    "ids as a file of Parquet"
                )
    if not number:
        raise Invalid("ids is empty; give at least one id")


def load_ids(file: IdsFile, folder: Path, *, id_type: str = "", datasets: Sequence[str] = ()) -> LoadedIds:
    """Write the ids of a file to a folder, for `purge_ids.IdSet`.

    `id_type`: what the ids are to be compared as; '': as the file has them. `datasets`: which the file's column may
    name. Raises Invalid; its message names no id.
    """
    check_id_type(id_type)
    groups: dict[str, list[tuple[IdKind, Any]]] = {}
    empty = 0
    try:
        with file.path.open("rb") as opened:  # here, because a generator that an error leaves closes it late
            for batch in _read_batches(file, opened, as_text=bool(id_type)):
                names = [""] if not file.dataset_column else _dataset_names(batch, file, datasets)
                kind, values = batch.kind, batch.values
                if kind != "integer":
                    is_empty = pc.equal(pc.binary_length(values), 0)
                    empty += pc.sum(is_empty).as_py() or 0
                    values = values if file.takes_empty_id else pc.if_else(is_empty, None, values)
                if id_type:
                    kind = cast(IdKind, "binary" if id_type == "uuid" else id_type)
                    values = _convert_batch(batch, values, file, id_type)
                for name in names:
                    mine = values.filter(pc.equal(batch.datasets, name)) if name else values
                    if mine.null_count < len(mine):
                        groups.setdefault(name, []).append((kind, mine))
    except (OSError, UnicodeError, pa.ArrowException) as error:  # Arrow's message may name an id
        reason = getattr(error, "strerror", None) or "it is damaged, bring it again"
        raise Invalid(f"the ids of {file.name} cannot be read: {reason}") from None
    return _write_groups(file, folder, groups, id_type, empty)


def _write_groups(
    file: IdsFile, folder: Path, groups: dict[str, list[tuple[IdKind, Any]]], id_type: str, empty: int
) -> LoadedIds:
    if not groups:
        some = f", but {empty} empty values, which --empty-id takes for ids" if empty else ""
        raise Invalid(f"{file.name} has no ids{some}; give a file that has some")
    sets: dict[str, str] = {}
    words: set[str] = set()
    total = 0
    for number, (dataset, batches) in enumerate(sorted(groups.items())):
        kind = batches[0][0]
        if any(other != kind for other, _ in batches):
            raise Invalid(f"{file.name} has text and integers as ids; write one of the two, or say --id-type")
        sets[dataset] = f"{number}-" if dataset else ""
        total += purge_ids.write_ids(folder, kind, (values for _, values in batches), prefix=sets[dataset])
        words.add(WORDS[id_type or kind])
    text = f"{total} value{'s' * (total != 1)}, {' and '.join(sorted(words))}"
    if empty and not file.takes_empty_id:
        text += f"; {empty} empty values are left out, --empty-id takes them for ids"
    return LoadedIds(sets, text + (f"; for {', '.join(sorted(sets))}" if file.dataset_column else ""))


def check_id_type(id_type: str) -> None:
    """Raise Invalid for what is no type of ids."""
    if id_type and id_type not in TYPES:
        raise Invalid(f"{id_type!r} is no type of ids; use {', '.join(TYPES)}")


def convert_ids(values: Any, kind: IdKind, wanted: str) -> Any:
    """Return ids as another type, in the one in which it is compared; None: not all of them have it."""
    try:
        if wanted == "binary" and kind != "integer":  # text is compared by its bytes
            return values
        if wanted == "uuid" and kind == "binary":
            has_width = pc.equal(pc.binary_length(values), UUID_BYTES)
            return None if pc.all(has_width).as_py() is False else values
        texts = values.cast(pa.string()).cast(pa.large_string())
        if wanted in KINDS and wanted != "integer":
            return texts.cast(COMPARED_TYPES["string"])
        is_good = are_uuids(texts) if wanted == "uuid" else pc.match_substring_regex(texts, _DIGITS)
        if pc.all(is_good).as_py() is False:
            return None
        if wanted == "uuid":
            return uuid_bytes(texts.drop_null()).cast(pa.binary()).cast(COMPARED_TYPES["binary"])
        numbers = texts.cast(COMPARED_TYPES["integer"])
        low, high = pc.min_max(numbers).as_py().values()
        fits = low is None or (low >= INTEGER_MIN and high <= INTEGER_MAX)
    except pa.ArrowInvalid:  # binary that is no text
        return None
    return numbers if fits else None


def _convert_batch(batch: _IdBatch, values: Any, file: IdsFile, id_type: str) -> Any:
    converted = convert_ids(values, batch.kind, id_type)
    if converted is None:
        each = (convert_ids(values.slice(at, 1), batch.kind, id_type) for at in range(len(values)))
        at = next(at for at, value in enumerate(each) if value is None)
        raise Invalid(f"line {batch.lines[at]} of {file.name} has an id that is no {id_type}; correct it, or --id-type")
    return converted


def _dataset_names(batch: _IdBatch, file: IdsFile, datasets: Sequence[str]) -> list[str]:
    """Return which data sets a batch names. Raises Invalid."""
    names: list[str] = batch.datasets.unique().to_pylist()
    for name in names:
        if name not in datasets:
            at = pc.index(batch.datasets, name).as_py()
            raise Invalid(
                f"line {batch.lines[at]} of {file.name} names no onboarded data set in {file.dataset_column!r}; "
                f"name one of: {', '.join(sorted(datasets))}"
            )
    return names


# ---- the forms


def _read_batches(file: IdsFile, opened: BinaryIO, *, as_text: bool) -> Iterator[_IdBatch]:
    """Yield what the file has. `as_text`: integers of JSON as text. Raises Invalid, OSError, ArrowException."""
    head = opened.read(_HEAD_BYTES).removeprefix(_BOM)
    opened.seek(0)
    is_json = _OBJECT.match(head) is not None
    if not file.has_header:
        if head.startswith(_PARQUET) or is_json:
            raise Invalid(f"{file.name} is not one id a line; leave --no-header out")
        if file.column or file.dataset_column:
            raise Invalid(
                "--no-header is for one id a line; leave --id-column and --dataset-column out, or use a header"
            )
    if head.startswith(_PARQUET):
        yield from _parquet_batches(file, opened)
        return
    lines = _lines(file, opened)
    for rows in split_batches(
        _json_rows(file, lines, as_text=as_text) if is_json else _csv_rows(file, lines), BATCH_ROWS
    ):
        for kind, type_ in cast("tuple[tuple[IdKind, type], ...]", (("string", str), ("integer", int))):
            mine = [row for row in rows if type(row.value) is type_]
            yield _IdBatch(
                [row.line for row in mine],
                kind,
                pa.array([row.value for row in mine], COMPARED_TYPES[kind]),
                pa.array([row.dataset if isinstance(row.dataset, str) else "" for row in mine], pa.string()),
            )


def _find_columns(file: IdsFile, names: list[str], *, shown: str = "") -> tuple[int, int | None]:
    """Return where the ids and the names of data sets are. `shown`: what is told of the columns. Raises Invalid."""
    dataset = file.dataset_column
    column = file.column or ID_COLUMN
    if not file.column and [each for each in names if each != dataset] != [ID_COLUMN]:
        raise Invalid(
            f"line 1 of {file.name} is no header with the one column {ID_COLUMN!r}{shown}; say which column has the "
            "ids with --id-column, or --no-header if each line is an id"
        )
    for wanted in filter(None, (column, dataset)):
        if names.count(wanted) != 1:
            many = "more than one" if wanted in names else "no"
            raise Invalid(
                f"line 1 of {file.name} has {many} column {wanted!r}{shown}; name one as it stands there; fields are "
                f"separated by {file.delimiter!r}, or by what --delimiter says"
            )
    if column == dataset:
        raise Invalid("--id-column and --dataset-column name the same column; the ids stand in another one")
    return names.index(column), names.index(dataset) if dataset else None


def _parquet_batches(file: IdsFile, opened: BinaryIO) -> Iterator[_IdBatch]:
    table = pq.ParquetFile(opened)
    schema = table.schema_arrow
    shown = f" (there are: {', '.join(schema.names[:20])})"
    columns = [schema.names[at] for at in _find_columns(file, schema.names, shown=shown) if at is not None]
    kind = kind_of(schema.field(columns[0]).type)
    if kind is None:
        type_ = schema.field(columns[0]).type
        raise Invalid(
            f"the ids of {file.name} are {'a struct' if pa.types.is_struct(type_) else type_}; ids are strings, "
            "integers or binary"
        )
    row = 1
    for batch in table.iter_batches(columns=columns):  # a name with a dot may choose a field of a struct, too
        values = purge_ids.to_comparable(batch.column(columns[0]), kind)
        datasets = pc.fill_null(batch.column(columns[-1]).cast(pa.string()), "") if file.dataset_column else None
        yield _IdBatch(range(row, row + len(batch)), kind, values, datasets)
        row += len(batch)


def _csv_rows(file: IdsFile, lines: Iterable[str]) -> Iterator[_Row]:
    delimiter = "\t" if file.delimiter == r"\t" else file.delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise Invalid("--delimiter is one character, or \\t for a tab, and no quote")
    raw: list[str] = []

    def remember(line: str) -> str:
        raw.append(line)
        return line

    reader = csv.reader(map(remember, lines), delimiter=delimiter, strict=True)
    field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{re.escape(delimiter)}]*)'
    record = re.compile(f"{field}(?:{re.escape(delimiter)}{field})*")
    end = 0
    try:
        names = next(reader, [""]) if file.has_header else [ID_COLUMN]
        end = reader.line_num
        at, dataset_at = _find_columns(file, names)
        raw.clear()
        for fields in reader:
            text = "".join(raw).rstrip("\r\n")
            raw.clear()
            if '"' in text and not record.fullmatch(text):  # Python's reader takes a quote within a value as it is
                raise csv.Error
            if len(text) > FIELD_CHARS_MAX and max(map(len, fields)) > FIELD_CHARS_MAX:
                raise csv.Error  # here, too, because the reader's own limit is one of the whole process
            if len(fields) == len(names):
                yield _Row(reader.line_num, fields[at], "" if dataset_at is None else fields[dataset_at])
            elif fields:
                raise Invalid(
                    f"line {reader.line_num} of {file.name} has {len(fields)} fields instead of {len(names)}; put "
                    f"quotes around a value that has {delimiter!r}, or say --delimiter"
                )
            end = reader.line_num
    except csv.Error:
        raise Invalid(
            f"line {end + 1} of {file.name} is no CSV: a quote is not closed, or stands within a value; put quotes "
            "around such a value, and double its own"
        ) from None


def _json_rows(file: IdsFile, lines: Iterable[str], *, as_text: bool) -> Iterator[_Row]:
    column = ""
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        where = f"line {number} of {file.name}"
        try:
            fields: Any = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise Invalid(f"{where} is no JSON object; write one object a line")
        row = cast(dict[str, Any], fields)
        column = column or list(row)[_find_columns(file, list(row))[0]]
        if column not in row:
            raise Invalid(f"{where} has no field of the name; give all lines the same fields")
        value = row[column]
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise Invalid(f"{where} has neither text nor an integer as id; correct it")
        if isinstance(value, int) and as_text:
            value = str(value)
        elif isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
            raise Invalid(f"{where} has an integer of more than 64 bits; write it as text, in quotes")
        yield _Row(number, value, row.get(file.dataset_column))


def _lines(file: IdsFile, opened: BinaryIO) -> Iterator[str]:
    """Yield the lines of a text. Raises Invalid, OSError."""
    for number, line in enumerate(opened, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise Invalid(
                f"line {number} of {file.name} is no text in UTF-8; unpack the file if it is compressed, or "
                "convert it, for example: iconv -f LATIN1 -t UTF-8"
            )
        yield text
