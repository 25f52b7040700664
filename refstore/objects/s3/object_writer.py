"""Put one object. A body of up to one part is one PUT; a larger one is a multipart upload with one part in memory.

A part is received whole before it is sent, because the server checks its MD5. A lost reply is planned for: a write that
can succeed only once (`If-None-Match`, a completion) has a write id in the metadata, by which a retry recognises it.
"""

from __future__ import annotations

import random
import secrets
import tempfile
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from botocore.exceptions import ClientError

from refstore.core import deadline, event_log
from refstore.core.clock import Clock
from refstore.errors import AlreadyExists, Invalid, ObjectNotFound, ObjectsUnavailable, RefstoreError
from refstore.objects.base import Body, BodyDigest, ObjectInfo, StoredObject, check_length, chunks_of
from refstore.objects.s3 import errors
from refstore.objects.s3.client import FAILURES, Bucket, parse_server_error
from refstore.objects.s3.object_reader import head_object

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CopySourceTypeDef

T = TypeVar("T")

PARTS_MAX: Final = 10_000
"""S3's limit for one multipart upload."""
COPY_PART_BYTES: Final = 256 << 20
"""What one request copies: so little that its answer comes in time."""
_CONDITIONAL_ATTEMPTS: Final = 4
_NO_UPLOADS: Final = frozenset({"NoSuchUpload", "NotImplemented", "MethodNotAllowed"})
_WRITE_ID: Final = "refstore-write"

_log = event_log.get_logger(__name__)


class ObjectWriter:
    def __init__(self, bucket: Bucket, *, part_bytes: int, conditional: bool, clock: Clock, rng: random.Random) -> None:
        self._bucket = bucket
        self._part_bytes = part_bytes
        self._conditional = conditional
        self._clock = clock
        self._rng = rng

    def put(self, key: str, body: Body, *, if_absent: bool) -> StoredObject:
        full = self._bucket.full_key(key)
        tally = BodyDigest(key)
        parts = _split_parts(_count_chunks(tally, chunks_of(body)), self._part_bytes)
        ahead = deque(islice(parts, 2))
        if if_absent and not self._conditional:
            self._refuse_existing(key)
            if_absent = False
        if len(ahead) > 1:
            (self._put_spooled if if_absent else self._put_parts)(key, full, _chain_parts(ahead, parts))
        elif if_absent:
            self._put_conditionally(key, full, b"".join(ahead))
        else:
            body = b"".join(ahead)
            digest = bytes.fromhex(tally.stored_object.md5) or md5(body, usedforsecurity=False).digest()
            with self._bucket.translate_errors(f"writing {key!r}"):
                self._bucket.client.put_object(
                    Bucket=self._bucket.name, Key=full, Body=body, ContentMD5=b64encode(digest).decode()
                )
        return tally.stored_object

    def copy(self, source: str, key: str) -> ObjectInfo:
        """Copy within the bucket: one request, or for a large object one for each part. Raises ObjectNotFound; and
        CorruptObject, because some servers copy only a part of what they are asked for.
        """
        bucket, full = self._bucket, self._bucket.full_key(key)
        origin: CopySourceTypeDef = {"Bucket": bucket.name, "Key": bucket.full_key(source)}
        with bucket.translate_errors(f"looking at {source!r}"):
            found = self._bucket.client.head_object(**origin)
        size_bytes, etag = found["ContentLength"], found["ETag"]
        if size_bytes <= COPY_PART_BYTES:
            with bucket.translate_errors(f"copying {source!r} to {key!r}"):
                self._bucket.client.copy_object(Bucket=bucket.name, Key=full, CopySource=origin, CopySourceIfMatch=etag)
        else:
            self._copy_parts(key, origin, size_bytes, etag)
        info = head_object(bucket, key)
        check_length(key, size_bytes, info.size_bytes)
        return info

    def _copy_parts(self, key: str, origin: CopySourceTypeDef, size_bytes: int, etag: str) -> None:
        bucket, full = self._bucket, self._bucket.full_key(key)
        part_bytes = max(COPY_PART_BYTES, -(-size_bytes // PARTS_MAX))

        def send(upload: str, number: int, start: int) -> str:
            deadline.check()
            answer = self._bucket.client.upload_part_copy(
                Bucket=bucket.name,
                Key=full,
                UploadId=upload,
                PartNumber=number,
                CopySource=origin,
                CopySourceRange=f"bytes={start}-{min(start + part_bytes, size_bytes) - 1}",
                CopySourceIfMatch=etag,
            )
            return answer["CopyPartResult"].get("ETag", "")

        self._run_multipart(key, full, range(0, size_bytes, part_bytes), send)

    def _put_spooled(self, key: str, full: str, parts: Iterator[bytes]) -> None:
        """Put a large body by one conditional PUT, from a temporary file. Several servers (Ceph RGW 16) check the
        condition there, and ignore it when a multipart upload is completed.
        """
        with tempfile.TemporaryFile() as spool:
            for part in parts:
                with translate_disk_errors(key):
                    spool.write(part)
            self._put_conditionally(key, full, spool)

    def _put_conditionally(self, key: str, full: str, body: bytes | BinaryIO) -> None:
        write_id = secrets.token_hex(16)
        for attempt in range(1, _CONDITIONAL_ATTEMPTS + 1):
            if not isinstance(body, bytes):
                body.seek(0)
            try:
                self._bucket.client.put_object(
                    Bucket=self._bucket.name, Key=full, Body=body, IfNoneMatch="*", Metadata={_WRITE_ID: write_id}
                )
            except FAILURES as error:
                code = parse_server_error(error).code if isinstance(error, ClientError) else ""
                if code in errors.PRECONDITION:
                    if self._write_id_of(full) == write_id:
                        return  # our own earlier attempt landed, and only its reply was lost
                    raise AlreadyExists(f"there is an object at {key!r} already; it was not changed") from None
                if code not in errors.CONFLICT or attempt == _CONDITIONAL_ATTEMPTS:
                    raise self._bucket.translate_error(error, f"writing {key!r}") from error
                # Another conditional write of the key is under way.
                self._clock.sleep(self._rng.uniform(0, 0.1 * 2**attempt))
            else:
                return

    def _refuse_existing(self, key: str) -> None:
        try:
            head_object(self._bucket, key)
        except ObjectNotFound:
            return
        raise AlreadyExists(f"there is an object at {key!r} already; it was not changed")

    def _put_parts(self, key: str, full: str, parts: Iterator[bytes]) -> None:
        def send(upload: str, number: int, part: bytes) -> str:
            if number > PARTS_MAX:
                size = f"{PARTS_MAX} parts of {self._part_bytes >> 20} MiB"
                raise Invalid(
                    f"the body of {key!r} is larger than {size}, the most that one stream may have; upload it in parts "
                    "of your own by the S3 gateway, or write it to an address that `issue` returns"
                )
            sent = self._bucket.client.upload_part(
                Bucket=self._bucket.name, Key=full, UploadId=upload, PartNumber=number, Body=part
            )
            return sent["ETag"]

        self._run_multipart(key, full, parts, send)

    def _run_multipart(self, key: str, full: str, parts: Iterable[T], send: Callable[[str, int, T], str]) -> None:
        """Run a multipart upload. `send` writes one part (upload, number, part), and returns its ETag."""
        write_id = secrets.token_hex(16)
        bucket = self._bucket
        with bucket.translate_errors(f"starting the upload of {key!r}"):
            upload = bucket.client.create_multipart_upload(
                Bucket=bucket.name, Key=full, Metadata={_WRITE_ID: write_id}
            )["UploadId"]
        try:
            etags: list[str] = []
            for number, part in enumerate(parts, 1):
                with bucket.translate_errors(f"writing part {number} of {key!r}"):
                    etags.append(send(upload, number, part))
            self._complete(key, full, upload, etags, write_id)
        except BaseException:  # the caller's body may raise anything, and remaining parts cost money
            abort_upload(bucket, full, upload)
            raise

    def _complete(self, key: str, full: str, upload: str, etags: Sequence[str], write_id: str) -> None:
        try:
            with self._bucket.translate_errors(f"completing the upload of {key!r}"):
                self._bucket.client.complete_multipart_upload(
                    Bucket=self._bucket.name,
                    Key=full,
                    UploadId=upload,
                    MultipartUpload={
                        "Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
                    },
                )
        except RefstoreError as error:
            cause = error.__cause__
            if not (
                isinstance(cause, ClientError)
                and parse_server_error(cause).code == "NoSuchUpload"
                and self._write_id_of(full) == write_id
            ):
                raise
            # Our own earlier attempt landed, and only its reply was lost.

    def _write_id_of(self, full: str) -> str | None:
        with self._bucket.translate_errors(f"checking whether {full!r} was written"):
            try:
                metadata = self._bucket.client.head_object(Bucket=self._bucket.name, Key=full)["Metadata"]
            except ClientError as error:
                if parse_server_error(error).code in errors.MISSING:
                    return None
                raise
        return next((value for name, value in metadata.items() if name.lower() == _WRITE_ID), None)


def abort_upload(bucket: Bucket, full: str, upload: str) -> bool:
    """Abort a multipart upload. Return whether it is gone."""
    try:
        bucket.client.abort_multipart_upload(Bucket=bucket.name, Key=full, UploadId=upload)
    except FAILURES as error:
        if not (isinstance(error, ClientError) and parse_server_error(error).code == "NoSuchUpload"):
            _log.warning(
                "parts of an upload could not be removed; a later sweep takes them",
                store=bucket.url,
                key=full,
                error=str(error),
            )
            return False
    return True


def sweep_uploads(bucket: Bucket, before_ms: float, spared_keys: Container[str] = ()) -> int:
    """Abort the multipart uploads below the prefix that were begun before that time, but for those of spared keys."""
    swept = 0
    for full, upload, begun_ms in list_uploads(bucket, bucket.prefix):
        if begun_ms < before_ms and full.removeprefix(bucket.prefix) not in spared_keys:
            swept += abort_upload(bucket, full, upload)
    return swept


def list_uploads(bucket: Bucket, prefix: str) -> Iterator[tuple[str, str, float]]:
    """Yield the full key, the id and the beginning (in ms) of the multipart uploads whose full keys begin so."""
    try:
        for page in bucket.client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket.name, Prefix=prefix):
            for upload in page.get("Uploads", ()):
                full, number, begun = upload.get("Key", ""), upload.get("UploadId"), upload.get("Initiated")
                # Some servers list uploads outside the prefix, too.
                if full.startswith(prefix) and number and begun:
                    yield full, number, begun.timestamp() * 1000
    except FAILURES as error:
        # A server without unfinished uploads may answer with such an error (rclone), or not know the operation.
        if not (isinstance(error, ClientError) and parse_server_error(error).code in _NO_UPLOADS):
            raise bucket.translate_error(error, "looking for unfinished uploads") from error


def _count_chunks(tally: BodyDigest, chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        tally.add(chunk)
        yield chunk


def _split_parts(chunks: Iterator[bytes], part_bytes: int) -> Iterator[bytes]:
    """Yield the same bytes in parts of exactly `part_bytes`, except the last. Some servers require equal parts."""
    held: list[memoryview] = []
    size = 0
    for chunk in chunks:
        left = memoryview(chunk)
        while left:
            taken = left[: part_bytes - size]
            held.append(taken)
            size += len(taken)
            left = left[len(taken) :]
            if size == part_bytes:
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)


def _chain_parts(ahead: deque[bytes], parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield `ahead`, then `parts`. A part is released once it was yielded."""
    while ahead:
        yield ahead.popleft()
    yield from parts


@contextmanager
def translate_disk_errors(key: str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise ObjectsUnavailable(
            f"holding {key!r} in a temporary file in {tempfile.gettempdir()} failed: {error}; make room there, or set "
            "TMPDIR, then try again"
        ) from error
