"""Routes of the installation: health, configuration, login."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from refstore import __version__
from refstore.service import access_keys
from refstore_api.auth import Reader, authenticator_of
from refstore_api.json_bodies import OPEN_BYTES_MAX, BodyBound, BoundedBodyRoute
from refstore_api.models import (
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
from refstore_api.routes import COMMON
from refstore_http.json_responses import make_empty_response, make_response
from refstore_http.request_pipeline import address_of
from refstore_http.service import Service

router = APIRouter(route_class=BoundedBodyRoute)

LAKEFS_VERSION: Final = "1.88.0"
"""The lakeFS version whose API this is. Clients compare it with the version that introduced a feature (lakefs-spec does
so before it touches a file).
"""


@router.get("/healthcheck", operation_id="healthCheck", tags=["health"], status_code=204)
async def health_check() -> Response:
    """Answer that the process runs. `/readiness` says whether its stores answer."""
    return make_empty_response()


@router.get("/setup_lakefs", operation_id="getSetupState", tags=["config"], response_model=SetupState)
async def setup_state() -> Response:
    """Always answer initialized: `refstore keys` and `refstore serve` make the keys, never the first caller."""
    return make_response(SetupState(state="initialized"))


@router.post("/auth/login", operation_id="login", tags=["auth"], response_model=AuthenticationToken, responses=COMMON)
async def login(request: Request, body: Annotated[LoginInformation, BodyBound(OPEN_BYTES_MAX)]) -> Response:
    """Exchange an access key for a bearer token."""
    request.state.claimed_key = body.access_key_id if access_keys.is_id(body.access_key_id) else ""
    token, expires = await authenticator_of(request).login(
        body.access_key_id, body.secret_access_key, address_of(request.scope)
    )
    return make_response(AuthenticationToken(token=token, token_expiration=expires))


@router.get("/user", operation_id="getCurrentUser", tags=["auth"], response_model=CurrentUser, responses=COMMON)
async def current_user(call: Reader) -> Response:
    caller = call.principal
    return make_response(
        CurrentUser(
            user=User(id=caller.key_id, creation_date=caller.created_ms // 1000, friendly_name=caller.role.name.lower())
        )
    )


@router.get("/config", operation_id="getConfig", tags=["config"], response_model=Config, responses=COMMON)
async def config(call: Reader) -> Response:
    return make_response(Config(version_config=_version(), storage_config=_storage(call.service)))


@router.get(
    "/config/version", operation_id="getLakeFSVersion", tags=["config"], response_model=VersionConfig, responses=COMMON
)
async def version(_call: Reader) -> Response:
    return make_response(_version())


@router.get(
    "/config/storage", operation_id="getStorageConfig", tags=["config"], response_model=StorageConfig, responses=COMMON
)
async def storage(call: Reader) -> Response:
    return make_response(_storage(call.service))


@router.get(
    "/config/garbage-collection",
    operation_id="getGarbageCollectionConfig",
    tags=["config"],
    response_model=GarbageCollectionConfig,
    responses=COMMON,
)
async def garbage_collection(call: Reader) -> Response:
    return make_response(GarbageCollectionConfig(grace_period=int(call.service.lake.safety.grace_seconds)))


@router.post("/statistics", operation_id="postStatsEvents", tags=["config"], status_code=204, responses=COMMON)
async def statistics(_call: Reader) -> Response:
    """Accept the usage statistics that lakeFS's programs send at each call, and discard them unread."""
    return make_empty_response()


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
        import_support=bool(service.lake.import_from),
        import_validity_regex="^(s3|s3a|s3n|file|local)://" if service.lake.import_from else "",
        pre_sign_support=kind
        == "s3",  # ours works where it is asked for, but is a request more than sending the data here
    )
