"""CSV and JSON lines that pyarrow, DuckDB, Polars, pandas and Python's own modules write."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv

from tests.corpus import by_pyarrow
from tests.corpus.case import ROWS, WANTED, Case, guests, spread

pa_csv_: Any = pa_csv
_TEXTS: Final = [
    "plain",
    "größe",
    "日本",
    "a,b",
    'say "x"',
    "two\nlines",
    " padded ",
    "'",
    ";",
    "\t",
    "back\\slash",
    "#",
    "-",
]
_ZSTD: Final = partial(pa.compress, codec="zstd", asbytes=True)
_COMPRESSED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": partial(gzip.compress, mtime=0), "bzip2": bz2.compress, "xz": lzma.compress, "zstd": _ZSTD,
}  # fmt: skip


def cases() -> Iterator[Case]:
    yield from _csv()
    yield from _json()


def _flat() -> Any:
    """Return a table of what CSV can hold."""
    return by_pyarrow.mixed().drop_columns(["tags"]).append_column("text", pa.array(spread(_TEXTS)))


def _csv() -> Iterator[Case]:
    for quoting in ("needed", "all_valid"):
        options = pa_csv.WriteOptions(quoting_style=quoting)
        yield _case("pyarrow", "csv", f"quotes: {quoting}", partial(_pyarrow_csv, options))
    plain = [name for name in _flat().schema.names if name != "text"]
    bare = pa_csv.WriteOptions(quoting_style="none", quoting_header="none")
    yield _case("pyarrow", "csv", "quotes: none", lambda path: pa_csv_.write_csv(_flat().select(plain), path, bare))
    for what, options in (
        ("plain", "HEADER"), ("everything quoted", "HEADER, FORCE_QUOTE *"), ("dates", "HEADER, TIMESTAMPFORMAT '%Y'"),
    ):  # fmt: skip
        yield _case("DuckDB", "csv", what, partial(_duckdb, "csv", options))
    for what, given in (
        ("plain", {}), ("everything quoted", {"quote_style": "always"}), ("what is no number quoted", {"quote_style":
         "non_numeric"}), ("a byte order mark", {"include_bom": True}), ("CRLF", {"line_terminator": "\r\n"}),
    ):  # fmt: skip
        yield _case("Polars", "csv", what, partial(_polars_csv, given))
    for what, settings in (
        ("plain", {}), ("everything quoted", {"quoting": csv.QUOTE_ALL}), ("CRLF", {"lineterminator": "\r\n"}),
        ("with an index", {"index": True}), ("compressed", {"compression": {"method": "gzip", "mtime": 0}}),
    ):  # fmt: skip
        yield _case("pandas", "csv", what, partial(_pandas_csv, settings))
    for name, pack in _COMPRESSED.items():
        yield _case("Python", "csv", f"codec {name}", partial(_packed, pack, _python_csv()))
    body = _python_csv()
    yield _case("Python", "csv", "no line end at the end", lambda path: _put(path, body.rstrip(b"\r\n")))
    yield _case("Python", "csv", "blank lines", lambda path: _put(path, body + b"\r\n\r\n"))
    yield _case("Python", "csv", "no rows", lambda path: _put(path, body.partition(b"\n")[0] + b"\n"), rows=0)
    yield _case("Python", "csv", "a tab between fields", lambda path: _put(path, _python_csv("\t")))
    yield _case("Python", "csv", "a semicolon between fields", lambda path: _put(path, _python_csv(";")))
    slash = b'guest,n\n"a\\",1\n'
    yield _case("Python", "csv", "a backslash before a quote", lambda path: _put(path, slash), rows=0)
    yield _case("Python", "csv", "Latin-1", lambda path: _put(path, "guest,größe\n".encode("latin-1")), rows=0)
    numbers: list[Any] = list(range(ROWS))
    yield Case(
        "Python", "csv", "identifier of integers",
        lambda path: _put(path, b"n,guest\n" + b"".join(b"x,%d\n" % row for row in numbers)), numbers, (23, 84),
        "integer", is_text_id=False,
    )  # fmt: skip


def _json() -> Iterator[Case]:
    yield _case("DuckDB", "json", "plain", partial(_duckdb, "json", ""), set_null=("word",))
    yield _case("Polars", "json", "plain", lambda path: pl.DataFrame(pl.from_arrow(_nested())).write_ndjson(path))
    for what, options in (
        ("plain", {}), ("ASCII alone", {"force_ascii": True}), ("dates as texts", {"date_format": "iso"}),
        ("compressed", {"compression": "gzip"}),
    ):  # fmt: skip
        yield _case("pandas", "json", what, partial(_pandas_json, options))
    for name, pack in _COMPRESSED.items():
        yield _case("Python", "json", f"codec {name}", partial(_packed, pack, _python_json()))
    yield _case("Python", "json", "spaces", partial(_packed, bytes, _python_json(separators=(" , ", " : "))))
    yield _case("Python", "json", "ASCII alone", partial(_packed, bytes, _python_json(ensure_ascii=True)))
    yield _case("Python", "json", "a byte order mark", lambda path: _put(path, b"\xef\xbb\xbf" + _python_json()))
    yield _case("Python", "json", "blank lines", lambda path: _put(path, _python_json().replace(b"\n", b"\n\n")))
    yield _case("Python", "json", "CRLF", lambda path: _put(path, _python_json().replace(b"\n", b"\r\n")))
    yield _case("Python", "json", "no rows", lambda path: _put(path, b""), rows=0)
    yield _case("Python", "json", "one array of objects", lambda path: _put(path, b'[{"guest": "a"}]\n'), rows=0)
    lines = [{"guest": text, "n": 12345678901234567890123, "x": 1.10, "e": 1e400} for text in guests()]
    yield _case("Python", "json", "numbers that no type holds", lambda path: _lines(path, lines))
    numbers: list[Any] = list(range(ROWS))
    yield Case(
        "Python", "json", "identifier of integers", lambda path: _lines(path, [{"guest": row} for row in numbers]),
        numbers, (23, 84), "integer", is_text_id=False,
    )  # fmt: skip
    some: list[Any] = [None if row % 9 == 8 else text for row, text in enumerate(guests())]
    for what, wrap, identifier, map_part in _PLACES:
        rows = [{"n": row, "guest": None if text is None else wrap(text)} for row, text in enumerate(some)]
        yield Case(
            "Python", "json", what, partial(lambda rows, path: _lines(path, rows), rows), some, WANTED,
            identifier=identifier, map_part=map_part, is_compared=map_part == "value",  # keys are fields to others
        )  # fmt: skip
    yield Case(
        "Python", "json", "identifier of nulls alone", lambda path: _lines(path, [{"guest": None}] * ROWS),
        [None] * ROWS, WANTED,
    )  # fmt: skip


_PLACES: Final[tuple[tuple[str, Callable[[str], Any], str, str], ...]] = (
    ("identifier in an object", lambda text: {"id": text}, "guest.id", "value"),
    ("identifier in an array", lambda text: [text, "x"], "guest", "value"),
    ("identifier in an array of objects", lambda text: [{"id": "x"}, {"id": text}], "guest.id", "value"),
    ("identifier as a map's key", lambda text: {text: 1}, "guest", "key"),
    ("identifier as a map's value", lambda text: {"k": text}, "guest", "value"),
)


def _case(
    writer: str,
    format_: str,
    what: str,
    write: Callable[[Path], Any],
    *,
    rows: int = ROWS,
    set_null: tuple[str, ...] = (),
) -> Case:
    nulls = frozenset(row for row in range(ROWS) if row % 8 == 1)
    return Case(writer, format_, what, write, guests(rows), WANTED, set_null=set_null, null_already=nulls)


@cache
def _nested() -> Any:
    return by_pyarrow.mixed().append_column("text", pa.array(spread(_TEXTS)))


def _pyarrow_csv(options: Any, path: Path) -> None:
    pa_csv_.write_csv(_flat(), path, options)


def _duckdb(format_: str, options: str, path: Path) -> None:
    table = _flat() if format_ == "csv" else _nested()
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("rows", table)
        connection.execute(f"copy (from rows) to '{path}' (FORMAT {format_}{', ' if options else ''}{options})")


def _polars_csv(options: dict[str, Any], path: Path) -> None:
    pl.DataFrame(pl.from_arrow(_flat())).write_csv(path, **options)


def _pandas_csv(options: dict[str, Any], path: Path) -> None:
    _flat().to_pandas().to_csv(path, **{"index": False, "lineterminator": "\n", **options})


def _pandas_json(options: dict[str, Any], path: Path) -> None:
    frame: Any = _nested().drop_columns(["price"]).to_pandas()
    frame.to_json(path, orient="records", lines=True, **{"force_ascii": False, **options})


def _python_csv(delimiter: str = ",") -> bytes:
    rows = [[text, str(row), _TEXTS[row % len(_TEXTS)]] for row, text in enumerate(guests())]
    lines: list[str] = []

    class Into:
        def write(self, line: str) -> None:
            lines.append(line)

    writer = csv.writer(Into(), delimiter=delimiter)  # type: ignore[arg-type]  # it only writes
    writer.writerow(["guest", "n", "text"])
    writer.writerows(rows)
    return "".join(lines).encode()


def _python_json(**options: Any) -> bytes:
    texts = [_TEXTS[row % len(_TEXTS)] for row in range(ROWS)]
    rows = [{"n": row, "guest": guest, "t": text, "l": [1.5], "o": {"x": [1]}} for row, (guest, text) in
            enumerate(zip(guests(), texts, strict=True))]  # fmt: skip
    return "".join(json.dumps(row, **{"ensure_ascii": False, **options}) + "\n" for row in rows).encode()


def _packed(pack: Callable[[bytes], bytes], body: bytes, path: Path) -> None:
    _put(path, pack(body))


def _lines(path: Path, rows: list[Any]) -> None:
    _put(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _put(path: Path, body: bytes) -> None:
    path.write_bytes(body)
