"""Routes of repositories and their metadata."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.responses import Response

from refstore.errors import Invalid, InvalidName, ObjectsRefused
from refstore.lake import Lake
from refstore.records.repository_records import RepositoryRecord
from refstore.service import sample_data
from refstore_api.auth import Operator, Reader, Writer
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import (
    RepositoryCreation,
    RepositoryList,
    RepositoryMetadataKeys,
    RepositoryMetadataSet,
    RepositoryModel,
)
from refstore_api.page_responses import PageOf
from refstore_api.routes import COMMON, failures
from refstore_api.shared_parameters import METADATA_BODY, Prefix
from refstore_http.http_errors import NotSupported, log_failure
from refstore_http.json_responses import make_empty_response, make_response
from refstore_http.namespace_choice import LOCAL, choose_namespace

router = APIRouter(prefix="/repositories", tags=["repositories"], route_class=BoundedBodyRoute, responses=COMMON)


@router.get("", operation_id="listRepositories", response_model=RepositoryList)
async def list_repositories(call: Reader, page: PageOf, prefix: Prefix = "", search: str = "") -> Response:
    own = call.principal.repositories

    def read(lake: Lake) -> RepositoryList:
        repositories = (
            _repository_model(lake, name, record)
            for name, record in lake.repository_records(prefix=prefix, after=page.after)
            if search in name and (not own or name in own)
        )
        results, pagination = page.take(repositories, lambda repository: repository.id)
        return RepositoryList(pagination=pagination, results=results)

    return await call.read_lake(read)


@router.post(
    "",
    operation_id="createRepository",
    status_code=201,
    response_model=RepositoryModel,
    responses=failures(409, 501),
)
async def create_repository(call: Operator, body: RepositoryCreation, bare: bool = False) -> Response:
    """Create a repository: empty, or with sample data on its default branch."""
    if bare or body.read_only:  # a caller that asks for either relies on it
        raise NotSupported(
            "bare and read-only repositories are not supported; leave both out, and give keys the role of a reader"
        )
    if body.storage_id:
        raise Invalid(f"there is one store here, and it has no name; leave storage_id {body.storage_id[:80]!r} out")
    lake = call.service.lake

    def make() -> RepositoryModel:
        namespace = choose_namespace(lake, body.storage_namespace, call.service.settings.namespaces)
        given_namespace = body.storage_namespace if namespace and body.storage_namespace.startswith(LOCAL) else ""
        with _explain_refusal(lake, namespace):
            repository = lake.create_repository(
                body.name, namespace=namespace, default_branch=body.default_branch, given_namespace=given_namespace
            )
        if body.sample_data:
            sample_data.add_sample_data(repository, committer=call.principal.key_id)
        return _repository_model(lake, repository.name, repository.record)

    return make_response(await call.service.run(make), 201)


@router.get("/{repository}", operation_id="getRepository", response_model=RepositoryModel)
async def get_repository(call: Reader) -> Response:
    return await call.answer(lambda repo: _repository_model(call.service.lake, repo.name, repo.record))


@router.delete("/{repository}", operation_id="deleteRepository", status_code=204, responses=failures(409))
async def delete_repository(call: Operator) -> Response:
    await call.service.run(lambda: call.service.lake.delete_repository(call.repository))
    return make_empty_response()


@router.get("/{repository}/metadata", operation_id="getRepositoryMetadata")
async def get_metadata(call: Reader) -> dict[str, str]:
    return await call.run(lambda repo: dict(repo.record.metadata))


@router.post("/{repository}/metadata", operation_id="setRepositoryMetadata", status_code=204, responses=failures(409))
async def set_metadata(call: Writer, body: Annotated[RepositoryMetadataSet, METADATA_BODY]) -> Response:
    await call.service.run(lambda: call.service.lake.set_metadata(call.repository, put=body.metadata))
    return make_empty_response()


@router.delete(
    "/{repository}/metadata", operation_id="deleteRepositoryMetadata", status_code=204, responses=failures(409)
)
async def delete_metadata(call: Writer, body: Annotated[RepositoryMetadataKeys, METADATA_BODY]) -> Response:
    await call.service.run(lambda: call.service.lake.set_metadata(call.repository, remove=body.keys))
    return make_empty_response()


@contextmanager
def _explain_refusal(lake: Lake, namespace: str | None) -> Generator[None, None, None]:
    """Raise InvalidName if the store refuses the bucket that the caller named. The lake's own is the operator's."""
    try:
        yield
    except ObjectsRefused as error:
        if namespace is None or urlsplit(namespace).netloc == urlsplit(lake.objects_url).netloc:
            raise
        log_failure(error, 400)
        shown = namespace.partition("?")[0][:80]
        raise InvalidName(
            f"the object store refuses this service in {shown!r}; name a bucket that is there, and that the service "
            "may read and write"
        ) from error


def _repository_model(lake: Lake, name: str, record: RepositoryRecord) -> RepositoryModel:
    return RepositoryModel(
        id=name,
        creation_date=record.created_ms // 1000,
        default_branch=record.default_branch,
        storage_namespace=record.given_namespace or lake.namespace_url(record).partition("?")[0],
    )
