"""Routes of repositories and their metadata."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.responses import Response

from refstore.core.ids import RepositoryName
from refstore.errors import Invalid, InvalidName, ObjectsRefused
from refstore.lake import Lake
from refstore.namespaces import folder_url
from refstore.objects import child
from refstore.records.repository_records import RepositoryRecord
from refstore.service import sample_data
from refstore_api.auth import Operator, Reader, Writer
from refstore_api.error_responses import Forbidden, NotSupported, log_failure
from refstore_api.fast_parameters import FastRoute
from refstore_api.json_responses import make_empty_response, make_response, take_page
from refstore_api.models import (
    RepositoryCreation,
    RepositoryList,
    RepositoryMetadataKeys,
    RepositoryMetadataSet,
    RepositoryModel,
)
from refstore_api.principals import Principal
from refstore_api.routes import failures
from refstore_api.service import ServiceOf
from refstore_api.shared_parameters import AMOUNT, METADATA_BODY, After, Amount, Force, Prefix, amount_of

router = APIRouter(tags=["repositories"], route_class=FastRoute)

LOCAL = ("local://", "mem://")
"""lakeFS's schemes of a store in files or in memory: `local://A/B` is the folder A/B below the lake's objects."""


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


def choose_namespace(lake: Lake, requested_url: str, allowed: Sequence[str]) -> str | None:
    """Return the URL of a new repository's namespace; None: one below the lake's own objects. If `allowed`
    (`api.namespaces`) is not empty, the namespace must lie below one of them. Raises InvalidName, Forbidden.

    On the service's own disk, a namespace outside the lake's objects must be in `allowed`; in a bucket the credentials
    decide. The endpoint is always the lake's. Otherwise the service would send signed requests to an endpoint of the
    caller's choice.
    """
    url = _namespace_url(lake, requested_url, anywhere=bool(allowed))
    folder = folder_url(url or child(lake.objects_url, "any"))
    if allowed and not any(folder.startswith(above) and folder != above for above in map(folder_url, allowed)):
        raise Forbidden(
            f"{requested_url[:80]!r} is not below what api.namespaces allows; name a folder below one of these: "
            f"{', '.join(allowed)[:1000]}"
        )
    return url


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


def _namespace_url(lake: Lake, requested_url: str, *, anywhere: bool) -> str | None:
    """Return the URL that the request names. `anywhere`: it may lie outside the lake's own folder. Raises
    InvalidName.
    """
    bare = requested_url.rstrip("/")
    own, options, query = lake.objects_url.partition("?")
    own = own.rstrip("/")
    scheme = own.partition("://")[0] + "://"
    if "?" in bare or "#" in bare:
        raise InvalidName(
            f"{requested_url.partition('?')[0][:80]!r} must not have options; leave them out, the service uses its own"
        )
    if bare in ("", own):
        return None
    if requested_url.startswith(LOCAL):
        folders = requested_url.partition("://")[2].strip("/")
        return reduce(child, folders.split("/"), lake.objects_url) if folders else None
    if not bare.startswith(own + "/") and not (bare.startswith(scheme) and (anywhere or scheme == "s3://")):
        raise InvalidName(
            f"{requested_url[:80]!r} is outside of what this service stores; leave storage_namespace empty, or name "
            f"one below {own}"
        )
    if any(segment in (".", "..") for segment in bare.partition("://")[2].split("/")):
        raise InvalidName(f"{requested_url[:80]!r} has '.' or '..' in it; name the folder itself")
    return f"{bare}{options}{query}"


def _repository_model(name: str, record: RepositoryRecord) -> RepositoryModel:
    return RepositoryModel(
        id=name,
        creation_date=record.created_ms // 1000,
        default_branch=record.default_branch,
        storage_namespace=record.given_namespace or record.namespace.partition("?")[0],
    )
