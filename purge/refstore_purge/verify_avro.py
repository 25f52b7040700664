"""Read Avro for `verify`: fastavro takes a file apart and decodes each record, and the identifier is looked up.

The schema is read without logical types, of which fastavro would make times and decimals. Types that contain
themselves, and elements without bytes, end the process that reads, or meet the bound of its memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

from refstore_purge.file_allowance import FileAllowance
from refstore_purge.untyped_pandas import import_extra, pa
from refstore_purge.verify_ids import MetadataEntry, RowSearch, VerifyReadError, make_entries, place_of

PAIR: Final = [{"name": name, "type": "bytes"} for name in ("key", "value")]
HEADER: Final = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        # a map, which is stored in the same way, would hide what is there twice
        {"name": "pairs", "type": {"type": "array", "items": {"type": "record", "name": "pair", "fields": PAIR}}},
    ],
}
RECORDS: Final = ("record", "error")
TYPES: Final[dict[type, Any]] = {
    bool: pa.bool_(), str: pa.string(), int: pa.int64(), bytes: pa.binary(), float: pa.float64()
}  # fmt: skip


def search_avro(source: BinaryIO, search: RowSearch) -> list[MetadataEntry]:
    """Count the rows that have ids; return the metadata that a writer added. Raises VerifyReadError."""
    fastavro, allowance = import_extra("fastavro", "the format avro"), FileAllowance(source)
    header = fastavro.schemaless_reader(source, HEADER, None)
    pairs = {pair["key"]: pair["value"] for pair in header["pairs"]}
    if header["magic"] != b"Obj\x01" or len(pairs) < len(header["pairs"]):
        raise VerifyReadError("its header is no avro's, or has an entry twice")
    named: dict[str, Any] = {}
    schema = fastavro.parse_schema(_without_logical_types(json.loads(pairs.pop(b"avro.schema"))), named)
    walk, row = _RecordWalk(search, named), 0
    steps, nulls = search.dataset.identifier.split("."), search.dataset.set_null
    if not _is(schema, dict) or schema["type"] not in RECORDS:
        raise VerifyReadError("its schema is no record")
    source.seek(0)
    for block in fastavro.block_reader(source):
        data, size = block.bytes_, len(block.bytes_.getbuffer())
        allowance.add_rows(block.num_records)
        allowance.add_unpacked(size)
        for _ in range(block.num_records):
            row += 1
            record = fastavro.schemaless_reader(
                data, schema, None, return_named_type=True, handle_unicode_errors="surrogateescape"
            )
            if nulls and not sum(walk.is_set(record, null) for null in nulls):
                continue
            search.findings.rows += search.is_of_id
            for value in () if search.is_of_id else walk.values_at(record, schema, steps):
                search.add_text(value if _is(value, bytes) else str(value).encode(errors="surrogateescape"), row)
        if block.num_records < 0 or data.tell() != size:
            raise VerifyReadError("it is damaged")
    walk.refuse_missing(row)
    pairs.pop(b"avro.codec", None)
    return list(make_entries(pairs.items(), "the header's entry {}"))


def _without_logical_types(schema: Any) -> Any:
    """Return what of a schema says how values are stored. Raises VerifyReadError."""
    if _is(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not _is(schema, dict):
        return schema
    if _is(schema["type"], dict | list):
        return _without_logical_types(schema["type"])
    plain = {key: schema[key] for key in ("type", "name", "namespace", "symbols", "size") if key in schema}
    plain |= {key: _without_logical_types(schema[key]) for key in ("items", "values") if key in schema}
    if schema["type"] in RECORDS:
        fields = {field["name"]: _without_logical_types(field["type"]) for field in schema["fields"]}
        if len(fields) < len(schema["fields"]):
            raise VerifyReadError("its schema has a field twice")
        plain["fields"] = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return plain


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind; what its items are is not known."""
    return isinstance(value, kind)


class _RecordWalk:
    """Finds what stands in records."""

    def __init__(self, search: RowSearch, named: dict[str, Any]) -> None:
        self._search, self._named = search, named
        self._met: set[str] = set()
        """The columns that are there, be they null."""

    def refuse_missing(self, rows: int) -> None:
        """Raise VerifyReadError where rows were read, and a column was not there."""
        of_rows = [] if self._search.is_of_id else [self._search.dataset.identifier]
        for name in (*self._search.dataset.set_null, *of_rows):
            if rows and name not in self._met:
                place_of((), name, name)

    def is_set(self, value: Any, name: str) -> bool:
        """Return whether something stands at a path through records."""
        for step in name.split("."):
            value = value[1] if _is(value, tuple) else value  # of a union: the type's name, and the value
            if value is None:
                break
            if not _is(value, dict) or step not in value:
                return False
            value = value[step]
        self._met.add(name)
        return value is not None

    def values_at(self, value: Any, type_: Any, steps: Sequence[str]) -> Iterator[Any]:
        """Yield the values at the identifier that are not null. Raises VerifyReadError."""
        name, map_part = self._search.dataset.identifier, self._search.dataset.map_part
        if _is(value, tuple):
            value, type_ = value[1], value[0]
        elif _is(type_, list):
            kind = "map" if _is(value, dict) else "array" if _is(value, list) else ""
            type_ = next((each for each in type_ if _is(each, dict) and each["type"] == kind), kind)
        type_ = self._named.get(type_, type_) if _is(type_, str) else type_
        kind = type_["type"] if _is(type_, dict) else type_
        if kind in RECORDS and steps:
            types = {field["name"]: field["type"] for field in type_["fields"]}
            if steps[0] in types:
                yield from self.values_at(value[steps[0]], types[steps[0]], steps[1:])
            elif any(each.casefold() == steps[0].casefold() for each in types):
                raise VerifyReadError(f"one of its types has {name!r} in another case only")
        elif kind == "array" or (kind == "map" and map_part == "value"):
            for each in value if kind == "array" else value.values():
                yield from self.values_at(each, type_["items" if kind == "array" else "values"], steps)
            self._met.update([] if value else [name])
        elif kind == "map" or value is None or not steps:
            self._met.add(name)
            values: Any = value if kind == "map" else [] if value is None else [value]
            for each in values:
                self._choose_type(each, type_)
                yield each

    def _choose_type(self, value: Any, type_: Any) -> None:
        """Take the ids of a value's type. Raises VerifyReadError if none can be there, or others were there before."""
        is_fixed = _is(type_, dict) and type_["type"] == "fixed"
        plain = (
            pa.binary(type_["size"])
            if is_fixed
            else next((TYPES[kind] for kind in TYPES if _is(value, kind)), pa.struct([]))
        )
        if self._search.type is None:
            self._search.choose_type(plain)
        elif plain != self._search.type:
            raise VerifyReadError(f"column {self._search.dataset.identifier!r} has values of several types")
