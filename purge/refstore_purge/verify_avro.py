"""Count the rows of Avro for `verify`: fastavro decodes each record, and what stands at the identifier is looked up.

fastavro believes a schema and the numbers in a file: it ends the process at a type that contains itself, and takes
memory without end for elements without bytes. So such schemas are refused first, as a run refuses them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

from refstore.purge_document.document import Dataset
from refstore_purge.untyped_pandas import import_extra, pa
from refstore_purge.verify_avro_file import DAMAGED, AvroFile, open_avro
from refstore_purge.verify_avro_schema import ReadSchema, read_schema
from refstore_purge.verify_columns import find_lookup
from refstore_purge.verify_file_metadata import make_entries
from refstore_purge.verify_ids import NORMAL, BatchedLookup, MetadataEntry, RowCount
from refstore_purge.verify_text import VerifyReadError

VALUES: Final = 50_000
"""So many are handed over at a time."""
WANTED: Final[dict[str, type]] = {"string": str, "integer": int, "binary": bytes}


def schema_of_avro(source: BinaryIO) -> Any:
    return read_schema(open_avro(source).metadata[b"avro.schema"]).arrow


def entries_of_avro(source: BinaryIO) -> Iterator[MetadataEntry]:
    """Yield the metadata that a writer added to a file. Raises VerifyReadError."""
    return make_entries(open_avro(source).entries, "the header's entry {}")


def count_avro(
    source: BinaryIO, dataset: Dataset, lookup: BatchedLookup, count: RowCount, *, is_of_id: bool
) -> BatchedLookup:
    """Count the rows, and return the lookup for the identifier's type."""
    file = open_avro(source)
    schema = read_schema(file.metadata[b"avro.schema"])
    lookup = find_lookup(schema.arrow, dataset, lookup, is_of_id=is_of_id)
    if is_of_id and not dataset.set_null:
        count.rows += sum(records for records, _ in file.blocks())
        return lookup
    search = _IdentifierSearch(schema, dataset, WANTED[lookup.ids.kind])
    nulls = [name.split(".") for name in dataset.set_null]
    values: list[Any] = []
    rows: list[int] = []
    for number, record in enumerate(_records(file, schema)):
        if nulls and not any(_is_set(record, null) for null in nulls):
            continue
        if is_of_id:
            count.rows += 1
            continue
        for value in search.values(record):
            values.append(value)
            rows.append(number)
        if len(values) >= VALUES:
            lookup.add(count, _to_comparable(values, lookup.ids.kind), pa.array(rows, pa.int64()))
            values, rows = [], []
    if values:
        lookup.add(count, _to_comparable(values, lookup.ids.kind), pa.array(rows, pa.int64()))
    return lookup


def _records(file: AvroFile, schema: ReadSchema) -> Iterator[Any]:
    fastavro = import_extra("fastavro", "the format avro")
    try:
        parsed = fastavro.parse_schema(schema.plain)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType):
        raise VerifyReadError("its schema cannot be understood") from None
    for count, data in file.blocks():
        if count > len(data) and not schema.is_empty:
            raise VerifyReadError(DAMAGED)
        stream = io.BytesIO(data)
        for _ in range(count):
            try:
                yield fastavro.schemaless_reader(
                    stream, parsed, return_named_type=True, handle_unicode_errors="surrogateescape"
                )
            except (EOFError, IndexError, ValueError, KeyError, TypeError, OverflowError):
                raise VerifyReadError(DAMAGED) from None
        if stream.tell() != len(data):
            raise VerifyReadError(DAMAGED)


def _is_set(value: Any, steps: Sequence[str]) -> bool:
    """Return whether something stands at a path through records."""
    if _is_of_kind(value, tuple):  # of a union: the type's name, and the value
        value = value[1]
    if value is None or not steps:
        return value is not None
    return _is_set(value.get(steps[0]), steps[1:])


def _to_comparable(values: list[Any], kind: str) -> Any:
    if kind == "integer":
        return pa.array(values, pa.int64()).cast(NORMAL[kind])
    texts = [value.encode(errors="surrogateescape") if isinstance(value, str) else value for value in values]
    return pa.array(texts, NORMAL[kind])


def _is_of_kind(value: Any, kind: type) -> bool:
    """Return whether a value is of a kind, whose items are of any."""
    return isinstance(value, kind)


class _IdentifierSearch(NamedTuple):
    """Finds what stands at the identifier."""

    schema: ReadSchema
    dataset: Dataset
    wanted_type: type

    def values(self, record: Any) -> Iterator[Any]:
        """Yield the values in a record. Raises VerifyReadError."""
        return self._values_at(record, self.schema.plain, self.dataset.identifier.split("."))

    def _values_at(self, value: Any, type_: Any, steps: Sequence[str]) -> Iterator[Any]:
        if _is_of_kind(type_, list):
            value, type_ = self._branch(value, type_)
        if isinstance(type_, str):
            type_ = self.schema.types_by_name.get(type_, type_)
        match type_:
            case {"type": "record"}:
                yield from self._values_in_record(value, type_, steps)
            case {"type": "array"}:
                for each in value:
                    yield from self._values_at(each, type_["items"], steps)
            case {"type": "map"} if self.dataset.map_part == "key":
                if not steps:
                    yield from value
            case {"type": "map"}:
                for each in value.values():
                    yield from self._values_at(each, type_["values"], steps)
            case _ if value is None or steps:
                return
            case _ if type(value) is self.wanted_type:
                yield value
            case _:
                self._refuse()

    def _values_in_record(self, record: Any, type_: Any, steps: Sequence[str]) -> Iterator[Any]:
        if not steps:
            self._refuse()
        types = {field["name"]: field["type"] for field in type_["fields"]}
        if steps[0] in types:
            yield from self._values_at(record[steps[0]], types[steps[0]], steps[1:])
        elif any(name.casefold() == steps[0].casefold() for name in types):
            raise VerifyReadError(f"one of its types has {self.dataset.identifier!r} in another case only")

    def _branch(self, value: Any, branches: Any) -> tuple[Any, Any]:
        """Return a union's value, and its type if that leads on."""
        if _is_of_kind(value, tuple):
            return value[1], self.schema.types_by_name[value[0]]
        kind = "map" if _is_of_kind(value, dict) else "array" if _is_of_kind(value, list) else ""
        return value, next((each for each in branches if _is_of_kind(each, dict) and each["type"] == kind), "")

    def _refuse(self) -> None:
        raise VerifyReadError(f"column {self.dataset.identifier!r} has values of several types")
