"""Repositories, their metadata and retention rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import answer, nothing, page_of
from api.auth import Operator, Principal, Reader, Writer
from api.errors import Forbidden, NotSupported
from api.models import (
    Repository,
    RepositoryCreation,
    RepositoryList,
    RepositoryMetadataKeys,
    RepositoryMetadataSet,
)
from api.naming import NamedRoute
from api.params import AMOUNT, After, Amount, Force, Prefix, amount_of
from api.routes import failures
from api.service import ServiceOf
from refstore import sample_data
from refstore.errors import Invalid, InvalidName
from refstore.ids import RepositoryName
from refstore.lake import Lake
from refstore.namespaces import as_folder
from refstore.objects import child
from refstore.records import RepositoryRecord

router = APIRouter(tags=["repositories"], route_class=NamedRoute)

LOCAL = ("local://", "mem://")
"""lakeFS's own words for a store in files or in memory: `local://A/B` is the folder A/B below the lake's objects."""


@router.get("/repositories", operation_id="listRepositories", responses={200: {"model": RepositoryList}, **failures()})
async def list_repositories(
    request: Request, service: ServiceOf, who: Reader, prefix: Prefix = "", after: After = "", amount: Amount = AMOUNT, search: str = ""
) -> Response:
    def read() -> RepositoryList:
        found = _visible(service.lake.repositories(prefix=prefix, after=after), who, search)
        results, pagination = page_of(found, amount_of(amount), lambda item: item[0])
        return RepositoryList(pagination=pagination, results=[_model(name, record) for name, record in results])

    return answer(await service.reads.make(request, who.key_id, read))


@router.post(
    "/repositories", operation_id="createRepository", status_code=201, responses={201: {"model": Repository}, **failures(409, 501)}
)
async def create_repository(service: ServiceOf, who: Operator, body: RepositoryCreation, bare: bool = False) -> Response:
    """Make a repository: empty, or with sample data on its default branch."""
    if bare or body.read_only:  # who asks for either relies on it
        raise NotSupported("bare and read-only repositories are not supported; leave both out, and give keys the role of a reader")
    if body.storage_id:
        raise Invalid(f"there is one store here, and it has no name; leave storage_id {body.storage_id[:80]!r} out")

    def make() -> Repository:
        namespace = _namespace(service.lake, body.storage_namespace, service.settings.namespaces)
        given = body.storage_namespace if namespace and body.storage_namespace.startswith(LOCAL) else ""
        made = service.lake.create_repository(body.name, namespace=namespace, default_branch=body.default_branch, given_namespace=given)
        if body.sample_data:
            sample_data.add(made, committer=who.key_id)
        return _model(made.name, made.record)

    return answer(await service.run(make), 201)


@router.get("/repositories/{repository}", operation_id="getRepository", responses={200: {"model": Repository}, **failures()})
async def get_repository(service: ServiceOf, who: Reader, repository: str) -> Response:
    del who
    return answer(await service.repository(repository, lambda repo: _model(repo.name, repo.record)))


@router.delete("/repositories/{repository}", operation_id="deleteRepository", status_code=204, responses=failures(409))
async def delete_repository(service: ServiceOf, who: Operator, repository: str, force: Force = False) -> Response:
    del who, force
    await service.run(lambda: service.lake.delete_repository(repository))
    return nothing()


@router.get(
    "/repositories/{repository}/metadata",
    operation_id="getRepositoryMetadata",
    responses={200: {"content": {"application/json": {"schema": {"type": "object", "additionalProperties": {"type": "string"}}}}}}
    | failures(),
)
async def get_metadata(service: ServiceOf, who: Reader, repository: str) -> dict[str, str]:
    del who
    return await service.repository(repository, lambda repo: dict(repo.record.metadata))


@router.post("/repositories/{repository}/metadata", operation_id="setRepositoryMetadata", status_code=204, responses=failures(409))
async def set_metadata(service: ServiceOf, who: Writer, repository: str, body: RepositoryMetadataSet) -> Response:
    del who
    await service.run(lambda: service.lake.set_metadata(repository, put=body.metadata))
    return nothing()


@router.delete("/repositories/{repository}/metadata", operation_id="deleteRepositoryMetadata", status_code=204, responses=failures(409))
async def delete_metadata(service: ServiceOf, who: Writer, repository: str, body: RepositoryMetadataKeys) -> Response:
    del who
    await service.run(lambda: service.lake.set_metadata(repository, remove=body.keys))
    return nothing()


def _visible(
    found: Iterator[tuple[RepositoryName, RepositoryRecord]], who: Principal, search: str
) -> Iterator[tuple[RepositoryName, RepositoryRecord]]:
    for name, record in found:
        if search in name and (not who.repositories or name in who.repositories):
            yield name, record


def _namespace(lake: Lake, asked: str, allowed: Sequence[str]) -> str | None:
    """The URL of a new repository's namespace; None: one below the lake's own objects. Raises InvalidName, and Forbidden for one that lies
    below none of the `allowed` (`api.namespaces`), where there are any.

    On the service's own disk nothing outside the lake's objects may be named, but what is allowed; in a bucket the credentials decide. How
    the store is reached is the lake's to say: an endpoint of the caller's would be sent requests that carry the service's signature.
    """
    url = _meant(lake, asked, anywhere=bool(allowed))
    folder = as_folder(url or child(lake.objects_url, "any"))
    if allowed and not any(folder.startswith(above) and folder != above for above in map(as_folder, allowed)):
        raise Forbidden(
            f"{asked[:80]!r} is not below what api.namespaces allows; name a folder below one of these: {', '.join(allowed)[:1000]}"
        )
    return url


def _meant(lake: Lake, asked: str, *, anywhere: bool) -> str | None:
    """`anywhere`: in the lake's kind of store, instead of in its own place there. Raises InvalidName."""
    bare = asked.rstrip("/")
    own, options, query = lake.objects_url.partition("?")
    own = own.rstrip("/")
    scheme = own.partition("://")[0] + "://"
    if "?" in bare or "#" in bare:
        raise InvalidName(f"{asked.partition('?')[0][:80]!r} must not have options behind it; the service's own are used")
    if bare in ("", own):
        return None
    if asked.startswith(LOCAL):
        folders = asked.partition("://")[2].strip("/")
        return reduce(child, folders.split("/"), lake.objects_url) if folders else None
    if not bare.startswith(own + "/") and not (bare.startswith(scheme) and (anywhere or scheme == "s3://")):
        raise InvalidName(f"{asked[:80]!r} is outside of what this service stores; leave storage_namespace empty, or name one below {own}")
    if any(segment in (".", "..") for segment in bare.partition("://")[2].split("/")):
        raise InvalidName(f"{asked[:80]!r} has '.' or '..' in it; name the folder itself")
    return f"{bare}{options}{query}"


def _model(name: str, record: RepositoryRecord) -> Repository:
    return Repository(
        id=name,
        creation_date=record.created_ms // 1000,
        default_branch=record.default_branch,
        storage_namespace=record.given_namespace or record.namespace.partition("?")[0],
    )
