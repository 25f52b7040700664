"""Routes that are included at the first request for one of them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import PlainTextResponse, Response

from refstore_api.lazy_routes import LazyRoutes
from tests.api.service import application


def test_requests_that_come_together_are_all_answered_after_one_import() -> None:
    loads: list[int] = []
    app = FastAPI()

    def load() -> list[APIRouter]:
        loads.append(1)
        router = APIRouter()

        @router.get("/below/{name}")
        async def answer(name: str) -> Response:
            return PlainTextResponse(name)

        return [router]

    app.router.routes.append(LazyRoutes(app, ["/lazy"], load, prefix="/lazy"))

    async def ask(path: str, method: str = "GET") -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "root_path": ""}
        await app(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def ask_all() -> list[tuple[int, bytes]]:
        assert (await ask("/lazyness"))[0] == 404
        assert loads == []
        return await asyncio.gather(*(ask(f"/lazy/below/{number}") for number in range(5)))

    assert asyncio.run(ask_all()) == [(200, str(number).encode()) for number in range(5)]
    assert asyncio.run(ask("/lazy/other"))[0] == 404
    assert asyncio.run(ask("/lazy/below/1", "POST"))[0] == 405
    assert loads == [1]
    assert not any(isinstance(route, LazyRoutes) for route in app.router.routes)


def test_the_document_has_the_routes_of_the_api_and_no_page_whatever_was_asked_for_before() -> None:
    with application() as untouched, application() as used:
        assert used("GET", "http://lake.test/ui").status_code == 303
        assert used("GET", "/repositories").status_code == 200
        document = untouched.app.openapi()
        assert document["paths"].keys() == used.app.openapi()["paths"].keys()
    paths = set(document["paths"])
    assert {"/api/v1/repositories", "/healthcheck", "/readiness", "/metrics"} <= paths
    assert not {path for path in paths if path.startswith("/ui")}
