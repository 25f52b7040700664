"""ListObjects, ListObjectsV2 and ListObjectVersions: a page of a bucket's keys in order, as XML.

The keys are of one ref where the prefix names it, otherwise across the refs: `s3://REPOSITORY/` has the branches and
tags as its first segments. Each page reads from the staging areas and ranges what it needs, and is consistent within
one ref.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, islice
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from refstore.core.clock import format_utc
from refstore.core.ids import decode_ref, encode_ref
from refstore.errors import InvalidName, InvalidPath, NotFound, RepositoryNotFound
from refstore.public_types import stored_entry
from refstore.records.keys import LAST_CODE_POINT
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_s3.object_attributes import etag_of
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import S3Bucket
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

    return await request.service.read(request.http, request.principal.key_id, bucket.repository, read)


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


STEM_NAMES_MAX: Final = 1000
"""How many refs with one stem are sorted together."""
EMPTY_REFS_MAX: Final = 100
"""How many refs without a key end a page."""
_STEM_END: Final = re.compile("[\x00-/]")
"""Of these characters the names of refs have `-`, `.` and `/`, and a key `%` as well."""
_BEHIND_SLASH: Final = chr(ord("/") + 1)
_CUT_ENCODING: Final = re.compile("%2?$")
"""The beginning of an encoded slash, where a prefix ends."""


class KeyRow(NamedTuple):
    """An object, or a common prefix (then `entry` is None)."""

    key: str
    entry: StoredEntry | None


class KeyPage(NamedTuple):
    rows: list[KeyRow]
    next_after: str
    """The key after which the next page begins; '': there is none."""


class KeyQuery(NamedTuple):
    """Which keys are asked for: those with the prefix that come after `after`, folded at the delimiter."""

    prefix: str
    after: str
    amount: int
    delimiter: str


def read_keys(repo: Repository, bucket: S3Bucket, query: KeyQuery) -> KeyPage:
    """Return one page. A ref that is not there has no keys."""
    if query.amount == 0:
        return KeyPage([], "")
    if bucket.branch:
        return _read_ref(repo, bucket.branch, "", query)
    segment, slash, _ = query.prefix.partition("/")
    if slash:
        return _read_ref(repo, decode_ref(segment), f"{segment}/", query)
    return _read_refs(repo, query)


def _read_refs(repo: Repository, query: KeyQuery) -> KeyPage:
    """Return a page of all refs whose first segment has the prefix."""
    rows: list[KeyRow] = []
    empty_refs = 0
    for segment in _scan_segments(repo, query):
        folded = fold_segment(segment, query.prefix, query.delimiter)
        if folded:
            if folded > query.after and (not rows or rows[-1].key != folded):
                if len(rows) == query.amount:
                    return KeyPage(rows, rows[-1].key)
                rows.append(KeyRow(folded, None))
            continue
        left = query.amount - len(rows)
        if left == 0:
            return KeyPage(rows, rows[-1].key)
        page = _read_ref(repo, decode_ref(segment[:-1]), segment, query._replace(prefix=segment, amount=left))
        rows += page.rows
        if page.next_after:
            return KeyPage(rows, page.next_after)
        empty_refs += not page.rows
        if empty_refs == EMPTY_REFS_MAX:
            return KeyPage(rows, segment[:-1] + _BEHIND_SLASH)
    return KeyPage(rows, "")


def _scan_segments(repo: Repository, query: KeyQuery) -> Iterator[str]:
    """Yield the first segments of keys in order: `REF/` of each branch and tag that may have a key after `after`."""
    for segment in _scan_refs(repo, decode_ref(_CUT_ENCODING.sub("", query.prefix)), query.after):
        if segment.startswith(query.prefix) and segment + LAST_CODE_POINT > query.after:
            yield segment


def _scan_refs(repo: Repository, start: str, after: str) -> Iterator[str]:
    """Yield the segments of the refs whose names begin with `start`, in order, from somewhere before `after` on.

    The names of refs are read in their own order, in which a slash stands behind `-` and `.`, and not before them as
    its encoding does. So names that are equal up to the first of these characters are sorted together. Where they are
    many, those that go on with each of the characters are read apart, so that a page reads no more than it needs.
    """
    if after >= encode_ref(start) + LAST_CODE_POINT:
        return
    before = _find_place_before(start, after)
    while True:
        for stem, group in groupby(_scan_names(repo, start, before), partial(_find_stem, start=len(start))):
            names = [*islice(group, STEM_NAMES_MAX + 1)]
            if len(names) <= STEM_NAMES_MAX:
                yield from sorted({f"{encode_ref(name)}/" for name in names})
                continue
            for separator in "/-.":  # in the order of segments
                yield from _scan_refs(repo, stem + separator, after)
            if names[0] == stem:
                yield f"{encode_ref(stem)}/"
            before = f"{stem}/{LAST_CODE_POINT}"  # the others of the stem are not read
            break
        else:
            return


def _scan_names(repo: Repository, start: str, before: str) -> Iterator[str]:
    return heapq.merge(
        (name.name for name in repo.branches(prefix=start, after=before)),
        (name.name for name in repo.tags(prefix=start, after=before)),
    )


def _find_stem(name: str, start: int) -> str:
    """Return a ref's name up to the first `-`, `.` or `/` behind its `start`."""
    end = _STEM_END.search(name, start)
    return name[: end.start()] if end else name


def _find_place_before(start: str, after: str) -> str:
    """Return a name behind which all refs are that begin with `start` and may have a key after `after`."""
    begin = encode_ref(start)
    stem = start + _find_stem(after[len(begin) :], 0) if after.startswith(begin) else start
    if stem == start:
        return ""
    return stem[:-1] + chr(ord(stem[-1]) - 1) + LAST_CODE_POINT if stem.isascii() else stem  # no ref has such a name


def fold_segment(segment: str, prefix: str, delimiter: str) -> str:
    """Return the common prefix of all keys with the segment; '' where they are not folded within it."""
    at = segment.find(delimiter, len(prefix)) if delimiter else -1
    return "" if at < 0 else segment[: at + len(delimiter)]


def _read_ref(repo: Repository, ref: str, begin: str, query: KeyQuery) -> KeyPage:
    """Return a page of one ref, whose keys begin with `begin`."""
    after = query.after
    if after.startswith(begin):
        after = after[len(begin) :]
    elif after < begin:
        after = ""
    else:
        return KeyPage([], "")
    try:
        page = repo.list_page(
            ref, prefix=query.prefix[len(begin) :], after=after, amount=query.amount, delimiter=query.delimiter
        )
    except RepositoryNotFound:
        raise
    except (NotFound, InvalidName, InvalidPath):  # no such ref, or no path has the prefix
        return KeyPage([], "")
    rows = [KeyRow(begin + path, None if entry is None else stored_entry(entry)) for path, entry in page.results]
    return KeyPage(rows, begin + page.next_after if page.has_more else "")
