"""Go through the records of an Avro block without decoding them: where each ends, what stands at the identifier, and
which unions are to become null. Everything else is stepped over.

Nothing is decoded and encoded again, so what stays does so byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from refstore_purge.formats.avro_container import DAMAGED, encode_varint, read_varint
from refstore_purge.formats.avro_schema import AvroType, arrow_type
from refstore_purge.formats.avro_steps import (
    SkipStep,
    skip_array,
    skip_bytes,
    skip_fixed,
    skip_map,
    skip_number,
    skip_record,
    skip_union,
)
from refstore_purge.formats.base import FormatTask, IdKind, OtherMeansError, PurgeError, is_alike, kind_of, name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

VALUES: Final = 200_000
"""So many values are enough at a time, though more records were asked for: each may have thousands."""
Paths = tuple[tuple[str, ...], ...]


class NullableUnion(NamedTuple):
    """A union that can become null."""

    start: int
    end: int
    null: bytes
    """What null is written as there."""


@dataclass(frozen=True, slots=True)
class BlockRecords:
    """Some records of a block."""

    start: int
    """Where they begin in the block's data."""
    ends: Sequence[int]
    """Where each ends."""
    values: Sequence[Any]
    """What stands at the identifier: bytes, or integers."""
    rows: NDArray[np.int64]
    """The record of each value."""
    nulls: Sequence[NullableUnion]
    null_rows: NDArray[np.int64]
    """The record of each of these."""

    def remaining_data(self, data: bytes, matched: NDArray[np.bool_], *, is_set_null: bool) -> list[bytes | memoryview]:
        """Return pieces of the data: without the records that match, or with nulls in them."""
        return self._null_matching(data, matched) if is_set_null else self._drop_matching(data, matched)

    def _drop_matching(self, data: bytes, matched: NDArray[np.bool_]) -> list[bytes | memoryview]:
        view, pieces, at = memoryview(data), list[bytes | memoryview](), self.start
        for row in np.flatnonzero(matched).tolist():
            pieces.append(view[at : self.ends[row - 1] if row else self.start])
            at = self.ends[row]
        pieces.append(view[at : self.ends[-1] if self.ends else self.start])
        return pieces

    def _null_matching(self, data: bytes, matched: NDArray[np.bool_]) -> list[bytes | memoryview]:
        view, pieces, at = memoryview(data), list[bytes | memoryview](), self.start
        chosen = [place for place, row in zip(self.nulls, self.null_rows, strict=True) if matched[row]]
        for place in sorted(chosen):
            if place.start >= at:  # it does not lie in one that is null by now
                pieces += (view[at : place.start], place.null)
                at = place.end
        pieces.append(view[at : self.ends[-1] if self.ends else self.start])
        return pieces


class RecordReader:
    """Reads the records of a schema for a task."""

    def __init__(self, root: AvroType, task: FormatTask, kind: IdKind) -> None:
        """Raises PurgeError for columns that the task cannot be done with."""
        self._task = task
        self._kind: IdKind = kind
        self._values: list[Any] = []
        self._nulls: list[NullableUnion] = []
        self._steps: dict[int, SkipStep] = {}
        """Over types without the identifier, by the type's number in Python."""
        self._step = self._step_of(root, None if task.matches_every_row else task.identifier, task.set_null)

    def read(self, data: bytes, start: int, count: int) -> BlockRecords:
        """Go through so many records from a place on, or fewer if they have many values. Raises PurgeError if they do
        not end where the data ends at the latest.
        """
        step, at, end = self._step, start, len(data)
        values, nulls = self._values, self._nulls
        values.clear()
        nulls.clear()
        ends: list[int] = []
        values_until: list[int] = []
        nulls_until: list[int] = []
        try:
            for _ in range(count):
                at = step(data, at)
                ends.append(at)
                values_until.append(len(values))
                nulls_until.append(len(nulls))
                if len(values) >= VALUES:
                    break
        except IndexError:
            raise OtherMeansError(DAMAGED) from None
        except RecursionError:
            raise OtherMeansError("its records are nested too deep") from None
        if at > end:
            raise OtherMeansError(DAMAGED)
        return BlockRecords(start, ends, list(values), _rows(values_until), list(nulls), _rows(nulls_until))

    def _step_of(self, type_: AvroType, path: Sequence[str] | None, nulls: Paths) -> SkipStep:
        """Return the step over a type in which lies the rest of the identifier's path (None: it lies elsewhere), and of
        the paths of columns to be null.
        """
        if path is not None or nulls:
            return self._make_step(type_, path, nulls)
        if id(type_) not in self._steps:
            self._steps[id(type_)] = self._make_step(type_, None, ())
        return self._steps[id(type_)]

    def _make_step(self, type_: AvroType, path: Sequence[str] | None, nulls: Paths) -> SkipStep:
        if type_.width is not None and path is None and not nulls:
            return skip_fixed(type_.width)
        match type_.kind:
            case "union":
                return self._union_step(type_, path, nulls)
            case "record":
                return self._record_step(type_, path, nulls)
            case "array":
                (items,) = type_.children
                return skip_array(self._step_of(items, path, ()), items.width if path is None else None)
            case "map" if self._task.map_part == "key":
                key = self._take_text if path == () else skip_bytes
                return skip_map(self._step_of(type_.children[0], None, ()), key)
            case "map":
                return skip_map(self._step_of(type_.children[0], path, ()), skip_bytes)
            case _ if path == ():
                return self._value_step(type_)
            case "string" | "bytes":
                return skip_bytes
            case _:
                return skip_number if type_.width is None else skip_fixed(type_.width)

    def _record_step(self, type_: AvroType, path: Sequence[str] | None, nulls: Paths) -> SkipStep:
        name = path[0] if path else None
        if path == ():
            return self._refusing_step(type_)
        if name is not None and name not in type_.names and any(is_alike(name, each) for each in type_.names):
            raise PurgeError(
                f"column {name_of(self._task.identifier)!r} has one of its types in another case only; correct the "
                "data set's identifier, or rename the column"
            )
        fields: list[tuple[int | None, SkipStep]] = []
        for field, child in zip(type_.names, type_.children, strict=True):
            rest = path[1:] if path is not None and field == name else None
            nulls_there = tuple(null[1:] for null in nulls if null[:1] == (field,))
            is_over = rest is None and not nulls_there
            fields.append((child.width if is_over else None, self._step_of(child, rest, nulls_there)))
        return skip_record(fields)

    def _union_step(self, type_: AvroType, path: Sequence[str] | None, nulls: Paths) -> SkipStep:
        deeper = tuple(null for null in nulls if null)
        step = skip_union([self._step_of(each, path, deeper) for each in type_.children])
        if len(deeper) == len(nulls):
            return step
        null = next((number for number, each in enumerate(type_.children) if each.kind == "null"), None)
        if null is None:
            raise PurgeError("a column to be null is required in some of its types; delete the rows instead")
        written, found = encode_varint(null), self._nulls

        def union_to_be_null(data: bytes, at: int) -> int:
            number, _ = read_varint(data, at)
            end = step(data, at)
            if number != null:
                found.append(NullableUnion(at, end, written))
            return end

        return union_to_be_null

    def _value_step(self, type_: AvroType) -> SkipStep:
        if type_.kind == "null":
            return self._step_of(type_, None, ())
        if kind_of(arrow_type(type_)) != self._kind:
            return self._refusing_step(type_)
        match type_.kind:
            case "int" | "long":
                return self._take_integer
            case "string" | "bytes":
                return self._take_text
            case "enum":
                return self._symbol_step(type_.names)
            case _:
                return self._fixed_step(type_.width or 0)

    def _refusing_step(self, type_: AvroType) -> SkipStep:
        """Return the step over a value in a union at the identifier that no id can be compared with."""

        def refuse(data: bytes, at: int) -> int:  # noqa: ARG001  # it is a step
            raise OtherMeansError(
                f"column {name_of(self._task.identifier)!r} has values that are {type_.kind}, and the ids are "
                f"{self._kind}s"
            )

        return refuse

    def _take_integer(self, data: bytes, at: int) -> int:
        value, end = read_varint(data, at)
        self._values.append(value)
        return end

    def _take_text(self, data: bytes, at: int) -> int:
        size, start = read_varint(data, at)
        if size < 0:
            raise OtherMeansError(DAMAGED)
        self._values.append(data[start : start + size])
        return start + size

    def _symbol_step(self, symbols: Sequence[str]) -> SkipStep:
        values = self._values
        texts = [symbol.encode(errors="surrogatepass") for symbol in symbols]

        def symbol(data: bytes, at: int) -> int:
            number, end = read_varint(data, at)
            if number < 0:
                raise OtherMeansError(DAMAGED)
            values.append(texts[number])
            return end

        return symbol

    def _fixed_step(self, width: int) -> SkipStep:
        values = self._values

        def read_fixed(data: bytes, at: int) -> int:
            values.append(data[at : at + width])
            return at + width

        return read_fixed


def _rows(until: Sequence[int]) -> NDArray[np.int64]:
    """Return the record of each of the things that were found until the end of each record."""
    return np.repeat(np.arange(len(until)), np.diff(np.array(until, dtype=np.int64), prepend=0))
