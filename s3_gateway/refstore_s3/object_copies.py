"""CopyObject: by reference within a repository, so that no data moves; by bytes between repositories, each of which
counts its own references.

A copy with a condition on its target is made by bytes, too: a conditional entry is known by its address, which nobody
else may have made (rule 20 of docs/protocol.md). So is one that needs a checksum that its source does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.responses import Response

from refstore.core import ids
from refstore.errors import Contention
from refstore.operations.copy import ATTEMPTS, Copy
from refstore.operations.upload import Upload
from refstore.public_types import Entry, public_entry, stored_entry
from refstore.records.s3_attributes import ContentDescription, S3Attributes, add_sources, content_of, join_attributes
from refstore.records.staging_records import StoredEntry, sources_of_copy
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_http.http_errors import PreconditionFailed
from refstore_http.object_streams import ChunkReader, open_chunks, read_first
from refstore_s3.checksums import Checksums
from refstore_s3.conditions import (
    COPY_SOURCE,
    WriteCondition,
    check_conditions,
    check_writable,
    explain_refusals,
    read_write_condition,
)
from refstore_s3.listings import XML, format_time
from refstore_s3.object_attributes import (
    GivenAttributes,
    checksum_content,
    etag_of,
    has_checksum,
    parse_tags,
    read_attributes,
)
from refstore_s3.object_parts import UploadChecksum
from refstore_s3.object_reads import check_changed, stat_object
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target, check_path, split_key
from refstore_s3.xml_documents import make_document

DIRECTIVES: Final = ("COPY", "REPLACE")


class SourceChanged(Exception):
    """The source is not the object any more whose conditions were checked."""


class CopyAttributes(NamedTuple):
    """What a copy is described by: the source's, or the request's."""

    given: GivenAttributes | None
    """Metadata and headers; None: the source's."""
    content_type: str
    tags: dict[str, str] | None
    """None: the source's."""

    @property
    def is_empty(self) -> bool:
        return self.given is None and self.tags is None

    def describe(self, source: StoredEntry) -> StoredEntry:
        """Return the source's entry with the metadata and the content type of the copy."""
        own = GivenAttributes.of_entry(source)
        tags = own.tags if self.tags is None else self.tags
        given = (own if self.given is None else self.given)._replace(tags=tags)
        content_type = source.content_type if self.given is None else self.content_type
        s3 = join_attributes(given.s3, content_of(source.s3))
        return msgspec.structs.replace(source, metadata=given.metadata, content_type=content_type, s3=s3)


async def copy_object(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    check_path(target)
    algorithm = UploadChecksum.read(request.headers).algorithm
    source = await find_source(request)
    attributes = read_copy_attributes(request)
    if is_same_object(source, target) and attributes.is_empty:
        raise S3Error(
            "InvalidRequest", "the copy is onto itself and changes nothing; change its metadata, or name another key"
        )
    condition = await read_write_condition(request, target)
    if condition.refusal is not None:
        raise condition.refusal
    by_reference = source.repository == target.repository and condition == WriteCondition()
    if by_reference and algorithm:
        _, found = await stat_object(request, source)
        by_reference = has_checksum(found, algorithm)
    if by_reference:
        entry = await _copy_entry(request, source, target, attributes)
    else:
        entry = await _copy_bytes(request, source, target, attributes, condition, algorithm)
    content = [("ETag", etag_of(entry)), ("LastModified", format_time(entry.mtime_ms)), *checksum_content(entry)]
    return Response(make_document("CopyObjectResult", content), media_type=XML)


def is_same_object(source: Target, target: Target) -> bool:
    return (source.repository, source.ref, source.path) == (target.repository, target.ref, target.path)


async def find_source(request: S3Request) -> Target:
    """Return what `x-amz-copy-source` names, if the key may read it. Raises S3Error, Forbidden."""
    text, _, query = request.headers.get("x-amz-copy-source", "").partition("?")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        decoded = ""
    bucket_name, _, key = decoded.removeprefix("/").partition("/")
    if not bucket_name or not key:
        raise S3Error("InvalidArgument", "x-amz-copy-source must be BUCKET/KEY, URL-encoded")
    if query and query != "versionId=null":
        raise S3Error("NoSuchVersion", "objects have one version here, whose id is null; leave versionId out")
    bucket = await request.check_bucket(request.gateway.buckets.parse(bucket_name, request.principal), Role.READER)
    return split_key(bucket, key)


def read_copy_attributes(request: S3Request) -> CopyAttributes:
    """Raises S3Error."""
    given: GivenAttributes | None = None
    tags: dict[str, str] | None = None
    if _read_directive(request, "x-amz-metadata-directive") == "REPLACE":
        given = read_attributes(request.headers)
    if _read_directive(request, "x-amz-tagging-directive") == "REPLACE":
        tags = parse_tags(request.headers.get("x-amz-tagging", ""))
    return CopyAttributes(given, ids.content_type(request.headers.get("content-type", "")), tags)


def _read_directive(request: S3Request, name: str) -> str:
    directive = request.headers.get(name, "COPY").upper()
    if directive not in DIRECTIVES:
        raise S3Error("InvalidArgument", f"{name} must be COPY or REPLACE")
    return directive


async def _copy_entry(request: S3Request, source: Target, target: Target, attributes: CopyAttributes) -> StoredEntry:
    """Copy within a repository, by reference."""
    has_conditions = any(name.startswith(COPY_SOURCE + "if-") for name in request.headers)
    await stat_object(request, source)  # names what is missing

    def copy(repo: Repository) -> StoredEntry:
        check_writable(repo, target)
        describe = _expect_source(request, repo, source, attributes) if has_conditions else attributes.describe

        def change(entry: Entry) -> Entry:
            return Entry(entry.path, describe(stored_entry(entry)))

        if is_same_object(source, target):
            entry = repo.change_metadata(target.ref, target.path, change)
        else:
            (entry,) = repo.copy_many(source.ref, [Copy(source.path, target.path, change)], to_branch=target.ref)
        if repo.context.locations.are_announced():
            entry = repo.stat_many(target.ref, [target.path]).get(target.path, entry)
        return stored_entry(entry)

    for _ in range(ATTEMPTS):
        try:
            return await request.service.repository(target.repository, copy)
        except SourceChanged:
            continue
    raise make_contention(source)


def _expect_source(
    request: S3Request, repo: Repository, source: Target, attributes: CopyAttributes
) -> Callable[[StoredEntry], StoredEntry]:
    """Check the conditions on the source, and return how its entry becomes the copy's, unless it has changed by then.
    Raises S3Error.
    """
    expected = repo.resolve(source.ref, source.path).entry.address
    check_conditions(request.headers, stored_entry(repo.stat(source.ref, source.path)), prefix=COPY_SOURCE)

    def describe(entry: StoredEntry) -> StoredEntry:
        if entry.address != expected:
            raise SourceChanged("the source has changed")
        return attributes.describe(entry)

    return describe


async def _copy_bytes(
    request: S3Request,
    source: Target,
    target: Target,
    attributes: CopyAttributes,
    condition: WriteCondition,
    algorithm: str,
) -> StoredEntry:
    """Copy by reading the bytes and uploading them. `algorithm`: of the checksum that the copy must have; '': any.

    A copy onto itself replaces what it has read only.
    """
    replaces_source = condition == WriteCondition() and is_same_object(source, target)
    await request.service.repository(
        target.repository, lambda repo: check_writable(repo, target, if_absent=condition.if_absent)
    )
    for _ in range(ATTEMPTS):
        context, entry = await stat_object(request, source)
        check_conditions(request.headers, entry, prefix=COPY_SOURCE)
        reading = partial(open_chunks, context, entry, 0, entry.size_bytes)
        reader = await read_first(request.http, request.service, entry.size_bytes, reading)
        if reader is not None:
            described = attributes.describe(entry)
            body, running = read_all(reader), None
            if algorithm and not has_checksum(entry, algorithm):
                running = Checksums([algorithm])
                body = update(running, body)
            item = Upload(
                path=target.path,
                body=body,
                metadata=described.metadata,
                s3=partial(_describe_bytes, described, sources_of_copy(entry), algorithm, running),
                content_type=described.content_type,
                if_absent=condition.if_absent,
                if_entry=public_entry(target.path, entry if replaces_source else condition.if_entry),
            )
            try:
                with explain_refusals(is_conditional=condition.if_entry is not None):
                    _, copied = await request.service.upload_long(target.repository, target.ref, item)
            except PreconditionFailed:
                if not replaces_source:
                    raise
                continue
            return copied
        await check_changed(request, source)
    raise make_contention(source)


def read_all(reader: ChunkReader) -> Iterator[bytes]:
    """Yield the chunks, and close the reader."""
    try:
        chunk = reader.take_first()
        while chunk:
            yield chunk
            chunk = reader.chunk()
    finally:
        reader.close()


def update(running: Checksums, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks, and add each to the checksums."""
    for chunk in chunks:
        running.update(chunk)
        yield chunk


def _describe_bytes(
    described: StoredEntry, sources: Sequence[str], algorithm: str, running: Checksums | None
) -> S3Attributes | None:
    """Return the attributes of a copy by bytes. `running`: the checksum that the source did not have; None: it had."""
    s3 = described.s3
    if running is not None:
        s3 = join_attributes(s3, ContentDescription(algorithm, running.base64(algorithm)))
    return add_sources(s3, sources)


def make_contention(source: Target) -> Contention:
    """Make the error of a copy whose source changed each time."""
    return Contention(f"{source.key!r} kept changing while it was copied; make the same call again")
