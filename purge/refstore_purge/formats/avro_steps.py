"""Step over the values in a block of Avro, which stand one behind the other without any mark.

A number that somebody made up leads neither to endless work nor out of the block: each step goes forward, looks at a
byte or is of a known width, and who takes the steps compares their end with the block's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from refstore_purge.formats.avro_container import DAMAGED, VARINT_BYTES_MAX, read_varint
from refstore_purge.formats.base import OtherMeansError

SkipStep = Callable[[bytes, int], int]
"""Goes from where a value begins to where it ends. Behind the block's end it raises IndexError, or goes there."""


def skip_fixed(width: int) -> SkipStep:
    return lambda data, at: at + width  # noqa: ARG005  # it is a step


def skip_number(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    last = at + VARINT_BYTES_MAX
    while data[at] >= 0x80:
        at += 1
        if at == last:
            raise OtherMeansError(DAMAGED)
    return at + 1


def skip_bytes(data: bytes, at: int) -> int:
    size = data[at]
    if size < 0x80 and not size & 1:
        return at + 1 + (size >> 1)
    size, at = read_varint(data, at)
    if size < 0:
        raise OtherMeansError(DAMAGED)
    return at + size


def skip_union(branches: Sequence[SkipStep]) -> SkipStep:
    def union(data: bytes, at: int) -> int:
        number = data[at]
        if number < 0x80 and not number & 1:
            return branches[number >> 1](data, at + 1)
        number, at = read_varint(data, at)
        if number < 0:
            raise OtherMeansError(DAMAGED)
        return branches[number](data, at)

    return union


def skip_record(fields: Sequence[tuple[int | None, SkipStep]]) -> SkipStep:
    """Return the step over fields. Those with a width are only stepped over, and are one step together."""
    steps: list[SkipStep] = []
    for is_over, group in groupby(fields, lambda field: field[0] is not None):
        together = list(group)
        steps += [skip_fixed(sum(width or 0 for width, _ in together))] if is_over else [step for _, step in together]

    def record(data: bytes, at: int) -> int:
        for step in steps:
            at = step(data, at)
        return at

    return record


def skip_array(item: SkipStep, width: int | None = None) -> SkipStep:
    """Return the step over an array or map: blocks of elements, each with a count, and a size if that is negative.
    `width`: that of each element, if nobody looks at them.
    """

    def elements(data: bytes, at: int) -> int:
        while True:
            count, at = read_varint(data, at)
            if not count:
                return at
            end: int | None = None
            if count < 0:
                size, at = read_varint(data, at)
                count, end = -count, at + size
            if count > len(data):  # no element takes less than a byte: see `avro_schema.py`
                raise OtherMeansError(DAMAGED)
            if width is not None:
                at += width * count
            else:
                for _ in range(count):
                    at = item(data, at)
            if end not in (None, at):  # readers that skip by the size would see other elements
                raise OtherMeansError(DAMAGED)

    return elements


def skip_map(value: SkipStep, key: SkipStep) -> SkipStep:
    return skip_array(lambda data, at: value(data, key(data, at)))
