"""Files that Spark writes: its own Parquet and ORC, which Hive's and Hadoop's are like."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from refstore_purge.formats.base import IdKind
from tests.corpus.case import GONE, ROWS, SPREAD_NULLS, Case

_GUEST: Final = "concat('guest-', lpad(id, 5, '0'), '-spark')"
_TIMES: Final = ("'1970-01-01 00:00:00'", "'2020-02-03 04:05:06.789123'", "'1950-01-01 00:00:00'")


def _guest(row: int) -> str:
    return f"guest-{row:05}-spark"


WANTED: Final = tuple(map(_guest, GONE))
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "BOOLEAN": ("true", "false"),
    "BYTE": ("-128", "127", "0"),
    "SHORT": ("-32768", "32767", "0"),
    "INT": ("-2147483648", "2147483647", "0"),
    "LONG": ("-9223372036854775808L", "9223372036854775807L", "0"),
    "FLOAT": ("'NaN'", "'-0.0'", "0.0", "'Infinity'", "1.5"),
    "DOUBLE": ("'NaN'", "'-0.0'", "0.0", "'-Infinity'", "1.5"),
    "DECIMAL(9,2)": ("9999999.99", "-1.5", "0"),
    "DECIMAL(18,3)": ("999999999999999.999", "-1.5", "0"),
    "DECIMAL(38,10)": ("'9999999999999999999999999999.9999999999'", "-1.5", "0"),
    "STRING": ("''", "'größe'", "'日本'", "repeat('x', 40)"),
    "BINARY": ("X''", "X'00'", "X'FFFE'"),
    "DATE": ("'1970-01-01'", "'0001-01-01'", "'9999-12-31'", "'1969-12-31'"),
    "TIMESTAMP": _TIMES,
    "TIMESTAMP_NTZ": _TIMES,
    "INTERVAL DAY TO SECOND": ("INTERVAL '1 2:03:04' DAY TO SECOND", "INTERVAL '-1 0:0:0' DAY TO SECOND"),
    "INTERVAL YEAR TO MONTH": ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-3-0' YEAR TO MONTH"),
    "ARRAY<ARRAY<INT>>": ("array(array(1, null), null)", "array()"),
    "MAP<STRING,ARRAY<INT>>": ("map('a', array(1), 'b', null)", "map()"),
    "STRUCT<a:INT,b:ARRAY<STRING>>": ("named_struct('a', 1, 'b', array('x', null))",),
}
_MIXED: Final = (
    f"{_GUEST} guest", "id n", "if(id % 5 = 2, null, id / 7) amount", "cast(id / 100 as decimal(9, 2)) price",
    "if(id % 8 = 1, null, concat('word-', id % 6)) word", "id % 3 = 0 is_new", "timestamp_seconds(id * 1000000) moment",
    "if(id % 6 = 4, null, array(concat('t', id % 4))) tags",
)  # fmt: skip
_FAR: Final = "element_at(array('0001-01-01 00:00:00', '9999-12-31 23:59:59'), cast(id % 2 + 1 as int))"
_EARLY: Final = "element_at(array('1950-01-01 00:00:00.5', '1969-12-31 23:59:59.999'), cast(id % 2 + 1 as int))"

_PARQUET: Final[dict[str, dict[str, str]]] = {
    **{f"codec {name}": {"compression": name} for name in ("none", "snappy", "gzip", "zstd", "lz4", "lz4_raw")},
    "writer version 2": {"parquet.writer.version": "PARQUET_2_0"},
    "no dictionaries": {"parquet.enable.dictionary": "false"},
    "small pages": {"parquet.page.size": "64", "parquet.page.size.row.check.min": "2"},
    "page checksums": {"parquet.page.write-checksum.enabled": "true"},
    "no page checksums": {"parquet.page.write-checksum.enabled": "false"},
    "Bloom filters": {"parquet.bloom.filter.enabled#guest": "true", "parquet.bloom.filter.expected.ndv#guest": "120"},
    "byte stream split": {"parquet.enable.bytestreamsplit": "true", "parquet.enable.dictionary": "false"},
    "legacy format": {"spark.sql.parquet.writeLegacyFormat": "true"},
    "timestamps of 96 bits": {"spark.sql.parquet.outputTimestampType": "INT96"},
    "timestamps in milliseconds": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    "timestamps in microseconds": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
    "one row group": {"parquet.block.row.count.limit": "1000"},
}
_ORC: Final[dict[str, dict[str, str]]] = {
    **{f"codec {name}": {"compression": name} for name in ("none", "snappy", "zlib", "zstd", "lz4")},
    "blocks of 10,000 bytes": {"orc.compress.size": "10000"},
    "blocks of 1,024 bytes": {"orc.compress.size": "1024", "compression": "zlib"},
    "blocks of 300,000 bytes": {"orc.compress.size": "300000"},
    "no row index": {"orc.create.index": "false"},
    "row index of 1,000": {"orc.row.index.stride": "1000"},
    "Bloom filters": {"orc.bloom.filter.columns": "guest,n", "orc.bloom.filter.fpp": "0.01"},
    "dictionaries": {"orc.dictionary.key.threshold": "1.0"},
    "format version 0.11, with times": {"orc.write.format": "0.11"},
    "encoding strategy": {"orc.encoding.strategy": "COMPRESSION"},
}


def cases(spark: Any, folder: Path) -> Iterator[Case]:
    """Yield the files, which `spark` writes into a folder when they are asked for."""
    for format_, options in (("parquet", _PARQUET), ("orc", _ORC)):
        make = partial(_Maker(spark, folder, format_).case)
        for name, values in _TYPES.items():
            if "INTERVAL" in name and format_ == "orc":  # which Spark does not write
                continue
            yield make(name, _typed(name, values), set_null=("v",))
        if format_ == "parquet":
            variant = "parse_json(concat('{\"a\": ', id, ', \"b\": [true, null]}')) v"
            yield make("VARIANT", (f"{_GUEST} guest", variant))
        for name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
            yield make(f"{name} beyond 1677 to 2262", (f"{_GUEST} guest", f"cast({_FAR} as {name}) v"))
            yield make(f"{name} before 1970, with a fraction", (f"{_GUEST} guest", f"cast({_EARLY} as {name}) v"))
        both = (f"{_GUEST} guest", "timestamp_seconds(id) a", "cast(timestamp_seconds(id) as timestamp_ntz) b")
        yield make("TIMESTAMP beside TIMESTAMP_NTZ", both)
        for name, given in options.items():
            yield make(name, _MIXED, given)
        yield make("odd names", (f"{_GUEST} guest", "id `a.b`", "id `a b`", "id UPPER", "id `größe`"))
        yield make("no rows", _MIXED, rows=0)
        yield from _identifiers(make)


def _typed(type_: str, values: tuple[str, ...]) -> tuple[str, ...]:
    listed = " ".join(f"when {place} then cast({value} as {type_})" for place, value in enumerate(values))
    v = f"if(id % 7 = 3, null, case id % {len(values)} {listed} end)"
    return (
        f"{_GUEST} guest", f"{v} v", f"if(id % 11 = 5, null, array({v}, null)) in_list",
        f"if(id % 11 = 5, null, named_struct('a', {v}, 'b', id)) in_struct", f"map(concat('k', id), {v}) in_map",
    )  # fmt: skip


def _identifiers(make: Any) -> Iterator[Case]:
    numbers: list[Any] = list(range(ROWS))
    texts: list[Any] = [_guest(row) for row in numbers]
    for type_ in ("BYTE", "SHORT", "INT", "LONG"):
        yield make(f"identifier {type_}", ("id n", f"cast(id as {type_}) guest"), keys=numbers, kind="integer")
    blobs = [text.encode() for text in texts]
    yield make("identifier BINARY", ("id n", f"cast({_GUEST} as binary) guest"), keys=blobs, kind="binary")
    some = [None if row % 10 == 9 else text for row, text in enumerate(texts)]
    nested = f"if(id % 10 = 9, null, named_struct('id', {_GUEST}, 'n', id)) guest"
    yield make("identifier in a struct", ("id n", nested), keys=some, identifier="guest.id")
    yield make("identifier in a list", ("id n", f"array({_GUEST}, 'x') guest"), keys=texts)
    listed = f"array(named_struct('n', id, 'id', {_GUEST})) guest"
    yield make("identifier in a list of structs", ("id n", listed), keys=texts, identifier="guest.id")
    yield make("identifier as a map's key", ("id n", f"map({_GUEST}, id) guest"), keys=texts, map_part="key")
    yield make("identifier as a map's value", ("id n", f"map(id, {_GUEST}) guest"), keys=texts)


class _Maker:
    def __init__(self, spark: Any, folder: Path, format_: str) -> None:
        self._spark, self._folder, self._format = spark, folder, format_

    def case(
        self, what: str, columns: tuple[str, ...], options: dict[str, str] | None = None, *, rows: int = ROWS,
        set_null: tuple[str, ...] = (), keys: list[Any] | None = None, kind: IdKind = "string", identifier: str =
        "guest", map_part: str = "value",
    ) -> Case:  # fmt: skip
        found = [_guest(row) for row in range(rows)] if keys is None else keys
        wanted = tuple(found[row] for row in GONE if found[row] is not None) if rows else WANTED
        return Case(
            "Spark", self._format, what, partial(self._write, columns, options or {}, rows), found, wanted, kind,
            identifier, map_part, set_null, SPREAD_NULLS,
            is_text_id=kind != "integer",
        )  # fmt: skip

    def _write(self, columns: tuple[str, ...], options: dict[str, str], rows: int, path: Path) -> None:
        folder = self._folder / "written"
        shutil.rmtree(folder, ignore_errors=True)
        given = {"parquet.block.row.count.limit": "40", **options} if self._format == "parquet" else options
        settings = {name: value for name, value in given.items() if name.startswith("spark.")}
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        frame = self._spark.range(0, rows, 1, 1).selectExpr(*columns)
        frame.write.options(**{k: v for k, v in given.items() if k not in settings}).format(self._format).save(
            str(folder)
        )
        for name in settings:
            self._spark.conf.unset(name)
        (part,) = folder.glob("part-*")
        shutil.copyfile(part, path)
