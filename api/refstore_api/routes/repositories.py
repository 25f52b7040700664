"""Routes of repositories and their metadata."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.responses import Response

from refstore.core.ids import RepositoryName
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
from refstore_api.page_responses import take_page
from refstore_api.routes import failures
from refstore_api.shared_parameters import AMOUNT, METADATA_BODY, After, Amount, Force, Prefix, ServiceOf, amount_of
from refstore_http.http_errors import NotSupported, log_failure
from refstore_http.json_responses import make_empty_response, make_response
from refstore_http.namespace_choice import LOCAL, choose_namespace
from refstore_http.principals import Principal

router = APIRouter(tags=["repositories"], route_class=BoundedBodyRoute)


@router.get("/repositories", operation_id="listRepositories", responses={200: {"model": RepositoryList}, **failures()})
async def list_repositories(
    request: Request,
    service: ServiceOf,
    caller: Reader,
    prefix: Prefix = "",
    after: After = "",
    amount: Amount = AMOUNT,
    search: str = "",
) -> Response:
    def read() -> RepositoryList:
        repositories = _visible_repositories(service.lake.repositories(prefix=prefix, after=after), caller, search)
        results, pagination = take_page(repositories, amount_of(amount), lambda item: item[0])
        return RepositoryList(
            pagination=pagination, results=[_repository_model(name, record) for name, record in results]
        )

    return await service.reads.run(request, caller.key_id, read)


@router.post(
    "/repositories",
    operation_id="createRepository",
    status_code=201,
    responses={201: {"model": RepositoryModel}, **failures(409, 501)},
)
async def create_repository(
    service: ServiceOf, caller: Operator, body: RepositoryCreation, bare: bool = False
) -> Response:
    """Create a repository: empty, or with sample data on its default branch."""
    if bare or body.read_only:  # a caller that asks for either relies on it
        raise NotSupported(
            "bare and read-only repositories are not supported; leave both out, and give keys the role of a reader"
        )
    if body.storage_id:
        raise Invalid(f"there is one store here, and it has no name; leave storage_id {body.storage_id[:80]!r} out")

    def make() -> RepositoryModel:
        namespace = choose_namespace(service.lake, body.storage_namespace, service.settings.namespaces)
        given_namespace = body.storage_namespace if namespace and body.storage_namespace.startswith(LOCAL) else ""
        with _explain_refusal(service.lake, namespace):
            repository = service.lake.create_repository(
                body.name, namespace=namespace, default_branch=body.default_branch, given_namespace=given_namespace
            )
        if body.sample_data:
            sample_data.add_sample_data(repository, committer=caller.key_id)
        return _repository_model(repository.name, repository.record)

    return make_response(await service.run(make), 201)


@router.get(
    "/repositories/{repository}",
    operation_id="getRepository",
    responses={200: {"model": RepositoryModel}, **failures()},
)
async def get_repository(service: ServiceOf, _caller: Reader, repository: str) -> Response:
    return make_response(await service.repository(repository, lambda repo: _repository_model(repo.name, repo.record)))


@router.delete("/repositories/{repository}", operation_id="deleteRepository", status_code=204, responses=failures(409))
async def delete_repository(service: ServiceOf, _caller: Operator, repository: str, force: Force = False) -> Response:
    del force
    await service.run(lambda: service.lake.delete_repository(repository))
    return make_empty_response()


@router.get(
    "/repositories/{repository}/metadata",
    operation_id="getRepositoryMetadata",
    responses={
        200: {
            "content": {"application/json": {"schema": {"type": "object", "additionalProperties": {"type": "string"}}}}
        }
    }
    | failures(),
)
async def get_metadata(service: ServiceOf, _caller: Reader, repository: str) -> dict[str, str]:
    return await service.repository(repository, lambda repo: dict(repo.record.metadata))


@router.post(
    "/repositories/{repository}/metadata",
    operation_id="setRepositoryMetadata",
    status_code=204,
    responses=failures(409),
)
async def set_metadata(
    service: ServiceOf, _caller: Writer, repository: str, body: Annotated[RepositoryMetadataSet, METADATA_BODY]
) -> Response:
    await service.run(lambda: service.lake.set_metadata(repository, put=body.metadata))
    return make_empty_response()


@router.delete(
    "/repositories/{repository}/metadata",
    operation_id="deleteRepositoryMetadata",
    status_code=204,
    responses=failures(409),
)
async def delete_metadata(
    service: ServiceOf, _caller: Writer, repository: str, body: Annotated[RepositoryMetadataKeys, METADATA_BODY]
) -> Response:
    await service.run(lambda: service.lake.set_metadata(repository, remove=body.keys))
    return make_empty_response()


def _visible_repositories(
    repositories: Iterator[tuple[RepositoryName, RepositoryRecord]], caller: Principal, search: str
) -> Iterator[tuple[RepositoryName, RepositoryRecord]]:
    for name, record in repositories:
        if search in name and (not caller.repositories or name in caller.repositories):
            yield name, record


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


def _repository_model(name: str, record: RepositoryRecord) -> RepositoryModel:
    return RepositoryModel(
        id=name,
        creation_date=record.created_ms // 1000,
        default_branch=record.default_branch,
        storage_namespace=record.given_namespace or record.namespace.partition("?")[0],
    )
