"""Give a route its request: who sends it, and how to work for that caller in the repository that its path names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from refstore.lake import Lake
from refstore.repository import Repository
from refstore_http.json_responses import make_empty_response, make_response
from refstore_http.principals import Principal
from refstore_http.service import Service

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request whose sender is proven, and has the role that the route needs in the path's repository."""

    request: Request
    principal: Principal

    @property
    def service(self) -> Service:
        return self.request.app.state.service

    @property
    def repository(self) -> str:
        """The name in the path. `openapi.py` documents it."""
        return self.request.path_params["repository"]

    async def run(self, work: Callable[[Repository], T]) -> T:
        """Work in the repository, in a thread."""
        return await self.service.repository(self.repository, work)

    async def answer(self, work: Callable[[Repository], BaseModel], status: int = 200) -> Response:
        """Work likewise, and answer with what comes of it."""
        return make_response(await self.run(work), status)

    async def act(self, work: Callable[[Repository], object]) -> Response:
        """Work likewise, and answer that it is done."""
        await self.run(work)
        return make_empty_response()

    async def read(self, work: Callable[[Repository], BaseModel | Response]) -> Response:
        """Answer a read that may take long: in a slot of the access key, and only while its client is connected."""
        return await self.service.read(self.request, self.principal.key_id, self.repository, work)

    async def read_lake(self, work: Callable[[Lake], BaseModel | Response]) -> Response:
        """Answer a read of the whole lake likewise."""
        return await self.service.reads.run(self.request, self.principal.key_id, lambda: work(self.service.lake))
