"""A store with multipart uploads of its own, over one that has none: the worst that a server may do is several steps.

uploads/<key>/<id>            an upload that was begun
uploads/<key>/<id>/<number>   a part of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from refstore.errors import AlreadyExists, ObjectNotFound
from refstore.objects.base import Body, ObjectInfo, ObjectStore, StoredPart, chunks_of
from tests.kit.forwarding import ForwardingObjects

UPLOADS = "uploads/"


class StoreWithUploads(ForwardingObjects):
    def __init__(self, objects: ObjectStore, new_id: Callable[[], str]) -> None:
        self.inner = objects
        self._new_id = new_id

    def begin_upload(self, key: str) -> str:
        upload = self._new_id()
        self.inner.put(f"{UPLOADS}{key}/{upload}", b"")
        return upload

    def put_part(self, key: str, upload: str, number: int, body: Body) -> StoredPart:
        self.inner.head(f"{UPLOADS}{key}/{upload}")
        stored = self.inner.put(f"{UPLOADS}{key}/{upload}/{number:05d}", b"".join(chunks_of(body)))
        return StoredPart(stored.size_bytes, stored.md5)

    def complete_upload(self, key: str, upload: str, parts: Sequence[tuple[int, str]]) -> ObjectInfo:
        try:
            body = b"".join(self.inner.read(f"{UPLOADS}{key}/{upload}/{number:05d}") for number, _ in parts)
        except ObjectNotFound:
            return self.inner.head(key)
        with suppress(AlreadyExists):
            self.inner.put(key, body, if_absent=True)
        self.abort_uploads(key)
        return self.inner.head(key)

    def abort_uploads(self, key: str) -> int:
        known = [info.key for info in self.inner.list(f"{UPLOADS}{key}/")]
        if known:
            self.inner.delete_many(known)
        return len({name.split("/")[-1] for name in known})
