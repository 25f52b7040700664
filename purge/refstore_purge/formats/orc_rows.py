"""Write ORC row by row, by the C++ library of ORC: what pyarrow's writer would not keep.

That is times (it reads those of 1677 to 2262 only, writes those before 1970 so that Spark fails at their fractions, and
drops their time zone), `varchar`, `char`, unions, files without a row index, and sizes of blocks that are no
multiple of 64 KiB. Values pass as ORC has them: times as seconds and nanoseconds, dates as days, decimals as digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, BinaryIO, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from refstore_purge.purge_error import OtherMeansError

pyorc: Any = import_module("pyorc")

BLOCK_BYTES: Final = 65_536
"""pyarrow writes blocks of a multiple of this."""
_KINDS: Final = frozenset(
    {
        pyorc.TypeKind.TIMESTAMP,
        pyorc.TypeKind.TIMESTAMP_INSTANT,
        pyorc.TypeKind.VARCHAR,
        pyorc.TypeKind.CHAR,
        pyorc.TypeKind.UNION,
    }
)


class _RawTimeConverter:
    """Takes a time as its seconds and nanoseconds, and a date as its days."""

    @staticmethod
    def from_orc(value: int, *more: Any) -> Any:
        return (value, more[0]) if more else value

    @staticmethod
    def to_orc(value: Any, *_: Any) -> Any:
        return value


class _DecimalConverter:
    """Takes a decimal as its digits."""

    @staticmethod
    def from_orc(text: str) -> str:
        return text

    @staticmethod
    def to_orc(_precision: int, scale: int, text: str) -> int:
        whole, _, fraction = text.partition(".")
        return int(whole + fraction.ljust(scale, "0"))


CONVERTERS: Final = {
    pyorc.TypeKind.DATE: _RawTimeConverter,
    pyorc.TypeKind.TIMESTAMP: _RawTimeConverter,
    pyorc.TypeKind.TIMESTAMP_INSTANT: _RawTimeConverter,
    pyorc.TypeKind.DECIMAL: _DecimalConverter,
}


def walk_types(type_: Any) -> Iterator[Any]:
    """Yield a type of pyorc and those within it."""
    yield type_
    match type_:
        case pyorc.Struct():
            children = list(type_.fields.values())
        case pyorc.Map():
            children = [type_.key, type_.value]
        case pyorc.Array():
            children = [type_.type]
        case pyorc.Union():
            children = list(type_.cont_types)
        case _:
            children = []
    for child in children:
        yield from walk_types(child)


def find_type(schema: Any, path: Sequence[str]) -> Any:
    """Return the type of a column that lies in structs only."""
    for name in path:
        schema = schema.fields[name]
    return schema


def block_bytes(reader: Any) -> int:
    """Return the size of a file's blocks. Where nothing is compressed, what it says of them means nothing."""
    is_plain = reader.compression == pyorc.CompressionKind.NONE
    return BLOCK_BYTES if is_plain else reader.compression_block_size or BLOCK_BYTES


def needs_row_writer(reader: Any) -> bool:
    """Return whether a file is to be written row by row."""
    return (
        bool(block_bytes(reader) % BLOCK_BYTES)
        or not reader.row_index_stride
        or any(each.kind in _KINDS for each in walk_types(reader.schema))
    )


class OrcRowWriter:
    """Writes the rows of a file that stay."""

    def __init__(
        self,
        source: BinaryIO,
        target: BinaryIO,
        reader: Any,
        options: Mapping[str, Any],
        nulls: Sequence[Sequence[str]],
    ) -> None:
        """`options`: as those of pyarrow's writer. `nulls`: the paths to the columns that are set to null. Raises
        PurgeError.
        """
        if options["file_version"] != "0.12":
            raise OtherMeansError(
                f"the file is of ORC's version {options['file_version']}, of which times, varchar, char, unions and "
                "odd sizes of blocks cannot be kept"
            )
        zone = _writer_zone(reader)
        block = block_bytes(reader)
        self._reader: Any = pyorc.Reader(source, converters=CONVERTERS, timezone=zone)
        self._nulls = [_places(reader.schema, path) for path in nulls]
        self._writer: Any = pyorc.Writer(
            target,
            reader.schema,
            batch_size=options["batch_size"],
            stripe_size=options["stripe_size"],
            row_index_stride=reader.row_index_stride,
            compression=reader.compression,
            compression_block_size=block,
            memory_block_size=block if block % BLOCK_BYTES else BLOCK_BYTES,
            bloom_filter_columns=options["bloom_filter_columns"],
            bloom_filter_fpp=options["bloom_filter_fpp"],
            timezone=zone,
            converters=CONVERTERS,
        )

    def write(self, stripe: int, matched: Sequence[bool]) -> None:
        """Write a stripe without the rows that match, or with nulls in them. Raises PurgeError."""
        try:
            for row, is_match in zip(self._reader.read_stripe(stripe), matched, strict=True):
                if not is_match:
                    self._writer.write(row)
                elif self._nulls:
                    nulled = row
                    for places in self._nulls:
                        nulled = _set_null(nulled, places)
                    self._writer.write(nulled)
        except UnicodeDecodeError as error:
            raise OtherMeansError(
                "the file has strings that are not UTF-8, beside types or options that only pyorc keeps"
            ) from error

    def close(self) -> None:
        self._writer.close()


def _writer_zone(reader: Any) -> ZoneInfo:
    """Return the time zone in which the file's timestamps were written; in another, an hour that a clock shows twice
    would become one of the two. Raises PurgeError.
    """
    names = {reader.read_stripe(number).writer_timezone for number in range(reader.num_of_stripes)} - {""}
    name = ", ".join(sorted(names)) or "UTC"
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        if not any(each.kind == pyorc.TypeKind.TIMESTAMP for each in walk_types(reader.schema)):
            return ZoneInfo("UTC")
        raise OtherMeansError(
            f"the file has timestamps of the time zone {name!r}, which is not known here, or of several"
        ) from None


def _places(schema: Any, path: Sequence[str]) -> list[int]:
    """Return the number of each field on the way to a column, which lies in structs only."""
    return [list(find_type(schema, path[:depth]).fields).index(name) for depth, name in enumerate(path)]


def _set_null(value: Any, places: Sequence[int]) -> Any:
    if value is None or not places:
        return None
    first = places[0]
    return (*value[:first], _set_null(value[first], places[1:]), *value[first + 1 :])
