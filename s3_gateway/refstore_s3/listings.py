"""ListObjects, ListObjectsV2 and ListObjectVersions: a page of a bucket's keys, as XML."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from refstore.core.clock import format_utc
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_s3.key_pages import KeyPage, KeyQuery, read_keys
from refstore_s3.object_attributes import etag_of
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.xml_documents import NAMESPACE, NOT_IN_XML, Content, escape_text, make_content

AMOUNT_MAX: Final = 1000
XML: Final = "application/xml"
OWNER: Final[Content] = [("ID", "refstore"), ("DisplayName", "refstore")]
_OWNER: Final = make_content([("Owner", OWNER)])
_TOKEN: Final = "k1:"  # noqa: S105  # the form of continuation tokens


class ListingFields(NamedTuple):
    """The fields of a listing's request."""

    prefix: str
    delimiter: str
    amount: int
    quote: Callable[[str], str]
    """Encodes a key as the client asks for it (`encoding-type`)."""
    encoding: str


def read_listing_fields(request: S3Request) -> ListingFields:
    """Raises S3Error."""
    query = request.query
    encoding = query.get("encoding-type", "")
    if encoding not in ("", "url"):
        raise S3Error("InvalidArgument", "encoding-type must be url; leave it out, or send url")
    amount = read_amount(request, "max-keys")
    return ListingFields(
        query.get("prefix", ""), query.get("delimiter", ""), amount, _quote if encoding else _as_is, encoding
    )


def read_amount(request: S3Request, name: str, most: int = AMOUNT_MAX) -> int:
    """Return how many items a page may have. Raises S3Error."""
    text = request.query.get(name, "")
    if not text:
        return most
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > 2**31 - 1:
        raise S3Error(
            "InvalidArgument", f"{name} must be a whole number that is not negative", fields={"ArgumentName": name}
        )
    return min(int(text), most)


async def list_objects_v2(request: S3Request) -> Response:
    fields = read_listing_fields(request)
    start_after, token = request.query.get("start-after", ""), request.query.get("continuation-token")
    after = read_token(token) if token else start_after
    with_owner = request.query.get("fetch-owner", "").lower() == "true"

    def write(page: KeyPage, bucket: str) -> bytes:
        head: list[tuple[str, str | int]] = [
            ("Name", bucket),
            ("KeyCount", len(page.rows)),
            ("Prefix", fields.quote(fields.prefix)),
        ]
        if start_after:
            head.append(("StartAfter", fields.quote(start_after)))
        if token is not None:
            head.append(("ContinuationToken", token))
        if page.next_after:
            head.append(("NextContinuationToken", make_token(page.next_after)))
        return _write("ListBucketResult", head, page, fields, _OWNER if with_owner else "")

    return await _list(request, fields, after, write)


async def list_objects(request: S3Request) -> Response:
    fields = read_listing_fields(request)
    marker = request.query.get("marker", "")
    # botocore takes it as it is here, so only what XML cannot hold is encoded
    prefix = fields.quote(fields.prefix) if NOT_IN_XML.search(fields.prefix) else fields.prefix

    def write(page: KeyPage, bucket: str) -> bytes:
        head: list[tuple[str, str | int]] = [
            ("Name", bucket),
            ("Marker", fields.quote(marker)),
            ("Prefix", prefix),
        ]
        if page.next_after:
            head.append(("NextMarker", fields.quote(page.next_after)))
        return _write("ListBucketResult", head, page, fields, _OWNER)

    return await _list(request, fields, marker, write)


async def list_object_versions(request: S3Request) -> Response:
    """List the one version that each object has."""
    fields = read_listing_fields(request)
    marker = request.query.get("key-marker", "")

    def write(page: KeyPage, bucket: str) -> bytes:
        head: list[tuple[str, str | int]] = [
            ("Name", bucket),
            ("KeyMarker", fields.quote(marker)),
            ("VersionIdMarker", ""),
            ("Prefix", fields.quote(fields.prefix)),
        ]
        if page.next_after:
            head += [("NextKeyMarker", fields.quote(page.next_after)), ("NextVersionIdMarker", "null")]
        return _write("ListVersionsResult", head, page, fields, _OWNER, is_versions=True)

    return await _list(request, fields, marker, write)


async def _list(
    request: S3Request, fields: ListingFields, after: str, write: Callable[[KeyPage, str], bytes]
) -> Response:
    bucket = await request.find_bucket(Role.READER)
    query = KeyQuery(fields.prefix, after, fields.amount, fields.delimiter)

    def read(repo: Repository) -> Response:
        return Response(write(read_keys(repo, bucket, query), bucket.name), media_type=XML)

    return await request.service.read(request.to_starlette(), request.principal.key_id, bucket.repository, read)


def _write(
    root: str,
    head: Sequence[tuple[str, str | int]],
    page: KeyPage,
    fields: ListingFields,
    owner: str,
    *,
    is_versions: bool = False,
) -> bytes:
    """Write a listing: text by text, because a page has thousands of elements."""
    head = [*head, ("MaxKeys", fields.amount)]
    if fields.delimiter:
        head = [*head, ("Delimiter", fields.quote(fields.delimiter))]
    if fields.encoding:
        head = [*head, ("EncodingType", fields.encoding)]
    head = [*head, ("IsTruncated", bool(page.next_after))]
    parts = [f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{NAMESPACE}">', make_content(head)]
    tag = "Version" if is_versions else "Contents"
    version = "<VersionId>null</VersionId><IsLatest>true</IsLatest>" if is_versions else ""
    parts += [
        f"<{tag}><Key>{escape_text(fields.quote(key))}</Key>{version}"
        f"<LastModified>{_format_time(entry.mtime_ms // 1000)}</LastModified>"
        f"<ETag>{_format_etag(etag_of(entry))}</ETag><Size>{entry.size_bytes}</Size>"
        f"<StorageClass>STANDARD</StorageClass>{owner}</{tag}>"
        for key, entry in page.rows
        if entry is not None
    ]
    parts += [
        f"<CommonPrefixes><Prefix>{escape_text(fields.quote(key))}</Prefix></CommonPrefixes>"
        for key, entry in page.rows
        if entry is None
    ]
    parts.append(f"</{root}>")
    return "".join(parts).encode(errors="replace")


def _format_etag(etag: str) -> str:
    return f"&quot;{escape_text(etag[1:-1])}&quot;"  # nearly always the quotes are all that is escaped


@lru_cache(maxsize=4096)
def _format_time(at_seconds: int) -> str:
    return f"{format_utc(at_seconds * 1000)[:-1]}.000Z"


def format_time(at_ms: int) -> str:
    """Return a time as S3's documents have it, in whole seconds, as the header Last-Modified has it."""
    return _format_time(at_ms // 1000)


def make_token(after: str) -> str:
    """Return the continuation token of the page after a key."""
    return base64.urlsafe_b64encode(f"{_TOKEN}{after}".encode()).decode()


def read_token(token: str) -> str:
    """Return the key after which a page begins. Raises S3Error."""
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text.startswith(_TOKEN):
        raise S3Error(
            "InvalidArgument",
            "the continuation token is not one of this listing; begin again without it",
            fields={"ArgumentName": "continuation-token"},
        )
    return text.removeprefix(_TOKEN)


def _quote(text: str) -> str:
    return quote(text, safe="/", errors="replace")


def _as_is(text: str) -> str:
    return text
