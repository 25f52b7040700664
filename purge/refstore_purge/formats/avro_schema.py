"""The schema of an Avro file: its types with all names resolved, as fastavro reads values that nothing may change in,
and as Arrow for the identifier's checks.

How a value is stored depends on its type alone, not on names, texts or logical types. So fastavro gets bytes for texts
and floating-point numbers, integers for enums, and lists of pairs for maps: nothing is converted, so nothing is lost.

Types that contain themselves are refused: no table has such columns, and fastavro would end the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast

from refstore_purge.formats.avro_container import fastavro
from refstore_purge.formats.base import IdKind, kind_of
from refstore_purge.purge_error import OtherMeansError, PurgeError
from refstore_purge.untyped_pandas import pa

DEPTH_MAX: Final = 100
TYPES_MAX: Final = 100_000
"""So many types a schema may have where each name is replaced by its type: a few names can stand for billions."""
FIXED_BYTES_MAX: Final = 1 << 30
KEY, VALUE = "k", "v"
"""The fields of the pairs that fastavro reads of a map. Each branch of a union of several types is a record with the
second one.
"""
_PRIMITIVES: Final[Mapping[str, tuple[str | int, Any]]] = {
    "null": ("null", pa.null()),
    "boolean": (1, pa.bool_()),
    "int": ("long", pa.int32()),
    "long": ("long", pa.int64()),
    "float": (4, pa.float64()),
    "double": (8, pa.float64()),
    "bytes": ("bytes", pa.binary()),
    "string": ("bytes", pa.string()),
}
"""As what fastavro reads them (a number: so many bytes), and what they are in Arrow."""
_LOGICAL: Final[Mapping[tuple[str, str], Any]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("bytes", "decimal"): pa.decimal128(38, 0),
    ("fixed", "decimal"): pa.decimal128(38, 0),
    ("fixed", "duration"): pa.month_day_nano_interval(),
    **{
        ("long", f"{local}timestamp-{unit}"): pa.timestamp("us")
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}
"""The logical types whose values are no ids."""


@dataclass(frozen=True)
class AvroType:
    """A type, and what lies in it."""

    kind: str
    """A primitive type, 'record', 'enum', 'fixed', 'array', 'map' or 'union'."""
    plain: Any
    """As what fastavro reads it. Fields of records are called c0, c1 and so on."""
    arrow: Any
    """In Arrow, as far as identifiers and nulls need it: several types at one place are the type of their kind, or null
    if they have no common one; units and digits of what is no id are not told.
    """
    children: Sequence[AvroType] = ()
    """The types of a record's fields or of a union; of an array or map that of its elements."""
    names: Sequence[str] = ()
    """Of a record's fields; the symbols of an enum; what fastavro calls the branches of a union of several types."""
    is_empty: bool = False
    """Whether its values take no bytes."""
    depth: int = 1
    types: int = 1
    """How many types it is."""

    @cached_property
    def id_kind(self) -> IdKind | None:
        return kind_of(self.arrow)

    @property
    def is_nullable(self) -> bool:
        return self.kind == "null" or (self.kind == "union" and any(each.kind == "null" for each in self.children))


def parse_schema(text: bytes) -> AvroType:
    """Return the record that a schema describes, with the schema that fastavro has parsed. Raises PurgeError."""
    reader = _SchemaReader()
    try:
        root = reader.read(json.loads(text), "")
    except (ValueError, RecursionError):
        raise OtherMeansError("its Avro schema is no JSON, or nested too deep") from None
    except (KeyError, TypeError, AttributeError):
        raise _refusal("a type of it lacks a part, or has another in its place") from None
    if root.kind != "record":
        raise OtherMeansError(f"its Avro schema is no record but {root.kind}, so it has no columns")
    return replace(root, plain=fastavro.parse_schema(reader.plain_types.pop(root.plain), reader.plain_types))


class _SchemaReader:
    """Reads types, and replaces names by the types that they stand for."""

    def __init__(self) -> None:
        self._types: dict[str, AvroType | None] = {}
        """By full name. None: the type is not complete yet."""
        self.plain_types: dict[str, Any] = {}
        """What fastavro knows by name."""

    def read(self, schema: Any, space: str) -> AvroType:
        """Return the type of a schema in JSON that stands in a namespace. Raises PurgeError."""
        match schema:
            case str() if schema in _PRIMITIVES:
                plain, arrow = _PRIMITIVES[schema]
                plain = self._name_fixed(plain) if isinstance(plain, int) else plain
                return AvroType(schema, plain, arrow, is_empty=schema == "null")
            case str():
                return self._resolve_name(schema, space)
            case list():
                return self._union([self.read(each, space) for each in cast(list[Any], schema)])
            case {"type": "record" | "error" | "enum" | "fixed"}:
                return self._definition(cast(dict[str, Any], schema), space)
            case {"type": "array"}:
                items = self.read(schema["items"], space)
                if items.is_empty:
                    raise _refusal("it has an array of elements that take no bytes")
                return _join("array", {"type": "array", "items": items.plain}, pa.list_(_field("item", items)), [items])
            case {"type": "map"}:
                values = self.read(schema["values"], space)
                plain = {"type": "array", "items": self._record_of({KEY: "bytes", VALUE: values.plain})}
                return _join("map", plain, pa.map_(pa.string(), values.arrow), [values])
            case {"type": inner}:
                return _with_logical_type(self.read(inner, space), schema)
            case _:
                raise _refusal("it has something that is no type")

    def _resolve_name(self, name: str, space: str) -> AvroType:
        full = _full_name(name, space)
        if full not in self._types:
            full = name
        if full not in self._types:
            raise _refusal(f"it has no type {name!r}")
        type_ = self._types[full]
        if type_ is None:
            raise OtherMeansError(f"type {name!r} of its Avro schema contains itself")
        return type_

    def _union(self, branches: Sequence[AvroType]) -> AvroType:
        if not branches or any(each.kind == "union" for each in branches):
            raise _refusal("it has a union of nothing, or of unions")
        others = [each for each in branches if each.kind != "null"]
        if len(branches) - len(others) > 1:
            raise _refusal("it has a union with null twice")
        plain, names = [each.plain for each in branches], list[str]()
        if len(others) > 1:  # which branch a value is of, fastavro tells and takes of named types only
            plain = names = [
                "null" if each.kind == "null" else self._record_of({VALUE: each.plain}) for each in branches
            ]
        return _join("union", plain, _merge_types([each.arrow for each in others]), branches, names)

    def _definition(self, schema: dict[str, Any], space: str) -> AvroType:
        given = schema.get("namespace")
        full = _full_name(schema["name"], given if isinstance(given, str) else space)
        if full in self._types:
            raise _refusal(f"it has type {full!r} twice")
        self._types[full] = None
        match schema["type"]:
            case "enum":
                type_ = AvroType("enum", "long", pa.string(), names=list(map(str, schema["symbols"])))
            case "fixed":
                size = schema["size"]
                if not 0 <= size <= FIXED_BYTES_MAX:
                    raise _refusal("it has a fixed type of a negative size, or of a gigabyte")
                type_ = AvroType("fixed", self._name_fixed(int(size)), pa.binary(int(size) or -1), is_empty=not size)
                type_ = _with_logical_type(type_, schema)
            case _:
                type_ = self._record(schema["fields"], full.rpartition(".")[0])
        self._types[full] = type_
        return type_

    def _record(self, fields: Sequence[Any], space: str) -> AvroType:
        types = {str(field["name"]): self.read(field["type"], space) for field in fields}
        if len(types) < len(fields):
            raise _refusal("it has a field twice")
        plain = self._record_of({f"c{place}": type_.plain for place, type_ in enumerate(types.values())})
        arrow = pa.struct([_field(name, type_) for name, type_ in types.items()])
        return _join("record", plain, arrow, list(types.values()), list(types))

    def _name_fixed(self, size: int) -> str:
        self.plain_types[f"f{size}"] = {"type": "fixed", "name": f"f{size}", "size": size}
        return f"f{size}"

    def _record_of(self, fields: Mapping[str, Any]) -> str:
        name = f"r{len(self.plain_types)}"
        plain_fields = [{"name": field, "type": plain} for field, plain in fields.items()]
        self.plain_types[name] = {"type": "record", "name": name, "fields": plain_fields}
        return name


def _join(kind: str, plain: Any, arrow: Any, children: Sequence[AvroType], names: Sequence[str] = ()) -> AvroType:
    """Return the type that has these types in it."""
    depth = 1 + max((each.depth for each in children), default=0)
    types = 1 + sum(each.types for each in children)
    if depth > DEPTH_MAX or types > TYPES_MAX:
        raise OtherMeansError(
            f"its Avro schema is nested more than {DEPTH_MAX} deep, or has more than {TYPES_MAX:,} types"
        )
    is_empty = kind == "record" and all(each.is_empty for each in children)
    return AvroType(kind, plain, arrow, children, names, is_empty, depth, types)


def _with_logical_type(type_: AvroType, schema: dict[str, Any]) -> AvroType:
    return replace(type_, arrow=_LOGICAL.get((type_.kind, str(schema.get("logicalType"))), type_.arrow))


def _field(name: str, type_: AvroType) -> Any:
    """Return a field of Arrow, whose null, which stands for several types, cannot be required."""
    return pa.field(name, type_.arrow, nullable=type_.is_nullable or pa.types.is_null(type_.arrow))


def _merge_types(types: Sequence[Any]) -> Any:
    """Return the type of a union that has these branches and maybe null."""
    if len(set(types)) < 2:
        return types[0] if types else pa.null()
    if all(pa.types.is_struct(type_) for type_ in types):
        fields: dict[str, Any] = {}
        for field in (field for type_ in types for field in type_):
            old = fields.setdefault(field.name, field)
            same = old.type if old.type == field.type else pa.null()
            is_optional = (old.nullable and field.nullable) or pa.types.is_null(same)
            fields[field.name] = pa.field(field.name, same, nullable=is_optional)
        return pa.struct(list(fields.values()))
    kinds = {kind_of(type_) for type_ in types}
    of_kind = {"string": pa.string(), "integer": pa.int64(), "binary": pa.binary()}
    return of_kind.get(kinds.pop() or "", pa.null()) if len(kinds) == 1 else pa.null()


def _full_name(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


def _refusal(why: str) -> PurgeError:
    return OtherMeansError(f"its Avro schema cannot be understood: {why}")
