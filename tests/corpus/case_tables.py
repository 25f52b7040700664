"""Tables in which the identifier is of another type, or lies within another column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from refstore_purge.formats.base import IdKind
from tests.corpus.case import GONE, ROWS, WANTED, Case, guest, guests

pa_: Any = pa


class Identified(NamedTuple):
    what: str
    column: Any
    """Of the name `guest`, or of what the identifier begins with."""
    keys: list[Any]
    wanted: tuple[Any, ...]
    kind: IdKind = "string"
    identifier: str = "guest"
    map_part: str = "value"
    is_text_id: bool = True

    def case(self, writer: str, format_: str, write: Callable[[Path], None]) -> Case:
        return Case(
            writer, format_, self.what, write, self.keys, self.wanted, self.kind, self.identifier, self.map_part,
            is_text_id=self.is_text_id,
        )  # fmt: skip


def _numbers(bits: int, *, signed: bool) -> list[int]:
    high = 2 ** (bits - signed) - 1
    return [(high - row * 3) if bits > 8 else row for row in range(ROWS)]


def _binary(row: int) -> bytes:
    return b"\x9c\x00\xff" + guest(row).encode()[-13:]


def identifiers() -> Iterator[Identified]:
    """Yield tables' columns for each type that an identifier may have, and each place that it may have."""
    for bits in (8, 16, 32, 64):
        for signed in (True, False):
            name = f"{'' if signed else 'u'}int{bits}"
            numbers = _numbers(bits, signed=signed)
            yield Identified(
                f"identifier {name}", pa.array(numbers, getattr(pa, name)()), numbers,
                tuple(numbers[row] for row in GONE), "integer", is_text_id=False,
            )  # fmt: skip
    texts = pa.array(guests())
    for name in ("large_string", "string_view"):
        yield Identified(f"identifier {name}", texts.cast(getattr(pa, name)()), guests(), WANTED)
    yield Identified("identifier dictionary", texts.dictionary_encode(), guests(), WANTED)
    ids = [_binary(row) for row in range(ROWS)]
    gone = tuple(ids[row] for row in GONE)
    for type_ in (pa.binary(), pa.large_binary(), pa.binary(16)):
        yield Identified(f"identifier {type_}", pa.array(ids, type_), ids, gone, "binary")
    yield Identified("identifier uuid", pa_.uuid().wrap_array(pa.array(ids, pa.binary(16))), ids, gone, "binary")
    some: list[Any] = [None if row % 10 == 9 else guest(row) for row in range(ROWS)]
    yield Identified("identifier with nulls", pa.array(some), some, WANTED)
    yield from _nested(texts)


def _nested(texts: Any) -> Iterator[Identified]:
    ages = pa.array(range(ROWS), pa.int16())
    no_user = pa.array([row % 10 == 9 for row in range(ROWS)])
    users = pa.StructArray.from_arrays([texts, ages], ["id", "age"], mask=no_user)
    some: list[Any] = [None if row % 10 == 9 else guest(row) for row in range(ROWS)]
    yield Identified("identifier in a struct", users, some, WANTED, identifier="guest.id")
    deeper = pa.StructArray.from_arrays([users], ["user"])
    yield Identified("identifier in two structs", deeper, some, WANTED, identifier="guest.user.id")
    members = [[guest(row + step * 1000) for step in range(row % 4)] for row in range(ROWS)]
    in_lists = tuple(members[row][-1] for row in GONE if members[row])
    flat = pa.array([each for row in members for each in row])
    widths = [len(row) for row in members]
    offsets = pa.array(np.concatenate(([0], np.cumsum(widths))).astype(np.int32))
    keys: list[Any] = list(members)
    yield Identified("identifier in a list", pa.ListArray.from_arrays(offsets, flat), keys, in_lists)
    people = pa.StructArray.from_arrays([flat, pa.array(range(len(flat)))], ["id", "n"])
    listed = pa.ListArray.from_arrays(offsets, people)
    yield Identified("identifier in a list of structs", listed, keys, in_lists, identifier="guest.id")
    numbers = pa.array(range(len(flat)), pa.int32())
    by_id = pa.MapArray.from_arrays(offsets, flat, numbers)
    yield Identified("identifier as a map's key", by_id, keys, in_lists, map_part="key")
    to_id = pa.MapArray.from_arrays(offsets, pa.array([f"k{number}" for number in range(len(flat))]), flat)
    yield Identified("identifier as a map's value", to_id, keys, in_lists)
    two = pa.array([[guest(row), guest(row + 5000)] for row in range(ROWS)], pa.list_(pa.string(), 2))
    pairs: list[Any] = [[guest(row), guest(row + 5000)] for row in range(ROWS)]
    yield Identified("identifier in a fixed-size list", two, pairs, WANTED)
