"""Tell for `verify` what stands beside the rows of a file, and may be an id.

    Parquet               key-value metadata of the footer and of column chunks; also the metadata inside `ARROW:schema`
    ORC                   user metadata (the header of Avro: `verify_avro.py`)
    _metadata             also the lowest and highest identifiers that it says of row groups
    _common_metadata      key-value metadata

The page index lies in the files that `_metadata` describes, not in itself. Of Hudi's bounds each key is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

from refstore.purge_document.document import ERASE, Dataset
from refstore_purge.untyped_pandas import orc, pq
from refstore_purge.verify_columns import find_type_lookup
from refstore_purge.verify_footer import (
    BOUNDS,
    COLUMN,
    COLUMNS,
    ENCRYPTION,
    FILE_PATH,
    KEY_VALUES,
    KEY_VALUES_OF_COLUMN,
    PATH_IN_SCHEMA,
    ROW_GROUPS,
    SCHEMA,
    STATISTICS,
    FieldMap,
    Pairs,
    pairs_of_arrow_schema,
    read_footer,
    read_pairs,
)
from refstore_purge.verify_ids import BatchedLookup, MetadataEntry, RowCount
from refstore_purge.verify_text import VerifyReadError

SUMMARIES: Final = ("_metadata", "_common_metadata")
ARROW_SCHEMA: Final = b"ARROW:schema"
HUDI_BOUNDS: Final = (b"hoodie_min_record_key", b"hoodie_max_record_key")
INTEGERS: Final = (1, 2)
"""Physical types of Parquet: of 32 and of 64 bits."""
UNSIGNED: Final = (11, 12, 13, 14)
"""Converted types of Parquet."""


def is_summary(dataset: Dataset, path: str) -> bool:
    """Return whether a path is a file of Parquet that describes others."""
    return dataset.format == "parquet" and dataset.mode != ERASE and path.rpartition("/")[2] in SUMMARIES


def is_read(dataset: Dataset, path: str) -> bool:
    """Return whether a path is data, or describes data."""
    return not path.rpartition("/")[2].startswith(("_", ".")) or is_summary(dataset, path)


def entries_of_parquet(source: BinaryIO) -> Iterator[MetadataEntry]:
    """Yield the metadata of a file. Raises VerifyReadError."""
    return _entries_of_footer(read_footer(source))


def entries_of_orc(source: BinaryIO) -> Iterator[MetadataEntry]:
    """Yield the user metadata of a file. Raises VerifyReadError."""
    metadata = orc.ORCFile(source).metadata
    pairs: Pairs = list(metadata.items()) if metadata is not None else []
    if len({name for name, _ in pairs}) < len(pairs):
        raise VerifyReadError("its user metadata has a name twice")
    return make_entries(pairs, "the user metadata's entry {}")


def count_summary(source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount) -> None:
    """Look up what a summary file says of others, now or when the lookup is finished. Raises VerifyReadError."""
    footer = read_footer(source)
    entries = list(_entries_of_footer(footer))
    stays = dataset.set_null and not any(f"{dataset.identifier}.".startswith(f"{name}.") for name in dataset.set_null)
    if not stays:
        entries += _entries_of_statistics(footer, dataset)
    find_type_lookup(pq.read_schema(source), dataset, lookup).add_entries(count, entries)


def _entries_of_footer(footer: FieldMap) -> Iterator[MetadataEntry]:
    yield from make_entries(read_pairs(footer.get(KEY_VALUES)), "the footer's entry {}")
    for group in footer.get(ROW_GROUPS, ()):
        for chunk in group.get(COLUMNS, ()):
            if ENCRYPTION in chunk:
                raise VerifyReadError("it is encrypted")
            pairs = read_pairs(chunk.get(COLUMN, {}).get(KEY_VALUES_OF_COLUMN))
            yield from make_entries(pairs, "a column chunk's entry {}")


def make_entries(pairs: Pairs, place: str) -> Iterator[MetadataEntry]:
    for key, value in pairs:
        inner = pairs_of_arrow_schema(value) if key == ARROW_SCHEMA else [(key, value)]
        keys = [text for pair in inner if pair[0] in HUDI_BOUNDS for text in _texts(*pair)]
        yield MetadataEntry(place, key, [text for pair in inner for text in _texts(*pair)], keys)


def _texts(key: bytes, value: bytes) -> Sequence[bytes]:
    if key in HUDI_BOUNDS:
        return [key, value, *(field.partition(b":")[2] for field in value.split(b","))]
    return [key, value]


# ---- statistics


def _entries_of_statistics(footer: FieldMap, dataset: Dataset) -> Iterator[MetadataEntry]:
    leaves = [element for element in footer[SCHEMA] if not element.get(5)]  # the others have children
    for group in footer.get(ROW_GROUPS, ()):
        chunks = group.get(COLUMNS, ())
        if len(chunks) != len(leaves):
            raise VerifyReadError("a row group has other columns than its schema")
        if any(not chunk.get(FILE_PATH) for chunk in chunks):
            raise VerifyReadError("it has rows of its own, and is no summary of other files")
        for place in _identifier_columns([chunk.get(COLUMN, {}).get(PATH_IN_SCHEMA, []) for chunk in chunks], dataset):
            statistics: FieldMap = chunks[place].get(COLUMN, {}).get(STATISTICS, {})
            for bound, numbers in BOUNDS.items():
                texts = [_text_of(statistics[number], leaves[place]) for number in numbers if number in statistics]
                yield MetadataEntry(f"the {bound} {{}} of a row group", dataset.identifier.encode(), (), texts)


def _identifier_columns(paths: Sequence[Sequence[bytes]], dataset: Dataset) -> list[int]:
    """Return which columns have the identifier: its steps lie on their paths, among names of lists and maps."""
    steps = [step.encode() for step in dataset.identifier.split(".")]
    found = [number for number, path in enumerate(paths) if path[:1] == steps[:1] and _leads_through(path, steps)]
    of_part = [number for number in found if dataset.map_part.encode() in paths[number]]
    return of_part if len(found) > 1 and of_part else found


def _leads_through(path: Sequence[bytes], steps: Sequence[bytes]) -> bool:
    left = list(steps)
    for name in path:
        if left and name == left[0]:
            left.pop(0)
    return not left


def _text_of(bound: bytes, element: FieldMap) -> bytes:
    if element.get(1) not in INTEGERS:
        return bound
    integer: FieldMap = element.get(10, {}).get(10, {})  # of its logical type
    is_unsigned = element.get(6) in UNSIGNED or integer.get(2) is False
    return str(int.from_bytes(bound, "little", signed=not is_unsigned)).encode()
