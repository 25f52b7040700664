"""`memory://name`: an object store in a dict, for tests and for trying things out. The data ends with the process.

Thread-safe. Each URL names one namespace within the process; all that open it share its objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from sortedcontainers import SortedDict

from refstore.core.clock import Clock, SystemClock
from refstore.errors import AlreadyExists, InvalidSettings, ObjectNotFound
from refstore.objects.base import (
    CHUNK_BYTES,
    Body,
    BodyDigest,
    DeleteResult,
    ObjectInfo,
    ObjectPage,
    ObjectStore,
    StoredObject,
    check_length,
    chunks_of,
    clip_range,
)
from refstore.objects.object_keys import check_key, check_keys, check_prefix

if TYPE_CHECKING:
    from refstore.objects import OpenOptions
    from refstore.objects.store_urls import StoreURL


class _MemoryObject(NamedTuple):
    body: bytes
    mtime_ms: int


class MemoryObjects(ObjectStore):
    def __init__(self, *, clock: Clock | None = None, name: str = "unnamed") -> None:
        self._objects: SortedDict[str, _MemoryObject] = SortedDict()
        self._lock = Lock()
        self._clock = clock or SystemClock()
        self._url = f"memory://{name}"

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def url(self) -> str:
        return self._url

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        check_key(key)
        content = b"".join(chunks_of(body))
        tally = BodyDigest(key)
        tally.add(content)
        with self._lock:
            if if_absent and key in self._objects:
                raise AlreadyExists(f"there is an object at {key!r} already; it was not changed")
            self._objects[key] = _MemoryObject(content, self._clock.now_ms())
        return tally.stored_object

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        body = self._find(key).body
        check_length(key, size_bytes, len(body))
        first, last = clip_range(key, start, end, len(body))
        return (body[at : min(at + CHUNK_BYTES, last)] for at in range(first, last, CHUNK_BYTES))

    def head(self, key: str) -> ObjectInfo:
        stored = self._find(key)
        return ObjectInfo(key, len(stored.body), stored.mtime_ms)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        low = max(prefix, after)
        with self._lock:
            page = [
                ObjectInfo(key, len(self._objects[key].body), self._objects[key].mtime_ms)
                for key in takewhile(
                    lambda key: key.startswith(prefix) and not (before and key >= before),
                    self._objects.irange(minimum=low or None),
                )
                if key > after
            ]
        return iter(page)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        check_keys(keys)
        deleted: list[str] = []
        missing: list[str] = []
        with self._lock:
            for key in dict.fromkeys(keys):
                (missing if self._objects.pop(key, None) is None else deleted).append(key)
        return DeleteResult(tuple(deleted), tuple(missing), ())

    def delete_unchanged(self, objects: ObjectPage) -> DeleteResult:
        check_keys(objects.keys)
        deleted, missing, changed = list[str](), list[str](), list[str]()
        with self._lock:
            for key, size_bytes, mtime_ms, _ in zip(*objects, strict=True):
                stored = self._objects.get(key)
                if stored is None:
                    missing.append(key)
                elif (len(stored.body), stored.mtime_ms) != (size_bytes, mtime_ms):
                    changed.append(key)
                else:
                    del self._objects[key]
                    deleted.append(key)
        return DeleteResult(tuple(deleted), tuple(missing), (), changed_keys=tuple(changed))

    def _find(self, key: str) -> _MemoryObject:
        check_key(key)
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFound(f"there is no object at {key!r} in {self.url}")
        return stored


_namespaces: Final[dict[str, MemoryObjects]] = {}
"""By URL: opening a name again must give the same objects, as on any other store."""
_namespaces_lock: Final = Lock()


def open_memory(url: StoreURL, options: OpenOptions) -> ObjectStore:
    url.check_options()
    name = f"{url.host}{url.path.rstrip('/')}"
    if not name:
        raise InvalidSettings("memory:// needs a name; write memory://name")
    with _namespaces_lock:
        return _namespaces.setdefault(name, MemoryObjects(clock=options.clock, name=name))
