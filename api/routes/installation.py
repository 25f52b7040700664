"""The installation: health, configuration, login."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import answer, nothing
from api.auth import Reader, authenticator_of
from api.models import (
    AuthenticationToken,
    Config,
    CurrentUser,
    GarbageCollectionConfig,
    LoginInformation,
    SetupState,
    StorageConfig,
    User,
    VersionConfig,
)
from api.routes import failures
from api.service import Service, ServiceOf
from refstore import __version__

router = APIRouter()


@router.get("/healthcheck", operation_id="healthCheck", tags=["health"], status_code=204)
async def health_check() -> Response:
    """The process answers. Whether its stores do, `/readiness` says."""
    return nothing()


@router.get("/setup_lakefs", operation_id="getSetupState", tags=["config"], responses={200: {"model": SetupState}})
async def setup_state() -> Response:
    """Always initialized: keys are made by `refstore keys` and `refstore serve`, never by whoever comes first."""
    return answer(SetupState(state="initialized"))


@router.post("/auth/login", operation_id="login", tags=["auth"], responses={200: {"model": AuthenticationToken}, **failures()})
async def login(request: Request, service: ServiceOf, body: LoginInformation) -> Response:
    """A bearer token for an access key."""
    token, expires = await service.run(lambda: authenticator_of(request).login(body.access_key_id, body.secret_access_key))
    return answer(AuthenticationToken(token=token, token_expiration=expires))


@router.get("/user", operation_id="getCurrentUser", tags=["auth"], responses={200: {"model": CurrentUser}, **failures()})
async def current_user(who: Reader) -> Response:
    return answer(CurrentUser(user=User(id=who.key_id, creation_date=who.created_ms // 1000, friendly_name=who.role.name.lower())))


@router.get("/config", operation_id="getConfig", tags=["config"], responses={200: {"model": Config}, **failures()})
async def config(service: ServiceOf, who: Reader) -> Response:
    del who
    return answer(Config(version_config=_version(), storage_config=_storage(service)))


@router.get("/config/version", operation_id="getLakeFSVersion", tags=["config"], responses={200: {"model": VersionConfig}, **failures()})
async def version(who: Reader) -> Response:
    del who
    return answer(_version())


@router.get("/config/storage", operation_id="getStorageConfig", tags=["config"], responses={200: {"model": StorageConfig}, **failures()})
async def storage(service: ServiceOf, who: Reader) -> Response:
    del who
    return answer(_storage(service))


@router.get(
    "/config/garbage-collection",
    operation_id="getGarbageCollectionConfig",
    tags=["config"],
    responses={200: {"model": GarbageCollectionConfig}, **failures()},
)
async def garbage_collection(service: ServiceOf, who: Reader) -> Response:
    del who
    return answer(GarbageCollectionConfig(grace_period=int(service.lake.safety.grace_seconds)))


def _version() -> VersionConfig:
    return VersionConfig(version=__version__)


def _storage(service: Service) -> StorageConfig:
    url = service.lake.objects_url.partition("?")[0].rstrip("/")
    scheme = url.partition("://")[0]
    kind = {"s3": "s3", "file": "local", "memory": "mem"}.get(scheme, scheme)
    return StorageConfig(
        blockstore_type=kind,
        blockstore_namespace_example=f"{url}/example",
        blockstore_namespace_ValidityRegex=r"^s3://" if kind == "s3" else r"^(local|file|memory)://",
        default_namespace_prefix=url,
        pre_sign_support=True,
    )
