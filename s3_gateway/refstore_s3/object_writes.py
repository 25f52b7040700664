"""PutObject, DeleteObject and DeleteObjects: of many keys at once, each has its own result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from starlette.responses import Response

from refstore.core import ids
from refstore.errors import InvalidName, NotFound, RefstoreError
from refstore.operations.upload import Upload
from refstore.public_types import public_entry
from refstore.records.s3_attributes import join_attributes
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_http import request_bodies
from refstore_s3.chunked_bodies import LENGTH_HEADER
from refstore_s3.conditions import (
    check_writable,
    delete_if_match,
    explain_refusals,
    read_write_condition,
)
from refstore_s3.listings import XML
from refstore_s3.object_attributes import checksum_headers, etag_of, read_attributes
from refstore_s3.object_bodies import CheckedBody, receive_body, receive_xml
from refstore_s3.object_reads import check_version
from refstore_s3.s3_errors import S3Error, explain_failure
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import S3Bucket, Target, check_path, split_key
from refstore_s3.xml_documents import Content, make_document

EMPTY_ETAG: Final = '"d41d8cd98f00b204e9800998ecf8427e"'


async def put_object(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    if is_branch_folder(request, target):
        return await _answer_folder(request, target)
    path = check_path(target)
    condition = await read_write_condition(request, target)
    if condition.refusal is not None:
        raise condition.refusal
    given = read_attributes(request.headers)
    content_type = ids.content_type(request.headers.get("content-type", ""))
    checked = CheckedBody(request)
    if not request_bodies.is_small(request.http):
        await request.service.repository(
            target.repository, lambda repo: check_writable(repo, target, if_absent=condition.if_absent)
        )
    body = await receive_body(request, checked, request_bodies.limits_of(request.service.settings))
    item = Upload(
        path=path,
        body=body,
        metadata=given.metadata,
        content_type=content_type,
        if_absent=condition.if_absent,
        if_entry=public_entry(path, condition.if_entry),
        s3=lambda: join_attributes(given.s3, checked.description),
    )
    upload = request.service.upload if isinstance(body, list) else request.service.upload_long
    try:
        with explain_refusals(is_conditional=condition.if_entry is not None):
            _, entry = await upload(target.repository, target.ref, item)
    except (NotFound, InvalidName):
        # only now: a key is nearly always written to a branch that is there
        await request.service.repository(target.repository, lambda repo: check_writable(repo, target))
        raise
    return Response(headers=written_headers(entry))


def is_branch_folder(request: S3Request, target: Target) -> bool:
    """Return whether an empty object is put at `REF/`: clients that think in folders make sure of their first so."""
    length = request.headers.get(LENGTH_HEADER) or request.headers.get("content-length")
    return length == "0" and not target.path and target.key.endswith("/")


async def _answer_folder(request: S3Request, target: Target) -> Response:
    """A branch is a folder already; nothing is stored."""
    await request.service.repository(target.repository, lambda repo: check_writable(repo, target))
    return Response(headers={"ETag": EMPTY_ETAG})


async def delete_object(request: S3Request) -> Response:
    target = await request.find_target(Role.WRITER)
    check_version(request)
    for name in ("x-amz-if-match-last-modified-time", "x-amz-if-match-size"):
        if name in request.headers:
            raise S3Error("NotImplemented", f"{name} of a deletion is not supported; leave it out")
    path = check_path(target)

    if_match = request.headers.get("if-match")

    def delete(repo: Repository) -> None:
        if if_match is not None:
            delete_if_match(repo, target, if_match)
            return
        try:
            repo.delete(target.ref, path)
        except (NotFound, InvalidName):
            check_writable(repo, target)
            raise

    await request.service.repository(target.repository, delete)
    return Response(status_code=204)


def written_headers(entry: StoredEntry) -> dict[str, str]:
    """Return the headers of the answer to a write."""
    return {"ETag": etag_of(entry), **checksum_headers(entry)}


KEYS_MAX: Final = 1000
REFUSED_CONDITIONS: Final = ("LastModifiedTime", "Size")
"""Conditions of a deletion that are not there."""


class KeyDeletion(NamedTuple):
    key: str
    version: str
    etag: str | None
    """The ETag that the object must have."""
    condition: str
    """The name of a condition that is not there; '': none."""


async def delete_objects(request: S3Request) -> Response:
    bucket = await request.find_bucket(Role.WRITER)
    items, quiet = await receive_xml(request, "Delete", _read_deletions)

    def delete(repo: Repository) -> bytes:
        return _write_results(_delete(repo, bucket, items), quiet=quiet)

    return Response(await request.service.repository(bucket.repository, delete), media_type=XML)


def _read_deletions(root: Element) -> tuple[list[KeyDeletion], bool]:
    """Return what a document names, and whether only errors are to be answered. Raises S3Error."""
    items = [_read_item(each) for each in root.findall("Object")]
    if not items or len(items) > KEYS_MAX:
        raise S3Error("MalformedXML", f"the document names {len(items)} keys; name 1 to {KEYS_MAX}")
    return items, (root.findtext("Quiet") or "").strip().lower() == "true"


def _read_item(element: Element) -> KeyDeletion:
    key = element.findtext("Key")
    if key is None:
        raise S3Error("MalformedXML", "an Object has no Key; name the key of each")
    condition = next((name for name in REFUSED_CONDITIONS if element.find(name) is not None), "")
    return KeyDeletion(key, element.findtext("VersionId") or "", element.findtext("ETag"), condition)


def _delete(repo: Repository, bucket: S3Bucket, items: list[KeyDeletion]) -> Iterator[tuple[str, S3Error | None]]:
    """Delete the keys branch by branch, and yield the result of each."""
    branches: dict[str, dict[str, Target]] = {}
    for item in dict.fromkeys(items):
        target = split_key(bucket, item.key)
        if error := _catch(lambda item=item, target=target: _check(item, target)):
            yield item.key, error
        elif (etag := item.etag) is not None:
            yield item.key, _catch(lambda target=target, etag=etag: delete_if_match(repo, target, etag))
        else:
            branches.setdefault(target.ref, {})[target.path] = target
    for branch, targets in branches.items():
        error = _catch(lambda branch=branch, targets=targets: _delete_paths(repo, branch, targets))
        for target in targets.values():
            yield target.key, error


def _delete_paths(repo: Repository, branch: str, targets: dict[str, Target]) -> None:
    try:
        repo.delete_many(branch, list(targets))
    except (NotFound, InvalidName):
        check_writable(repo, next(iter(targets.values())))
        raise


def _write_results(results: Iterable[tuple[str, S3Error | None]], *, quiet: bool) -> bytes:
    content: list[tuple[str, Content]] = []
    for key, error in results:
        if error is not None:
            content.append(("Error", [("Key", key), ("Code", error.code), ("Message", error.message)]))
        elif not quiet:
            content.append(("Deleted", [("Key", key)]))
    return make_document("DeleteResult", content)


def _check(item: KeyDeletion, target: Target) -> None:
    if item.condition:
        raise S3Error("NotImplemented", f"{item.condition} of a deletion is not supported; leave it out")
    if item.version not in ("", "null"):
        raise S3Error("NoSuchVersion", "objects have one version here, whose id is null")
    check_path(target)


def _catch(work: Callable[[], None]) -> S3Error | None:
    """Return what fails of one key, or of one branch; the others are deleted all the same."""
    try:
        work()
    except (S3Error, RefstoreError) as error:
        return explain_failure(error)
    return None
