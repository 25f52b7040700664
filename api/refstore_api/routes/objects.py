"""Routes of objects: upload, download, list, delete, copy."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from starlette.responses import RedirectResponse, Response

from refstore.context import Context
from refstore.core import ids
from refstore.core.clock import to_datetime
from refstore.core.ids import is_own
from refstore.core.safety import SIGNED_SECONDS
from refstore.errors import AlreadyExists, Contention, Invalid, RefstoreError
from refstore.operations.upload import Stage, Upload
from refstore.public_types import stored_entry
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore_api import signed_urls
from refstore_api.api_calls import ApiCall
from refstore_api.auth import Reader, Writer
from refstore_api.json_bodies import BodyBound, BoundedBodyRoute
from refstore_api.models import (
    ObjectCopyCreation,
    ObjectError,
    ObjectErrorList,
    ObjectStageCreation,
    ObjectStats,
    ObjectStatsList,
    PathList,
    UnderlyingObjectProperties,
)
from refstore_api.object_stats import ObjectFields, make_object_response, object_fields
from refstore_api.page_responses import PageOf, make_page_response
from refstore_api.routes import COMMON, failures
from refstore_api.shared_parameters import Delimiter, ObjectPath, Prefix, Presign
from refstore_http import headers, request_bodies
from refstore_http.http_errors import PreconditionFailed, message_of, status_of
from refstore_http.json_responses import make_empty_response, make_response
from refstore_http.object_streams import ChunkReader, add_length, check_erased, open_chunks, read_first, stream_object

router = APIRouter(
    prefix="/repositories/{repository}", tags=["objects"], route_class=BoundedBodyRoute, responses=COMMON
)

PATHS_BODY: Final = BodyBound(4 << 20)
"""A thousand paths of 1,024 bytes; JSON takes three times as many for letters that are not ASCII."""
ATTEMPTS: Final = 16
"""How often an object is looked up again when it was replaced, and its data deleted, before it could be opened."""

BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["content"],
                    "properties": {"content": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", description="*: only if nothing is at the path yet.")]
IfMatch = Annotated[str | None, Header(alias="If-Match", description="Not supported.")]
UserMetadata = Annotated[bool, Query(description="Whether to answer with user metadata.")]
Range = Annotated[str | None, Header(alias="Range", description="One range of bytes.")]
IfChanged = Annotated[str | None, Header(alias="If-None-Match", description="Answer 304 if it is still this.")]
IfRange = Annotated[str | None, Header(alias="If-Range", description="The range only of this; else the whole.")]


# the most used routes stand first, because routes are tried in order


@router.get("/refs/{ref}/objects/stat", operation_id="statObject", response_model=ObjectStats, responses=failures(410))
async def stat_object(
    call: Reader, ref: str, path: ObjectPath, user_metadata: UserMetadata = True, presign: Presign = False
) -> Response:
    context, entry = await call.service.stat(call.repository, ref, path)
    url = await call.service.run(partial(_sign_read_url, call, context, entry)) if presign else None
    return make_object_response(context, path, entry, user_metadata=user_metadata, signed=url)


@router.post(
    "/branches/{branch}/objects",
    operation_id="uploadObject",
    status_code=201,
    response_model=ObjectStats,
    responses=failures(408, 409, 412, 413),
    openapi_extra=BODY,
)
async def upload_object(
    call: Writer,
    branch: str,
    path: ObjectPath,
    if_none_match: IfNoneMatch = None,
    if_match: IfMatch = None,
) -> Response:
    """Upload the body, raw or as the form's part `content`; headers `x-lakefs-meta-NAME` become its metadata."""
    request, service, repository = call.request, call.service, call.repository
    if_absent = _is_only_if_absent(if_none_match, if_match)
    ids.object_path(path)
    if not request_bodies.is_small(request):
        await call.run(lambda repo: _check_upload(repo, branch, path, if_absent))
    limits = request_bodies.limits_of(service.settings)
    received = await request_bodies.receive_object(request, limits)
    item = Upload(
        path=path,
        body=received.body,
        metadata=headers.parse_metadata(request.headers.items()),
        content_type=ids.content_type(received.content_type),
        if_absent=if_absent,
    )
    try:
        if isinstance(received.body, list):
            context, entry = await service.upload(repository, branch, item)
        else:
            context, entry = await service.upload_long(repository, branch, item)
    except AlreadyExists as error:
        raise PreconditionFailed(str(error)) from error
    return make_object_response(context, path, entry, 201)


@router.put(
    "/branches/{branch}/objects",
    operation_id="stageObject",
    status_code=201,
    response_model=ObjectStats,
    responses=failures(409),
)
async def stage_object(call: Writer, branch: str, path: ObjectPath, body: ObjectStageCreation) -> Response:
    """Stage an object outside the namespace; refstore never deletes it."""

    def stage(repo: Repository) -> Response:
        repo.context.foreign.check_staged(body.physical_address)
        modified = to_datetime(body.mtime * 1000) if body.mtime is not None else None
        item = Stage(
            path=path,
            url=body.physical_address,
            size_bytes=body.size_bytes,
            checksum=body.checksum,
            metadata=body.metadata or {},
            content_type=ids.content_type(body.content_type or ""),
            modified=modified,
        )
        (entry,) = repo.stage_many(branch, [item])
        return make_object_response(repo.context, path, stored_entry(entry), 201)

    return await call.run(stage)


@router.get(
    "/branches/{branch}/objects/stage_allowed",
    operation_id="uploadObjectPreflight",
    status_code=204,
    responses=failures(409),
)
async def upload_preflight(call: Writer, branch: str, path: ObjectPath) -> Response:
    """Answer 204 if this key may upload to this path."""
    ids.object_path(path)
    return await call.act(lambda repo: repo.get_branch(branch))


@router.get(
    "/refs/{ref}/objects",
    operation_id="getObject",
    response_class=Response,
    responses={200: BINARY, 206: BINARY, 302: {"description": "To a signed URL."}, 304: {"description": "Not changed."}}
    | failures(410, 416),
)
async def get_object(
    call: Reader,
    ref: str,
    path: ObjectPath,
    presign: Presign = False,
    range_: Range = None,
    if_range: IfRange = None,
    if_none_match: IfChanged = None,
    if_match: IfMatch = None,
) -> Response:
    _refuse_if_match(if_match)
    request, service, repository = call.request, call.service, call.repository
    for _ in range(ATTEMPTS):
        context, entry = await service.stat(repository, ref, path)
        if headers.matches_etag(if_none_match, entry):
            return make_empty_response(304, headers={"ETag": headers.etag_of(entry)})
        url = await service.run(partial(_sign_read_url, call, context, entry)) if presign else None
        if url is not None:
            return RedirectResponse(url.url, 302)
        part = headers.parse_range(range_ if headers.is_range_allowed(if_range, entry) else None, entry.size_bytes)
        start, end = part or (0, entry.size_bytes)
        reader = await read_first(request, service, end - start, partial(open_chunks, context, entry, start, end))
        if reader is not None:
            return stream_object(service, reader, headers.object_headers(entry), part, entry.size_bytes)
        # raises if the object is gone; otherwise it changed
        await call.run(lambda repo: ChunkReader(repo.get(ref, path)).close())
    raise Contention(f"{path!r} on {ref!r} kept changing while it was read; make the same call again")


@router.head(
    "/refs/{ref}/objects",
    operation_id="headObject",
    response_class=Response,
    responses={
        200: {"description": "It is there."},
        206: {"description": "It has this range."},
        304: {"description": "Not changed."},
    }
    | failures(410, 416),
)
async def head_object(
    call: Reader,
    ref: str,
    path: ObjectPath,
    range_: Range = None,
    if_range: IfRange = None,
    if_none_match: IfChanged = None,
    if_match: IfMatch = None,
) -> Response:
    _refuse_if_match(if_match)
    entry = (await call.service.stat(call.repository, ref, path)).entry
    if headers.matches_etag(if_none_match, entry):
        return make_empty_response(304, headers={"ETag": headers.etag_of(entry)})
    part = headers.parse_range(range_ if headers.is_range_allowed(if_range, entry) else None, entry.size_bytes)
    fields = headers.object_headers(entry)
    return Response(status_code=add_length(fields, part, entry.size_bytes), headers=fields)


@router.get(
    "/refs/{ref}/objects/ls", operation_id="listObjects", response_model=ObjectStatsList, responses=failures(410)
)
async def list_objects(
    call: Reader,
    ref: str,
    bounds: PageOf,
    prefix: Prefix = "",
    delimiter: Delimiter = "",
    user_metadata: UserMetadata = True,
    presign: Presign = False,
) -> Response:
    def read(repo: Repository) -> Response:
        page = repo.list_page(ref, prefix=prefix, after=bounds.after, amount=bounds.most, delimiter=delimiter)
        results: list[ObjectFields] = []
        for path, listed in page.results:
            entry = stored_entry(listed) if listed is not None else None
            signable = presign and entry is not None and entry.address  # what a purge erased has no address
            url = _sign_read_url(call, repo.context, entry) if signable and entry is not None else None
            results.append(object_fields(repo.context, path, entry, user_metadata=user_metadata, signed=url))
        return make_page_response(bounds.describe(len(results), page.next_after, has_more=page.has_more), results)

    return await call.read(read)


@router.get(
    "/refs/{ref}/objects/underlyingProperties",
    operation_id="getUnderlyingProperties",
    response_model=UnderlyingObjectProperties,
    responses=failures(410),
)
async def underlying_properties(call: Reader, ref: str, path: ObjectPath) -> Response:
    await call.service.stat(call.repository, ref, path)
    return make_response(UnderlyingObjectProperties())


@router.delete("/branches/{branch}/objects", operation_id="deleteObject", status_code=204, responses=failures(409))
async def delete_object(call: Writer, branch: str, path: ObjectPath) -> Response:
    """Delete a path; succeed, too, if nothing is there."""
    return await call.act(lambda repo: repo.delete(branch, path))


@router.post(
    "/branches/{branch}/objects/delete",
    operation_id="deleteObjects",
    response_model=ObjectErrorList,
    responses=failures(409),
)
async def delete_objects(call: Writer, branch: str, body: Annotated[PathList, PATHS_BODY]) -> Response:
    """Delete many paths; the answer lists those that failed, each with its reason."""

    def delete(repo: Repository) -> ObjectErrorList:
        repo.get_branch(branch)
        good: list[str] = []
        errors: list[ObjectError] = []
        for path in dict.fromkeys(body.paths):
            try:
                good.append(ids.object_path(path))
            except RefstoreError as error:
                errors.append(ObjectError(status_code=status_of(error), message=message_of(error), path=path))
        repo.delete_many(branch, good)
        return ObjectErrorList(errors=errors)

    return await call.answer(delete)


@router.post(
    "/branches/{branch}/objects/copy",
    operation_id="copyObject",
    status_code=201,
    response_model=ObjectStats,
    responses=failures(409, 410),
)
async def copy_object(call: Writer, branch: str, dest_path: ObjectPath, body: ObjectCopyCreation) -> Response:
    """Copy an object to another path or branch without reading its data. A copy onto itself is refused."""

    def copy(repo: Repository) -> Response:
        entry = repo.copy(body.src_ref or branch, body.src_path, to_branch=branch, to_path=dest_path)
        return make_object_response(repo.context, dest_path, stored_entry(entry), 201)

    return await call.run(copy)


def _refuse_if_match(if_match: str | None) -> None:
    """Refuse `If-Match`. Raises Invalid."""
    if if_match is not None:
        raise Invalid("If-Match is not supported; leave it out, or send If-Range with a range")


def _is_only_if_absent(if_none_match: str | None, if_match: str | None) -> bool:
    """Parse the conditions of an upload. Raises Invalid for one that is not supported, because it must not be
    ignored.
    """
    if if_match is not None:
        raise Invalid("If-Match is not supported; leave it out")
    if if_none_match not in (None, "*"):
        raise Invalid("of If-None-Match only * is supported here; leave it out, or send *")
    return if_none_match == "*"


def _check_upload(repo: Repository, branch: str, path: str, if_absent: bool) -> None:
    """Check an upload before its long body is read; the upload itself checks everything again."""
    repo.get_branch(branch)
    if if_absent and repo.stat_many(branch, [path]):
        raise PreconditionFailed(f"{path!r} is on {branch!r} already; it was not changed")


def _sign_read_url(call: ApiCall, context: Context, entry: StoredEntry) -> signed_urls.SignedUrl | None:
    """Sign a URL that reads the object; None if there is none for a foreign object, or it may not be read."""
    check_erased(entry)
    if not is_own(entry.address):
        url = context.foreign.presign_get(entry.address, expires_seconds=SIGNED_SECONDS)
        return signed_urls.SignedUrl(url, context.clock.now_ms() // 1000 + SIGNED_SECONDS) if url else None
    return signed_urls.sign_url(
        call.request, context, entry.address, "get", seconds=SIGNED_SECONDS, size_bytes=entry.size_bytes
    )
