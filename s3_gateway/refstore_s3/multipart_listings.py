"""ListParts and ListMultipartUploads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from starlette.responses import Response

from refstore.core import ids
from refstore.errors import InvalidName, NotFound
from refstore.operations import multipart
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore.versioning.multipart_uploads import RegisteredUpload
from refstore_s3.key_pages import fold_segment
from refstore_s3.listings import OWNER, XML, ListingFields, format_time, read_amount, read_listing_fields
from refstore_s3.multipart_parts import checksum_content, find_upload, operate
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import S3Bucket, decode_ref, encode_ref, make_key
from refstore_s3.upload_checksums import UploadChecksum
from refstore_s3.xml_documents import Content, make_document


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
            *checksum_content(item),
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

    return await request.service.read(request.to_starlette(), request.principal.key_id, bucket.repository, read)


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
    names = [str(name) for name, _ in repo.branches(prefix=decode_ref(query.prefix))]
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
