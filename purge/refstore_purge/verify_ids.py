"""Look values up among the ids, for `verify`.

Values are compared as bytes or as numbers, in one Arrow type for each kind. Arrow makes a table of the ids for each
call, so the values of many objects are looked up at once: the cost grows with the values plus the ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

from refstore_purge.untyped_pandas import pa, pc

NORMAL: Final[dict[str, Any]] = {
    "string": pa.large_binary(),
    "binary": pa.large_binary(),
    "integer": pa.decimal128(20, 0),  # signed and unsigned, of 64 bits
}
"""The type in which each kind of ids is compared."""
WAITING_BYTES: Final = 64 * 1024 * 1024
"""So many bytes of values wait to be looked up together; as many as the ids have, if that is more."""
UUID: Final = "uuid"
UUID_BYTES: Final = 16
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
INTEGER: Final = r"[+-]?[0-9]+"
INTEGER_TEXT: Final = re.compile(INTEGER)
SHORT_NUMBER: Final = re.compile(rb"-?\d{1,5}")
PLAIN_INTEGER: Final = re.compile(rb"-?(0|[1-9][0-9]*)")
UUID_TEXT: Final = re.compile(rb"(?i)(urn:uuid:)?\{?[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\}?")
NUMBER_MAX: Final = 2**64
DIGITS_MAX: Final = 40


class WantedIds(NamedTuple):
    kind: str
    """'string', 'integer' or 'binary'."""
    values: Any
    """Without null, in the type of their kind."""
    ids_by_kind: Mapping[str, Any] = {}
    """Of text that is something else, too: the 16 bytes of UUIDs, or the integers; for columns of that kind."""

    def find_ids(self, texts: Sequence[str | None]) -> list[bool]:
        """Return which texts of paths and metadata are one of the ids, of bytes also as a UUID. None, and Hive's null,
        are none.
        """
        if self.kind == "integer":
            is_text = [text is not None and bool(INTEGER_TEXT.fullmatch(text)) for text in texts]
            values: Any = parse_integers(
                [text or "" if is_one else "0" for text, is_one in zip(texts, is_text, strict=True)]
            )
        else:
            is_text = [text not in (None, HIVE_NULL) for text in texts]
            values = pa.array([(text or "").encode(errors="surrogatepass") for text in texts], NORMAL[self.kind])
        are_ids = pc.is_in(values, value_set=self.values)
        if self.kind == "binary":
            uuids = [_uuid(text) if UUID_TEXT.fullmatch(text) else None for text in values.to_pylist()]
            are_ids = pc.or_(are_ids, pc.is_in(pa.array(uuids, NORMAL["binary"]), value_set=self.values))
        return [is_one and is_id for is_one, is_id in zip(is_text, are_ids.to_pylist(), strict=True)]


class WantedIdsByDataset(NamedTuple):
    """The ids of each data set."""

    default: WantedIds | None
    """Those for all data sets; None: a column names the data set of each."""
    by_dataset: Mapping[str, WantedIds] = {}
    """By name, where a data set has ids of its own."""
    text: str = ""
    """What people are told of them; without a value."""

    def ids_of(self, dataset: str) -> WantedIds | None:
        """Return the ids of a data set; None: it has none."""
        return self.by_dataset.get(dataset, self.default)


def kind_of(type_: Any) -> str | None:
    """Return which kind of ids can be compared with a type; None: none can."""
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return kind_of(type_.storage_type)
    if types.is_dictionary(type_):
        return kind_of(type_.value_type)
    if types.is_integer(type_):
        return "integer"
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "string"
    is_binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return "binary" if any(is_one(type_) for is_one in is_binary) else None


def normalize(values: Any) -> Any:
    """Return the values in the type in which their kind is compared."""
    values = strip_extension(values)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    return values.cast(NORMAL[kind_of(values.type) or ""])


def strip_extension(values: Any) -> Any:
    """Return what an extension type, such as Arrow's UUIDs, is stored as; other values as they are."""
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def width_of(type_: Any) -> int:
    """Return how many bytes each value of a type has; 0: they differ."""
    if isinstance(type_, pa.BaseExtensionType):
        return width_of(type_.storage_type)
    return type_.byte_width if pa.types.is_fixed_size_binary(type_) else 0


def parse_integers(texts: list[str]) -> Any:
    """Return decimal numbers, of any length, in the type in which integers are compared; null: it is too large to be
    an id.
    """
    numbers = [int(text) if len(text) < DIGITS_MAX else NUMBER_MAX for text in texts]
    if all(-(2**63) <= number < 2**63 for number in numbers):
        return pa.array(numbers, pa.int64()).cast(NORMAL["integer"])
    return pa.array([Decimal(each) if abs(each) < NUMBER_MAX else None for each in numbers], NORMAL["integer"])


# ---- looking up


@dataclass(slots=True)
class RowCount:
    """How many rows of an object have ids."""

    rows: int = 0
    rows_without_identifier: int = 0
    """Lines of JSON that have no value at the identifier."""
    has_identifier: bool | None = True
    """Whether the identifier is there, be it null; None: there is no line that could tell."""
    is_excluded: bool = False
    """Whether statistics of the object exclude an id that is there."""
    id_places: list[str] = field(default_factory=list[str])
    """Where ids stand beside the rows, in words that show none."""


class StatisticsBounds(NamedTuple):
    """What statistics say of the values beside them, in the type in which these are compared."""

    low: Any
    """None: all of them are null."""
    high: Any


class MetadataEntry(NamedTuple):
    """What stands beside the rows of an object."""

    place: str
    """In words, with {} for its name."""
    name: bytes
    texts: Sequence[bytes]
    """What may be an id."""
    keys: Sequence[bytes] = ()
    """The same, of what is known to hold keys of rows. Elsewhere a short number is somebody's id by chance."""

    def select_texts(self) -> MetadataEntry:
        """Return the entry with all that means an id if it is the same."""
        return self._replace(texts=[*self.keys, *(text for text in self.texts if not SHORT_NUMBER.fullmatch(text))])


class _PendingValues(NamedTuple):
    row_count: RowCount
    values: Any
    rows: Any
    """The row of each value. None: each value is a row."""
    bounds: StatisticsBounds | None

    def count_matches(self, are_ids: Any) -> None:
        rows = self.rows
        self.row_count.rows += are_ids.true_count if rows is None else pc.count_distinct(rows.filter(are_ids)).as_py()
        if self.bounds is not None:
            self.row_count.is_excluded |= _is_outside(self.values.filter(are_ids), self.bounds)


class _PendingEntries(NamedTuple):
    row_count: RowCount
    values: Any
    entries: Sequence[MetadataEntry]
    texts: Sequence[bytes]
    """Of each value."""

    def count_matches(self, are_ids: Any) -> None:
        found = {text for text, is_id in zip(self.texts, are_ids.to_pylist(), strict=True) if is_id}
        for entry in self.entries:
            if not found.isdisjoint(entry.texts):
                has_id = any(text in entry.name for text in found)
                name = "whose name has an id" if has_id else repr(entry.name.decode(errors="replace"))
                self.row_count.id_places.append(entry.place.format(name))


@dataclass(slots=True)
class BatchedLookup:
    """Looks up the values of many objects at once."""

    ids: WantedIds
    _pending: list[_PendingValues | _PendingEntries] = field(default_factory=list[_PendingValues | _PendingEntries])
    _bytes: int = 0
    _lookups_by_kind: dict[str, BatchedLookup] = field(default_factory=dict[str, "BatchedLookup"])

    def for_type(self, type_: Any) -> BatchedLookup | None:
        """Return the lookup for a column of this type; None: no id can be in it."""
        kind, width = kind_of(type_), width_of(type_)
        if kind == self.ids.kind:
            can_be = not width or pc.any(pc.equal(pc.binary_length(self.ids.values), width)).as_py()
            return self if can_be else None
        other = UUID if width == UUID_BYTES else kind or ""
        if other not in self._lookups_by_kind and other in self.ids.ids_by_kind:
            self._lookups_by_kind[other] = BatchedLookup(WantedIds(kind or "", self.ids.ids_by_kind[other]))
        return self._lookups_by_kind.get(other)

    def add(self, count: RowCount, values: Any, rows: Any = None, bounds: StatisticsBounds | None = None) -> None:
        """Count, now or later, the rows whose values are ids. `values` is an array in the kind's type."""
        self._add_pending(
            _PendingValues(count, values, rows, bounds), values.nbytes + (rows.nbytes if rows is not None else 0)
        )

    def add_entries(self, count: RowCount, entries: Sequence[MetadataEntry]) -> None:
        """Tell, now or later, which entries have an id: as the whole text, of integers in plain digits, of bytes also
        as a UUID. The empty text is nobody's.
        """
        entries = [entry.select_texts() for entry in entries]
        texts = list({text for entry in entries for text in entry.texts if text})
        if self.ids.kind == "integer":
            texts = [text for text in texts if PLAIN_INTEGER.fullmatch(text)]
            values = parse_integers([text.decode() for text in texts])
        else:
            uuids = [text for text in texts if self.ids.kind == "binary" and UUID_TEXT.fullmatch(text)]
            values = pa.array([*texts, *map(_uuid, uuids)], NORMAL[self.ids.kind])
            texts += uuids
        if texts:
            self._add_pending(_PendingEntries(count, values, entries, texts), values.nbytes)

    def _add_pending(self, waiting: _PendingValues | _PendingEntries, size_bytes: int) -> None:
        self._pending.append(waiting)
        self._bytes += size_bytes
        if self._bytes > max(WAITING_BYTES, self.ids.values.nbytes):
            self.finish()

    def finish(self) -> None:
        """Look up what waits."""
        for other in self._lookups_by_kind.values():
            other.finish()
        waiting, self._pending, self._bytes = self._pending, [], 0
        if not waiting or not len(self.ids.values):
            return
        chunks = pa.chunked_array([each.values for each in waiting], NORMAL[self.ids.kind])
        are_ids = pc.is_in(chunks, value_set=self.ids.values).combine_chunks()
        at = 0
        for each in waiting:
            mine = are_ids.slice(at, len(each.values))
            at += len(each.values)
            if mine.true_count:
                each.count_matches(mine)


def _uuid(text: bytes) -> bytes:
    return bytes.fromhex(re.sub(rb"(?i)urn:uuid:|[^0-9a-f]", b"", text).decode())


def _is_outside(values: Any, bounds: StatisticsBounds) -> bool:
    """Return whether a value lies outside of the bounds."""
    if bounds.low is None:
        return True
    less = pc.less(values, pa.scalar(bounds.low, values.type))
    more = pc.greater(values, pa.scalar(bounds.high, values.type))
    return bool(pc.any(pc.or_(less, more)).as_py())
