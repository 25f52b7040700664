"""Include routes when the first request comes for them: the service answers sooner, and who opens no page at `/ui`
never imports what makes pages.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send


class LazyRoutes(BaseRoute):
    """Stands in an application for the routes below some paths, until the first request for one of them."""

    def __init__(
        self,
        app: FastAPI,
        paths: Sequence[str],
        load: Callable[[], Sequence[APIRouter]],
        *,
        prefix: str = "",
        include_in_schema: bool = True,
    ) -> None:
        """`paths`: of the routes; each stands for what is below it, too. `load` imports the routers; it is called in a
        thread, so that other requests go on.
        """
        self._app = app
        self._paths = tuple(paths)
        self._load = load
        self._prefix = prefix
        self._include_in_schema = include_in_schema
        self._lock = asyncio.Lock()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_below = any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in self._paths)
        return (Match.FULL if scope["type"] == "http" and is_below else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            if self in self._app.router.routes:
                self._include(await asyncio.to_thread(self._load))
                gc.freeze()  # as after the start: a full collection that scans what was imported delays every request
        await self._app.router(scope, receive, send)

    def include(self) -> None:
        if self in self._app.router.routes:
            self._include(self._load())

    def _include(self, routers: Sequence[APIRouter]) -> None:
        for router in routers:
            self._app.include_router(router, prefix=self._prefix, include_in_schema=self._include_in_schema)
        self._app.router.routes.remove(self)


def include_all(app: FastAPI) -> None:
    """Include all routes that wait for a request, for who must see them all."""
    for route in list(app.router.routes):
        if isinstance(route, LazyRoutes):
            route.include()
