"""GetObject, HeadObject and GetObjectAttributes: the object's bytes, or what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.responses import Response

from refstore.context import Context
from refstore.core.ids import is_own
from refstore.core.safety import SIGNED_SECONDS
from refstore.errors import Contention, Invalid, ObjectNotFound
from refstore.records.staging_records import StoredEntry
from refstore.service.access_keys import Role
from refstore_http.headers import ByteRange, parse_range
from refstore_http.object_streams import ChunkReader, add_length, check_erased, open_chunks, read_first, stream_object
from refstore_http.service import EntryInContext
from refstore_s3.checksums import HEADER_PREFIX
from refstore_s3.conditions import allows_range, check_conditions
from refstore_s3.listings import AMOUNT_MAX, XML
from refstore_s3.object_attributes import checksum_content, checksum_headers, etag_of, format_http_date, object_headers
from refstore_s3.object_parts import ObjectPart, read_parts
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target, check_path
from refstore_s3.xml_documents import Content, make_document

ATTEMPTS: Final = 16
"""How often an object is looked up again when it was replaced, and its data deleted, before it could be opened."""
OVERRIDES: Final = {
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
    "response-content-language": "Content-Language",
    "response-content-type": "Content-Type",
    "response-expires": "Expires",
}
_SENDABLE: Final = re.compile(r"[\x20-\x7e\t]{0,1024}")


async def get_object(request: S3Request) -> Response:
    target = await request.find_target(Role.READER)
    check_version(request)
    for _ in range(ATTEMPTS):
        context, entry = await stat_object(request, target)
        check_conditions(request.headers, entry)
        if (
            request.gateway.settings.redirect_reads
            and is_own(entry.address)
            and OVERRIDES.keys().isdisjoint(request.query)
        ):
            url = await request.service.run(partial(_presign, context, entry))
            if url:
                return Response(status_code=307, headers={"Location": url})
        part = read_range(request, entry)
        start, end = part or (0, entry.size_bytes)
        reading = partial(open_chunks, context, entry, start, end)
        reader = await read_first(request.http, request.service, end - start, reading)
        if reader is not None:
            fields = answer_headers(request, entry, part)
            return stream_object(request.service, reader, fields, part, entry.size_bytes)
        await check_changed(request, target)
    raise Contention(f"{target.key!r} kept changing while it was read; make the same call again")


async def head_object(request: S3Request) -> Response:
    target = await request.find_target(Role.READER)
    check_version(request)
    _, entry = await stat_object(request, target)
    check_erased(entry)
    check_conditions(request.headers, entry)
    part = read_range(request, entry)
    fields = answer_headers(request, entry, part)
    return Response(status_code=add_length(fields, part, entry.size_bytes), headers=fields)


async def stat_object(request: S3Request, target: Target) -> EntryInContext:
    """Return the object that a key names. Raises S3Error: `NoSuchKey`, which names what is missing."""
    if not target.path:
        raise S3Error("NoSuchKey", _describe_missing(target), fields={"Key": target.key})
    path = check_path(target)
    try:
        return await request.service.stat(target.repository, target.ref, path)
    except (ObjectNotFound, Invalid) as error:  # what is invalid is the ref, which the first segment is
        raise S3Error("NoSuchKey", str(error), fields={"Key": target.key}) from None


async def check_changed(request: S3Request, target: Target) -> None:
    """Check that an object whose data was gone is another one by now, which can be read. Raises RefstoreError."""
    await request.service.repository(
        target.repository, lambda repo: ChunkReader(repo.get(target.ref, target.path)).close()
    )


def check_version(request: S3Request) -> None:
    """Refuse a version but the one that each object has. Raises S3Error."""
    version = request.query.get("versionId")
    if version is not None and version != "null":
        raise S3Error(
            "NoSuchVersion",
            "objects have one version here, whose id is null; an earlier state is below a commit or a tag",
            fields={"VersionId": version[:80]},
        )


def read_range(request: S3Request, entry: StoredEntry) -> ByteRange | None:
    """Return the bytes that are asked for; None: all. Raises S3Error, RangeNotSatisfiable."""
    part_number = request.query.get("partNumber")
    header = request.headers.get("range")
    if part_number is None:
        return parse_range(header if allows_range(request.headers, entry) else None, entry.size_bytes)
    if header is not None:
        raise S3Error("InvalidRequest", "a range and a part number exclude each other; send one")
    if not re.fullmatch(r"[0-9]{1,5}", part_number) or not 1 <= int(part_number) <= 10_000:
        raise S3Error("InvalidArgument", "partNumber must be a number from 1 to 10000")
    parts = read_parts(entry)
    if int(part_number) > max(len(parts), 1):
        raise S3Error("InvalidPart", f"the object has {max(len(parts), 1)} parts; ask for one of them, or for a range")
    start, size_bytes = parts[int(part_number) - 1][1:3] if parts else (0, entry.size_bytes)
    return ByteRange(start, start + size_bytes) if 0 < size_bytes <= entry.size_bytes - start else None


def answer_headers(request: S3Request, entry: StoredEntry, part: ByteRange | None) -> dict[str, str]:
    """Return the headers of an answer with the object. Raises S3Error."""
    fields = object_headers(entry)
    parts = read_parts(entry) if "partNumber" in request.query else []
    if parts:
        fields["x-amz-mp-parts-count"] = str(len(parts))
    whole = part is None or (part.start == 0 and part.end == entry.size_bytes)
    if request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        if parts:
            fields |= _part_checksum(entry, parts[int(request.query["partNumber"]) - 1])
        elif whole:
            fields |= checksum_headers(entry)
    fields |= _read_overrides(request.query)
    # uploaded content never runs as a page of this origin
    fields["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return fields


def _part_checksum(entry: StoredEntry, part: ObjectPart) -> dict[str, str]:
    if not part.algorithm:
        return {}
    kind = checksum_headers(entry).get(f"{HEADER_PREFIX}type", "COMPOSITE")
    return {f"{HEADER_PREFIX}{part.algorithm}": part.checksum, f"{HEADER_PREFIX}type": kind}


def _read_overrides(query: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, header in OVERRIDES.items():
        if (value := query.get(name)) is not None:
            if not _SENDABLE.fullmatch(value):
                raise S3Error("InvalidArgument", f"{name} is no text that a header can hold; send printable ASCII")
            found[header] = value
    return found


def _presign(context: Context, entry: StoredEntry) -> str:
    """Return a URL at which the store has the object; '' if it makes none."""
    check_erased(entry)
    try:
        return context.objects.presign_get(entry.address, expires_seconds=SIGNED_SECONDS)
    except Invalid:
        return ""


def _describe_missing(target: Target) -> str:
    if target.bucket.branch:
        return "the key is empty; name an object"
    return f"{target.key[:80]!r} names no object; a key of this bucket is REF/PATH, such as main/data.csv"


ATTRIBUTES: Final = frozenset({"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"})


async def get_object_attributes(request: S3Request) -> Response:
    target = await request.find_target(Role.READER)
    check_version(request)
    asked = {name.strip() for name in request.headers.get("x-amz-object-attributes", "").split(",")} - {""}
    if not asked or asked - ATTRIBUTES:
        raise S3Error("InvalidArgument", f"x-amz-object-attributes must name some of {', '.join(sorted(ATTRIBUTES))}")
    marker, amount = (
        _read_number(request, "x-amz-part-number-marker", 0),
        _read_number(request, "x-amz-max-parts", 1000),
    )
    _, entry = await stat_object(request, target)
    check_erased(entry)
    check_conditions(request.headers, entry)
    content: list[tuple[str, Content]] = []
    if "ETag" in asked:
        content.append(("ETag", etag_of(entry).strip('"')))
    if "Checksum" in asked and (checksum := checksum_content(entry)):
        content.append(("Checksum", checksum))
    if "ObjectParts" in asked and (parts := _parts_content(entry, marker, min(amount, AMOUNT_MAX))):
        content.append(("ObjectParts", parts))
    if "StorageClass" in asked:
        content.append(("StorageClass", "STANDARD"))
    if "ObjectSize" in asked:
        content.append(("ObjectSize", entry.size_bytes))
    headers = {"Last-Modified": format_http_date(entry.mtime_ms)}
    return Response(make_document("GetObjectAttributesResponse", content), headers=headers, media_type=XML)


def _parts_content(entry: StoredEntry, marker: int, amount: int) -> list[tuple[str, Content]]:
    parts = read_parts(entry)
    if not parts:
        return []
    shown = [part for part in parts if part.number > marker][:amount]
    last = shown[-1].number if shown else marker
    content: list[tuple[str, Content]] = [
        ("PartsCount", len(parts)),
        ("PartNumberMarker", marker),
        ("NextPartNumberMarker", last),
        ("MaxParts", amount),
        ("IsTruncated", last < len(parts) and amount > 0),
    ]
    for part in shown:
        one: list[tuple[str, Content]] = [("PartNumber", part.number), ("Size", part.size_bytes)]
        if part.algorithm:
            one.append((f"Checksum{part.algorithm.upper()}", part.checksum))
        content.append(("Part", one))
    return content


def _read_number(request: S3Request, name: str, default: int) -> int:
    text = request.headers.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise S3Error("InvalidArgument", f"{name} must be a whole number that is not negative")
    return int(text)
