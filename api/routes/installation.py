"""The installation: health, configuration, login."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import answer, nothing
from api.auth import Reader, authenticator_of
from api.middleware import address_of
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
from refstore import __version__, access

router = APIRouter()

LAKEFS_VERSION: Final = "1.88.0"
"""The lakeFS whose API this is: clients compare it with the version that brought a feature (lakefs-spec, before it touches a file)."""


@router.get("/healthcheck", operation_id="healthCheck", tags=["health"], status_code=204)
async def health_check() -> Response:
    """The process answers. Whether its stores do, `/readiness` says."""
    return nothing()


@router.get("/setup_lakefs", operation_id="getSetupState", tags=["config"], responses={200: {"model": SetupState}})
async def setup_state() -> Response:
    """Always initialized: keys are made by `refstore keys` and `refstore serve`, never by whoever comes first."""
    return answer(SetupState(state="initialized"))


@router.post("/auth/login", operation_id="login", tags=["auth"], responses={200: {"model": AuthenticationToken}, **failures()})
async def login(request: Request, body: LoginInformation) -> Response:
    """A bearer token for an access key."""
    request.state.claimed_key = body.access_key_id if access.is_id(body.access_key_id) else ""
    token, expires = await authenticator_of(request).login(body.access_key_id, body.secret_access_key, address_of(request.scope))
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


@router.post("/statistics", operation_id="postStatsEvents", tags=["config"], status_code=204, responses=failures())
async def statistics(who: Reader) -> Response:
    """What lakeFS's programs tell about their use, at each call: taken, and thrown away unread."""
    del who
    return nothing()


def _version() -> VersionConfig:
    return VersionConfig(version=LAKEFS_VERSION, version_context=f"refstore {__version__}")


def _storage(service: Service) -> StorageConfig:
    url = service.lake.objects_url.partition("?")[0].rstrip("/")
    scheme = url.partition("://")[0]
    if scheme == "s3":
        kind, prefix = "s3", next((each.rstrip("/") for each in service.settings.namespaces), url)
    else:  # lakeFS's clients take neither file:// nor memory:// for a namespace
        kind = "mem" if scheme == "memory" else "local"
        prefix = f"{kind}://"
    return StorageConfig(
        blockstore_type=kind,
        blockstore_namespace_example=f"{prefix}example" if prefix.endswith("/") else f"{prefix}/example",
        blockstore_namespace_ValidityRegex=f"^{kind}://",
        default_namespace_prefix=prefix,
        import_support=bool(service.settings.import_from),
        import_validity_regex="^(s3|s3a|s3n|file|local)://" if service.settings.import_from else "",
        pre_sign_support=kind == "s3",  # ours works where it is asked for, but is a request more than sending the data here
    )
