"""Read a table of ids, and write them for tasks: one set for all data sets, or one for each that a column names."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from refstore.errors import Invalid
from refstore_gc.private_folder import make_private_folder
from refstore_purge import ids_form, purge_ids, uuids
from refstore_purge.formats.base import IdKind, kind_of
from refstore_purge.ids_form import IdsForm, IdsFormOptions
from refstore_purge.untyped_pandas import pa, pacsv, pc, pq

KINDS: Final[tuple[IdKind, ...]] = ("string", "integer", "binary")
TYPES: Final = (*KINDS, "uuid")
"""What ids can be compared as; UUIDs are binary, of 16 bytes."""
WORDS: Final[dict[IdKind, str]] = {"string": "text", "integer": "integers", "binary": "binary"}
FOLDER_PREFIX: Final = "refstore-purge-ids-"
"""What the name of a folder with ids begins with."""
JSON_LINES: Final = 100_000
"""How many lines become one array."""

IdBatch = tuple[Any, Any]
"""Ids, and the data set of each; None: they are for all."""


class LoadedIds(NamedTuple):
    """What was read from a table of ids."""

    sets: dict[str, str]
    """The name of each data set's set in the folder. Of '': the one for all of them."""
    ids: int
    """How many different ones there are, of each data set."""
    text: str
    """What people are told of it; without a value."""


def ids_folder() -> AbstractContextManager[Path]:
    """Make a folder for ids, for a block."""
    return make_private_folder(FOLDER_PREFIX)


def load_ids(
    file: Path,
    folder: Path,
    *,
    form: IdsFormOptions = IdsFormOptions(),  # noqa: B008  # it never changes
    id_type: str = "",
    empty_id: bool = False,
    datasets: Sequence[str] = (),
) -> LoadedIds:
    """Write the ids of a table to a folder, for `purge_ids.IdSet`.

    `id_type`: what the ids are to be compared as; '': as the table has them. `empty_id`: '' is an id, too. `datasets`:
    which the table's column may name. Raises Invalid; its message names no id.
    """
    check_id_type(id_type)
    with _translate_read_errors(file, id_type), ids_folder() as private:
        plain = ids_form.unpack(file, private)
        found = ids_form.detect_form(plain, file.name, form)
        if found.format == "json":
            batches = _json(plain, found, is_text=bool(id_type))
        else:
            batches = _parquet(plain, found) if found.format == "parquet" else _csv(plain, found)
        empty = _EmptyIdFilter(takes=empty_id)
        groups = (
            {"": (each for each, _ in batches)}
            if found.dataset_at is None
            else _group_by_dataset(batches, found, datasets)
        )
        sets: dict[str, str] = {}
        total = 0
        kinds: set[IdKind] = set()
        for number, (dataset, arrays) in enumerate(sorted(groups.items())):
            name = f"{number}-" if dataset else ""
            kind, converted = _convert_to_type(found.file, empty.drop_empty(arrays), id_type)
            count = purge_ids.write_ids(folder, kind, converted, prefix=name)
            if count or not dataset:
                sets[dataset] = name
            total += count
            kinds.add(kind)
    if not total:
        some = f", but {empty.count} empty values, which --empty-id takes for ids" if empty.count else ""
        raise Invalid(f"{file.name} has no ids{some}; give a table that has some")
    words = " and ".join(sorted("UUIDs" if id_type == "uuid" else WORDS[kind] for kind in kinds))
    text = found.describe(total, words)
    if empty.count and not empty_id:
        text += f"; {empty.count} empty values are left out, --empty-id takes them for ids"
    if found.dataset_at is not None:
        text += f"; for {', '.join(sorted(sets))}"
    return LoadedIds(sets, total, text)


def check_id_type(id_type: str) -> None:
    """Raise Invalid for what is no type of ids."""
    if id_type and id_type not in TYPES:
        raise Invalid(f"{id_type!r} is no type of ids; use {', '.join(TYPES)}")


@contextmanager
def _translate_read_errors(file: Path, id_type: str) -> Generator[None, None, None]:
    try:
        yield
    except (pa.ArrowInvalid, UnicodeError, OverflowError) as error:
        message = str(error).lower()
        if "columns, got" in message:
            reason = "its lines have different numbers of columns"
        elif isinstance(error, UnicodeError | OverflowError) or any(
            word in message for word in ("convert", "parse string", "out of bounds", "utf8")
        ):
            reason = "a value cannot be converted"
        else:
            reason = "it is neither Parquet, JSON lines nor CSV"
        raise Invalid(
            f"the ids of {file.name} cannot be read as {id_type or 'they are'}: {reason}; correct it, or --id-type"
        ) from None  # Arrow's message may name an id
    except OSError as error:
        raise Invalid(f"the ids of {file.name} cannot be read: {error.strerror or 'it is damaged'}") from None


def _parquet(file: Path, form: IdsForm) -> Iterator[IdBatch]:
    opened = pq.ParquetFile(file)
    type_ = opened.schema_arrow.field(form.id_at).type
    if kind_of(type_) is None:
        shown = "a struct" if pa.types.is_struct(type_) else str(type_)
        raise Invalid(f"the ids of {form.file} are {shown}; ids are strings, integers or binary")
    names = [name for name in (form.id_name, form.dataset_name) if name]
    # a name with a dot may choose a field of a struct, too
    for batch in opened.iter_batches(columns=names):
        datasets = batch.column(form.dataset_name) if form.dataset_name else None
        if datasets is not None and kind_of(datasets.type) != "string":
            raise Invalid(f"column {form.dataset_name!r} of {form.file} is {datasets.type}; data sets' names are text")
        yield batch.column(form.id_name), datasets
    yield pa.array([], type_), None if form.dataset_at is None else pa.array([], pa.string())


def _csv(file: Path, form: IdsForm) -> Iterator[IdBatch]:
    wanted = [f"f{at}" for at in (form.id_at, form.dataset_at) if at is not None]
    opened = pacsv.open_csv(
        file,
        read_options=pacsv.ReadOptions(
            autogenerate_column_names=True,  # f0, f1, ...
            skip_rows=form.blank_lines,
            skip_rows_after_names=int(form.has_header),
        ),
        parse_options=pacsv.ParseOptions(delimiter=form.delimiter, newlines_in_values=form.has_quotes),
        convert_options=pacsv.ConvertOptions(
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
        ),
    )
    for batch in opened:
        yield batch.column(0), None if form.dataset_at is None else batch.column(1)


def _json(file: Path, form: IdsForm, *, is_text: bool) -> Iterator[IdBatch]:
    """Yield the values of JSON lines, text and integers in arrays of their own. `is_text`: integers as they stand."""
    found: dict[str, list[tuple[str | int, str | None]]] = {}
    """By type of Arrow."""

    def arrays() -> Iterator[IdBatch]:
        for type_, rows in found.items():
            names = pa.array([name for _, name in rows], pa.string()) if form.dataset_name else None
            yield pa.array([value for value, _ in rows], type_), names
        found.clear()

    with file.open(encoding="utf-8-sig", newline="\n") as opened:
        for number, line in enumerate(opened, 1):
            if line.isspace():
                continue
            value, dataset = _object(line, number, form)
            if value is None:
                continue
            if is_text and isinstance(value, int):
                value = str(value)
            type_ = "string" if isinstance(value, str) else "int64" if value < 2**63 else "uint64"
            found.setdefault(type_, []).append((value, dataset))
            if not number % JSON_LINES:
                yield from arrays()
    yield from arrays()


def _object(line: str, number: int, form: IdsForm) -> tuple[str | int | None, str | None]:
    """Return the id of a line and its data set. Raises Invalid."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise Invalid(f"line {number} of {form.file} is no JSON object; write one object a line")
    fields = cast(dict[str, Any], row)
    for name in (form.id_name, form.dataset_name) if form.dataset_name else (form.id_name,):
        if name not in fields:
            raise Invalid(f"line {number} of {form.file} has no field of the name; give all lines the same fields")
    value = fields[form.id_name]
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise Invalid(f"line {number} of {form.file} has neither text nor an integer as id; correct it")
    dataset = fields[form.dataset_name] if form.dataset_name else None
    return value, dataset if isinstance(dataset, str) else None


def _group_by_dataset(batches: Iterable[IdBatch], form: IdsForm, datasets: Sequence[str]) -> dict[str, list[Any]]:
    """Return the ids of each data set. Raises Invalid."""
    groups: dict[str, list[Any]] = {}
    others: set[str] = set()
    unnamed = 0
    for values, names in batches:
        texts = pc.fill_null(names.cast(pa.string()), "")
        for name in texts.unique().to_pylist():
            if not name:
                unnamed += pc.sum(pc.equal(texts, "")).as_py()
            elif name not in datasets:
                others.add(name)
            else:
                groups.setdefault(name, []).append(values.filter(pc.equal(texts, name)))
    if others or unnamed:
        what = f"{unnamed} rows that name no data set" if unnamed else f"{len(others)} names that are no data set's"
        raise Invalid(
            f"the column of data sets of {form.file} has {what}; onboarded are: {', '.join(sorted(datasets))}"
        )
    return groups


class _EmptyIdFilter:
    """Leaves out ids that are empty, unless they are wanted, and counts them."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes
        self.count = 0

    def drop_empty(self, arrays: Iterable[Any]) -> Iterator[Any]:
        for array in arrays:
            values = _strip_encodings(array)
            if pa.types.is_integer(values.type) or pa.types.is_fixed_size_binary(values.type):
                yield values
                continue
            is_empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), False)
            self.count += pc.sum(is_empty).as_py() or 0
            yield values if self._takes else values.filter(pc.invert(is_empty))


def _strip_encodings(values: Any) -> Any:
    """Return values of a dictionary, of views or of an extension type without these."""
    values = purge_ids.strip_extension(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(values.type) else values


def _convert_to_type(file: str, arrays: Iterable[Any], id_type: str) -> tuple[IdKind, Iterator[Any]]:
    """Return the kind of the values, and the values in it. Raises Invalid."""
    rest = iter(arrays)
    ahead = [first] if (first := next(rest, None)) is not None else []
    given: IdKind = (kind_of(ahead[0].type) if ahead else None) or "string"

    def same() -> Iterator[Any]:
        for values in (*ahead, *rest):
            if kind_of(values.type) == given:
                yield values
            elif len(values):
                raise Invalid(f"{file} has text and integers as ids; write one of the two, or say --id-type")

    wanted = id_type or given
    kind = cast(IdKind, "binary" if wanted == "uuid" else wanted)
    return kind, (values if wanted == given else convert_ids(values, given, wanted) for values in same())


def convert_ids(values: Any, kind: IdKind, wanted: str) -> Any:
    """Return ids as another type. Raises Invalid, and ArrowInvalid for a value that has none of this type."""
    if wanted == "uuid":
        return _parse_uuids(values, kind)
    if wanted == "integer":
        if kind == "binary":
            raise Invalid("binary ids are no integers; leave --id-type out")
        if pc.all(pc.match_substring_regex(values, r"\A[+-]?[0-9]+\z")).as_py() is False:
            raise pa.ArrowInvalid("cannot convert to an integer")  # where Arrow would take 0x10, too
        has_minus = pc.any(pc.starts_with(values, "-")).as_py()
        return values.cast(pa.int64() if has_minus else pa.uint64())
    if wanted == "string":
        return values.cast(pa.string())
    return pc.cast(values.cast(pa.string()), pa.binary())


def _parse_uuids(values: Any, kind: IdKind) -> Any:
    values = values.drop_null()
    if kind == "binary":
        if pc.all(pc.equal(pc.binary_length(values), uuids.UUID_BYTES)).as_py() is False:
            raise pa.ArrowInvalid("cannot convert to UUIDs")
        return values
    if kind == "integer" or pc.all(uuids.are_uuids(values)).as_py() is False:
        raise pa.ArrowInvalid("cannot convert to UUIDs")
    return uuids.uuid_bytes(values)
