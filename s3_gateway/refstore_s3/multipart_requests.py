"""Answer the requests of uploads in parts (rule 23 of docs/protocol.md): begin, upload and copy a part, abort, complete
and list. While parts are joined, white space keeps the client waiting.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar
from xml.etree.ElementTree import Element

from starlette.responses import Response, StreamingResponse

from refstore.core import deadline, ids
from refstore.core.ids import decode_ref, encode_ref, is_own
from refstore.errors import (
    InvalidName,
    InvalidParts,
    InvalidPath,
    NotFound,
    ObjectNotFound,
    RefstoreError,
    UploadNotFound,
)
from refstore.operations import complete_upload, multipart
from refstore.operations.complete_upload import RequestedPart
from refstore.operations.copy import ATTEMPTS
from refstore.operations.multipart import PARTS_MAX
from refstore.records.multipart_records import MultipartUpload
from refstore.records.s3_attributes import ContentDescription, S3Attributes, content_of, join_attributes
from refstore.records.staging_records import StoredEntry, sources_of_copy
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore.versioning.multipart_uploads import RegisteredUpload, UploadName, WrittenPart
from refstore_http import request_bodies
from refstore_http.http_errors import PreconditionFailed
from refstore_http.object_streams import check_erased, open_chunks
from refstore_http.service import EntryInContext
from refstore_s3.checksums import HEADER_PREFIX, Checksums
from refstore_s3.conditions import COPY_SOURCE, check_conditions, check_writable, explain_refusals, read_write_condition
from refstore_s3.listings import OWNER, XML, ListingFields, fold_segment, format_time, read_amount, read_listing_fields
from refstore_s3.object_attributes import checksum_content, etag_of, read_attributes
from refstore_s3.object_bodies import CheckedBody, receive_body, receive_xml
from refstore_s3.object_copies import find_source, make_contention, read_all, update
from refstore_s3.object_parts import ALGORITHM_HEADER, TYPE_HEADER, UploadChecksum, describe
from refstore_s3.object_reads import check_changed, stat_object
from refstore_s3.s3_errors import S3Error, explain_failure, make_error_body
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import S3Bucket, Target, check_path, make_key
from refstore_s3.xml_documents import Content, make_document

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
    return Response(make_document("CopyPartResult", [*content, *part_checksum_content(written)]), media_type=XML)


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


def part_checksum_content(written: WrittenPart) -> list[tuple[str, str]]:
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


WAIT_SECONDS: Final = 5.0
"""How long an answer may take before the first white space: until then, its status tells how it ended."""
PROLOG: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'
FAULTS: Final = {"missing": "InvalidPart", "order": "InvalidPartOrder", "small": "EntityTooSmall"}


class ExpectedObject(NamedTuple):
    """What a completion promises of the object: its checksum and its size; '': it does not."""

    checksums: dict[str, str]
    size: str

    def check(self, content: ContentDescription | None, parts: Sequence[WrittenPart]) -> None:
        """Raises S3Error, before anything is joined."""
        if content is not None and content.checksum:
            text = self.checksums.get(content.algorithm, content.checksum)
            if text != content.checksum:
                name = content.algorithm.upper()
                raise S3Error("BadDigest", f"the object's {name} would be {content.checksum}; compare the parts' own")
        size_bytes = sum(item.part.size_bytes for item in parts)
        if self.size and self.size != str(size_bytes):
            raise S3Error("InvalidRequest", f"the object would have {size_bytes} bytes, not {self.size[:20]}")


async def complete_multipart_upload(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    name = find_upload(request, target)
    condition = await read_write_condition(request, target)
    expected = _read_expected(request)
    requested, part_checksums = await receive_xml(
        request, "CompleteMultipartUpload", _read_requested_parts, has_checksum=False
    )

    def describe_checked(upload: MultipartUpload, parts: Sequence[WrittenPart]) -> S3Attributes | None:
        for item in parts:
            for algorithm, text in part_checksums.get(item.number, {}).items():
                if item.part.checksums.get(algorithm, text) != text:
                    raise S3Error("InvalidPart", f"part {item.number} has another {algorithm.upper()}; list the parts")
        attributes = describe(upload, parts)
        expected.check(content_of(attributes), parts)
        return attributes

    def complete(repo: Repository) -> StoredEntry:
        try:
            with explain_refusals(is_conditional=condition.if_entry is not None):
                return complete_upload.complete(
                    repo.context,
                    name,
                    requested,
                    if_absent=condition.if_absent,
                    if_entry=condition.if_entry,
                    describe=describe_checked,
                )
        except InvalidParts as error:
            raise S3Error(FAULTS.get(error.fault, "InvalidArgument"), str(error)) from error
        except PreconditionFailed as error:
            # only now: a repeated call that had landed answers as it did, whatever is there now
            raise condition.refusal or error from error

    task = asyncio.ensure_future(operate(request, target, complete, has_body=True))
    with suppress(TimeoutError):
        entry = await asyncio.wait_for(asyncio.shield(task), WAIT_SECONDS)
        return Response(PROLOG + _make_answer(request, target, entry), media_type=XML)
    return StreamingResponse(_wait(request, target, task), media_type=XML)


async def _wait(request: S3Request, target: Target, task: asyncio.Future[StoredEntry]) -> AsyncIterator[bytes]:
    """Yield white space until the object is there, then the document: of the object, or of an error."""
    yield PROLOG
    while True:
        done, _ = await asyncio.wait([task], timeout=WAIT_SECONDS)
        if done:
            break
        yield b" "
    try:
        yield _make_answer(request, target, task.result())
    except (S3Error, RefstoreError) as error:
        yield make_error_body(explain_failure(error), request.resource, "").removeprefix(PROLOG)


def _make_answer(request: S3Request, target: Target, entry: StoredEntry) -> bytes:
    host = request.headers.get("host", "")
    content = [
        ("Location", f"{request.scope.get('scheme', 'http')}://{host}{request.resource}"),
        ("Bucket", target.bucket.name),
        ("Key", target.key),
        ("ETag", etag_of(entry)),
        *checksum_content(entry),
    ]
    return make_document("CompleteMultipartUploadResult", content).removeprefix(PROLOG)


def _read_requested_parts(root: Element) -> tuple[list[RequestedPart], dict[int, dict[str, str]]]:
    """Return the parts that a document names, and their checksums by number. Raises S3Error."""
    elements = root.findall("Part")
    if not 1 <= len(elements) <= PARTS_MAX:
        raise S3Error("MalformedXML", f"the document names {len(elements)} parts; name 1 to {PARTS_MAX}")
    parts = [_read_part(each) for each in elements]
    checksums = {
        part.number: {
            child.tag.removeprefix("Checksum").lower(): (child.text or "").strip()
            for child in element
            if child.tag.startswith("Checksum") and child.text
        }
        for part, element in zip(parts, elements, strict=True)
    }
    return parts, checksums


def _read_part(element: Element) -> RequestedPart:
    number, etag = (element.findtext("PartNumber") or "").strip(), (element.findtext("ETag") or "").strip()
    if not _NUMBER.fullmatch(number) or not etag:
        raise S3Error("MalformedXML", "each Part needs a PartNumber and an ETag")
    if not 1 <= int(number) <= PARTS_MAX:
        raise S3Error("InvalidArgument", f"PartNumber must be from 1 to {PARTS_MAX}")
    return RequestedPart(int(number), etag.strip('"'))


def _read_expected(request: S3Request) -> ExpectedObject:
    checksums = {
        name.removeprefix(HEADER_PREFIX): text
        for name, text in request.headers.items()
        if name.startswith(HEADER_PREFIX) and name not in (TYPE_HEADER, ALGORITHM_HEADER)
    }
    return ExpectedObject(checksums, request.headers.get("x-amz-mp-object-size", ""))


async def list_parts(request: S3Request) -> Response:
    target = await request.find_target(Role.READER)
    name = find_upload(request, target)
    amount = read_amount(request, "max-parts")
    marker = read_amount(request, "part-number-marker", 10_000) if "part-number-marker" in request.query else 0

    def read(repo: Repository) -> tuple[RegisteredUpload, multipart.PartsPage]:
        return multipart.list_parts(repo.context, name, after=marker, amount=amount)

    upload, page = await operate(request, target, read)
    has_more = page.has_more and amount > 0
    content: list[tuple[str, Content]] = [
        ("Bucket", target.bucket.name),
        ("Key", target.key),
        ("UploadId", name.upload_id),
        ("Initiator", OWNER),
        ("Owner", OWNER),
        ("StorageClass", "STANDARD"),
        *UploadChecksum.kept_by(upload.record).content,
        ("PartNumberMarker", marker),
        ("NextPartNumberMarker", page.parts[-1].number if page.parts else 0),
        ("MaxParts", amount),
        ("IsTruncated", has_more),
    ]
    for item in page.parts:
        part: list[tuple[str, Content]] = [
            ("PartNumber", item.number),
            ("LastModified", format_time(item.part.written_ms)),
            ("ETag", f'"{item.part.etag}"'),
            ("Size", item.part.size_bytes),
            *part_checksum_content(item),
        ]
        content.append(("Part", part))
    return Response(make_document("ListPartsResult", content), media_type=XML)


class UploadRow(NamedTuple):
    """An upload, or a common prefix (then `upload` is None)."""

    key: str
    upload: RegisteredUpload | None


class UploadQuery(NamedTuple):
    prefix: str
    delimiter: str
    amount: int
    key_marker: str
    id_marker: str


async def list_multipart_uploads(request: S3Request) -> Response:
    fields = read_listing_fields(request)
    amount = read_amount(request, "max-uploads")
    bucket = await request.find_bucket(Role.READER)
    key_marker = request.query.get("key-marker", "")
    id_marker = request.query.get("upload-id-marker", "") if key_marker else ""
    query = UploadQuery(fields.prefix, fields.delimiter, amount, key_marker, id_marker)

    def read(repo: Repository) -> Response:
        content = _describe_uploads(read_uploads(repo, bucket, query), bucket, fields, query)
        return Response(make_document("ListMultipartUploadsResult", content), media_type=XML)

    return await request.service.read(request.http, request.principal.key_id, bucket.repository, read)


def _describe_uploads(
    rows: Sequence[UploadRow], bucket: S3Bucket, fields: ListingFields, query: UploadQuery
) -> list[tuple[str, Content]]:
    """Return the document of a page, of which `rows` may have one more."""
    amount, shown = query.amount, rows[: query.amount]
    content: list[tuple[str, Content]] = [
        ("Bucket", bucket.name),
        ("KeyMarker", fields.quote(query.key_marker)),
        ("UploadIdMarker", query.id_marker),
    ]
    has_more = len(rows) > amount > 0
    if has_more:
        last = shown[-1]
        content.append(("NextKeyMarker", fields.quote(last.key)))
        content.append(("NextUploadIdMarker", last.upload.name.upload_id if last.upload is not None else ""))
    content += [("Prefix", fields.quote(fields.prefix))]
    if fields.delimiter:
        content.append(("Delimiter", fields.quote(fields.delimiter)))
    if fields.encoding:
        content.append(("EncodingType", fields.encoding))
    content += [("MaxUploads", amount), ("IsTruncated", has_more)]
    for key, upload in shown:
        if upload is None:
            content.append(("CommonPrefixes", [("Prefix", fields.quote(key))]))
            continue
        item: list[tuple[str, Content]] = [
            ("Key", fields.quote(key)),
            ("UploadId", upload.name.upload_id),
            ("Initiator", OWNER),
            ("Owner", OWNER),
            ("StorageClass", "STANDARD"),
            ("Initiated", format_time(upload.record.begun_ms)),
            *UploadChecksum.kept_by(upload.record).content,
        ]
        content.append(("Upload", item))
    return content


def read_uploads(repo: Repository, bucket: S3Bucket, query: UploadQuery) -> list[UploadRow]:
    """Return the rows of a page, and one more if there are more."""
    if query.id_marker:
        _check_id_marker(query.id_marker)
    rows: list[UploadRow] = []
    for begin, branch in _scan_branches(repo, bucket, query):
        folded = fold_segment(begin, query.prefix, query.delimiter)
        if folded and (folded <= query.key_marker or (rows and rows[-1].key == folded)):
            continue
        page = _read_branch(repo, bucket, begin, branch, query._replace(amount=query.amount + 1 - len(rows)))
        rows += [UploadRow(folded, None)] if folded and page else page
        if len(rows) > query.amount:
            break
    return rows


def _scan_branches(repo: Repository, bucket: S3Bucket, query: UploadQuery) -> Iterator[tuple[str, str]]:
    """Yield what the keys of each branch begin with, and the branch."""
    if bucket.branch:
        yield "", bucket.branch
        return
    segment, slash, _ = query.prefix.partition("/")
    if slash:
        yield f"{segment}/", decode_ref(segment)
        return
    names = [name.name for name in repo.branches(prefix=decode_ref(query.prefix))]
    for begin, name in sorted((f"{encode_ref(name)}/", name) for name in names):
        if begin.startswith(query.prefix):
            yield begin, name


def _read_branch(repo: Repository, bucket: S3Bucket, begin: str, branch: str, query: UploadQuery) -> list[UploadRow]:
    marker, id_marker = query.key_marker, query.id_marker
    if marker.startswith(begin):
        marker = marker[len(begin) :]
    elif marker < begin:
        marker = id_marker = ""
    else:
        return []
    try:
        page = multipart.list_uploads(
            repo.context,
            ids.branch_name(branch),
            prefix=query.prefix[len(begin) :],
            delimiter=query.delimiter,
            after_path=marker,
            after_upload_id=id_marker,
            amount=query.amount,
        )
    except (NotFound, InvalidName):  # no such branch has no uploads
        return []
    rows = [UploadRow(make_key(bucket, branch, item.name.path), item) for item in page.uploads]
    rows += [UploadRow(begin + prefix, None) for prefix in page.common_prefixes]
    return sorted(rows, key=lambda row: row.key)


def _check_id_marker(text: str) -> None:
    try:
        ids.upload_id(text)
    except InvalidName as error:
        raise S3Error("InvalidArgument", str(error), fields={"ArgumentName": "upload-id-marker"}) from None
