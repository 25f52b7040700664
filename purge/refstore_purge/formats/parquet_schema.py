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

from refstore_purge.formats.base import PurgeError
from refstore_purge.formats.key_values import ARROW_SCHEMA
from refstore_purge.formats.parquet_footer import (
    MAGIC,
    Chunk,
    Column,
    Element,
    File,
    Group,
    Items,
    Pair,
    Struct,
    write_footer,
)
from refstore_purge.formats.parquet_shapes import Kind
from refstore_purge.untyped_arrow import pa, pq

REQUIRED: Final = 0
REPEATED: Final = 2
INT96_BYTES: Final = 12
DECIMAL_BYTES_MAX: Final = 32
LEVELS_MAX: Final = 100
_DAMAGED: Final = "the file's schema is damaged; see to it by other means"


class Physical(IntEnum):
    """The enum `Type`."""

    INT32 = 1
    INT64 = 2
    INT96 = 3
    BYTE_ARRAY = 6
    FIXED = 7


class Converted(IntEnum):
    """Some of the enum `ConvertedType`."""

    DECIMAL = 5
    UINT_8 = 11
    UINT_16 = 12
    UINT_32 = 13
    UINT_64 = 14
    INTERVAL = 21


class Logical(IntEnum):
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
_ORDERED: Final = frozenset(Logical)
_UNSIGNED: Final = frozenset({Converted.UINT_8, Converted.UINT_16, Converted.UINT_32, Converted.UINT_64})


@dataclass(frozen=True)
class Node:
    """A group or a column of a schema."""

    number: int
    """Its place in the footer's list; the root is 0."""
    element: Struct
    children: tuple[Node, ...]
    first_leaf: int
    """Which column is the first one in it."""
    path: tuple[str, ...] = field(repr=False)
    """The names from the outermost on, its own included; of the root none."""
    levels: tuple[int, ...] = field(repr=False)
    """The repetition of it and of the groups around it, without those that are required."""

    @property
    def name(self) -> str:
        return text_of(self.element[Element.NAME])

    @property
    def plain_name(self) -> str:
        return str(self.number)

    def leaves(self) -> Iterator[Node]:
        """Yield the columns in it, in their order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def nodes(self) -> Iterator[Node]:
        """Yield it and what is in it, in the order of the footer's list."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def child(self, name: str) -> Node:
        """Return the part of this name. Raises PurgeError."""
        found = [child for child in self.children if child.name == name]
        if len(found) != 1:
            raise PurgeError(
                f"there are {len(found)} columns {'.'.join((*self.path, name))!r}; purge it by other means"
            )
        return found[0]

    @property
    def is_unsigned(self) -> bool:
        """Whether it has integers without a sign."""
        return _is_unsigned(self.element)

    @property
    def has_order(self) -> bool:
        """Whether the values of a column, as pyarrow compares what it reads, have the order of the column's type: else
        lowest and highest values that it writes would mislead readers.
        """
        logical, converted = _logical(self.element), self.element.get(Element.CONVERTED)
        physical = self.element.get(Element.TYPE)
        if physical == Physical.INT96 or converted == Converted.INTERVAL:
            return False
        if _is_decimal(self.element) and physical in (Physical.BYTE_ARRAY, Physical.FIXED):
            return physical == Physical.FIXED and 0 < self.element.get(Element.LENGTH, 0) <= DECIMAL_BYTES_MAX
        if logical == Logical.INTEGER and physical not in (Physical.INT32, Physical.INT64):
            return False
        return logical is None or logical in _ORDERED


def text_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def tree_of(footer: Struct) -> Node:
    """Return the root of a file's schema. Raises PurgeError."""
    elements = footer[File.SCHEMA]
    at = leaf = 0

    def node(path: tuple[str, ...], levels: tuple[int, ...]) -> Node:
        nonlocal at, leaf
        if at >= len(elements):
            raise PurgeError(_DAMAGED)
        if len(path) > LEVELS_MAX:
            raise PurgeError(f"the file's schema has more than {LEVELS_MAX} levels; purge it by other means")
        number, element, first_leaf = at, elements[at], leaf
        at += 1
        if number:
            path = (*path, text_of(element[Element.NAME]))
            repetition = element.get(Element.REPETITION, REQUIRED)
            levels = levels if repetition == REQUIRED else (*levels, repetition)
        count = element.get(Element.CHILDREN, 0)
        if Element.TYPE in element:
            leaf += 1
        elif not count and number:
            raise PurgeError(f"group {'.'.join(path)!r} has no columns, which pyarrow cannot write; purge it by other "
                             "means")  # fmt: skip
        children = () if Element.TYPE in element else tuple(node(path, levels) for _ in range(count))
        return Node(number, element, children, first_leaf, path, levels)

    root = node((), ())
    if at != len(elements):
        raise PurgeError(_DAMAGED)
    return root


def view(footer: Struct, roots: Sequence[Node], groups: Sequence[int], *, is_plain: bool, arrow: Any = None) -> Any:
    """Return the metadata with which pyarrow reads some columns of some row groups of a file: those that lie in
    `roots`, in the order of the file. `is_plain`: as they are stored, under their numbers; else as they are, and as
    `arrow` says, a schema of Arrow for them.
    """
    found = Struct()
    root = Struct()
    root.set(Element.NAME, Kind.STRING, b"view")
    root.set(Element.CHILDREN, Kind.I32, len(roots))
    of_node: Callable[[Node], Struct] = _plain if is_plain else (lambda node: node.element)
    found.set(File.VERSION, Kind.I32, footer.get(File.VERSION, 1))
    nodes = [each for top in roots for each in top.nodes()]
    found.set(File.SCHEMA, Kind.LIST, Items(Kind.STRUCT, [root, *map(of_node, nodes)]))
    leaves = [leaf for top in roots for leaf in top.leaves()]
    rows = [_group(footer[File.ROW_GROUPS][number], leaves, is_plain=is_plain) for number in groups]
    found.set(File.ROWS, Kind.I64, sum(row[Group.ROWS] for row in rows))
    found.set(File.ROW_GROUPS, Kind.LIST, Items(Kind.STRUCT, rows))
    if File.CREATED_BY in footer:  # pyarrow knows mistakes of old writers
        found.set(File.CREATED_BY, Kind.STRING, footer[File.CREATED_BY])
    if not is_plain and File.COLUMN_ORDERS in footer:
        orders = footer[File.COLUMN_ORDERS]
        chosen = [orders[leaf.first_leaf] for leaf in leaves if leaf.first_leaf < len(orders)]
        found.set(File.COLUMN_ORDERS, Kind.LIST, Items(orders.kind, chosen))
    if arrow is not None:
        pair = Struct()
        pair.set(Pair.KEY, Kind.STRING, ARROW_SCHEMA)
        pair.set(Pair.VALUE, Kind.STRING, base64.b64encode(arrow.serialize().to_pybytes()))
        found.set(File.KEY_VALUES, Kind.LIST, Items(Kind.STRUCT, [pair]))
    out = io.BytesIO(MAGIC)
    out.seek(0, io.SEEK_END)
    write_footer(out, found)
    try:
        return pq.read_metadata(out)
    except (pa.ArrowException, OSError) as error:
        names = ", ".join(repr(top.name) for top in roots)
        raise PurgeError(f"pyarrow cannot read the type of {names} ({error}); purge it by other means") from error


def _group(group: Struct, leaves: Sequence[Node], *, is_plain: bool) -> Struct:
    chunks = group[Group.COLUMNS]
    found = Struct()
    columns: list[Struct] = []
    for leaf in leaves:
        chunk = chunks[leaf.first_leaf]
        metadata = chunk[Chunk.METADATA].without(Column.KEY_VALUES, Column.SIZES)
        if is_plain:
            metadata = metadata.without(Column.STATISTICS)
            metadata.change(Column.TYPE, _plain(leaf)[Element.TYPE])
        column = Struct()
        column.set(Chunk.OFFSET, Kind.I64, chunk.get(Chunk.OFFSET, 0))
        column.set(Chunk.METADATA, Kind.STRUCT, metadata)
        columns.append(column)
    found.set(Group.COLUMNS, Kind.LIST, Items(Kind.STRUCT, columns))
    found.set(Group.BYTES, Kind.I64, group[Group.BYTES])
    found.set(Group.ROWS, Kind.I64, group[Group.ROWS])
    return found


def _plain(node: Node) -> Struct:
    """Return the element of a schema that says how values are stored, and hardly more."""
    element = node.element
    found = Struct()
    found.set(Element.REPETITION, Kind.I32, element.get(Element.REPETITION, REQUIRED))
    found.set(Element.NAME, Kind.STRING, node.plain_name.encode())
    if node.children:
        found.set(Element.CHILDREN, Kind.I32, len(node.children))
        return found
    physical, length = element[Element.TYPE], element.get(Element.LENGTH, 0)
    if physical == Physical.INT96:  # the same bytes, of which pyarrow makes no times
        physical, length = Physical.FIXED, INT96_BYTES
    found.set(Element.TYPE, Kind.I32, physical)
    if physical == Physical.FIXED:
        found.set(Element.LENGTH, Kind.I32, length)
    # what pyarrow needs to know to write the lowest and the highest value
    if _is_unsigned(element) and physical in (Physical.INT32, Physical.INT64):
        of_all = Converted.UINT_32 if physical == Physical.INT32 else Converted.UINT_64
        found.set(Element.CONVERTED, Kind.I32, of_all)
    elif _is_decimal(element) and physical == Physical.FIXED and 0 < length <= DECIMAL_BYTES_MAX:
        found.set(Element.CONVERTED, Kind.I32, Converted.DECIMAL)
        found.set(Element.SCALE, Kind.I32, 0)
        found.set(Element.PRECISION, Kind.I32, len(str(2 ** (8 * length - 1) - 1)) - 1)
    elif _logical(element) == Logical.FLOAT16 and physical == Physical.FIXED:
        found.set(Element.LOGICAL, Kind.STRUCT, element[Element.LOGICAL])
    return found


def _logical(element: Struct) -> int | None:
    """Return which logical type an element has: the field of the union."""
    union = element.get(Element.LOGICAL)
    return next((number for number, _, _ in union.fields()), None) if isinstance(union, Struct) else None


def _is_unsigned(element: Struct) -> bool:
    if _logical(element) == Logical.INTEGER:
        return not element[Element.LOGICAL][Logical.INTEGER].get(IS_SIGNED, True)
    return element.get(Element.CONVERTED) in _UNSIGNED


def _is_decimal(element: Struct) -> bool:
    return _logical(element) == Logical.DECIMAL or element.get(Element.CONVERTED) == Converted.DECIMAL
