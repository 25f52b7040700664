"""Routes of tags."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from refstore.repository import Repository
from refstore_api.auth import Reader, Writer
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import RefList, RefModel, TagCreation
from refstore_api.page_responses import take_page
from refstore_api.routes import failures
from refstore_api.shared_parameters import AMOUNT, After, Amount, Force, Prefix, ServiceOf, amount_of
from refstore_http.json_responses import make_empty_response, make_response

router = APIRouter(prefix="/repositories/{repository}/tags", tags=["tags"], route_class=BoundedBodyRoute)


@router.get("", operation_id="listTags", responses={200: {"model": RefList}, **failures()})
async def list_tags(
    request: Request,
    service: ServiceOf,
    caller: Reader,
    repository: str,
    prefix: Prefix = "",
    after: After = "",
    amount: Amount = AMOUNT,
) -> Response:
    def read(repo: Repository) -> RefList:
        results, pagination = take_page(repo.tags(prefix=prefix, after=after), amount_of(amount), lambda item: item[0])
        return RefList(
            pagination=pagination, results=[RefModel(id=name, commit_id=tag.commit) for name, tag in results]
        )

    return await service.read(request, caller.key_id, repository, read)


@router.post("", operation_id="createTag", status_code=201, responses={201: {"model": RefModel}, **failures(409, 410)})
async def create_tag(service: ServiceOf, _caller: Writer, repository: str, body: TagCreation) -> Response:
    commit = await service.repository(repository, lambda repo: repo.create_tag(body.id, body.ref))
    return make_response(RefModel(id=body.id, commit_id=commit), 201)


@router.get("/{tag}", operation_id="getTag", responses={200: {"model": RefModel}, **failures()})
async def get_tag(service: ServiceOf, _caller: Reader, repository: str, tag: str) -> Response:
    return make_response(
        RefModel(id=tag, commit_id=await service.repository(repository, lambda repo: repo.get_tag(tag).commit))
    )


@router.delete("/{tag}", operation_id="deleteTag", status_code=204, responses=failures(409))
async def delete_tag(service: ServiceOf, _caller: Writer, repository: str, tag: str, force: Force = False) -> Response:
    del force
    await service.repository(repository, lambda repo: repo.delete_tag(tag))
    return make_empty_response()
