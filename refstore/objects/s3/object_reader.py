"""Read one object. A body that breaks off is resumed at that byte, in the same version; otherwise reading fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from botocore.exceptions import ClientError
from urllib3.exceptions import HTTPError

from refstore.errors import ObjectNotFound, ObjectsUnavailable
from refstore.objects.base import CHUNK_BYTES, ObjectInfo, ObjectPage, check_length, check_range, clip_range
from refstore.objects.s3 import errors
from refstore.objects.s3.client import CONCURRENT_REQUESTS, FAILURES, Bucket, parse_server_error

if TYPE_CHECKING:
    from botocore.response import StreamingBody

_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_RESUMES_MAX: Final = 4
"""How often one `get` resumes."""


class _GetResponse(NamedTuple):
    body: StreamingBody
    etag: str
    stop: int
    """The byte after the last byte of the body."""
    size_bytes: int
    """Of the whole object."""


def read_object(bucket: Bucket, key: str, start: int, end: int | None, size_bytes: int | None) -> Iterator[bytes]:
    """Yield an empty chunk once the server has answered, then the chunks of the object. `size_bytes`: its size, as the
    caller knows it.
    """
    check_range(key, start, end)
    answer = None if end == start else _open_response(bucket, key, start, end, None)
    if answer is None:
        found_bytes = head_object(bucket, key).size_bytes
        check_length(key, size_bytes, found_bytes)
        first, last = clip_range(key, start, end, found_bytes)
        if first < last:
            raise _object_changed(bucket, key)
        yield b""
        return
    (body, etag, stop, found_bytes), at, resumes = answer, start, 0
    try:
        check_length(key, size_bytes, found_bytes)
        yield b""
        while at < stop:
            broken: Exception | None = None
            try:
                chunk = body.read(min(CHUNK_BYTES, stop - at))
            except (*FAILURES, HTTPError, OSError) as error:
                chunk, broken = b"", error
            if chunk:
                at += len(chunk)
                yield chunk
                continue
            body.close()
            resumes += 1
            if resumes > _RESUMES_MAX:
                raise ObjectsUnavailable(
                    f"{key!r} in {bucket.url} broke off at byte {at} of {stop}, and {_RESUMES_MAX} times before;"
                    " check the network and the proxies between, then read it again"
                ) from broken
            answer = _open_response(bucket, key, at, stop, etag)
            if answer is None or answer[1:] != (etag, stop, found_bytes):
                if answer is not None:
                    answer.body.close()
                raise _object_changed(bucket, key) from broken
            body = answer.body
    finally:
        body.close()


def _object_changed(bucket: Bucket, key: str) -> ObjectsUnavailable:
    return ObjectsUnavailable(f"{key!r} in {bucket.url} changed while it was read; read it again")


def _open_response(bucket: Bucket, key: str, start: int, end: int | None, etag: str | None) -> _GetResponse | None:
    """Return the answer to a GET from `start` on (of the version `etag`). None: the object ends there or before, or is
    another version now. Raises ObjectNotFound.
    """
    full = bucket.full_key(key)
    ranged = start > 0 or end is not None
    byte_range = f"bytes={start}-{'' if end is None else end - 1}"
    with bucket.translate_errors(f"reading {key!r}"):
        try:
            if not ranged:
                answer = bucket.client.get_object(Bucket=bucket.name, Key=full)
            elif etag is None:
                answer = bucket.client.get_object(Bucket=bucket.name, Key=full, Range=byte_range)
            else:
                answer = bucket.client.get_object(Bucket=bucket.name, Key=full, Range=byte_range, IfMatch=etag)
        except ClientError as error:
            if parse_server_error(error).code in errors.UNSATISFIABLE | errors.PRECONDITION:
                return None
            raise
    if "ETag" not in answer or "ContentLength" not in answer:
        answer["Body"].close()
        raise ObjectsUnavailable(
            f"{bucket.url} gave an answer for {key!r} that no S3 server gives; check whether a proxy answers instead"
        )
    bucket.seen = True
    stop = size_bytes = start + answer["ContentLength"]
    if ranged:
        match = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
        first, size_bytes = map(int, match.groups()) if match else (-1, 0)
        if first != start or stop != (size_bytes if end is None else min(end, size_bytes)):
            answer["Body"].close()
            raise ObjectsUnavailable(
                f"{bucket.url} answered {byte_range} of {key!r} with another range; check whether a proxy ignores "
                "ranges"
            )
    return _GetResponse(answer["Body"], answer["ETag"], stop, size_bytes)


def head_object(bucket: Bucket, key: str) -> ObjectInfo:
    return head_with_etag(bucket, key)[0]


def head_page(bucket: Bucket, keys: Sequence[str]) -> ObjectPage:
    """Return what there is of the keys, with ETags."""

    def head(key: str) -> tuple[ObjectInfo, str] | None:
        try:
            return head_with_etag(bucket, key)
        except ObjectNotFound:
            return None

    with ThreadPoolExecutor(CONCURRENT_REQUESTS, thread_name_prefix="refstore-s3") as workers:
        found = [each for each in (workers.map(head, keys) if len(keys) > 1 else map(head, keys)) if each is not None]
    infos = [info for info, _ in found]
    return ObjectPage(
        [info.key for info in infos],
        [info.size_bytes for info in infos],
        [info.mtime_ms for info in infos],
        [etag for _, etag in found],
    )


def head_with_etag(bucket: Bucket, key: str) -> tuple[ObjectInfo, str]:
    full = bucket.full_key(key)
    with bucket.translate_errors(f"looking at {key!r}"):
        try:
            found = bucket.client.head_object(Bucket=bucket.name, Key=full)
        except ClientError as error:
            if parse_server_error(error).code in errors.MISSING and not bucket.seen:
                # A HEAD has no body, so a missing bucket looks like a missing key. This request raises for the bucket.
                bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.prefix, MaxKeys=1)
                bucket.seen = True
            raise
    bucket.seen = True
    info = ObjectInfo(key, found["ContentLength"], int(found["LastModified"].timestamp() * 1000))
    return info, found["ETag"].strip('"')
