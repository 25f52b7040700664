"""GetObjectAttributes: what is known of an object, as a document."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from refstore.records.staging_records import Entry
from refstore.service.access_keys import Role
from refstore_http.object_streams import check_erased
from refstore_s3.conditions import check_conditions
from refstore_s3.listings import AMOUNT_MAX, XML
from refstore_s3.object_attributes import checksum_content, etag_of, format_http_date
from refstore_s3.object_parts import read_parts
from refstore_s3.object_reads import check_version, stat_object
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.xml_documents import Content, make_document

NAMES: Final = frozenset({"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"})


async def get_object_attributes(request: S3Request) -> Response:
    target = await request.find_target(Role.READER)
    check_version(request)
    asked = {name.strip() for name in request.headers.get("x-amz-object-attributes", "").split(",")} - {""}
    if not asked or asked - NAMES:
        raise S3Error("InvalidArgument", f"x-amz-object-attributes must name some of {', '.join(sorted(NAMES))}")
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


def _parts_content(entry: Entry, marker: int, amount: int) -> list[tuple[str, Content]]:
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
