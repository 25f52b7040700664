"""Where a run keeps its files, in the repository's own namespace, and which objects of a namespace are whose.

    _refstore/gc/<mark id>/listing/<number>-<attempt>.parquet    what the store listed: a stretch of addresses in order
    _refstore/gc/<mark id>/kept/<number>.parquet       what the KV names
    _refstore/gc/<mark id>/mark/<number>-<attempt>.parquet       what is to go: address, size, time, kind, reason
    _refstore/gc/<mark id>/sweep/<number>-<attempt>.parquet      what became of each, as the store confirmed it
    _refstore/gc/<mark id>/*.json, report.html         counts, for machines and for people

They are read and written by refstore's own drivers, by the driver and the executors alike: a run needs no other storage. A file is
written whole or not at all, and a step that is done again writes the same names again; but for the listing and the
mark, which depend on what the store says at the time: there each attempt of a task has names of its own, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from io import BytesIO
from itertools import islice
from typing import Any, Final

import msgspec

from offline_gc.arrow import pa, pq
from refstore.commits import names
from refstore.context import Context
from refstore.errors import Corrupt, ObjectNotFound, RefstoreError
from refstore.ids import OWN_ADDRESS_PATTERN, Address, is_own
from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore.objects.local import LocalObjects
from refstore.safety import Safety

ROOT: Final = "_refstore/gc/"
PRIVATE: Final = "_refstore/"
TAG: Final = "refstore-expire-now"
"""The object tag that a bucket's lifecycle rule deletes by, where the sweep's mode is `tag`, and the settings do not name another."""
DATA: Final = "data/"
BULK_KEYS: Final = 1000
"""What a store deletes at once."""

__all__ = [
    "DATA",
    "OWN_ADDRESS_PATTERN",
    "PRIVATE",
    "ROOT",
    "TAG",
    "Kind",
    "Work",
    "folder_of",
    "kind_of",
    "read_json",
    "store_at",
    "work_of",
    "write_json",
]


class Kind(IntEnum):
    """What an object of a namespace is. Appended to only: it stands in files."""

    DATA = 0
    RANGE = 1
    METARANGE = 2
    ADDED = 3
    FOREIGN = 4
    """Nothing that refstore writes, and nothing that it can name."""
    OURS = 5
    """Journals, reports, the namespace's own object: never listed for deletion."""


_FOLDERS: Final = ((names.RANGES, Kind.RANGE), (names.METARANGES, Kind.METARANGE), (names.ADDED, Kind.ADDED))


def folder_of(kind: Kind) -> str:
    """Where what goes of a kind lies: what is foreign goes only from below `data/`."""
    return next((folder for folder, each in _FOLDERS if each is kind), DATA)


def kind_of(key: str) -> Kind:
    if key.startswith(DATA):
        return Kind.DATA if is_own(Address(key)) else Kind.FOREIGN
    for folder, kind in _FOLDERS:
        if key.startswith(folder):
            return kind if names.id_of_key(key) else Kind.FOREIGN
    return Kind.OURS if key.startswith(PRIVATE) else Kind.FOREIGN


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a run is told."""

    url: str
    """Of the namespace."""
    files: str
    """Of the store that the run's own files are in: the namespace itself, but in a simulation."""
    mark_id: str
    seed: int
    """Of the addresses' keys: another one in each run."""
    io_timeout_seconds: float = Safety().objects_io_seconds
    """How long a request of a task may be under way: as long as one of the driver."""

    def place(self, folder: str, number: int, attempt: str = "") -> str:
        """`attempt`: of the task that writes it, where another one may come to something else."""
        return f"{ROOT}{self.mark_id}/{folder}/{number:06d}{attempt and f'-{attempt}'}.parquet"

    def in_namespace(self) -> Work:
        """For files of other runs, which are where they always are."""
        return msgspec.structs.replace(self, files=self.url)

    def file(self, name: str) -> str:
        return f"{ROOT}{self.mark_id}/{name}"


def work_of(ctx: Context, mark_id: str, seed: int, *, files: str = "") -> Work:
    """`files`: elsewhere than in the namespace."""
    url = ctx.objects.url
    return Work(url=url, files=files or url, mark_id=mark_id, seed=seed, io_timeout_seconds=ctx.safety.objects_io_seconds)


_THREADS: Final = 8
"""Requests under way in a task, at a store across a network."""
_stores: dict[tuple[str, float], ObjectStore] = {}


def store_at(url: str, work: Work) -> ObjectStore:
    """The store of one of the work's URLs, opened once in each process: a worker goes through many tasks."""
    wanted = (url, work.io_timeout_seconds)
    found = _stores.get(wanted)
    if found is None:
        found = _stores[wanted] = open_objects(url, io_timeout_seconds=work.io_timeout_seconds)
    return found


def threads_at(work: Work) -> int:
    """How many requests a task has under way."""
    return 1 if isinstance(store_at(work.url, work), LocalObjects) else _THREADS


# ---- files


def write_table(store: ObjectStore, key: str, table: Any) -> int:
    """Write a Parquet file; its size in bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="lz4", use_dictionary=["reason", "outcome", "why"], write_statistics=False)
    body: bytes = sink.getvalue().to_pybytes()
    store.put(key, body)
    return len(body)


def read_table(store: ObjectStore, key: str, columns: Sequence[str] | None = None) -> Any:
    """Raises Corrupt: it is not there, or not Parquet. What a run has written for itself must be there to the last file."""
    try:
        return pq.read_table(BytesIO(store.read(key)), columns=columns, use_threads=False)
    except ObjectNotFound as error:
        raise Corrupt(f"{key} is not in {store.url}; the run that wrote it cannot be trusted, mark again") from error
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key} in {store.url} is not the Parquet that was written ({error}); mark again") from error


def remove(store: ObjectStore, mark_id: str, *beginnings: str) -> None:
    """Remove a run's files that nobody needs any more: those whose names begin so, or all of them. What stays because the store does not
    answer is removed by a later run."""
    with suppress(RefstoreError):
        for beginning in beginnings or ("",):
            found = (info.key for info in store.list(f"{ROOT}{mark_id}/{beginning}"))
            while page := list(islice(found, BULK_KEYS)):
                store.delete_many(page)


def write_json(store: ObjectStore, key: str, value: object) -> None:
    store.put(key, msgspec.json.format(msgspec.json.encode(value), indent=1))


def read_json(store: ObjectStore, key: str) -> Any:
    """Raises ObjectNotFound, Corrupt."""
    try:
        return msgspec.json.decode(store.read(key))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key} in {store.url} is not the JSON that was written ({error}); mark again") from error
