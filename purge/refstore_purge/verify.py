"""Look with code of its own whether rows of the ids are left in the onboarded data sets.

It shares with a run only the document and the choice of the ids' column: it reads every object by plain readers,
takes every value at the identifier, and looks for it in a set of Python. It trusts no statistics and no index.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from refstore.core.records import Entry
from refstore.errors import Gone, Invalid, RefstoreError
from refstore.operations.committed_names import landed_commits
from refstore.purging.document import ERASE, KEEP_HISTORY, Dataset
from refstore.repository import Repository
from refstore_purge import ids_file
from refstore_purge.untyped_arrow import orc, pa, pc, pq


class Left(NamedTuple):
    """An object that has rows of the ids, or of which nobody can say."""

    ref: str
    path: str
    rows: int
    reason: str
    """'' if it was read; else why it could not be."""


def verify(
    repo: Repository, file: Path, *, column: str = "", id_type: str = "", history: bool = False
) -> Iterator[Left]:
    """Yield the objects of every branch, staged ones too, that have rows of the ids, or should be erased. Of data sets
    of the modes `rewrite` and `erase`, and with `history` of all, also those of every commit that can be read. Each
    distinct object is read once.

    Raises Invalid (the ids), NotFound (nothing is onboarded).
    """
    ids = _ids(file, column, id_type)
    datasets = repo.purge_document().document.onboarded
    read: dict[tuple[str, str, str | None], tuple[int, str]] = {}
    deep = [dataset for dataset in datasets if history or dataset.mode != KEEP_HISTORY]
    for ref, branch in _refs(repo, history=bool(deep)):
        for dataset in datasets if branch else deep:
            if dataset not in deep and not dataset.has_branch(branch):
                continue
            try:
                for path, entry in repo.list(ref, prefix=dataset.prefix):
                    if entry is None or path.rpartition("/")[2].startswith(("_", ".")):
                        continue
                    if dataset.mode == ERASE:
                        if entry.address and _is_to_be_erased(dataset, path, entry, ids):
                            yield Left(ref, path, 1, "")
                        continue
                    partition = _partition_value(dataset, path)
                    key = (dataset.name, entry.address, partition)
                    if key not in read:
                        read[key] = _look(repo, dataset, ref, path, ids, partition)
                    rows, reason = read[key]
                    if rows or reason:
                        yield Left(ref, path, rows, reason)
            except Gone:
                continue  # the commit has expired


def _refs(repo: Repository, *, history: bool) -> Iterator[tuple[str, str]]:
    """Yield what is looked at, and the branch that it is ('': none)."""
    branches = [(name, name) for name, record in list(repo.branches()) if not record.hidden]
    yield from branches
    if history:
        for commit, _ in landed_commits(repo.context):
            yield commit, ""


def _is_to_be_erased(dataset: Dataset, path: str, entry: Entry, ids: set[Any]) -> bool:
    below = path[len(dataset.prefix) :]
    if dataset.template is not None:
        value = dataset.template.value_of(below)
    else:
        value = _partition_value(dataset, path)
        value = entry.metadata.get(dataset.identifier) if value is None else value
    return value is not None and _has(ids, value)


def _partition_value(dataset: Dataset, path: str) -> str | None:
    """Return the identifier's value if a folder `identifier=value` at the beginning of the path has it."""
    for folder in path[len(dataset.prefix) :].split("/")[:-1]:
        if "=" not in folder:
            break
        name, value = folder.split("=", 1)
        if unquote(name) == dataset.identifier:
            return unquote(value)
    return None


def _look(
    repo: Repository, dataset: Dataset, ref: str, path: str, ids: set[Any], partition: str | None
) -> tuple[int, str]:
    try:
        if partition is not None and not _has(ids, partition):
            return 0, ""
        rows = _rows(dataset, repo.read(ref, path), ids if partition is None else None)
        if partition is not None:
            return sum(
                not dataset.set_null or any(_is_set(dataset, row, name) for name in dataset.set_null) for row in rows
            ), ""
        return sum(_matches(dataset, row, ids) for row in rows), ""
    except Gone:
        return 0, ""  # it has expired, or was erased: nobody reads it any more
    except RefstoreError as error:
        return 0, str(error)
    except Exception as error:  # noqa: BLE001  # whatever a damaged file does to a reader
        return 0, f"it cannot be read as {dataset.format} ({type(error).__name__})"


def _has(ids: set[Any], text: str) -> bool:
    """Return whether a partition's value is one of the ids, of whatever type these are."""
    if text == "__HIVE_DEFAULT_PARTITION__":
        return False
    is_number = text.lstrip("+-").isdecimal()
    return text in ids or text.encode() in ids or (is_number and int(text) in ids)


def _ids(file: Path, column: str, id_type: str) -> set[Any]:
    try:
        values = _values_of(file, column)
        found = {value for value in values if value not in (None, "")}
        if id_type == "integer":
            return {int(value) for value in found}
        return {str(value) for value in found} if id_type == "string" else found
    except (ValueError, OSError, pa.ArrowException):
        raise Invalid(
            f"the ids of {file.name} cannot be read as {id_type or 'they are'}; correct it, or --id-type"
        ) from (None)


def _values_of(file: Path, column: str) -> list[Any]:
    with file.open("rb") as opened:
        is_parquet = opened.read(4) == ids_file.PARQUET
    if is_parquet:
        table = pq.read_table(file)
        return table.column(ids_file.chosen(file, table.column_names, column, shown=True)).to_pylist()
    with file.open(newline="", encoding="utf-8-sig") as text:
        reader = csv.DictReader(text)
        name = ids_file.chosen(file, list(reader.fieldnames or []), column)
        return [row[name] for row in reader]


def _rows(dataset: Dataset, body: bytes, ids: set[Any] | None) -> Iterator[Any]:
    """Yield rows as Python's objects: of Parquet and ORC the columns that matter, and where Arrow can say so, only rows
    that have one of the ids; None: all rows.
    """
    match dataset.format:
        case "parquet":
            parquet = pq.ParquetFile(io.BytesIO(body))
            for batch in parquet.iter_batches(columns=_columns(dataset, parquet.schema_arrow.names)):
                yield from _some(dataset, batch, ids).to_pylist()
        case "orc":
            file = orc.ORCFile(io.BytesIO(body))
            for stripe in range(file.nstripes):
                batch = file.read_stripe(stripe, columns=_columns(dataset, file.schema.names))
                yield from _some(dataset, batch, ids).to_pylist()
        case "json":
            yield from (json.loads(line) for line in _decompressed(body).split(b"\n") if line.strip())
        case _:
            yield from csv.DictReader(io.StringIO(_decompressed(body).decode("utf-8-sig"), newline=""))


def _columns(dataset: Dataset, names: list[str]) -> list[str]:
    """Return the outermost columns that lead to the identifier, and to what is set to null."""
    wanted = {name.split(".")[0] for name in (dataset.identifier, *dataset.set_null)}
    return [name for name in names if name in wanted or "." in name] or names


def _some(dataset: Dataset, batch: Any, ids: set[Any] | None) -> Any:
    """Return the rows of a batch that may have one of the ids: where the identifier lies in structs only, its values
    are looked for before whole rows are made, which takes a hundred times as long.
    """
    first, *steps = dataset.identifier.split(".")
    if ids is None or first not in batch.schema.names:
        return batch
    values = batch.column(first)
    for name in steps:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            return batch
        values = pc.struct_field(values, [name])
    if not any(is_one(values.type) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)):
        return batch
    if not pa.types.is_integer(values.type) and any(isinstance(each, int) for each in ids):
        return batch  # a text may be a number
    return batch.filter(pa.array([value in ids for value in values.to_pylist()], pa.bool_()))


def _decompressed(body: bytes) -> bytes:
    if body.startswith(b"\xfd7zXZ"):
        return lzma.decompress(body)
    for magic, codec in ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\x28\xb5\x2f\xfd", "zstd")):
        if body.startswith(magic):
            return pa.input_stream(pa.BufferReader(body), compression=codec).read()
    return body


def _matches(dataset: Dataset, row: Any, ids: set[Any]) -> bool:
    if dataset.set_null and not any(_is_set(dataset, row, name) for name in dataset.set_null):
        return False
    path = [dataset.identifier] if dataset.format == "csv" else dataset.identifier.split(".")
    wants_integers = any(isinstance(each, int) for each in ids)
    for value in _values(row, path, dataset.map_part):
        try:
            if (int(value) if wants_integers and isinstance(value, str) else value) in ids:
                return True
        except (TypeError, ValueError):
            continue
    return False


def _is_set(dataset: Dataset, row: Any, name: str) -> bool:
    """Return whether a column that is to be null is not."""
    if dataset.format == "csv":
        return bool(row.get(name))
    for step in name.split("."):
        if isinstance(row, list):
            return True  # no run can set this to null
        row = _any(row).get(step) if isinstance(row, dict) else None
    return row is not None


def _values(value: Any, path: list[str], map_part: str) -> Iterator[Any]:
    """Yield every value at a path: through structs, lists, and maps (lists of pairs, as Arrow gives them)."""
    match value:
        case list():
            for each in _any(value):
                is_pair = isinstance(each, tuple)
                yield from _values(_any(each)[0 if map_part == "key" else 1] if is_pair else each, path, map_part)
        case dict() if path:
            if path[0] in _any(value):
                yield from _values(_any(value)[path[0]], path[1:], map_part)
        case dict():
            for each in _any(value) if map_part == "key" else _any(value).values():
                yield from _values(each, path, map_part)
        case None:
            return
        case _ if not path:
            yield value
        case _:
            return


def _any(value: Any) -> Any:
    """Return what a match has narrowed to a type of unknown items."""
    return value
