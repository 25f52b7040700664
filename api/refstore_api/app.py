"""Make the service as an ASGI application. Each call makes a new one; this module keeps no state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from refstore import __version__
from refstore.configuration.configured_lake import open_lake
from refstore.configuration.settings import Settings
from refstore.lake import Lake
from refstore_api import error_responses, openapi, ui
from refstore_api.auth import Authenticator, read_claimed_key
from refstore_api.lazy_routes import LazyRoutes
from refstore_api.request_middleware import NO_ROUTE, MatchedRoute, RequestMiddleware
from refstore_api.routes import documentation
from refstore_http.request_metrics import RequestMetrics
from refstore_http.service import Service

API = "/api/v1"
DESCRIPTION = """A git-for-data store that deletes what nothing references any more, and never what is still referenced.

The routes are lakeFS's, so its clients work; those tagged `refstore` and `collection` go beyond it."""


def create_app(
    settings: Settings,
    *,
    lake: Lake | None = None,
    reaper_metrics: Path | None = None,
) -> FastAPI:
    """Make the application over the lake of the settings, or over `lake`, which its owner closes.

    `reaper_metrics`: the folder to which the reaper beside the service writes its metrics.

    Raises InvalidSettings, DurationsDiffer, MissingExtra, KVUnavailable.
    """
    owns_lake = lake is None
    if lake is None:
        lake = open_lake(settings, create=True)
    service = Service(lake, settings.api, reaper_metrics)
    app = FastAPI(
        title="refstore",
        version=__version__,
        description=DESCRIPTION,
        lifespan=_lifespan(service, owns_lake=owns_lake),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # these redirections lead to the host that the request names
    )
    app.state.service = service
    app.state.metrics = RequestMetrics()
    app.state.authenticator = Authenticator(service)
    _add_routes(app)
    _add_middleware(app)
    return app


def _lifespan(service: Service, *, owns_lake: bool) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            service.close()
            if owns_lake:
                service.lake.close()

    return lifespan


def _add_routes(app: FastAPI) -> None:
    # the only route of the API that is there from the start: whoever started the service asks it
    app.get("/healthcheck", operation_id="liveness", status_code=204, tags=["health"])(liveness)
    app.router.routes.append(LazyRoutes(app, ["/readiness", "/metrics"], _health_routers))
    app.include_router(documentation.router)
    app.router.routes.append(LazyRoutes(app, [API], _api_routers, prefix=API))
    error_responses.install_error_handlers(app)
    ui.install(app)
    openapi.install_openapi(app)


async def liveness() -> Response:
    """Answer that the process runs."""
    return Response(status_code=204)


def _add_middleware(app: FastAPI) -> None:
    authenticator: Authenticator = app.state.authenticator
    app.add_middleware(
        RequestMiddleware,
        service=app.state.service,
        metrics=app.state.metrics,
        admit=authenticator.principal,
        claimed=read_claimed_key,
        locate=_locate,
    )


def _api_routers() -> Sequence[APIRouter]:
    from refstore_api.routes.api_routers import ROUTERS

    return ROUTERS


def _health_routers() -> Sequence[APIRouter]:
    from refstore_api.routes import health

    return [health.router]


def _locate(scope: Scope) -> MatchedRoute:
    """Return the route that a refused request would have reached."""
    if scope["path"].startswith(API):
        api_scope = {**scope, "path": scope["path"][len(API) :]}
        for router in _api_routers():
            for route in router.routes:
                match, child_scope = route.matches(api_scope)
                if match is Match.FULL:
                    return MatchedRoute(getattr(route, "path", ""), child_scope.get("path_params", {}))
    return MatchedRoute(NO_ROUTE, {})
