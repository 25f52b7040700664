"""`create_app`: the service as an ASGI application, made anew for each call; nothing is kept in the module."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.routing import Match
from starlette.types import Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from api import errors, openapi
from api.auth import Authenticator, claimed_key
from api.bodies import Limits
from api.connections import request_slots
from api.metrics import Metrics
from api.middleware import NO_ROUTE, Around, Located
from api.routes import (
    absent,
    branches,
    collection,
    documentation,
    imports,
    installation,
    objects,
    operations,
    probes,
    refs,
    repositories,
    staging,
    tags,
)
from api.service import Operations, Service
from refstore import __version__
from refstore.issuance import SigningKey
from refstore.lake import Lake
from refstore.settings import Settings

API = "/api/v1"
DESCRIPTION = """A git-for-data store that deletes what nobody names any more, and never what is still named.

The routes are lakeFS's, so its clients work; those tagged `refstore` and `collection` go beyond it."""


def create_app(settings: Settings, *, lake: Lake | None = None, operations_: Operations | None = None) -> FastAPI:
    """The application over the lake that the settings name, or over one that is given and stays its owner's to close.

    `operations_`: what the reaper knows, from whoever may know the reaper. Raises InvalidSettings, MissingExtra.
    """
    own = lake is None
    if lake is None:
        keys = [SigningKey(kid, secret) for kid, secret in settings.signing_pairs]
        lake = Lake.open(settings.kv, settings.objects, safety=settings.safety, signing_keys=keys, import_from=settings.api.import_from)
    service = Service(lake, settings.api, operations_)
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            service.close()
            if own:
                service.lake.close()

    app = FastAPI(title="refstore", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.metrics = metrics
    authenticator = app.state.authenticator = Authenticator(service)
    routers = (
        staging.router,  # these first, as routes are tried in order: nothing is asked for as often
        objects.router,
        installation.router,
        repositories.router,
        branches.router,
        imports.router,
        tags.router,
        refs.router,
        collection.router,
        operations.router,
        absent.router,
    )
    for router in routers:
        app.include_router(router, prefix=API)
    app.include_router(probes.router)
    app.include_router(documentation.router)
    errors.install(app)
    openapi.install(app)
    app.add_middleware(
        Around,
        metrics=metrics,
        limits=Limits(settings.api.body_bytes_max, settings.api.upload_idle_seconds, settings.api.upload_bytes_per_second_min),
        admit=authenticator.principal,
        claimed=claimed_key,
        locate=lambda scope: _locate(routers, scope),
        public_url=settings.api.public_url,
        slots=request_slots(settings.api) if settings.api.trusted_proxies else None,
    )
    if settings.api.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.api.trusted_proxies))
    return app


def _locate(routers: Sequence[APIRouter], scope: Scope) -> Located:
    """The route that the request would have come to, had it not been refused at the door."""
    if scope["path"].startswith(API):
        below = {**scope, "path": scope["path"][len(API) :]}
        for router in routers:
            for route in router.routes:
                match, found = route.matches(below)
                if match is Match.FULL:
                    return Located(getattr(route, "path", ""), found.get("path_params", {}))
    return Located(NO_ROUTE, {})
