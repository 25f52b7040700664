"""Routes of branches: their uncommitted changes, and new commits on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.clock import to_datetime
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
from refstore_api.page_responses import PageOf
from refstore_api.routes import COMMON, failures
from refstore_api.shared_parameters import COMMIT_BODY, Delimiter, Prefix

router = APIRouter(
    prefix="/repositories/{repository}/branches", tags=["branches"], route_class=BoundedBodyRoute, responses=COMMON
)


@router.get("", operation_id="listBranches", response_model=RefList)
async def list_branches(call: Reader, page: PageOf, prefix: Prefix = "", show_hidden: bool = False) -> Response:
    def read(repo: Repository) -> RefList:
        branches = (
            RefModel(id=branch.name, commit_id=branch.head)
            for branch in repo.branches(prefix=prefix, after=page.after)
            if show_hidden or not branch.is_hidden
        )
        results, pagination = page.take(branches, lambda ref: ref.id)
        return RefList(pagination=pagination, results=results)

    return await call.read(read)


@router.post(
    "",
    operation_id="createBranch",
    status_code=201,
    responses={201: {"content": {"text/html": {"schema": {"type": "string"}}}}, **failures(409, 410)},
)
async def create_branch(call: Writer, body: BranchCreation) -> Response:
    commit = await call.run(lambda repo: repo.create_branch(body.name, source=body.source, hidden=body.hidden))
    return Response(commit, 201, media_type="text/html")


@router.get("/{branch}", operation_id="getBranch", response_model=RefModel)
async def get_branch(call: Reader, branch: str) -> Response:
    return await call.answer(lambda repo: RefModel(id=branch, commit_id=repo.get_branch(branch).head))


@router.delete("/{branch}", operation_id="deleteBranch", status_code=204, responses=failures(409))
async def delete_branch(call: Writer, branch: str) -> Response:
    return await call.act(lambda repo: repo.delete_branch(branch))


@router.put("/{branch}", operation_id="resetBranch", status_code=204, responses=failures(409))
async def reset_branch(call: Writer, branch: str, body: ResetCreation) -> Response:
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

    return await call.act(reset)


@router.get("/{branch}/diff", operation_id="diffBranch", response_model=DiffList)
async def diff_branch(
    call: Reader, branch: str, page: PageOf, prefix: Prefix = "", delimiter: Delimiter = ""
) -> Response:
    """List the branch's staged changes against its head."""

    def read(repo: Repository) -> DiffList:
        def read_staged(start: str) -> Iterator[DiffEntry]:
            return differences(repo.diff(branch, prefix=prefix, after=start))

        return diff_page(read_staged, page, prefix, delimiter)

    return await call.read(read)


@router.post(
    "/{branch}/commits",
    operation_id="commit",
    status_code=201,
    response_model=CommitModel,
    responses=failures(409, 412, 501),
)
async def commit(
    call: Writer,
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
            committer=call.principal.key_id,
            metadata=body.metadata or {},
            date=to_datetime(body.date * 1000) if body.date is not None else None,
            date_is_only_shown=call.principal.role < Role.OPERATOR,
            allow_empty=body.allow_empty,
        )
        return new_commit_model(new)

    return await call.answer(make, 201)


@router.post("/{branch}/revert", operation_id="revertBranch", status_code=204, responses=failures(409, 410))
async def revert_branch(call: Writer, branch: str, body: Annotated[RevertCreation, COMMIT_BODY]) -> Response:
    overrides = body.commit_overrides or CommitOverrides()
    return await call.act(
        lambda repo: repo.revert(
            body.ref,
            on=branch,
            parent=body.parent_number,
            message=overrides.message or "",
            committer=call.principal.key_id,
            metadata=overrides.metadata or {},
            allow_empty=body.allow_empty,
        )
    )


@router.post(
    "/{branch}/cherry-pick",
    operation_id="cherryPick",
    status_code=201,
    response_model=CommitModel,
    responses=failures(409, 410),
)
async def cherry_pick(call: Writer, branch: str, body: Annotated[CherryPickCreation, COMMIT_BODY]) -> Response:
    """Apply a commit's changes again on the branch, with its message, its metadata and its origin."""
    overrides = body.commit_overrides or CommitOverrides()
    committer = call.principal.key_id

    def make(repo: Repository) -> CommitModel:
        picked = repo.get_commit(body.ref)
        metadata = {
            **picked.metadata,
            "cherry-pick-origin": picked.id,
            "cherry-pick-committer": picked.committer,
            **(overrides.metadata or {}),
        }
        parent, message = body.parent_number or 0, overrides.message or picked.message
        # by its id, because a branch may have moved since it was read
        new = repo.cherry_pick(
            picked.id, onto=branch, parent=parent, message=message, committer=committer, metadata=metadata
        )
        return new_commit_model(new)

    return await call.answer(make, 201)
