"""The schema of an Avro file: its types with all names resolved, and as a schema of Arrow for the identifier's checks.

Types that contain themselves are refused: no table has such columns. So no record is deeper than its schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from refstore_purge.formats.base import OtherMeansError, PurgeError, kind_of
from refstore_purge.untyped_pandas import pa

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
WIDTHS: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
DEPTH_MAX: Final = 100
TYPES_MAX: Final = 100_000
"""So many types a schema may have where each name is replaced by its type: a few names can stand for billions."""
FIXED_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type, and what lies in it."""

    kind: str
    """A primitive type, 'record', 'enum', 'fixed', 'array', 'map' or 'union'."""
    children: tuple[AvroType, ...] = ()
    """The types of a record's fields or of a union; of an array or map that of its elements."""
    names: tuple[str, ...] = ()
    """Of a record's fields, or the symbols of an enum."""
    logical: Mapping[str, Any] | None = None
    """What the schema says of its logical type."""
    width: int | None = None
    """How many bytes each value takes; None: they differ."""
    depth: int = 1
    types: int = 1
    """How many types it is."""


def parse_schema(text: bytes) -> AvroType:
    """Return the record that a schema describes. Raises PurgeError."""
    try:
        root = _SchemaNames().type_of(json.loads(text), "")
    except (ValueError, RecursionError):
        raise OtherMeansError("its Avro schema is no JSON, or nested too deep") from None
    except (KeyError, TypeError, AttributeError):
        raise _refusal("a type of it lacks a part, or has another in its place") from None
    if root.kind != "record":
        raise OtherMeansError(f"its Avro schema is no record but {root.kind}, so it has no columns")
    return root


def arrow_schema(root: AvroType) -> Any:
    """Return a record as a schema of Arrow, as far as identifiers and nulls need it: several types at one place become
    the type of their kind, or null if they have no common one; units and digits of what is no id are not told.
    """
    return pa.schema(_fields(root))


def arrow_type(type_: AvroType) -> Any:
    """Return a type as one of Arrow."""
    match type_.kind:
        case "null" | "string" | "enum":
            return pa.null() if type_.kind == "null" else pa.string()
        case "boolean":
            return pa.bool_()
        case "int" | "long":
            return _integer(type_)
        case "float" | "double":
            return pa.float64()
        case "bytes" | "fixed":
            return _binary(type_)
        case "array":
            return pa.list_(_field("item", type_.children[0]))
        case "map":
            return pa.map_(pa.string(), arrow_type(type_.children[0]))
        case "record":
            return pa.struct(_fields(type_))
        case _:
            return _merge_branches([each for each in type_.children if each.kind != "null"])


def is_nullable(type_: AvroType) -> bool:
    return type_.kind == "null" or any(each.kind == "null" for each in type_.children if type_.kind == "union")


def _fields(record: AvroType) -> list[Any]:
    return [_field(name, type_) for name, type_ in zip(record.names, record.children, strict=True)]


def _field(name: str, type_: AvroType) -> Any:
    arrow = arrow_type(type_)  # that of several types is null, which Arrow does not let be required
    return pa.field(name, arrow, nullable=is_nullable(type_) or pa.types.is_null(arrow))


def _merge_branches(branches: Sequence[AvroType]) -> Any:
    """Return the type of a union that has these branches and maybe null."""
    types = [arrow_type(each) for each in branches]
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
    if len(kinds) > 1:
        return pa.null()
    return {"string": pa.string(), "integer": pa.int64(), "binary": pa.binary()}.get(kinds.pop() or "", pa.null())


def _integer(type_: AvroType) -> Any:
    match (type_.logical or {}).get("logicalType"), type_.kind:
        case "date", "int":
            return pa.date32()
        case "time-millis", "int":
            return pa.time32("ms")
        case "time-micros", "long":
            return pa.time64("us")
        case str(name), "long" if name.startswith(("timestamp-", "local-timestamp-")):
            return pa.timestamp("us")
        case _:
            return pa.int32() if type_.kind == "int" else pa.int64()


def _binary(type_: AvroType) -> Any:
    logical = type_.logical or {}
    if logical.get("logicalType") == "decimal":
        return pa.decimal128(38, 0)
    if logical.get("logicalType") == "duration" and type_.width == 12:
        return pa.month_day_nano_interval()
    return pa.binary(type_.width) if type_.width else pa.binary()


# ---- names


class _SchemaNames:
    """Replaces names by the types that they stand for."""

    def __init__(self) -> None:
        self._types: dict[str, AvroType | None] = {}
        """By full name. None: the type is not complete yet."""

    def type_of(self, schema: Any, space: str) -> AvroType:
        """Return the type of a schema in JSON that stands in a namespace. Raises PurgeError."""
        match schema:
            case str():
                return self._resolve_name(schema, space)
            case list():
                return self._union(cast(list[Any], schema), space)
            case dict():
                return self._complex(cast(dict[str, Any], schema), space)
            case _:
                raise _refusal("it has something that is no type")

    def _resolve_name(self, name: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name, width=WIDTHS.get(name))
        full = _full_name(name, space)
        if full not in self._types:
            full = name
        if full not in self._types:
            raise _refusal(f"it has no type {name!r}")
        type_ = self._types[full]
        if type_ is None:
            raise OtherMeansError(f"type {name!r} of its Avro schema contains itself")
        return type_

    def _union(self, schemas: list[Any], space: str) -> AvroType:
        branches = [self.type_of(schema, space) for schema in schemas]
        if not branches or any(each.kind == "union" for each in branches):
            raise _refusal("it has a union of nothing, or of unions")
        if sum(each.kind == "null" for each in branches) > 1:
            raise _refusal("it has a union with null twice")
        return _make_type("union", branches)

    def _complex(self, schema: dict[str, Any], space: str) -> AvroType:
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, space)
            case "enum":
                return self._add(schema, space, AvroType("enum", names=tuple(map(str, schema["symbols"]))))
            case "fixed":
                size = schema["size"]
                if not 0 <= size <= FIXED_BYTES_MAX:
                    raise _refusal("it has a fixed type of a negative size, or of a gigabyte")
                return self._add(schema, space, AvroType("fixed", logical=schema, width=int(size)))
            case "array":
                items = self.type_of(schema["items"], space)
                if items.width == 0:
                    raise _refusal("it has an array of elements that take no bytes")
                return _make_type("array", [items])
            case "map":
                return _make_type("map", [self.type_of(schema["values"], space)])
            case str(name) if name in PRIMITIVES:
                return AvroType(name, logical=schema, width=WIDTHS.get(name))
            case other:
                return self.type_of(other, space)

    def _record(self, schema: dict[str, Any], space: str) -> AvroType:
        full = self._begin(schema, space)
        inner = full.rpartition(".")[0]
        types = {str(field["name"]): self.type_of(field["type"], inner) for field in schema["fields"]}
        if len(types) < len(schema["fields"]):
            raise _refusal("it has a field twice")
        self._types[full] = made = _make_type("record", list(types.values()), types)
        return made

    def _add(self, schema: dict[str, Any], space: str, type_: AvroType) -> AvroType:
        self._types[self._begin(schema, space)] = type_
        return type_

    def _begin(self, schema: dict[str, Any], space: str) -> str:
        """Return the full name of a type that begins here."""
        given = schema.get("namespace")
        full = _full_name(schema["name"], given if isinstance(given, str) else space)
        if full in self._types:
            raise _refusal(f"it has type {full!r} twice")
        self._types[full] = None
        return full


def _make_type(kind: str, children: Sequence[AvroType], names: Iterable[str] = ()) -> AvroType:
    widths = [each.width for each in children]
    width = sum(each or 0 for each in widths) if kind == "record" and None not in widths else None
    depth = 1 + max((each.depth for each in children), default=0)
    types = 1 + sum(each.types for each in children)
    if depth > DEPTH_MAX or types > TYPES_MAX:
        raise OtherMeansError(
            f"its Avro schema is nested more than {DEPTH_MAX} deep, or has more than {TYPES_MAX:,} types"
        )
    return AvroType(kind, tuple(children), tuple(names), width=width, depth=depth, types=types)


def _full_name(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


def _refusal(why: str) -> PurgeError:
    return OtherMeansError(f"its Avro schema cannot be understood: {why}")
