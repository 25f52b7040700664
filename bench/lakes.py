"""Lakes with many staged objects, made by the product's own uploads, and the blobs they name, made by the quickest
means.

What is measured afterwards is never the making. The KV is filled by `Repository.upload_each`, so it holds what a
user's lake would; only the blobs' way is short: nowhere, or into a bare file without the care that a real `put` takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from refstore.configuration.settings import embedded_urls
from refstore.core import deadline
from refstore.core.ids import Address, is_own
from refstore.errors import RefstoreError
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.objects import open_objects
from refstore.objects.base import Body, DeleteResult, ObjectInfo, ObjectStore, StoredObject
from refstore.operations.upload import Upload
from refstore.repository import Repository

REPOSITORY: Final = "bench"
BODY_BYTES: Final = 1024
DIRECTORY_ENTRIES: Final = 1000

Sink = Callable[[str, bytes], None]
"""Takes a blob, if it wants it: (key, body)."""


class ShortWay(ObjectStore):
    """A store whose blobs go to a sink. All else (the namespace's claim, ranges, the journal) is the real store's."""

    def __init__(self, store: ObjectStore, sink: Sink) -> None:
        self._store = store
        self._sink = sink

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        if not is_own(Address(key)) or not isinstance(body, bytes):
            return self._store.put(key, body, if_absent=if_absent)
        self._sink(key, body)
        return StoredObject(len(body), sha256(body).hexdigest())

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        return self._store.get(key, start=start, end=end, size_bytes=size_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._store.head(key)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix, after=after, before=before)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        return self._store.delete_many(keys)

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return self._store.presign_get(key, expires_seconds=expires_seconds)

    def presign_put(self, key: str, *, expires_seconds: int, if_absent: bool = False) -> str:
        return self._store.presign_put(key, expires_seconds=expires_seconds, if_absent=if_absent)

    def close(self) -> None:
        self._store.close()


def nowhere(_key: str, _body: bytes) -> None:
    return


def files_under(root: Path) -> Sink:
    """Blobs as files: what `put` leaves behind, without what it takes to leave nothing half done."""
    made: set[str] = set()

    def write(key: str, body: bytes) -> None:
        folder = key.rpartition("/")[0]
        if folder not in made:
            (root / folder).mkdir(parents=True, exist_ok=True)
            made.add(folder)
        write_file(root / key, body)

    return write


def write_file(path: Path, body: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(file, body)
    os.close(file)


def stores_in(folder: Path) -> tuple[str, str]:
    """(kv URL, objects URL) of the embedded default."""
    folder.mkdir(parents=True, exist_ok=True)
    return embedded_urls(folder)


def blobs_of(folder: Path, repo: Repository) -> Path:
    """Where the embedded default keeps a repository's blobs."""
    return folder / "objects" / repo.context.repo


def open_lake(kv_url: str, objects_url: str, sink: Sink | None = None) -> Lake:
    """As `refstore.open` does, but for the blobs' way, where a sink is given."""
    kv = open_kv(kv_url, check=deadline.check)
    if sink is None:
        return Lake(kv, objects_url)
    return Lake(kv, objects_url, open_store=lambda url: ShortWay(open_objects(url), sink))


def path_of(number: int) -> str:
    """Paths sort as their numbers do."""
    return (
        f"events/year=2026/batch-{number // DIRECTORY_ENTRIES:05d}/part-{number % DIRECTORY_ENTRIES:04d}.snappy.parquet"
    )


def body_of(number: int) -> bytes:
    return b"%016d" % number * (BODY_BYTES // 16)


def uploads(numbers: Iterable[int]) -> Iterator[Upload]:
    return (Upload(path=path_of(number), body=body_of(number)) for number in numbers)


def upload(repo: Repository, branch: str, numbers: Iterable[int]) -> int:
    """How many there were. Raises the first refusal."""
    count = 0
    for outcome in repo.upload_each(branch, uploads(numbers)):
        if isinstance(outcome, RefstoreError):
            raise outcome
        count += 1
    return count
