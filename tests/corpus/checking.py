"""Purge a file of the corpus, and tell everything that is wrong with what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from refstore_purge.formats.base import FormatTask, IdKind
from refstore_purge.formats.registry import load_format
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_ids import IdSet
from tests.corpus import avro_kept, orc_kept, parquet_kept, parquet_layout, text_kept
from tests.corpus.arrow_values import taken
from tests.corpus.case import Case
from tests.corpus.readers import FAMILIES, READERS, Read
from tests.corpus.same import difference
from tests.purge.looking import id_set

NOBODY: Final[dict[IdKind, Any]] = {
    "string": "nobody-at-all",
    "integer": 4_611_686_018_427_400_000,
    "binary": b"nobody",
}
TOLD: Final = 3
"""How many faults of a file are told."""


class Purge(NamedTuple):
    """One of the ways in which a file is purged."""

    what: str
    wanted: tuple[Any, ...]
    changed: frozenset[int] = frozenset()
    """The rows that go, or of which columns are set to null."""
    set_null: tuple[str, ...] = ()


def purges(case: Case) -> Iterator[Purge]:
    yield Purge("rows go", case.wanted, case.gone)
    yield Purge("nothing matches", (NOBODY[case.kind],))
    if case.set_null:
        yield Purge("set to null", case.wanted, case.gone - case.null_already, case.set_null)


def check(
    case: Case, folder: Path, counts: Counter[str], refused: Mapping[str, str], *, only: str | None = None
) -> list[str]:
    """Return what is wrong with purges of a file; nothing, if each is right, or refused as it should be.

    `counts` is given how often each reader has compared. `refused`: parts of errors' messages, by the name of the file,
    or of one of its purges. `only`: a reader, for which the rows go, and which alone compares.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = folder / f"old.{case.format}"
    case.write(old)
    reads = {name: _read(case, name, old) for name in readers_of(case) if case.is_compared and only in (None, name)}
    wrong: list[str] = []
    for purge in list(purges(case))[: None if only is None else 1]:
        name = f"{case.name} ({purge.what})"
        expected = refused.get(name, refused.get(case.name))
        found: list[str] = []
        try:
            new = _purged(case, purge, old, found)
        except PurgeError as error:
            if expected is None or expected not in str(error) or "damaged" in str(error):
                found = [f"refused: {error}"]
        except Exception as error:  # noqa: BLE001  # whatever the code that is tested raises
            found = [f"fails: {type(error).__name__}: {str(error)[:300]}"]
        else:
            found += _wrong(case, purge, old, new, reads, counts)
            if expected is not None:
                found.append(f"purged, and expected to be refused: {expected}")
        if len(found) > TOLD:
            found[TOLD:] = [f"and {len(found) - TOLD} more"]
        wrong += [f"{name}: {told}" for told in found]
    return wrong


@cache
def _ids(wanted: tuple[Any, ...], kind: IdKind) -> IdSet:
    is_large = kind == "integer" and max(wanted) >= 2**63
    return id_set(*wanted, kind=kind, type_=pa.uint64() if is_large else None)


def _purged(case: Case, purge: Purge, old: Path, found: list[str]) -> Path:
    """Return the purged file. Raises PurgeError."""
    format_: Any = case.format
    module = load_format(format_)
    part: Any = case.map_part
    task = FormatTask(tuple(case.identifier.split(".")), part, tuple(tuple(name.split(".")) for name in purge.set_null))
    ids = _ids(purge.wanted, case.kind)
    new = old.with_name(f"new.{case.format}")
    with old.open("rb") as source, new.open("w+b") as target:
        made = module.rewrite(source, target, task, ids)
    with old.open("rb") as source:
        seen = module.find(source, task, ids)
    expected = (len(case.keys), len(purge.changed))
    if (made.rows, made.matched_rows) != expected:
        found.append(f"rewrite says {made.matched_rows} of {made.rows} rows, instead of {expected[1]} of {expected[0]}")
    if (seen.rows, seen.matched_rows) != expected:
        found.append(f"find says {seen.matched_rows} of {seen.rows} rows, instead of {expected[1]} of {expected[0]}")
    return new


def _wrong(
    case: Case, purge: Purge, old: Path, new: Path, reads: dict[str, Read | None], counts: Counter[str]
) -> Iterator[str]:
    for name, before in reads.items():
        if before is None:
            continue
        counts[name] += 1
        try:
            after = READERS[case.format][name](new)
        except Exception as error:  # noqa: BLE001  # whatever this reader raises at a file
            yield f"{name} cannot read it: {type(error).__name__}: {str(error)[:200]}"
            continue
        if before.types != after.types:
            yield f"{name} reads other types: {after.types} instead of {before.types}"
        elif told := _difference(purge, before.table, after.table):
            yield f"{name} reads: {told}"
    body, made = old.read_bytes(), new.read_bytes()
    match case.format:
        case "parquet":
            yield from parquet_kept.kept(
                body, made, purge.changed, rows_stay=bool(purge.set_null), has_spare_values=case.has_spare_values
            )
        case "orc":
            yield from orc_kept.kept(body, made)
        case "avro":
            yield from avro_kept.kept(body, made, purge.changed)
        case _ if not purge.set_null:
            yield from text_kept.kept(body, made, purge.changed, case.format)
    if purge.changed and not purge.set_null and case.is_text_id:
        yield from _left(case, made)


def _difference(purge: Purge, old: Any, new: Any) -> str:
    """Return in what the tables differ beside what the purge is to change."""
    others = [row for row in range(len(old)) if row not in purge.changed]
    if not purge.set_null or not purge.changed:
        return difference(_rows(old, others) if purge.changed else old, new)
    if len(new) != len(old):
        return f"{len(new)} rows instead of {len(old)}"
    if told := difference(_rows(old, others), _rows(new, others)):
        return f"rows that stay as they are: {told}"
    if old.schema.names == ["rows"]:  # as texts
        return ""
    mine, nulled = (_rows(table, sorted(purge.changed)) for table in (old, new))
    names = [name.split(".")[0] for name in purge.set_null]
    if told := difference(mine.drop_columns(names), nulled.drop_columns(names)):
        return f"columns that stay as they are: {told}"
    for name in purge.set_null:
        root, *path = name.split(".")
        if not path and nulled.column(root).null_count == len(nulled):
            continue
        expected = [_nulled(each, path) for each in mine.column(root).to_pylist()]
        if str(nulled.column(root).to_pylist()) != str(expected):
            return f"column {name!r} is not null, or its neighbours changed"
    return ""


def _nulled(value: Any, path: list[str]) -> Any:
    return None if value is None or not path else {**value, path[0]: _nulled(value[path[0]], path[1:])}


def _rows(table: Any, rows: Sequence[int]) -> Any:
    columns = [taken(column.combine_chunks(), rows) for column in table.columns]
    return pa.table(columns, schema=table.schema)


def _left(case: Case, made: bytes) -> Iterator[str]:
    """Yield which ids stand in what a file is made of, decompressed."""
    pieces = [made]
    if case.format == "parquet":
        groups = parquet_layout.layout(made).groups
        pieces += [piece for group in groups for chunk in group for piece in chunk.content()]
    for wanted in case.wanted:
        needle = wanted.encode() if isinstance(wanted, str) else wanted
        if any(needle in piece for piece in pieces):
            yield "an id stands in its bytes"
            return


def readers_of(case: Case) -> list[str]:
    """Return who reads a file: whoever reads its format, and the family of its writer."""
    return [name for name in READERS[case.format] if name not in FAMILIES or name == case.writer]


def _read(case: Case, name: str, path: Path) -> Read | None:
    """Return what a reader reads of the original; None: it cannot."""
    try:
        return READERS[case.format][name](path)
    except Exception:  # noqa: BLE001  # whatever this reader raises at a file
        return None
