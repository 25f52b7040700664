"""The schema of a Parquet file as a tree, and views of the file in which pyarrow reads values as they are stored.

How the values of a column are stored depends on its physical type, and on which of the groups around it are optional or
repeated; names and logical types have no part in it. So what is to be written again is read under a plain schema:
groups without annotations, numbered names, integers and bytes instead of times, decimals, texts and UUIDs. Nothing is
converted, so nothing is lost, and the file keeps its own schema.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from refstore_purge.formats.key_values import ARROW_SCHEMA
from refstore_purge.formats.parquet_footer import (
    MAGIC,
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    KeyValueField,
    RowGroupField,
    SchemaElementField,
    ThriftList,
    ThriftStruct,
    ThriftType,
    write_footer,
)
from refstore_purge.purge_error import OtherMeansError
from refstore_purge.untyped_pandas import pa, pq

REQUIRED: Final = 0
REPEATED: Final = 2
INT96_BYTES: Final = 12
DECIMAL_BYTES_MAX: Final = 32
LEVELS_MAX: Final = 100
_DAMAGED: Final = "the file's schema is damaged"


class PhysicalType(IntEnum):
    """The enum `Type`."""

    INT32 = 1
    INT64 = 2
    INT96 = 3
    BYTE_ARRAY = 6
    FIXED = 7


class ConvertedType(IntEnum):
    """Some of the enum `ConvertedType`."""

    UTF8 = 0
    DECIMAL = 5
    UINT_8 = 11
    UINT_16 = 12
    UINT_32 = 13
    UINT_64 = 14
    INTERVAL = 21


class LogicalType(IntEnum):
    """The fields of the union `LogicalType`."""

    STRING = 1
    ENUM = 4
    DECIMAL = 5
    DATE = 6
    TIME = 7
    TIMESTAMP = 8
    INTEGER = 10
    NULL = 11
    JSON = 12
    BSON = 13
    UUID = 14
    FLOAT16 = 15


IS_SIGNED: Final = 2
"""The field of `IntType`."""
_ORDERED: Final = frozenset(LogicalType)
_UNSIGNED: Final = frozenset(
    {ConvertedType.UINT_8, ConvertedType.UINT_16, ConvertedType.UINT_32, ConvertedType.UINT_64}
)


@dataclass(frozen=True)
class SchemaNode:
    """A group or a column of a schema."""

    number: int
    """Its place in the footer's list; the root is 0."""
    element: ThriftStruct
    children: tuple[SchemaNode, ...]
    first_leaf: int
    """Which column is the first one in it."""
    path: tuple[str, ...] = field(repr=False)
    """The names from the outermost on, its own included; of the root none."""
    levels: tuple[int, ...] = field(repr=False)
    """The repetition of it and of the groups around it, without those that are required."""

    @property
    def name(self) -> str:
        return decode_name(self.element[SchemaElementField.NAME])

    @property
    def plain_name(self) -> str:
        return str(self.number)

    def leaves(self) -> Iterator[SchemaNode]:
        """Yield the columns in it, in their order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def nodes(self) -> Iterator[SchemaNode]:
        """Yield it and what is in it, in the order of the footer's list."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def child(self, name: str) -> SchemaNode:
        """Return the part of this name. Raises PurgeError."""
        found = [child for child in self.children if child.name == name]
        if len(found) != 1:
            raise OtherMeansError(f"there are {len(found)} columns {'.'.join((*self.path, name))!r}")
        return found[0]

    @property
    def logical_type(self) -> int | None:
        """The field of the union `LogicalType` that a column has."""
        return _logical(self.element)

    @property
    def is_unsigned(self) -> bool:
        """Whether it has integers without a sign."""
        if self.logical_type == LogicalType.INTEGER:
            return not self.element[SchemaElementField.LOGICAL][LogicalType.INTEGER].get(IS_SIGNED, True)
        return self.element.get(SchemaElementField.CONVERTED) in _UNSIGNED

    @property
    def has_order(self) -> bool:
        """Whether the values of a column, as pyarrow compares what it reads, have the order of the column's type: else
        lowest and highest values that it writes would mislead readers.
        """
        logical, converted = self.logical_type, self.element.get(SchemaElementField.CONVERTED)
        physical = self.element.get(SchemaElementField.TYPE)
        if physical == PhysicalType.INT96 or converted == ConvertedType.INTERVAL:
            return False
        if _is_decimal(self.element) and physical in (PhysicalType.BYTE_ARRAY, PhysicalType.FIXED):
            return (
                physical == PhysicalType.FIXED
                and 0 < self.element.get(SchemaElementField.LENGTH, 0) <= DECIMAL_BYTES_MAX
            )
        if logical == LogicalType.INTEGER and physical not in (PhysicalType.INT32, PhysicalType.INT64):
            return False
        return logical is None or logical in _ORDERED


def decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def read_schema_tree(footer: ThriftStruct) -> SchemaNode:
    """Return the root of a file's schema. Raises PurgeError."""
    elements = footer[FileField.SCHEMA]
    at = leaf = 0

    def node(path: tuple[str, ...], levels: tuple[int, ...]) -> SchemaNode:
        nonlocal at, leaf
        if at >= len(elements):
            raise OtherMeansError(_DAMAGED)
        if len(path) > LEVELS_MAX:
            raise OtherMeansError(f"the file's schema has more than {LEVELS_MAX} levels")
        number, element, first_leaf = at, elements[at], leaf
        at += 1
        if number:
            path = (*path, decode_name(element[SchemaElementField.NAME]))
            repetition = element.get(SchemaElementField.REPETITION, REQUIRED)
            levels = levels if repetition == REQUIRED else (*levels, repetition)
        count = element.get(SchemaElementField.CHILDREN, 0)
        if SchemaElementField.TYPE in element:
            leaf += 1
        elif not count and number:
            raise OtherMeansError(f"group {'.'.join(path)!r} has no columns, which pyarrow cannot write")
        children = () if SchemaElementField.TYPE in element else tuple(node(path, levels) for _ in range(count))
        return SchemaNode(number, element, children, first_leaf, path, levels)

    root = node((), ())
    if at != len(elements):
        raise OtherMeansError(_DAMAGED)
    return root


def make_view(
    footer: ThriftStruct, roots: Sequence[SchemaNode], groups: Sequence[int], *, is_plain: bool, arrow: Any = None
) -> Any:
    """Return the metadata with which pyarrow reads some columns of some row groups of a file: those that lie in
    `roots`, in the order of the file. `is_plain`: as they are stored, under their numbers; else as they are, and as
    `arrow` says, a schema of Arrow for them.
    """
    found = ThriftStruct()
    root = ThriftStruct()
    root.set(SchemaElementField.NAME, ThriftType.STRING, b"view")
    root.set(SchemaElementField.CHILDREN, ThriftType.I32, len(roots))
    of_node: Callable[[SchemaNode], ThriftStruct] = _plain_element if is_plain else (lambda node: node.element)
    found.set(FileField.VERSION, ThriftType.I32, footer.get(FileField.VERSION, 1))
    nodes = [each for top in roots for each in top.nodes()]
    found.set(FileField.SCHEMA, ThriftType.LIST, ThriftList(ThriftType.STRUCT, [root, *map(of_node, nodes)]))
    leaves = [leaf for top in roots for leaf in top.leaves()]
    rows = [_group(footer[FileField.ROW_GROUPS][number], leaves, is_plain=is_plain) for number in groups]
    found.set(FileField.ROWS, ThriftType.I64, sum(row[RowGroupField.ROWS] for row in rows))
    found.set(FileField.ROW_GROUPS, ThriftType.LIST, ThriftList(ThriftType.STRUCT, rows))
    if FileField.CREATED_BY in footer:  # pyarrow knows mistakes of old writers
        found.set(FileField.CREATED_BY, ThriftType.STRING, footer[FileField.CREATED_BY])
    if not is_plain and FileField.COLUMN_ORDERS in footer:
        orders = footer[FileField.COLUMN_ORDERS]
        chosen = [orders[leaf.first_leaf] for leaf in leaves if leaf.first_leaf < len(orders)]
        found.set(FileField.COLUMN_ORDERS, ThriftType.LIST, ThriftList(orders.kind, chosen))
    if arrow is not None:
        pair = ThriftStruct()
        pair.set(KeyValueField.KEY, ThriftType.STRING, ARROW_SCHEMA)
        pair.set(KeyValueField.VALUE, ThriftType.STRING, base64.b64encode(arrow.serialize().to_pybytes()))
        found.set(FileField.KEY_VALUES, ThriftType.LIST, ThriftList(ThriftType.STRUCT, [pair]))
    out = io.BytesIO(MAGIC)
    out.seek(0, io.SEEK_END)
    write_footer(out, found)
    try:
        return pq.read_metadata(out)
    except (pa.ArrowException, OSError) as error:
        names = ", ".join(repr(top.name) for top in roots)
        raise OtherMeansError(f"pyarrow cannot read the type of {names} ({error})") from error


def _group(group: ThriftStruct, leaves: Sequence[SchemaNode], *, is_plain: bool) -> ThriftStruct:
    chunks = group[RowGroupField.COLUMNS]
    found = ThriftStruct()
    columns: list[ThriftStruct] = []
    for leaf in leaves:
        chunk = chunks[leaf.first_leaf]
        metadata = chunk[ColumnChunkField.METADATA].copy_without(
            ColumnMetadataField.KEY_VALUES, ColumnMetadataField.SIZES
        )
        if is_plain:
            metadata = metadata.copy_without(ColumnMetadataField.STATISTICS)
            metadata.change(ColumnMetadataField.TYPE, _plain_element(leaf)[SchemaElementField.TYPE])
        column = ThriftStruct()
        column.set(ColumnChunkField.OFFSET, ThriftType.I64, chunk.get(ColumnChunkField.OFFSET, 0))
        column.set(ColumnChunkField.METADATA, ThriftType.STRUCT, metadata)
        columns.append(column)
    found.set(RowGroupField.COLUMNS, ThriftType.LIST, ThriftList(ThriftType.STRUCT, columns))
    found.set(RowGroupField.BYTES, ThriftType.I64, group[RowGroupField.BYTES])
    found.set(RowGroupField.ROWS, ThriftType.I64, group[RowGroupField.ROWS])
    return found


def _plain_element(node: SchemaNode) -> ThriftStruct:
    """Return the element of a schema that says how values are stored, and hardly more."""
    element = node.element
    found = ThriftStruct()
    found.set(SchemaElementField.REPETITION, ThriftType.I32, element.get(SchemaElementField.REPETITION, REQUIRED))
    found.set(SchemaElementField.NAME, ThriftType.STRING, node.plain_name.encode())
    if node.children:
        found.set(SchemaElementField.CHILDREN, ThriftType.I32, len(node.children))
        return found
    physical, length = element[SchemaElementField.TYPE], element.get(SchemaElementField.LENGTH, 0)
    if physical == PhysicalType.INT96:  # the same bytes, of which pyarrow makes no times
        physical, length = PhysicalType.FIXED, INT96_BYTES
    found.set(SchemaElementField.TYPE, ThriftType.I32, physical)
    if physical == PhysicalType.FIXED:
        found.set(SchemaElementField.LENGTH, ThriftType.I32, length)
    # what pyarrow needs to know to write the lowest and the highest value
    if node.is_unsigned and physical in (PhysicalType.INT32, PhysicalType.INT64):
        of_all = ConvertedType.UINT_32 if physical == PhysicalType.INT32 else ConvertedType.UINT_64
        found.set(SchemaElementField.CONVERTED, ThriftType.I32, of_all)
    elif _is_decimal(element) and physical == PhysicalType.FIXED and 0 < length <= DECIMAL_BYTES_MAX:
        found.set(SchemaElementField.CONVERTED, ThriftType.I32, ConvertedType.DECIMAL)
        found.set(SchemaElementField.SCALE, ThriftType.I32, 0)
        found.set(SchemaElementField.PRECISION, ThriftType.I32, len(str(2 ** (8 * length - 1) - 1)) - 1)
    elif _logical(element) == LogicalType.FLOAT16 and physical == PhysicalType.FIXED:
        found.set(SchemaElementField.LOGICAL, ThriftType.STRUCT, element[SchemaElementField.LOGICAL])
    return found


def _logical(element: ThriftStruct) -> int | None:
    """Return which logical type an element has: the field of the union."""
    union = element.get(SchemaElementField.LOGICAL)
    return next((number for number, _, _ in union.fields()), None) if isinstance(union, ThriftStruct) else None


def _is_decimal(element: ThriftStruct) -> bool:
    return (
        _logical(element) == LogicalType.DECIMAL or element.get(SchemaElementField.CONVERTED) == ConvertedType.DECIMAL
    )
