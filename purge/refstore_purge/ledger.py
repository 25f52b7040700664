"""The ledger: which ids were purged, as keyed hashes, so that later runs find what arrives late or returns.

    _refstore/purge/ledger/<key>/<run>.parquet     for each id of a run: a hash of 48 bits, and an HMAC

A late upload, a restore from the trash, or a KV that was put back can bring rows of purged ids again. A run with
`--ledger` looks for all ids of the ledger in what it has not looked at. The hash of 48 bits is the index's
(`index.py`) and only chooses what is compared; HMAC-SHA-256 (RFC 2104) under a key of its own decides. Both keys are
derived from the purge's, which lies neither in the KV nor in the namespace: without it nobody can try ids, and when it
is destroyed the ledger says nothing any more.
"""

from __future__ import annotations

import hmac
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from refstore.errors import Corrupt, Invalid, NotFound, ObjectNotFound
from refstore.objects.base import ObjectStore
from refstore_purge import index
from refstore_purge.formats.base import Kind
from refstore_purge.ids import IdSet, comparable, filled
from refstore_purge.untyped_arrow import pa, pc, pq

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER: Final = "_refstore/purge/ledger/"
MAC_BYTES: Final = 32

_META: Final = "ledger.json"
_HASHES: Final = "ledger-hashes.npy"
_MACS: Final = "ledger-macs.npy"
_KIND: Final = b"refstore.kind"
_AT: Final = b"refstore.at_ms"


class Entry(NamedTuple):
    """What the ledger has of a run."""

    run: str
    at_ms: int
    kind: Kind
    ids: int


class _Meta(msgspec.Struct, frozen=True):
    kind: Kind
    count: int
    hash_key: bytes
    mac_key: bytes


class LedgerSet:
    """The ids of a ledger in a folder, as tasks look them up. Implements `formats.base.Ids`."""

    def __init__(self, folder: Path, *, prefix: str = "") -> None:
        """`prefix`: what the names of its files begin with."""
        self._meta = msgspec.json.decode((folder / f"{prefix}{_META}").read_bytes(), type=_Meta)
        self._hashes: NDArray[np.uint64] = np.load(folder / f"{prefix}{_HASHES}", mmap_mode="r")
        self._macs: NDArray[np.uint8] = np.load(folder / f"{prefix}{_MACS}", mmap_mode="r")

    @property
    def kind(self) -> Kind:
        return self._meta.kind

    @property
    def count(self) -> int:
        return self._meta.count

    @property
    def index_hashes(self) -> NDArray[np.uint64]:
        """The hashes for `index.look`, sorted."""
        return self._hashes

    def may_match(self, minimum: Any, maximum: Any) -> bool:
        """Return True: hashes do not tell what lies between two values."""
        del minimum, maximum
        return True

    def matches(self, values: Any) -> NDArray[np.bool_]:
        """Return for each value whether it is one of the ids. Null is none."""
        if pa.types.is_dictionary(values.type):
            found = pa.array(self.matches(values.dictionary))
            return filled(pc.take(found, values.indices))
        compared = comparable(values, self.kind)
        distinct = compared.unique().drop_null()
        hashes = index.hash_each(distinct, self.kind, self._meta.hash_key)
        places = np.minimum(np.searchsorted(self._hashes, hashes), max(len(self._hashes) - 1, 0))
        may = np.flatnonzero(self._hashes[places] == hashes) if len(self._hashes) else np.zeros(0, np.int64)
        certain = [
            place
            for place, value in zip(may.tolist(), distinct.take(pa.array(may)).to_pylist(), strict=True)
            if self._has(hashes[place], mac(value, self.kind, self._meta.mac_key))
        ]
        return filled(pc.is_in(compared, value_set=distinct.take(pa.array(certain, pa.int64()))))

    def _has(self, hash_: np.uint64, wanted: bytes) -> bool:
        at = int(np.searchsorted(self._hashes, hash_))
        while at < len(self._hashes) and self._hashes[at] == hash_:  # several ids may share a hash
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


def mac(value: Any, kind: Kind, key: bytes) -> bytes:
    """Return the HMAC of an id; integers are written in decimal digits."""
    body = str(int(value)).encode() if kind == "integer" else bytes(value)
    return hmac.digest(key, kind.encode() + b":" + body, "sha256")


def write(store: ObjectStore, key: index.Key, run: str, ids: IdSet, at_ms: int) -> None:
    """Write the ids of a run to the ledger. Raises ObjectsUnavailable."""
    distinct = ids.values
    hashes = index.hash_each(distinct, ids.kind, key.hash_key)
    order = np.argsort(hashes, kind="stable")
    macs = [mac(value, ids.kind, key.mac_key) for value in distinct.take(pa.array(order)).to_pylist()]
    schema = pa.schema(
        [("hash", pa.int64()), ("mac", pa.binary(MAC_BYTES))],
        metadata={_KIND: ids.kind.encode(), _AT: str(at_ms).encode()},
    )
    table = pa.table([pa.array(hashes[order].astype(np.int64)), pa.array(macs, pa.binary(MAC_BYTES))], schema=schema)
    out = io.BytesIO()
    pq.write_table(table, out, use_dictionary=False, compression="none")
    store.put(f"{FOLDER}{key.name}/{run}.parquet", out.getvalue())


def scan(store: ObjectStore, key: index.Key) -> Iterator[Entry]:
    """Yield what the ledger has under a key, the oldest run first. Raises Corrupt."""
    for info in store.list(f"{FOLDER}{key.name}/"):
        kind, at_ms, table = _read(store, info.key)
        run = info.key.rpartition("/")[2].removesuffix(".parquet")
        yield Entry(run, at_ms, kind, table.num_rows)


def forget(store: ObjectStore, key: index.Key, run: str) -> None:
    """Drop the ids of a run. Raises NotFound, ObjectsUnavailable."""
    name = f"{FOLDER}{key.name}/{run}.parquet"
    try:
        store.head(name)
    except ObjectNotFound:
        raise NotFound(f"the ledger has no run {run!r} under this key; `refstore purge ledger` lists them") from None
    store.delete_many([name])


def load(store: ObjectStore, key: index.Key, folder: Path, *, id_type: str = "") -> int:
    """Write the ids of the whole ledger to a folder, for `LedgerSet`; return how many there are.

    Raises NotFound (it is empty), Invalid (it has several types, and `id_type` chooses none), Corrupt.
    """
    found: dict[Kind, list[Any]] = {}
    for info in store.list(f"{FOLDER}{key.name}/"):
        kind, _, table = _read(store, info.key)
        found.setdefault(kind, []).append(table)
    if not found:
        raise NotFound("the ledger has no ids under this key; runs with a purge_key write it")
    kinds: list[Kind] = [kind for kind in found if id_type in ("", kind)]
    if len(kinds) != 1:
        raise Invalid(f"the ledger has ids of the types {', '.join(sorted(found))}; say one of them with --id-type")
    tables = found[kinds[0]]
    hashes = np.concatenate([table.column("hash").to_numpy().astype(np.uint64) for table in tables])
    bodies = b"".join(body for table in tables for body in table.column("mac").to_pylist())
    macs = np.frombuffer(bodies, np.uint8).reshape(-1, MAC_BYTES)
    order = np.argsort(hashes, kind="stable")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    np.save(folder / _HASHES, hashes[order])
    np.save(folder / _MACS, macs[order])
    meta = _Meta(kinds[0], len(hashes), key.hash_key, key.mac_key)
    (folder / _META).write_bytes(msgspec.json.encode(meta))
    return len(hashes)


def _read(store: ObjectStore, name: str) -> tuple[Kind, int, Any]:
    try:
        table = pq.read_table(io.BytesIO(store.read(name)))
        metadata = table.schema.metadata
        return msgspec.convert(metadata[_KIND].decode(), Kind), int(metadata[_AT]), table
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the ledger's file {name} cannot be read ({error}); restore it from a backup, or remove it"
        ) from error
