"""Read a table of ids for `verify`, with code of its own: only its form is told by `ids_form.py`, as for a run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from refstore.errors import Invalid
from refstore_purge import ids_form
from refstore_purge.ids_file import ids_folder
from refstore_purge.ids_form import IdsForm, IdsFormOptions
from refstore_purge.untyped_pandas import pa, pc, pq
from refstore_purge.verify_ids import (
    INTEGER,
    NORMAL,
    UUID,
    WantedIds,
    WantedIdsByDataset,
    kind_of,
    normalize,
    strip_extension,
)
from refstore_purge.verify_text import NumberText, VerifyReadError, blocks_of, lines_of, records_of, unquote

IdGroups = Mapping[str, Any]
"""The ids of each data set, as one array without null; of '': those for all."""

_TYPES: Final = (*NORMAL, UUID)
_WORDS: Final = {"string": "text", "integer": "integers", "binary": "binary"}


def read_ids(
    file: Path,
    *,
    form: IdsFormOptions = IdsFormOptions(),  # noqa: B008  # it never changes
    id_type: str = "",
    empty_id: bool = False,
    datasets: Sequence[str] = (),
) -> WantedIdsByDataset:
    """Read the ids of a table. `datasets`: which its column may name. Raises Invalid, which names no id."""
    if id_type and id_type not in _TYPES:
        raise Invalid(f"{id_type!r} is no type of ids; use {', '.join(_TYPES)}")
    try:
        with ids_folder() as folder:
            found = ids_form.detect_form(ids_form.unpack(file, folder), file.name, form)
        groups = _READERS[found.format](file, found)
        strange = [name for name in groups if name not in datasets]
        if found.dataset_at is not None and strange:
            raise Invalid(
                f"the column of data sets of {file.name} has {len(strange)} names that are no data set's; onboarded "
                f"are: {', '.join(sorted(datasets))}"
            )
        wanted: dict[str, WantedIds] = {}
        for name, values in groups.items():
            ids = _make_wanted(file, values, id_type, empty_id=empty_id, is_named=bool(name))
            if len(ids.values):
                wanted[name] = ids
    except VerifyReadError as error:
        raise Invalid(f"the ids of {file.name} cannot be read: {error}; correct the file") from None
    except OSError as error:
        raise Invalid(f"the ids of {file.name} cannot be read: {error.strerror or 'it is damaged'}") from None
    except (ValueError, pa.ArrowException):
        raise Invalid(
            f"the ids of {file.name} cannot be read as {id_type or 'they are'}; correct it, or --id-type"
        ) from None  # Arrow's message may name an id
    if not wanted:
        raise Invalid(f"{file.name} has no ids; give a table that has some, or --empty-id if they are empty")
    words = " and ".join(sorted({_WORDS[ids.kind] for ids in wanted.values()}))
    text = found.describe(sum(len(ids.values) for ids in wanted.values()), words)
    return WantedIdsByDataset(wanted.get(""), wanted, text)


def _parquet(file: Path, form: IdsForm) -> IdGroups:
    opened = pq.ParquetFile(file)
    names = [name for name in (form.id_name, form.dataset_name) if name]
    # a name with a dot may choose a field of a struct, too
    table = opened.read() if any("." in name for name in names) else opened.read(columns=names)
    values = strip_extension(table.column(form.id_name).combine_chunks())
    if not form.dataset_name:
        return {"": values.drop_null()}
    datasets = table.column(form.dataset_name).combine_chunks().cast(pa.string()).fill_null("")
    return {name: values.filter(pc.equal(datasets, name)).drop_null() for name in datasets.unique().to_pylist()}


def _csv(file: Path, form: IdsForm) -> IdGroups:
    """Read text. An empty field is null, and a quoted one is empty."""
    groups: dict[str, list[bytes]] = {}
    with file.open("rb") as opened:
        records = (fields for fields in records_of(blocks_of(opened), form.delimiter.encode()) if fields != [b""])
        if form.has_header:
            next(records, None)
        for fields in records:
            if len(fields) != form.columns:
                raise VerifyReadError("a record has more or fewer fields than the first one")
            name = "" if form.dataset_at is None else unquote(fields[form.dataset_at]).decode()
            if fields[form.id_at]:
                groups.setdefault(name, []).append(unquote(fields[form.id_at]))
    return {name: pa.array(values, pa.binary()).cast(pa.string()) for name, values in groups.items()}


def _json(file: Path, form: IdsForm) -> IdGroups:
    groups: dict[str, list[str]] = {}
    with file.open("rb") as opened:
        for number, line in lines_of(blocks_of(opened)):
            fields = dict(line)
            if form.id_name not in fields:
                raise VerifyReadError(f"line {number} has no field of the name")
            value = fields[form.id_name]
            name = fields.get(form.dataset_name) if form.dataset_name else ""  # a field may have no name
            if value is None:
                continue
            if not isinstance(value, str) or (
                isinstance(value, NumberText) and not value.removeprefix("-").isdecimal()
            ):
                raise VerifyReadError(f"line {number} has neither text nor an integer as id")
            groups.setdefault(name if isinstance(name, str) else "", []).append(value)
    found: dict[str, Any] = {}
    for name, values in groups.items():
        are_numbers = [isinstance(value, NumberText) for value in values]
        texts = pa.array([str(value) for value in values], pa.string())
        if any(are_numbers) != all(are_numbers):
            raise VerifyReadError("it has text and integers as ids")
        found[name] = _integers(texts) if all(are_numbers) else texts
    return found


_READERS: Final[dict[str, Callable[[Path, IdsForm], IdGroups]]] = {"parquet": _parquet, "csv": _csv, "json": _json}


def _make_wanted(file: Path, values: Any, id_type: str, *, empty_id: bool, is_named: bool) -> WantedIds:
    kind = kind_of(values.type)
    if kind is None:
        shown = "a struct" if pa.types.is_struct(values.type) else values.type
        raise Invalid(f"the ids of {file.name} are {shown}; ids are strings, integers or binary")
    values = normalize(values)
    if kind != "integer" and not empty_id:
        values = values.filter(pc.not_equal(values, b""))
    others: dict[str, Any] = {}
    if kind == "string" and not id_type and len(values):
        if (uuids := _uuids(values)) is not None:
            others[UUID] = uuids
        texts = values.cast(pa.string())
        if is_named and pc.all(pc.match_substring_regex(texts, rf"\A{INTEGER}\z")).as_py():
            others["integer"] = normalize(_integers(texts))
    if id_type == UUID:
        converted = _uuids(values) if kind == "string" else values if kind == "binary" else None
        if converted is None or pc.any(pc.not_equal(pc.binary_length(converted), 16)).as_py():
            raise ValueError
        return WantedIds("binary", converted)
    return WantedIds(id_type or kind, _convert_ids(values, kind, id_type or kind), others)


def _uuids(values: Any) -> Any:
    """Return the 16 bytes of UUIDs; None: some are none."""
    try:
        return pa.array([uuid.UUID(value.decode()).bytes for value in values.to_pylist()], NORMAL["binary"])
    except ValueError:
        return None


def _integers(texts: Any) -> Any:
    return texts.cast(pa.int64() if pc.any(pc.starts_with(texts, "-")).as_py() else pa.uint64())


def _convert_ids(values: Any, kind: str, wanted: str) -> Any:
    """Return ids of one kind as another one. Raises ArrowInvalid, Invalid."""
    if kind == wanted:
        return values
    if wanted == "integer":
        if kind == "binary":
            raise Invalid("binary ids are no integers; leave --id-type out")
        texts = values.cast(pa.string())
        if pc.all(pc.match_substring_regex(texts, rf"\A{INTEGER}\z")).as_py() is False:
            raise pa.ArrowInvalid("a value is no integer")
        return normalize(_integers(texts))
    return values.cast(pa.string()).cast(NORMAL[wanted])  # a string is UTF-8, also where it was binary
