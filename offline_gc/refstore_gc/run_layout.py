"""Where a run keeps its files in the repository's namespace, and what the objects of a namespace are.

    _refstore/gc/<mark id>/listing/<number>-<attempt>.parquet    what the store listed: a chunk of addresses, in order
    _refstore/gc/<mark id>/kept/<number>.parquet       what the KV names
    _refstore/gc/<mark id>/mark/<number>-<attempt>.parquet       garbage: address, size, time, kind, reason
    _refstore/gc/<mark id>/sweep/<number>-<attempt>.parquet      what became of each, as the store confirmed it
    _refstore/gc/<mark id>/*.json                      counts

A run's own process and its tasks read and write them through refstore's own object stores: a run needs no other
storage. A file is written whole or not at all. A step that is done again writes the same names again, except the
listing and the mark. These depend on what the store says at the time, so each attempt of a task has names of its own,
and reports them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from io import BytesIO
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from refstore.context import Context
from refstore.core.ids import Address, is_own
from refstore.core.safety import Safety
from refstore.errors import Corrupt, ObjectNotFound, RefstoreError
from refstore.objects import open_objects
from refstore.objects.base import OWN_FILES, ObjectStore
from refstore.objects.local import LocalObjects
from refstore.versioning.commits import object_names
from refstore_gc.address_codec import AddressKeys
from refstore_gc.untyped_arrow import pa, pq

T = TypeVar("T")

ROOT: Final = "_refstore/gc/"
TAG: Final = "refstore-expire-now"
"""The object tag that a bucket's lifecycle rule deletes by, where the sweep's mode is `tag`."""
DATA: Final = "data/"
BULK_KEYS: Final = 1000
"""How many keys a store deletes in one request."""


class ObjectKind(IntEnum):
    """What an object of a namespace is. The numbers stand in files: only append."""

    DATA = 0
    RANGE = 1
    METARANGE = 2
    ADDED = 3
    FOREIGN = 4
    """Nothing that refstore writes, and nothing that it can name."""
    OURS = 5
    """Journals, reports, the namespace's own object: never listed for deletion."""


_FOLDERS: Final = (
    (object_names.RANGES, ObjectKind.RANGE),
    (object_names.METARANGES, ObjectKind.METARANGE),
    (object_names.ADDED_ADDRESSES, ObjectKind.ADDED),
)


def folder_of(kind: ObjectKind) -> str:
    """Return the folder of a kind. Foreign objects are garbage only below `data/`."""
    return next((folder for folder, each in _FOLDERS if each is kind), DATA)


def kind_of(key: str) -> ObjectKind:
    if key.startswith(DATA):
        return ObjectKind.DATA if is_own(Address(key)) else ObjectKind.FOREIGN
    for folder, kind in _FOLDERS:
        if key.startswith(folder):
            return kind if object_names.id_of_key(key) else ObjectKind.FOREIGN
    return ObjectKind.OURS if key.startswith(OWN_FILES) else ObjectKind.FOREIGN


class RunLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a run needs to know."""

    url: str
    """Of the namespace."""
    files: str
    """The store of the run's own files: the namespace itself, except in a simulation."""
    mark_id: str
    seed: int
    """The seed of the addresses' keys."""
    io_timeout_seconds: float = Safety().objects_io_seconds
    """How long a request of a task may take: as long as one of the run's own process."""
    root: str = ROOT
    """The folder of all runs' files in their store."""

    def file_key(self, folder: str, number: int, attempt: str = "") -> str:
        """Return a file's key. `attempt`: of the task, where another attempt may write something else."""
        return f"{self.root}{self.mark_id}/{folder}/{number:06d}{attempt and f'-{attempt}'}.parquet"

    def to_namespace(self) -> RunLayout:
        """Return the layout for files of other runs, which always lie in the namespace."""
        return msgspec.structs.replace(self, files=self.url)

    def named_file_key(self, name: str) -> str:
        return f"{self.root}{self.mark_id}/{name}"


def make_layout(ctx: Context, mark_id: str, seed: int, *, files: str = "") -> RunLayout:
    """Return the layout of a run. `files`: a store other than the namespace."""
    url = ctx.objects.url
    return RunLayout(
        url=url, files=files or url, mark_id=mark_id, seed=seed, io_timeout_seconds=ctx.safety.objects_io_seconds
    )


_THREADS: Final = 8
"""How many requests a task makes at once, at a store across a network."""
_stores: dict[tuple[str, float], ObjectStore] = {}


def open_store(url: str, layout: RunLayout) -> ObjectStore:
    """Return the store of one of the layout's URLs. It is opened once in each process, for many tasks."""
    cache_key = (url, layout.io_timeout_seconds)
    found = _stores.get(cache_key)
    if found is None:
        found = _stores[cache_key] = open_objects(url, io_timeout_seconds=layout.io_timeout_seconds)
    return found


def request_threads(layout: RunLayout) -> int:
    """Return how many requests a task makes at once."""
    return 1 if isinstance(open_store(layout.url, layout), LocalObjects) else _THREADS


# ---- files


def write_table(store: ObjectStore, key: str, table: Any) -> None:
    """Write a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="lz4", use_dictionary=["reason", "outcome", "why"], write_statistics=False)
    store.put(key, sink.getvalue().to_pybytes())


def read_table(store: ObjectStore, key: str, columns: Sequence[str] | None = None) -> Any:
    """Raises Corrupt: it is not there, or not Parquet. What a run has written for itself must be there to the last
    file.
    """
    try:
        return pq.ParquetFile(BytesIO(store.read(key))).read(columns=columns, use_threads=False)
    except ObjectNotFound as error:
        raise Corrupt(f"{key} is not in {store.url}; the run that wrote it cannot be trusted, mark again") from error
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key} in {store.url} is not the Parquet that was written ({error}); mark again") from error


def remove_run_files(store: ObjectStore, mark_id: str, *beginnings: str, root: str = ROOT) -> None:
    """Remove a run's files whose names begin so, or all of them. Files that stay because the store does not answer are
    removed by a later run.
    """
    with suppress(RefstoreError):
        for beginning in beginnings or ("",):
            found = (info.key for info in store.list(f"{root}{mark_id}/{beginning}"))
            while page := list(islice(found, BULK_KEYS)):
                store.delete_many(page)


def write_json(store: ObjectStore, key: str, value: object) -> None:
    store.put(key, msgspec.json.format(msgspec.json.encode(value), indent=1))


def read_json(store: ObjectStore, key: str, kind: type[T], advice: str) -> T:
    """Raises ObjectNotFound, Corrupt. `advice`: what to do if it is not what was written."""
    try:
        return msgspec.json.decode(store.read(key), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key} in {store.url} is not the JSON that was written ({error}); {advice}") from error


# ---- files that begin with their own hash. One that is damaged or missing raises Corrupt: one key too few would be a
# lost object.

_HASH_BYTES: Final = 16


def write_value(store: ObjectStore, key: str, value: object) -> None:
    body = msgspec.msgpack.encode(value)
    store.put(key, _hash(body) + body)


def read_value(store: ObjectStore, key: str, kind: type[T]) -> T:
    """Raises ObjectNotFound, Corrupt."""
    body = memoryview(store.read(key))
    if _hash(body[_HASH_BYTES:]) != bytes(body[:_HASH_BYTES]):
        raise _corrupt_file(store, key, "its hash is another one")
    try:
        return msgspec.msgpack.decode(body[_HASH_BYTES:], type=kind)
    except msgspec.DecodeError as error:
        raise _corrupt_file(store, key, str(error)) from error


def read_required(store: ObjectStore, key: str, kind: type[T]) -> T:
    """Raises Corrupt, also where the file is missing."""
    try:
        return read_value(store, key, kind)
    except ObjectNotFound as error:
        raise _corrupt_file(store, key, "it is not there") from error


def write_keys(store: ObjectStore, key: str, keys: AddressKeys) -> None:
    write_value(store, key, keys.tobytes())


def read_keys(store: ObjectStore, key: str) -> AddressKeys:
    """Raises Corrupt."""
    return decode_keys(read_required(store, key, bytes))


def decode_keys(body: bytes) -> AddressKeys:
    return np.frombuffer(body, np.uint64) if body else np.empty(0, np.uint64)


def _hash(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()


def _corrupt_file(store: ObjectStore, key: str, why: str) -> Corrupt:
    return Corrupt(f"{key} in {store.url} is not what an earlier run wrote ({why}); mark again with --full")
