"""A planned route answers what FastAPI's own way answers, whatever it is asked; and the hot routes have a plan."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from refstore.configuration.settings import ApiSettings
from refstore_api.fast_parameters import FastRoute, parameter_plan
from refstore_api.routes import objects, staging
from refstore_api.shared_parameters import service_of
from refstore_http.memory_budget import MemoryBudget


class Body(BaseModel):
    size: int = Field(ge=0)
    name: str | None = None


async def who(request: Request) -> str:
    if "authorization" not in request.headers:
        raise HTTPException(401, "who?")
    return request.headers["authorization"]


def blocking(request: Request) -> str:
    return request.method


Who = Annotated[str, Depends(who)]
Path = Annotated[str, Query(min_length=1, max_length=8)]
Condition = Annotated[str | None, Header(alias="If-None-Match")]
Amount = Annotated[int, Query(ge=-1, le=1000)]


async def read(
    request: Request,
    caller: Who,
    repository: str,
    path: Path,
    amount: Amount = 100,
    presign: bool = False,
    other: Annotated[str | None, Query(alias="otherName")] = None,
    condition: Condition = None,
) -> Response:
    return Response(repr((request.method, caller, repository, path, amount, presign, other, condition)))


async def write(caller: Who, repository: str, path: Path, body: Body) -> Response:
    return Response(repr((caller, repository, path, body)))


def application(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=route_class)
    router.get("/read/{repository}")(read)
    router.put("/write/{repository}")(write)
    app = FastAPI()
    app.state.service = SimpleNamespace(settings=ApiSettings())  # bounds of bodies
    app.include_router(router, prefix="/v1")
    app.add_middleware(CountedRequests)
    return app


class CountedRequests:
    """What `RequestMiddleware` does that routes rely on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        MemoryBudget().open(scope)
        await self._app(scope, receive, send)


KNOWN = {"authorization": "me"}
JSON = KNOWN | {"content-type": "application/json"}
READS = [
    "path=a",
    "path=a&amount=7&presign=true&otherName=x",
    "path=a&amount=7&amount=8",
    "path=a&presign=1",
    "path=a&presign=yes",
    "path=a&presign=perhaps",
    "path=a&amount=",
    "path=a&amount=1001",
    "path=a&amount=x",
    "path=a&unknown=1",
    "path=%C3%A9%20%2F",
    "path=",
    "path=123456789",
    "",
]
BODIES = [
    b'{"size": 1}',
    b'{"size": "1", "name": "x", "more": 2}',
    b'{"size": -1}',
    b'{"size": 1.5}',
    b'{"name": "x"}',
    b'{"size": 1, "name": "\\ud800"}',
    b"[]",
    b"null",
    b"{",
    b"",
]


@pytest.mark.parametrize("query", READS)
@pytest.mark.parametrize("headers", [KNOWN, KNOWN | {"if-none-match": "*"}, {}], ids=["plain", "condition", "nobody"])
def test_parameters_are_read_as_fastapi_reads_them(query: str, headers: dict[str, str]) -> None:
    assert asked("GET", f"/v1/read/repo?{query}", headers, b"", FastRoute) == asked(
        "GET", f"/v1/read/repo?{query}", headers, b"", APIRoute
    )


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "headers",
    [JSON, KNOWN | {"content-type": "application/json; charset=utf-8"}, KNOWN],
    ids=["json", "charset", "none"],
)
def test_bodies_are_read_as_fastapi_reads_them(body: bytes, headers: dict[str, str]) -> None:
    assert asked("PUT", "/v1/write/repo?path=a", headers, body, FastRoute) == asked(
        "PUT", "/v1/write/repo?path=a", headers, body, APIRoute
    )


def test_a_valid_request_does_not_go_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def general(_self: APIRoute) -> Any:
        async def handle(_request: Request) -> Response:
            raise AssertionError("the general way was gone")

        return handle

    monkeypatch.setattr(APIRoute, "get_route_handler", general)
    assert asked("GET", "/v1/read/repo?path=a&amount=5", KNOWN, b"", FastRoute)[0] == 200
    assert asked("PUT", "/v1/write/repo?path=a", JSON, b'{"size": 1}', FastRoute)[0] == 200


def test_an_unknown_kind_of_parameter_has_no_plan() -> None:
    async def many(numbers: Annotated[list[int], Query()]) -> Response:
        return Response(repr(numbers))

    async def other(found: Annotated[str, Depends(blocking)]) -> Response:
        return Response(found)

    assert parameter_plan(other, frozenset()) is None
    assert parameter_plan(many, frozenset()) is None


@pytest.mark.parametrize("route", [*objects.router.routes, *staging.router.routes], ids=lambda route: route.name)
def test_every_route_of_objects_and_staging_has_a_plan(route: APIRoute) -> None:
    plan = parameter_plan(route.endpoint, frozenset(route.param_convertors))
    assert plan is not None
    assert service_of in [call for _, call in plan.dependencies]


def asked(
    method: str, target: str, headers: dict[str, str], body: bytes, route_class: type[APIRoute]
) -> tuple[int, str]:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(application(route_class))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, target, headers=headers, content=body)

    answered = asyncio.run(ask())
    return answered.status_code, answered.text
