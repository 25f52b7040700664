"""Compare how two Parquet files are laid out: what a purge has to keep beside the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from tests.corpus.parquet_layout import (
    BLOOM_AT,
    CODEC,
    DATA_AT,
    DICTIONARY_AT,
    DICTIONARY_PAGE,
    ENCODINGS,
    STATISTICS,
    TYPE,
    VALUES,
    Chunk,
    Layout,
    Struct,
    layout,
)

_OF_FILE: Final = {1: "version", 2: "schema", 5: "key-value metadata", 6: "created_by", 7: "column orders"}
_OF_GROUP: Final = {4: "sorting columns"}
_OFFSETS: Final = {DATA_AT, 10, DICTIONARY_AT, BLOOM_AT}
_LEVELS: Final = {3, 4}
"""RLE and BIT_PACKED, in which levels are."""
_OF_DICTIONARIES: Final = {0, 2, 8}
_BOUNDS: Final = {1, 2, 5, 6}
_INT96: Final = 3
_LZ4_OF_HADOOP, _LZ4_RAW = 5, 7
"""pyarrow writes none of the first, which is deprecated; both may stand in one file."""


def kept(
    old_body: bytes, new_body: bytes, changed: Collection[int], *, rows_stay: bool, has_spare_values: bool = False
) -> Iterator[str]:
    """Yield what a rewritten file has not kept. `changed`: the rows that went, or of which columns were set to null.
    `has_spare_values`: whether its dictionaries have values of rows that are elsewhere; these are written again.
    """
    old, new = layout(old_body), layout(new_body)
    yield from _fields(old.footer, new.footer, _OF_FILE, "")
    left: list[tuple[int, bool]] = []
    """The row groups of which a row is left, and whether one of their rows changed."""
    at = 0
    for number, group in enumerate(old.footer[4]):
        touched = sum(at <= row < at + group[3] for row in changed)
        at += group[3]
        if rows_stay or touched < group[3] or not touched:
            left.append((number, touched > 0))
    if len(left) != len(new.groups):
        yield f"{len(new.groups)} row groups instead of {len(left)}"
        return
    for place, (number, is_touched) in enumerate(left):
        yield from _fields(old.footer[4][number], new.footer[4][place], _OF_GROUP, f"row group {number}: ")
        for mine, other in zip(old.groups[number], new.groups[place], strict=True):
            where = f"row group {number}, {mine.path}: "
            is_cleaned = has_spare_values and mine.body != other.body
            is_copied = not is_touched and not (changed and is_cleaned)
            compare = _copied if is_copied else _rewritten
            yield from (where + told for told in compare(old, mine, new, other))


def _fields(old: Struct, new: Struct, names: dict[int, str], where: str) -> Iterator[str]:
    for number, name in names.items():
        if old.get(number) != new.get(number):
            yield f"{where}{name}: {_short(new.get(number))} instead of {_short(old.get(number))}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def _copied(old: Layout, mine: Chunk, new: Layout, other: Chunk) -> Iterator[str]:
    if mine.body != other.body:
        yield "not copied byte for byte"
    for number in sorted((mine.meta.keys() | other.meta.keys()) - _OFFSETS):
        before, after = mine.meta.get(number), other.meta.get(number)
        if (before or None) != (after or None):  # an empty list is none
            yield f"field {number} of its metadata: {_short(after)} instead of {_short(before)}"
    yield from _pointed_at(mine, other)
    if old.entry(mine, 6, 7) != new.entry(other, 6, 7):
        yield "another column index"
    if 15 in mine.meta and _bloom(old, mine) != _bloom(new, other):
        yield "another Bloom filter"


def _bloom(file: Layout, chunk: Chunk) -> bytes:
    at = chunk.meta.get(BLOOM_AT, 0)
    return file.data[at : at + chunk.meta.get(15, 0)]


def _pointed_at(mine: Chunk, other: Chunk) -> Iterator[str]:
    for place, name in ((4, "offset index"), (6, "column index")):
        if (place in mine.entry) != (place in other.entry):
            yield f"{name} {'lost' if place in mine.entry else 'added'}"
    if (BLOOM_AT in mine.meta) != (BLOOM_AT in other.meta):
        yield f"Bloom filter {'lost' if BLOOM_AT in mine.meta else 'added'}"


def _rewritten(_old: Layout, mine: Chunk, _new: Layout, other: Chunk) -> Iterator[str]:
    if mine.meta[CODEC] != other.meta[CODEC] and (mine.meta[CODEC], other.meta[CODEC]) != (_LZ4_OF_HADOOP, _LZ4_RAW):
        yield f"codec {other.meta[CODEC]} instead of {mine.meta[CODEC]}"
    for number, name in ((TYPE, "type"), (8, "key-value metadata")):
        if (mine.meta.get(number) or None) != (other.meta.get(number) or None):
            yield f"{name} {other.meta.get(number)} instead of {mine.meta.get(number)}"
    old_pages, new_pages = list(mine.pages()), list(other.pages())
    has_dictionary, keeps_it = (any(page.kind == DICTIONARY_PAGE for page in pages) for pages in (old_pages, new_pages))
    if has_dictionary != keeps_it:
        yield f"dictionary {'lost' if has_dictionary else 'added'}"
    encodings, written = (set(chunk.meta[ENCODINGS]) - _LEVELS for chunk in (mine, other))
    if has_dictionary:
        encodings, written = encodings - _OF_DICTIONARIES, written - _OF_DICTIONARIES
    if encodings != written:
        yield f"encodings {sorted(written)} instead of {sorted(encodings)}"
    kinds, made = ({page.kind for page in pages} - {DICTIONARY_PAGE} for pages in (old_pages, new_pages))
    if kinds != made:
        yield f"data pages of kind {sorted(made)} instead of {sorted(kinds)}"
    if all(page.checksum is not None for page in old_pages) and any(page.checksum is None for page in new_pages):
        yield "page checksums lost"
    if not all(page.is_sound for page in new_pages):
        yield "wrong page checksums"
    yield from _pointed_at(mine, other)
    yield from _statistics(mine.meta, other.meta)


def _statistics(old: Struct, new: Struct) -> Iterator[str]:
    if (STATISTICS in old) != (STATISTICS in new):
        yield f"statistics {'lost' if STATISTICS in old else 'added'}"
    elif STATISTICS in old:
        before, after = old[STATISTICS].keys() & _BOUNDS, new[STATISTICS].keys() & _BOUNDS
        is_null = new[STATISTICS].get(3) == new[VALUES]
        if before and not after and not is_null and old[TYPE] != _INT96:
            yield "bounds of the statistics lost"
        if after and not before:
            yield "bounds added to the statistics"
