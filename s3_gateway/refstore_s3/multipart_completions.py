"""CompleteMultipartUpload: join the parts, and keep the client waiting with white space while that takes long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from starlette.responses import Response, StreamingResponse

from refstore.errors import InvalidParts, RefstoreError
from refstore.operations import complete_upload
from refstore.operations.complete_upload import RequestedPart
from refstore.operations.multipart import PARTS_MAX
from refstore.records.multipart_records import MultipartUpload
from refstore.records.s3_attributes import ContentDescription, S3Attributes, content_of
from refstore.records.staging_records import Entry
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore.versioning.multipart_uploads import WrittenPart
from refstore_http.http_errors import PreconditionFailed
from refstore_http.request_bodies import parse_in_turn
from refstore_s3.checksums import HEADER_PREFIX
from refstore_s3.listings import XML
from refstore_s3.multipart_parts import find_upload, operate
from refstore_s3.object_attributes import checksum_content, etag_of
from refstore_s3.object_bodies import receive_document
from refstore_s3.s3_errors import S3Error, explain_failure, make_error_body
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target
from refstore_s3.upload_checksums import ALGORITHM_HEADER, TYPE_HEADER, describe
from refstore_s3.write_conditions import explain_refusals, read_write_condition
from refstore_s3.xml_documents import XML_BYTES_MAX, MalformedDocument, make_document, parse_document

WAIT_SECONDS: Final = 5.0
"""How long an answer may take before the first white space: until then, its status tells how it ended."""
PROLOG: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'
FAULTS: Final = {"missing": "InvalidPart", "order": "InvalidPartOrder", "small": "EntityTooSmall"}
_NUMBER: Final = re.compile(r"[0-9]{1,5}")


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
    requested, part_checksums = await _receive_requested_parts(request)

    def describe_checked(upload: MultipartUpload, parts: Sequence[WrittenPart]) -> S3Attributes | None:
        for item in parts:
            for algorithm, text in part_checksums.get(item.number, {}).items():
                if item.part.checksums.get(algorithm, text) != text:
                    raise S3Error("InvalidPart", f"part {item.number} has another {algorithm.upper()}; list the parts")
        attributes = describe(upload, parts)
        expected.check(content_of(attributes), parts)
        return attributes

    def complete(repo: Repository) -> Entry:
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


async def _wait(request: S3Request, target: Target, task: asyncio.Future[Entry]) -> AsyncIterator[bytes]:
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


def _make_answer(request: S3Request, target: Target, entry: Entry) -> bytes:
    host = request.headers.get("host", "")
    content = [
        ("Location", f"{request.scope.get('scheme', 'http')}://{host}{request.resource}"),
        ("Bucket", target.bucket.name),
        ("Key", target.key),
        ("ETag", etag_of(entry)),
        *checksum_content(entry),
    ]
    return make_document("CompleteMultipartUploadResult", content).removeprefix(PROLOG)


async def _receive_requested_parts(request: S3Request) -> tuple[list[RequestedPart], dict[int, dict[str, str]]]:
    body = await receive_document(request, XML_BYTES_MAX, has_checksum=False)
    return await parse_in_turn(request.to_starlette(), body, lambda: read_requested_parts(body))


def read_requested_parts(body: bytes) -> tuple[list[RequestedPart], dict[int, dict[str, str]]]:
    """Return the parts that a document names, and their checksums by number. Raises S3Error."""
    try:
        root = parse_document(body, "CompleteMultipartUpload")
    except MalformedDocument as error:
        raise S3Error("MalformedXML", str(error)) from None
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
