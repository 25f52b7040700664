"""Routes of branches: their uncommitted changes, and new commits on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from refstore.errors import Invalid
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_api.auth import Reader, Writer
from refstore_api.commit_responses import DiffEntry, diff_page, differences, new_commit_model
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import (
    BranchCreation,
    CherryPickCreation,
    CommitCreation,
    CommitModel,
    CommitOverrides,
    DiffList,
    RefList,
    RefModel,
    ResetCreation,
    RevertCreation,
)
from refstore_api.page_responses import take_page
from refstore_api.routes import failures
from refstore_api.shared_parameters import (
    AMOUNT,
    COMMIT_BODY,
    After,
    Amount,
    Delimiter,
    Force,
    Prefix,
    ServiceOf,
    amount_of,
)
from refstore_http.json_responses import make_empty_response, make_response

router = APIRouter(prefix="/repositories/{repository}/branches", tags=["branches"], route_class=BoundedBodyRoute)


@router.get("", operation_id="listBranches", responses={200: {"model": RefList}, **failures()})
async def list_branches(
    request: Request,
    service: ServiceOf,
    caller: Reader,
    repository: str,
    prefix: Prefix = "",
    after: After = "",
    amount: Amount = AMOUNT,
    show_hidden: bool = False,
) -> Response:
    def read(repo: Repository) -> RefList:
        branches = (
            (name, record)
            for name, record in repo.branches(prefix=prefix, after=after)
            if show_hidden or not record.is_hidden
        )
        results, pagination = take_page(branches, amount_of(amount), lambda item: item[0])
        return RefList(
            pagination=pagination, results=[RefModel(id=name, commit_id=record.head) for name, record in results]
        )

    return await service.read(request, caller.key_id, repository, read)


@router.post(
    "",
    operation_id="createBranch",
    status_code=201,
    responses={201: {"content": {"text/html": {"schema": {"type": "string"}}}}, **failures(409, 410)},
)
async def create_branch(service: ServiceOf, _caller: Writer, repository: str, body: BranchCreation) -> Response:
    commit = await service.repository(
        repository, lambda repo: repo.create_branch(body.name, body.source, hidden=body.hidden)
    )
    return Response(commit, 201, media_type="text/html")


@router.get("/{branch}", operation_id="getBranch", responses={200: {"model": RefModel}, **failures()})
async def get_branch(service: ServiceOf, _caller: Reader, repository: str, branch: str) -> Response:
    record = await service.repository(repository, lambda repo: repo.get_branch(branch))
    return make_response(RefModel(id=branch, commit_id=record.head))


@router.delete("/{branch}", operation_id="deleteBranch", status_code=204, responses=failures(409))
async def delete_branch(
    service: ServiceOf, _caller: Writer, repository: str, branch: str, force: Force = False
) -> Response:
    del force
    await service.repository(repository, lambda repo: repo.delete_branch(branch))
    return make_empty_response()


@router.put("/{branch}", operation_id="resetBranch", status_code=204, responses=failures(409))
async def reset_branch(
    service: ServiceOf, _caller: Writer, repository: str, branch: str, body: ResetCreation
) -> Response:
    """Discard staged changes: of the whole branch, of a path, or of a prefix."""

    def reset(repo: Repository) -> None:
        if body.type == "reset":
            repo.reset(branch)
        elif not body.path:
            raise Invalid(
                f"a reset of type {body.type!r} needs a path; give one, or use type 'reset' for the whole branch"
            )
        elif body.type == "object":
            repo.reset(branch, path=body.path)
        else:
            repo.reset(branch, prefix=body.path)

    await service.repository(repository, reset)
    return make_empty_response()


@router.get("/{branch}/diff", operation_id="diffBranch", responses={200: {"model": DiffList}, **failures()})
async def diff_branch(
    request: Request,
    service: ServiceOf,
    caller: Reader,
    repository: str,
    branch: str,
    prefix: Prefix = "",
    after: After = "",
    amount: Amount = AMOUNT,
    delimiter: Delimiter = "",
) -> Response:
    """List the branch's staged changes against its head."""

    def read(repo: Repository) -> DiffList:
        def read_staged(start: str) -> Iterator[DiffEntry]:
            return differences(repo.diff(branch, prefix=prefix, after=start))

        return diff_page(read_staged, prefix, after, amount_of(amount), delimiter)

    return await service.read(request, caller.key_id, repository, read)


@router.post(
    "/{branch}/commits",
    operation_id="commit",
    status_code=201,
    responses={201: {"model": CommitModel}, **failures(409, 412, 501)},
)
async def commit(
    service: ServiceOf,
    caller: Writer,
    repository: str,
    branch: str,
    body: Annotated[CommitCreation, COMMIT_BODY],
    source_metarange: Annotated[
        str | None, Query(description="Not supported: a tree that was not written here.")
    ] = None,
) -> Response:
    if source_metarange:
        raise Invalid("source_metarange is not supported; upload, link or copy the objects, then commit")

    def make(repo: Repository) -> CommitModel:
        new = repo.commit(
            branch,
            body.message,
            committer=caller.key_id,
            metadata=body.metadata or {},
            date_ms=body.date * 1000 if body.date is not None else None,
            date_is_only_shown=caller.role < Role.OPERATOR,
            allow_empty=body.allow_empty,
        )
        return new_commit_model(new.id, new.record)

    return make_response(await service.repository(repository, make), 201)


@router.post("/{branch}/revert", operation_id="revertBranch", status_code=204, responses=failures(409, 410))
async def revert_branch(
    service: ServiceOf, caller: Writer, repository: str, branch: str, body: Annotated[RevertCreation, COMMIT_BODY]
) -> Response:
    overrides = body.commit_overrides or CommitOverrides()
    await service.repository(
        repository,
        lambda repo: repo.revert(
            branch,
            body.ref,
            parent=body.parent_number,
            message=overrides.message or "",
            committer=caller.key_id,
            metadata=overrides.metadata or {},
            allow_empty=body.allow_empty,
        ),
    )
    return make_empty_response()


@router.post(
    "/{branch}/cherry-pick",
    operation_id="cherryPick",
    status_code=201,
    responses={201: {"model": CommitModel}, **failures(409, 410)},
)
async def cherry_pick(
    service: ServiceOf, caller: Writer, repository: str, branch: str, body: Annotated[CherryPickCreation, COMMIT_BODY]
) -> Response:
    """Apply a commit's changes again on the branch, with its message, its metadata and its origin."""
    overrides = body.commit_overrides or CommitOverrides()

    def make(repo: Repository) -> CommitModel:
        origin, picked = repo.get_commit(body.ref)
        metadata = (
            picked.metadata
            | {"cherry-pick-origin": origin, "cherry-pick-committer": picked.committer}
            | (overrides.metadata or {})
        )
        parent, message = body.parent_number or 0, overrides.message or picked.message
        # by its id, because a branch may have moved since it was read
        new = repo.cherry_pick(
            branch, origin, parent=parent, message=message, committer=caller.key_id, metadata=metadata
        )
        return new_commit_model(new.id, new.record)

    return make_response(await service.repository(repository, make), 201)
