"""What refstore does and lakeFS has no word for: move, restore, who names an address, what became of it, and how the reaper does."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from api.answers import answer, page_of
from api.auth import Operator, Reader, Writer
from api.models import (
    AddressReferences,
    InGrace,
    InGraceList,
    JournalEvent,
    Message,
    Move,
    NamedBy,
    ObjectStats,
    Restore,
    Resume,
    Why,
)
from api.naming import NamedRoute
from api.params import AMOUNT, Amount, Prefix, amount_of
from api.routes import failures
from api.service import ServiceOf
from api.stats import physical, relative, stats
from refstore.flows.restoring import Outcome
from refstore.flows.viewing import AddressView
from refstore.ids import Address
from refstore.repository import Repository

router = APIRouter(tags=["refstore"], route_class=NamedRoute)
PhysicalAddress = Annotated[str, Query(min_length=1, max_length=4096, description="As a listing shows it, or data/<slice>/<id>.")]
OBJECT: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}


@router.post(
    "/repositories/{repository}/branches/{branch}/objects/move",
    operation_id="moveObject",
    status_code=201,
    responses={201: {"model": ObjectStats}, **failures(409)},
)
async def move_object(service: ServiceOf, who: Writer, repository: str, branch: str, body: Move) -> Response:
    """Give an object another path on its branch, without reading its data."""
    del who

    def move(repo: Repository) -> ObjectStats:
        return stats(repo.context, body.dest_path, repo.move(branch, body.src_path, body.dest_path))

    return answer(await service.repository(repository, move), 201)


@router.post(
    "/repositories/{repository}/branches/{branch}/objects/restore",
    operation_id="restoreObject",
    status_code=201,
    responses={200: {"model": ObjectStats}, 201: {"model": ObjectStats}, **failures(409, 410)},
)
async def restore_object(service: ServiceOf, who: Operator, repository: str, branch: str, body: Restore) -> Response:
    """Take back what lost its last name, at the path that it had or another. 200: it is there already, and nothing was changed.

    409: something was written to the path since; `force` puts it over that.
    """
    del who

    def restore(repo: Repository) -> Response:
        done = repo.restore_and_tell(branch, relative(repo.context, body.physical_address), body.path, force=body.force)
        assert done.entry is not None  # noqa: S101  # what was not restored raised
        return answer(stats(repo.context, done.path, done.entry), 200 if done.outcome is Outcome.UNCHANGED else 201)

    return await service.repository(repository, restore)


@router.get("/repositories/{repository}/grace", operation_id="listInGrace", responses={200: {"model": InGraceList}, **failures()})
async def list_in_grace(
    request: Request,
    service: ServiceOf,
    who: Reader,
    repository: str,
    branch: Annotated[str | None, Query(max_length=255, description="Only what was last on this branch.")] = None,
    prefix: Prefix = "",
    after: Annotated[str, Query(max_length=4096, description="The `next_offset` of the page before.")] = "",
    amount: Amount = AMOUNT,
) -> Response:
    """What could be restored now, page by page. Without `deletes_at`, the reaper has not passed yet: the window begins when it does."""

    def read(repo: Repository) -> InGraceList:
        found = repo.in_grace(branch=branch, prefix=prefix, after=after)
        results, pagination = page_of(found, amount_of(amount), lambda item: item.cursor)
        return InGraceList(
            pagination=pagination,
            results=[
                InGrace(
                    physical_address=physical(repo.context, item.address),
                    branch=item.branch,
                    path=item.path,
                    cause=item.cause,
                    since=item.since_ms // 1000,
                    deletes_at=item.deletes_at_ms // 1000 if item.deletes_at_ms is not None else None,
                    size_bytes=item.entry.size_bytes if item.entry is not None else None,
                )
                for item in results
            ],
        )

    return answer(await service.read(request, who.key_id, repository, read))


@router.get(
    "/repositories/{repository}/addresses", operation_id="getReferences", responses={200: {"model": AddressReferences}, **failures()}
)
async def get_references(request: Request, service: ServiceOf, who: Reader, repository: str, physical_address: PhysicalAddress) -> Response:
    """Who names a physical address, and in which state each name is."""

    def read(repo: Repository) -> AddressReferences:
        return _references(repo, repo.address(relative(repo.context, physical_address)))

    return answer(await service.read(request, who.key_id, repository, read))


@router.get("/repositories/{repository}/addresses/why", operation_id="why", responses={200: {"model": Why}, **failures(501)})
async def why(request: Request, service: ServiceOf, who: Reader, repository: str, physical_address: PhysicalAddress) -> Response:
    """What became of a physical address: who names it, and who deleted it, when, and under which rule."""

    def read(repo: Repository) -> Why:
        address = relative(repo.context, physical_address)
        view, events = service.operations.why(repo, address)
        return Why(
            physical_address=physical(repo.context, Address(address)),
            now=_references(repo, view),
            events=[
                JournalEvent(
                    at=event.at_ms // 1000,
                    outcome=event.outcome,
                    path=event.path,
                    cause=event.cause,
                    size_bytes=event.size_bytes if event.size_bytes >= 0 else None,
                    reaper=event.run if event.by == "reaper" else "",
                    reason=event.reason,
                    by=event.by,
                    run=event.run,
                    rule=event.rule,
                )
                for event in events
            ],
        )

    return answer(await service.read(request, who.key_id, repository, read))


@router.get("/reaper/status", operation_id="reaperStatus", response_class=Response, responses={200: OBJECT, **failures(501)})
async def reaper_status(
    service: ServiceOf, who: Operator, repository: Annotated[str | None, Query(max_length=63, description="Only this one.")] = None
) -> Response:
    """Who reaps, what waits, and where deletion stands still and why."""
    if repository is not None:
        who.check(who.role, repository)
        await service.run(lambda: service.lake.undrained(repository))
    return JSONResponse(await service.run(lambda: service.operations.reaper_status(service.lake, repository)))


@router.post(
    "/repositories/{repository}/reaper/resume", operation_id="resumeReaper", responses={200: {"model": Message}, **failures(409, 501)}
)
async def resume_reaper(service: ServiceOf, who: Operator, repository: str, body: Resume | None = None) -> Response:
    """Let hard deletion go on that the breaker stopped: for a time, or for so many objects; an hour if nothing is said.

    A repository that was deleted is found, too, until it is drained: its name is not free before.
    """
    del who
    asked = body or Resume()

    def resume() -> Message:
        return Message(message=service.operations.resume(service.lake.undrained(repository), asked.seconds, asked.objects))

    return answer(await service.run(resume))


def _references(repo: Repository, view: AddressView) -> AddressReferences:
    return AddressReferences(
        physical_address=physical(repo.context, view.address),
        state=view.state.value,
        reference_state=view.reference_state.value if view.reference_state else None,
        commit=(view.committed.commit or view.committed.swept) if view.committed else None,
        references=[
            NamedBy(
                branch=named.branch,
                path=named.path,
                staging_token=named.token,
                state=named.state.value,
                last_modified=named.last_modified_ms // 1000 if named.last_modified_ms is not None else None,
            )
            for named in view.references
        ],
        since=view.since_ms // 1000 if view.since_ms is not None else None,
        cause=view.cause,
        expires=view.expires_ms // 1000 if view.expires_ms is not None else None,
    )
