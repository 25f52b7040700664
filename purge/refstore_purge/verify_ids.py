"""The ids of a data set as `verify` looks for them, in columns, in text, and beside the rows; and what it finds.

The table of ids is read, and mapped into memory, as for a run (`ids_file.py`, `purge_ids.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from refstore.purge_document.document import Dataset
from refstore_purge.formats.base import IdKind, PurgeError, kind_of
from refstore_purge.formats.text_values import UUID_BYTES, match_texts
from refstore_purge.ids_file import convert_ids
from refstore_purge.purge_ids import IdSet, write_ids
from refstore_purge.untyped_pandas import pa, pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

HUDI_BOUNDS: Final = (b"hoodie_min_record_key", b"hoodie_max_record_key")
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
PLAIN_INTEGER: Final = re.compile(rb"-?(0|[1-9][0-9]*)")
SHORT_NUMBER: Final = re.compile(rb"-?[0-9]{1,5}")
"""It is somebody's id by chance (decision 0200)."""
BATCH_VALUES: Final = 50_000

Pairs = Iterable[tuple[bytes, bytes]]


class VerifyReadError(PurgeError):
    """Something could not be read, or not be understood."""


class MetadataEntry(NamedTuple):
    place: str
    """Where it stands, with {} for its name."""
    name: bytes
    texts: Sequence[bytes]
    """What may be an id."""


def make_entries(pairs: Pairs, place: str) -> Iterator[MetadataEntry]:
    """Yield key-value metadata as entries; of Hudi's bounds each key may be an id, be it a short number."""
    for key, value in pairs:
        texts = [text for text in (key, value) if not SHORT_NUMBER.fullmatch(text)]
        if key in HUDI_BOUNDS:
            texts += [value, *(field.partition(b":")[2] for field in value.split(b","))]
        yield MetadataEntry(place, key, texts)


class WantedIds(NamedTuple):
    """The ids of a data set, in a folder that all processes read."""

    folder: Path
    kind: IdKind
    """Of the ids as they were given."""
    sets: Mapping[str, str]
    """By kind, and 'uuid' for the bytes of UUIDs, what the names of their files begin with."""

    @classmethod
    def prepare(cls, folder: Path, prefix: str, *, is_named: bool) -> WantedIds:
        """Return the ids in a folder; write those of text that are UUIDs there as bytes, too, and as integers if they
        are some. `is_named`: the table names the data set of each id.
        """
        given = _open_set(folder, prefix)
        sets: dict[str, str] = {given.kind: prefix}
        others: dict[str, IdKind] = {"uuid": "binary", "integer": "integer"} if is_named else {"uuid": "binary"}
        for type_, kind in others.items() if given.kind == "string" else ():
            values = convert_ids(given.values.cast(pa.string()), "string", type_)
            if values is not None:  # else some are none, or have more than 64 bits
                write_ids(folder, kind, [values], prefix=f"{type_}-{prefix}")
                sets[type_] = f"{type_}-{prefix}"
        return cls(folder, given.kind, sets)

    def for_type(self, type_: Any, name: str) -> IdSet:
        """Return the ids that a column of this type can have. Raises VerifyReadError if none can be in it."""
        kind, storage = kind_of(type_), type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
        width = storage.byte_width if pa.types.is_fixed_size_binary(storage) else 0
        if kind is None or kind not in self.sets:
            if width == UUID_BYTES and "uuid" in self.sets:
                return _open_set(self.folder, self.sets["uuid"])
            raise VerifyReadError(f"column {name!r} is {type_}, and the ids are {self.kind}s")
        ids = _open_set(self.folder, self.sets[kind])
        if width and not pc.any(pc.equal(pc.binary_length(ids.values), width)).as_py():
            raise VerifyReadError(f"column {name!r} is {type_}, and no id has so many bytes")
        return ids

    def find_texts(self, texts: Sequence[bytes], type_: Any = None) -> NDArray[np.bool_]:
        """Return which texts are ids: of integers their digits, of bytes also UUIDs. `type_`: of the column in Arrow,
        where one is known.
        """
        ids = _open_set(self.folder, self.sets[self.kind])
        with suppress(VerifyReadError):
            ids = self.for_type(type_, "") if type_ is not None else ids
        found = np.zeros(len(texts), dtype=np.bool_)
        some = [at for at, text in enumerate(texts) if ids.kind != "integer" or INTEGER.fullmatch(text)]
        found[some] = match_texts([texts[at] for at in some], ids)
        return found

    def is_name_of_id(self, text: str) -> bool:
        """Return whether a text in a path or in metadata is one of the ids."""
        return bool(self.find_texts([text.encode(errors="surrogatepass")])[0])

    def describe_entries(self, entries: Sequence[MetadataEntry], type_: Any) -> list[str]:
        """Return where an id stands in the entries, as the whole text, of integers in plain digits."""
        texts = sorted({text for entry in entries for text in entry.texts if text})
        if self.kind == "integer":
            texts = [text for text in texts if PLAIN_INTEGER.fullmatch(text)]
        found = {text for text, is_id in zip(texts, self.find_texts(texts, type_), strict=True) if is_id}
        places: list[str] = []
        for entry in entries:
            if not found.isdisjoint(entry.texts):
                has_id = any(text in entry.name for text in found)
                name = "whose name has an id" if has_id else repr(entry.name.decode(errors="replace"))
                places.append(entry.place.format(name))
        return places


@lru_cache(maxsize=16)
def _open_set(folder: Path, prefix: str) -> IdSet:
    return IdSet(folder, prefix=prefix)


@dataclass(slots=True)
class ObjectFindings:
    """What is known of an object once it was read."""

    rows: int = 0
    """How many have ids."""
    id_places: list[str] = field(default_factory=list[str])
    """Where ids stand beside the rows, in words that show none."""
    has_identifier: bool | None = True
    """Whether the identifier is there, be it null; None: there is no line that could tell."""
    has_rows_without_identifier: bool = False
    """Whether lines of JSON have no value at the identifier."""
    reason: str = ""
    """Why it could not be looked at, or not to its end."""
    is_there: bool = True


@dataclass(slots=True)
class RowSearch:
    """Looks for the ids in the rows of one object, and counts them."""

    dataset: Dataset
    ids: WantedIds
    is_of_id: bool
    """Whether a folder says that all rows are those of an id."""
    findings: ObjectFindings = field(default_factory=ObjectFindings)
    type: Any = None
    """Of the identifier's column in Arrow; None: nothing tells it."""
    _texts: list[bytes] = field(default_factory=list[bytes])
    _rows: list[int] = field(default_factory=list[int])

    def choose_type(self, type_: Any) -> None:
        """Take the ids that a column of this type can have. Raises VerifyReadError if none can be in it."""
        self.type = type_
        if not pa.types.is_null(type_):
            self.ids.for_type(type_, self.dataset.identifier)

    def add_values(self, values: Any, rows: Any) -> None:
        """Count the rows whose values, an array of Arrow, are ids. `rows`: that of each; None: each is one."""
        if pa.types.is_null(values.type):
            return
        rows = None if rows is None else rows.filter(values.is_valid()).to_numpy()
        values, ids = values.drop_null(), self.ids.for_type(self.type, self.dataset.identifier)
        found = ids.matches(values)
        self.findings.rows += int(found.sum()) if rows is None else len(np.unique(rows[found]))

    def add_text(self, value: bytes, row: int) -> None:
        """Count the row, now or in `finish`, if its value is an id."""
        if len(self._texts) >= BATCH_VALUES and row != self._rows[-1]:
            self.finish()
        self._texts.append(value)
        self._rows.append(row)

    def finish(self) -> None:
        """Look up the text that waits."""
        found = self.ids.find_texts(self._texts, self.type)
        self.findings.rows += len(np.unique(np.array(self._rows, dtype=np.int64)[found]))
        self._texts, self._rows = [], []


def place_of(names: Sequence[str], step: str, column: str) -> int:
    """Return the place of a column, or of a step on the way to it. Raises VerifyReadError if it is not there, or there
    twice.
    """
    if names.count(step) > 1:
        raise VerifyReadError(f"there is more than one column {column!r}")
    if step not in names:
        other = next((each for each in names if each.casefold() == step.casefold()), None)
        told = f"; there is {other!r}, in another case" if other is not None else ""
        raise VerifyReadError(f"there is no column {column!r}{told}")
    return names.index(step)
