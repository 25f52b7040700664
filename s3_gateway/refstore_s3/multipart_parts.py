"""CreateMultipartUpload, UploadPart, UploadPartCopy and AbortMultipartUpload (rule 23 of docs/protocol.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from starlette.responses import Response

from refstore.core import deadline, ids
from refstore.core.ids import is_own
from refstore.errors import InvalidName, InvalidPath, NotFound, ObjectNotFound, UploadNotFound
from refstore.operations import multipart
from refstore.operations.copy import ATTEMPTS
from refstore.records.s3_attributes import join_attributes
from refstore.records.staging_records import sources_of_copy
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore.versioning.multipart_uploads import UploadName, WrittenPart
from refstore_http import request_bodies
from refstore_http.object_streams import check_erased, open_chunks
from refstore_http.service import EntryInContext
from refstore_s3.checksums import HEADER_PREFIX, Checksums
from refstore_s3.conditions import COPY_SOURCE, check_conditions
from refstore_s3.listings import XML, format_time
from refstore_s3.object_attributes import read_attributes
from refstore_s3.object_bodies import CheckedBody, receive_body
from refstore_s3.object_copies import find_source, make_contention, read_all, update
from refstore_s3.object_reads import check_changed, stat_object
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target, check_path
from refstore_s3.upload_checksums import UploadChecksum
from refstore_s3.write_conditions import check_writable
from refstore_s3.xml_documents import make_document

T = TypeVar("T")

_NUMBER: Final = re.compile(r"[0-9]{1,5}")
_COPY_RANGE: Final = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})")


async def create_multipart_upload(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    path = check_path(target)
    checksum = UploadChecksum.read(request.headers)
    given = read_attributes(request.headers)
    s3 = join_attributes(given.s3, checksum.description)
    content_type = ids.content_type(request.headers.get("content-type", ""))
    seconds = request.gateway.settings.multipart_seconds

    def begin(repo: Repository) -> UploadName:
        try:
            branch = ids.branch_name(target.ref)
            return multipart.begin(
                repo.context, branch, path, seconds=seconds, metadata=given.metadata, content_type=content_type, s3=s3
            ).name
        except (NotFound, InvalidName):
            check_writable(repo, target)
            raise

    name = await operate(request, target, begin)
    content = [("Bucket", target.bucket.name), ("Key", target.key), ("UploadId", name.upload_id)]
    return Response(make_document("InitiateMultipartUploadResult", content), headers=checksum.headers, media_type=XML)


async def upload_part(request: S3Request) -> Response:
    if "x-amz-copy-source" in request.headers:
        return await upload_part_copy(request)
    target = await request.find_target(Role.WRITER)
    name, number = find_upload(request, target), read_part_number(request)
    checked = CheckedBody(request)
    upload = await operate(request, target, lambda repo: multipart.read_open(repo.context, name))
    checksum = UploadChecksum.kept_by(upload.record)
    if checksum.algorithm and checked.algorithm and checked.algorithm != checksum.algorithm:
        raise S3Error(
            "InvalidRequest",
            f"the upload was begun with checksums of {checksum.algorithm.upper()}, and this part has one of "
            f"{checked.algorithm.upper()}; send the same",
        )
    checked.compute(checksum.algorithm)
    body = await receive_body(request, checked, request_bodies.limits_of(request.service.settings))

    def write(repo: Repository) -> WrittenPart:
        return multipart.write_part(repo.context, name, number, body, checksums=checked.checksum_texts)

    written = await operate(request, target, write, has_body=not isinstance(body, list))
    return Response(headers={"ETag": f'"{written.part.etag}"', **part_headers(written)})


async def upload_part_copy(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    name, number = find_upload(request, target), read_part_number(request)
    source = await find_source(request)
    for _ in range(ATTEMPTS):
        read = await stat_object(request, source)
        check_conditions(request.headers, read.entry, prefix=COPY_SOURCE)
        bounds = _read_copy_range(request, read.entry.size_bytes)
        copy = partial(_copy, name, number, read, bounds)
        written = await operate(request, target, copy, has_body=True)
        if written is not None:
            break
        await check_changed(request, source)
    else:
        raise make_contention(source)
    content = [("ETag", f'"{written.part.etag}"'), ("LastModified", format_time(written.part.written_ms))]
    return Response(make_document("CopyPartResult", [*content, *checksum_content(written)]), media_type=XML)


def _copy(
    name: UploadName, number: int, source: EntryInContext, bounds: tuple[int, int], repo: Repository
) -> WrittenPart | None:
    """Copy of this very entry: in the store where it can, or through this process, where each part needs a checksum.
    None: its data is gone.
    """
    ctx, from_ctx, entry = repo.context, source.context, source.entry
    check_erased(entry)
    algorithm = UploadChecksum.kept_by(multipart.read_open(ctx, name).record).algorithm
    if not algorithm and from_ctx.repo == ctx.repo and is_own(entry.address):
        try:
            written = multipart.copy_part(ctx, name, number, entry, *bounds)
        except ObjectNotFound:
            return None
        if written is not None:
            return written
    reader = open_chunks(from_ctx, entry, *bounds)
    if reader is None:
        return None
    running = Checksums([algorithm] if algorithm else [])

    def checksums() -> dict[str, str]:
        return {algorithm: running.base64(algorithm)} if algorithm else {}

    body, sources = update(running, read_all(reader)), sources_of_copy(entry)
    return multipart.write_part(ctx, name, number, body, checksums=checksums, sources=sources)


async def abort_multipart_upload(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    name = find_upload(request, target)
    await operate(request, target, lambda repo: multipart.abort(repo.context, name))
    return Response(status_code=204)


async def operate(request: S3Request, target: Target, work: Callable[[Repository], T], *, has_body: bool = False) -> T:
    """Run an operation under its deadline in a thread; one of a long body in the threads for these."""

    def run() -> T:
        repo = request.service.lake.repository(target.repository)
        with deadline.limit_operation(repo.context.clock, repo.context.safety.operation_deadline_seconds):
            return work(repo)

    return await (request.service.run_body(run) if has_body else request.service.run(run))


def find_upload(request: S3Request, target: Target) -> UploadName:
    """Return what names the upload that a request means. Raises UploadNotFound for what names none."""
    try:
        return UploadName(
            ids.branch_name(target.ref), ids.object_path(target.path), ids.upload_id(request.query["uploadId"])
        )
    except (InvalidName, InvalidPath):
        raise UploadNotFound(
            "there is no such upload; list the uploads, or use the id that its beginning answered"
        ) from None


def read_part_number(request: S3Request) -> int:
    """Raises S3Error."""
    text = request.query.get("partNumber", "")
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= multipart.PARTS_MAX:
        raise S3Error("InvalidArgument", f"partNumber must be a number from 1 to {multipart.PARTS_MAX}")
    return int(text)


def part_headers(written: WrittenPart) -> dict[str, str]:
    return {HEADER_PREFIX + name: text for name, text in written.part.checksums.items()}


def checksum_content(written: WrittenPart) -> list[tuple[str, str]]:
    """Return the elements of a part's checksums."""
    return [(f"Checksum{name.upper()}", text) for name, text in written.part.checksums.items()]


def _read_copy_range(request: S3Request, size_bytes: int) -> tuple[int, int]:
    """Return the bytes that are copied. Raises S3Error: a range that is not there is never another one."""
    text = request.headers.get("x-amz-copy-source-range")
    if text is None:
        return 0, size_bytes
    match = _COPY_RANGE.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise S3Error("InvalidArgument", "x-amz-copy-source-range must be bytes=FIRST-LAST")
    if int(match[2]) >= size_bytes:
        raise S3Error("InvalidRange", f"the source has {size_bytes} bytes, and the range ends behind them")
    return int(match[1]), int(match[2]) + 1
