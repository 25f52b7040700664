"""Multipart uploads that a caller completes: their parts come one by one, from many calls, over days.

A part goes to the server from memory, or, if it is large, from a temporary file: its size has to be known before the
first byte is sent, and a request that fails is sent again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError

from refstore.core import deadline
from refstore.errors import ObjectNotFound, ObjectsRefused, ObjectsUnavailable
from refstore.objects.base import Body, ObjectInfo, ObjectStore, StoredPart, check_length, chunks_of
from refstore.objects.s3.client import FAILURES, Bucket, parse_server_error
from refstore.objects.s3.object_reader import head_object
from refstore.objects.s3.object_writer import abort_upload, list_uploads, translate_disk_errors

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CopySourceTypeDef

_HELD_BYTES: Final = 16 << 20
"""A part up to this size is sent from memory."""
_OVER: Final = frozenset({"NoSuchUpload", "InvalidPart", "NoSuchKey"})


class S3Multipart(ObjectStore):
    """The part of the S3 store that callers upload in parts with."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def begin_upload(self, key: str) -> str:
        with self._bucket.translate_errors(f"starting the upload of {key!r}"):
            return self._bucket.client.create_multipart_upload(
                Bucket=self._bucket.name, Key=self._bucket.full_key(key)
            )["UploadId"]

    def put_part(self, key: str, upload: str, number: int, body: Body) -> StoredPart:
        full, doing = self._bucket.full_key(key), f"writing part {number} of {key!r}"
        with tempfile.SpooledTemporaryFile(_HELD_BYTES) as spool:
            for chunk in deadline.check_each(chunks_of(body)):
                with translate_disk_errors(key):
                    spool.write(chunk)
            size_bytes = spool.tell()
            spool.seek(0)
            try:
                sent = self._bucket.client.upload_part(
                    Bucket=self._bucket.name,
                    Key=full,
                    UploadId=upload,
                    PartNumber=number,
                    Body=spool,
                )
            except FAILURES as error:
                raise _translate(self._bucket, error, doing, key) from error
        return StoredPart(size_bytes, sent["ETag"].strip('"'))

    def copy_part(
        self, key: str, upload: str, number: int, source: str, start: int, end: int, *, size_bytes: int
    ) -> StoredPart:
        """Copy a range of the source that has `size_bytes`: some servers copy what there is of a range."""
        origin: CopySourceTypeDef = {"Bucket": self._bucket.name, "Key": self._bucket.full_key(source)}
        with self._bucket.translate_errors(f"looking at {source!r}"):
            found = self._bucket.client.head_object(**origin)
        check_length(source, size_bytes, found["ContentLength"])
        try:
            answer = self._bucket.client.upload_part_copy(
                Bucket=self._bucket.name,
                Key=self._bucket.full_key(key),
                UploadId=upload,
                PartNumber=number,
                CopySource=origin,
                CopySourceRange=f"bytes={start}-{end - 1}",
                CopySourceIfMatch=found["ETag"],
            )
        except FAILURES as error:
            raise _translate(self._bucket, error, f"copying part {number} of {key!r}", key) from error
        etag = answer.get("CopyPartResult", {}).get("ETag", "").strip('"')
        if not etag:  # rclone takes the request for an empty part
            raise ObjectsRefused(
                f"the server of {self._bucket.url} does not copy parts; write the part, or use another server"
            )
        return StoredPart(end - start, etag)

    def complete_upload(self, key: str, upload: str, parts: Sequence[tuple[int, str]]) -> ObjectInfo:
        """Complete the upload. A server that does not know it any more has completed it, if the object is there."""
        try:
            self._bucket.client.complete_multipart_upload(
                Bucket=self._bucket.name,
                Key=self._bucket.full_key(key),
                UploadId=upload,
                MultipartUpload={"Parts": [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in parts]},
            )
        except FAILURES as error:
            translated = _translate(self._bucket, error, f"completing the upload of {key!r}", key)
            if not isinstance(translated, ObjectNotFound):
                raise translated from error
            try:
                return head_object(self._bucket, key)
            except ObjectNotFound:
                raise translated from error
        return head_object(self._bucket, key)

    def abort_uploads(self, key: str) -> int:
        """Abort all uploads of the key that the server knows. Raises ObjectsUnavailable where one is left."""
        full = self._bucket.full_key(key)
        uploads = [upload for name, upload, _ in list_uploads(self._bucket, full) if name == full]
        left = [upload for upload in uploads if not abort_upload(self._bucket, full, upload)]
        if left:
            raise ObjectsUnavailable(f"{len(left)} multipart uploads of {key!r} could not be aborted; try again later")
        return len(uploads)


def _translate(bucket: Bucket, error: Exception, doing: str, key: str) -> Exception:
    if isinstance(error, ClientError) and (reason := parse_server_error(error)).code in _OVER:
        return ObjectNotFound(f"{doing} failed: {reason}; there is no such upload or part of {key!r} any more")
    return bucket.translate_error(error, doing)
