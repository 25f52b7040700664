"""Random files of Parquet, purged, against the plain thing: their rows in Python, without those of the ids."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats import parquet
from tests.corpus.parquet_layout import layout
from tests.purge.looking import find, id_set, rewrite, task
from tests.purge.random_tables import Row, random_options, random_type, random_value

Path = tuple[str, ...]


class RandomFile(NamedTuple):
    body: bytes
    schema: Any
    rows: list[Row]
    guests: list[str]
    """Whose each row is; all texts of the row have the name."""


def random_file(chance: random.Random, *, has_struct: bool) -> RandomFile:
    fields = [
        pa.field(f"c{number}", random_type(chance, chance.randrange(4)), nullable=chance.random() < 0.7)
        for number in range(chance.randint(1, 4))
    ]
    if has_struct:  # with fields of any type, to be set to null
        fields.append(pa.field("struct", pa.struct([pa.field(name, random_type(chance, 2)) for name in "ab"])))
    guest = pa.field("guest", pa.string(), nullable=False)
    if chance.random() < 0.5:
        guest = pa.field("guest", chance.choice([pa.list_(guest), pa.struct([guest])]), nullable=False)
    fields.insert(chance.randrange(len(fields) + 1), guest)
    schema = pa.schema(fields)
    count = chance.choice([1, 4, 20, 40])
    guests = [f"guest-{number * 5 // count}" for number in range(count)]
    if chance.random() < 0.5:
        chance.shuffle(guests)
    nulls = {field.name: chance.choice([0, 0.2, 0.6, 1]) for field in schema}
    rows = [
        {field.name: _identifier(field, name) if field is guest or field.name == "guest"
         else random_value(chance, field, name, nulls[field.name]) for field in schema}
        for name in guests
    ]  # fmt: skip
    table = pa.table([pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema)
    empty = io.BytesIO()
    compliant = chance.random() < 0.7
    pq.write_table(schema.empty_table(), empty, store_schema=False, use_compliant_nested_type=compliant)
    columns = pq.ParquetFile(empty).schema
    leaves = [(columns.column(number).path, columns.column(number).physical_type) for number in range(len(columns))]
    options = {**random_options(chance, leaves), "use_compliant_nested_type": compliant}
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return RandomFile(out.getvalue(), schema, pq.read_table(io.BytesIO(out.getvalue())).to_pylist(), guests)


def _identifier(field: Any, name: str) -> Any:
    if pa.types.is_list(field.type):
        return ["", name]
    return {"guest": name} if pa.types.is_struct(field.type) else name


def paths_to_null(schema: Any) -> list[Path]:
    def below(path: Path, field: Any) -> Iterator[Path]:
        if field.nullable:
            yield path
        if pa.types.is_struct(field.type):
            for child in field.type:
                yield from below((*path, child.name), child)

    return [path for field in schema for path in below((field.name,), field)]


def nulled(row: Row, path: Path) -> tuple[Row, bool]:
    """Return the row with null at the path, and whether it was none."""
    row = copy.deepcopy(row)
    inner: Any = row
    for name in path[:-1]:
        inner = None if inner is None else inner[name]
    if inner is None or inner[path[-1]] is None:
        return row, False
    inner[path[-1]] = None
    return row, True


def check_bytes(body: bytes, guests: Sequence[str]) -> None:
    contents = [content for group in layout(body).groups for chunk in group for content in chunk.content()]
    for guest in guests:
        assert guest.encode() not in body
        assert not any(guest.encode() in content for content in contents)


def check_duckdb(file: RandomFile, made: bytes, keep: Sequence[bool], tmp_path: Any) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    old.write_bytes(file.body)
    new.write_bytes(made)
    with duckdb.connect(config={"threads": 1}) as connection:
        query = "select * from read_parquet(?)"
        before = connection.execute(query, [str(old)]).fetchall()
        after = connection.execute(query, [str(new)]).fetchall()
    assert repr(after) == repr([row for row, stays in zip(before, keep, strict=True) if stays])


@pytest.mark.parametrize("seed", range(54))
def test_a_random_file_loses_the_rows_of_the_ids_and_nothing_else(seed: int, tmp_path: Any) -> None:
    chance = random.Random(seed)
    file = None
    while file is None:
        with suppress(pa.ArrowException, OSError):  # pyarrow does not read all that it writes
            file = random_file(chance, has_struct=seed % 3 == 2)
    gone = chance.sample(sorted(set(file.guests)), chance.randint(1, len(set(file.guests))))
    what = task("guest.guest" if pa.types.is_struct(file.schema.field("guest").type) else "guest")
    what = replace(what, matches_every_row=seed % 7 == 6, ignores_statistics=seed % 5 == 4)
    has_id = [what.matches_every_row or guest in gone for guest in file.guests]
    paths = [path for path in paths_to_null(file.schema) if path[0] != "guest"]
    if seed % 3 == 2 and paths:
        path = chance.choice(paths) if seed % 2 else max(paths, key=len)
        what = replace(what, set_null=(path,))
        made, counts = rewrite(parquet, file.body, what, id_set(*gone))
        changed = [nulled(row, path) if hit else (row, False) for row, hit in zip(file.rows, has_id, strict=True)]
        expected, matched = [row for row, _ in changed], sum(is_new for _, is_new in changed)
    else:
        made, counts = rewrite(parquet, file.body, what, id_set(*gone))
        expected = [row for row, hit in zip(file.rows, has_id, strict=True) if not hit]
        matched = sum(has_id)
        check_bytes(made, sorted(set(file.guests)) if what.matches_every_row else gone)
        if seed % 4 == 0:
            check_duckdb(file, made, [not hit for hit in has_id], tmp_path)
    assert counts == (len(file.rows), matched)
    table = pq.read_table(io.BytesIO(made))
    table.validate(full=True)
    assert table.schema.equals(pq.read_schema(io.BytesIO(file.body)), check_metadata=True)
    assert repr(table.to_pylist()) == repr(expected)
    if what.set_null or not what.matches_every_row:
        assert find(parquet, made, replace(what, ignores_statistics=True), id_set(*gone)).matched_rows == 0
