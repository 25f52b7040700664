"""Read Parquet for `verify`: pyarrow reads the values, and thrift the footer, with what stands there twice.

DuckDB is no reader for this: it takes all values for null where the footer's statistics say so (decision 0204).
"""

from __future__ import annotations

import base64
import os
from typing import Any, BinaryIO, Final

from refstore.purge_document.document import Dataset
from refstore_purge.file_allowance import FileAllowance
from refstore_purge.untyped_pandas import import_extra, pa, pq
from refstore_purge.verify_columns import choose_columns, identifier_type, search_batch
from refstore_purge.verify_ids import MetadataEntry, Pairs, RowSearch, VerifyReadError, make_entries

BATCH_ROWS: Final = 262_144
BUFFER_BYTES: Final = 1024 * 1024
TAIL_BYTES: Final = 8
FIXED: Final = 7
"""The physical type of values that have one width."""
UNSIGNED: Final = (11, 12, 13, 14)
"""Converted types."""
BOUNDS: Final = {"lowest": (2, 6), "highest": (1, 5)}
"""Which fields of statistics have them; that of old writers first."""
STRUCT: Final = 12
LISTS: Final = (14, 15)
SCALARS: Final = {2: "Bool", 3: "Byte", 4: "Double", 6: "I16", 8: "I32", 10: "I64", 11: "Binary"}
"""What thrift calls values, by their types."""

Fields = dict[int, Any]
"""A struct of parquet.thrift, by the numbers of its fields."""


def _read_footer(source: BinaryIO) -> Fields:
    """Return the footer. Raises VerifyReadError."""
    protocols = import_extra("thrift.protocol.TCompactProtocol", "the format parquet")
    transports = import_extra("thrift.transport.TTransport", "the format parquet")
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - TAIL_BYTES))
    tail = source.read(TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == b"PARE":
        raise VerifyReadError("it is encrypted")
    if tail[4:] != b"PAR1" or length > size - TAIL_BYTES - 4:
        raise VerifyReadError("its footer is not there: it is damaged, or no parquet")
    source.seek(size - TAIL_BYTES - length)
    footer = _read_value(protocols.TCompactProtocol(transports.TMemoryBuffer(source.read(length))), STRUCT)
    if any(8 in chunk for group in footer[4] for chunk in group[1]):
        raise VerifyReadError("it is encrypted")
    return footer


def _read_value(protocol: Any, type_: int) -> Any:
    if type_ in LISTS:
        item, count = protocol.readListBegin()
        values = [_read_value(protocol, item) for _ in range(count)]
        protocol.readListEnd()
        return values
    if type_ != STRUCT:
        return getattr(protocol, f"read{SCALARS[type_]}")()
    fields: Fields = {}
    protocol.readStructBegin()
    while (head := protocol.readFieldBegin())[1]:
        if head[2] in fields:
            raise VerifyReadError("its footer has a field twice")
        fields[head[2]] = _read_value(protocol, head[1])
        protocol.readFieldEnd()
    protocol.readStructEnd()
    return fields


# ---- rows


def search_parquet(source: BinaryIO, search: RowSearch) -> list[MetadataEntry]:
    """Count the rows that have ids, in whole row groups, whatever statistics say of them; return the metadata. Raises
    VerifyReadError.
    """
    footer = _read_footer(source)
    rows = sum(group[3] for group in footer[4])
    FileAllowance(source).add_rows(rows)
    try:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES)
    except NotImplementedError:
        raise VerifyReadError("it has a type that pyarrow does not know, so that nobody can look into it") from None
    if not (names := file.schema_arrow.names):
        raise VerifyReadError("it has no columns")
    columns = choose_columns(names, search)
    if not search.is_of_id:
        search.choose_type(identifier_type(file.schema_arrow, search.dataset))
    for group in range(file.num_row_groups) if columns else ():
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
            search_batch(batch, search)
    search.findings.rows += 0 if columns else rows
    return _list_entries(footer)


# ---- beside the rows


def _list_entries(footer: Fields) -> list[MetadataEntry]:
    """Return the metadata of a file, of its column chunks, and of the schema that Arrow's writers put there. Raises
    VerifyReadError.
    """
    places = [("the footer's entry {}", footer.get(5, ()))]
    places += [("a column chunk's entry {}", chunk.get(3, {}).get(8, ())) for group in footer[4] for chunk in group[1]]
    entries: list[MetadataEntry] = []
    for place, structs in places:
        for key, value in ((each.get(1, b""), each.get(2, b"")) for each in structs):
            if key == b"ARROW:schema":
                texts = [text for inner in make_entries(_pairs_of_arrow_schema(value), place) for text in inner.texts]
                entries.append(MetadataEntry(place, key, texts))
            else:
                entries += make_entries([(key, value)], place)
    return entries


def _pairs_of_arrow_schema(text: bytes) -> Pairs:
    """Return the metadata of a schema of Arrow, and of its fields however deep. Raises VerifyReadError."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, OSError, pa.ArrowException):
        raise VerifyReadError("its ARROW:schema cannot be followed") from None
    pairs: list[tuple[bytes, bytes]] = []
    for each in (waiting := [schema, *schema]):  # the list grows while the loop runs
        if each.metadata and not each.equals(each.with_metadata(each.metadata), check_metadata=True):
            raise VerifyReadError("its ARROW:schema has an entry twice")
        pairs += (each.metadata or {}).items()
        waiting += [] if each is schema else [each.type.field(number) for number in range(each.type.num_fields)]
    return pairs


def list_summary_entries(source: BinaryIO, search: RowSearch) -> list[MetadataEntry]:
    """Return the metadata of a summary file, and what it says of the lowest and highest identifiers of other files.
    Raises VerifyReadError.
    """
    footer, dataset = _read_footer(source), search.dataset
    search.type = fixed_type(footer, dataset)
    entries = _list_entries(footer)
    stays = dataset.set_null and not any(f"{dataset.identifier}.".startswith(f"{name}.") for name in dataset.set_null)
    for group in footer[4]:
        if any(not chunk.get(1) for chunk in group[1]):
            raise VerifyReadError("it has rows of its own, and is no summary of other files")
        for leaf, column in () if stays else _columns_of_identifier(footer, group, dataset):
            statistics = column.get(12, {})
            for bound, numbers in BOUNDS.items():
                texts = [_text_of(statistics[number], leaf) for number in numbers if number in statistics]
                entries.append(MetadataEntry(f"the {bound} {{}} of a row group", dataset.identifier.encode(), texts))
    return entries


def fixed_type(footer: Fields, dataset: Dataset) -> Any:
    """Return the type of an identifier whose values are bytes of one width; None: they are not."""
    columns = [each for group in footer[4][:1] for each in _columns_of_identifier(footer, group, dataset)]
    return next((pa.binary(leaf[2]) for leaf, _ in columns if leaf.get(1) == FIXED), None)


def _columns_of_identifier(footer: Fields, group: Fields, dataset: Dataset) -> list[tuple[Fields, Fields]]:
    """Return the elements of the schema, and the columns of a row group, that have the identifier: its steps lie on
    their paths, among names of lists and maps. Raises VerifyReadError.
    """
    leaves = [element for element in footer[2] if not element.get(5)]  # the others have children
    columns = [chunk.get(3, {}) for chunk in group[1]]
    if len(leaves) != len(columns):
        raise VerifyReadError("a row group has other columns than its schema")
    steps = [step.encode() for step in dataset.identifier.split(".")]
    found: list[tuple[Fields, Fields]] = []
    for leaf, column in zip(leaves, columns, strict=True):
        path = column.get(3, [])
        rest = iter(path)
        if path[:1] == steps[:1] and all(step in rest for step in steps):
            found.append((leaf, column))
    of_part = [each for each in found if dataset.map_part.encode() in each[1][3]]
    return of_part if len(found) > 1 and of_part else found


def _text_of(bound: bytes, leaf: Fields) -> bytes:
    if leaf.get(1) not in (1, 2):
        return bound
    is_unsigned = leaf.get(6) in UNSIGNED or leaf.get(10, {}).get(10, {}).get(2) is False
    return str(int.from_bytes(bound, "little", signed=not is_unsigned)).encode()
