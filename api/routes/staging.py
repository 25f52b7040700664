"""Physical addresses: given out, written to without us, and linked, once (rule 10); and the signed URLs of a store that has none.

lakeFS's clients hand `StagingLocation.physical_address` back when they link, and no field of ours: so that is where the token
travels, as `?token=`. Clients of ours may send it as `staging.token`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from api import bodies, headers, signed
from api.answers import answer, nothing
from api.auth import Writer
from api.errors import PreconditionFailed
from api.models import ObjectStats, StagingLocation, StagingMetadata
from api.params import ObjectPath, Presign
from api.planned import PlannedRoute
from api.routes import failures
from api.routes.objects import BINARY, IfMatch, streamed
from api.service import Linking, ServiceOf
from api.stats import physical, relative, stats, token_of, with_token
from refstore import deadline, ids
from refstore.context import Context
from refstore.errors import AlreadyExists, AlreadyLinked, Invalid
from refstore.flows.uploading import Link
from refstore.objects.base import ObjectInfo, ObjectStore, Stored, chunks_of
from refstore.records import Issued
from refstore.references import References
from refstore.repository import Repository

router = APIRouter(tags=["staging"], route_class=PlannedRoute)
BACKING = "/repositories/{repository}/branches/{branch}/staging/backing"
RAW: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.put(BACKING, operation_id="linkPhysicalAddress", responses={200: {"model": ObjectStats}, **failures(409, 412)})
async def link_physical_address(
    service: ServiceOf,
    who: Writer,
    repository: str,
    branch: str,
    path: ObjectPath,
    body: StagingMetadata,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match", description="*: only if nothing is at the path yet.")] = None,
    if_match: IfMatch = None,
) -> Response:
    """Put a written address on the branch: once, for the path that it was given out for, before it expires."""
    del who
    if if_match is not None or if_none_match not in (None, "*"):
        raise Invalid("of the conditions only If-None-Match: * is supported here; leave the others out")
    address = body.staging.physical_address or ""
    content_type = ids.content_type(body.content_type or "")

    def link(context: Context) -> Link:
        return Link(
            path=path,
            token=body.staging.token or token_of(context, address),
            address=relative(context, address) if address else "",
            size_bytes=body.size_bytes,
            checksum=body.checksum.strip('"'),
            metadata=body.user_metadata or {},
            content_type=content_type,
            if_absent=if_none_match == "*",
        )

    try:
        context, entry = await service.link(repository, branch, Linking(path, if_none_match == "*", link))
    except AlreadyExists as error:
        raise PreconditionFailed(str(error)) from error
    return answer(stats(context, path, entry))


@router.get(BACKING, operation_id="getPhysicalAddress", responses={200: {"model": StagingLocation}, **failures()})
async def get_physical_address(
    request: Request, service: ServiceOf, who: Writer, repository: str, branch: str, path: ObjectPath, presign: Presign = False
) -> Response:
    """An address to write one object to, and what links it to this path of this branch before it expires."""
    del who

    def issue(repo: Repository) -> StagingLocation:
        given = repo.issue(branch, path)
        url = None
        if presign:
            left_ms = given.expires_ms - repo.context.clock.now_ms()
            url = signed.sign(service, request, repo.context, given.address, "put", seconds=max(1, left_ms // 1000))
        return StagingLocation(
            physical_address=with_token(physical(repo.context, given.address), given.token),
            token=given.token,
            expiry=given.expires_ms // 1000,
            presigned_url=url.url if url else None,
            presigned_url_expiry=url.expires_seconds if url else None,
        )

    return answer(await service.repository(repository, issue))


@router.get("/signed/{token}", operation_id="getSigned", response_class=Response, responses={200: BINARY, 206: BINARY} | failures(416))
async def get_signed(
    service: ServiceOf, token: str, range_: Annotated[str | None, Header(alias="Range", description="One range of bytes.")] = None
) -> Response:
    """Read one object by a signed URL."""

    def find() -> tuple[ObjectStore, ObjectInfo]:
        grant, context = signed.verify(service, token, "get")
        return context.objects, context.objects.head(grant.address)

    objects, found = await service.run(find)
    size_bytes = found.size_bytes
    part = headers.range_of(range_, size_bytes)
    start, end = part or (0, size_bytes)
    chunks = await service.run(lambda: objects.get(found.key, start=start, end=end))
    fields = {
        "Content-Type": headers.DEFAULT_TYPE,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return streamed(service, chunks, fields, start, end, size_bytes, partial=part is not None)


@router.put(
    "/signed/{token}", operation_id="putSigned", responses={200: {"description": "Stored."}, **failures(408, 409, 413)}, openapi_extra=RAW
)
async def put_signed(request: Request, service: ServiceOf, token: str) -> Response:
    """Write an issued address by a signed URL, once: what is there is not replaced."""

    def check() -> tuple[signed.Grant, Context]:
        grant, context = signed.verify(service, token, "put")
        (record,) = References(context.kv, context.repo, context.clock).get_many([grant.address])
        if not isinstance(record, Issued):
            # taken away it could come back as an object that nobody names and the reaper does not know
            raise AlreadyLinked("this physical address was linked before, or has expired; get a new one")
        return grant, context

    grant, context = await service.run(check)
    limits = bodies.limits_of(service.settings)
    received = await bodies.receive(request, limits, forms=False)

    def store() -> Stored:
        with deadline.operation(context.clock, context.safety.operation_deadline_seconds):
            body = deadline.checked(chunks_of(received.body))
            return context.objects.put(grant.address, body, if_absent=context.objects.conditional_put)

    stored = await service.run_body(store)
    return nothing(200, headers={"ETag": f'"{stored.md5}"'})
