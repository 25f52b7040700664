"""Read the schema of an Avro file for `verify`: as fastavro takes it, without what it would convert values by, and as a
schema of Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from refstore_purge.untyped_pandas import pa
from refstore_purge.verify_ids import kind_of
from refstore_purge.verify_text import VerifyReadError

DEPTH: Final = 100
TYPES: Final = 100_000
ARROW: Final[dict[str, Any]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
NO_IDS: Final[dict[str, Any]] = {
    "date": pa.date32(),
    "time-": pa.time64("us"),
    "timestamp-": pa.timestamp("us"),
    "local-timestamp-": pa.timestamp("us"),
    "decimal": pa.decimal128(38, 0),
    "duration": pa.month_day_nano_interval(),
}
"""What the logical types begin with whose values are no ids."""


class ReadSchema(NamedTuple):
    plain: Any
    """A record, without logical types, defaults and texts."""
    arrow: Any
    types_by_name: dict[str, Any]
    """The plain types by full name."""
    is_empty: bool
    """Whether its records take no bytes."""


class _ReadType(NamedTuple):
    plain: Any
    arrow: Any
    is_empty: bool
    depth: int = 1
    types: int = 1


def read_schema(text: bytes) -> ReadSchema:
    """Read the schema of a file. Raises VerifyReadError."""
    reader = _AvroSchemaReader()
    try:
        root = reader.read(json.loads(text), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise VerifyReadError("its schema cannot be understood") from None
    if not pa.types.is_struct(root.arrow) or isinstance(root.plain, list):
        raise VerifyReadError("its schema is no record")
    return ReadSchema(root.plain, pa.schema(list(root.arrow)), reader.named, root.is_empty)


class _AvroSchemaReader:
    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self._types: dict[str, _ReadType] = {}

    def read(self, schema: Any, space: str) -> _ReadType:
        if isinstance(schema, list):
            return self._union([self.read(each, space) for each in cast(list[Any], schema)])
        if isinstance(schema, str):
            return self._resolve_name(schema, space)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._read_definition(schema, space)
        if kind == "array":
            items = self.read(schema["items"], space)
            if items.is_empty:
                raise VerifyReadError("its schema has an array of elements that take no bytes")
            return _wrap_type([items], {"type": kind, "items": items.plain}, pa.list_(items.arrow), is_empty=False)
        if kind == "map":
            values = self.read(schema["values"], space)
            return _wrap_type(
                [values], {"type": kind, "values": values.plain}, pa.map_(pa.string(), values.arrow), is_empty=False
            )
        inner = self.read(kind, space)
        return inner._replace(arrow=_logical_arrow_type(schema, inner.arrow))

    def _resolve_name(self, name: str, space: str) -> _ReadType:
        if name in ARROW:
            return _ReadType(name, ARROW[name], name == "null")
        for full in (f"{space}.{name}", name):
            if full in self._types:
                return self._types[full]._replace(plain=full)
        raise VerifyReadError("its schema has a type that contains itself, or that it does not define")

    def _union(self, branches: Sequence[_ReadType]) -> _ReadType:
        if not branches or any(isinstance(each.plain, list) for each in branches):
            raise VerifyReadError("its schema has a union of nothing, or of unions")
        types = [each.arrow for each in branches if not pa.types.is_null(each.arrow)]
        return _wrap_type(branches, [each.plain for each in branches], _common_type(types), is_empty=False)

    def _read_definition(self, schema: Any, space: str) -> _ReadType:
        name, given = schema["name"], schema.get("namespace")
        space = name.rpartition(".")[0] if "." in name else space if given is None else given
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self.named:
            raise VerifyReadError("its schema has a type twice")
        self.named[full] = None  # a name within it finds no type
        match schema["type"]:
            case "enum":
                plain = {"type": "enum", "name": full, "symbols": schema["symbols"]}
                made = _ReadType(plain, pa.string(), is_empty=False)
            case "fixed":
                plain = {"type": "fixed", "name": full, "size": schema["size"]}
                arrow = _logical_arrow_type(schema, pa.binary(schema["size"] or -1))
                made = _ReadType(plain, arrow, is_empty=not schema["size"])
            case _:
                made = self._record(schema["fields"], full, space)
        self.named[full] = made.plain
        self._types[full] = made
        return made

    def _record(self, fields: Any, full: str, space: str) -> _ReadType:
        types = {field["name"]: self.read(field["type"], space) for field in fields}
        if len(types) < len(fields):
            raise VerifyReadError("its schema has a field twice")
        plain = [{"name": name, "type": type_.plain} for name, type_ in types.items()]
        arrow = pa.struct(
            [_make_field(name, type_.arrow, is_optional=_has_null(type_.plain)) for name, type_ in types.items()]
        )
        is_empty = all(type_.is_empty for type_ in types.values())
        return _wrap_type(
            list(types.values()), {"type": "record", "name": full, "fields": plain}, arrow, is_empty=is_empty
        )


def _wrap_type(inner: Sequence[_ReadType], plain: Any, arrow: Any, *, is_empty: bool) -> _ReadType:
    depth = 1 + max((each.depth for each in inner), default=0)
    types = 1 + sum(each.types for each in inner)
    if depth > DEPTH or types > TYPES:
        raise VerifyReadError("its schema is nested too deep, or too large")
    return _ReadType(plain, arrow, is_empty, depth, types)


def _has_null(plain: Any) -> bool:
    return plain == "null" or (isinstance(plain, list) and "null" in plain)


def _logical_arrow_type(schema: Any, arrow: Any) -> Any:
    """Return the type in Arrow, of no certain width or precision where it is no id."""
    name = schema.get("logicalType")
    if not isinstance(name, str) or kind_of(arrow) not in ("integer", "binary"):
        return arrow
    return next((type_ for begin, type_ in NO_IDS.items() if name.startswith(begin)), arrow)


def _common_type(types: Sequence[Any]) -> Any:
    """Return the type of values that are of one of several types; null: it is none that ids could be compared with."""
    if all(type_ == types[0] for type_ in types):
        return types[0] if types else pa.null()
    if all(pa.types.is_struct(type_) for type_ in types):
        names = dict.fromkeys(field.name for type_ in types for field in type_)
        return pa.struct([_common_field(name, types) for name in names])
    kinds = {kind_of(type_) or "" for type_ in types}
    by_kind = {"string": pa.string(), "integer": pa.int64(), "binary": pa.binary()}
    return by_kind.get(kinds.pop(), pa.null()) if len(kinds) == 1 else pa.null()


def _common_field(name: str, types: Sequence[Any]) -> Any:
    fields = [type_.field(name) for type_ in types if type_.get_field_index(name) >= 0]
    is_same = all(field.type == fields[0].type for field in fields)
    type_ = fields[0].type if is_same else pa.null()
    return _make_field(name, type_, is_optional=all(field.nullable for field in fields))


def _make_field(name: str, type_: Any, *, is_optional: bool) -> Any:
    """Return a field of Arrow, whose null, which stands for several types, cannot be required."""
    return pa.field(name, type_, nullable=is_optional or pa.types.is_null(type_))
