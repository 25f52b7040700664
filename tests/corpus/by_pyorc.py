"""ORC files that pyorc writes: the C++ library of ORC, with every type."""

from __future__ import annotations

import decimal
import zoneinfo
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from refstore_purge.formats.base import IdKind
from tests.corpus.case import GONE, ROWS, SPREAD_NULLS, Case, case_of_guests, guests, spread

pyorc: Any = import_module("pyorc")

DIGITS: Final = 50
"""Of decimals, more than Python has by itself."""
_SECONDS: Final = [(0, 0), (1_580_702_706, 7_000), (-1, 0), (-2_208_988_800, 0), (1, 999_999_999), (9 * 10**9, 0)]
_TWICE: Final = [(1_603_587_600 + hours * 1800, 5) for hours in range(8)] + [
    (1_604_206_800 + hours * 1800, 5) for hours in range(8)
]
"""Half hours around the ends of summer time of 2020, in Europe and in America."""
_INTEGERS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


class Raw:
    """Gives pyorc times and dates as ORC has them, which Python's own types cannot always hold."""

    @staticmethod
    def to_orc(value: Any, *_: Any) -> Any:
        return value

    @staticmethod
    def from_orc(*value: Any) -> Any:
        return value


CONVERTERS: Final = dict.fromkeys(
    (pyorc.TypeKind.DATE, pyorc.TypeKind.TIMESTAMP, pyorc.TypeKind.TIMESTAMP_INSTANT), Raw
)


def _types() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"boolean": [True, False]}
    for name, bits in _INTEGERS.items():
        found[name] = [0, 1, 2**bits - 1, -(2**bits)]
    found["float"] = [0.0, -0.0, 1.5, float("nan"), float("inf")]
    found["double"] = [0.0, -0.0, 1.5, float("nan"), float("-inf"), 5e-324]
    found["string"] = ["", "a", "größe", "日本", "x" * 40]
    found["binary"] = [b"", b"\0", b"\xff" * 20]
    found["date"] = [0, -1, 18_000, -719_162, 2_932_896, -200_000, 110_000]  # of the years 1 to 9999
    for precision, scale in ((1, 0), (5, 2), (18, 3), (19, 0), (38, 10)):
        largest = decimal.Decimal(10**precision - 1).scaleb(-scale, decimal.Context(prec=DIGITS))
        found[f"decimal({precision},{scale})"] = [largest, largest.copy_negate(), decimal.Decimal(0)]
    for name in ("timestamp", "timestamp with local time zone"):
        found[name] = _SECONDS[:5]
        found[f"{name}: before 1970, with a fraction"] = [(-1, 500_000_000), (-2_208_988_801, 1), (5, 5)]
        found[f"{name}: beyond 1677 to 2262"] = [(-62_135_596_800, 0), (253_402_300_799, 0), (0, 7)]
    found["varchar(9)"] = ["", "a", "größe"]
    found["char(5)"] = ["a", "abcde"]
    found["uniontype<int,string>"] = [1, "x"]
    found["array<array<int>>"] = [[[1, None], None], [], [[]]]
    found["map<string,array<int>>"] = [[("a", [1])], [], [("b", None), ("c", [])]]
    found["struct<a:int,b:array<string>>"] = [(1, ["x", None]), (None, None)]
    return found


_CODECS: Final = {"none": "NONE", "zlib": "ZLIB", "snappy": "SNAPPY", "lz4": "LZ4", "zstd": "ZSTD"}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{f"codec {name}": {"compression": getattr(pyorc.CompressionKind, kind)} for name, kind in _CODECS.items()},
    "blocks of 65,536 bytes": {"compression_block_size": 65_536},
    "blocks of 262,144 bytes": {"compression_block_size": 262_144},
    "blocks of 4 MiB": {"compression_block_size": 4 * 1024 * 1024},
    "no row index": {"row_index_stride": 0},
    "row index of 1,000": {"row_index_stride": 1000},
    "Bloom filters": {"bloom_filter_columns": ["guest", "n"], "bloom_filter_fpp": 0.01},
    "no dictionaries": {"dict_key_size_threshold": 0.0},
    "dictionaries": {"dict_key_size_threshold": 1.0},
    "compression strategy": {"compression_strategy": pyorc.CompressionStrategy.COMPRESSION},
    "tiny stripes": {"stripe_size": 1, "batch_size": 20},
    "tiny stripes, not compressed": {"stripe_size": 1, "batch_size": 20, "compression": pyorc.CompressionKind.NONE},
    "padding": {"padding_tolerance": 0.5},
}
_MIXED: Final = (
    "struct<guest:string,n:bigint,amount:double,price:decimal(9,2),word:string,is_new:boolean,tags:array<string>>"
)


def cases() -> Iterator[Case]:
    for name, values in _types().items():
        type_ = name.partition(": ")[0]
        kinds = f"v:{type_},in_list:array<{type_}>,in_struct:struct<a:{type_},b:int>,in_map:map<string,{type_}>"
        yield _case(
            name, f"struct<guest:string,{kinds}>", partial(_rows, values), set_null=("v",), null_already=SPREAD_NULLS
        )
    for zone in ("Europe/Berlin", "America/New_York"):
        moments = "struct<guest:string,t:timestamp,i:timestamp with local time zone>"
        times = partial(_moments, _TWICE)
        yield _case(f"times of {zone}", moments, times, timezone=zoneinfo.ZoneInfo(zone))
    deep = "struct<guest:string,s:struct<u:struct<a:int,b:string>,t:timestamp>>"
    yield _case("a struct in a struct, beside times", deep, _deep, set_null=("s.u",))
    for name, options in _OPTIONS.items():
        yield _case(name, _MIXED, _mixed, **options)
    yield _case("user metadata", _MIXED, _mixed, metadata={"b": b"2", "a": b"\xff\0", "long": b"x" * 5000})
    yield _case("attributes of columns", _with_attributes(), lambda: [(text, 1) for text in guests()])
    yield _case("no rows", _MIXED, list, rows=0)
    yield _case("one row", _MIXED, lambda: _mixed()[:1], rows=1)
    yield _case("one column", "struct<guest:string>", lambda: [(text,) for text in guests()])
    yield from _identifiers()
    odd = pyorc.Struct(**{"guest": pyorc.String(), "a b": pyorc.Int(), "UPPER": pyorc.Int(), "größe": pyorc.Int()})
    yield _case("odd names", odd, lambda: [(text, 1, 2, 3) for text in guests()])
    dotted = pyorc.Struct(**{"guest": pyorc.String(), "a.b": pyorc.Int(), "`": pyorc.Int(), "": pyorc.Int()})
    yield _case("names with dots, quotes, and none", dotted, lambda: [(text, 1, 2, 3) for text in guests()])


def _identifiers() -> Iterator[Case]:
    numbers = list(range(ROWS))
    for name, bits in _INTEGERS.items():
        keys = [2**bits - 1 - row * (1 if bits < 15 else 3) for row in numbers]
        yield _identified(f"identifier {name}", name, keys, keys, "integer")
    ids = [b"\x00\xffguest-%03d" % row for row in numbers]
    yield _identified("identifier binary", "binary", ids, ids, "binary")
    texts = guests()
    some = [None if row % 10 == 9 else text for row, text in enumerate(texts)]
    yield _identified("identifier with nulls", "string", some, some)
    yield _identified("identifier varchar", "varchar(40)", texts, texts)
    yield _identified("identifier char", "char(40)", texts, texts)
    in_structs = [None if text is None else (text, 7) for text in some]
    yield _identified("identifier in a struct", "struct<id:string,age:int>", in_structs, some, identifier="guest.id")
    deeper = [(each,) for each in in_structs]
    deep = "struct<user:struct<id:string,age:int>>"
    yield _identified("identifier in two structs", deep, deeper, some, identifier="guest.user.id",
                      set_null=("guest.user",))  # fmt: skip
    lists = [[f"guest-{row:05}-{step}" for step in range(row % 4)] for row in numbers]
    yield _identified("identifier in a list", "array<string>", lists, lists)
    people = [[(text, 1) for text in row] for row in lists]
    yield _identified("identifier in a list of structs", "array<struct<id:string,n:int>>", people, lists,
                      identifier="guest.id")  # fmt: skip
    keyed = [[(text, 1) for text in row] for row in lists]
    yield _identified("identifier as a map's key", "map<string,int>", keyed, lists, map_part="key")
    valued = [[(f"k{at}", text) for at, text in enumerate(row)] for row in lists]
    yield _identified("identifier as a map's value", "map<string,string>", valued, lists)
    for type_, value in (("double", 1.5), ("boolean", True), ("date", 1), ("decimal(9,2)", decimal.Decimal(1))):
        yield _identified(f"identifier {type_}", type_, [value] * ROWS, texts)


def _identified(
    what: str, type_: str, column: Sequence[Any], keys: list[Any], kind: IdKind = "string", identifier: str = "guest",
    map_part: str = "value", set_null: tuple[str, ...] = (),
) -> Case:  # fmt: skip
    schema = f"struct<n:bigint,guest:{type_},word:string>"
    rows = [(row, value, f"w{row % 5}") for row, value in enumerate(column)]
    found = [keys[row] for row in GONE]
    wanted = tuple(each[-1] if isinstance(each, list) else each for each in found if each)
    write = partial(_write, schema, lambda: rows, batch_size=20, stripe_size=1)
    is_text = kind != "integer"
    return Case("pyorc", "orc", what, write, keys, wanted, kind, identifier, map_part, set_null, is_text_id=is_text)


def _case(what: str, schema: Any, make: Any, **more: Any) -> Case:
    return case_of_guests("pyorc", "orc", partial(_write, schema), what, make, **more)


def _with_attributes() -> Any:
    schema = pyorc.Struct(guest=pyorc.String(), n=pyorc.Int())
    schema["guest"].set_attributes({"iceberg.id": "1", "iceberg.required": "true"})
    schema["n"].set_attributes({"iceberg.id": "2"})
    return schema


def _rows(values: list[Any]) -> list[Any]:
    plain = spread(values)
    return [
        (text, v, None if row % 11 == 5 else [v] * (row % 3), None if row % 11 == 6 else (v, row), [("k", v)])
        for row, (text, v) in enumerate(zip(guests(), plain, strict=True))
    ]


def _moments(values: list[Any]) -> list[Any]:
    return list(zip(guests(), spread(values), spread(values), strict=True))


def _deep() -> list[Any]:
    return [(text, None if row == 5 else ((row, text[:3]), (row, 7))) for row, text in enumerate(guests())]


def _mixed() -> list[Any]:
    return [
        (text, row, None if row % 5 == 2 else row / 7, decimal.Decimal(row).scaleb(-2), f"word-{row % 6}", row % 3 == 0,
         None if row % 6 == 4 else [f"t{row % 4}"])
        for row, text in enumerate(guests())
    ]  # fmt: skip


def _write(schema: Any, make: Any, path: Path, *, metadata: dict[str, bytes] | None = None, **options: Any) -> None:
    with (
        path.open("wb") as out,
        decimal.localcontext(prec=DIGITS),
        pyorc.Writer(out, schema, converters=CONVERTERS, **options) as writer,
    ):
        writer.writerows(make())
        writer.set_user_metadata(**(metadata or {}))
