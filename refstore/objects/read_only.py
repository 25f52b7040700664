"""An object store that only reads, for lakes that were opened so: other calls raise before the store hears of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from refstore.errors import LakeReadOnly
from refstore.objects.base import ObjectInfo, ObjectPage, ObjectStore, SkippedKeys, VersioningStatus


def _refuse(*_: object, **__: object) -> NoReturn:
    raise LakeReadOnly


class ReadOnlyObjects(ObjectStore):
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    # ---- what reads

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        return self._store.get(key, start=start, end=end, size_bytes=size_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._store.head(key)

    def head_many(self, keys: Sequence[str]) -> Sequence[ObjectInfo | None]:
        return self._store.head_many(keys)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix, after=after, before=before)

    def list_pages(
        self, prefix: str = "", *, skipped: SkippedKeys, after: str = "", before: str = ""
    ) -> Iterator[ObjectPage]:
        return self._store.list_pages(prefix, skipped=skipped, after=after, before=before)

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return self._store.presign_get(key, expires_seconds=expires_seconds)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_remote(self) -> bool:
        return self._store.is_remote

    @property
    def local_folder(self) -> Path | None:
        return self._store.local_folder

    @property
    def conditional_put(self) -> bool:
        return self._store.conditional_put

    def versioning_status(self) -> VersioningStatus:
        return self._store.versioning_status()

    def is_stored(self, key: str) -> bool:
        return self._store.is_stored(key)

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        return self._store.lifecycle_rules()

    def read(self, key: str) -> bytes:
        return self._store.read(key)

    def close(self) -> None:
        self._store.close()

    # ---- what writes, or lets others write

    put = copy = delete_many = delete_unchanged = tag_many = set_lifecycle_rules = presign_put = sweep_temporary = (
        _refuse
    )
    begin_upload = put_part = copy_part = complete_upload = join = abort_uploads = _refuse
