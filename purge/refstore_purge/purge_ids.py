"""The ids whose rows go: read from a file, written to a folder of their own, and looked up by every task.

A value is looked for in three steps, each for a whole column at once:

    bits      a bit for each hash of an id: tells most other values apart, in a megabyte for half a million ids
    hashes    sorted 64-bit hashes: where a value's id would stand
    values    the ids in the order of their hashes: they decide, so that no two values are taken for each other

The folder is mapped into memory, so that all tasks of a machine share it. The hash has a random seed of its own
for each folder; nothing of it outlives the run.
"""

from __future__ import annotations

import bisect
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from refstore_gc.column_hash import hash_rows, hash_texts
from refstore_purge.formats.base import IdKind, kind_of
from refstore_purge.untyped_pandas import pa, pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORDS_MAX: Final = 64
"""How many 8-byte words of a value the hash knows; longer values that begin alike are told apart by themselves."""
BITS_PER_ID: Final = 16
SMALL_SET_MAX: Final = 10_000
"""So many ids Arrow looks up by itself, with a table that it makes for each batch."""
FENCES_MAX: Final = 100_000
"""How many ids, evenly spread in their order, tell which ranges have none."""

_META: Final = "meta.json"
_BITS: Final = "bits.npy"
_HASHES: Final = "hashes.npy"
_VALUES: Final = "values.arrow"
_FENCES: Final = "fences.arrow"
_INDEX: Final = "index.npy"

COMPARED_TYPES: Final[dict[IdKind, Any]] = {
    "string": pa.large_binary(),  # compared by their bytes
    "binary": pa.large_binary(),
    "integer": pa.decimal128(20, 0),  # signed and unsigned 64 bits
}
"""The one type in which each kind is compared."""


class _IdSetMeta(msgspec.Struct, frozen=True):
    kind: IdKind
    count: int
    bits: int
    """How many bits of a hash choose a bit."""
    seed: int


class IdSet:
    """The ids in a folder, as tasks look them up. Implements `formats.base.IdMatcher`."""

    def __init__(self, folder: Path, *, prefix: str = "") -> None:
        """`prefix`: what the names of its files begin with."""
        self._meta = msgspec.json.decode((folder / f"{prefix}{_META}").read_bytes(), type=_IdSetMeta)
        self.kind: IdKind = self._meta.kind
        self.count = self._meta.count
        self.values = _read(folder / f"{prefix}{_VALUES}")
        """The ids, each once, in the type in which its kind is compared."""
        self._bits = np.load(folder / f"{prefix}{_BITS}", mmap_mode="r")
        self._hashes = np.load(folder / f"{prefix}{_HASHES}", mmap_mode="r")
        self._fences: list[Any] = _read(folder / f"{prefix}{_FENCES}").to_pylist()

        self._few: dict[Any, Any] = {}
        index = folder / f"{prefix}{_INDEX}"
        self.index_hashes: NDArray[np.uint64] | None = np.load(index, mmap_mode="r") if index.exists() else None
        """The hashes for `id_index.look_up`, sorted; None: the run has no key."""

    def matches(self, values: Any) -> NDArray[np.bool_]:
        """Return for each value whether it is one of the ids. Null is none."""
        values = strip_extension(values)
        if pa.types.is_dictionary(values.type):
            found = pa.array(self.matches(values.dictionary))
            return fill_nulls(pc.take(found, values.indices))
        matched = np.zeros(len(values), dtype=np.bool_)
        if not len(values) or not self.count:
            return matched
        if self.count <= SMALL_SET_MAX:
            if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
                values = to_comparable(values, self.kind)  # Arrow cannot look up views
            return fill_nulls(pc.is_in(values, value_set=self._small_set_as(values.type)))
        compared = to_comparable(values, self.kind)
        hashes = hash_values(compared, self.kind, self._meta.seed)
        places = hashes >> np.uint64(64 - self._meta.bits)
        may = (self._bits[places >> np.uint64(3)] >> (places & np.uint64(7)).astype(np.uint8)) & np.uint8(1)
        if values.null_count:
            may &= np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.uint8)
        rows = np.flatnonzero(may)
        at = np.searchsorted(self._hashes, hashes[rows])
        while len(rows):  # a round for each id of the same hash
            here = at < len(self._hashes)
            here[here] = self._hashes[at[here]] == hashes[rows[here]]
            rows, at = rows[here], at[here]
            same = fill_nulls(pc.equal(self.values.take(pa.array(at)), compared.take(pa.array(rows))))
            matched[rows[same]] = True
            rows, at = rows[~same], at[~same] + 1
        return matched

    def _small_set_as(self, type_: Any) -> Any:
        """Return those ids that a column of this type can have, as that type."""
        if type_ not in self._few:
            values = self.values
            if self.kind == "integer":
                values = values.filter(pc.is_in(values.cast(type_, safe=False).cast(values.type), value_set=values))
            elif pa.types.is_fixed_size_binary(type_):
                values = values.filter(pc.equal(pc.binary_length(values), type_.byte_width)).cast(pa.binary())
            self._few[type_] = values.cast(type_, safe=False)
        return self._few[type_]

    def may_match(self, minimum: Any, maximum: Any) -> bool:
        """Return whether an id may lie between two values, both included. It is certain up to `FENCES_MAX` ids."""
        if not self._fences:
            return False
        low, high = _sort_key(minimum), _sort_key(maximum)
        first = bisect.bisect_left(self._fences, low)
        if first < len(self._fences) and self._fences[first] <= high:
            return True
        is_exact = len(self._fences) == self.count
        return not is_exact and 0 < first < len(self._fences)


def write_ids(folder: Path, kind: IdKind, batches: Iterable[Any], *, prefix: str = "") -> int:
    """Write ids, of their kind or already as it is compared, to a folder, each once; return how many there are. Null is
    left out. `prefix`: what the names of the files begin with.
    """
    seed = secrets.randbits(64)
    type_ = COMPARED_TYPES[kind]
    chunks = [
        each if each.type == type_ else to_comparable(each, kind) for each in (batch.drop_null() for batch in batches)
    ]
    values: Any = pa.chunked_array(chunks, type=type_).unique()
    hashes = hash_values(values, kind, seed)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    bits = max(10, int(len(values) * BITS_PER_ID).bit_length())
    table = np.zeros(1 << (bits - 3), dtype=np.uint8)
    places = hashes >> np.uint64(64 - bits)
    np.bitwise_or.at(table, places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8))
    spread = np.linspace(0, len(values) - 1, min(len(values), FENCES_MAX), dtype=np.int64)
    fences = values.take(pc.sort_indices(values).take(pa.array(spread)))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / f"{prefix}{_VALUES}", values.take(pa.array(order)))
    _write(folder / f"{prefix}{_FENCES}", fences)
    np.save(folder / f"{prefix}{_HASHES}", hashes)
    np.save(folder / f"{prefix}{_BITS}", table)
    (folder / f"{prefix}{_META}").write_bytes(msgspec.json.encode(_IdSetMeta(kind, len(values), bits, seed)))
    return len(values)


def write_index_hashes(folder: Path, hashes: NDArray[np.uint64], *, prefix: str = "") -> None:
    np.save(folder / f"{prefix}{_INDEX}", hashes)


def strip_extension(values: Any) -> Any:
    """Return the storage of an extension type, such as the 16 bytes of UUIDs; other values as they are."""
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def to_comparable(values: Any, kind: IdKind) -> Any:
    """Return the values in the one type in which a kind is compared."""
    if kind_of(values.type) != kind:
        raise TypeError(f"{values.type} is no {kind}")
    values = strip_extension(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if kind == "integer":
        return values.cast(pa.decimal128(20, 0))
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    return values.cast(pa.large_binary())


def hash_values(values: Any, kind: IdKind, seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each value; of null any."""
    if kind == "integer":
        width = values.type.byte_width
        raw = np.frombuffer(values.buffers()[1], np.uint8)[width * values.offset :][: width * len(values)]
        return hash_rows(raw.reshape(len(values), width), seed, width)
    return hash_texts(values, seed, words_max=WORDS_MAX)


def _sort_key(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def fill_nulls(found: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _write(file: Path, values: Any) -> None:
    table = pa.table({"id": values})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _read(file: Path) -> Any:
    """Map the values of a file into memory."""
    column = pa.ipc.open_file(pa.memory_map(str(file))).read_all().column("id")
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
