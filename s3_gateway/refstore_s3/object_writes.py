"""PutObject and DeleteObject, and which keys may be written."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from refstore.core import ids
from refstore.errors import InvalidName, NotFound
from refstore.operations.upload import Upload
from refstore.records.s3_attributes import join_attributes
from refstore.records.staging_records import Entry
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
from refstore_s3.object_attributes import checksum_headers, etag_of, read_attributes
from refstore_s3.object_bodies import CheckedBody, receive_body
from refstore_s3.object_reads import check_version
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target, check_path

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
        if_entry=condition.if_entry,
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


def written_headers(entry: Entry) -> dict[str, str]:
    """Return the headers of the answer to a write."""
    return {"ETag": etag_of(entry), **checksum_headers(entry)}
