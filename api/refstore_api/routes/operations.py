"""Routes that lakeFS does not have: move, restore, references of an address, its history, and the state of the
reaper.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from refstore.core.clock import to_ms
from refstore.core.ids import Address
from refstore.operations.address_info import AddressInfo, token_of
from refstore.operations.purge_roles import PurgeRole
from refstore.operations.restore import RestoreOutcome
from refstore.public_types import stored_entry
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_api.auth import Operator, Reader, Writer
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import (
    AddressReferenceModel,
    AddressReferences,
    JournalEvent,
    Message,
    MoveRequest,
    ObjectStats,
    PurgedObject,
    RestoreRequestModel,
    ResumeRequest,
    TrashItemList,
    TrashItemModel,
    WhyModel,
)
from refstore_api.object_stats import address_of_url, make_object_response, physical_url
from refstore_api.page_responses import PageOf
from refstore_api.routes import COMMON, failures
from refstore_api.shared_parameters import Prefix
from refstore_http.json_responses import make_response
from refstore_reaper import breaker
from refstore_reaper.status import read_status

router = APIRouter(tags=["refstore"], route_class=BoundedBodyRoute, responses=COMMON)
PhysicalAddress = Annotated[
    str, Query(min_length=1, max_length=4096, description="As a listing shows it, or data/<hour>/<id>.")
]
OBJECT: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}


@router.post(
    "/repositories/{repository}/branches/{branch}/objects/move",
    operation_id="moveObject",
    status_code=201,
    response_model=ObjectStats,
    responses=failures(409),
)
async def move_object(call: Writer, branch: str, body: MoveRequest) -> Response:
    """Move an object to another path on its branch without reading its data."""

    def move(repo: Repository) -> Response:
        entry = repo.move(branch, body.src_path, to_path=body.dest_path)
        return make_object_response(repo.context, body.dest_path, stored_entry(entry), 201)

    return await call.run(move)


@router.post(
    "/repositories/{repository}/branches/{branch}/objects/restore",
    operation_id="restoreObject",
    status_code=201,
    response_model=ObjectStats,
    responses={200: {"model": ObjectStats}, **failures(409, 410)},
)
async def restore_object(call: Writer, branch: str, body: RestoreRequestModel) -> Response:
    """Restore a lost object, at its path or another one. 200: it is there already, and nothing was changed.

    409: something was written to the path since; `force` replaces that.
    """

    def restore(repo: Repository) -> Response:
        restored = repo.restore(
            address_of_url(repo.context, body.physical_address), to=branch, path=body.path, force=body.force
        )
        assert restored.entry is not None  # noqa: S101  # what was not restored raised
        status = 200 if restored.outcome is RestoreOutcome.UNCHANGED else 201
        return make_object_response(repo.context, restored.path, stored_entry(restored.entry), status)

    return await call.run(restore)


@router.get("/repositories/{repository}/grace", operation_id="listInGrace", response_model=TrashItemList)
async def list_in_grace(
    call: Reader,
    page: PageOf,
    branch: Annotated[str | None, Query(max_length=255, description="Only what was last on this branch.")] = None,
    prefix: Prefix = "",
) -> Response:
    """List what can be restored now, page by page. If `deletes_at` is missing, the grace window has not begun: it
    begins when the reaper processes the object.
    """

    def read(repo: Repository) -> TrashItemList:
        lost_objects = repo.list_trash(branch=branch, prefix=prefix, after=page.after)
        results, pagination = page.take(lost_objects, lambda item: item.cursor)
        return TrashItemList(
            pagination=pagination,
            results=[
                TrashItemModel(
                    physical_address=physical_url(repo.context, item.address),
                    branch=item.branch,
                    path=item.path,
                    cause=item.cause,
                    since=to_ms(item.since) // 1000,
                    deletes_at=_seconds(item.deletes_at),
                    size_bytes=item.entry.size_bytes if item.entry is not None else None,
                )
                for item in results
            ],
        )

    return await call.read(read)


@router.get("/repositories/{repository}/addresses", operation_id="getReferences", response_model=AddressReferences)
async def get_references(call: Reader, physical_address: PhysicalAddress) -> Response:
    """Return the references to a physical address, each with its state."""
    return await call.read(
        lambda repo: _address_references(repo, repo.address(address_of_url(repo.context, physical_address)))
    )


@router.get("/repositories/{repository}/addresses/why", operation_id="why", response_model=WhyModel)
async def why(call: Reader, physical_address: PhysicalAddress) -> Response:
    """Explain a physical address: its references, and who deleted it, when, and under which rule."""

    def read(repo: Repository) -> WhyModel:
        address = address_of_url(repo.context, physical_address)
        # a reaper's id has its host and process, and a store's words may have one
        shows_host = call.principal.role >= Role.OPERATOR
        explanation = repo.why(address)
        return WhyModel(
            physical_address=physical_url(repo.context, Address(address)),
            now=_address_references(repo, explanation.info),
            meaning=explanation.meaning,
            purged=_purged_object(repo, explanation.purge_role),
            events=[
                JournalEvent(
                    at=to_ms(event.at) // 1000,
                    outcome=event.outcome,
                    path=event.path,
                    cause=event.cause,
                    size_bytes=event.size_bytes,
                    reason=event.reason if shows_host else "",
                    by=event.by,
                    run=event.run if event.by != "reaper" or shows_host else "",
                    rule=event.rule,
                )
                for event in explanation.deletions
            ],
        )

    return await call.read(read)


@router.get("/reaper/status", operation_id="reaperStatus", response_class=Response, responses={200: OBJECT})
async def reaper_status(
    call: Operator, repository: Annotated[str | None, Query(max_length=63, description="Only this one.")] = None
) -> Response:
    """Return which reapers run, what waits, and where and why deletion has stopped."""
    lake = call.service.lake
    if repository is not None:
        await call.service.run(lambda: lake.undrained_context(repository))
    status = await call.service.run(lambda: read_status(lake, repository=repository))
    return JSONResponse(
        {
            "reapers": [each._asdict() for each in status.reapers],
            "repositories": [each._asdict() for each in status.repositories],
            "settling": status.settling,
            "settlement_error": status.settlement_error,
        }
    )


@router.post(
    "/repositories/{repository}/reaper/resume",
    operation_id="resumeReaper",
    response_model=Message,
    responses=failures(409),
)
async def resume_reaper(call: Operator, body: ResumeRequest | None = None) -> Response:
    """Resume hard deletion that the breaker stopped: for a time, or for a number of objects; an hour by default.

    A deleted repository is found, too, until it is drained; its name is free only after that.
    """
    bounds = body or ResumeRequest()

    def resume() -> Message:
        ctx = call.service.lake.undrained_context(call.repository)
        return Message(message=breaker.resume_stopped(ctx, seconds=bounds.seconds, objects=bounds.objects))

    return make_response(await call.service.run(resume))


def _purged_object(repo: Repository, role: PurgeRole | None) -> PurgedObject | None:
    if role is None:
        return None
    return PurgedObject(
        identity=physical_url(repo.context, role.identity),
        role=role.role.value,
        content=physical_url(repo.context, role.content) if role.content else None,
        run=role.run,
        since=_seconds(role.since),
    )


def _address_references(repo: Repository, view: AddressInfo) -> AddressReferences:
    return AddressReferences(
        physical_address=physical_url(repo.context, view.address),
        state=view.state.value,
        reference_state=view.reference_state.value if view.reference_state else None,
        commit=(view.committed_name.commit or view.committed_name.swept_commit) if view.committed_name else None,
        references=[
            AddressReferenceModel(
                branch=reference.branch,
                path=reference.path,
                staging_token=token_of(reference),
                state=reference.state.value,
                last_modified=_seconds(reference.last_modified),
            )
            for reference in view.references
        ],
        since=_seconds(view.since),
        cause=view.cause,
        expires=_seconds(view.expires),
    )


def _seconds(at: datetime | None) -> int | None:
    return to_ms(at) // 1000 if at is not None else None
