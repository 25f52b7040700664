"""What a purge is measured on: events of guests in Parquet, ORC, JSON lines and CSV; and the bare pyarrow beside it.

A guest's id is 32 hexadecimal digits, as a UUID has them, so no statistics rule it out, and snappy saves little of it.
The guests of a file are its own: the ids of some files are in no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from refstore_purge.untyped_pandas import orc, pa, pc, pq

if TYPE_CHECKING:
    from numpy.typing import NDArray

IDENTIFIER: Final = "user.guestid"
ID_DIGITS: Final = 32
GROUPS: Final = 2
"""Row groups of a file."""
PLANTED: Final = 10
"""How many ids of a file are looked for, where it has any."""
COUNTRIES: Final = ("de", "fr", "gb", "us")
PAGES: Final = 200
START_MS: Final = 1_763_708_400_000


class Shape(NamedTuple):
    """Of a data set's files."""

    rows: int
    rows_a_guest: int
    """On average."""
    is_sparse: bool = False
    """Whether there is little beside the ids, and most of that null."""
    text: int = 0
    """Of how many characters a further column is."""

    @property
    def guests(self) -> int:
        return max(PLANTED, self.rows // self.rows_a_guest)


def guests_of(number: int, shape: Shape) -> Any:
    return _ids(np.random.default_rng([1, number]), shape.guests)


def events(number: int, shape: Shape) -> Any:
    rng = np.random.default_rng([2, number])
    guests, rows = guests_of(number, shape), shape.rows
    chosen = np.arange(rows) % shape.guests if shape.rows_a_guest == 1 else rng.integers(0, shape.guests, rows)
    chosen[:PLANTED] = range(PLANTED)
    age = pa.array(rng.integers(16, 90, rows).astype(np.int16))
    user = pa.StructArray.from_arrays([guests.take(pa.array(chosen)), age], ["guestid", "age"])
    if shape.is_sparse:
        return pa.table({"user": user, "note": pa.array(np.ones(rows), mask=rng.integers(0, 100, rows) > 0)})
    table = pa.table(
        {
            "user": user,
            "price": rng.random(rows),
            "latitude": rng.random(rows) * 180,
            "longitude": rng.random(rows) * 360,
            "country": pa.array(np.array(COUNTRIES)[rng.integers(0, len(COUNTRIES), rows)]),
            "page": pa.array(np.array([f"/page/{at}" for at in range(PAGES)])[rng.integers(0, PAGES, rows)]),
            "at_ms": START_MS + np.sort(rng.integers(0, 3_600_000, rows)),
        }
    )
    return table.append_column("text", pa.array(["x" * shape.text] * rows)) if shape.text else table


def write_events(to: tuple[Path, int, Shape]) -> Path:
    file, number, shape = to
    pq.write_table(events(number, shape), file, row_group_size=-(-shape.rows // GROUPS))
    return file


def write_ids(file: Path, planted: Iterable[int], shape: Shape, count: int, *, seed: int) -> Path:
    """Write so many ids, PLANTED of them of each of these files, the others nobody's."""
    known = [guests_of(number, shape)[:PLANTED] for number in planted]
    others = _ids(np.random.default_rng([3, seed]), count - sum(map(len, known)))
    pq.write_table(pa.table({"id": pa.concat_arrays([*known, others])}), file)
    return file


def _ids(rng: np.random.Generator, count: int) -> Any:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    made: NDArray[np.uint8] = digits[rng.integers(0, len(digits), (count, ID_DIGITS), dtype=np.uint8)]
    offsets = np.arange(count + 1, dtype=np.int32) * ID_DIGITS
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(made.tobytes()))


# ---- large files, which no table in memory could be written as


class Made(NamedTuple):
    size_bytes: int
    group_bytes: int
    """Of a row group or stripe, decoded; 0: text has none."""


def write_large(file: Path, format_: str, shape: Shape, size_bytes: int) -> Made:
    """Write the same rows once, and again until the file has that size."""
    table = events(0, shape)
    match format_:
        case "parquet":
            with file.open("wb") as sink, pq.ParquetWriter(sink, table.schema) as writer:
                writer.write_table(table, row_group_size=shape.rows)
                while sink.tell() < size_bytes:
                    writer.write_table(table, row_group_size=shape.rows)
            group = pq.ParquetFile(file).read_row_group(0).nbytes
        case "orc":
            with file.open("wb") as sink, orc.ORCWriter(sink) as writer:
                writer.write(table)
                while sink.tell() < size_bytes:
                    writer.write(table)
            group = pa.Table.from_batches([orc.ORCFile(file).read_stripe(0)]).nbytes
        case _:
            first, block = _text(table, format_)
            with file.open("wb") as sink:
                sink.write(first + block)
                while sink.tell() < size_bytes:
                    sink.write(block)
            group = 0
    return Made(file.stat().st_size, group)


def _text(table: Any, format_: str) -> tuple[bytes, bytes]:
    """Return the header and the rows."""
    rows = table.to_pylist()
    if format_ == "json":
        return b"", "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    flat = [{**row.pop("user"), **row} for row in rows]
    lines = (",".join(map(str, row.values())) for row in flat)
    return (",".join(flat[0]) + "\n").encode(), "".join(f"{line}\n" for line in lines).encode()


# ---- bare pyarrow, in processes that do nothing else


def read_column(file: Path) -> int:
    return len(pq.ParquetFile(file).read(columns=[IDENTIFIER]))


def rewrite_bare(of: tuple[Path, Path, Path]) -> int:
    """Write a file without the rows of the ids, row group by row group; return how many rows went."""
    file, ids, to = of
    wanted = pq.read_table(ids).column(0).combine_chunks()
    source = pq.ParquetFile(file)
    gone = 0
    with pq.ParquetWriter(to, source.schema_arrow) as writer:
        for number in range(source.num_row_groups):
            table = source.read_row_group(number)
            column: Any = table.column("user")
            kept = table.filter(pc.invert(pc.is_in(pc.struct_field(column, "guestid"), value_set=wanted)))
            gone += len(table) - len(kept)
            writer.write_table(kept)
    return gone
