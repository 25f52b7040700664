"""Routes of physical addresses: issue them, link them once after they were written (rule 10), and serve signed URLs for
stores that sign none.

lakeFS's clients send `StagingLocation.physical_address` back when they link, and no field of ours. So the token travels
there, as `?token=`. Our own clients may send it as `staging.token`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from refstore.context import Context
from refstore.core import deadline, ids
from refstore.core.clock import to_ms
from refstore.errors import AlreadyExists, AlreadyLinked, Invalid
from refstore.objects.base import StoredObject, chunks_of
from refstore.operations.upload import Link
from refstore.records.reference_records import Issued
from refstore.repository import Repository
from refstore_api import signed_urls
from refstore_api.auth import Writer
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import ObjectStats, StagingLocation, StagingMetadata
from refstore_api.object_stats import add_token, address_of_url, make_object_response, physical_url, read_token
from refstore_api.routes import COMMON, failures
from refstore_api.routes.objects import BINARY, IfMatch, IfNoneMatch, Range
from refstore_api.shared_parameters import ObjectPath, Presign, ServiceOf
from refstore_http import headers, request_bodies
from refstore_http.http_errors import PreconditionFailed
from refstore_http.json_responses import make_empty_response
from refstore_http.object_streams import ChunkReader, read_first, stream_object
from refstore_http.service import LinkRequest

router = APIRouter(tags=["staging"], route_class=BoundedBodyRoute, responses=COMMON)
BACKING = "/repositories/{repository}/branches/{branch}/staging/backing"
RAW: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.put(BACKING, operation_id="linkPhysicalAddress", response_model=ObjectStats, responses=failures(409, 412))
async def link_physical_address(
    call: Writer,
    branch: str,
    path: ObjectPath,
    body: StagingMetadata,
    if_none_match: IfNoneMatch = None,
    if_match: IfMatch = None,
) -> Response:
    """Link a written address to the branch: once, at the path that it was issued for, before it expires."""
    if if_match is not None or if_none_match not in (None, "*"):
        raise Invalid("only the condition If-None-Match: * is supported here; leave the others out")
    address = body.staging.physical_address or ""
    content_type = ids.content_type(body.content_type or "")

    def link(context: Context) -> Link:
        return Link(
            path=path,
            token=body.staging.token or read_token(context, address),
            address=address_of_url(context, address) if address else "",
            size_bytes=body.size_bytes,
            checksum=body.checksum.strip('"'),
            metadata=body.user_metadata or {},
            content_type=content_type,
            if_absent=if_none_match == "*",
        )

    try:
        request = LinkRequest(path, if_none_match == "*", link)
        context, entry = await call.service.link(call.repository, branch, request)
    except AlreadyExists as error:
        raise PreconditionFailed(str(error)) from error
    return make_object_response(context, path, entry)


@router.get(BACKING, operation_id="getPhysicalAddress", response_model=StagingLocation)
async def get_physical_address(
    call: Writer,
    branch: str,
    path: ObjectPath,
    presign: Presign = False,
    if_absent: Annotated[
        bool,
        Query(
            description="With presign: the URL takes only a PUT with the header If-None-Match: *, and never replaces "
            "what was written. refstore's own."
        ),
    ] = False,
) -> Response:
    """Issue an address to write one object to, with a token that links it to this path of this branch before it
    expires.
    """
    if if_absent and not presign:
        raise Invalid("if_absent is for signed URLs; give presign=true, too")

    def issue(repo: Repository) -> StagingLocation:
        if if_absent and not repo.context.objects.conditional_put:
            raise Invalid(
                "the object store ignores If-None-Match (conditional_put=0), so its URLs replace what is there; leave "
                "if_absent out"
            )
        issued = repo.issue(branch, path)
        url = None
        if presign:
            left_ms = to_ms(issued.expires) - repo.context.clock.now_ms()
            url = signed_urls.sign_url(
                call.request,
                repo.context,
                issued.address,
                "put",
                seconds=max(1, left_ms // 1000),
                if_absent=if_absent,
            )
        return StagingLocation(
            physical_address=add_token(physical_url(repo.context, issued.address), issued.token),
            token=issued.token,
            expiry=to_ms(issued.expires) // 1000,
            presigned_url=url.url if url else None,
            presigned_url_expiry=url.expires_seconds if url else None,
        )

    return await call.answer(issue)


@router.get(
    "/signed/{token}",
    operation_id="getSigned",
    response_class=Response,
    responses={200: BINARY, 206: BINARY} | failures(416),
)
async def get_signed(request: Request, service: ServiceOf, token: str, range_: Range = None) -> Response:
    """Read one object by a signed URL."""

    grant, context = await service.run(partial(signed_urls.verify_token, service, token, "get"))
    size_bytes = grant.size_bytes
    part = headers.parse_range(range_, size_bytes)
    start, end = part or (0, size_bytes)
    read = partial(context.objects.get, grant.address, start=start, end=end, size_bytes=size_bytes)
    reader = await read_first(request, service, end - start, lambda: ChunkReader(read()))
    fields = {
        "Content-Type": headers.DEFAULT_TYPE,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return stream_object(service, reader, fields, part, size_bytes)


@router.put(
    "/signed/{token}",
    operation_id="putSigned",
    responses={200: {"description": "Stored."}, **failures(408, 409, 413)},
    openapi_extra=RAW,
)
async def put_signed(request: Request, service: ServiceOf, token: str) -> Response:
    """Write to an issued address by a signed URL, once; an existing object is not replaced."""

    def check() -> tuple[signed_urls.SignedUrlGrant, Context]:
        grant, context = signed_urls.verify_token(service, token, "put")
        (record,) = context.references.get_many([grant.address])
        if not isinstance(record, Issued):
            # if it was deleted, the write would leave an object that nothing references and the reaper does not know
            raise AlreadyLinked("this physical address was linked before, or has expired; get a new one")
        return grant, context

    grant, context = await service.run(check)
    limits = request_bodies.limits_of(service.settings)
    received = await request_bodies.receive_object(request, limits, forms=False)

    def store() -> StoredObject:
        with deadline.limit_operation(context.clock, context.safety.operation_deadline_seconds):
            body = deadline.check_each(chunks_of(received.body))
            return context.objects.put(grant.address, body, if_absent=context.objects.conditional_put)

    stored = await service.run_body(store)
    return make_empty_response(200, headers={"ETag": f'"{stored.md5}"'})
