"""A store with multipart uploads of its own, over one that has none: the worst that a server may do is several steps.

uploads/<key>/<id>            an upload that was begun
uploads/<key>/<id>/<number>   a part of it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from refstore.errors import AlreadyExists, ObjectNotFound
from refstore.objects.base import Body, DeleteResult, ObjectInfo, ObjectStore, StoredObject, StoredPart, chunks_of

UPLOADS = "uploads/"


class StoreWithUploads(ObjectStore):
    def __init__(self, objects: ObjectStore, new_id: Callable[[], str]) -> None:
        self._objects = objects
        self._new_id = new_id

    @property
    def url(self) -> str:
        return self._objects.url

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        return self._objects.put(key, body, if_absent=if_absent)

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        return self._objects.get(key, start=start, end=end, size_bytes=size_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._objects.head(key)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self._objects.list(prefix, after=after, before=before)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        return self._objects.delete_many(keys)

    def begin_upload(self, key: str) -> str:
        upload = self._new_id()
        self._objects.put(f"{UPLOADS}{key}/{upload}", b"")
        return upload

    def put_part(self, key: str, upload: str, number: int, body: Body) -> StoredPart:
        self._objects.head(f"{UPLOADS}{key}/{upload}")
        stored = self._objects.put(f"{UPLOADS}{key}/{upload}/{number:05d}", b"".join(chunks_of(body)))
        return StoredPart(stored.size_bytes, stored.md5)

    def complete_upload(self, key: str, upload: str, parts: Sequence[tuple[int, str]]) -> ObjectInfo:
        try:
            body = b"".join(self._objects.read(f"{UPLOADS}{key}/{upload}/{number:05d}") for number, _ in parts)
        except ObjectNotFound:
            return self._objects.head(key)
        with suppress(AlreadyExists):
            self._objects.put(key, body, if_absent=True)
        self.abort_uploads(key)
        return self._objects.head(key)

    def abort_uploads(self, key: str) -> int:
        known = [info.key for info in self._objects.list(f"{UPLOADS}{key}/")]
        if known:
            self._objects.delete_many(known)
        return len({name.split("/")[-1] for name in known})
