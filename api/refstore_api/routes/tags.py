"""Routes of tags."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from refstore.repository import Repository
from refstore_api.auth import Reader, Writer
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import RefList, RefModel, TagCreation
from refstore_api.page_responses import PageOf
from refstore_api.routes import COMMON, failures
from refstore_api.shared_parameters import Prefix

router = APIRouter(
    prefix="/repositories/{repository}/tags", tags=["tags"], route_class=BoundedBodyRoute, responses=COMMON
)


@router.get("", operation_id="listTags", response_model=RefList)
async def list_tags(call: Reader, page: PageOf, prefix: Prefix = "") -> Response:
    def read(repo: Repository) -> RefList:
        tags = (RefModel(id=tag.name, commit_id=tag.commit_id) for tag in repo.tags(prefix=prefix, after=page.after))
        results, pagination = page.take(tags, lambda ref: ref.id)
        return RefList(pagination=pagination, results=results)

    return await call.read(read)


@router.post("", operation_id="createTag", status_code=201, response_model=RefModel, responses=failures(409, 410))
async def create_tag(call: Writer, body: TagCreation) -> Response:
    return await call.answer(lambda repo: RefModel(id=body.id, commit_id=repo.create_tag(body.id, ref=body.ref)), 201)


@router.get("/{tag}", operation_id="getTag", response_model=RefModel)
async def get_tag(call: Reader, tag: str) -> Response:
    return await call.answer(lambda repo: RefModel(id=tag, commit_id=repo.get_tag(tag).commit_id))


@router.delete("/{tag}", operation_id="deleteTag", status_code=204, responses=failures(409))
async def delete_tag(call: Writer, tag: str) -> Response:
    return await call.act(lambda repo: repo.delete_tag(tag))
