"""The registry of multipart uploads, and the records of their parts (rule 23).

An upload is registered before its address is issued, so that the scrubber knows every upload of which something may be
left. Whether it is open, the reference key of its address decides, and never its record here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from refstore.core import ids
from refstore.core.ids import Address, BranchName, Path, RepositoryId, UploadId
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.multipart_records import MultipartUpload, UploadedPart


class UploadName(NamedTuple):
    """What names a multipart upload. A caller knows all three."""

    branch: BranchName
    path: Path
    upload_id: UploadId

    @property
    def address(self) -> Address:
        """Where its parts are joined."""
        return ids.upload_address(self.upload_id)


class RegisteredUpload(NamedTuple):
    name: UploadName
    raw: bytes
    """Its record as it was read, to write another one in its place."""
    record: MultipartUpload


class WrittenPart(NamedTuple):
    number: int
    address: Address
    part: UploadedPart


class MultipartUploads:
    def __init__(self, kv: KV, repo: RepositoryId) -> None:
        self._kv = kv
        self._repo = repo

    def register(self, name: UploadName, record: MultipartUpload) -> RegisteredUpload:
        raw = encode(record)
        self._kv.set(keys.upload(self._repo, *name), raw)
        return RegisteredUpload(name, raw, record)

    def read(self, name: UploadName) -> RegisteredUpload | None:
        raw = self._kv.get(keys.upload(self._repo, *name))
        return None if raw is ABSENT else RegisteredUpload(name, raw, decode(raw, MultipartUpload))

    def change(self, upload: RegisteredUpload, record: MultipartUpload) -> RegisteredUpload | None:
        """Replace the record, if it is as it was read; None: it was changed meanwhile."""
        raw = encode(record)
        changed = self._kv.set_if(keys.upload(self._repo, *upload.name), upload.raw, raw)
        return RegisteredUpload(upload.name, raw, record) if changed else None

    def forget(self, upload: RegisteredUpload) -> bool:
        """Remove the record, if it is as it was read. Return whether it was."""
        return self._kv.set_if(keys.upload(self._repo, *upload.name), upload.raw, ABSENT)

    def scan(
        self, branch: BranchName | None = None, *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT
    ) -> Iterator[RegisteredUpload]:
        """Yield the registered uploads of a branch, or of all of them, in the order of their paths, then of their
        beginning.

        `after`: the name of a key (`keys.upload`), or the beginning of one.
        """
        start = "" if branch is None else keys.uploads_of(branch) + prefix
        for name, raw in self._kv.scan_all(keys.uploads(self._repo), prefix=start, after=after, page=page):
            yield RegisteredUpload(UploadName(*keys.parse_upload(name)), raw, decode(raw, MultipartUpload))

    def write_part(self, upload_id: UploadId, written: WrittenPart) -> None:
        key = keys.upload_part(self._repo, upload_id, written.number, written.address)
        self._kv.set(key, encode(written.part))

    def scan_parts(self, upload_id: UploadId, *, after: int = 0) -> Iterator[WrittenPart]:
        """Yield every part that was written, in order of number; `newest_parts` chooses among those of one number.
        `after`: only those with numbers after this one.
        """
        last = keys.upload_parts_of(after) + keys.LAST_CODE_POINT
        for name, raw in self._kv.scan_all(keys.upload_parts(self._repo, upload_id), after=last):
            yield WrittenPart(*keys.parse_upload_part(name), decode(raw, UploadedPart))

    def forget_parts(self, upload_id: UploadId) -> None:
        self._kv.delete_range(keys.upload_parts(self._repo, upload_id), "", keys.LAST_CODE_POINT)
