"""The ledger: which ids were purged, as keyed hashes, so that later runs find what arrives late or returns.

    _refstore/purge/ledger/<key>/<run>/<number>.parquet     for each id: a hash of 48 bits, and an HMAC

A run writes a file for each set of ids that its data sets had; the file's metadata name these data sets. A late upload,
a restore from the trash, or a KV that was put back can bring rows of purged ids again. A run with `--ledger` looks in
each data set for the ids that were purged from it, in what it has not looked at. The hash of 48 bits is the index's
(`id_index.py`) and only chooses what is compared; HMAC-SHA-256 (RFC 2104) under a key of its own decides. Both keys are
derived from the purge's, which lies neither in the KV nor in the namespace: without it nobody can try ids, and when it
is destroyed the ledger says nothing any more.
"""

from __future__ import annotations

import hmac
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from refstore.errors import Corrupt, NotFound, ObjectsRefused
from refstore.objects.base import ObjectStore
from refstore.purge_document.document import Dataset
from refstore_purge import id_index
from refstore_purge.formats.base import IdKind
from refstore_purge.formats.registry import load_format
from refstore_purge.purge_ids import IdSet, fill_nulls, to_comparable
from refstore_purge.untyped_pandas import pa, pc, pq

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER: Final = "_refstore/purge/ledger/"
MAC_BYTES: Final = 32

_META: Final = "ledger.json"
_HASHES: Final = "ledger-hashes.npy"
_MACS: Final = "ledger-macs.npy"
_KIND: Final = b"refstore.kind"
_AT: Final = b"refstore.at_ms"
_DATASETS: Final = b"refstore.datasets"


class LedgerEntry(NamedTuple):
    """Ids that a run has purged from the same data sets."""

    run: str
    at_ms: int
    datasets: tuple[str, ...]
    kind: IdKind
    ids: int


class LedgerIds(NamedTuple):
    sets: dict[str, list[str]]
    """The names of the sets in the folder that each data set has, one for each type."""
    ambiguous_datasets: list[str]
    """Data sets with ids of several types, whose files do not say which one they have."""


class _LedgerMeta(msgspec.Struct, frozen=True):
    kind: IdKind
    count: int
    hash_key: bytes
    mac_key: bytes


class LedgerSet:
    """The ids of a ledger in a folder, as tasks look them up. Implements `formats.base.IdMatcher`."""

    def __init__(self, folder: Path, *, prefix: str = "") -> None:
        """`prefix`: what the names of its files begin with."""
        self.meta = msgspec.json.decode((folder / f"{prefix}{_META}").read_bytes(), type=_LedgerMeta)
        self.kind: IdKind = self.meta.kind
        self.count = self.meta.count
        self.index_hashes: NDArray[np.uint64] = np.load(folder / f"{prefix}{_HASHES}", mmap_mode="r")
        """The hashes for `id_index.look_up`, sorted."""
        self._macs: NDArray[np.uint8] = np.load(folder / f"{prefix}{_MACS}", mmap_mode="r")

    def may_match(self, minimum: Any, maximum: Any) -> bool:
        """Return True if there are ids: hashes do not tell what lies between two values."""
        del minimum, maximum
        return bool(self.count)

    def matches(self, values: Any) -> NDArray[np.bool_]:
        """Return for each value whether it is one of the ids. Null is none."""
        compared = to_comparable(values, self.kind)
        distinct = compared.unique().drop_null()
        hashes = id_index.hash_each(distinct, self.kind, self.meta.hash_key)
        places = np.minimum(np.searchsorted(self.index_hashes, hashes), max(len(self.index_hashes) - 1, 0))
        may = np.flatnonzero(self.index_hashes[places] == hashes) if len(self.index_hashes) else np.zeros(0, np.int64)
        certain = [
            place
            for place, value in zip(may.tolist(), distinct.take(pa.array(may)).to_pylist(), strict=True)
            if self._contains(hashes[place], compute_mac(value, self.kind, self.meta.mac_key))
        ]
        return fill_nulls(pc.is_in(compared, value_set=distinct.take(pa.array(certain, pa.int64()))))

    def _contains(self, hash_: np.uint64, wanted: bytes) -> bool:
        at = int(np.searchsorted(self.index_hashes, hash_))
        while at < len(self.index_hashes) and self.index_hashes[at] == hash_:  # several ids may share a hash
            if hmac.compare_digest(self._macs[at].tobytes(), wanted):
                return True
            at += 1
        return False


AnyIds = IdSet | LedgerSet


def open_ids(folder: Path, *, prefix: str = "") -> AnyIds:
    """Open the ids of a run, from a file or from the ledger."""
    if (folder / f"{prefix}{_META}").exists():
        return LedgerSet(folder, prefix=prefix)
    return IdSet(folder, prefix=prefix)


def compute_mac(value: Any, kind: IdKind, key: bytes) -> bytes:
    """Return the HMAC of an id; integers are written in decimal digits."""
    body = str(int(value)).encode() if kind == "integer" else bytes(value)
    return hmac.digest(key, kind.encode() + b":" + body, "sha256")


def write_ledger(
    store: ObjectStore, key: id_index.IndexKey, run: str, sets: Iterable[tuple[AnyIds, Sequence[str]]], at_ms: int
) -> None:
    """Write the ids of a run to the ledger, each set with the data sets that have it. Raises ObjectsUnavailable."""
    for number, (ids, datasets) in enumerate(sets):
        if not isinstance(ids, IdSet):
            continue  # of the ledger, so it is there
        distinct = ids.values
        hashes = id_index.hash_each(distinct, ids.kind, key.hash_key)
        order = np.argsort(hashes, kind="stable")
        macs = [compute_mac(value, ids.kind, key.mac_key) for value in distinct.take(pa.array(order)).to_pylist()]
        schema = pa.schema(
            [("hash", pa.int64()), ("mac", pa.binary(MAC_BYTES))],
            metadata={
                _KIND: ids.kind.encode(),
                _AT: str(at_ms).encode(),
                _DATASETS: msgspec.json.encode(sorted(datasets)),
            },
        )
        columns = [pa.array(hashes[order].astype(np.int64)), pa.array(macs, pa.binary(MAC_BYTES))]
        out = io.BytesIO()
        pq.write_table(pa.table(columns, schema=schema), out, use_dictionary=False, compression="none")
        store.put(f"{FOLDER}{key.name}/{run}/{number}.parquet", out.getvalue())


def scan_ledger(store: ObjectStore, key: id_index.IndexKey) -> Iterator[LedgerEntry]:
    """Yield what the ledger has under a key, the oldest run first. Raises Corrupt."""
    for info in store.list(f"{FOLDER}{key.name}/"):
        yield _read(store, info.key)[0]


def forget_run(store: ObjectStore, key: id_index.IndexKey, run: str) -> None:
    """Drop the ids of a run. Raises NotFound, ObjectsUnavailable; ObjectsRefused if a file cannot be deleted."""
    names = [info.key for info in store.list(f"{FOLDER}{key.name}/{run}/")]
    if not names:
        raise NotFound(f"the ledger has no run {run!r} under this key; `refstore purge ledger` lists them")
    failed = store.delete_many(names).failed_keys
    if failed:
        name, why = failed[0]
        raise ObjectsRefused(
            f"{len(failed)} files of the ledger could not be deleted, so that later runs still look for their ids "
            f"({name}: {why}); allow these credentials to delete them, and forget the run again"
        )


def load_ledger(
    store: ObjectStore, key: id_index.IndexKey, folder: Path, datasets: Sequence[Dataset], *, kind: IdKind | None = None
) -> LedgerIds:
    """Write the ledger's ids of these data sets to a folder, for `LedgerSet`. `kind`: of this type only; None: of each.

    Raises NotFound (it has none of them), Corrupt.
    """
    tables: dict[str, Any] = {}
    wanted: dict[str, dict[IdKind, list[str]]] = {}
    for info in store.list(f"{FOLDER}{key.name}/"):
        entry, tables[info.key] = _read(store, info.key)
        for dataset in entry.datasets:
            if kind in (None, entry.kind):
                wanted.setdefault(dataset, {}).setdefault(entry.kind, []).append(info.key)
    sets: dict[str, list[str]] = {}
    unclear: list[str] = []
    names: dict[tuple[IdKind, tuple[str, ...]], str] = {}
    for dataset in datasets:
        mine: list[tuple[IdKind, tuple[str, ...]]] = [
            (each, tuple(keys)) for each, keys in wanted.get(dataset.name, {}).items()
        ]
        if len(mine) > 1 and dataset.format is not None and load_format(dataset.format).schema_of is None:
            unclear.append(dataset.name)
            continue
        for each in mine:
            if each not in names:
                names[each] = f"{len(names)}-"
                _write(folder, names[each], each[0], [tables[name] for name in each[1]], key)
            sets.setdefault(dataset.name, []).append(names[each])
    if not sets and not unclear:
        raise NotFound("the ledger has no ids of these data sets under this key; runs with a purge_key write it")
    return LedgerIds(sets, unclear)


def write_empty_set(folder: Path, name: str, kind: IdKind, *, like: LedgerSet) -> str:
    """Write a set of a type that has no ids, beside another one; return its name."""
    meta = msgspec.structs.replace(like.meta, kind=kind, count=0)
    _save(folder, name, meta, np.zeros(0, np.uint64), np.zeros((0, MAC_BYTES), np.uint8))
    return name


def _write(folder: Path, name: str, kind: IdKind, tables: Sequence[Any], key: id_index.IndexKey) -> None:
    hashes = np.concatenate([table.column("hash").to_numpy().astype(np.uint64) for table in tables])
    bodies = b"".join(body for table in tables for body in table.column("mac").to_pylist())
    macs = np.frombuffer(bodies, np.uint8).reshape(-1, MAC_BYTES)
    order = np.argsort(hashes, kind="stable")
    _save(folder, name, _LedgerMeta(kind, len(hashes), key.hash_key, key.mac_key), hashes[order], macs[order])


def _save(folder: Path, name: str, meta: _LedgerMeta, hashes: NDArray[np.uint64], macs: NDArray[np.uint8]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    np.save(folder / f"{name}{_HASHES}", hashes)
    np.save(folder / f"{name}{_MACS}", macs)
    (folder / f"{name}{_META}").write_bytes(msgspec.json.encode(meta))


def _read(store: ObjectStore, name: str) -> tuple[LedgerEntry, Any]:
    try:
        table = pq.ParquetFile(io.BytesIO(store.read(name))).read(use_threads=False)
        metadata = table.schema.metadata
        datasets = msgspec.json.decode(metadata[_DATASETS], type=tuple[str, ...])
        kind = msgspec.convert(metadata[_KIND].decode(), IdKind)
        return LedgerEntry(name.split("/")[-2], int(metadata[_AT]), datasets, kind, table.num_rows), table
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the ledger's file {name} cannot be read ({error}); restore it from a backup, or remove it"
        ) from error
